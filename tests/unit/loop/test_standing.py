"""Standing approvals, in the pure loop: which calls they cover, and who takes one back."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from perdure.errors import ApprovalDecidedError, InvalidInputError, RunClosedError
from perdure.loop.apply import apply_closing, apply_model
from perdure.loop.approvals import (
    check_approval,
    check_revocation,
    decide_approval,
    drop_recorded_revocations,
    grant_standing_approval,
    revoke_standing_approval,
    update_approval_waits,
)
from perdure.loop.decide import CallModel, EndRun, RecordClosing
from perdure.loop.decide import decide as next_step
from perdure.loop.lifecycle import apply_interrupt, cancel_run, end_turn_at_budget, fail_run, request_interrupt
from perdure.loop.messages import receive_message
from perdure.loop.status import build_status
from perdure.types.approvals import MAX_STANDING_APPROVALS, ApprovalTerms, StandingApproval, hash_arguments
from perdure.types.limits import Bounds
from perdure.types.state import RunState
from perdure.types.tool_calls import Call
from perdure.types.wire import AgentLimits
from tests.unit.loop.build import LIMITS, asks, call, carried_over, done, model, opened, running, says
from tests.unit.loop.build import decision as decision_on

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


def waiting(id: str = "c1", name: str = "look", **terms: Any) -> Call:
    one = call(id).model_copy(update={"name": name})
    hash = hash_arguments(one.id, one.name, one.arguments)  # noqa: A001  # as the field is called
    return one.model_copy(update={"approval": ApprovalTerms(hash=hash, **terms)})


def asked(*calls: Call, state: RunState | None = None, limits: AgentLimits = LIMITS, **start: Any) -> RunState:
    state = opened(**start) if state is None else state
    model(state, asks(*calls, limits=limits))
    update_approval_waits(state, NOW)
    return state


def decide(state: RunState, id: str = "c1", decision: str = "approve", at: float = 0, **more: Any) -> Any:
    return decide_approval(state, decision_on(state, id, decision, **more), NOW + timedelta(seconds=at))


def waits(state: RunState) -> list[str]:
    return [one.call_id for one in build_status(state).approvals]


def test_later_calls_of_the_tool_run_unasked_and_say_by_whom_and_since_when() -> None:
    state = asked(waiting("c1"))
    decide(state, by="ana", always=True)
    done(state, "c1")
    state = carried_over(state)  # also over continue-as-new
    asked(waiting("c2"), waiting("c3", name="rm"), state=state)
    assert waits(state) == ["c3"]
    ((first, _),) = running(state)
    decided = state.calls[0].approval
    assert first == "c2"
    assert decided is not None
    assert (decided.state, decided.by, decided.standing) == ("approved", "ana", NOW.isoformat())
    status = build_status(state)
    assert [(one.tool, one.by, one.at) for one in status.standing] == [("look", "ana", NOW.isoformat())]
    assert [(one.call_id, one.always, bool(one.standing)) for one in status.decided] == [
        ("c1", True, False),
        ("c2", False, True),
    ]
    assert f"approved by ana at {NOW.isoformat()}, as every call of look since" in str(status.decided[1])


def test_calls_of_the_tool_that_wait_beside_it_are_approved_with_it() -> None:
    state = asked(waiting("c1"), waiting("c2"), waiting("c3", name="rm"))
    decide(state, "c2", by="ana", always=True)
    assert [one for one, _ in running(state)] == ["c1", "c2"]
    assert waits(state) == ["c3"]


def test_who_asked_is_not_the_one_whose_approval_stands() -> None:
    state = asked(waiting("c1"), message={"content": "hi", "by": "bea"})
    decide(state, by="ana", always=True)
    done(state, "c1")
    receive_message(state, {"content": "more", "by": "ana"})
    asked(waiting("c2", separate=True), state=state)
    assert waits(state) == ["c2"]
    decide(state, "c2", by="cleo", always=True)
    done(state, "c2")
    asked(waiting("c3", separate=True), waiting("c4"), state=state)
    assert waits(state) == []
    assert [one.approval and one.approval.by for one in state.calls] == ["cleo", "ana"]


@pytest.mark.parametrize("terms", [{}, {"separate": True}])
def test_a_denial_and_a_revocation_take_it_back(terms: dict[str, Any]) -> None:
    state = asked(waiting("c1"), message={"content": "hi", "by": "bea"})
    decide(state, by="ana", always=True)
    done(state, "c1")
    if terms:  # a call that it does not cover is denied
        receive_message(state, {"content": "more", "by": "ana"})
        asked(waiting("c2", separate=True), state=state)
        decide(state, "c2", "deny", by="bea")
    else:
        (gone,) = revoke_standing_approval(state, {"tool": "look", "by": "bea"}, NOW)
        assert (gone.by, gone.at) == ("ana", NOW.isoformat())
        (told,) = state.revoked
        assert (told.tool, told.by, told.approved_by) == ("look", "bea", ("ana",))
    assert state.standing == []
    asked(waiting("c3"), state=state)
    assert waits(state) == ["c3"]


@pytest.mark.parametrize(
    ("more", "match"),
    [
        ({"always": True, "decision": "deny", "by": "ana"}, "only an approval can stand"),
        ({"always": True, "by": "ana", "arguments": {"path": "/"}}, "cannot go with changed arguments"),
        ({"always": True}, "a standing approval needs a name"),
        ({"always": "sometimes", "by": "ana"}, "always: "),
    ],
)
def test_what_cannot_stand_is_refused_and_changes_nothing(more: dict[str, Any], match: str) -> None:
    state = asked(waiting())
    before = state.model_dump()
    raw = {**decision_on(state, "c1"), **more}
    for refuse in (check_approval, decide_approval):
        with pytest.raises(InvalidInputError, match=match):
            refuse(state, raw, NOW)
    assert state.model_dump() == before


def test_with_the_very_arguments_it_can_stand() -> None:
    state = asked(waiting())
    assert decide(state, by="ana", always=True, arguments={"path": "."}).always


def test_so_many_stand_and_no_more() -> None:
    state = asked(waiting())
    state.standing = [
        StandingApproval(tool=f"t{n}", by="ana", at=NOW.isoformat()) for n in range(MAX_STANDING_APPROVALS)
    ]
    with pytest.raises(InvalidInputError, match="has 100 standing approvals"):
        decide(state, by="ana", always=True)
    state.standing[0] = StandingApproval(tool="look", by="ana", at="before")
    decide(state, by="ana", always=True)  # the same one once more
    assert len(state.standing) == MAX_STANDING_APPROVALS


@pytest.mark.parametrize(
    ("raw", "match"),
    [
        (None, "the revocation"),
        ({}, "tool: Field required"),
        ({"tool": "look", "why": 1}, "why: Extra"),
        ({"tool": "rm"}, "Standing approvals: look, approved by ana at 2026"),
    ],
)
def test_a_revocation_that_fits_nothing_is_refused(raw: Any, match: str) -> None:
    state = asked(waiting())
    decide(state, by="ana", always=True)
    for refuse in (check_revocation, lambda state, raw: revoke_standing_approval(state, raw, NOW)):
        with pytest.raises(InvalidInputError, match=match):
            refuse(state, raw)
    assert state.revoked == []
    assert len(state.standing) == 1


@pytest.mark.parametrize(
    "said",
    [
        {"decision": "approve", "by": "ana"},
        {"decision": "approve", "by": "ana", "comment": "ok", "arguments": {"path": "/"}},
        {"decision": "approve", "by": "ana", "always": True},
        {"decision": "deny", "by": "ana", "comment": "no"},
    ],
)
def test_who_repeats_a_decision_gets_it_back(said: dict[str, Any]) -> None:
    state = asked(waiting())
    hash = build_status(state).approvals[0].hash  # noqa: A001
    given = {**said, "hash": hash}
    first = decide(state, **given)
    before = state.model_dump()
    state = carried_over(state)
    check_approval(state, {"call_id": "c1", **given}, NOW)
    assert decide(state, at=60, **given) == first
    assert state.model_dump() == before
    cancel_run(state)
    assert decide(state, **given) == first
    other = {"approve": "deny", "deny": "approve"}[said["decision"]]
    for changed in ({"by": "bea"}, {"by": None}, {"comment": "why"}):
        with pytest.raises((ApprovalDecidedError, RunClosedError)):
            decide(state, **given | changed)
    with pytest.raises((ApprovalDecidedError, RunClosedError, InvalidInputError)):
        decide(state, "c1", other, by="ana")


def test_another_call_of_the_same_id_is_another_call() -> None:
    state = asked(waiting())
    decide(state, by="ana")
    done(state, "c1")
    asked(waiting(), state=state)
    assert waits(state) == ["c1"]
    assert len(state.decided) == 1
    decide(state, by="ana")
    assert len(state.decided) == 2
    assert [one for one, _ in running(state)] == ["c1"]


def test_what_waits_beside_a_standing_approval_is_approved_by_its_giver_and_nobody_else() -> None:
    state = asked(waiting("c1"), waiting("c2"))
    decide(state, "c1", by="ana", always=True)
    assert decide(state, "c2", by="ana").standing
    assert decide(state, "c2", by="ana", always=True).standing
    with pytest.raises(ApprovalDecidedError, match=r"approved by ana at .*, as every call of look since"):
        decide(state, "c2", by="bea")


@pytest.mark.parametrize("how", ["deny", "expire", "interrupt", "cancel"])
def test_a_call_that_was_not_approved_counts_for_nothing(how: str) -> None:
    limits = AgentLimits(max_iterations=9, run=Bounds(tool_calls=2), on_limit="pause")
    state = asked(waiting("c1", expires=5), waiting("c2"), waiting("c3"), limits=limits)
    assert (state.tool_calls, state.calls[2].held) == (2, True)
    match how:
        case "deny":
            decide(state, "c1", "deny", by="ana")
            decide(state, "c3", "deny", by="ana")  # it was held back, and was not counted
            assert state.tool_calls == 1
            decide(state, "c2", by="ana")
        case "expire":
            update_approval_waits(state, NOW + timedelta(seconds=5))
            end_turn_at_budget(state)
            assert (state.tool_calls, state.calls[2].held) == (2, False)
        case "interrupt":
            decide(state, "c2", by="ana")
            request_interrupt(state, "Stop.")
            apply_interrupt(state)
            assert state.tool_calls == 1
        case _:
            cancel_run(state)
            assert state.tool_calls == 0


def test_what_was_revoked_is_told_once_and_before_the_run_ends() -> None:
    state = asked(waiting("c1"))
    decide(state, by="ana", always=True)
    done(state, "c1")
    step = next_step(state)
    assert isinstance(step, CallModel)
    revoke_standing_approval(state, {"tool": "look"}, NOW)
    told = tuple(state.revoked)
    grant_standing_approval(state, "look", "bea", "later")
    revoke_standing_approval(state, {"tool": "look"}, NOW + timedelta(seconds=1))
    drop_recorded_revocations(state, told)  # the model was called between the two
    apply_model(state, step, says("Done."))
    assert [one.approved_by for one in state.revoked] == [("bea",)]
    ending = next_step(state)
    assert isinstance(ending, RecordClosing)
    drop_recorded_revocations(state, tuple(state.revoked))
    apply_closing(state, ending, "head")
    assert isinstance(next_step(state), EndRun)


@pytest.mark.parametrize("how", ["completed", "failed", "cancelled"])
def test_what_is_revoked_while_the_ending_is_recorded_is_told_too(how: str) -> None:
    state = asked(waiting("c1"))
    decide(state, by="ana", always=True)
    grant_standing_approval(state, "rm", "ana", "later")
    done(state, "c1")
    revoke_standing_approval(state, {"tool": "rm"}, NOW)
    if how == "completed":
        model(state, says("Done."))
    elif how == "failed":
        fail_run(state, "HookError", "no")
    else:
        cancel_run(state)
    for _ in range(2):
        ending, told = next_step(state), tuple(state.revoked)
        assert isinstance(ending, RecordClosing)
        assert told
        if state.standing:
            revoke_standing_approval(state, {"tool": "look"}, NOW)
        drop_recorded_revocations(state, told)
        apply_closing(state, ending, "head")
    assert next_step(state) == EndRun(how)  # type: ignore[arg-type]


def test_a_standing_approval_is_of_one_person_in_every_spelling() -> None:
    state = asked(waiting("c1"), message={"content": "hi", "by": "bea"})
    decide(state, by="Ana", always=True)
    done(state, "c1")
    asked(waiting("c2", separate=True), state=state)
    assert waits(state) == []
    receive_message(state, {"content": "mine", "by": "ANA "})
    done(state, "c2")
    asked(waiting("c3", separate=True), state=state)
    assert waits(state) == ["c3"]
    state.standing = []
    for name in ("cleo", "Cleo ", "CLEO"):
        grant_standing_approval(state, "look", name, "now")
    assert [one.by for one in state.standing] == ["CLEO"]
