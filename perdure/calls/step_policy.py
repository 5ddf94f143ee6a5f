"""The step policy: runs the ``on_iteration`` hooks before every model call of a turn but the first.

Their decisions become part of the call: of the request, of what is recorded, and of the overrides that the loop keeps.
An attempt that is lost has recorded nothing, and the policy runs again; one that finds the outcome does not run it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from ..agent.spec import AgentSpec
from ..errors import BranchError, DefinitionError, PerdureError, build_error
from ..hooks import Hook, HookArguments, run_hooks
from ..hooks.branch import Branch, Branches, LeftError
from ..hooks.dispatch import ArgumentsSnapshot, extract_file_blobs
from ..hooks.step import Step, StepFacts
from ..loop.finish import REMINDER_ID
from ..loop.payload_limits import OVERRIDE_BYTES
from ..loop.requests import merge_overrides
from ..loop.transcript import adopt_edited_messages, find_conversation_problem
from ..ports.store import Blob, move_file_to_blob, move_text_to_blob
from ..tools import RunContext
from ..tools.subagents import agent_name
from ..types.events import MessageInjected, StepTaken
from ..types.interface import OVERRIDE_DURATIONS, LastingOverrides, parse_output
from ..types.messages import FilePart, Message, Replaced, ToolResultPart, clean_text
from ..types.plain_json import measure_json
from ..types.run_ids import format_child_run_id
from ..types.subagents import BRANCH_LABEL_CHARS, BRANCH_MODEL_BYTES, MAX_BRANCHES, BranchOutcome, BranchRequest
from ..types.wire import FinalAnswer, ModelInput, ModelOutput
from .agents import Agents
from .author_loop import AuthorLoop
from .call import BranchConversation, ConversationCall, ModelReply
from .iteration_hooks import HookRunner
from .tool_hooks import merge_returned_result

# ---
# Branches of a step policy (``step.branch``) to other agents, from the conversation as the policy has changed it.


BranchMessages = Literal["all", "none"]


@dataclass(frozen=True, slots=True)
class BranchWait:
    """The outcome of a call whose policy waits for branches, in a reply's place."""

    branches: tuple[BranchRequest, ...]
    forks: tuple[BranchConversation | None, ...]
    blobs: tuple[Blob, ...]

    def build_reply(self, call: ConversationCall[ModelInput]) -> ModelReply:
        """Build the reply, without the attempt's memory writes: the policy, and the hooks before it, run again."""
        call.recording.memory_writes.clear()
        call.recording.blobs += self.blobs
        return ModelReply(ModelOutput(branches=self.branches), message=None, branch_conversations=self.forks)


