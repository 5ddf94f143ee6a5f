"""Inline tools: quick tools run inside the model activity, after the reply is recorded, which saves an activity.

The stage is outside the journal: the reply is recorded before any tool acts, and every tool call goes through
the same stages as an activity's, with a journal entry of its own. A retry finds all of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator
from time import monotonic

from ..types.plain_json import measure_json
from ..types.tool_calls import ActivityCall, Call, InlineCall
from ..types.wire import OUTPUT_BYTES, CallFacts, ModelInput, ModelOutput, ToolInput, ToolOutput
from .call import ModelCall, NextTool, ToolCall

INLINE_SECONDS = 20.0
"""Seconds for all inline tools of one reply; a call that has not begun by then becomes an ordinary call."""


class InlineStage:
    """Runs the inline calls of a reply through ``run``, the chain of stages that a tool activity goes through."""

    def __init__(self, run: NextTool, clock: Callable[[], float] = monotonic) -> None:
        self._run_tool = run
        self._clock = clock

    async def model(self, call: ModelCall, next: Callable[[ModelCall], Awaitable[ModelOutput]]) -> ModelOutput:
        """Replace the inline calls of the reply by their outcomes."""
        output = await next(call)
        if not call.input.is_forced and any(map(is_inline_call, output.calls)):
            return await self._run_inline_calls(call, output)
        return output

    async def _run_inline_calls(self, call: ModelCall, output: ModelOutput) -> ModelOutput:
        until = self._clock() + INLINE_SECONDS
        calls, left = list(output.calls), output.limits.count_calls_left(call.input.calls_left)
        task = asyncio.current_task()
        assert task is not None, "a coroutine runs in a task"
        try:
            for index, tool_call in enumerate(calls):
                # A cancelled tool returns a result that reports the cancellation: the next must not begin.
                if is_inline_call(tool_call) and left > 0 and self._clock() < until and not task.cancelling():
                    left -= 1
                    calls[index] = done = await self._run_inline_call(call, output, index)
                    if isinstance(done.disposition, InlineCall) and done.disposition.aborted is not None:
                        break  # the run ends
        except asyncio.CancelledError:
            # The reply is paid for and recorded: return it, and let the workflow close the calls that are left.
            pass
        return output.model_copy(update={"calls": tuple(omit_large_results(calls))})

    async def _run_inline_call(self, call: ModelCall, output: ModelOutput, index: int) -> Call:
        tool_call = output.calls[index]
        task, owner = build_inline_input(call.input, output, index), f"{call.owner}/{tool_call.id}"
        inner = ToolCall(task, owner=owner, attempt=call.attempt, auth=call.auth, asked_at=call.asked_at)
        return set_inline_result(tool_call, await self._run_tool(inner))


def is_inline_call(tool_call: Call) -> bool:
    """Whether the call runs inside the model activity."""
    return isinstance(tool_call.disposition, ActivityCall) and tool_call.disposition.inline


def build_inline_input(task: ModelInput, output: ModelOutput, index: int) -> ToolInput:
    """Build the input of the inline call at ``index`` of the reply ``output`` to ``task``."""
    tool_call = output.calls[index]
    disposition = tool_call.disposition
    assert isinstance(disposition, ActivityCall), "only such calls are inline"
    return ToolInput(
        **task.model_dump(include=_CALL_FACT_FIELDS),
        # The number that the loop gives this call (loop/apply.py), and with it the journal key: if the call begins
        # here and becomes an activity because this worker stops, the activity finds it as begun.
        op=task.op + 1 + index,
        call_id=tool_call.id,
        name=tool_call.name,
        arguments=tool_call.arguments,
        head=output.head,
        definition=tool_call.definition,
        toolset=disposition.toolset,
        idempotent=disposition.idempotent,
        retries=disposition.retries,
    )


def set_inline_result(tool_call: Call, result: ToolOutput) -> Call:
    """Return the inline call with its result, or as an ordinary call if it asks a question."""
    disposition = tool_call.disposition
    assert isinstance(disposition, ActivityCall), "only such calls are inline"
    if result.status == "asking":  # its activity finds the question in the journal, and the call waits
        return tool_call.model_copy(update={"disposition": disposition.model_copy(update={"inline": False})})
    aborted = result.content if result.status == "aborted" else None
    content = None if aborted else result.content
    done = InlineCall(key=result.key, content=content, blob=result.blob, is_error=result.is_error, aborted=aborted)
    return tool_call.model_copy(update={"disposition": done})


def omit_large_results(calls: Iterable[Call]) -> Iterator[Call]:
    """Remove the contents of results that together do not fit into history; their journal keys stay."""
    left = OUTPUT_BYTES
    for call in calls:
        disposition = call.disposition
        if isinstance(disposition, InlineCall) and disposition.content is not None:
            left -= measure_json(disposition.content)
            if left < 0:
                call = call.model_copy(update={"disposition": disposition.model_copy(update={"content": None})})
        yield call


_CALL_FACT_FIELDS = set(CallFacts.model_fields) - {"op"}
