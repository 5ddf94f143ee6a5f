"""Attaches stages to Temporal: a worker interceptor that runs the stages around perdure's own activities only.

A user's interceptors are outside or inside of this one, in the worker's order. Inside, the
argument is a ``RequestCall`` or ``ToolCall``; outside, the plain JSON that is in history.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable
from datetime import timedelta
from time import monotonic
from typing import Any, Protocol

from temporalio import activity
from temporalio.common import RawValue
from temporalio.exceptions import ApplicationError, ApplicationErrorCategory
from temporalio.service import RPCError
from temporalio.worker import ActivityInboundInterceptor, ExecuteActivityInput, Interceptor

from ..errors import PerdureError
from ..ports.nudges import Nudges
from ..ports.store import Journal
from ..ports.times import timestamp
from ..types.interface import PENDING_ATTRIBUTE
from ..types.wire import NOTHING_RECORDED, CollectInput, ModelOutput
from .call import ActivityCall, ActivityOutput, ModelCall, ToolCall, parse_call
from .heartbeat import Heartbeat, RunningHeartbeats
from .loop_watch import WatchedCall, check_blocks, watched
from .pipeline import Pipelines
from .retries import RetryDecision, compute_backoff, decide_attempt

# ---
# Which search attributes a run may update, and whether its memo: added to replies after the journal stage.


FindSearchAttributes = Callable[[], Awaitable[tuple[str, ...] | None]]
"""Returns the search attributes of the current activity's namespace; None if they cannot be read."""


def needs_search_attributes(call: ModelCall, output: ModelOutput) -> bool:
    """Whether this reply carries the search attributes: the run needs them before its first wait, and renewed later."""
    return call.input.iteration <= 1 or any(tool_call.approval is not None for tool_call in output.calls)


def attach_search_attributes(call: ModelCall, output: ModelOutput, names: tuple[str, ...] | None) -> ModelOutput:
    """Return ``output`` with ``names``, if this reply carries them. The recorded outcome is the same in every
    namespace."""
    if not needs_search_attributes(call, output):
        return output
    # Without that attribute a client could not find runs by it, nor know whether the memo is complete.
    return output.model_copy(update={"search_attributes": names, "memo_is_written": PENDING_ATTRIBUTE in (names or ())})


logger = logging.getLogger("perdure.worker")

REPORT_TIMEOUT = timedelta(seconds=5)
"""How long the answer to a cancellation may take."""


class _JournalWithNudges(Journal, Nudges, Protocol):
    """What is needed of a store."""


class StageInterceptor(Interceptor):
    """Puts the stages of ``pipelines()`` around the activities whose function ``ours`` accepts."""

    def __init__(
        self,
        pipelines: Callable[[], Pipelines],
        ours: Callable[[Callable[..., Any]], bool],
        indexed: FindSearchAttributes | None = None,
        store: _JournalWithNudges | None = None,
    ) -> None:
        self._get_pipelines = pipelines
        self._is_own_activity = ours
        self._find_attributes = indexed
        self._journal = store
        self._heartbeats = None if store is None else RunningHeartbeats(store)

    def intercept_activity(self, next: ActivityInboundInterceptor) -> ActivityInboundInterceptor:
        """See base class."""
        return _StageInboundInterceptor(
            next, self._get_pipelines(), self._is_own_activity, self._find_attributes, self._journal, self._heartbeats
        )


