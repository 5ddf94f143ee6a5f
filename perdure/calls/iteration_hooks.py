"""Runs an iteration's hooks other than those around the call: on messages, the answer, errors, approvals, subagents.

The transcript and the events have a user's message as the hooks have changed it. An ending records messages that no
model has seen: they go through the same hooks, and the ending is recorded even if these fail.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from temporalio import activity

from ..agent.spec import AgentSpec
from ..errors import DefinitionError, ParseError, RetryLaterError
from ..hooks import Hook, HookArguments, HookEvent, HookSet, list_hook_events, run_hooks, select_hooks
from ..hooks.dispatch import (
    build_hook_error,
    build_return_type_error,
    extract_file_blobs,
    read_hook_message,
    read_hook_text,
    run_observing_hooks,
    withhold_message,
)
from ..loop.finish import REMINDER_ID
from ..tools import RunContext, SubagentTool
from ..types.approvals import ApprovalTerms, hash_arguments
from ..types.messages import INLINE_BYTES, Message, ToolResultPart, clean_text
from ..types.subagents import TellCall
from ..types.tool_calls import (
    BeforeExternalCall,
    Call,
    CallbackCall,
    ExternalCallHooks,
    RefusedCall,
    RemoteCall,
    SubagentCall,
)
from ..types.wire import (
    CLOSE_ACTIVITY,
    REMIND_ACTIVITY,
    CloseInput,
    FinalAnswer,
    ModelInput,
    ModelOutput,
    RemindInput,
    ToolOutput,
)
from .agents import Agents
from .author_loop import AuthorLoop
from .call import ConversationCall, ModelReply, ToolCall, build_error_output

logger = logging.getLogger("perdure.worker")

MakeContext = Callable[[], Awaitable[RunContext[Any]]]
MESSAGE_EVENTS: tuple[HookEvent, HookEvent] = ("on_user_message", "on_user_injection")


class HookRunner:
    """Runs the hooks of the worker, then those of the agent."""

    def __init__(self, author: AuthorLoop, worker: HookSet | None) -> None:
        self._author = author
        self._worker = worker

    def find_hooks(self, event: HookEvent, agent: AgentSpec | None) -> tuple[Hook, ...]:
        """Return the hooks of ``event``, in their order; only the worker's if ``agent`` is None."""
        return select_hooks(event, self._worker, None if agent is None else agent.hooks)

    # --- an iteration, before and after the model is asked

    async def run_before(self, agent: AgentSpec, call: ConversationCall[ModelInput], ctx: RunContext[Any]) -> None:
        """Let hooks change the new messages and the answers of subagents. Raises ``HookError``, ``AbortError``."""
        await self.run_message_hooks(agent, call, ctx)
        await self.run_after_subagent(agent, call, ctx)

    async def run_after(
        self, agent: AgentSpec, call: ConversationCall[ModelInput], ctx: RunContext[Any], reply: ModelReply
    ) -> None:
        """Let hooks change what a reply says to subagents, see the calls that wait, and change the answer; plan those
        around external calls. Raises ``HookError``, ``AbortError``."""
        output = await self.run_before_subagent(agent, ctx, reply.output)
        reply.output = self.plan_external_hooks(agent, output)
        await self.run_approval_hooks(agent, ctx, reply.output)
        await self.run_finish_hooks(agent, call, ctx, reply)

    # --- messages

    async def run_message_hooks(
        self, agent: AgentSpec | None, call: ConversationCall[Any], ctx: RunContext[Any]
    ) -> None:
        """Let hooks change the users' messages in ``call.new_messages``. Raises ``HookError``, ``AbortError``."""
        if list_hook_events(self._worker, None if agent is None else agent.hooks).isdisjoint(MESSAGE_EVENTS):
            return
        hooks = {event: self.find_hooks(event, agent) for event in MESSAGE_EVENTS}
        messages, users = list(call.new_messages), 0
        for index, message in enumerate(messages):
            if not _is_user_message(message):
                continue
            opens = call.input.iteration <= 1 and users == 0
            users += 1
            due = hooks["on_user_message"] + (() if opens else hooks["on_user_injection"])
            messages[index] = await self._run_hooks_on_message(
                due, message, (*call.prefix, *messages[:index]), call, ctx
            )
        self._set_fresh(call, messages)

    async def run_message_hooks_at_end(
        self,
        agent: AgentSpec | None,
        call: ConversationCall[CloseInput],
        build_context: Callable[[AgentSpec | None], Awaitable[RunContext[Any]]],
    ) -> None:
        """Do the same for messages that are recorded with an ending. On an error withhold them; raise nothing."""
        if not any(self.find_hooks(event, agent) for event in MESSAGE_EVENTS):
            return
        context: RunContext[Any] | None = None
        try:
            context = await build_context(agent)
            await self.run_message_hooks(agent, call, context)
        except Exception as error:
            logger.warning("messages of run %s are withheld from its transcript: %s", call.input.context_id, error)
            why = f"{type(error).__name__} when it was recorded"
            self._set_fresh(
                call,
                [
                    withhold_message(message, why) if _is_user_message(message) else message
                    for message in call.new_messages
                ],
            )
        finally:
            if context is not None:
                context.memory.close()

    async def _run_hooks_on_message(
        self,
        hooks: Sequence[Hook],
        message: Message,
        before: Sequence[Message],
        call: ConversationCall[Any],
        ctx: RunContext[Any],
    ) -> Message:
        def take(hook: Hook, returned: Any, given: HookArguments) -> None:
            given["message"] = read_hook_message(hook, returned, given["message"])

        given: HookArguments = {"message": message, "messages": tuple(before), "ctx": ctx}
        veto = await run_hooks(self._author.run, hooks, given, take)
        changed: Message = given["message"] if veto is None else withhold_message(message, veto.reason)
        if changed is message:
            return message
        (changed,), blobs = extract_file_blobs([changed])
        call.recording.blobs += blobs
        call.files = {**call.files, **{blob.hash: blob.body for blob in blobs}}
        return changed

    def _set_fresh(self, call: ConversationCall[Any], messages: Sequence[Message]) -> None:
        call.new_messages = messages
        call.feed.report_messages([message for message in messages if _is_user_message(message)])

    # --- subagents: a subagent is a run of its own, without an activity around it, so its hooks run with its parent's
    # model calls: before it starts, after the reply that calls it; after its answer, before the next model call.

    async def run_before_subagent(self, agent: AgentSpec, ctx: RunContext[Any], output: ModelOutput) -> ModelOutput:
        """Let hooks change or veto the messages to subagents. Raises ``HookError``, ``AbortError``."""
        hooks = self.find_hooks("before_subagent", agent)
        if not hooks or not any(isinstance(call.disposition, SubagentCall | TellCall) for call in output.calls):
            return output
        return output.model_copy(
            update={"calls": tuple([await self._run_before_call(hooks, ctx, one) for one in output.calls])}
        )

    async def _run_before_call(self, hooks: Sequence[Hook], ctx: RunContext[Any], call: Call) -> Call:
        disposition = call.disposition
        if not isinstance(disposition, SubagentCall | TellCall):
            return call

        def take(hook: Hook, returned: Any, given: HookArguments) -> None:
            if returned is not None:
                given["message"] = _read_subagent_message(hook, returned)

        given: HookArguments = {
            "agent": disposition.agent if isinstance(disposition, SubagentCall) else disposition.handle,
            "message": disposition.message,
            "name": call.name,
            "call_id": call.id,
            "ctx": ctx,
        }
        if veto := await run_hooks(self._author.run, hooks, given, take):
            refused = RefusedCall(text=clean_text(f"Vetoed: {veto.reason}"))
            return call.model_copy(update={"disposition": refused, "approval": None})
        if given["message"] == disposition.message:
            return call
        return call.model_copy(update={"disposition": disposition.model_copy(update={"message": given["message"]})})

    async def run_after_subagent(self, agent: AgentSpec, call: ConversationCall[Any], ctx: RunContext[Any]) -> None:
        """Let hooks change the answers of subagents. Raises ``HookError``, ``AbortError``."""
        hooks = self.find_hooks("after_subagent", agent)
        if not hooks or not any(message.tool_results for message in call.new_messages):
            return
        messages = list(call.new_messages)
        for index, message in enumerate(messages):
            if message.tool_results:
                parts = [await self._run_after_result(hooks, agent, ctx, part) for part in message.parts]
                messages[index] = Message(role="tool", parts=tuple(parts))
        call.new_messages = messages

    async def _run_after_result(self, hooks: Sequence[Hook], agent: AgentSpec, ctx: RunContext[Any], part: Any) -> Any:
        tool = agent.toolbox.get(part.name) if isinstance(part, ToolResultPart) else None
        if not isinstance(tool, SubagentTool) or not tool.returns_answer:
            return part

        def take(hook: Hook, returned: Any, given: HookArguments) -> None:
            if returned is not None:
                given["result"] = _read_subagent_result(hook, returned, given["result"])

        given: HookArguments = {"name": part.name, "call_id": part.call_id, "result": part, "ctx": ctx}
        await run_hooks(self._author.run, hooks, given, take)
        return given["result"]

    # --- the answer, and errors

    async def run_finish_hooks(
        self, agent: AgentSpec, call: ConversationCall[ModelInput], ctx: RunContext[Any], reply: ModelReply
    ) -> None:
        """Let hooks change the answer, where ``reply`` has one. Raises ``HookError``, ``AbortError``."""
        message, finish = reply.message, reply.output.finish
        if finish is None or message is None or not (hooks := self.find_hooks("on_finish", agent)):
            return

        def take(hook: Hook, returned: Any, given: HookArguments) -> None:
            content = read_hook_text(hook, returned, given["content"])
            if content != given["content"]:
                value = _read_answer(agent, content) if finish.typed else content
                given.update(content=content, output=value)

        given: HookArguments = {
            "content": finish.content,
            "raw_content": message.text,
            "output": await self._read_output(agent, finish, hooks),
            "messages": (*call.prefix, *call.new_messages, message),
            "iterations": call.input.iteration,
            "ctx": ctx,
        }
        await run_hooks(self._author.run, hooks, given, take)
        if given["content"] != finish.content:
            changed = finish.model_copy(update={"content": given["content"]})
            reply.output = reply.output.model_copy(update={"finish": changed})

    async def _read_output(self, agent: AgentSpec, finish: FinalAnswer, hooks: Sequence[Hook]) -> Any:
        """Return the answer as a value of the agent's output type, if ``hooks`` take it.

        A type that cannot read what it has written must not fail a run that has its answer: hooks get plain JSON then,
        and the client the error.
        """
        if not finish.typed or not any("output" in hook.takes for hook in hooks):
            return finish.output
        name = f"validators of the output of agent {agent.name}"
        try:
            return await self._author.run(name, agent.read_output, finish.output)
        except ParseError as error:
            logger.warning("the on_finish hooks of agent %s get plain JSON: %s", agent.name, error.message)
            return finish.output

    async def run_approval_hooks(self, agent: AgentSpec, ctx: RunContext[Any], output: ModelOutput) -> None:
        """Run hooks on the calls that wait for an approval or a client. Raises ``HookError``, ``AbortError``."""
        hooks = self.find_hooks("on_approval", agent)
        for call in output.calls if hooks else ():
            pending = call.approval or call.disposition
            if isinstance(pending, CallbackCall) and pending.around.before:
                continue  # hooks see it first, in an activity that then runs these hooks
            if isinstance(pending, ApprovalTerms | CallbackCall):
                details: dict[str, Any] = (
                    {"hash": pending.hash}
                    if isinstance(pending, ApprovalTerms)
                    else {"kind": "callback", "form": pending.form}
                )
                given = _wait_facts(call.id, call.name, call.arguments, pending.expires, ctx, **details)
                await run_hooks(self._author.run, hooks, given)

    def plan_external_hooks(self, agent: AgentSpec, output: ModelOutput) -> ModelOutput:
        """Return ``output`` with the plans of the hooks around its external calls, which run in activities before and
        after such a call."""
        if not any(isinstance(call.disposition, RemoteCall | CallbackCall) for call in output.calls):
            return output
        return output.model_copy(update={"calls": tuple(self._plan_call_hooks(agent, call) for call in output.calls)})

    def _plan_call_hooks(self, agent: AgentSpec, call: Call) -> Call:
        disposition, tool = call.disposition, agent.toolbox.get(call.name)
        if not isinstance(disposition, RemoteCall | CallbackCall):
            return call

        def has_hooks(event: HookEvent) -> bool:
            return bool(self.find_hooks(event, agent) or (tool is not None and tool.hooks.on(event)))

        around = ExternalCallHooks(
            before=has_hooks("before_tool_call"), after=has_hooks("after_tool_call"), errors=has_hooks("on_error")
        )
        return call.model_copy(update={"disposition": disposition.model_copy(update={"around": around})})

    async def run_reminder_hooks(
        self, agent: AgentSpec, call: ConversationCall[RemindInput], ctx: RunContext[Any]
    ) -> None:
        """Run the ``on_approval`` hooks for a reminder. A failure is logged: the run waits on. Raises
        ``AbortError``."""
        arguments = {part.id: part.arguments for message in call.prefix for part in message.tool_calls}
        for reminder in call.input.reminders:
            named = reminder.call_id, reminder.name, arguments.get(reminder.call_id)
            details: dict[str, Any] = {"hash": hash_arguments(*named), "reminder": reminder.number}
            given = _wait_facts(*named, reminder.expires_in, ctx, **details)
            await run_observing_hooks(self._author.run, self.find_hooks("on_approval", agent), given)

    async def run_question_hooks(
        self, agent: AgentSpec, call: ToolCall, output: ToolOutput, build_context: MakeContext
    ) -> ToolOutput:
        """Run hooks on a tool's question, or on a call that a client is now to run.

        A hook that fails makes the call an error: without it the question may not have reached anyone.
        """
        hooks, side = self.find_hooks("on_approval", agent), call.input.side
        client = side if output.cleared is not None and isinstance(side, BeforeExternalCall) and side.client else None
        pending = output.question or client
        if not hooks or pending is None:
            return output
        context = await build_context()
        details: dict[str, Any] = (
            {"kind": "callback"}
            if isinstance(pending, BeforeExternalCall)
            else {"kind": "question", "question": pending.text}
        )
        facts = call.input.call_id, call.input.name, call.arguments, pending.expires, context
        given = _wait_facts(*facts, form=pending.form, **details)
        try:
            await run_hooks(self._author.run, hooks, given)
        except Exception as error:
            return build_error_output(call, error)
        finally:
            context.memory.close()
        return output

    async def run_error_hooks(
        self, agent: AgentSpec, call: ConversationCall[Any], ctx: RunContext[Any], error: Exception
    ) -> None:
        """Run hooks on a failed attempt. The failure of a hook is logged. Raises ``AbortError``."""
        if isinstance(error, RetryLaterError):
            return
        given: HookArguments = {"error": error, "error_type": type(error).__name__, "name": call.input.activity}
        given |= {"attempt": call.attempt, "ctx": ctx}
        await run_observing_hooks(self._author.run, self.find_hooks("on_error", agent), given)


