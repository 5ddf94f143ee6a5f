"""How long an API asks us to wait, from whichever of its headers says so."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Mapping
from email.utils import parsedate_to_datetime

_DURATION = re.compile(r"(?P<number>\d+(?:\.\d+)?)\s*(?P<unit>ms|s|m|h|d)")
_WHOLE_DURATION = re.compile(rf"(?:{_DURATION.pattern.replace('?P<number>', '').replace('?P<unit>', '')})+")
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_IN_MESSAGE = re.compile(r"(?:try again|retry) in (?P<wait>\d[\d.]*\s*(?:ms|s|m|h)[\d.mhs]*)")
_EPOCH = 1_000_000_000
"""A number of seconds above this is a moment, not a duration."""


def duration(text: str) -> float | None:
    """Seconds of ``6m0s``, ``20ms``, ``1.5`` or ``1h2m``; None for anything else."""
    text = text.strip().rstrip(".")
    if _WHOLE_DURATION.fullmatch(text):
        found = sum(float(m["number"]) * _SECONDS[m["unit"]] for m in _DURATION.finditer(text))
        return found if math.isfinite(found) else None
    return _number(text)


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) and value >= 0 else None


def _from_now(value: float | None, unit: float = 1.0) -> float | None:
    """``value`` as seconds from now, where APIs give a duration or a moment (seconds or milliseconds)."""
    if value is None:
        return None
    value *= unit
    if value > _EPOCH * 1000:
        value /= 1000
    return max(0.0, value - time.time()) if value > _EPOCH else value


def _retry_after(text: str) -> float | None:
    """Seconds of the header: a duration, a moment, or several where proxies have added theirs (the longest)."""
    numbers = [_from_now(duration(piece)) for piece in text.split(",")]
    if None not in numbers:
        return max(filter(None, numbers), default=0.0)
    try:
        return max(0.0, parsedate_to_datetime(text).timestamp() - time.time())
    except (TypeError, ValueError, ArithmeticError, LookupError):  # a year, a zone or a field out of range
        return None


def _reset(headers: Mapping[str, str]) -> float | None:
    """The longest reset among the limits that are used up; of all, where none says what remains."""
    resets: list[float] = []
    exhausted: list[float] = []
    for name in ("-requests", "-tokens", ""):
        wait = _from_now(duration(headers.get(f"x-ratelimit-reset{name}", "")))
        if wait is None:
            continue
        resets.append(wait)
        if headers.get(f"x-ratelimit-remaining{name}", "").strip() == "0":
            exhausted.append(wait)
    return max(exhausted or resets, default=None)


def retry_after(headers: Mapping[str, str], message: str = "") -> float | None:
    """Seconds to wait. ``headers`` finds names in lower case; ``message`` may say "try again in 20ms"."""
    milliseconds = _number(headers.get("retry-after-ms", ""))
    if milliseconds is not None:
        return milliseconds / 1000
    seconds = _retry_after(headers.get("retry-after", ""))
    if seconds is not None:
        return seconds
    said = _IN_MESSAGE.search(message)
    if said and (wait := duration(said["wait"])) is not None:
        return wait
    return _reset(headers)