class StepBranches:
    """The branches of one attempt of a policy."""

    def __init__(
        self, agents: Agents, call: ConversationCall[ModelInput], known: Sequence[Message], recorded: int
    ) -> None:
        """``known``: the conversation, whose first ``recorded`` messages are in the transcript already."""
        self._agents = agents
        self._call = call
        self._conversation = self._drop_finish_order(known)
        self._recorded_count = recorded
        self._forks: dict[int, tuple[BranchConversation | None, list[Blob]]] = {}
        self._ended_count = len(call.branches)
        self.branches = Branches(tuple(call.branches), self._read_answer)

    def begin_branch(self, step: Step, agent: Any, message: Any, model: Any, messages: Any) -> Branch:
        """Implement ``step.branch``. Raises ``DefinitionError``, ``AgentNotFoundError``, ``InvalidInputError``."""
        target = self._agents.get(_read_branch_agent(agent))
        if messages not in get_args(BranchMessages):
            raise DefinitionError(f'step.branch(messages=…) is "all" or "none", not {messages!r:.100}')
        models = self._read_models(target, model)
        text, typed = _read_branch_message(target, message)
        if text is None and messages == "none":
            raise DefinitionError(
                f"a branch to agent {target.name!r} without the conversation needs a message",
                hint='Give it a message, or messages="all".',
            )
        fork, blobs = self._build_fork(step, text) if messages == "all" else (None, [])
        request = _build_branch_request(target.name, text, typed, models, messages)
        branch = self.branches.begin_branch(request)
        if not branch.is_awaited:
            self._forks[id(branch)] = fork, blobs
            self._check_count()
        return branch

    def build_wait(self) -> BranchWait:
        """Build the wait for the new branches."""
        new = self.branches.new_branches
        forks = [self._forks[id(branch)] for branch in new]
        return BranchWait(
            branches=tuple(branch.request for branch in new),
            forks=tuple(fork for fork, _ in forks),
            blobs=tuple(blob for _, blobs in forks for blob in blobs),
        )

    def _check_count(self) -> None:
        if self._ended_count + len(self.branches.new_branches) > MAX_BRANCHES:
            raise DefinitionError(
                f"a step may have {MAX_BRANCHES} branches, and the policy begins one more",
                hint="Ask an agent that has the others as subagents, or spread them over several steps.",
            )

    def _read_models(self, agent: AgentSpec, model: Any) -> tuple[str, ...]:
        if model is None:
            return ()
        given = list(model) if isinstance(model, Sequence) and not isinstance(model, str) else model
        if (size := measure_json(given)) > BRANCH_MODEL_BYTES:
            raise DefinitionError(
                f"step.branch(model=…) has {size:,} bytes as JSON and may have {BRANCH_MODEL_BYTES:,}",
                hint="Give the name of a model, or a short list of names.",
            )
        agent.overridden({"model": given})  # raises for an invalid model now
        return (given,) if isinstance(given, str) else tuple(given)

    def _build_fork(self, step: Step, text: str | None) -> tuple[BranchConversation | None, list[Blob]]:
        """Build the conversation as the policy has it now: on the transcript's head, where its messages are unchanged,
        else a new conversation. Return it with the blobs to write."""
        call, conversation = self._call, self._conversation
        messages = self._drop_finish_order(step.messages)
        if len(messages) == len(conversation) and all(a is b for a, b in zip(messages, conversation, strict=True)):
            return BranchConversation(call.head, tuple(conversation[self._recorded_count :])), []
        sent = [*messages, *([] if text is None else [Message.user(text)])]
        if (why := find_conversation_problem(sent)) is not None:
            raise DefinitionError(
                f"step.messages cannot be sent to another agent: {why}",
                hint="A call and its result go together; step.trim(keep=20) shortens a conversation so.",
            )
        edited, blobs = extract_file_blobs(adopt_edited_messages(messages, conversation))
        unchanged = len(edited) >= self._recorded_count and all(
            a is b or a == b for a, b in zip(edited, conversation[: self._recorded_count], strict=False)
        )
        return (
            BranchConversation(call.head, tuple(edited[self._recorded_count :]))
            if unchanged
            else BranchConversation(None, tuple(edited))
        ), blobs

    def _drop_finish_order(self, messages: Sequence[Message]) -> list[Message]:
        """Drop the engine's order to finish, which is for the agent of the run only."""
        if not self._call.input.is_forced:
            return list(messages)
        # The reminder after a reply without an answer has the same id, and stays: only the last of them is the order.
        order = next((one for one in reversed(self._call.new_messages) if one.id == REMINDER_ID), None)
        return [message for message in messages if message is not order]

    def _read_answer(self, outcome: BranchOutcome) -> Any:
        """Read the answer of a branch that has ended. Raises ``BranchError``."""
        task = self._call.input
        child = format_child_run_id(task.context_id, task.scope, outcome.op)
        what = f"the branch {outcome.label} (run {child})"
        if outcome.error_type is not None:
            cause = build_error(outcome.error_type, outcome.error or "")
            if isinstance(cause, BranchError):
                raise BranchError(f"{what}: {cause.message}")
            raise BranchError(f"{what} failed: {outcome.error_type}: {outcome.error}") from cause
        kind = self._agents.get(outcome.agent).output_type
        if kind.is_text:
            return outcome.content
        if not outcome.typed:
            raise BranchError(
                f"{what} ended without an output; the agent said: {outcome.content[:BRANCH_LABEL_CHARS]!r}"
            )
        try:
            return kind.load_value(parse_output(outcome.content))
        except PerdureError as error:
            raise BranchError(f"{what}: {error}") from error


