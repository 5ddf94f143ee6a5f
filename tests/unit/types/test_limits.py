"""Limits are checked where they are written."""

from __future__ import annotations

from typing import Any

import pytest

from perdure import Limits, RateLimit
from perdure.errors import DefinitionError


def test_durations_are_seconds() -> None:
    assert Limits(call_timeout="10m").call_seconds == 600
    assert Limits(call_timeout=2).call_seconds == 2
    assert Limits().call_seconds is None
    assert Limits(attempts=3) == Limits(attempts=3, call_timeout=None)


@pytest.mark.parametrize(
    ("kind", "given", "said"),
    [
        (Limits, {"attempts": 0}, "attempts must be a whole number of at least 1, not 0"),
        (Limits, {"attempts": "3"}, "attempts must be"),
        (Limits, {"attempts": True}, "attempts must be"),
        (Limits, {"call_timeout": "soon"}, "call_timeout: 'soon' is no duration"),
        (Limits, {"call_timeout": 0}, "call_timeout: a duration is above zero"),
        (RateLimit, {"concurrent": 0}, "concurrent must be"),
        (RateLimit, {"per_minute": 1.5}, "per_minute must be"),
    ],
)
def test_what_is_no_limit_is_refused(kind: Any, given: dict[str, Any], said: str) -> None:
    with pytest.raises(DefinitionError, match=said):
        kind(**given)
