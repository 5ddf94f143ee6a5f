"""Attaches stages to Temporal: a worker interceptor whose links are the stages, around perdure's own activities only.

A user's interceptors stand before or behind them as the worker lists them. Between perdure's links the argument is a
``ModelCall`` or ``ToolCall``; outside it is the plain JSON that is in history.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

from temporalio import activity
from temporalio.common import RawValue
from temporalio.exceptions import ApplicationError
from temporalio.worker import ActivityInboundInterceptor, ExecuteActivityInput, Interceptor

from ..errors import PerdureError
from ..ports import ModelCall, ModelReply, Stage, ToolCall
from ..types.wire import MODEL_ACTIVITY, ModelInput, ModelOutput, ToolInput, ToolOutput
from .heartbeat import Heartbeat
from .keys import tool_key
from .verdict import Verdict, verdict

logger = logging.getLogger("perdure.worker")


class StageInterceptor(Interceptor):
    """Puts ``stages()``, the first outermost, around the activities whose function ``ours`` accepts."""

    def __init__(self, stages: Callable[[], Sequence[Stage]], ours: Callable[[Callable[..., Any]], bool]) -> None:
        self._stages = stages
        self._ours = ours

    def intercept_activity(self, next: ActivityInboundInterceptor) -> ActivityInboundInterceptor:
        """See base class."""
        outer = next
        for stage in reversed(self._stages()):
            outer = _Link(outer, stage)
        return _Border(outer, next, self._ours)


class _Link(ActivityInboundInterceptor):
    """One stage as a link of Temporal's chain."""

    def __init__(self, next: ActivityInboundInterceptor, stage: Stage) -> None:
        super().__init__(next)
        self._stage = stage

    async def execute_activity(self, input: ExecuteActivityInput) -> Any:
        async def inner(call: Any) -> Any:
            input.args = [call]
            return await self.next.execute_activity(input)

        call = input.args[0]
        if isinstance(call, ModelCall):
            return await self._stage.model(call, inner)
        return await self._stage.tool(call, inner)


class _Border(ActivityInboundInterceptor):
    """The outermost link: JSON to calls and back, heartbeats, and errors as Temporal knows them."""

    def __init__(
        self,
        stages: ActivityInboundInterceptor,
        bare: ActivityInboundInterceptor,
        ours: Callable[[Callable[..., Any]], bool],
    ) -> None:
        super().__init__(stages)
        self._bare = bare
        self._ours = ours

    async def execute_activity(self, input: ExecuteActivityInput) -> Any:
        if not self._ours(input.fn):
            return await self._bare.execute_activity(input)
        async with Heartbeat():
            try:
                input.args = [_parse(input)]
                result = await self.next.execute_activity(input)
            except ApplicationError:
                raise
            except Exception as error:
                if not isinstance(error, PerdureError):
                    logger.exception("%s failed", activity.info().activity_type)
                raise _as_temporal(verdict(error, activity.info().attempt)) from None
        output: ModelOutput | ToolOutput = result.output if isinstance(result, ModelReply) else result
        return output.model_dump(mode="json", exclude_none=True)


def _parse(input: ExecuteActivityInput) -> ModelCall | ToolCall:
    info = activity.info()
    owner = f"{info.workflow_run_id}/{info.activity_id}/{info.attempt}"
    asked_at = info.scheduled_time.isoformat(timespec="microseconds")
    raw = input.args[0]
    if info.activity_type == MODEL_ACTIVITY:
        return ModelCall(ModelInput.model_validate(raw), owner, info.attempt, asked_at)
    first = raw[0]  # a dynamic activity gets its arguments undecoded, as a list
    plain = activity.payload_converter().from_payload(first.payload) if isinstance(first, RawValue) else first
    task = ToolInput.model_validate(plain)
    return ToolCall(task, tool_key(task), owner, info.attempt, task.arguments or {}, asked_at=asked_at)


def _as_temporal(verdict: Verdict) -> ApplicationError:
    """What Temporal is told: the class by its name, whether to try again, and when."""
    return ApplicationError(
        verdict.message,
        *verdict.details,
        type=verdict.kind,
        non_retryable=not verdict.retry,
        next_retry_delay=None if verdict.delay is None else timedelta(seconds=verdict.delay),
    )
