"""``--limit NAME=VALUE``, again for more."""

from __future__ import annotations

import pytest

from perdure.cli.steer import parse_limits
from perdure.errors import InvalidInputError


def test_limits_of_run_and_turn() -> None:
    assert parse_limits(None) == {}
    given = ["cost_usd=5", "max_iterations=80", "turn.wall_time=10m", "turn.tokens=9"]
    assert parse_limits(given) == {
        "cost_usd": "5",
        "max_iterations": "80",
        "turn": {"wall_time": "10m", "tokens": "9"},
    }


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("cost_usd", "--limit cost_usd: it has no value"),
        ("cost_usd=", "it has no value"),
        ("money=5", "limits.money"),
        ("tokens=-1", "limits.tokens: Input should be greater than or equal to 1"),
        ("turn.cost_usd=nan", "limits.turn.cost_usd"),
        ("run.tokens=5", "limits.run.tokens"),
        ("turn=5", "limits.turn"),
    ],
)
def test_what_is_no_limit_is_refused(given: str, said: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        parse_limits([given])
    assert said in str(caught.value)
