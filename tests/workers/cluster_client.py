"""A client of a cluster: it starts runs and waits for them, and its users chat. What it was told is in its ledger.

Where Temporal or the store is away it tries again, as a program does that outlives its servers.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from temporalio.client import WorkflowUpdateFailedError, WorkflowUpdateRPCTimeoutOrCancelledError
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError, RPCStatusCode

from perdure import Client, Run
from perdure.errors import ServerUnreachableError, StoreError
from perdure.types.events import Event
from tests.support.chat_room import chat
from tests.support.following import assert_whole
from tests.support.ledger import Ledger

T = TypeVar("T")
ledger = Ledger(os.environ.get("TEST_LEDGER", os.devnull))
AWAY = tuple(RPCStatusCode[name] for name in ("UNAVAILABLE", "DEADLINE_EXCEEDED", "CANCELLED", "UNKNOWN"))
PAUSE = 1.0
"""Seconds between two tries."""


@dataclass(frozen=True)
class Load:
    """What one client does: the numbers of its runs and users."""

    runs: list[int]
    users: list[int]
    turns: int
    max_events: int
    """``max_history_events`` of every fifth user."""
    longest: float
    """Seconds that a run or a turn may take, far beyond what it takes."""


async def persist(request: Callable[[], Awaitable[T]]) -> T:
    """Make the request, until neither Temporal nor the store was away."""
    while True:
        try:
            return await request()
        except (ServerUnreachableError, WorkflowUpdateRPCTimeoutOrCancelledError) as error:
            ledger.add("refused", type(error).__name__, text=str(error)[:200])
        except StoreError as error:
            if not error.retryable:
                raise
            ledger.add("refused", type(error).__name__, text=str(error)[:200])
        except RPCError as error:
            if error.status not in AWAY:
                raise
            ledger.add("refused", error.status.name, text=error.message[:200])
        except WorkflowUpdateFailedError as error:  # waits whose connection broke go on for 20 s
            if not isinstance(error.cause, ApplicationError) or error.cause.type != "TooManyWaits":
                raise
            ledger.add("refused", error.cause.type)
        await asyncio.sleep(PAUSE)


async def count(client: Client, n: int, longest: float) -> None:
    """One run, which every third time is followed to its end."""
    async with asyncio.timeout(longest):
        run = await persist(lambda: client.start("counting", f"run {n}", id=f"run-{n}", if_exists="attach"))
        following = asyncio.create_task(follow(run)) if n % 3 == 0 else None
        response = await persist(run.result)
        ledger.add("ended", str(n), content=response.content)
        if following is not None:
            await following


async def follow(run: Run) -> None:
    """Its events, each once and in order, across all failures."""
    events: list[Event] = []

    async def read() -> None:
        async for event in run.events(after=events[-1].seq if events else 0):
            events.append(event)  # noqa: PERF401  # those before a failure count

    await persist(read)
    assert_whole(events)
    ledger.add("followed", run.id, events=len(events))


async def converse(client: Client, index: int, load: Load) -> None:
    """One user's conversation."""
    await chat(
        client,
        index,
        id=f"user-{index}",
        turns=load.turns,
        max_events=load.max_events,
        longest=load.longest,
        told=lambda n, content: ledger.add("told", f"user-{index}", n=n, content=content),
        persist=persist,
    )


async def main() -> None:
    load = Load(**json.loads(os.environ["TEST_LOAD"]))
    client = await Client.connect()
    Path(os.environ["TEST_READY"]).touch()
    async with asyncio.TaskGroup() as group:
        for n in load.runs:
            group.create_task(count(client, n, load.longest))
        for index in load.users:
            group.create_task(converse(client, index, load))
    await client.close()


if __name__ == "__main__":
    asyncio.run(main())
