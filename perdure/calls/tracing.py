"""The tracing stage, the outermost: one OpenTelemetry span for each call, if OpenTelemetry is there."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from ..types.wire import CallFacts, CompactOutput, ModelOutput, ToolOutput
from .call import CallT, NextTool, OutputT, ToolCall
from .journal_keys import get_outcome_kind

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
    """Spans around calls; does nothing without the package of OpenTelemetry."""

    def __init__(self) -> None:
        try:
            from opentelemetry import trace
        except ImportError:
            self._tracer: Any = None
        else:
            self._tracer, self._trace = trace.get_tracer("perdure"), trace

    async def step(self, call: CallT, next: Callable[[CallT], Awaitable[OutputT]]) -> OutputT:
        """Around a step's call: agent and conversation, and model and tokens where a model is called."""
        kind = get_outcome_kind(call.input)
        with self._start_span("chat" if kind == "model" else kind, call.input, call.attempt) as span:
            output = await next(call)
            if span is not None and isinstance(output, ModelOutput | CompactOutput):
                span.set_attribute(_SPAN_MODEL, output.model)
                span.set_attribute(_SPAN_INPUT_TOKENS, output.usage.input_tokens)
                span.set_attribute(_SPAN_OUTPUT_TOKENS, output.usage.output_tokens)
            return output

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
