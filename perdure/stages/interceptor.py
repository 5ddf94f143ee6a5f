"""Attaches stages to Temporal: a worker interceptor that runs the stages around perdure's own activities only.

Also has the tracing stage. A user's interceptors are outside or inside of this one, in the worker's order. Inside, the
argument is a ``RequestCall`` or ``ToolCall``; outside, the plain JSON that is in history.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager, nullcontext
from datetime import timedelta
from time import monotonic
from typing import Any

from temporalio import activity
from temporalio.common import RawValue
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError
from temporalio.worker import ActivityInboundInterceptor, ExecuteActivityInput, Interceptor

from ..errors import NewerStateError, PerdureError
from ..ports.store import Journal
from ..ports.times import timestamp
from ..types.interface import PENDING_ATTRIBUTE
from ..types.schema_version import check_schema_version
from ..types.wire import (
    COLLECT_ACTIVITY,
    ENGINE_ACTIVITY_PREFIX,
    MODEL_ACTIVITY,
    NOTHING_RECORDED,
    CallFacts,
    CollectInput,
    CollectOutput,
    ModelInput,
    ModelOutput,
    ToolInput,
    ToolOutput,
)
from .heartbeat import Heartbeat, measure_agent_missing
from .loop_watch import WatchedCall, check_blocks, watched
from .retries import RetryDecision, decide_retry
from .stage import CollectCall, ModelCall, ModelReply, NextModel, NextTool, Stages, ToolCall

# ---
# Which search attributes a run may update, and whether its memo: added to replies after the journal stage.


FindSearchAttributes = Callable[[], Awaitable[tuple[str, ...] | None]]
"""Returns the search attributes of the current activity's namespace; None if they cannot be read."""


def needs_search_attributes(call: ModelCall, output: ModelOutput) -> bool:
    """Whether this reply carries the search attributes: the run needs them before its first wait, and renewed later."""
    if call.input.purpose not in ("call", "force_finish"):
        return False
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


class StageInterceptor(Interceptor):
    """Puts ``stages()`` around the activities whose function ``ours`` accepts."""

    def __init__(
        self,
        stages: Callable[[], Stages],
        ours: Callable[[Callable[..., Any]], bool],
        indexed: FindSearchAttributes | None = None,
        journal: Journal | None = None,
    ) -> None:
        self._build_stages = stages
        self._is_own_activity = ours
        self._find_attributes = indexed
        self._journal = journal

    def intercept_activity(self, next: ActivityInboundInterceptor) -> ActivityInboundInterceptor:
        """See base class."""
        return _StageInboundInterceptor(
            next, self._build_stages(), self._is_own_activity, self._find_attributes, self._journal
        )


class _StageInboundInterceptor(ActivityInboundInterceptor):
    """Converts JSON to calls and back, heartbeats, and converts errors to Temporal's; runs the stages inside.

    The stages are one link of Temporal's chain, not one each: no other interceptor can come between them, and links
    are created anew for every activity.
    """

    def __init__(
        self,
        next: ActivityInboundInterceptor,
        stages: Stages,
        ours: Callable[[Callable[..., Any]], bool],
        indexed: FindSearchAttributes | None,
        journal: Journal | None,
    ) -> None:
        super().__init__(next)
        self._stages = stages
        self._is_own_activity = ours
        self._find_attributes = indexed
        self._journal = journal

    async def execute_activity(self, input: ExecuteActivityInput) -> Any:
        if not self._is_own_activity(input.fn):
            return await self.next.execute_activity(input)
        call: ActivityCall | None = None
        try:
            async with Heartbeat():
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
                    verdict = decide_retry(error, activity.info().attempt, measure_agent_missing(error))
                    nothing_recorded = call is not None and call.nothing_recorded
                    raise _build_application_error(verdict, nothing_recorded=nothing_recorded) from None
        except asyncio.CancelledError:
            if call is not None and call.nothing_recorded and _is_cancelled_by_run():
                await _report_nothing_recorded()
            raise
        return output.model_dump(mode="json", exclude_none=True)

    async def _run_stages(
        self, call: ActivityCall, input: ExecuteActivityInput
    ) -> ModelOutput | ToolOutput | CollectOutput:
        async def bare(call: Any) -> Any:
            input.args = [call]
            return await self.next.execute_activity(input)

        if isinstance(call, CollectCall):
            collected: CollectOutput = await bare(call)
            return collected
        if isinstance(call, ToolCall):
            return await self._stages.wrap_tool(bare)(call)
        output = (await self._stages.wrap_model(bare)(call)).output
        if self._find_attributes is None or not needs_search_attributes(call, output):
            return output
        return attach_search_attributes(call, output, await self._find_attributes())


