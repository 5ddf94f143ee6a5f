"""The bare tool call: prepare (check the arguments again), execute, finalise (text for the model).

Also has the cancellation of a call.
"""

from __future__ import annotations

import asyncio
import contextvars
import copy
import inspect
import threading
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol, cast

from temporalio import activity
from temporalio.common import RawValue

from ..agent.spec import AgentSpec
from ..context.memory import MemoryWrites
from ..errors import PerdureError, ToolError
from ..hooks.dispatch import is_same_json
from ..loop.transcript import build_unknown_tool_text
from ..ports.store import record_file
from ..tools import (
    ArgumentsError,
    CallbackTool,
    Memory,
    RemoteTool,
    ResultContent,
    Tool,
    ToolContext,
    format_error,
    read_result,
)
from ..types.plain_json import find_json_flaw, measure_json
from ..types.tool_calls import MAX_QUESTIONS, AfterExternalCall, BeforeExternalCall, Clearance, Question
from ..types.wire import REMOTE_BYTES, ToolOutput
from .agents import Agents
from .author_loop import AuthorLoop, OverdueError
from .call import ToolCall, build_error_output
from .context_parts import CreateMemory
from .toolsets import Toolsets

# ---
# Cancellation of a call: by Temporal in an activity, by the task in process.


class Cancellation(Protocol):
    """Cancellation of the call in which it is created."""

    def is_requested(self) -> bool:
        """Whether the call is cancelled. From any thread."""
        ...

    def is_from_run(self) -> bool:
        """Whether the run cancelled the call, which is cancelled; else the worker is stopping."""
        ...


class ActivityCancellation:
    """Cancellation of the Temporal activity in which it is created."""

    def __init__(self) -> None:
        self._context = contextvars.copy_context()

    def is_requested(self) -> bool:
        """See :class:`Cancellation`. A context can be entered once at a time, so each check uses a copy."""
        return self._context.copy().run(activity.is_cancelled)

    def is_from_run(self) -> bool:
        """See :class:`Cancellation`."""
        details = activity.cancellation_details()
        return details is not None and details.cancel_requested


class TaskCancellation:
    """Cancellation of the task in which it is created; only a run cancels it."""

    def __init__(self) -> None:
        self._task = asyncio.current_task()

    def is_requested(self) -> bool:
        """See :class:`Cancellation`."""
        return self._task is not None and self._task.cancelling() > 0

    def is_from_run(self) -> bool:
        """See :class:`Cancellation`."""
        return True


def get_cancellation() -> Cancellation:
    """Return the cancellation of the current call, in an activity or in process."""
    return ActivityCancellation() if activity.in_activity() else TaskCancellation()