def _read_branch_agent(agent: Any) -> str:
    try:
        return agent_name(agent)
    except DefinitionError:
        raise DefinitionError(
            f"step.branch asks an Agent, or the name of one, not {agent!r:.100}",
            hint='For instance await step.branch("critic", "Is this enough?").',
        ) from None


def _read_branch_message(agent: AgentSpec, message: Any) -> tuple[str | None, bool]:
    """Return the text of the message to ``agent``, and whether it is JSON of its input type. Raises
    ``DefinitionError``."""
    if message is None:
        return None, False
    if isinstance(message, str) and message:
        return clean_text(message), False
    if isinstance(message, list | tuple | bytes | str) or not agent.takes_input:
        raise DefinitionError(
            f"a branch to agent {agent.name!r} is given text"
            + (", or a value of its input type" if agent.takes_input else "")
            + f", not {message!r:.100}",
            hint="The branch sees the conversation, files included.",
        )
    return clean_text(json.dumps(agent.check_input(message), ensure_ascii=False)), True


def _build_branch_request(
    agent: str, text: str | None, typed: bool, models: tuple[str, ...], messages: str
) -> BranchRequest:
    plain = json.dumps([agent, text, typed, models, messages])
    label = agent if text is None else f"{agent}: {text}"
    return BranchRequest(
        key=hashlib.sha256(plain.encode()).hexdigest()[:32],
        label=repr(label if len(label) <= BRANCH_LABEL_CHARS else label[:BRANCH_LABEL_CHARS] + "…"),
        agent=agent,
        message=text,
        typed=typed,
        model=models,
    )


@dataclass(frozen=True, slots=True)
class StepResult:
    """The policy's changes to a call; ``call.prefix`` and ``call.new_messages`` are changed in place."""

    agent: AgentSpec
    """The agent of the call, with the policy's overrides."""
    finish: FinalAnswer | None
    """The answer, if no model is to be called."""
    kept: LastingOverrides | None
    replaced: Replaced | None
    """The replaced conversation, where ``call.new_messages`` is a whole new one that does not follow the head."""
    value: Any
    """The answer before it becomes text: the argument of output validators."""
    events: Sequence[StepTaken | MessageInjected]
    """The policy's changes and messages as events."""

    def add_to_reply(self, reply: ModelReply, call: ConversationCall[ModelInput]) -> None:
        """Add to ``reply`` the events, the lasting overrides and the rewritten conversation."""
        reply.step_events = self.events
        if self.kept is not None:
            reply.output = reply.output.model_copy(update={"overrides": self.kept})
        if self.replaced is not None:
            system = [Message.system(reply.system)] if reply.system else []
            first, *rest = [*system, *call.new_messages]
            reply.rewritten_messages = [first.model_copy(update={"replaces": self.replaced}), *rest]
            call.prefix, call.new_messages = reply.rewritten_messages, ()


class StepPolicy:
    """Runs policies and carries out what they decide."""

    def __init__(self, author: AuthorLoop, agents: Agents, firing: HookRunner) -> None:
        self._author = author
        self._agents = agents
        self._hook_runner = firing

    async def run_policy(
        self, base_agent: AgentSpec, agent: AgentSpec, call: ConversationCall[ModelInput], ctx: RunContext[Any]
    ) -> StepResult | BranchWait | None:
        """Let the policy change ``call``; None if it changes nothing. ``base_agent`` is ``agent`` without overrides.

        Raises ``HookError``, ``AbortError``.
        """
        if call.input.iteration <= 1:
            return None
        hooks = self._hook_runner.find_hooks("on_iteration", agent)
        return (
            await _PolicyAttempt(self._agents, base_agent, agent, call).run(self._author, hooks, ctx) if hooks else None
        )


