"""When a schedule is due: from the arguments that say it to Temporal's spec, and from that back to text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Any

from temporalio.client import ScheduleCalendarSpec, ScheduleIntervalSpec, ScheduleRange, ScheduleSpec

from .errors import InvalidInputError
from .types.duration import seconds
from .types.messages import clean

_EXAMPLE = 'For instance cron="0 7 * * 1-5" with timezone="Europe/Lisbon", or every="1h".'
_UNITS = (("d", 86400), ("h", 3600), ("m", 60), ("s", 1))
_WHOLE = {"minute": (0, 59), "hour": (0, 23), "day_of_month": (1, 31), "month": (1, 12), "day_of_week": (0, 6)}
"""The fields of a cron expression, in its order, and what ``*`` means in each."""


def timetable(
    cron: str | Sequence[str] | None, every: float | str | timedelta | None, timezone: str | None
) -> ScheduleSpec:
    """The union of all that is said. What a cron expression or a time zone may be, the server says.

    Raises ``InvalidInputError``.
    """
    listed: list[Any] = list(cron) if isinstance(cron, list | tuple) else [] if cron is None else [cron]
    for one in listed:
        if not isinstance(one, str) or not one.strip() or one != clean(one):
            raise InvalidInputError(f"cron: {one!r:.100} is no cron expression", hint=_EXAMPLE)
    if not listed and every is None:
        raise InvalidInputError("a schedule needs cron or every: when is it due?", hint=_EXAMPLE)
    if timezone is not None and not listed:
        raise InvalidInputError("a time zone says what cron means, and there is none", hint=_EXAMPLE)
    if timezone is not None and (not isinstance(timezone, str) or timezone != clean(timezone)):
        raise InvalidInputError(f"{timezone!r:.100} is no time zone", hint=_EXAMPLE)
    intervals = [] if every is None else [ScheduleIntervalSpec(every=_interval(every))]
    return ScheduleSpec(cron_expressions=listed, intervals=intervals, time_zone_name=timezone)


def when(spec: ScheduleSpec) -> tuple[str, ...]:
    """The same as text: ``("0 7 * * 1-5", "every 1h")``. The server keeps calendars where it was told cron."""
    return (*spec.cron_expressions, *map(_cron, spec.calendars), *map(_every, spec.intervals))


def _interval(every: float | str | timedelta) -> timedelta:
    try:
        found = seconds(every)
    except ValueError as error:
        raise InvalidInputError(f"every: {error}") from None
    if found != int(found):
        raise InvalidInputError(f"every: a schedule counts whole seconds, not {found:g}")
    return timedelta(seconds=found)


def _cron(calendar: ScheduleCalendarSpec) -> str:
    """Five fields; with seconds or years, seven."""
    fields = [_field(getattr(calendar, name), *whole) for name, whole in _WHOLE.items()]
    if calendar.year or [(one.start, one.end) for one in calendar.second] not in ([], [(0, 0)]):
        fields = [_field(calendar.second, 0, 59), *fields, _field(calendar.year, -1, -1)]
    return " ".join(fields)


def _field(ranges: Sequence[ScheduleRange], first: int, last: int) -> str:
    return ",".join(_range(one, first, last) for one in ranges) or "*"


def _range(one: ScheduleRange, first: int, last: int) -> str:
    end = max(one.end, one.start)
    text = "*" if (one.start, end) == (first, last) else str(one.start) if one.start == end else f"{one.start}-{end}"
    return text if one.step <= 1 else f"{text}/{one.step}"


def _every(interval: ScheduleIntervalSpec) -> str:
    text = f"every {_length(interval.every)}"
    return f"{text} from {_length(interval.offset)}" if interval.offset else text


def _length(time: timedelta) -> str:
    def parts(left: int) -> Iterator[str]:
        for unit, size in _UNITS:
            if left >= size:
                yield f"{left // size}{unit}"
                left %= size

    return "".join(parts(int(time.total_seconds()))) or "0s"
