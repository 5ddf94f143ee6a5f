"""What each follower of a run must see, and models that speak when a test wants them to."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

from perdure import hook
from perdure.hooks import Hook
from perdure.hooks.hook import HookEvent
from perdure.ports.model import Completed, ModelRequest, StreamEvent, TextDelta
from perdure.types.events import Event, ModelCompleted, RunEvent
from perdure.types.messages import TextPart
from tests.support.scripts import Gate

DEADLINE = 60.0
BEGIN = ["run started", "turn started", "message.injected"]
STEP = ["model.started", "model.completed", "tool.started", "tool.completed"]
ANSWER = ["model.started", "model.completed", "turn completed"]
"""What :func:`shown` says of a run with calls of one tool."""


class Slow:
    """Streams ``pieces`` of a reply; the gate holds it after each. It fails behind the first with ``error``."""

    def __init__(self, *pieces: str) -> None:
        self.gate = Gate()
        self.error: Exception | None = None
        self._pieces = pieces

    async def stream(self, request: ModelRequest) -> AsyncIterator[StreamEvent]:
        for piece in self._pieces:
            yield TextDelta(piece)
            await self.gate()
            if self.error is not None:
                raise self.error
        yield Completed((TextPart(text="".join(self._pieces)),), model=request.model)


async def all_of(events: AsyncIterator[Event]) -> list[Event]:
    """Follow to the end, which comes."""
    async with asyncio.timeout(DEADLINE):
        return [event async for event in events]


def holding(event: HookEvent, gate: Gate, *, after: int = 0) -> Hook:
    """A hook that waits at the gate, all times but the first ``after``.

    A reply that is whole replaces its deltas: who has to see them lets it be whole when they were read.
    """
    times = itertools.count()

    @hook(event)
    async def hold() -> None:
        if next(times) >= after:
            await gate()

    return hold


async def opening(events: AsyncIterator[Event], gate: Gate, seen: Callable[[list[Event]], bool]) -> list[Event]:
    """Follow to the end, and open the gate when so much was seen."""
    found: list[Event] = []
    async with asyncio.timeout(DEADLINE):
        async for event in events:
            found.append(event)
            if seen(found):
                gate.open()
    return found


def left_tasks() -> list[str]:
    """Tasks of the client package that still run: those of followers among them."""
    coroutines: list[Any] = [task.get_coro() for task in asyncio.all_tasks()]
    return [str(coroutine) for coroutine in coroutines if "/perdure/client/" in coroutine.cr_code.co_filename]


async def next_of(events: AsyncIterator[Event], type: str) -> Event:
    """Read on up to the next event of ``type``."""
    async with asyncio.timeout(DEADLINE):
        async for event in events:
            if event.type == type:
                return event
    raise AssertionError(f"the events end without {type!r}")


def shown(events: Sequence[Event], *, deltas: bool = False) -> list[str]:
    """Types, with the state of those that have one."""
    said = [event for event in events if deltas or event.type != "model.delta"]
    return [f"{event.type} {state}" if (state := getattr(event, "state", "")) else event.type for event in said]


def run_end(events: Sequence[Event]) -> RunEvent:
    """The last word on the run: what a worker says that hears of it later comes behind."""
    return [event for event in events if isinstance(event, RunEvent)][-1]


def assert_whole(events: Sequence[Event], after: int = 0) -> None:
    """In order, none twice, and none missing but what a reply has replaced."""
    numbers = [event.seq for event in events]
    assert numbers == sorted(set(numbers)), f"out of order, or twice: {numbers}"
    assert all(number > after for number in numbers)
    spans = [span for event in events if isinstance(event, ModelCompleted) for span in event.replaces]
    replaced = {number for first, last in spans for number in range(first, last + 1)}
    last = numbers[-1] if numbers else after
    missing = set(range(after + 1, last + 1)) - set(numbers) - replaced
    assert not missing, f"missing: {sorted(missing)}"
