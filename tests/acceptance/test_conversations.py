"""Users chat at once while workers are killed: every message is answered once, in order, and paid once."""

from __future__ import annotations

import asyncio
import os
import time
from collections import defaultdict
from dataclasses import dataclass, field
from itertools import pairwise

import pytest

from perdure import Client, Message, Run
from tests.servers.model_server import OpenAIServer
from tests.support.chat_room import ChatModel, chat, notes, text, whole_turn
from tests.support.checks import assert_closed, users
from tests.support.engine import ON_BOTH_STORES, Engine, WorkerProcess
from tests.support.histories import weights
from tests.support.wait import eventually

pytestmark = pytest.mark.server

KILL_EVERY = float(os.environ.get("TEST_KILL_SECONDS", "10"))
"""In the large test."""
LONGEST = 120.0
"""Seconds for one turn, far beyond what it takes: a turn that hangs fails by its name."""
EVENTS, BYTES = 30, 9_700
"""What a turn may add to history: two model calls and a tool at most, and what was said."""
LOST_EVENTS, LOST_BYTES = 12, 3_000
"""What a lost worker may add to the history of one conversation."""


@dataclass(frozen=True)
class Size:
    """How much is said in a test."""

    users: int
    turns: int
    kills: int
    """At least: a kill comes with each part of the turns, or after ``kill_every`` seconds, if that is sooner."""
    kill_every: float
    max_events: int
    """``max_history_events`` of every fifth user: continue-as-new under the same kills."""


@dataclass
class Room:
    """The users of a test, what they were told, and when workers were killed."""

    size: Size
    engine: Engine
    model: ChatModel
    kills: list[float] = field(default_factory=list)
    told: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    """By user: when each answer was there."""
    done: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def answered(self) -> int:
        return sum(map(len, self.told.values()))

    def id(self, user: str) -> str:
        return f"{user}-{self.engine.task_queue}"

    async def chat(self, client: Client, index: int) -> None:
        """One user's conversation."""
        user = f"user-{index}"
        await chat(
            client,
            index,
            id=self.id(user),
            turns=self.size.turns,
            max_events=self.size.max_events,
            longest=LONGEST,
            told=lambda *_: self.told[user].append(time.time()),
        )

    async def kill(self, workers: list[WorkerProcess], settings: dict[str, str]) -> None:
        """Kill one worker after the other, and start each again, until the users are done."""
        for turn in range(10_000):
            await self._a_while()
            if self.done.is_set():
                return
            at = turn % len(workers)
            self.kills.append(time.time())
            await workers[at].kill()
            workers[at] = await self.engine.process("chatting", **settings)

    async def _a_while(self) -> None:
        # Of all the turns, not of those since the last kill: to start a worker again takes its time.
        turns, until = self.size.users * self.size.turns, time.monotonic() + self.size.kill_every
        reached = turns * (len(self.kills) + 1) // (self.size.kills + 1)

        def over() -> bool:
            return self.done.is_set() or self.answered >= reached or time.monotonic() >= until

        await eventually(over, deadline=self.size.kill_every + LONGEST)


NOTED_LATE = 1.0
"""Seconds that a request may wait in the model's socket."""


@ON_BOTH_STORES
async def test_six_users_chat_while_a_worker_is_killed(engine: Engine) -> None:
    await chat_under_kills(engine, Size(users=6, turns=6, kills=1, kill_every=LONGEST, max_events=40))


@pytest.mark.fault(
    "Workers",
    "Workers are killed again and again while fifty users chat.",
    "Every message is answered once, in order, and what was remembered is right.",
)
@pytest.mark.slow
@pytest.mark.alone
@pytest.mark.timeout(600)
async def test_fifty_users_chat_while_workers_are_killed(engine: Engine) -> None:
    await chat_under_kills(engine, Size(users=50, turns=20, kills=3, kill_every=KILL_EVERY, max_events=100))


async def chat_under_kills(engine: Engine, size: Size) -> None:
    model = ChatModel()
    room = Room(size, engine, model)
    async with OpenAIServer(model, record=False) as server:
        settings = {"TEST_MODEL_URL": server.base_url}
        workers = [await engine.process("chatting", **settings) for _ in range(2)]
        client = await engine.client()
        begun = time.monotonic()
        killing = asyncio.create_task(room.kill(workers, settings))
        await asyncio.gather(*(room.chat(client, index) for index in range(size.users)))
        room.done.set()
        await killing
        seconds = time.monotonic() - begun
        refused = server.stats.refused
        for index in range(size.users):
            await check(client, room, f"user-{index}")
    assert refused == 0, "the model's API refused a request"
    assert not model.wrong
    assert len(room.kills) >= size.kills
    repeated = check_paid(room)
    effects = sum(engine.ledger.counts("note").values())
    print(
        f"{size.users * size.turns} turns in {seconds:.1f} s, {len(room.kills)} kills; model calls "
        f"repeated {repeated} of {len(model.asked)}; tools begun {effects} for "
        f"{size.users * len(notes(size.turns))} calls; load {os.getloadavg()[0]:.1f}"
    )


async def check(client: Client, room: Room, user: str) -> None:
    """Everything that was promised to one user."""
    run, turns = client.run(room.id(user)), room.size.turns
    messages = await run.transcript()
    assert users(messages) == [text(user, n) for n in range(turns)]
    assert_closed(messages)
    assert said(messages) == [part for n in range(turns) for part in whole_turn(user, n)]
    assert await client.memory.get("said", user) == notes(turns), "remembered once each, in order"
    calls = turns + len(notes(turns))
    assert sum(message.role == "assistant" for message in messages) == calls
    assert await client.memory.get("asked", user) == calls, "counted with the call's outcome, however often it is tried"
    await check_history(room, run, continues=int(user.partition("-")[2]) % 5 == 0)


def said(messages: list[Message]) -> list[tuple[str, str]]:
    return [
        (message.role, "".join(result.content for result in message.tool_results) or message.text)
        for message in messages
        if message.role != "system"
    ]


async def check_history(room: Room, run: Run, *, continues: bool) -> None:
    executions = await weights(run)
    lost, turns = len(room.kills), room.size.turns
    for one in executions if continues else ():
        assert one.events <= room.size.max_events + EVENTS + LOST_EVENTS * lost
    assert (len(executions) > 1) == continues
    events, size = (sum(getattr(one, name) for one in executions) for name in ("events", "size"))
    assert events <= EVENTS * turns + LOST_EVENTS * lost, f"{run.id}: {events} events"
    assert size <= BYTES * turns + LOST_BYTES * lost, f"{run.id}: {size} bytes"


def check_paid(room: Room) -> int:
    """No model call is repeated but one that was in flight at a kill: asked, and nothing had followed from it yet."""
    followed: dict[str, float] = {}
    for entry in room.engine.ledger.entries("note"):
        followed.setdefault(f"{entry['key']}/0", entry["at"])
    for user, moments in room.told.items():
        for n, moment in enumerate(moments):
            followed[f"{user}/{n}/{int(n % 3 != 2)}"] = moment
    assert set(room.model.asked) == set(followed)
    repeated = 0
    for key, moments in room.model.asked.items():
        for first, again in pairwise(moments):
            assert again < followed[key], f"{key} was asked again when its reply had been used"
            # A busy model notes a request later than it was sent: its worker may have been killed before that.
            was_killed = any(first - NOTED_LATE <= kill <= again for kill in room.kills)
            assert was_killed, f"{key} was asked at {first} and {again} without a kill: {room.kills}"
            repeated += 1
    return repeated
