"""Events between processes: three write at once, one reads, is killed and goes on."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import pytest

from perdure.ports.store import EventBatch, NewEvent
from perdure.types.events import LimitReached
from tests.contract.store.conftest import Database

WRITER = """
import asyncio, sys
from perdure.ports.store import EventBatch, Commit, NewEvent, Outcome
from perdure.store import open_store
from perdure.types.events import ModelCompleted, ModelDelta, ToolProgress, ToolStarted

def batch(*events):
    return EventBatch("c", [NewEvent(event) for event in events])

async def main(url, name):
    store = open_store(url)
    await store.open()
    print("ready", flush=True)
    for n in range(60):
        if n % 15 == 0:
            sys.stdin.readline()
        at = f"{name}-{n}"
        said = [ToolProgress(call_id=at, name="f", message=f"{i}") for i in range(n % 4)]
        await store.claim(at, "me", events=batch(ToolStarted(call_id=at, name="f")))
        await store.append(batch(ModelDelta(text=at), *said, ModelDelta(text=at)))
        done = batch(ModelCompleted(text=at)) if n % 5 == 0 else batch(*said)
        await store.commit(Commit(outcome=Outcome(at, "tool", b"1"), events=done))
    await store.close()

asyncio.run(main(*sys.argv[1:]))
"""
READER = """
import asyncio, json, sys
from perdure.store import open_store

async def main(url, after):
    store = open_store(url)
    await store.open()
    print("ready", flush=True)
    while True:
        if await store.wait_for_event("c", after, 60):
            for row in await store.read_events("c", after=after):
                after = row.seq
                print(json.dumps([row.seq, row.type, row.body.decode(), row.spans]), flush=True)

asyncio.run(main(sys.argv[1], int(sys.argv[2])))
"""


@contextlib.contextmanager
def python(program: str, *arguments: object) -> Iterator[subprocess.Popen[str]]:
    """A process that is ready; it is killed behind the block, however that ends."""
    command = [sys.executable, "-c", program, *map(str, arguments)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            yield process
        finally:
            process.kill()


@dataclass
class Seen:
    """An event as the reader printed it."""

    seq: int
    type: str
    body: str
    spans: list[tuple[int, int]]


@pytest.mark.slow
async def test_three_write_at_once_and_a_reader_is_killed(database: Database):
    url = database.other_process()
    store = await database.open()
    seen: list[Seen] = []
    with contextlib.ExitStack() as stack:
        writers = [stack.enter_context(python(WRITER, url, name)) for name in "xyz"]
        reader = stack.enter_context(python(READER, url, 0))
        for count in (40, 1, 30):  # each time 45 tools begin at least, which nothing takes away again
            go_on(writers)
            assert reader.stdout is not None
            seen += lines(itertools.islice(reader.stdout, count))
            reader.kill()  # while they write
            seen += lines(reader.stdout)  # what it had said before it died
            reader = stack.enter_context(python(READER, url, seen[-1].seq))
        go_on(writers)
        assert await asyncio.to_thread(lambda: [writer.wait() for writer in writers]) == [0, 0, 0]
        await store.append(EventBatch("c", [NewEvent(LimitReached())]))
        assert reader.stdout is not None
        seen += lines(itertools.takewhile(lambda line: '"limit"' not in line, reader.stdout))
        reader.kill()

    kept = (await store.read_events("c", limit=10_000))[:-1]
    seqs = [event.seq for event in seen]
    assert seqs == sorted(set(seqs))
    gone = {n for event in seen if event.type == "model.completed" for a, b in event.spans for n in range(a, b + 1)}
    assert set(seqs) | gone == set(range(1, seqs[-1] + 1))
    assert [row.seq for row in kept] == [seq for seq in seqs if seq not in gone]
    bodies = {event.seq: event.body for event in seen}
    assert all(bodies[row.seq] == row.body.decode() for row in kept)
    # Of each writer everything once, and in its order.
    of = {name: [event for event in seen if f'"{name}-' in event.body] for name in "xyz"}
    for events in of.values():
        counts = Counter(event.type for event in events)
        assert (counts["tool.started"], counts["model.completed"]) == (60, 12)
        # Twice each message but where the reply came in their place: n % 4 of them, for n in range(60).
        assert counts["tool.progress"] == 2 * 90 - sum(n % 4 for n in range(0, 60, 5))
        numbers = [int(event.body.split("-")[1].split('"')[0]) for event in events]
        assert numbers == sorted(numbers)


def go_on(writers: Iterable[subprocess.Popen[str]]) -> None:
    for writer in writers:
        assert writer.stdin is not None
        writer.stdin.write("\n")
        writer.stdin.flush()


def lines(told: Iterable[str]) -> list[Seen]:
    """The last may be cut off."""
    return [Seen(*json.loads(line)) for line in told if line.endswith("\n")]


async def test_a_follower_is_woken_by_what_another_process_writes(database: Database):
    url = database.other_process(also_proxied=True)
    store = await database.open()
    waiting = [asyncio.ensure_future(store.wait_for_event("c", n, 60)) for n in (0, 0, 3)]
    with python(WRITER, url, "x") as writer:
        assert not any(task.done() for task in waiting)
        await asyncio.to_thread(writer.communicate, "\n" * 4)
    assert all(latest >= 1 for latest in await asyncio.gather(*waiting))