class ToolActivity:
    """Runs tools of the agents that this worker serves. An exception of a tool is a result for the model."""

    def __init__(
        self,
        agents: Agents,
        author: AuthorLoop,
        resources: Callable[[], Any] = lambda: None,
        heartbeat: Callable[[], Callable[..., None]] = lambda: lambda *_: None,
        memory: CreateMemory = lambda writes, tenant: Memory(writes=writes, tenant=tenant),
        cancellation: Callable[[], Cancellation] = get_cancellation,
        toolsets: Toolsets | None = None,
    ) -> None:
        """``heartbeat`` returns, inside an activity, a function that heartbeats from any thread.

        ``memory`` returns the memory of one call of a tenant, ``resources`` what the lifespan yielded,
        ``cancellation`` the cancellation of the current call.
        """
        self._cancellation = get_cancellation
        self._toolsets = toolsets
        self._heartbeat = heartbeat
        self._memory = memory
        self._agents = agents
        self._author = author
        self._resources = resources

    @activity.defn(dynamic=True)
    async def tool(self, args: Sequence[RawValue]) -> Any:
        """The activity of every tool. The stages between it and Temporal pass it a ``ToolCall``."""
        return await self.call(cast(ToolCall, args))

    async def call(self, call: ToolCall) -> ToolOutput:
        """Run the tool and return its outcome."""
        task = call.input
        agent = self._agents.get(task.agent)
        given_up, cancelled = threading.Event(), self._cancellation()
        context = self.context(
            call, call.recording.memory_writes, lambda: given_up.is_set() or cancelled.is_requested()
        )
        tool: Tool | None = None
        try:
            if isinstance(task.side, AfterExternalCall):
                return build_returned_output(call, task.side)
            tool = await self._find_tool(agent, call, context)
            side = task.side
            if side is not None and (tool is not None or side.declared):
                return await self._clear_external_call(call, tool, side)
            if tool is None:  # the code changed since the model was shown the tool
                return _build_error_output(
                    call, build_unknown_tool_text(task.name, [spec.name for spec in agent.toolbox.specs])
                )
            output = await self._execute_tool(call, tool, _bind_tool_call(agent, tool, call, context))
            question = context.questions.open_question
            return output if question is None else _build_question_output(call, question)
        except PerdureError as error:
            return _build_error_output(call, format_error(error), error)
        except asyncio.CancelledError:
            if cancelled.is_from_run():
                return _build_cancelled_output(call, tool)
            # The worker stops: the journal rightly has an intent and no outcome. The next attempt reports an unknown
            # outcome to the model, or runs an idempotent tool again.
            raise
        finally:
            given_up.set()
            context.memory.close()

    async def _clear_external_call(self, call: ToolCall, tool: Tool | None, side: BeforeExternalCall) -> ToolOutput:
        try:
            return await clear_external_call(self._author, tool, call, side)
        except ArgumentsError as error:
            return _build_error_output(call, str(error), error)
        except Exception as error:  # also an author's validator's
            return _build_error_output(call, format_error(error), error)

    async def _find_tool(self, agent: AgentSpec, call: ToolCall, context: ToolContext[Any]) -> Tool | None:
        """Find the tool: of the agent's toolsets, of the agent, or of the worker. Raises ``ToolError`` for a tool of a
        toolset that has changed."""

        async def build_context() -> ToolContext[Any]:
            if not agent.has_context:
                return context
            typed = copy.copy(context)
            typed.context = await self._author.run(
                f"context of agent {agent.name}", agent.read_context, context.context
            )
            return typed

        of_toolset = await self._toolsets.find_tool(agent, call, build_context) if self._toolsets is not None else None
        return of_toolset or self._agents.find_tool(call.input.agent, call.input.name)

    async def _execute_tool(self, call: ToolCall, tool: Tool, work: Callable[[], Any]) -> ToolOutput:
        name = f"tool {tool.name} of agent {call.input.agent}"
        call.nothing_recorded = False  # from here on it may have happened
        try:
            result: ResultContent = await self._author.run(name, work, timeout=tool.timeout)
            files = tuple([await record_file(file, call.recording.blobs) for file in result.files])
            return ToolOutput(key=call.key, content=result.text, files=files)
        except OverdueError as error:
            late = f"TimeoutError: {tool.name} did not finish within {tool.timeout:g} s{_describe_running_thread(tool)}"
            return _build_error_output(call, late, error)
        except Exception as error:
            return _build_error_output(call, error, error)

    def context(
        self, call: ToolCall, writes: MemoryWrites, cancelled: Callable[[], bool] = lambda: False
    ) -> ToolContext[Any]:
        """Build the context of ``call`` for the author's code; its memory writes into ``writes``."""
        task = call.input
        context = ToolContext[Any](
            run_id=task.context_id,
            task_id=task.task_id,
            agent=task.agent,
            iteration=task.iteration,
            context=task.context,
            auth_context=call.auth,
            resources=self._resources(),
            memory=self._memory(writes, task.tenant),
            caller=task.caller,
            tenant=task.tenant,
            user=task.user,
            call_id=task.call_id,
            attempt=call.attempt,
            idempotency_key=call.first_key or call.key,
            answers=task.answers,
            heartbeat=self._heartbeat(),
            cancelled=cancelled,
            progress=call.feed.report_progress,
        )
        context.grant_access = None if self._toolsets is None else self._toolsets.grants
        return context


