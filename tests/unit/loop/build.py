"""Short ways to write states, replies and calls."""

from __future__ import annotations

import json
from typing import Any

from perdure.loop.apply import apply_closing, apply_model, apply_result
from perdure.loop.decide import CallModel, EndRun, RecordClosing, RunToolCalls, decide
from perdure.loop.lifecycle import (
    build_continuation_input,
    create_run_state,
    is_continuation_input,
    read_continued_state,
)
from perdure.loop.status import build_status
from perdure.types.run_ids import format_child_run_id
from perdure.types.state import RunState
from perdure.types.tool_calls import ActivityCall, Call, Disposition, InlineCall, RefusedCall
from perdure.types.wire import AgentLimits, FinalAnswer, ModelOutput, NewMessage, NewResult

ACTIVITY = ActivityCall(timeout=60)
LIMITS = AgentLimits(max_iterations=3)


def opened(message: str | None = "hi", **start: Any) -> RunState:
    """The state of a run that was just started."""
    given = {"agent": "a", **start} | ({} if message is None else {"message": message})
    return open_as_child(given, "context-1", "scope-12345")


def child_id(op: int) -> str:
    """The id of the child of a run of :func:`opened` that operation ``op`` starts."""
    return format_child_run_id("context-1", "scope-12345", op)


def open_as_child(start: dict[str, Any], context_id: str, scope: str) -> RunState:
    """The state of a run whose parent, if it has one, has started it, as Temporal says."""
    parent = start.get("parent") or {}
    return create_run_state(start, context_id, scope, parent.get("context_id"))


def carried_over(state: RunState) -> RunState:
    """The state as the execution begins with it that goes on from ``state``, behind Temporal's JSON."""
    carried = json.loads(json.dumps(build_continuation_input(state, "run-1")))
    assert is_continuation_input(carried, "run-1")
    return read_continued_state(carried, state.context_id)


def call(id: str = "c1", disposition: Disposition = ACTIVITY) -> Call:
    return Call(id=id, name="look", arguments={"path": "."}, disposition=disposition)


def refused(id: str = "c1") -> Call:
    return call(id, RefusedCall(text="tool not found: look"))


def inline(id: str = "c1") -> Call:
    return call(id, InlineCall(key=f"key-{id}", content="42"))


def asks(*calls: Call, limits: AgentLimits = LIMITS, **more: Any) -> ModelOutput:
    """A reply that asks for calls."""
    return ModelOutput(head="h-calls", store_id="s", calls=calls, finish_reason="tool_calls", limits=limits, **more)


def says(text: str, limits: AgentLimits = LIMITS, **more: Any) -> ModelOutput:
    """A reply that is the answer."""
    return ModelOutput(
        head=f"h-{text}", store_id="s", text=text, finish=FinalAnswer(content=text), limits=limits, **more
    )


def empty(limits: AgentLimits = LIMITS) -> ModelOutput:
    """A reply with neither answer nor calls."""
    return ModelOutput(head="h-empty", store_id="s", limits=limits)


def model(state: RunState, output: ModelOutput) -> CallModel:
    """Give the model call that comes next ``output``; what it was given."""
    step = decide(state)
    assert isinstance(step, CallModel), step
    apply_model(state, step, output)
    return step


def close(state: RunState, head: str | None = "h-closed") -> RecordClosing:
    """Record the ending that comes next."""
    step = decide(state)
    assert isinstance(step, RecordClosing), step
    apply_closing(state, step, head)
    return step


def running(state: RunState) -> list[tuple[str, int]]:
    """The calls to run next: id and operation."""
    step = decide(state)
    assert isinstance(step, RunToolCalls), step
    return [(pending.call.id, pending.op) for pending in step.calls]


def done(state: RunState, *ids: str) -> None:
    """Results of calls, in this order."""
    for wanted in ids:
        op = next(pending.op for pending in state.calls if pending.call.id == wanted)
        apply_result(state, op, result(wanted))


def result(id: str, text: str = "found") -> NewResult:
    return NewResult(call_id=id, name="look", text=text)


def said(step: CallModel | RecordClosing) -> list[str]:
    """What a step carries: messages by content, results by call id."""
    return [str(item.content) if isinstance(item, NewMessage) else f"={item.call_id}" for item in step.new]


def decision(state: RunState, call_id: str, decision: str = "approve", **more: Any) -> dict[str, Any]:
    """What a client sends that has looked at the call, or knows what was decided on it."""
    status = build_status(state)
    seen = [*status.approvals, *reversed(status.decided)] if decision == "approve" else []
    known = next(({"hash": one.hash} for one in seen if one.call_id == call_id), {})
    return {"call_id": call_id, "decision": decision, **known, **more}


def ended(state: RunState) -> str:
    """How the run ended."""
    step = decide(state)
    assert isinstance(step, EndRun), step
    return step.status