class _StageInboundInterceptor(ActivityInboundInterceptor):
    """Converts JSON to calls and back, heartbeats, and converts errors to Temporal's; runs the stages inside.

    The stages are one link of Temporal's chain, not one each: no other interceptor can come between them, and links
    are created anew for every activity.
    """

    def __init__(
        self,
        next: ActivityInboundInterceptor,
        pipelines: Pipelines,
        ours: Callable[[Callable[..., Any]], bool],
        indexed: FindSearchAttributes | None,
        journal: Journal | None,
        heartbeats: RunningHeartbeats | None,
    ) -> None:
        super().__init__(next)
        self._heartbeats = heartbeats
        self._pipelines = pipelines
        self._is_own_activity = ours
        self._find_attributes = indexed
        self._journal = journal

    async def execute_activity(self, input: ExecuteActivityInput) -> Any:
        if not self._is_own_activity(input.fn):
            return await self.next.execute_activity(input)
        call: ActivityCall | None = None
        try:
            async with Heartbeat(self._heartbeats):
                try:
                    call = _parse_activity_input(input)
                    watched_call = _build_watched_call(call)
                    if self._journal is not None:
                        await check_blocks(self._journal, watched_call)
                    with watched(watched_call):
                        output = await self._run_stages(call, input)
                except ApplicationError:
                    raise
                except Exception as error:
                    if not isinstance(error, PerdureError):
                        logger.exception("%s failed", activity.info().activity_type)
                    verdict = decide_attempt(error)
                    nothing_recorded = call is not None and call.nothing_recorded
                    raise _build_application_error(verdict, nothing_recorded=nothing_recorded) from None
        except asyncio.CancelledError:
            if call is not None and call.nothing_recorded and _is_cancelled_by_run():
                await _report_nothing_recorded()
            raise
        return output.model_dump(mode="json", exclude_none=True)

    async def _run_stages(self, call: ActivityCall, input: ExecuteActivityInput) -> ActivityOutput:
        async def bare(call: Any) -> Any:
            input.args = [call]
            return await self.next.execute_activity(input)

        output = await self._pipelines.run(call, bare)
        if not isinstance(call, ModelCall) or self._find_attributes is None:
            return output
        assert isinstance(output, ModelOutput), "of a model call"
        if not needs_search_attributes(call, output):
            return output
        return attach_search_attributes(call, output, await self._find_attributes())


def _is_cancelled_by_run() -> bool:
    details = activity.cancellation_details()
    return details is not None and details.cancel_requested


async def _report_nothing_recorded() -> None:
    """End the cancelled activity, with the detail that it has recorded nothing: the run need not collect it.

    The SDK's own answer to a cancellation has no details, so the answer is sent as an asynchronous completion. Returns
    if it could not be sent: the SDK then answers, and the run collects.
    """
    try:
        client = activity.client()
        handle = client.get_async_activity_handle(task_token=activity.info().task_token)
        await handle.report_cancellation(NOTHING_RECORDED, rpc_timeout=REPORT_TIMEOUT)
    except (RPCError, RuntimeError) as error:  # RuntimeError: a test's environment has no client
        logger.debug("a cancellation is answered without details: %s", error)
        return
    activity.raise_complete_async()


def _parse_activity_input(input: ExecuteActivityInput) -> ActivityCall:
    info = activity.info()
    attempt: dict[str, Any] = {
        "owner": f"{info.workflow_run_id}/{info.activity_id}/{info.attempt}",
        "attempt": info.attempt,
        "asked_at": timestamp(info.scheduled_time),
        # How long it waited: both times are the server's.
        "scheduled": monotonic() - (info.started_time - info.scheduled_time).total_seconds(),
    }
    raw = input.args[0]
    if isinstance(raw, list):  # a dynamic activity gets its arguments undecoded
        raw = activity.payload_converter().from_payload(raw[0].payload) if isinstance(raw[0], RawValue) else raw[0]
    return parse_call(info.activity_type, raw, **attempt)


def _build_watched_call(call: ActivityCall) -> WatchedCall:
    info = activity.info()
    facts = call.input.facts if isinstance(call.input, CollectInput) else call.input
    what = f"tool {call.input.name}" if isinstance(call, ToolCall) else "the model call"
    return WatchedCall(
        facts.context_id, facts.lineage, f"{what} of agent {facts.agent}",
        info.workflow_run_id or "", info.activity_id, info.attempt,
        info.heartbeat_timeout.total_seconds() if info.heartbeat_timeout else math.inf,
    )  # fmt: skip


def _build_application_error(verdict: RetryDecision, *, nothing_recorded: bool) -> ApplicationError:
    """Build the error for Temporal: the class by its name, whether to retry, and when."""
    delay, info = verdict.delay, activity.info()
    if delay is None and 0 < verdict.failures < info.attempt and info.retry_policy is not None:
        delay = compute_backoff(verdict.failures, info.retry_policy)
    return ApplicationError(
        verdict.message,
        *verdict.details,
        *([NOTHING_RECORDED] if nothing_recorded else []),
        type=verdict.error_type,
        non_retryable=not verdict.retry,
        next_retry_delay=None if delay is None else timedelta(seconds=delay),
        category=ApplicationErrorCategory.UNSPECIFIED if verdict.is_failure else ApplicationErrorCategory.BENIGN,
    )