ActivityCall = ModelCall | ToolCall | CollectCall


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
    }
    raw = input.args[0]
    if info.activity_type == MODEL_ACTIVITY:
        waited = (info.started_time - info.scheduled_time).total_seconds()  # both are the server's
        check_schema_version(raw, "the input of the model call")
        return ModelCall(ModelInput.model_validate(raw), scheduled=monotonic() - waited, **attempt)
    if info.activity_type == COLLECT_ACTIVITY:
        for part in (raw, raw.get("model"), raw.get("tool")):
            check_schema_version(part, "the input of a call that is collected")
        return CollectCall(input=CollectInput.model_validate(raw), **attempt)
    if info.activity_type.startswith(ENGINE_ACTIVITY_PREFIX):  # the dynamic activity takes every unknown type
        raise NewerStateError(f"activity {info.activity_type} is not one of this engine's: a newer one scheduled it")
    first = raw[0]  # a dynamic activity gets its arguments undecoded, as a list
    plain = activity.payload_converter().from_payload(first.payload) if isinstance(first, RawValue) else first
    check_schema_version(plain, "the input of the tool call")
    return ToolCall(ToolInput.model_validate(plain), **attempt)


def _build_watched_call(call: ActivityCall) -> WatchedCall:
    info = activity.info()
    facts = call.input.model or call.input.tool if isinstance(call.input, CollectInput) else call.input
    assert facts is not None, "what is collected has an input"
    what = f"tool {call.input.name}" if isinstance(call, ToolCall) else "the model call"
    return WatchedCall(
        facts.context_id, facts.lineage, f"{what} of agent {facts.agent}",
        info.workflow_run_id or "", info.activity_id, info.attempt,
        info.heartbeat_timeout.total_seconds() if info.heartbeat_timeout else math.inf,
    )  # fmt: skip


def _build_application_error(verdict: RetryDecision, *, nothing_recorded: bool) -> ApplicationError:
    """Build the error for Temporal: the class by its name, whether to retry, and when."""
    return ApplicationError(
        verdict.message,
        *verdict.details,
        *([NOTHING_RECORDED] if nothing_recorded else []),
        type=verdict.error_type,
        non_retryable=not verdict.retry,
        next_retry_delay=None if verdict.delay is None else timedelta(seconds=verdict.delay),
    )


# ---
# The tracing stage, the outermost: one OpenTelemetry span per model call and per tool call, if OpenTelemetry is there.


# Attribute names of the OpenTelemetry GenAI conventions (v1.37); kept here because they still change between versions.
_SPAN_OPERATION = "gen_ai.operation.name"
_SPAN_AGENT = "gen_ai.agent.name"
_SPAN_CONVERSATION = "gen_ai.conversation.id"
_SPAN_MODEL = "gen_ai.response.model"
_SPAN_INPUT_TOKENS = "gen_ai.usage.input_tokens"
_SPAN_OUTPUT_TOKENS = "gen_ai.usage.output_tokens"
_SPAN_TOOL = "gen_ai.tool.name"
_SPAN_TOOL_CALL = "gen_ai.tool.call.id"


class TracingStage:
    """Spans around calls; does nothing without the ``otel`` extra."""

    def __init__(self) -> None:
        try:
            from opentelemetry import trace
        except ImportError:
            self._tracer: Any = None
        else:
            self._tracer, self._trace = trace.get_tracer("perdure"), trace

    async def model(self, call: ModelCall, next: NextModel) -> ModelReply:
        """Around a model call: agent, conversation, model and tokens."""
        with self._start_span("chat", call.input, call.attempt) as span:
            reply = await next(call)
            if span is not None:
                span.set_attribute(_SPAN_MODEL, reply.output.model)
                span.set_attribute(_SPAN_INPUT_TOKENS, reply.output.usage.input_tokens)
                span.set_attribute(_SPAN_OUTPUT_TOKENS, reply.output.usage.output_tokens)
            return reply

    async def tool(self, call: ToolCall, next: NextTool) -> ToolOutput:
        """Around a tool call: agent, conversation, tool and call."""
        side = call.input.side
        operation = "execute_tool" if side is None else f"{side.kind}_tool_call"
        with self._start_span(operation, call.input, call.attempt) as span:
            if span is not None:
                span.set_attribute(_SPAN_TOOL, call.input.name)
                span.set_attribute(_SPAN_TOOL_CALL, call.input.call_id)
            output = await next(call)
            if span is not None:
                span.set_attribute("perdure.is_error", output.is_error)
            return output

    def _start_span(self, operation: str, facts: CallFacts, attempt: int) -> AbstractContextManager[Any]:
        if self._tracer is None or isinstance(self._trace.get_tracer_provider(), self._trace.ProxyTracerProvider):
            return nullcontext()  # OpenTelemetry is not installed, or not set up
        attributes = {
            _SPAN_OPERATION: operation,
            _SPAN_AGENT: facts.agent,
            _SPAN_CONVERSATION: facts.context_id,
            "perdure.op": facts.op,
            "perdure.attempt": attempt,
        }
        span = self._tracer.start_span(f"perdure.{operation}", attributes=attributes)
        if not span.get_span_context().is_valid:
            return nullcontext()  # it would not be exported, and have no children
        return self._trace.use_span(span, end_on_exit=True)