class _PolicyAttempt:
    """One run of the policy."""

    def __init__(self, agents: Agents, base: AgentSpec, agent: AgentSpec, call: ConversationCall[ModelInput]) -> None:
        self._agents = agents
        self._base_agent = base
        self._agent = agent
        self._call = call
        self._recorded = [message for message in call.prefix if message.role != "system"]
        self._conversation = [*self._recorded, *call.new_messages]
        self._blobs: list[Blob] = []
        self._step_branches = StepBranches(agents, call, self._conversation, len(self._recorded))
        self._inside = ArgumentsSnapshot(self._conversation)

    async def run(
        self, author: AuthorLoop, hooks: Sequence[Hook], ctx: RunContext[Any]
    ) -> StepResult | BranchWait | None:
        step = Step(self._build_facts())
        try:
            for group in _group_hooks(hooks):
                trial = step if group[0].on_error == "fail" else step.copy()
                if await self._fire_hooks(author, group, trial, ctx):
                    step = trial
                if step.finished is not None:
                    break
        except LeftError:
            return self._step_branches.build_wait()
        finally:
            self._inside.restore()
        return self._build_step_result(step)

    def _build_facts(self) -> StepFacts:
        task, agent = self._call.input, self._agent
        own = self._base_agent.toolbox
        texts = [part for part in agent.instruction_parts if isinstance(part, str)]
        return StepFacts(
            iteration=task.iteration - 1,
            forced=task.is_forced,
            usage=task.used,
            cost_usd=task.cost_usd,
            messages=tuple(self._conversation),
            models=agent.models,
            settings=agent.settings,
            instructions="\n\n".join(texts) if texts and len(texts) == len(agent.instruction_parts) else None,
            tools=tuple(tool.name for tool in agent.toolbox),
            known_tools=frozenset(tool.name for tools in (own, self._agents.tools) for tool in tools),
            build_result=self._build_tool_result,
            begin_branch=self._step_branches.begin_branch,
        )

    async def _fire_hooks(self, author: AuthorLoop, hooks: Sequence[Hook], step: Step, ctx: RunContext[Any]) -> bool:
        """Run the hooks. Return False if a hook with ``on_error="log"`` has failed."""
        done: list[Hook] = []

        def show(given: HookArguments) -> HookArguments:
            given.update(messages=tuple(step.messages), response=step.reply)
            return given

        def take(hook: Hook, _: Any, given: HookArguments) -> bool:
            self._step_branches.branches.check_awaited()
            self._check_step(step)
            show(given)
            done.append(hook)
            return step.finished is not None

        run = self._step_branches.branches.wrap_runner(author.run)
        await run_hooks(run, hooks, show({"step": step, "iteration": step.iteration, "ctx": ctx}), take)
        if not done:  # its failure was only logged
            self._step_branches.branches.discard_new_branches()
        return bool(done)

    def _check_step(self, step: Step) -> None:
        """Raise ``DefinitionError`` for changes that cannot be carried out, so that the error names the hook."""
        self._inside.check_unchanged("step.messages[i]")
        before = self._call.input.overrides or {}
        changes = step.build_changes()
        for changed in (changes, *step.kept_changes.values()):
            if changed:
                self._base_agent.overridden(merge_overrides(before, changed), self._agents.tools)
        if (size := measure_json(step.kept_changes)) > OVERRIDE_BYTES:
            raise DefinitionError(
                f"step.keep: the lasting overrides have {size:,} bytes as JSON and may have {OVERRIDE_BYTES:,}",
                hint="Say it in a message, or set it before each call.",
            )
        if not all(isinstance(message, Message) for message in step.messages):
            raise DefinitionError("step.messages may hold only Message objects", hint="For instance Message.user('…').")
        if (
            not _has_same_messages(step.messages, self._conversation)
            and (why := find_conversation_problem(step.messages)) is not None
        ):
            raise DefinitionError(
                f"step.messages cannot be sent to a model: {why}",
                hint="A call and its result go together; step.trim(keep=20) shortens a conversation so.",
            )
        self._build_finish(step)

    def _build_finish(self, step: Step) -> FinalAnswer | None:
        """Build the policy's answer, if any. Raises ``DefinitionError`` if it is not of the output type."""
        if step.finished is None:
            return None
        kind = self._agent.output_type
        try:
            finish = kind.build_finish(kind.validate_value(step.finished[0]))
        except ValueError as error:
            raise DefinitionError(f"step.finish: the value is not of the output type: {error}") from error
        # Under finish="tool" a text is an output only if it was given as one, which is so here.
        return finish.model_copy(update={"called": kind.is_text and self._agent.finish == "tool"})

    def _build_tool_result(self, before: ToolResultPart, value: Any) -> ToolResultPart:
        """Build the result that replaces ``before``. ``value``: a part of the same call, or anything that a tool may
        return. Raises ``DefinitionError`` for a part of another call."""
        if isinstance(value, ToolResultPart) and value.call_id != before.call_id:
            raise DefinitionError(
                f"the result of the call {before.call_id!r} cannot be that of {value.call_id!r}",
                hint="Give its text, or part.model_copy(update={'content': …}) of the same part.",
            )
        return merge_returned_result(before, value, self._blobs)

    # --- afterwards

    def _build_step_result(self, step: Step) -> StepResult | None:
        changes, kept, finish = step.build_changes(), step.kept_changes, self._build_finish(step)
        same = _has_same_messages(step.messages, self._conversation)
        if same and not changes and not kept and finish is None:
            return None
        replaced = None if same else self._apply_edit(step)
        step_event = self._build_step_event(step, changes, replaced)
        events: list[StepTaken | MessageInjected] = [step_event, *map(_build_injected_event, step.injected_messages)]
        overrides = merge_overrides(self._call.input.overrides or {}, changes)
        agent = self._base_agent.overridden(overrides, self._agents.tools) if changes else self._agent
        value = None if step.finished is None else agent.output_type.validate_value(step.finished[0])
        return StepResult(agent, finish, LastingOverrides(**kept) if kept else None, replaced, value, events)

    def _apply_edit(self, step: Step) -> Replaced | None:
        """Put the edited conversation into the call. Return the conversation that it replaces, if that was recorded
        already."""
        call, recorded = self._call, len(self._recorded)
        edited, blobs = extract_file_blobs(adopt_edited_messages(step.messages, self._conversation))
        blobs += self._blobs
        call.recording.blobs += blobs
        call.files = {**call.files, **{blob.hash: blob.body for blob in blobs}}
        if _has_same_messages(edited[:recorded], self._recorded):
            call.new_messages = edited[recorded:]
            return None
        assert call.head is not None, "what is recorded has a head"
        before = Replaced(head=call.head, messages=len(call.prefix), kept=0)
        call.head, call.prefix, call.new_messages = None, (), edited
        return before

    def _build_step_event(self, step: Step, changes: dict[str, Any], replaced: Replaced | None) -> StepTaken:
        return StepTaken(
            iteration=self._call.input.iteration,
            model=step.model if "model" in changes else None,
            settings=changes.get("settings", {}),
            instructions="instructions" in changes,
            tools_added=tuple(changes.get("add_tools", ())),
            tools_removed=tuple(changes.get("remove_tools", ())),
            kept=tuple(scope for scope in OVERRIDE_DURATIONS if scope in step.kept_changes),
            results=self._list_changed_results(step),
            injected=len(step.injected_messages),
            edited=replaced is not None,
            head_before=replaced.head if replaced is not None else None,
            finished=step.finished is not None,
        )

    def _list_changed_results(self, step: Step) -> tuple[str, ...]:
        """List the ids of the last reply's calls whose results were changed."""
        before = {part.call_id: part for part in Step(self._build_facts()).results}
        return tuple(result.call_id for result in step.results if before.get(result.call_id, result) != result)


def _group_hooks(hooks: Sequence[Hook]) -> Iterator[list[Hook]]:
    """Group adjacent hooks that fail the run; a hook whose failure is only logged is alone, so that it can be
    undone."""
    group: list[Hook] = []
    for hook in hooks:
        if hook.on_error == "fail":
            group.append(hook)
            continue
        if group:
            yield group
        yield [hook]
        group = []
    if group:
        yield group


def _has_same_messages(messages: Sequence[Message], others: Sequence[Message]) -> bool:
    return len(messages) == len(others) and all(a is b or a == b for a, b in zip(messages, others, strict=True))


def _build_injected_event(message: Message) -> MessageInjected:
    blobs: list[Blob] = []  # they are recorded with the transcript
    files = tuple(move_file_to_blob(part, blobs) for part in message.parts if isinstance(part, FilePart))
    return move_text_to_blob(MessageInjected(by=message.by, content=message.text, files=files), "content", blobs)
