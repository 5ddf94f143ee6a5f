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

from ..errors import AgentNotFoundError, PerdureError, ProviderError, ProviderTimeoutError
from ..ports import ModelCall, ModelReply, Stage, ToolCall
from ..types.wire import MODEL_ACTIVITY, ModelInput, ModelOutput, ToolInput, ToolOutput
from .heartbeat import Heartbeat
from .keys import tool_key

logger = logging.getLogger("perdure.worker")

AGENT_ATTEMPTS = 7
"""How often an unknown agent is looked for: a minute, with the delays of workflows/options.py. A deploy may be under
way. Counted in attempts, because a call may have waited for its first worker much longer than that."""
SILENT_ATTEMPTS = 3
"""How often a model may fall silent before the run fails with it: every attempt may have been paid for."""
UNEXPECTED_ATTEMPTS = 5
"""How often an attempt may fail with something that is no ``PerdureError`` before the run fails with it."""
FAILURE_CHARS = 1000
"""Of an error's message. Temporal replaces a failure of more than about 4 KB, traceback and causes counted, by
"Failure exceeds size limit", and nobody can see any more what a run is stuck on. So causes stay in the log, too."""


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
            except PerdureError as error:
                raise _as_temporal(error) from None
            except ApplicationError:
                raise
            except Exception as error:
                logger.exception("%s failed", activity.info().activity_type)
                raise _unexpected(error) from None
        output: ModelOutput | ToolOutput = result.output if isinstance(result, ModelReply) else result
        return output.model_dump(mode="json", exclude_none=True)


def _parse(input: ExecuteActivityInput) -> ModelCall | ToolCall:
    info = activity.info()
    owner = f"{info.workflow_run_id}/{info.activity_id}/{info.attempt}"
    raw = input.args[0]
    if info.activity_type == MODEL_ACTIVITY:
        asked_at = info.scheduled_time.isoformat(timespec="microseconds")
        return ModelCall(ModelInput.model_validate(raw), owner, info.attempt, asked_at)
    first = raw[0]  # a dynamic activity gets its arguments undecoded, as a list
    plain = activity.payload_converter().from_payload(first.payload) if isinstance(first, RawValue) else first
    task = ToolInput.model_validate(plain)
    return ToolCall(task, tool_key(task), owner, info.attempt, task.arguments or {})


def _as_temporal(error: PerdureError) -> ApplicationError:
    """What Temporal is told: the class by its name, whether to try again, and when."""
    most = {AgentNotFoundError: AGENT_ATTEMPTS, ProviderTimeoutError: SILENT_ATTEMPTS}.get(type(error))
    retry = error.retryable and (most is None or activity.info().attempt < most)
    delay = error.retry_after if isinstance(error, ProviderError) else None
    return ApplicationError(
        _short(str(error)),
        type=type(error).__name__,
        non_retryable=not retry,
        next_retry_delay=None if delay is None else timedelta(seconds=delay),
    )


def _unexpected(error: Exception) -> ApplicationError:
    """A fault in the engine, or in an author's prompt function: tried again, but not for ever."""
    last = activity.info().attempt >= UNEXPECTED_ATTEMPTS
    return ApplicationError(_short(str(error)), type=type(error).__name__, non_retryable=last)


def _short(text: str) -> str:
    return text if len(text) <= FAILURE_CHARS else text[:FAILURE_CHARS] + "… (cut)"
