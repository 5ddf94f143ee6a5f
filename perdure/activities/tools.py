"""The bare tool call: prepare (check the arguments again), execute, finalise (text for the model)."""

from __future__ import annotations

import asyncio
import copy
import inspect
import threading
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, cast

from temporalio import activity
from temporalio.common import RawValue

from ..agent import Agent
from ..errors import AbortError, PerdureError
from ..loop.calls import unknown
from ..ports import Blob, ToolCall
from ..tools import ArgumentsError, Memory, Result, Tool, ToolContext, error_text, read_result
from ..tools.memory import Writes
from ..types.elsewhere import After, Before
from ..types.files import File
from ..types.messages import FilePart
from ..types.question import QUESTIONS, Question
from ..types.wire import ToolOutput
from .agents import Agents
from .author_loop import AuthorLoop, OverdueError
from .cancellation import Cancellation, cancellation
from .elsewhere import cleared, returned
from .toolsets import Toolsets


class ToolActivity:
    """Runs tools of the agents that this worker serves. An exception of a tool is a result for the model."""

    def __init__(
        self,
        agents: Agents,
        author: AuthorLoop,
        resources: Callable[[], Any] = lambda: None,
        heartbeat: Callable[[], Callable[..., None]] = lambda: _nothing,
        memory: Callable[[Writes], Memory] = lambda writes: Memory(writes=writes),
        cancellation: Callable[[], Cancellation] = cancellation,
        toolsets: Toolsets | None = None,
    ) -> None:
        """``heartbeat`` gives, inside an activity, the function that reports progress of it from any thread.

        ``memory`` gives the memory of one call, ``resources`` what the lifespan yielded, ``cancellation`` whether the
        present call is to stop.
        """
        self._cancellation = cancellation
        self._toolsets = toolsets
        self._heartbeat = heartbeat
        self._memory = memory
        self._agents = agents
        self._author = author
        self._resources = resources

    @activity.defn(dynamic=True)
    async def tool(self, args: Sequence[RawValue]) -> Any:
        """The activity of every tool. Stages stand between it and Temporal: what it is given is a ``ToolCall``."""
        return await self.call(cast(ToolCall, args))

    async def call(self, call: ToolCall) -> ToolOutput:
        """Run the tool and say what came of it."""
        task = call.input
        agent = self._agents.get(task.agent)
        given_up, cancelled = threading.Event(), self._cancellation()
        context = self.context(call, call.writes, lambda: given_up.is_set() or cancelled.requested())
        tool: Tool | None = None
        try:
            if isinstance(task.side, After):
                return returned(call, task.side)
            tool = await self._find(agent, call, context)
            if tool is None:  # the code changed since the model was shown the tool
                return _failed(call, unknown(task.name, [spec.name for spec in agent.toolbox.specs]))
            if task.side is not None:
                return await self._cleared(call, tool, task.side)
            output = await self._execute(call, tool, _work(agent, tool, call, context))
            question = context.questions.open
            return output if question is None else _asking(call, question)
        except PerdureError as error:
            return _failed(call, error_text(error), error)
        except asyncio.CancelledError:
            if cancelled.by_run():
                return _cancelled(call, tool)
            # The worker stops: the journal has an intent and no outcome, which is the truth. The next attempt tells
            # the model so, or runs an idempotent tool again.
            raise
        finally:
            given_up.set()
            context.memory.close()

    async def _cleared(self, call: ToolCall, tool: Tool, side: Before) -> ToolOutput:
        try:
            return await cleared(self._author, tool, call, side)
        except ArgumentsError as error:
            return _failed(call, str(error), error)
        except Exception as error:  # of an author's validator, too
            return _failed(call, error_text(error), error)

    async def _find(self, agent: Agent, call: ToolCall, context: ToolContext[Any]) -> Tool | None:
        """Of the agent, of its toolsets, or of the worker. Raises ``ToolError`` for one that is another now."""

        async def told() -> ToolContext[Any]:
            if not agent.has_context:
                return context
            typed = copy.copy(context)
            typed.context = await self._author.run(
                f"context of agent {agent.name}", agent.read_context, context.context
            )
            return typed

        found = await self._toolsets.tool(agent, call, told) if self._toolsets is not None else None
        return found or self._agents.tool(call.input.agent, call.input.name)

    async def _execute(self, call: ToolCall, tool: Tool, work: Callable[[], Any]) -> ToolOutput:
        name = f"tool {tool.name} of agent {call.input.agent}"
        try:
            result: Result = await self._author.run(name, work, timeout=tool.timeout)
            files = tuple([await _kept(call, file) for file in result.files])
            return ToolOutput(key=call.key, content=result.text, files=files)
        except OverdueError as error:
            late = f"TimeoutError: {tool.name} did not finish within {tool.timeout:g} s{_may_go_on(tool)}"
            return _failed(call, late, error)
        except ArgumentsError as error:
            return _failed(call, str(error), error)
        except AbortError as error:
            text = error_text(error.plain())
            return _failed(call, text, error).model_copy(update={"status": "aborted"})
        except Exception as error:
            return _failed(call, error_text(error), error)

    def context(
        self, call: ToolCall, writes: Writes, cancelled: Callable[[], bool] = lambda: False
    ) -> ToolContext[Any]:
        """What the author's code is told in ``call``; its memory writes into ``writes``."""
        task = call.input
        return ToolContext(
            run_id=task.context_id,
            task_id=task.task_id,
            agent=task.agent,
            iteration=task.iteration,
            context=task.context,
            auth_context=call.auth,
            resources=self._resources(),
            memory=self._memory(writes),
            call_id=task.call_id,
            attempt=call.attempt,
            idempotency_key=call.first_key or call.key,
            answers=task.answers,
            heartbeat=self._heartbeat(),
            cancelled=cancelled,
            progress=call.progress,
        )


