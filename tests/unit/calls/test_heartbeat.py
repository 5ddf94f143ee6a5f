"""Heartbeats of an activity, and what they say."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from temporalio.testing import ActivityEnvironment

from perdure.calls import heartbeat
from perdure.calls.heartbeat import Heartbeat, build_heartbeat_reporter, report_waiting


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


async def during(beats: Beats, body: Callable[[], Any]) -> None:
    env = ActivityEnvironment()
    env.on_heartbeat = beats

    async def activity() -> None:
        async with Heartbeat():
            await body()

    await env.run(activity)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heartbeat, "HEARTBEAT_INTERVAL", 0.01)


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


async def test_outside_an_activity_nobody_is_told() -> None:
    report_waiting("nothing")
    build_heartbeat_reporter()("nothing")
