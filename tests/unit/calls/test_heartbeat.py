"""Heartbeats of an activity, and what they say."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from temporalio.testing import ActivityEnvironment

from perdure.calls.heartbeat import (
    Heartbeat,
    RunningHeartbeats,
    build_heartbeat_reporter,
    get_attempt_values,
    report_waiting,
)
from perdure.testing import MemoryStore


class Beats:
    """What an activity's heartbeats said, and a way to wait for more of them."""

    def __init__(self) -> None:
        self.said: list[tuple[Any, ...]] = []
        self._more = asyncio.Event()

    def __call__(self, *details: Any) -> None:
        self.said.append(details)
        self._more.set()

    async def next(self) -> tuple[Any, ...]:
        self._more.clear()
        await asyncio.wait_for(self._more.wait(), 10)
        return self.said[-1]


async def during(
    beats: Beats, body: Callable[[], Any], timeout: float = 0.03, running: RunningHeartbeats | None = None
) -> None:
    env = ActivityEnvironment()
    env.info = replace(env.info, heartbeat_timeout=timedelta(seconds=timeout))
    env.on_heartbeat = beats

    async def activity() -> None:
        async with Heartbeat(running):
            await body()

    await env.run(activity)


async def test_they_go_on_until_the_end_of_the_block() -> None:
    beats = Beats()

    async def body() -> None:
        await beats.next()
        await beats.next()

    await during(beats, body)
    count = len(beats.said)
    await asyncio.sleep(0.05)
    assert len(beats.said) == count


async def test_a_reason_to_wait_is_said_until_it_is_gone() -> None:
    beats = Beats()

    async def body() -> None:
        report_waiting("the store is locked")
        assert await beats.next() == ({"waiting": "the store is locked"},)
        assert await beats.next() == ({"waiting": "the store is locked"},)
        report_waiting("")
        assert await beats.next() == ()

    await during(beats, body)


async def test_what_a_tool_reports_stays_until_it_reports_more() -> None:
    """Temporal shows the details of the last heartbeat: one without would wipe them."""
    beats = Beats()

    async def body() -> None:
        report = build_heartbeat_reporter()
        await asyncio.to_thread(report, "page", 3)
        assert await beats.next() == ("page", 3)
        assert await beats.next() == ("page", 3)

    await during(beats, body)


async def test_what_a_tool_reports_often_is_sent_once_an_interval() -> None:
    """Each heartbeat is a billed action."""
    beats = Beats()

    async def body() -> None:
        report = build_heartbeat_reporter()
        for page in range(1000):
            report("page", page)
            await asyncio.sleep(0)
        assert beats.said == [("page", 0)], "the first at once, the others with the next heartbeat"

    await during(beats, body, timeout=600)
    assert beats.said == [("page", 0)]


async def test_what_a_failed_attempt_reported_last_is_sent_at_its_end() -> None:
    """Temporal shows the next attempt the last details of this one."""
    beats = Beats()

    async def body() -> None:
        report = build_heartbeat_reporter()
        for page in range(3):
            report("page", page)
            await asyncio.sleep(0)
        raise ValueError

    with pytest.raises(ValueError):  # noqa: PT011  # the test's own
        await during(beats, body, timeout=600)
    assert beats.said == [("page", 0), ("page", 2)]


async def test_what_a_tool_reports_is_not_taken_for_counts_of_the_engine() -> None:
    """Somebody else may have chosen it: a page that a tool has read, for instance."""
    beats = Beats()

    async def report() -> None:
        build_heartbeat_reporter()({"kept": {"failures": 99}})
        await beats.next()

    await during(beats, report)
    env = ActivityEnvironment()
    env.info = replace(env.info, heartbeat_details=beats.said[-1])

    async def count_failures() -> int:
        async with Heartbeat():
            return get_attempt_values().count("failures")

    assert await env.run(count_failures) == 1


async def test_outside_an_activity_nobody_is_told() -> None:
    report_waiting("nothing")
    build_heartbeat_reporter()("nothing")


async def test_nudges_that_follow_each_other_closely_hasten_too() -> None:
    """Somebody cancels a run again and again, or writes nudges to keep it at work."""
    beats, store = Beats(), MemoryStore()

    async def body() -> None:
        async with asyncio.timeout(10):
            while not beats.said:
                await store.nudge(ActivityEnvironment().info.workflow_id or "")
                await asyncio.sleep(0.01)

    await during(beats, body, timeout=600, running=RunningHeartbeats(store))
