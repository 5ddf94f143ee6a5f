"""Limits are checked where they are written."""

from __future__ import annotations

import math
from typing import Any

import pytest

from perdure import Agent, Limits, RateLimit
from perdure.errors import DefinitionError
from perdure.types.limits import Bounds, LimitUse, RunLimits


def test_durations_are_seconds() -> None:
    assert Limits(call_timeout="10m").call_seconds == 600
    assert Limits(call_timeout=2).call_seconds == 2
    assert Limits().call_seconds is None
    assert Limits(attempts=3) == Limits(attempts=3, call_timeout=None)


@pytest.mark.parametrize(
    ("kind", "given", "said"),
    [
        (Limits, {"attempts": 0}, "attempts must be greater than or equal to 1, not 0"),
        (Limits, {"attempts": "3"}, "attempts must be"),
        (Limits, {"attempts": True}, "attempts must be"),
        (Limits, {"call_timeout": "soon"}, "call_timeout: 'soon' is not a duration"),
        (Limits, {"call_timeout": 0}, "call_timeout: a duration is above zero"),
        (RateLimit, {"concurrent": 0}, "concurrent must be"),
        (RateLimit, {"per_minute": 1.5}, "per_minute must be"),
    ],
)
def test_what_is_no_limit_is_refused(kind: Any, given: dict[str, Any], said: str) -> None:
    with pytest.raises(DefinitionError, match=said):
        kind(**given)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"iterations": 0}, "iterations must be greater than or equal to 1, not 0"),
        ({"tokens": 1.5}, "tokens must be a valid integer, not 1.5"),
        ({"tool_calls": True}, "tool_calls must be a valid integer, not True"),
        ({"cost_usd": 0}, "cost_usd must be greater than 0, not 0"),
        ({"cost_usd": "2"}, "cost_usd must be"),
        ({"cost_usd": math.nan}, "cost_usd must be"),
        ({"wall_time": "never"}, "wall_time: 'never' is not a duration"),
        ({"turn": 5}, "Limits must be a valid dictionary or instance of Limits, not 5"),
        ({"turn": {"tokens": 0}}, "tokens must be greater"),
        ({"token": 5}, "token: Extra inputs are not permitted.\nLimits takes attempts, call_timeout, "),
        ({"turn": Limits(attempts=3)}, "turn: it has attempts, which is not a limit of a turn"),
        ({"turn": Limits(turn=Limits(tokens=5))}, "turn: it has turn"),
    ],
)
def test_budgets_that_are_none_are_refused(given: dict[str, Any], said: str) -> None:
    with pytest.raises(DefinitionError, match=said):
        Limits(**given)


def test_what_a_run_and_a_turn_may_use() -> None:
    limits = Limits(attempts=3, wall_time="10m", turn=Limits(iterations=5, tokens=9))
    assert limits.of_run == Bounds(wall_time=600)
    assert limits.of_turn == Bounds(tokens=9), "its iterations are max_iterations"
    assert (Limits(attempts=3).of_run, Limits(turn=Limits(iterations=5)).of_turn) == (None, None)
    assert Agent("a", "openai:gpt-5", limits=limits).max_iterations == 5
    assert Agent("a", "openai:gpt-5").max_iterations == 50


def test_limits_with_changes() -> None:
    limits = Limits(attempts=3, tokens=100, turn=Limits(tokens=50, tool_calls=2))
    change = RunLimits.model_validate({"cost_usd": "2.5", "wall_time": "1m", "turn": {"tokens": 60}})
    assert limits.changed(change) == Limits(
        attempts=3, tokens=100, cost_usd=2.5, wall_time=60, turn=Limits(tokens=60, tool_calls=2)
    )
    assert limits.changed(RunLimits()) == limits


@pytest.mark.parametrize(
    ("use", "said", "key"),
    [
        (("cost_usd", "run", 0.52, 0.5), "the run has used $0.52 of $0.5 (cost_usd)", "cost_usd"),
        (("tokens", "turn", 12345, 10000), "the turn has used 12,345 of 10,000 tokens (tokens)", "turn.tokens"),
        (("wall_time", "run", 61.25, 60), "the run has used 61.2 of 60 seconds (wall_time)", "wall_time"),
        (("max_iterations", "turn", 3, 3), "the turn has used 3 of 3 iterations (max_iterations)", "max_iterations"),
    ],
)
def test_a_limit_is_said_and_raised_by_its_name(use: tuple[Any, ...], said: str, key: str) -> None:
    one = LimitUse(name=use[0], scope=use[1], used=use[2], allowed=use[3])
    assert (str(one), one.key) == (said, key)
    assert one.same(one.model_copy(update={"used": 99}))
    assert not one.same(one.model_copy(update={"allowed": 99}))
    assert not one.same(None)
