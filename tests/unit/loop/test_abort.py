"""``raise Abort``: calls under way are let end, no other begins, and the run fails with every call answered."""

from __future__ import annotations

import pytest

from perdure.loop.apply import apply_abort
from perdure.loop.lifecycle import apply_interrupt, cancel_run, fail_run, request_interrupt
from perdure.types.state import RunState
from perdure.types.tool_calls import InlineCall
from perdure.types.wire import AgentLimits

from .build import asks, call, close, done, ended, model, opened, running, said, says


def failure(state: RunState) -> tuple[str, str]:
    assert state.turn is not None
    assert state.turn.failure is not None
    return state.turn.failure.type, state.turn.failure.message


def aborted(state: RunState, id: str) -> None:
    """A call came back as aborted, as workflows/steps.py applies it."""
    apply_abort(state, "AbortError: enough")
    done(state, id)


def test_what_is_under_way_ends_first_and_its_result_counts() -> None:
    state = opened()
    model(state, asks(call("c1"), call("c2"), call("c3")))
    assert len(running(state)) == 3
    aborted(state, "c2")
    done(state, "c1", "c3")
    apply_interrupt(state)
    step = close(state)
    assert said(step) == ["=c1", "=c2", "=c3"]
    assert (step.closing.error_type, step.closing.error) == ("AbortError", "enough")
    assert (ended(state), failure(state)) == ("failed", ("AbortError", "enough"))


def test_what_had_not_begun_does_not() -> None:
    state = opened()
    model(state, asks(call("c1"), call("c2")))
    aborted(state, "c1")
    apply_interrupt(state)
    step = close(state)
    assert said(step) == ["=c1", "=c2"]
    assert [getattr(item, "text", "") for item in step.new][1] == "not run: the run was aborted"
    assert ended(state) == "failed"


def test_an_inline_call_ends_the_run_where_the_reply_is_applied() -> None:
    stop = call("c1", InlineCall(key="key-c1", is_error=True, aborted="AbortError: enough\nAsk less."))
    state = opened()
    model(state, asks(stop, call("c2")))
    apply_interrupt(state)
    assert said(close(state)) == ["=c1", "=c2"]
    assert failure(state) == ("AbortError", "enough\nAsk less.")


@pytest.mark.parametrize("on_limit", ["return", "error"])
@pytest.mark.parametrize("last", ["c1", "c2", "inline"])
def test_it_counts_more_than_a_limit_that_is_reached_with_it(on_limit: str, last: str) -> None:
    state, limits = opened(), AgentLimits(max_iterations=1, on_limit=on_limit)
    if last == "inline":
        model(state, asks(call("c1", InlineCall(key="key-c1", aborted="AbortError: enough")), limits=limits))
    else:
        model(state, asks(call("c1"), call("c2"), limits=limits))
        steps = {"c1": lambda: aborted(state, "c1"), "c2": lambda: done(state, "c2")}
        for step in sorted(steps, key=lambda one: one == last):
            steps[step]()
    apply_interrupt(state)
    close(state)
    assert (ended(state), failure(state)[0]) == ("failed", "AbortError")


def test_a_cancelled_run_stays_cancelled_and_the_first_failure_counts() -> None:
    state = opened()
    model(state, asks(call("c1")))
    cancel_run(state)
    apply_abort(state, "AbortError: enough")
    close(state)
    assert ended(state) == "cancelled"
    failed = opened()
    model(failed, asks(call("c1")))
    fail_run(failed, "HookError", "broken")
    apply_abort(failed, "AbortError: enough")
    assert failure(failed) == ("HookError", "broken")


def test_an_interrupt_of_an_aborted_turn_stops_nothing_any_more() -> None:
    state = opened()
    model(state, asks(call("c1")))
    aborted(state, "c1")
    request_interrupt(state, None)
    apply_interrupt(state)
    close(state)
    assert (ended(state), failure(state)[0]) == ("failed", "AbortError")


def test_nothing_of_it_is_left_in_a_run_without() -> None:
    state = opened()
    model(state, asks(call("c1")))
    done(state, "c1")
    apply_interrupt(state)
    model(state, says("42"))
    assert ended(state) == "completed"
