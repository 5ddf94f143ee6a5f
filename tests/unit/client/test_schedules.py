"""When a schedule is due: what is refused at once, and how Temporal's spec reads."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from temporalio.client import ScheduleCalendarSpec, ScheduleIntervalSpec, ScheduleRange, ScheduleSpec

from perdure.client.schedules import build_schedule_spec, format_schedule_spec
from perdure.errors import InvalidInputError


def test_all_that_is_said_counts() -> None:
    spec = build_schedule_spec(["0 7 * * *", "@daily"], "1h30m", "Europe/Lisbon")
    assert spec.cron_expressions == ["0 7 * * *", "@daily"]
    assert [one.every for one in spec.intervals] == [timedelta(minutes=90)]
    assert spec.time_zone_name == "Europe/Lisbon"
    assert build_schedule_spec("0 7 * * *", None, None).cron_expressions == ["0 7 * * *"]
    assert [one.every for one in build_schedule_spec(None, timedelta(days=1), None).intervals] == [timedelta(days=1)]


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ((None, None, None), "needs cron or every"),
        (([], None, None), "needs cron or every"),
        (("", None, None), "must be a cron expression, not ''"),
        (([7], None, None), "must be a cron expression, not 7"),
        ((7, None, None), "must be a cron expression, not 7"),
        (({"0 7 * * *": 1}, None, None), "must be a cron expression, not"),
        (("0 7 * * \ud800", None, None), "must be a cron expression, not"),
        (("0 7 * * *", None, 7), "must name a time zone, not 7"),
        (("0 7 * * *", None, "\udcff"), "must name a time zone, not"),
        ((None, 0, None), "above zero"),
        ((None, "1x", None), "'1x' is not a duration"),
        ((None, 0.5, None), "whole seconds"),
        ((None, "1h", "Europe/Lisbon"), "timezone applies to cron"),
    ],
)
def test_what_is_no_timetable(given: Any, says: str) -> None:
    with pytest.raises(InvalidInputError, match=says):
        build_schedule_spec(*given)


@pytest.mark.parametrize(
    ("cron", "reason"),
    [
        ("0 7 30 2 *", "month 2 has no day 30"),
        ("0 7 30 FEB *", "month FEB has no day 30"),
        ("0 7 30-31 2 1-5", "has no day"),
        ("0 7 31 2,4,6,9,11 *", "has no day"),
        ("0 7 31 4-6/2 ?", "has no day"),
        ("CRON_TZ=Europe/Lisbon 0 7 30 2 *", "has no day"),
        ("0 7 30 2 * # never", "has no day"),
        ("0 7 1 1 * 2020", "no day that is still to come"),
        ("0 0 7 29 2 * 2027,2029-2031", "no day that is still to come"),
        ("0 7 29 2 sun 2028", "no day that is still to come"),  # a Tuesday
    ],
)
def test_a_cron_line_that_is_never_due_is_refused(cron: str, reason: str) -> None:
    """Also as one of several: who wrote it meant something by it."""
    for given in (cron, ["0 7 * * *", cron]):
        with pytest.raises(InvalidInputError, match=f"is never due: .*{reason}"):
            build_schedule_spec(given, "1h", None)


@pytest.mark.parametrize(
    "cron",
    [
        "0 7 29 2 *", "0 7 29 2 MON", "0 7 31 * *", "0 7 31 1-12/2 *", "0 7 30,31 2,4 *", "@daily", "@every 1h",
        "0 7 * * 7", "0 7 ? * sun-mon", "0 7 1 1 * 2099", "0 0 7 29 2 * *", "0 7 29 2 tue 2028", "*/15 8-18 1,15 * *",
        "0 7 L * *", "x y z a b",
    ],
)  # fmt: skip
def test_a_cron_line_that_is_due_some_day_or_that_the_server_refuses_is_taken(cron: str) -> None:
    assert build_schedule_spec(cron, None, None).cron_expressions == [cron]


def calendar(**fields: Any) -> ScheduleCalendarSpec:
    """As the server writes ``* * * * *``, but for ``fields``."""
    every = {
        "minute": [ScheduleRange(0, 59)],
        "hour": [ScheduleRange(0, 23)],
        "day_of_month": [ScheduleRange(1, 31)],
        "month": [ScheduleRange(1, 12)],
        "day_of_week": [ScheduleRange(0, 6)],
    }
    return ScheduleCalendarSpec(**{**every, **fields})


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({}, "* * * * *"),
        ({"minute": [ScheduleRange(0)], "hour": [ScheduleRange(7)]}, "0 7 * * *"),
        ({"day_of_week": [ScheduleRange(1, 5)]}, "* * * * 1-5"),
        ({"minute": [ScheduleRange(0, 59, 15)]}, "*/15 * * * *"),
        ({"minute": [ScheduleRange(5, 20, 5), ScheduleRange(40)]}, "5-20/5,40 * * * *"),
        ({"second": [ScheduleRange(30)]}, "30 * * * * * *"),
        ({"year": [ScheduleRange(2030)]}, "0 * * * * * 2030"),
        ({"second": [ScheduleRange(0, 59)], "year": [ScheduleRange(2030, 2031)]}, "* * * * * * 2030-2031"),
    ],
)
def test_a_calendar_reads_as_cron(fields: Any, text: str) -> None:
    assert format_schedule_spec(ScheduleSpec(calendars=[calendar(**fields)])) == (text,)


@pytest.mark.parametrize(
    ("interval", "text"),
    [
        (ScheduleIntervalSpec(timedelta(seconds=90)), "every 1m30s"),
        (ScheduleIntervalSpec(timedelta(days=7)), "every 7d"),
        (ScheduleIntervalSpec(timedelta(hours=1), offset=timedelta(minutes=5)), "every 1h from 5m"),
    ],
)
def test_an_interval_reads_as_a_duration(interval: ScheduleIntervalSpec, text: str) -> None:
    assert format_schedule_spec(ScheduleSpec(intervals=[interval])) == (text,)