def _bind_tool_call(agent: AgentSpec, tool: Tool, call: ToolCall, context: ToolContext[Any]) -> Callable[[], Any]:
    """Return a function that runs all of the author's code of a call (validators, the function, serialisers), to be
    called on the author's side."""
    arguments = dict(call.arguments)

    def bound() -> Callable[[], Any]:
        if agent.has_context and tool.context_parameter is not None:
            context.context = agent.read_context(context.context)
        return tool.bind(arguments, context)

    async def asynchronous() -> ResultContent:
        return read_result(await bound()())

    def plain() -> Any:
        value = bound()()
        return _await_tool_result(value) if inspect.isawaitable(value) else read_result(value)

    return asynchronous if tool.is_async else plain


async def _await_tool_result(value: Awaitable[Any]) -> ResultContent:
    return read_result(await value)


def _build_error_output(call: ToolCall, shown: Exception | str, error: Exception | None = None) -> ToolOutput:
    call.error = error
    return build_error_output(call, shown)


def _build_question_output(call: ToolCall, question: Question) -> ToolOutput:
    """Build the output of a tool that asks, whatever it returned or raised: it runs again from its start, so this run's
    writes are dropped."""
    if len(call.input.answers) >= MAX_QUESTIONS:
        return _build_error_output(
            call, f"ToolError: {call.input.name} has asked {MAX_QUESTIONS} times, and asks again"
        )
    call.error = None
    call.recording.memory_writes.clear()
    call.recording.blobs.clear()
    return ToolOutput(key=call.key, status="asking", question=question)


def _build_cancelled_output(call: ToolCall, tool: Tool | None) -> ToolOutput:
    text = f"Cancelled: {call.input.name} was cancelled while it ran{_describe_running_thread(tool) if tool else ''}"
    return ToolOutput(key=call.key, content=text, is_error=True, status="cancelled")


def _describe_running_thread(tool: Tool) -> str:
    return "" if tool.is_async else "; a plain function cannot be stopped, so it may still complete"


async def clear_external_call(
    author: AuthorLoop, tool: Tool | None, call: ToolCall, side: BeforeExternalCall
) -> ToolOutput:
    """Clear the call for handover, with its arguments as the hooks have changed them. ``tool`` is None for one that
    the turn's client has declared. Raises ``ToolError``."""
    if tool is not None and not isinstance(tool, CallbackTool if side.client else RemoteTool):
        raise ToolError(f"{call.input.name} is now another kind of tool; retry the call")
    arguments = dict(call.arguments)
    _check_external_arguments(call.input.name, arguments)
    if tool is not None:
        await author.run(f"validators of tool {tool.name}", tool.build_disposition, arguments)
    changed = None if is_same_json(arguments, call.input.arguments) else arguments
    return ToolOutput(key=call.key, status="cleared", cleared=Clearance(arguments=changed))


def build_returned_output(call: ToolCall, side: AfterExternalCall) -> ToolOutput:
    """Build the output of an external call's result, for the hooks after it."""
    text = side.text or ""
    call.error = ToolError(text) if side.is_error else None
    return ToolOutput(key=call.key, content=text, is_error=side.is_error)


def _check_external_arguments(name: str, arguments: dict[str, Any]) -> None:
    """Raise ``ArgumentsError`` for arguments that are not plain JSON or larger than ``REMOTE_BYTES``."""
    problem = f"the arguments of {name} are not valid"
    if flaw := find_json_flaw(arguments):
        raise ArgumentsError(f"{problem}: they must be plain JSON: {flaw}")
    if (size := measure_json(arguments)) > REMOTE_BYTES:
        raise ArgumentsError(f"{problem}: they have {size:,} bytes and may have {REMOTE_BYTES:,}")
