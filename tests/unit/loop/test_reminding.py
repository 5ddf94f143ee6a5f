"""Reminders of calls that wait for a person, in the pure loop: when one is due, and how often it is told."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.loop.apply import apply_result
from perdure.loop.approvals import decide_approval, update_approval_waits
from perdure.loop.decide import CallModel, RunToolCalls, SendReminders, Wait, decide
from perdure.loop.lifecycle import (
    apply_interrupt,
    cancel_run,
    fail_run,
    pause_run,
    request_interrupt,
    request_pause,
    resume_run,
)
from perdure.loop.status import build_status
from perdure.loop.waits import find_next_deadline, list_calls_to_remind, take_due_reminders
from perdure.types.approvals import ApprovalTerms, Reminder, hash_arguments
from perdure.types.state import RunState
from perdure.types.tool_calls import Call
from perdure.types.wire import NewResult
from tests.unit.loop.build import asks, call, carried_over, decision, model, opened

NOW = datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)


def waiting(id: str = "c1", **terms: Any) -> Call:
    one = call(id)
    hash = hash_arguments(one.id, one.name, one.arguments)  # noqa: A001  # as the field is called
    return one.model_copy(update={"approval": ApprovalTerms(hash=hash, **terms)})


def asked(*calls: Call) -> RunState:
    state = opened()
    model(state, asks(*calls))
    update_approval_waits(state, NOW)
    return state


def at(seconds: float) -> datetime:
    return NOW + timedelta(seconds=seconds)


def told(state: RunState, seconds: float) -> list[tuple[str, int]]:
    """What is told at that moment: call and number."""
    update_approval_waits(state, at(seconds))
    step = decide(state)
    if not isinstance(step, SendReminders):
        return []
    return [(one.call_id, one.number) for one in take_due_reminders(state, at(seconds)).reminders]


def test_it_waits_for_what_is_next_and_tells_each_once() -> None:
    state = asked(waiting("c1", remind=10, expires=25), waiting("c2", remind=4), waiting("c3"))
    assert decide(state) == Wait("approval", at(4).timestamp())
    assert told(state, 3.9) == []
    assert told(state, 4) == [("c2", 1)]
    assert told(state, 4.1) == []
    assert decide(state) == Wait("approval", at(8).timestamp())
    assert told(state, 8) == [("c2", 2)]
    assert told(state, 12) == [("c1", 1), ("c2", 3)]
    assert [one.reminded for one in build_status(state).approvals] == [1, 3, 0]
    update_approval_waits(state, at(25))
    assert [one.call_id for one in build_status(state).approvals] == ["c2", "c3"]


def test_without_reminders_it_waits_as_it_did() -> None:
    state = asked(waiting("c1", expires=25), waiting("c2"))
    assert decide(state) == Wait("approval", at(25).timestamp())
    assert told(state, 10_000) == []
    assert '"next"' not in state.model_dump_json()


def test_what_was_due_while_nobody_could_look_is_told_once() -> None:
    state = asked(waiting("c1", remind=10))
    assert told(state, 57) == [("c1", 1)]
    assert decide(state) == Wait("approval", at(60).timestamp())


def test_it_says_how_much_time_is_left_and_takes_an_operation_of_its_own() -> None:
    state = asked(waiting("c1", remind=10, expires=25))
    update_approval_waits(state, at(10))
    op = state.op
    reminding = take_due_reminders(state, at(10))
    assert reminding.reminders == (Reminder(call_id="c1", name="look", number=1, expires_in=15.0),)
    assert (reminding.op, state.op, reminding.has_waiting_call()) == (op, op + 1, True)
    decide_approval(state, decision(state, "c1"), at(11))
    assert not reminding.has_waiting_call()


def test_of_a_call_that_is_decided_or_late_nobody_is_reminded() -> None:
    state = asked(waiting("c1", remind=10), waiting("c2", remind=10, expires=15))
    update_approval_waits(state, at(16))  # the second is late
    decide_approval(state, {"call_id": "c1", "decision": "deny"}, at(16))
    assert isinstance(decide(state), CallModel)


def test_it_goes_on_counting_over_continue_as_new() -> None:
    state = asked(waiting("c1", remind=10))
    told(state, 10)
    state = carried_over(state)
    assert told(state, 11) == []
    assert told(state, 20) == [("c1", 2)]
    update_approval_waits(state, at(30))  # and one that is due is not lost
    state = carried_over(state)
    assert told(state, 30) == [("c1", 3)]


@pytest.mark.parametrize("how", ["cancel", "interrupt", "fail", "pause"])
def test_who_stops_the_run_stops_its_reminders(how: str) -> None:
    state = asked(waiting("c1", remind=10))
    update_approval_waits(state, at(10))
    match how:
        case "cancel":
            cancel_run(state)
        case "interrupt":
            request_interrupt(state)
            apply_interrupt(state)
        case "fail":
            fail_run(state, "ToolError", "broken")
        case _:
            pause_run(state, "why", NOW.isoformat())
    assert not isinstance(decide(state), SendReminders)


def test_other_calls_begin_first_and_it_is_looked_beside_them() -> None:
    state = asked(waiting("c1", remind=10, expires=12), call("c2"))
    assert isinstance(decide(state), RunToolCalls)
    assert find_next_deadline(state) == at(10).timestamp()
    assert list_calls_to_remind(state) == ()
    update_approval_waits(state, at(10))
    assert [one.call.id for one in list_calls_to_remind(state)] == ["c1"]
    take_due_reminders(state, at(10))
    assert find_next_deadline(state) == at(12).timestamp()
    apply_result(state, state.calls[1].op, NewResult(call_id="c2", name="look", key="k"))
    assert decide(state) == Wait("approval", at(12).timestamp())


@given(
    every=st.floats(1, 1e7),
    steps=st.lists(st.floats(0, 3e7), max_size=30),
    expires=st.none() | st.floats(2e7, 3e9),
    timer=st.booleans(),
)
def test_never_early_never_twice(every: float, steps: list[float], expires: float | None, *, timer: bool) -> None:
    """Whenever it is looked: at most one reminder in each interval, none before its time, none behind the end.

    ``timer``: it is looked when the loop asked to be woken, besides.
    """
    state = asked(waiting("c1", remind=every, expires=expires))
    now, said, intervals = NOW.timestamp(), 0, []
    for step in steps:
        until = now + step
        wakes = decide(state)
        if timer and isinstance(wakes, Wait) and wakes.deadline is not None and wakes.deadline <= until:
            until = max(wakes.deadline, now)
        now = until
        moment = datetime.fromtimestamp(now, UTC)
        update_approval_waits(state, moment)
        if isinstance(decide(state), SendReminders):
            (reminder,) = take_due_reminders(state, moment).reminders
            said += 1
            assert reminder.number == said
            intervals.append(round((now - NOW.timestamp()) / every, 5) // 1)
        assert not isinstance(decide(state), SendReminders)
        if state.calls:
            assert expires is None or now < NOW.timestamp() + expires + 1e-3
    assert len(set(intervals)) == len(intervals)
    assert all(interval >= 1 for interval in intervals)


def test_while_a_pause_is_requested_none_begins_and_one_is_sent_after_resume() -> None:
    """Calls may still be in flight. What passes meanwhile leaves the next deadline ahead: no timer of no length."""
    state = asked(waiting("c1", remind=10), call("c2"))
    request_pause(state, {"by": "ana"}, at(5))
    for seconds in (10, 35):
        update_approval_waits(state, at(seconds))
        assert list_calls_to_remind(state) == ()
        assert (find_next_deadline(state) or 0) > at(seconds).timestamp()
    resume_run(state, {}, at(36))
    assert [pending.call.id for pending in list_calls_to_remind(state)] == ["c1"]
    assert [(one.call_id, one.number) for one in take_due_reminders(state, at(36)).reminders] == [("c1", 1)]
    assert list_calls_to_remind(state) == ()