class HookActivity:
    """The bare calls in which only hooks run: at an ending on the messages that no model has seen, and on reminders."""

    def __init__(
        self,
        agents: Agents,
        hooks: HookRunner,
        build_context: Callable[[AgentSpec | None, ConversationCall[Any]], Awaitable[RunContext[Any]]],
    ) -> None:
        self._agents = agents
        self._hook_runner = hooks
        self._build_context = build_context

    @activity.defn(name=CLOSE_ACTIVITY)
    async def close(self, call: Any) -> Any:
        """The activity. It is passed a ``ConversationCall``, never the JSON."""
        await self.call_close(call)

    @activity.defn(name=REMIND_ACTIVITY)
    async def remind(self, call: Any) -> Any:
        """The activity, likewise."""
        await self.call_remind(call)

    async def call_close(self, call: ConversationCall[CloseInput]) -> None:
        """Run the hooks on the messages that are recorded with an ending. Raises nothing."""
        await self._hook_runner.run_message_hooks_at_end(
            self._agents.find(call.input.agent), call, lambda agent: self._build_context(agent, call)
        )

    async def call_remind(self, call: ConversationCall[RemindInput]) -> None:
        """Run the hooks on reminders. Raises ``AgentNotFoundError``, ``AbortError``."""
        agent = self._agents.get(call.input.agent)
        ctx = await self._build_context(agent, call)
        try:
            await self._hook_runner.run_reminder_hooks(agent, call, ctx)
        finally:
            ctx.memory.close()


