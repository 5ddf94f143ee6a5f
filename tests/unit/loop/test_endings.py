"""Cancel, fail, pause and close at every point: whatever happened, the transcript is closed and nothing is lost."""

from __future__ import annotations

import pytest

from perdure.loop.apply import apply_model, apply_result
from perdure.loop.decide import RecordClosing, RunToolCalls, Wait, decide
from perdure.loop.finish import build_response
from perdure.loop.lifecycle import (
    apply_interrupt,
    build_continuation_input,
    cancel_run,
    fail_run,
    pause_run,
    request_interrupt,
    resume_run,
)
from perdure.loop.messages import receive_message
from perdure.loop.status import build_status
from perdure.loop.turns import build_turn_status
from perdure.types.wire import AgentLimits
from tests.unit.loop.build import carried_over

from .build import asks, call, close, done, empty, ended, inline, model, opened, refused, result, said, says

ONE = AgentLimits(max_iterations=1, on_limit="return")


def start():
    return opened()


def waiting():
    return opened(None)


def in_calls():
    state = opened()
    model(state, asks(call("c1"), inline("c2"), call("c3")))
    done(state, "c3")
    return state


def after_calls():
    state = in_calls()
    done(state, "c1")
    return state


def reminded():
    state = opened()
    model(state, empty())
    return state


def last_calls():
    state = opened()
    model(state, asks(call("c1"), limits=ONE))
    return state


def answered():
    state = opened()
    model(state, says("42"))
    return state


def extended():
    state = answered()
    receive_message(state, "sure?")
    return state


def session():
    state = opened(mode="session")
    model(state, says("42"))
    return state


def paused():
    state = opened()
    pause_run(state, "TranscriptCorruptedError: node h is missing", "2026-01-01T00:00:00Z")
    return state


RESULTS = ["=c1", "=c2", "=c3"]
POINTS = {
    start: ["hi"],
    waiting: [],
    in_calls: RESULTS,
    after_calls: RESULTS,
    reminded: [],
    last_calls: ["=c1"],
    answered: [],
    extended: ["sure?"],
    session: [],
    paused: ["hi"],
}
points = pytest.mark.parametrize(("point", "left"), POINTS.items(), ids=[point.__name__ for point in POINTS])


@points
@pytest.mark.parametrize("how", ["cancelled", "failed"])
@pytest.mark.parametrize("head", ["h-end", None])
def test_an_ending_records_what_is_left_once(point, left, how, head):
    state = point()
    before, op = state.head, state.op
    if how == "cancelled":
        cancel_run(state)
    else:
        fail_run(state, "ProviderError", "no")
    receive_message(state, "too late")
    assert state.op > op, "a model call in flight has used its number"
    step = close(state, head)
    assert said(step) == [*left, "too late"]
    assert step.closing.status == how
    assert (step.closing.error_type, step.closing.error) == (
        ("ProviderError", "no") if how == "failed" else (None, None)
    )
    assert state.head == (head or before)
    assert ended(state) == how
    assert build_status(state).state == how
    assert [*state.inbox, *state.unsent, *state.calls] == []


@points
def test_a_message_after_the_ending_was_recorded_is_recorded_too(point, left):
    state = point()
    cancel_run(state)
    close(state)
    turns, op = state.turns, state.op
    receive_message(state, "hello?")
    assert said(close(state)) == ["hello?"]
    assert state.op > op
    assert (ended(state), state.turns) == ("cancelled", max(turns, 1))


@points
def test_a_cancellation_after_the_failure_was_recorded_is_recorded_over_it(point, left):
    """Temporal says cancelled then, and the store must say the same."""
    state = point()
    fail_run(state, "ProviderError", "no")
    close(state, None)
    cancel_run(state)
    step = close(state)
    assert (said(step), step.closing.status, ended(state)) == ([], "cancelled", "cancelled")


@points
def test_late_results_are_dropped(point, left):
    state = point()
    cancel_run(state)
    for op in range(10):
        apply_result(state, op, result("c1", "late"))
    assert said(close(state)) == left


@points
def test_every_point_survives_continuing_as_new(point, left):
    state = point()
    again = carried_over(state)
    assert again == state
    assert decide(again) == decide(state)
    assert build_status(again, "now") == build_status(state, "now")


@points
def test_deciding_and_looking_change_nothing(point, left):
    state = point()
    before = state.model_copy(deep=True)
    assert decide(state) == decide(state)
    build_status(state)
    build_response(state)
    build_continuation_input(state, "run-1")
    assert state == before


