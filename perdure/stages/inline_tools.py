"""Inline tools: quick tools run inside the model activity, after the reply is recorded, which saves an activity.

The stage is outside the journal: the reply is recorded before any tool acts, and every tool call goes through
the same stages as an activity's, with a journal entry of its own. A retry finds all of them.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterable, Iterator
from time import monotonic

from ..types.plain_json import measure_json
from ..types.tool_calls import ActivityCall, Call, InlineCall
from ..types.wire import OUTPUT_BYTES, AgentLimits, CallFacts, ModelOutput, ToolInput
from .calls import ModelCall, ModelReply, NextModel, NextTool, ToolCall
from .journal_keys import build_tool_key

INLINE_SECONDS = 20.0
"""Seconds for all inline tools of one reply; a call that has not begun by then becomes an ordinary call."""


class InlineStage:
    """Runs the inline calls of a reply through ``run``, the chain of stages that a tool activity goes through."""

    def __init__(self, run: NextTool, clock: Callable[[], float] = monotonic) -> None:
        self._run_tool = run
        self._clock = clock

    async def model(self, call: ModelCall, next: NextModel) -> ModelReply:
        """Replace the inline calls of the reply by their outcomes."""
        reply = await next(call)
        if call.input.purpose == "force_finish":  # the loop runs no call of such a reply
            return reply
        if any(_is_inline_call(asked) for asked in reply.output.calls):
            reply.output = await self._run_inline_calls(call, reply.output)
        return reply

    async def _run_inline_calls(self, call: ModelCall, output: ModelOutput) -> ModelOutput:
        until = self._clock() + INLINE_SECONDS
        calls, left = list(output.calls), _count_inline_calls_left(call.input.calls_left, output.limits)
        task = asyncio.current_task()
        assert task is not None, "a coroutine runs in a task"
        try:
            for index, asked in enumerate(calls):
                # A cancelled tool returns a result that reports the cancellation: the next must not begin.
                if _is_inline_call(asked) and left > 0 and self._clock() < until and not task.cancelling():
                    left -= 1
                    calls[index] = done = await self._run_inline_call(call, output, index)
                    if isinstance(done.disposition, InlineCall) and done.disposition.aborted is not None:
                        break  # the run ends
        except asyncio.CancelledError:
            # The reply is paid for and recorded: return it, and let the workflow close the calls that are left.
            pass
        return output.model_copy(update={"calls": tuple(_omit_large_results(calls))})

    async def _run_inline_call(self, call: ModelCall, output: ModelOutput, index: int) -> Call:
        asked = output.calls[index]
        how = asked.disposition
        assert isinstance(how, ActivityCall), "only such calls are inline"
        task = ToolInput(
            **call.input.model_dump(include=_CALL_FACT_FIELDS),
            # The number that the loop gives this call (loop/apply.py), and with it the journal key: if the call begins
            # here and becomes an activity because this worker stops, the activity finds it as begun.
            op=call.input.op + 1 + index,
            call_id=asked.id,
            name=asked.name,
            arguments=asked.arguments,
            head=output.head,
            definition=asked.definition,
            toolset=how.toolset,
            idempotent=how.idempotent,
            retries=how.retries,
        )
        inner = ToolCall(
            task,
            build_tool_key(task),
            f"{call.owner}/{asked.id}",
            call.attempt,
            auth=call.auth,
            arguments=asked.arguments or {},
            asked_at=call.asked_at,
        )
        result = await self._run_tool(inner)
        if result.status == "asking":  # its activity finds the question in the journal, and the call waits
            return asked.model_copy(update={"disposition": how.model_copy(update={"inline": False})})
        aborted = result.content if result.status == "aborted" else None
        content = None if aborted else result.content
        done = InlineCall(key=result.key, content=content, blob=result.blob, is_error=result.is_error, aborted=aborted)
        return asked.model_copy(update={"disposition": done})


def _count_inline_calls_left(left: int | None, limits: AgentLimits) -> float:
    """Count the calls that may run here; the loop refuses or holds back the others. ``left`` is None before the run
    knows its limits, when none of its calls has run.
    """
    if left is not None:
        return left
    most = [bounds.tool_calls for bounds in (limits.run, limits.turn) if bounds and bounds.tool_calls is not None]
    return min(most, default=math.inf)


def _omit_large_results(calls: Iterable[Call]) -> Iterator[Call]:
    """Remove the contents of results that together do not fit into history; their journal keys stay."""
    left = OUTPUT_BYTES
    for call in calls:
        how = call.disposition
        if isinstance(how, InlineCall) and how.content is not None:
            left -= measure_json(how.content)
            if left < 0:
                call = call.model_copy(update={"disposition": how.model_copy(update={"content": None})})
        yield call


_CALL_FACT_FIELDS = set(CallFacts.model_fields) - {"op"}


def _is_inline_call(asked: Call) -> bool:
    return isinstance(asked.disposition, ActivityCall) and asked.disposition.inline
