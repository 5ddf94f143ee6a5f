"""Calls that wait for a person, in the pure loop: what comes next, and which decisions are taken."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from perdure.errors import (
    ApprovalDecidedError,
    ApprovalExpiredError,
    ApprovalForbiddenError,
    InvalidInputError,
    PerdureError,
    RunClosedError,
)
from perdure.loop.apply import apply_result
from perdure.loop.approvals import check_approval, decide_approval, update_approval_waits
from perdure.loop.decide import CallModel, RecordClosing, RunToolCalls, Wait
from perdure.loop.decide import decide as next_step
from perdure.loop.lifecycle import cancel_run
from perdure.loop.payload_limits import MAX_PAST_DECISIONS
from perdure.loop.status import build_status
from perdure.loop.waits import list_requesters, record_requesters
from perdure.types.approvals import ANYBODY, MAX_SENDERS, ApprovalTerms, hash_arguments
from perdure.types.state import RunState
from perdure.types.tool_calls import Call
from perdure.types.wire import NewResult
from tests.unit.loop.build import asks, call, carried_over, model, opened
from tests.unit.loop.build import decision as decision_on

LONG = {"x": "y" * 70_000}
SHOWN = {"call_id": "c1", "decision": "approve", "hash": hash_arguments("c1", "look", {"path": "."})}
NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


def waiting(id: str = "c1", **terms: Any) -> Call:
    one = call(id)
    hash = hash_arguments(one.id, one.name, one.arguments)  # noqa: A001  # as the field is called
    return one.model_copy(update={"approval": ApprovalTerms(hash=hash, **terms)})


def asked(*calls: Call, **start: Any) -> RunState:
    state = opened(**start)
    model(state, asks(*calls))
    update_approval_waits(state, NOW)
    return state


def decide(state: RunState, id: str = "c1", decision: str = "approve", at: float = 0, **more: Any) -> Any:
    return decide_approval(state, decision_on(state, id, decision, **more), NOW + timedelta(seconds=at))


def test_the_others_run_first_and_then_the_run_waits_for_the_nearest_end() -> None:
    state = asked(waiting("c1", expires=50), call("c2"), waiting("c3", expires=20), waiting("c4"))
    step = next_step(state)
    assert isinstance(step, RunToolCalls)
    assert [one.call.id for one in step.calls] == ["c2"]
    apply_result(state, step.calls[0].op, NewResult(call_id="c2", name="look", key="k"))
    assert next_step(state) == Wait("approval", NOW.timestamp() + 20)


def test_a_call_that_nobody_has_looked_at_yet_does_not_run() -> None:
    state = opened()
    model(state, asks(waiting()))
    assert next_step(state) == Wait("approval", None)
    assert build_status(state).doing == "approval"


def test_an_approved_call_runs_beside_one_that_waits() -> None:
    state = asked(waiting("c1"), waiting("c2"))
    decide(state, by="ana", arguments={"path": "/"})
    step = next_step(state)
    assert isinstance(step, RunToolCalls)
    (one,) = step.calls
    assert one.approval is not None
    assert (one.approval.arguments, one.approval.by) == ({"path": "/"}, "ana")
    assert one.approval.hash == hash_arguments("c1", "look", {"path": "/"})


@pytest.mark.parametrize(
    ("given", "taken"), [({"n": 1}, None), ({"n": True}, {"n": True}), ({"n": 1.0}, {"n": 1.0}), ({}, {})]
)
def test_arguments_that_are_equal_in_python_alone_are_changed_ones(given: Any, taken: Any) -> None:
    one = call("c1").model_copy(update={"arguments": {"n": 1}})
    hash = hash_arguments(one.id, one.name, one.arguments)  # noqa: A001  # as the field is called
    state = asked(one.model_copy(update={"approval": ApprovalTerms(hash=hash)}))
    decide(state, by="ana", arguments=given)
    (pending,) = state.calls
    assert pending.approval is not None
    assert json.dumps(pending.approval.arguments) == json.dumps(taken)


def test_a_denied_call_has_its_result_and_the_model_is_asked() -> None:
    state = asked(waiting())
    decide(state, decision="deny", by="ana", comment="no")
    step = next_step(state)
    assert isinstance(step, CallModel)
    (result,) = step.new
    assert isinstance(result, NewResult)
    assert (result.text, result.is_error) == ("Denied by ana: no", True)


@pytest.mark.parametrize(("on_expiry", "runs"), [("deny", False), ("approve", True)])
def test_the_end_of_the_time_decides(on_expiry: str, runs: bool) -> None:
    state = asked(waiting(expires=10, on_expiry=on_expiry))
    update_approval_waits(state, NOW + timedelta(seconds=9.9))
    assert isinstance(next_step(state), Wait)
    update_approval_waits(state, NOW + timedelta(seconds=10))
    assert isinstance(next_step(state), RunToolCalls if runs else CallModel)
    with pytest.raises(ApprovalDecidedError if runs else ApprovalExpiredError, match="no decision by"):
        decide(state, at=11)


def test_the_time_counts_from_the_first_look_and_over_continue_as_new() -> None:
    state = asked(waiting(expires=10))
    state = carried_over(state)
    update_approval_waits(state, NOW + timedelta(seconds=5))
    assert next_step(state) == Wait("approval", NOW.timestamp() + 10)


@pytest.mark.parametrize(
    ("raw", "error", "match"),
    [
        (None, InvalidInputError, "the decision"),
        ({"call_id": "c1"}, InvalidInputError, "decision: Field required"),
        ({"call_id": "c1", "decision": "maybe"}, InvalidInputError, "decision"),
        ({"call_id": "c1", "decision": "approve", "why": "x"}, InvalidInputError, "why: Extra inputs"),
        ({"call_id": "c9", "decision": "approve"}, InvalidInputError, "no call 'c9' waits"),
        ({"call_id": "c2", "decision": "approve"}, InvalidInputError, "no call 'c2' waits"),
        ({"call_id": "c1", "decision": "deny", "arguments": {}}, InvalidInputError, "a call that is denied has none"),
        (
            {"call_id": "c1", "decision": "approve", "hash": "0"},
            InvalidInputError,
            "its hash is another than the one sent",
        ),
        (
            {"call_id": "c1", "decision": "approve", "arguments": {"x": "y" * 70_000}},
            InvalidInputError,
            "may have 65,536",
        ),
        (
            {"call_id": "c1", "decision": "approve", "by": "bea"},
            InvalidInputError,
            "hash: an approval of call .* must name",
        ),
        (SHOWN, InvalidInputError, "an approver other than its requester"),
        ({**SHOWN, "by": "  "}, InvalidInputError, "an approver other than its requester"),
        ({**SHOWN, "by": "ana"}, ApprovalForbiddenError, "ana requested what led to"),
        ({**SHOWN, "by": " AＮA "}, ApprovalForbiddenError, "requested what led to"),
    ],
)
def test_what_cannot_be_decided_is_refused_and_changes_nothing(raw: Any, error: type[PerdureError], match: str) -> None:
    state = asked(waiting(separate=True), call("c2"), message={"content": "hi", "by": "ana"})
    before = state.model_dump()
    for refuse in (check_approval, decide_approval):
        with pytest.raises(error, match=match):
            refuse(state, raw, NOW)
    assert state.model_dump() == before


def test_who_asked_may_deny_and_somebody_else_approve() -> None:
    for more in ({"decision": "deny", "by": "ana"}, {"decision": "approve", "by": "bea"}):
        state = asked(waiting(separate=True), message={"content": "hi", "by": "ana"})
        assert decide(state, **more).by == more["by"]


def test_a_second_decision_hears_of_the_first_as_long_as_it_is_remembered() -> None:
    state = asked(*(waiting(f"c{n}") for n in range(MAX_PAST_DECISIONS + 1)))
    for n in range(MAX_PAST_DECISIONS + 1):
        decide(state, f"c{n}", by=f"p{n}")
    with pytest.raises(ApprovalDecidedError, match="approved by p1 at 2026-01-02"):
        decide(state, "c1", "deny")
    with pytest.raises(InvalidInputError, match="No call of this run waits"):
        decide(state, "c0", "deny")
    assert len(state.decided) == MAX_PAST_DECISIONS


def test_a_run_that_ends_takes_no_decision_and_closes_what_waits() -> None:
    state = asked(waiting())
    cancel_run(state)
    with pytest.raises(RunClosedError):
        decide(state)
    assert isinstance(next_step(state), RecordClosing)
    assert build_status(state).approvals == ()


def test_more_people_than_are_remembered_leave_a_separate_call_to_nobody() -> None:
    state = asked(waiting(separate=True), message={"content": "hi", "by": "ana"})
    record_requesters(state, [f"{n:016x}" for n in range(MAX_SENDERS)])
    assert list_requesters(state) == [ANYBODY]
    with pytest.raises(ApprovalForbiddenError, match="zoe requested what led to"):
        decide(state, by="zoe")
    assert decide(state, decision="deny", by="ana").state == "denied"
