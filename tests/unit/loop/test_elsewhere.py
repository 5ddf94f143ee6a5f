"""Calls that are run elsewhere, in the pure loop: when the worker looks at them, and what may happen in between."""

from __future__ import annotations

from typing import Any

import pytest

from perdure.errors import NotWaitingYetError
from perdure.loop import external_calls
from perdure.loop.apply import apply_abort, apply_external_result, apply_result
from perdure.loop.approvals import answer_call
from perdure.loop.decide import CallModel, RunToolCalls, Wait, select_joining_calls
from perdure.loop.decide import decide as next_step
from perdure.loop.lifecycle import (
    apply_interrupt,
    build_continuation_input,
    cancel_run,
    fail_run,
    pause_run,
    request_interrupt,
    resume_run,
)
from perdure.loop.questions import apply_clearance
from perdure.loop.status import build_status
from perdure.types.approvals import ApprovalTerms
from perdure.types.state import RunState, ToolCallState
from perdure.types.tool_calls import (
    ActivityCall,
    Call,
    CallbackCall,
    Clearance,
    Disposition,
    ExternalCallHooks,
    RemoteCall,
)
from perdure.types.wire import OUTPUT_BYTES, NewResult
from tests.unit.loop.build import call, carried_over
from tests.unit.loop.test_approvals import NOW, asked, decide

BOTH = ExternalCallHooks(before=True, after=True)
ERRORS = ExternalCallHooks(errors=True)
NONE = ExternalCallHooks()


def far(around: ExternalCallHooks = NONE, id: str = "c1") -> Call:
    return call(id, RemoteCall(task_queue="far", timeout=9, around=around))


def client(around: ExternalCallHooks = NONE, id: str = "c1") -> Call:
    return call(id, CallbackCall(around=around, expires=10))


def answer(state: RunState, id: str = "c1", **said: Any) -> Any:
    return answer_call(state, {"call_id": id, **said}, NOW)


def clear(state: RunState, **how: Any) -> None:
    apply_clearance(state, state.calls[0].op, Clearance(**{"around": BOTH, **how}), NOW)


def came(state: RunState, text: str = "secret", *, is_error: bool = False, kind: str = "") -> None:
    pending = state.calls[0]
    result = NewResult(call_id=pending.call.id, name="look", text=text, is_error=is_error)
    apply_external_result(state, pending.op, result, kind)


ASKS = ApprovalTerms(hash="h")


@pytest.mark.parametrize("make", [RemoteCall, CallbackCall, ActivityCall])
@pytest.mark.parametrize(
    ("around", "approval", "released", "due"),
    [
        (ExternalCallHooks(), None, False, False),
        (ExternalCallHooks(after=True, errors=True), None, False, False),
        (ExternalCallHooks(before=True), None, False, True),
        (ExternalCallHooks(), ASKS, False, True),
        (ExternalCallHooks(), None, True, True),
    ],
)
def test_what_is_looked_at_before(
    make: Any, around: ExternalCallHooks, approval: ApprovalTerms | None, released: bool, due: bool
) -> None:
    needed = (
        {"task_queue": "far", "timeout": 9} if make is RemoteCall else {"timeout": 9} if make is ActivityCall else {}
    )
    how: Disposition = make(**needed, **({} if make is ActivityCall else {"around": around}))
    pending = ToolCallState(call=call("c1", how).model_copy(update={"approval": approval}), op=1, released=released)
    assert external_calls.needs_before_activity(pending) == (due and make is not ActivityCall)
    pending.clearance = Clearance()
    assert not external_calls.needs_before_activity(pending)


@pytest.mark.parametrize(
    ("around", "is_error", "seen"),
    [
        (NONE, True, False),
        (ExternalCallHooks(before=True), True, False),
        (ExternalCallHooks(after=True), False, True),
        (ERRORS, False, False),
        (ERRORS, True, True),
    ],
)
def test_what_is_looked_at_after(around: ExternalCallHooks, is_error: bool, seen: bool) -> None:
    state = asked(far(around))
    came(state, is_error=is_error, kind="KeyError")
    assert bool(state.calls) == seen, "else it is the result already"
    if seen:
        told = external_calls.build_after_input(state.calls[0])
        assert (told.text, told.is_error, told.error_type) == ("secret", is_error, "KeyError")


def test_what_a_deploy_brought_holds_behind_a_call_that_was_looked_at() -> None:
    state = asked(far(ExternalCallHooks(before=True)))
    clear(state, around=ExternalCallHooks(after=True))
    came(state)
    assert external_calls.needs_after_activity(state.calls[0])