@points
def test_a_pause_stops_everything_until_it_is_over(point, left):
    state = point()
    step = decide(state)
    pause_run(state, "StoreVersionError: newer", "2026-01-01T00:00:00Z")
    receive_message(state, "are you there?")
    assert decide(state) == Wait("resumed")
    seen = build_status(state, "2026-02-02T00:00:00Z")
    assert (seen.state, seen.reason, seen.since) == ("paused", "StoreVersionError: newer", "2026-01-01T00:00:00Z")
    resume_run(state)
    assert state.pause is None
    if isinstance(step, RunToolCalls):
        assert decide(state) == step
    else:
        assert said(decide(state))[-1] == "are you there?"


@points
def test_a_resume_that_is_taken_sends_what_was_withheld_also_after_continue_as_new(point, left):
    state = point()
    resume_run(state, {"limits": {"nonsense": 1}})
    assert not state.resend
    resume_run(state)
    assert carried_over(state).resend


def test_finished_results_stay_and_the_others_say_why_there_is_none():
    for ending, word in ((cancel_run, "cancelled"), (lambda state: fail_run(state, "X", "y"), "failed")):
        state = opened()
        model(state, asks(call("c1"), refused("c2"), call("c3")))
        done(state, "c3")
        ending(state)
        first, second, third = close(state).new
        assert first.is_error
        assert word in first.text
        assert second.text == "tool not found: look"
        assert third == result("c3")


def test_a_cancellation_during_the_model_call_keeps_its_reply():
    state = opened()
    step = decide(state)
    receive_message(state, "wait")
    apply_model(state, step, asks(call("c1")))
    cancel_run(state)
    assert said(close(state)) == ["=c1", "wait"]
    assert ended(state) == "cancelled"


def test_a_second_cancellation_changes_only_the_number():
    state = in_calls()
    cancel_run(state)
    step = decide(state)
    cancel_run(state)
    assert decide(state) == step


def test_a_failed_turn_ends_a_session():
    state = session()
    receive_message(state, "next")
    fail_run(state, "BadRequestError", "no")
    receive_message(state, "and this?")
    step = close(state)
    assert (said(step), step.closing.error_type) == (["next", "and this?"], "BadRequestError")
    assert (ended(state), state.turns) == ("failed", 2)


def test_what_status_says_of_each_step():
    def shown(state):
        seen = build_status(state, "now")
        return seen.state, seen.doing, seen.queued, [one.call_id for one in seen.calls]

    assert shown(start()) == ("running", "model", 1, [])
    assert shown(waiting()) == ("idle", "message", 0, [])
    assert shown(in_calls()) == ("running", "tools", 0, ["c1"])
    assert shown(answered()) == ("completed", "nothing", 0, [])
    assert shown(session()) == ("idle", "message", 0, [])
    state = in_calls()
    fail_run(state, "ToolError", "no")
    assert shown(state) == ("running", "closing", 0, [])
    assert build_status(state).reason == "ToolError: no"


def test_what_a_stopped_turn_was_told_is_recorded_in_parts_that_fit():
    state = opened(mode="session")
    for letter in "abc":
        receive_message(state, letter * 300_000)
    request_interrupt(state)
    apply_interrupt(state)
    parts = []
    while isinstance(decide(state), RecordClosing):
        parts.append([item.content[0] for item in close(state).new])
    assert parts == [["h", "a"], ["b"], ["c"]]
    assert decide(state) == Wait("message")


def test_what_a_stopped_turn_was_told_is_no_more_than_a_call_is_given_when_it_goes_on():
    state = opened(mode="session")
    for letter in "abc":
        receive_message(state, letter * 300_000)
    request_interrupt(state)
    apply_interrupt(state)
    receive_message(state, "On we go.")
    parts = []
    while isinstance(decide(state), RecordClosing):
        parts.append([item.content[0] for item in close(state).new])
    assert parts == [["h", "a"], ["b"]]
    assert [text[0] for text in said(model(state, says("42")))] == ["c", "O"]


def test_a_turn_that_is_stopped_at_its_limit_is_interrupted_and_does_not_fail():
    state = opened(mode="session")
    limits = AgentLimits(max_iterations=1, on_limit="error")
    model(state, asks(call(), limits=limits))
    request_interrupt(state)
    apply_interrupt(state)
    close(state)
    assert build_response(state).finish_reason == "interrupted"
    assert decide(state) == Wait("message")


def test_a_stopped_turn_has_ended_when_its_transcript_is_closed():
    state = opened(mode="session")
    model(state, asks(call()))
    request_interrupt(state)
    apply_interrupt(state)
    assert build_turn_status(state).state == "running"
    close(state)
    ended = build_turn_status(state)
    assert (ended.state, ended.response.head) == ("completed", "h-closed")
