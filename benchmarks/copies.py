"""How fast a store is copied from SQLite into PostgreSQL, and back: every row is read, written, and compared."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from typing import Any

from benchmarks.contestants import Contestant
from benchmarks.lab import Lab
from benchmarks.measures import Figures, Scale
from benchmarks.output import Progress
from perdure.ports.store import Blob, Commit, EventBatch, NewEvent, Node, Outcome, RunRow
from perdure.store import open_store
from perdure.store.administration import copy_store
from perdure.store.chain import hash_node
from perdure.types.events import ModelCompleted, ToolCompleted, ToolStarted

_ITERATIONS = 10
_TEXT = 2000
"""Bytes of a message."""
_LARGE = 100_000
"""Bytes of a blob; each tenth run has one."""


async def copies(lab: Lab, _: Sequence[Contestant], scale: Scale) -> Figures:
    """Rows and megabytes a second of copies of ``scale.copied`` runs, with their comparison."""
    if lab.postgres is None:
        return {}
    source, back = (f"sqlite:///{lab.root}/{name}.db" for name in ("copied", "back"))
    target = lab.postgres.url("copied")
    await _fill(source, scale.copied)
    return {"perdure-pg": {"into": await _copy(source, target), "back": await _copy(target, back)}}


async def _copy(source: str, target: str) -> dict[str, float]:
    began = time.perf_counter()
    result = await copy_store(source, target, report=lambda _: None)
    seconds = time.perf_counter() - began
    rows, size = (sum(getattr(table, name) for table in result.tables.values()) for name in ("rows", "bytes"))
    return {"rows": rows, "bytes": size, "seconds": seconds, "rows_s": rows / seconds, "mb_s": size / 1e6 / seconds}


async def _fill(url: str, runs: int) -> None:
    """A store of so many runs of 10 iterations with texts of 2 kB, as workers write them."""
    store = open_store(url)
    await store.open()
    numbers, progress = random.Random(0), Progress("runs written", runs)
    for n in range(runs):
        context_id, head = f"run-{n}", None
        for iteration in range(_ITERATIONS):
            text = numbers.randbytes(_TEXT // 2).hex()
            body = b'[{"role": "assistant", "parts": [{"text": "%s"}]}]' % text.encode()
            node = Node(hash_node(head, body), head, body)
            head = node.hash
            await store.commit(_build_commit(context_id, iteration, node, text))
            progress.set(n)
        if n % 10 == 0:
            await store.commit(Commit(blobs=[Blob.from_content(numbers.randbytes(_LARGE))]))
    await store.close()


def _build_commit(context_id: str, iteration: int, node: Node, text: str) -> Commit:
    call_id = f"call-{iteration}"
    events: list[Any] = [
        ModelCompleted(text=text),
        ToolStarted(call_id=call_id, name="work"),
        ToolCompleted(call_id=call_id, name="work", content=text[:64]),
    ]
    return Commit(
        nodes=[node],
        outcome=Outcome(f"{context_id}/{iteration}", "model", node.body),
        run=RunRow(context_id, "bench", "bench", node.hash, "running", iteration),
        events=EventBatch(context_id, [NewEvent(event) for event in events]),
    )
