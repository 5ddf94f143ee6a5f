"""A process that is killed in the middle of its writes loses nothing that it was told is written."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence

from perdure.ports.store import RunRow, Store
from perdure.store import Chain
from tests.contract.store.conftest import Database

WRITER = """
import asyncio, sys
from perdure.ports.store import EventBatch, Commit, MemoryWrite, NewEvent, Outcome, RunRow, TurnRow
from perdure.store import Chain, open_store
from perdure.types.events import LimitReached, ModelDelta
from perdure.types.messages import Message

async def talk(store, chain, name):
    row = await store.get_run(name)
    head, i = (row.head, row.iterations) if row else (None, 0)
    while True:
        said = [Message.user("x" * (40_000 if i % 7 == 0 else 3_000))]
        node, blobs = chain.extend(head, said)
        outcome = Outcome(f"{name}-{i}", "model", node.hash.encode())
        head, i = node.hash, i + 1
        run = RunRow(name, "agent", "scope", head, "running", i)
        turn = TurnRow(name, "turn", "running", head, messages=[outcome.key])
        memory = [MemoryWrite(name, "count", b"%d" % i), MemoryWrite(name, outcome.key, b"1")]
        events = EventBatch(name, [NewEvent(LimitReached(limit=i), outcome.key)])
        await store.append(EventBatch(name, [NewEvent(ModelDelta(text="x"))]))
        written = {"nodes": [node], "blobs": blobs, "outcome": outcome, "run": run, "turn": turn, "memory": memory}
        await store.commit(Commit(**written, events=events))
        print(name, i, flush=True)

async def main(url):
    store = open_store(url)
    await store.open()
    await asyncio.gather(*[talk(store, Chain(store), f"c{n}") for n in range(5)])

asyncio.run(main(sys.argv[1]))
"""


async def test_a_killed_writer_leaves_whole_commits(database: Database):
    url = database.other_process(also_proxied=True)
    written: dict[str, int] = {}
    for _ in range(3):
        with subprocess.Popen([sys.executable, "-c", WRITER, url], stdout=subprocess.PIPE, text=True) as writer:
            assert writer.stdout is not None
            lines = [writer.stdout.readline() for _ in range(60)]
            writer.kill()
            lines += writer.stdout.readlines()
        # A writer that ends by itself was not killed in the middle of its writes: its last lines are "".
        assert all(line.endswith("\n") for line in lines[:60]), "the writer ended before it was killed"
        written |= {name: int(count) for name, count in (line.split() for line in lines if line.endswith("\n"))}

    store = await database.open()
    while True:
        rows = await store.list_runs()
        try:
            return await _check_whole(store, rows, written)
        except AssertionError:
            if await store.list_runs() == rows:  # else a pooler has passed on the last transaction meanwhile
                raise


async def _check_whole(store: Store, rows: Sequence[RunRow], written: Mapping[str, int]) -> None:
    assert {row.context_id for row in rows} == set(written) == {f"c{n}" for n in range(5)}
    for row in rows:
        assert row.iterations >= written[row.context_id]
        assert len(await Chain(store).load(row.head)) == row.iterations
        assert row.head is not None
        last = f"{row.context_id}-{row.iterations - 1}"
        assert await store.find_outcomes([last]) == {last: row.head.encode()}
        turn = await store.get_turn(row.context_id, "turn")
        assert turn is not None
        assert turn.head == row.head
        assert await store.find_message_turn(row.context_id, last) == "turn"
        memory = await store.recall_all(row.context_id, limit=10_000)
        assert memory.pop("count") == b"%d" % row.iterations
        assert set(memory) == {f"{row.context_id}-{i}" for i in range(row.iterations)}
        events = await store.read_events(row.context_id, limit=10_000)
        assert [event.seq for event in events] == list(range(1, len(events) + 1))
        limits = [json.loads(event.body)["limit"] for event in events if event.type == "limit"]
        assert limits == list(range(1, row.iterations + 1))
