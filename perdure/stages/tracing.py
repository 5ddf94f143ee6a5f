"""The outermost stage: one OpenTelemetry span per model call and per tool call, where OpenTelemetry is installed."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

from ..ports import ModelCall, ModelReply, NextModel, NextTool, ToolCall
from ..types.wire import CallFacts, ToolOutput

# Attribute names of the OpenTelemetry GenAI conventions (v1.37); kept here because they still move between versions.
_OPERATION = "gen_ai.operation.name"
_AGENT = "gen_ai.agent.name"
_CONVERSATION = "gen_ai.conversation.id"
_MODEL = "gen_ai.response.model"
_INPUT_TOKENS = "gen_ai.usage.input_tokens"
_OUTPUT_TOKENS = "gen_ai.usage.output_tokens"
_TOOL = "gen_ai.tool.name"
_CALL = "gen_ai.tool.call.id"


class TracingStage:
    """Spans around calls; does nothing without the ``otel`` extra."""

    def __init__(self) -> None:
        try:
            from opentelemetry import trace
        except ImportError:
            self._tracer: Any = None
        else:
            self._tracer, self._use = trace.get_tracer("perdure"), trace.use_span

    async def model(self, call: ModelCall, next: NextModel) -> ModelReply:
        """Around a model call: agent, conversation, model and tokens."""
        with self._span("chat", call.input, call.attempt) as span:
            reply = await next(call)
            if span is not None:
                span.set_attribute(_MODEL, reply.output.model)
                span.set_attribute(_INPUT_TOKENS, reply.output.usage.input_tokens)
                span.set_attribute(_OUTPUT_TOKENS, reply.output.usage.output_tokens)
            return reply

    async def tool(self, call: ToolCall, next: NextTool) -> ToolOutput:
        """Around a tool call: agent, conversation, tool and call."""
        side = call.input.side
        operation = "execute_tool" if side is None else f"{side.kind}_tool_call"
        with self._span(operation, call.input, call.attempt) as span:
            if span is not None:
                span.set_attribute(_TOOL, call.input.name)
                span.set_attribute(_CALL, call.input.call_id)
            output = await next(call)
            if span is not None:
                span.set_attribute("perdure.is_error", output.is_error)
            return output

    def _span(self, operation: str, facts: CallFacts, attempt: int) -> AbstractContextManager[Any]:
        if self._tracer is None:
            return nullcontext()
        attributes = {
            _OPERATION: operation,
            _AGENT: facts.agent,
            _CONVERSATION: facts.context_id,
            "perdure.op": facts.op,
            "perdure.attempt": attempt,
        }
        span = self._tracer.start_span(f"perdure.{operation}", attributes=attributes)
        if not span.get_span_context().is_valid:
            return nullcontext()  # nobody has set up the SDK: this span would go nowhere, and have no children
        return self._use(span, end_on_exit=True)
