"""A call is given up after its own failures: what else ends an attempt of Temporal's counts for nothing."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from perdure import Agent, Limits, hook
from perdure.calls.retries import SILENT_ATTEMPTS, UNEXPECTED_ATTEMPTS
from perdure.errors import ProviderServerError, ProviderTimeoutError, RetryLaterError
from perdure.ports.model import ModelRequest
from perdure.testing import ScriptedProvider, scripted
from tests.servers.model_server import OpenAIServer, Reply, error
from tests.support.engine import Engine
from tests.support.wait import eventually

TIMED_OUT = error(504, "It took too long.")
LATER = RetryLaterError("the rate is used up", seconds=0.01)


@pytest.mark.server
async def test_workers_that_are_killed_use_up_no_retry(engine: Engine) -> None:
    """As many as there may be failures: then the call fails once, and is made again."""
    asked = 0

    def rule(_: Any) -> Any:
        nonlocal asked
        asked += 1
        if asked < SILENT_ATTEMPTS:
            return Reply("Never.", hang=asyncio.Event())
        return TIMED_OUT if asked == SILENT_ATTEMPTS else "Done."

    async with OpenAIServer(rule) as server:
        client = await engine.client()
        run = await client.start("counting", "Go.")
        for kill in range(1, SILENT_ATTEMPTS):
            worker = await engine.process("counting", TEST_MODEL_URL=server.base_url, PERDURE_HEARTBEAT="0.5")
            await eventually(lambda kill=kill: asked == kill)
            await worker.kill()
        await engine.process("counting", TEST_MODEL_URL=server.base_url, PERDURE_HEARTBEAT="0.5")
        assert (await run.result()).content == "Done."
    assert asked == SILENT_ATTEMPTS + 1


@pytest.mark.server
async def test_failures_are_counted_across_workers_that_are_killed_between_them(engine: Engine) -> None:
    asked = 0

    def rule(_: Any) -> Any:
        nonlocal asked
        asked += 1
        return Reply("Never.", hang=asyncio.Event()) if asked == 2 else TIMED_OUT

    async with OpenAIServer(rule) as server:
        client = await engine.client()
        run = await client.start("counting", "Go.")
        worker = await engine.process("counting", TEST_MODEL_URL=server.base_url, PERDURE_HEARTBEAT="0.5")
        await eventually(lambda: asked == 2)
        await worker.kill()
        await engine.process("counting", TEST_MODEL_URL=server.base_url, PERDURE_HEARTBEAT="0.5")
        with pytest.raises(ProviderTimeoutError):
            await run.result()
    assert asked == SILENT_ATTEMPTS + 1, "the failures before and after the kill, and the one that was killed"


class Queue:
    """A model that is asked for later a number of times before each failure."""

    def __init__(self, failures: list[Exception], waits: int) -> None:
        self.asked = 0
        self._rest = [outcome for failure in failures for outcome in (*[LATER] * waits, failure)]

    async def __call__(self, _: ModelRequest) -> str:
        self.asked += 1
        if self._rest:
            raise self._rest.pop(0)
        return "Done."


@pytest.mark.server
async def test_a_call_that_is_to_be_made_later_has_not_failed(engine: Engine) -> None:
    queue = Queue([ProviderTimeoutError("silent")], waits=SILENT_ATTEMPTS + 1)
    errors: list[str] = []

    @hook("on_error")
    def note(error_type: str) -> None:
        errors.append(error_type)

    agent = Agent("queued", ScriptedProvider(queue), limits=Limits(attempts=2), hooks=[note])
    async with engine.served(agent) as client:
        run = await client.start("queued", "Go.")
        assert (await run.result()).content == "Done."
        events = [event async for event in run.events()]
    assert queue.asked == SILENT_ATTEMPTS + 3
    assert [event.error_type for event in events if event.type == "error"] == ["ProviderTimeoutError"]
    assert errors == ["ProviderTimeoutError"]


@pytest.mark.parametrize(
    ("failure", "most", "limits"),
    [
        (ProviderServerError("busy"), 2, Limits(attempts=2)),
        (ProviderTimeoutError("silent"), SILENT_ATTEMPTS, Limits()),
        (ZeroDivisionError("a fault"), UNEXPECTED_ATTEMPTS, Limits()),
    ],
    ids=lambda value: type(value).__name__,
)
async def test_the_last_failure_that_is_allowed_ends_the_run(failure: Exception, most: int, limits: Limits) -> None:
    queue = Queue([failure] * 30, waits=7)
    agent = Agent("queued", "openai:gpt-5-mini", limits=limits)
    with scripted(agent, queue), pytest.raises(Exception, match=str(failure)):
        await agent.call("Go.")
    assert queue.asked == most * 8


async def test_failures_of_different_kinds_are_counted_apart() -> None:
    """Each limit says how many failures of its kind end a call."""
    kinds = [ProviderTimeoutError("silent"), ProviderServerError("busy")] * (SILENT_ATTEMPTS - 1)
    queue = Queue([*kinds, ProviderServerError("busy")], waits=0)
    agent = Agent("queued", "openai:gpt-5-mini")
    with scripted(agent, queue):
        assert (await agent.call("Go.")).content == "Done."
