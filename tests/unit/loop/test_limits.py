"""What is left of limits, and what stays as it is without them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from perdure.errors import InvalidInputError
from perdure.loop.finish import build_response
from perdure.loop.lifecycle import end_turn_at_budget, pause_run, resume_run
from perdure.loop.limits import compute_remaining_budget, count_calls_left, find_exceeded_limit, update_work_time
from perdure.loop.messages import receive_message
from perdure.loop.status import build_status
from perdure.types.limits import Bounds
from perdure.types.messages import Usage
from perdure.types.wire import AgentLimits

from .build import asks, call, close, done, inline, model, opened, said, says

LIMITS = AgentLimits(run=Bounds(tokens=100, cost_usd=2.0, tool_calls=9), turn=Bounds(tokens=60, wall_time=30))


def spent(tokens=40, cost=0.5, limits=LIMITS):
    return {"usage": Usage(input_tokens=tokens), "cost_usd": cost, "limits": limits}


def test_without_limits_nothing_is_counted_out():
    state = opened()
    model(state, asks(call("c1")))
    assert (compute_remaining_budget(state), count_calls_left(state), find_exceeded_limit(state)) == (None, None, None)
    assert [use.name for use in build_status(state).limits] == ["max_iterations"]


def test_what_is_left_is_the_least_of_run_and_turn():
    state, begin = opened(), datetime(2026, 1, 1, tzinfo=UTC)
    update_work_time(state, begin)
    model(state, asks(call("c1"), inline("c2"), **spent()))
    update_work_time(state, begin + timedelta(seconds=12))
    assert compute_remaining_budget(state) == Bounds(tokens=20, cost_usd=1.5, tool_calls=7, wall_time=18)
    done(state, "c1")
    model(state, asks(call("c3"), **spent(70)))
    assert compute_remaining_budget(state).tokens == 0, "never below nothing"


def test_the_next_turn_has_its_own_and_what_is_left_of_the_run():
    state = opened(mode="session")
    model(state, says("1", **spent(40)))
    receive_message(state, "more")
    assert compute_remaining_budget(state).tokens == 60
    model(state, says("2", **spent(10)))
    receive_message(state, "more")
    assert compute_remaining_budget(state).tokens == 50, "of the run"


def test_what_is_raised_never_lowers_a_limit():
    state = opened()
    model(state, asks(call("c1"), **spent()))
    resume_run(state, {"limits": {"tokens": 10, "turn": {"tokens": 500}}})
    assert compute_remaining_budget(state).tokens == 60
    resume_run(state, {"limits": {"tokens": 1000}})
    resume_run(state, {"limits": {"tokens": 300}})
    assert compute_remaining_budget(state).tokens == 460


def test_what_is_wrong_with_a_raise_is_told_and_nothing_of_it_is_done():
    state = opened()
    pause_run(state, "because", "2026-01-01T00:00:00Z")
    resume_run(state, {"limits": {"tokens": 5, "mony": 7}})
    assert "limits.mony" in build_status(state).refused[0]
    assert (state.raised, build_status(state).state) == (None, "paused")
    resume_run(state, {"by": "ana"})
    assert build_status(state).state == "running"


def test_a_clock_that_goes_back_costs_nothing():
    state, now = opened(), datetime(2026, 1, 1, tzinfo=UTC)
    for second in (10, 5, 6):
        update_work_time(state, now + timedelta(seconds=second))
    assert state.worked == 1


@pytest.mark.parametrize("limits", [{"tokens": 10**400}, {"max_iterations": 10**400}, {"wall_time": 10**400}])
def test_a_number_that_no_clock_or_float_can_hold_is_refused_and_stops_no_run(limits):
    state = opened()
    model(state, asks(call("c1"), **spent()))
    resume_run(state, {"limits": limits})
    assert len(build_status(state).refused) == 1
    assert not receive_message(state, {"content": "hi", "override": {"limits": limits}})
    assert not receive_message(state, {"content": "hi", "override": {"max_iterations": 10**400}})
    with pytest.raises(InvalidInputError, match="idle_timeout"):
        opened(idle_timeout=10**400)


@pytest.mark.parametrize("on_limit", ["finish", "return", "error", "pause"])
def test_what_one_turn_brought_limits_no_other(on_limit):
    state = opened({"content": "hi", "override": {"limits": {"tokens": 30}}}, mode="session")
    of_turn = AgentLimits(run=Bounds(tokens=30), on_limit=on_limit)
    model(state, says("1", usage=Usage(input_tokens=40), limits=of_turn))
    receive_message(state, "more")
    end_turn_at_budget(state)
    step = model(state, says("2", usage=Usage(input_tokens=5), limits=AgentLimits(on_limit=on_limit)))
    assert step.limit is None
    assert build_response(state).content == "2"


@pytest.mark.parametrize("on_limit", ["finish", "return", "error"])
def test_what_comes_too_late_for_an_answer_is_said(on_limit):
    limits = AgentLimits(run=Bounds(tokens=30), on_limit=on_limit)
    state = opened()
    model(state, says("1", usage=Usage(input_tokens=40), limits=limits))
    assert "unanswered" not in state.model_dump_json()
    for sent in ("m-1", None, *(f"n-{n}" for n in range(3))):
        receive_message(state, {"content": f"more {sent}", "id": sent})
    end_turn_at_budget(state)
    late = ["m-1", "", "n-0", "n-1", "n-2"]
    if on_limit == "finish":  # the model is asked once more
        assert state.turn.unanswered == []
        model(state, says("2", usage=Usage(input_tokens=5), limits=limits))
        assert build_response(state).unanswered == ()
        for sent in late:
            receive_message(state, {"content": f"again {sent}", "id": f"{sent}-2" if sent else None})
        end_turn_at_budget(state)
        late = [f"{sent}-2" if sent else "" for sent in late]
    assert list(build_response(state).unanswered) == list(build_status(state).unanswered) == late
    if on_limit == "error":
        assert state.turn.failure.message.endswith("5 messages that came meanwhile got no answer: n-0, n-1, n-2")
        return
    step = close(state)
    assert len(said(step)) == len(late)
    assert step.closing.response["unanswered"] == late
    receive_message(state, {"content": "and", "id": "last"})
    end_turn_at_budget(state)
    assert build_response(state).unanswered == (*late, "last"), "each is counted once"


def test_many_that_come_too_late_are_named_by_the_last():
    limits = AgentLimits(run=Bounds(tokens=30), on_limit="return")
    state = opened()
    model(state, says("1", usage=Usage(input_tokens=40), limits=limits))
    for n in range(30):
        receive_message(state, {"content": "more", "id": f"m-{n}"})
    end_turn_at_budget(state)
    assert build_response(state).unanswered == tuple(f"m-{n}" for n in range(10, 30))


def test_a_limit_raised_in_time_answers_all():
    limits = AgentLimits(run=Bounds(tokens=30), on_limit="return")
    state = opened(mode="session")
    model(state, says("1", usage=Usage(input_tokens=40), limits=limits))
    receive_message(state, {"content": "more", "id": "m-1"})
    end_turn_at_budget(state)
    resume_run(state, {"limits": {"tokens": 1000}})
    receive_message(state, {"content": "and more", "id": "m-2"})
    step = model(state, says("2", limits=limits))
    assert "and more" in said(step)
    assert build_response(state).unanswered == ()
