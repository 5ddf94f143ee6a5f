"""The step policy: the hooks on ``on_iteration``, run before every model call of a turn but the first.

What they decide becomes part of the call: what the model is asked, what is recorded, what the loop keeps. An attempt
that is lost has recorded nothing, and the policy runs again; one that finds the outcome does not run it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ..agent import Agent
from ..errors import DefinitionError
from ..hooks import Given, Hook, fire_all
from ..hooks.branch import LeftError
from ..hooks.files import by_reference
from ..hooks.inside import Inside
from ..hooks.step import Facts, Step
from ..loop.edited import taken_over, unsound
from ..loop.overrides import merged
from ..loop.sizes import OVERRIDE_BYTES, size
from ..overriding import overridden
from ..ports import Blob, ModelCall, ModelReply
from ..tools import RunContext, read_result
from ..types.events import MessageInjected, StepTaken
from ..types.messages import FilePart, Message, Replaced, ToolResultPart, clean
from ..types.step import KEPT, Kept
from ..types.wire import INLINE_BYTES, Finish
from .agents import Agents
from .author_loop import AuthorLoop
from .branching import Branching, Waits
from .firing import Firing


@dataclass(frozen=True, slots=True)
class Stepped:
    """What the policy has made of a call; ``call.prefix`` and ``call.fresh`` are changed in place."""

    agent: Agent
    """As the call is made with."""
    finish: Finish | None
    """The answer, where no model is to be asked."""
    kept: Kept | None
    replaced: Replaced | None
    """Where ``call.fresh`` is the whole conversation, and nothing of it follows the head: what was there before."""
    value: Any = None
    """The answer as it is before it becomes text: what output validators are given."""

    def onto(self, reply: ModelReply, call: ModelCall) -> None:
        """Add to ``reply`` what is to be recorded with it."""
        if self.kept is not None:
            reply.output = reply.output.model_copy(update={"overrides": self.kept})
        if self.replaced is not None:
            system = [Message.system(reply.system)] if reply.system else []
            first, *rest = [*system, *call.fresh]
            reply.rewritten = [first.model_copy(update={"replaces": self.replaced}), *rest]
            call.prefix, call.fresh = reply.rewritten, ()


class Stepping:
    """Runs policies and carries out what they decide."""

    def __init__(self, author: AuthorLoop, agents: Agents, firing: Firing) -> None:
        self._author = author
        self._agents = agents
        self._firing = firing

    async def step(self, agent: Agent, call: ModelCall, told: RunContext[Any]) -> Stepped | Waits | None:
        """Let the policy change ``call``; None where it has nothing to say. Raises ``HookError``, ``AbortError``."""
        task = call.input
        if task.iteration <= 1 or task.purpose not in ("call", "force_finish"):
            return None
        hooks = self._firing.on("on_iteration", agent)
        return await _Attempt(self._agents, agent, call).run(self._author, hooks, told) if hooks else None


class _Attempt:
    """One run of the policy."""

    def __init__(self, agents: Agents, agent: Agent, call: ModelCall) -> None:
        self._agents = agents
        self._agent = agent
        self._call = call
        self._recorded = [message for message in call.prefix if message.role != "system"]
        self._known = [*self._recorded, *call.fresh]
        self._blobs: list[Blob] = []
        self._branching = Branching(agents, call, self._known, len(self._recorded))
        self._inside = Inside(self._known)

    async def run(self, author: AuthorLoop, hooks: Sequence[Hook], told: RunContext[Any]) -> Stepped | Waits | None:
        step = Step(self._facts())
        try:
            for some in _together(hooks):
                trial = step if some[0].on_error == "fail" else step.copy()
                if await self._fire(author, some, trial, told):
                    step = trial
                if step.finished is not None:
                    break
        except LeftError:
            return self._branching.waits()
        finally:
            self._inside.put_back()
        return self._carried_out(step)

    def _facts(self) -> Facts:
        task, agent = self._call.input, self._agent
        own = self._call.base.toolbox
        instructions = agent.instructions
        return Facts(
            iteration=task.iteration - 1,
            forced=task.purpose == "force_finish",
            usage=task.used,
            cost_usd=task.cost_usd,
            messages=tuple(self._known),
            models=agent.models,
            settings=agent.settings,
            instructions=None if callable(instructions) else instructions,
            tools=tuple(tool.name for tool in agent.toolbox),
            known=frozenset(tool.name for tools in (own, self._agents.tools) for tool in tools),
            result=self._result,
            branch=self._branching.begin,
        )

    async def _fire(self, author: AuthorLoop, hooks: Sequence[Hook], step: Step, told: RunContext[Any]) -> bool:
        """Whether they have done it; one that is only to be logged may have failed."""
        done: list[Hook] = []

        def show(given: Given) -> Given:
            given.update(messages=tuple(step.messages), response=step.reply)
            return given

        def take(hook: Hook, _: Any, given: Given) -> bool:
            self._branching.branches.check()
            self._check(step)
            show(given)
            done.append(hook)
            return step.finished is not None

        run = self._branching.branches.around(author.run)
        await fire_all(run, hooks, show({"step": step, "iteration": step.iteration, "ctx": told}), take)
        if not done:  # it was only logged that it failed
            self._branching.branches.forget()
        return bool(done)

    def _check(self, step: Step) -> None:
        """Raise ``DefinitionError`` for what cannot be carried out: the error names the hook that did it."""
        self._inside.check("step.messages[i]")
        base, before = self._call.base, self._call.input.overrides or {}
        changes = step.changes()
        for some in (changes, *step.kept.values()):
            if some:
                overridden(base, merged(before, some), self._agents.tools)
        if (found := size(step.kept)) > OVERRIDE_BYTES:
            raise DefinitionError(
                f"step.keep: what is to hold from now on has {found:,} bytes as JSON and may have {OVERRIDE_BYTES:,}",
                hint="Say it in a message, or set it before each call.",
            )
        if not all(isinstance(one, Message) for one in step.messages):
            raise DefinitionError(
                "step.messages has something in it that is no Message", hint="For instance Message.user('…')."
            )
        if not _same(step.messages, self._known) and (why := unsound(step.messages)) is not None:
            raise DefinitionError(
                f"step.messages cannot be sent to a model: {why}",
                hint="A call and its result go together; step.trim(keep=20) shortens a conversation so.",
            )
        self._finish(step)

    def _finish(self, step: Step) -> Finish | None:
        """The answer that the policy gives. Raises ``DefinitionError`` for one that is not of the output type."""
        if step.finished is None:
            return None
        kind = self._agent.output_type
        try:
            finish = kind.finish(kind.changed(step.finished[0]))
        except ValueError as error:
            raise DefinitionError(f"step.finish was given what the output cannot be: {error}") from error
        # A text is an output under finish="tool" only if it was given as one, and this was.
        return finish.model_copy(update={"called": kind.is_text and self._agent.finish == "tool"})

    def _result(self, before: ToolResultPart, value: Any) -> ToolResultPart:
        """What a policy makes of a result: a part of the same call, or anything that a tool may return."""
        if isinstance(value, ToolResultPart):
            if value.call_id != before.call_id:
                raise DefinitionError(
                    f"the result of the call {before.call_id!r} cannot be that of {value.call_id!r}",
                    hint="Give its text, or part.model_copy(update={'content': …}) of the same part.",
                )
            text, files, is_error = clean(value.content), value.files, value.is_error
        else:
            result = read_result(value)
            text, files, is_error = result.text, tuple(file.part for file in result.files), before.is_error
        (message,), blobs = by_reference([Message(role="tool", parts=files)])
        self._blobs += blobs
        kept = tuple(part for part in message.parts if isinstance(part, FilePart))
        return before.model_copy(update={"content": text, "files": kept, "is_error": is_error})

    # --- afterwards

    def _carried_out(self, step: Step) -> Stepped | None:
        changes, kept, finish = step.changes(), step.kept, self._finish(step)
        same = _same(step.messages, self._known)
        if same and not changes and not kept and finish is None:
            return None
        replaced = None if same else self._edit(step)
        taken = self._told_of(step, changes, replaced)
        self._call.steps = [taken, *map(_injected, step.injected)]
        overrides = merged(self._call.input.overrides or {}, changes)
        agent = self._call.base.overridden(overrides, self._agents.tools) if changes else self._agent
        value = None if step.finished is None else agent.output_type.changed(step.finished[0])
        return Stepped(agent, finish, Kept(**kept) if kept else None, replaced, value)

    def _edit(self, step: Step) -> Replaced | None:
        """Put the edited conversation into the call; what it replaces, where that was recorded already."""
        call, recorded = self._call, len(self._recorded)
        edited, blobs = by_reference(taken_over(step.messages, self._known))
        blobs += self._blobs
        call.blobs += blobs
        call.files = {**call.files, **{blob.hash: blob.body for blob in blobs}}
        if _same(edited[:recorded], self._recorded):
            call.fresh = edited[recorded:]
            return None
        assert call.head is not None, "what is recorded has a head"
        before = Replaced(head=call.head, messages=len(call.prefix), kept=0)
        call.head, call.prefix, call.fresh = None, (), edited
        return before

    def _told_of(self, step: Step, changes: dict[str, Any], replaced: Replaced | None) -> StepTaken:
        return StepTaken(
            iteration=self._call.input.iteration,
            model=step.model if "model" in changes else None,
            settings=changes.get("settings", {}),
            instructions="instructions" in changes,
            tools_added=tuple(changes.get("add_tools", ())),
            tools_removed=tuple(changes.get("remove_tools", ())),
            kept=tuple(scope for scope in KEPT if scope in step.kept),
            results=self._changed_results(step),
            injected=len(step.injected),
            edited=replaced is not None,
            head_before=replaced.head if replaced is not None else None,
            finished=step.finished is not None,
        )

    def _changed_results(self, step: Step) -> tuple[str, ...]:
        """Calls of the last reply whose results say something else now."""
        before = {part.call_id: part for part in Step(self._facts()).results}
        return tuple(one.call_id for one in step.results if before.get(one.call_id, one) != one)


def _together(hooks: Sequence[Hook]) -> Iterator[list[Hook]]:
    """Those that fail the run go together; one that is only logged goes alone, so that it can be undone."""
    some: list[Hook] = []
    for hook in hooks:
        if hook.on_error == "fail":
            some.append(hook)
            continue
        if some:
            yield some
        yield [hook]
        some = []
    if some:
        yield some


def _same(messages: Sequence[Message], others: Sequence[Message]) -> bool:
    return len(messages) == len(others) and all(a is b or a == b for a, b in zip(messages, others, strict=True))


def _injected(message: Message) -> MessageInjected:
    text, blob = message.text, None
    if len(text) * 4 > INLINE_BYTES and len(text.encode()) > INLINE_BYTES:
        text, blob = "", Blob.of(text).ref  # the transcript keeps it there
    files = tuple(part for part in by_reference([message])[0][0].parts if isinstance(part, FilePart))
    return MessageInjected(by=message.by, content=text, blob=blob, files=files)