def _work(agent: Agent, tool: Tool, call: ToolCall, context: ToolContext[Any]) -> Callable[[], Any]:
    """All that may run an author's code: validators, the function, serialisers. It goes to the author's loop whole."""
    arguments = dict(call.arguments)

    def bound() -> Callable[[], Any]:
        if agent.has_context and tool.context_parameter is not None:
            context.context = agent.read_context(context.context)
        return tool.bind(arguments, context)

    async def asynchronous() -> Result:
        return read_result(await bound()())

    def plain() -> Any:
        value = bound()()
        return _awaited(value) if inspect.isawaitable(value) else read_result(value)

    return asynchronous if tool.is_async else plain


async def _awaited(value: Awaitable[Any]) -> Result:
    return read_result(await value)


async def _kept(call: ToolCall, file: File) -> FilePart:
    """A reference to ``file``, which is written with the outcome."""
    if file.data is None:
        return file.part
    blob = await asyncio.to_thread(Blob.of, file.data)  # hashing: 20 ms for 20 MB
    call.blobs.append(blob)
    return FilePart(media_type=file.media_type, name=file.name, blob=blob.ref)


def _nothing(*details: Any) -> None:
    """Outside Temporal nobody waits for a heartbeat."""


def _failed(call: ToolCall, text: str, error: Exception | None = None) -> ToolOutput:
    call.error = error
    return ToolOutput(key=call.key, content=text, is_error=True)


def _asking(call: ToolCall, question: Question) -> ToolOutput:
    """Whatever the tool has made of it: it runs again from its start, so nothing of this run counts."""
    if len(call.input.answers) >= QUESTIONS:
        return _failed(call, f"ToolError: {call.input.name} has asked {QUESTIONS} times, and asks again")
    call.error = None
    call.writes.clear()
    call.blobs.clear()
    return ToolOutput(key=call.key, status="asking", question=question)


def _cancelled(call: ToolCall, tool: Tool | None) -> ToolOutput:
    text = f"Cancelled: {call.input.name} was cancelled while it ran{_may_go_on(tool) if tool else ''}"
    return ToolOutput(key=call.key, content=text, is_error=True, status="cancelled")


def _may_go_on(tool: Tool) -> str:
    return "" if tool.is_async else "; a plain function cannot be stopped, so it may still complete"
