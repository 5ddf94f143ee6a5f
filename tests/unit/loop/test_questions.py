"""Calls that wait for an answer, in the pure loop."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from perdure.errors import (
    ApprovalDecidedError,
    ApprovalExpiredError,
    InvalidInputError,
    NotWaitingYetError,
    PerdureError,
    RunClosedError,
)
from perdure.loop.approvals import answer_call, check_answer, update_approval_waits
from perdure.loop.decide import CallModel, RecordClosing, RunToolCalls, Wait, select_joining_calls
from perdure.loop.decide import decide as next_step
from perdure.loop.lifecycle import cancel_run, pause_run
from perdure.loop.questions import apply_clearance, apply_question
from perdure.loop.status import build_status
from perdure.types.state import RunState
from perdure.types.tool_calls import ALL_ANSWERS_BYTES, CallbackCall, Clearance, Question
from perdure.types.wire import REMOTE_BYTES, NewResult
from tests.unit.loop.build import call, carried_over, done
from tests.unit.loop.test_approvals import NOW, asked, decide, waiting

QUESTION = Question(text="Sure?", form={"type": "boolean"})


def handed(id: str = "c1", **how: Any) -> Any:
    return call(id, CallbackCall(**how))


def questioned(*calls: Any, question: Question = QUESTION, **start: Any) -> RunState:
    """The first call has asked."""
    state = asked(*(calls or (call("c1"),)), **start)
    apply_question(state, state.calls[0].op, question, NOW)
    return state


def answer(state: RunState, id: str = "c1", at: float = 0, **said: Any) -> Any:
    return answer_call(state, {"call_id": id, **said}, NOW + timedelta(seconds=at))


def again(state: RunState, **said: Any) -> Any:
    """Answer what the only call that waits asks now, whatever it has asked before."""
    (waits,) = build_status(state).approvals
    return answer(state, hash=waits.hash, **said)


def test_a_callback_waits_beside_the_others_and_its_answer_is_its_result() -> None:
    state = asked(handed("c1"), call("c2"))
    step = next_step(state)
    assert isinstance(step, RunToolCalls)
    assert [one.call.id for one in step.calls] == ["c2"]
    done(state, "c2")
    assert next_step(state) == Wait("approval", None)
    assert build_status(state).doing == "answer"
    assert answer(state, value={"a": 1}, by="ana").state == "answered"
    step = next_step(state)
    assert isinstance(step, CallModel)
    first = step.new[0]
    assert isinstance(first, NewResult)
    assert (first.text, first.is_error, first.answered_by) == ('{"a": 1}', False, "ana")


def test_a_call_that_asks_is_run_again_with_its_answers() -> None:
    state = questioned()
    assert next_step(state) == Wait("approval", None)
    answer(state, value=True, by="ana")
    step = next_step(state)
    assert isinstance(step, RunToolCalls)
    (one,) = step.calls
    assert [(said.value, said.by) for said in one.answers] == [(True, "ana")]
    apply_question(state, one.op, Question(text="Really?"), NOW)
    (waits,) = build_status(state).approvals
    assert (waits.question, waits.form) == ("Really?", None)
    again(state, error="no", by="bea")
    (one,) = state.calls
    assert [(said.value, said.error) for said in one.answers] == [(True, None), (None, "no")]


def test_an_answered_call_begins_beside_others() -> None:
    state = questioned(call("c1"), call("c2"))
    flying = {state.calls[1].op}
    assert select_joining_calls(state, flying) == ()
    answer(state, value=True)
    assert [one.call.id for one in select_joining_calls(state, flying)] == ["c1"]
    assert select_joining_calls(state, flying | {state.calls[0].op}) == ()


def test_a_call_is_approved_before_it_is_answered() -> None:
    state = asked(waiting("c1", expires=5).model_copy(update={"disposition": CallbackCall(expires=10)}))
    assert build_status(state).doing == "approval"
    assert next_step(state) == Wait("approval", NOW.timestamp() + 5)
    with pytest.raises(InvalidInputError, match="waits for approval, not for an answer"):
        answer(state, value=1)
    decide(state, "c1", by="ana", at=1)
    apply_clearance(state, state.calls[0].op, Clearance(), NOW + timedelta(seconds=2))
    assert next_step(state) == Wait("approval", NOW.timestamp() + 12)
    with pytest.raises(InvalidInputError, match="waits for an answer, not for approval"):
        decide(state, "c1")
    answer(state, value=1, at=3, by="bea")
    step = next_step(state)
    assert isinstance(step, CallModel)
    (result,) = step.new
    assert isinstance(result, NewResult)
    assert result.answered_by == "bea"


@pytest.mark.parametrize("says", [None, "Nobody was there."])
def test_the_end_of_the_time_is_an_error(says: str | None) -> None:
    state = asked(handed(expires=10, on_expiry=says))
    update_approval_waits(state, NOW + timedelta(seconds=9))
    assert isinstance(next_step(state), Wait)
    with pytest.raises(ApprovalExpiredError, match="call 'c1' has expired: no decision by 2026-01-02T03:04:15"):
        answer(state, value=1, at=10)
    update_approval_waits(state, NOW + timedelta(seconds=10))
    step = next_step(state)
    assert isinstance(step, CallModel)
    (result,) = step.new
    assert isinstance(result, NewResult)
    assert (result.text, result.is_error) == (says or "Expired: the call of look was not answered in time", True)
    with pytest.raises(ApprovalExpiredError, match="call 'c1' has expired: no decision by 2026-01-02T03:04:15"):
        answer(state, value=1, at=11)


def test_the_time_of_a_second_question_counts_anew_and_over_continue_as_new() -> None:
    state = questioned(question=Question(text="Sure?", expires=10))
    answer(state, value=1, at=8)
    apply_question(state, state.calls[0].op, Question(text="Really?", expires=10), NOW + timedelta(seconds=9))
    state = carried_over(state)
    update_approval_waits(state, NOW + timedelta(seconds=15))
    assert next_step(state) == Wait("approval", NOW.timestamp() + 19)
    assert [said.value for said in state.calls[0].answers] == [1]


def test_null_and_what_is_in_it_survive_continue_as_new() -> None:
    state = questioned(question=Question(text="?", form={"default": None}))
    answer(state, value={"a": None})
    apply_question(state, state.calls[0].op, Question(text="?"), NOW)
    again(state, value=None)
    later = carried_over(state)
    assert later == state
    assert [said.value for said in later.calls[0].answers] == [{"a": None}, None]


@pytest.mark.parametrize(
    ("raw", "match"),
    [
        (None, "the answer"),
        ({"value": 1}, "call_id: Field required"),
        ({"call_id": "c1"}, "either a value or an error"),
        ({"call_id": "c1", "value": True, "error": "no"}, "either a value or an error"),
        ({"call_id": "c1", "value": True, "why": "x"}, "why: Extra inputs"),
        ({"call_id": "c9", "value": True}, "no call 'c9' waits for an answer.*\nWaiting calls: 'c1'"),
        ({"call_id": "c2", "value": True}, "call 'c2' does not wait for a person yet"),
        ({"call_id": "c1", "value": 1}, "does not fit what is asked: 1 is no boolean"),
        ({"call_id": "c1", "value": True, "hash": "0"}, "its question has changed"),
        ({"call_id": "c1", "value": "x" * 70_000}, "may have 65,536"),
        ({"call_id": "c1", "value": float("nan")}, "must be plain JSON"),
        ({"call_id": "c1", "error": "x" * 2001}, "error: String should have at most 2000"),
        ({"call_id": "c1", "blob": {"hash": "a" * 64, "size": 3}}, "too long for what is asked"),
    ],
)
def test_what_is_no_answer_is_refused_and_changes_nothing(raw: Any, match: str) -> None:
    state = questioned(call("c1"), call("c2"))
    before = state.model_dump()
    for refuse in (check_answer, answer_call):
        with pytest.raises(InvalidInputError, match=match):
            refuse(state, raw, NOW)
    assert state.model_dump() == before


def test_a_value_that_is_nested_too_deep_is_refused() -> None:
    value: Any = 1
    for _ in range(500):
        value = [value]
    with pytest.raises(InvalidInputError, match="nested deeper"):
        answer(questioned(), value=value)


def test_all_answers_of_a_call_have_a_size_together() -> None:
    state, large = questioned(question=Question(text="?")), "x" * 60_000
    for _ in range(ALL_ANSWERS_BYTES // 60_000):
        again(state, value=large)
        apply_question(state, state.calls[0].op, Question(text="?"), NOW)
    with pytest.raises(InvalidInputError, match="as JSON and may have"):
        again(state, value=large)
    again(state, error="there is no room")


def test_what_is_asked_at_once_has_a_size() -> None:
    form = {"description": "x" * 16_000}
    state = asked(*(call(f"c{n}") for n in range(40)))
    for pending in list(state.calls):
        apply_question(state, pending.op, Question(text="?", form=form), NOW)
    waits = build_status(state).approvals
    assert len(waits) == 32
    results = [one.result for one in state.calls if one.result is not None]
    assert all(isinstance(one, NewResult) and "too much is asked at once" in str(one.text) for one in results)
    assert len(results) == 8


def test_results_of_callbacks_have_a_size_alone_and_together() -> None:
    state = asked(*(handed(f"c{n}") for n in range(6)))
    with pytest.raises(InvalidInputError, match=f"may have {REMOTE_BYTES:,}"):
        answer(state, "c0", value="x" * (REMOTE_BYTES + 1))
    for n in range(4):
        answer(state, f"c{n}", value="x" * (REMOTE_BYTES - 10))
    with pytest.raises(InvalidInputError, match="too long: give a shorter one"):
        answer(state, "c4", value="x" * (REMOTE_BYTES - 10))
    answer(state, "c4", blob={"hash": "a" * 64, "size": 10**6})
    answer(state, "c5", value="x")
    step = next_step(state)
    assert isinstance(step, CallModel)
    assert [isinstance(one, NewResult) and one.blob is not None for one in step.new] == [n == 4 for n in range(6)]


def test_a_blob_of_another_store_is_refused() -> None:
    state = asked(handed())
    with pytest.raises(InvalidInputError, match="is in store other"):
        answer(state, blob={"hash": "a" * 64, "size": 3}, store_id="other")


def test_who_comes_later_hears_who_was_quicker_and_who_repeats_himself_gets_it_back() -> None:
    state = questioned()
    (first,) = build_status(state).approvals
    past = answer(state, value=True, by="ana")
    with pytest.raises(ApprovalDecidedError, match="already answered by ana at 2026"):
        answer(state, value=False, by="bea")
    assert answer(state, value=True, by="ana") == past
    apply_question(state, state.calls[0].op, QUESTION, NOW)
    with pytest.raises(ApprovalDecidedError, match="already answered by ana"):
        answer(state, value=False, by="bea", hash=first.hash)
    assert answer(state, value=True, by="ana", hash=first.hash) == past
    assert answer(state, value=True, by="ana") == past  # who repeats himself does not answer the next question
    with pytest.raises(ApprovalDecidedError, match=r"already answered by ana.*\n.*send its `hash`"):
        answer(state, value=False, by="bea")
    assert len(state.calls[0].answers) == 1
    again(state, value=True, by="ana")
    assert len(state.calls[0].answers) == 2


def test_a_call_that_was_denied_takes_no_answer() -> None:
    state = asked(waiting("c1").model_copy(update={"disposition": CallbackCall()}), call("c2"))
    decide(state, "c1", "deny", by="ana")
    with pytest.raises(ApprovalDecidedError, match="already denied by ana"):
        answer(state, value=1)


@pytest.mark.parametrize("error", [RunClosedError])
def test_a_run_that_ends_takes_no_answer_and_closes_what_waits(error: type[PerdureError]) -> None:
    state = questioned(call("c1"), handed("c2"))
    cancel_run(state)
    with pytest.raises(error):
        answer(state, value=True)
    assert isinstance(next_step(state), RecordClosing)
    assert build_status(state).approvals == ()


def test_who_repeats_an_answer_to_a_run_that_ends_gets_it_back() -> None:
    state = questioned(call("c1"), handed("c2"))
    first = answer(state, "c2", value=1, by="ana")
    cancel_run(state)
    assert answer(state, "c2", value=1, by="ana") == first
    with pytest.raises(RunClosedError):
        answer(state, "c2", value=2, by="ana")


def test_a_callback_that_limits_hold_back_waits_for_no_answer_yet() -> None:
    state = asked(handed())
    state.calls[0].held = True
    with pytest.raises(InvalidInputError, match="no call 'c1' waits"):
        answer(state, value=1)


@pytest.mark.parametrize("value", [{"a": "\ud800"}, {"\ud800": 1}, [[{"a": ["\udc00"]}]]])
def test_lone_surrogates_do_not_get_in(value: Any) -> None:
    state = questioned(question=Question(text="?"))
    with pytest.raises(InvalidInputError, match=r"value: must be plain JSON: .* lone surrogate"):
        answer(state, value=value)
    assert not state.calls[0].answers


def test_an_approval_is_told_with_the_result_where_no_activity_has_told_it() -> None:
    state = asked(waiting("c1").model_copy(update={"disposition": CallbackCall(expires=10)}), call("c2"))
    decide(state, "c1", "approve", by="ana")
    cancel_run(state)
    result = state.calls[0].result if state.calls else state.unsent[0]
    assert isinstance(result, NewResult)
    assert result.is_error
    assert result.decided is not None
    assert (result.decided.state, result.decided.by) == ("approved", "ana")


def test_who_comes_too_early_is_told_so_only_while_the_call_may_still_come_to_wait() -> None:
    state = questioned()
    with pytest.raises(InvalidInputError, match="Waiting calls: 'c1'"):
        answer(state, "c9", value=True)
    answer(state, value=True)
    with pytest.raises(ApprovalDecidedError):  # its tool runs again, but this was answered
        answer(state, value=False)
    done(state, "c1")
    assert isinstance(next_step(state), CallModel)
    with pytest.raises(NotWaitingYetError, match="the model is called"):
        answer(state, "c9", value=True)
    with pytest.raises(NotWaitingYetError, match="the model is called"):
        decide(state, "c9")
    pause_run(state, "the key is gone", NOW.isoformat())
    with pytest.raises(InvalidInputError, match="No call of this run waits for it"):
        answer(state, "c9", value=True)


def test_a_tool_that_runs_may_ask_and_needs_no_approval_any_more() -> None:
    state = asked(call("c1"))
    with pytest.raises(NotWaitingYetError, match="its tool runs, and may ask a question"):
        answer(state, value=True)
    with pytest.raises(InvalidInputError, match="No call of this run waits for it"):
        decide(state)
