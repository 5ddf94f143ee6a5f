"""How fast a provider is called: order, places, the minute, and waiters that go away."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import replace

import pytest

from perdure.ports.model import Completed, ModelRef, ModelRequest, StreamEvent
from perdure.providers.fallback import ModelChain, Throttle
from perdure.testing import ScriptedProvider
from perdure.types.limits import RateLimit
from perdure.types.messages import Message


def unheard(reason: str) -> None:
    pass


async def settle() -> None:
    """Until everything that can go on has gone on."""
    for _ in range(20):
        await asyncio.sleep(0)


async def test_so_many_at_once_and_first_come_first_served() -> None:
    throttle, order, release = Throttle("p", RateLimit(concurrent=2)), list[int](), asyncio.Event()

    async def call(number: int) -> None:
        async with throttle.acquire(unheard):
            order.append(number)
            await release.wait()

    calls = [asyncio.create_task(call(number)) for number in range(6)]
    await settle()
    assert order == [0, 1]
    release.set()
    await asyncio.gather(*calls)
    assert order == [0, 1, 2, 3, 4, 5]


async def test_a_waiter_that_is_cancelled_takes_no_place() -> None:
    throttle, order = Throttle("p", RateLimit(concurrent=1)), list[str]()

    async def call(name: str) -> None:
        async with throttle.acquire(unheard):
            order.append(name)

    async with AsyncExitStack() as held:
        await held.enter_async_context(throttle.acquire(unheard))
        first, queued, last = (asyncio.create_task(call(name)) for name in ("first", "queued", "last"))
        await settle()
        first.cancel()  # has the door, and waits for a place
        queued.cancel()  # waits for the door
        await settle()
        assert order == []
    await last
    assert order == ["last"]
    await call("again")


async def test_no_more_calls_begin_in_a_minute_than_may() -> None:
    throttle, begun, said = Throttle("p", RateLimit(per_minute=3), minute=0.2), list[float](), list[str]()

    async def call() -> None:
        async with throttle.acquire(said.append):
            begun.append(time.monotonic())

    await asyncio.gather(*(call() for _ in range(7)))
    assert all(begun[number + 3] - begun[number] >= 0.199 for number in range(4))
    assert said.count("") == 6  # all but the first had to wait
    assert "calls of 'p' by this worker (provider_limits): other calls come first" in said
    assert "calls of 'p' by this worker (provider_limits): 3 a minute" in said


@pytest.mark.parametrize("minute", [60.0])
async def test_a_cancelled_wait_for_the_minute_begins_nothing(minute: float) -> None:
    throttle = Throttle("p", RateLimit(per_minute=1, concurrent=1), minute=minute)
    async with throttle.acquire(unheard):
        pass

    async def call() -> None:
        async with throttle.acquire(unheard):
            raise AssertionError("its minute has not passed")

    waiting = asyncio.create_task(call())
    await settle()
    waiting.cancel()
    await asyncio.wait([waiting])
    assert waiting.cancelled()
    assert throttle._get_wait_reason().endswith("1 a minute")


async def test_further_requests_of_a_call_count_in_its_minute() -> None:
    throttle = Throttle("p", RateLimit(per_minute=3), minute=30.0)
    async with throttle.acquire(unheard):
        throttle.count_requests(0)
    assert throttle._get_wait_reason() == ""
    throttle.count_requests(2)
    assert "3 a minute" in throttle._get_wait_reason()
    throttle.count_requests(50)
    assert 0 < throttle._seconds_until_free() <= 30


async def test_a_chain_counts_what_its_provider_sent() -> None:
    class Asks(ScriptedProvider):
        async def stream(self, request: ModelRequest) -> AsyncIterator[StreamEvent]:
            async for event in super().stream(request):
                yield replace(event, requests=3) if isinstance(event, Completed) else event

    throttle = Throttle("p", RateLimit(per_minute=3))
    ref = ModelRef("p", "m", Asks(["Hello."]))
    chain = ModelChain([ref], lambda model: model.own, throttles={"p": throttle})  # type: ignore[arg-type,return-value]
    async for _ in chain.stream(ModelRequest("m", [Message.user("hi")])):
        pass
    assert "3 a minute" in throttle._get_wait_reason()
