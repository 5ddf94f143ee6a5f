"""Durations as people write them: ``90`` (seconds), ``"30s"``, ``"15m"``, ``"1h"``, ``"7d"``, ``"1h30m"``."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Annotated, Any

from pydantic import BeforeValidator

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
_WHOLE = re.compile(r"(?:\d+(?:\.\d+)?[smhdw])+")
_PIECE = re.compile(r"(\d+(?:\.\d+)?)([smhdw])")
_MOST = 100 * 365 * 86400


def seconds(value: Any) -> float:
    """``value`` in seconds. Raises ``ValueError`` for what is no duration, or not above zero and below 100 years."""
    if isinstance(value, timedelta):
        found = value.total_seconds()
    elif isinstance(value, int | float) and not isinstance(value, bool):
        found = float(value) if abs(value) < _MOST else _MOST  # a whole number may be too large for any float
    elif isinstance(value, str) and _WHOLE.fullmatch(value.strip()):
        found = sum(float(number) * _UNITS[unit] for number, unit in _PIECE.findall(value))
    else:
        raise ValueError(f"{value!r:.100} is no duration: give seconds, or text like '30s', '15m', '1h', '7d'")
    if not 0 < found < _MOST:
        raise ValueError(f"a duration is above zero and below 100 years, not {value!r:.100}")
    return found


Seconds = Annotated[float, BeforeValidator(seconds, json_schema_input_type=float | str)]
"""A field that takes any of these and holds seconds."""