def _read_subagent_message(hook: Hook, returned: Any) -> str:
    if not isinstance(returned, str):
        raise build_return_type_error(hook, returned, "the message's text or Veto")
    text = clean_text(returned)
    if len(text.encode()) > INLINE_BYTES:
        size = len(text.encode())
        raise build_hook_error(hook, f"returned a message of {size:,} bytes; it may have {INLINE_BYTES:,}")
    return text


def _read_subagent_result(hook: Hook, returned: Any, before: ToolResultPart) -> ToolResultPart:
    if isinstance(returned, str):
        return before.model_copy(update={"content": clean_text(returned)})
    if isinstance(returned, ToolResultPart):
        return before.model_copy(update={"content": clean_text(returned.content), "is_error": returned.is_error})
    raise build_return_type_error(hook, returned, "text or a ToolResultPart")


def _wait_facts(
    call_id: str,
    name: str,
    arguments: Mapping[str, Any] | None,
    expires_in: float | None,
    ctx: RunContext[Any],
    **details: Any,
) -> HookArguments:
    """Build the arguments of ``on_approval`` hooks; ``details`` are those that not every kind of wait has."""
    given = {"kind": "approval", "name": name, "arguments": dict(arguments or {}), "call_id": call_id, "hash": None}
    return given | {"expires_in": expires_in, "reminder": 0, "question": None, "form": None, "ctx": ctx, **details}


def _read_answer(agent: AgentSpec, content: str) -> Any:
    """Read ``content`` as the agent's output. Raises ``DefinitionError`` if it does not fit."""
    try:
        return agent.read_output(json.loads(content))
    except (ValueError, ParseError) as error:
        raise DefinitionError(
            f"the answer of agent {agent.name!r} has an output type, which this value does not fit: {error}",
            hint="Return JSON of the output type, or None to leave the answer as it is.",
        ) from error


def _is_user_message(message: Message) -> bool:
    """Whether ``message`` is a user's, not a reminder of the engine."""
    return message.role == "user" and message.id != REMINDER_ID
