"""Attaches stages to Temporal: a worker interceptor with the stages inside, around perdure's own activities only.

A user's interceptors stand before or behind it as the worker lists them. Behind it the argument is a ``ModelCall`` or
``ToolCall``; before it, the plain JSON that is in history.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from datetime import timedelta
from time import monotonic
from typing import Any

from temporalio import activity
from temporalio.common import RawValue
from temporalio.exceptions import ApplicationError
from temporalio.worker import ActivityInboundInterceptor, ExecuteActivityInput, Interceptor

from ..errors import PerdureError
from ..ports import ModelCall, Stage, ToolCall
from ..types.wire import MODEL_ACTIVITY, ModelInput, ModelOutput, ToolInput, ToolOutput
from .compose import compose_model, compose_tool
from .heartbeat import Heartbeat, agent_missing
from .indexed import Indexed, said_indexed, says_indexed
from .keys import tool_key
from .verdict import Verdict, verdict

logger = logging.getLogger("perdure.worker")


class StageInterceptor(Interceptor):
    """Puts ``stages()``, the first outermost, around the activities whose function ``ours`` accepts."""

    def __init__(
        self,
        stages: Callable[[], Sequence[Stage]],
        ours: Callable[[Callable[..., Any]], bool],
        indexed: Indexed | None = None,
    ) -> None:
        self._stages = stages
        self._ours = ours
        self._indexed = indexed

    def intercept_activity(self, next: ActivityInboundInterceptor) -> ActivityInboundInterceptor:
        """See base class."""
        return _Border(next, self._stages(), self._ours, self._indexed)


class _Border(ActivityInboundInterceptor):
    """JSON to calls and back, heartbeats, and errors as Temporal knows them; inside, the stages.

    They are one link of Temporal's chain, not one each: nobody can stand between them, and links are made anew for
    every activity.
    """

    def __init__(
        self,
        next: ActivityInboundInterceptor,
        stages: Sequence[Stage],
        ours: Callable[[Callable[..., Any]], bool],
        indexed: Indexed | None,
    ) -> None:
        super().__init__(next)
        self._around = stages
        self._ours = ours
        self._indexed = indexed

    async def execute_activity(self, input: ExecuteActivityInput) -> Any:
        if not self._ours(input.fn):
            return await self.next.execute_activity(input)
        async with Heartbeat():
            try:
                output = await self._through(_parse(input), input)
            except ApplicationError:
                raise
            except Exception as error:
                if not isinstance(error, PerdureError):
                    logger.exception("%s failed", activity.info().activity_type)
                raise _as_temporal(verdict(error, activity.info().attempt, agent_missing(error))) from None
        return output.model_dump(mode="json", exclude_none=True)

    async def _through(self, call: ModelCall | ToolCall, input: ExecuteActivityInput) -> ModelOutput | ToolOutput:
        async def bare(call: Any) -> Any:
            input.args = [call]
            return await self.next.execute_activity(input)

        if isinstance(call, ToolCall):
            return await compose_tool(self._around, bare)(call)
        output = (await compose_model(self._around, bare)(call)).output
        if self._indexed is None or not says_indexed(call, output):
            return output
        return said_indexed(call, output, await self._indexed())


def _parse(input: ExecuteActivityInput) -> ModelCall | ToolCall:
    info = activity.info()
    owner = f"{info.workflow_run_id}/{info.activity_id}/{info.attempt}"
    asked_at = info.scheduled_time.isoformat(timespec="microseconds")
    raw = input.args[0]
    if info.activity_type == MODEL_ACTIVITY:
        waited = (info.started_time - info.scheduled_time).total_seconds()  # both are the server's
        return ModelCall(ModelInput.model_validate(raw), owner, info.attempt, asked_at, monotonic() - waited)
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