def test_a_callback_is_looked_at_waits_and_is_looked_at_again() -> None:
    state = asked(client(BOTH))
    with pytest.raises(NotWaitingYetError, match="does not wait for a person yet: its worker checks it first"):
        answer(state, value=1)
    step = next_step(state)
    assert isinstance(step, RunToolCalls)
    assert not build_status(state).approvals
    clear(state, arguments={"path": "***"})
    (waits,) = build_status(state).approvals
    assert (waits.arguments, waits.expires is not None) == ({"path": "***"}, True)
    assert next_step(state) == Wait("approval", NOW.timestamp() + 10)
    answer(state, value="secret", by="ana")
    assert not build_status(state).approvals
    assert "secret" not in build_status(state).model_dump_json()
    step = next_step(state)
    assert isinstance(step, RunToolCalls)
    assert [one.op for one in select_joining_calls(state, {99})] == [state.calls[0].op], "also beside others"
    assert answer(state, value="secret", by="ana").state == "answered", "said twice"
    apply_result(state, state.calls[0].op, NewResult(call_id="c1", name="look", key="k"))
    step = next_step(state)
    assert isinstance(step, CallModel)
    assert [one.key for one in step.new if isinstance(one, NewResult)] == ["k"]


def test_an_approved_callback_is_looked_at_before_it_waits() -> None:
    state = asked(client(ExternalCallHooks()).model_copy(update={"approval": ASKS}))
    decide(state)
    assert isinstance(next_step(state), RunToolCalls)
    clear(state, around=ExternalCallHooks())
    assert isinstance(next_step(state), Wait)
    answer(state, value="as it is")
    step = next_step(state)
    assert isinstance(step, CallModel)
    (result,) = step.new
    assert isinstance(result, NewResult)
    assert (result.text, result.decided) == ("as it is", None), "the activity has told who approved it"


@pytest.mark.parametrize("how", ["interrupt", "cancel", "fail"])
@pytest.mark.parametrize("returned", [False, True])
def test_what_nobody_was_shown_is_withheld_when_the_run_is_stopped(how: str, returned: bool) -> None:
    state = asked(far(BOTH))
    clear(state)
    if returned:
        came(state)
    if how == "interrupt":
        request_interrupt(state, "Enough.")
        apply_interrupt(state)
    elif how == "cancel":
        cancel_run(state)
    else:
        fail_run(state, "ProviderError", "no")
    (result,) = [one for one in state.unsent if isinstance(one, NewResult)]
    assert result.text is not None
    assert "secret" not in result.text
    assert ("(look was run, and its result cannot be shown)" in result.text) == returned


def test_it_is_kept_through_a_pause_and_another_execution() -> None:
    state = asked(far(BOTH))
    clear(state, arguments={"path": "***"})
    came(state)
    pause_run(state, "TranscriptCorruptedError: gone", "2026")
    again = carried_over(state)
    assert again == state
    resume_run(again)
    step = next_step(again)
    assert isinstance(step, RunToolCalls)
    (pending,) = step.calls
    assert (external_calls.needs_before_activity(pending), external_calls.needs_after_activity(pending)) == (
        False,
        True,
    )
    assert external_calls.get_final_arguments(pending) == {"path": "***"}


@pytest.mark.parametrize("what", ["pause", "abort", "interrupt", "cancelled"])
def test_a_call_that_was_looked_at_is_not_sent_when_the_run_stops(what: str) -> None:
    state = asked(far(BOTH), call("c2"))
    clear(state)
    pending = state.calls[0]
    assert external_calls.can_begin_external_call(state, pending)
    if what == "pause":
        pause_run(state, "why", "2026")
    elif what == "abort":
        apply_abort(state, "AbortError: no")
    elif what == "interrupt":
        request_interrupt(state)
    else:
        state.cancelled = True
    assert not external_calls.can_begin_external_call(state, pending)


def test_changed_arguments_fit_beside_each_other_or_the_call_is_not_made() -> None:
    state = asked(far(BOTH), far(BOTH, "c2"), far(BOTH, "c3"))
    half = {"text": "x" * (OUTPUT_BYTES // 2 - 100)}
    for pending in list(state.calls):
        apply_clearance(state, pending.op, Clearance(arguments=half), NOW)
    assert [one.result is None for one in state.calls] == [True, True, False]
    refused = state.calls[2].result
    assert isinstance(refused, NewResult)
    assert refused.is_error
    assert "longer than fit" in str(refused.text)


def test_a_second_result_of_the_same_call_is_dropped() -> None:
    state = asked(far(BOTH))
    clear(state)
    came(state, "first")
    came(state, "second")
    assert state.calls[0].external_result is not None
    assert state.calls[0].external_result.text == "first"


def test_what_it_came_to_is_not_carried_beside_its_result() -> None:
    state = asked(*(client(ExternalCallHooks(after=True), f"c{n}") for n in range(9)))
    long = "x" * 250_000
    for pending in state.calls[:-1]:  # the last waits, for a month maybe, and the run goes on as new
        answer(state, pending.call.id, value=long)
        apply_result(state, pending.op, NewResult(call_id=pending.call.id, name="look", key="k"))
    assert len(str(build_continuation_input(state, "run-1"))) < len(long), "Temporal takes 2 MB"
