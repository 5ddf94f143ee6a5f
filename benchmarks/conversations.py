"""Many conversations that are open on two workers, some of which wait for an answer at each moment; then many replies
that are streamed at once."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Sequence
from typing import Any

from benchmarks.contestants import CONTESTANTS, Contestant
from benchmarks.events import spread
from benchmarks.lab import Lab, WorkerProcess
from benchmarks.measures import TINY, Figures, Scale
from benchmarks.output import Progress
from perdure import Client

WORKERS = 2


async def conversations(lab: Lab, _: Sequence[Contestant], scale: Scale) -> Figures:
    """Turns a second and how long one takes, by a model that takes ``scale.model_ms``; memory, connections and bytes;
    how old the pieces of ``scale.replies`` replies are that a follower in another process reads while they come. Raises
    ``AssertionError`` unless each message is answered."""
    if lab.postgres is None:
        return {}
    one = CONTESTANTS["perdure-pg"]
    queue = "conversations"
    workers = [await lab.start_worker(one, queue=queue) for _ in range(WORKERS)]
    client = Client(lab.client, store_url=lab.store_url(one), task_queue=queue, actor="bench")
    try:
        await asyncio.gather(*(worker.ready() for worker in workers))
        await _talk(client, 2, 2, scale)
        memory = sum(worker.memory_kb() for worker in workers)
        before = await lab.postgres.size(one.name)
        cpu = sum([await worker.cpu() for worker in workers])
        began = time.perf_counter()
        ages = await _talk(client, scale.conversations, scale.turns, scale)
        seconds = time.perf_counter() - began
        turns = scale.conversations * scale.turns
        assert len(ages) == turns
        after = await lab.postgres.size(one.name)
        figures: dict[str, Any] = {
            "count": scale.conversations,
            "talking": scale.talking,
            "turns_s": turns / seconds,
            "cpu_ms": (sum([await worker.cpu() for worker in workers]) - cpu) * 1000 / turns,
            "before_kb": memory,
            "after_kb": sum(worker.memory_kb() for worker in workers),
            "bytes": (after["bytes"] - before["bytes"]) / turns,
            "connections": after["connections"],
            "server_kb": after["server_kb"],
        }
        return {one.name: figures | spread(ages) | {"streams": await _stream(lab, one, queue, workers, scale)}}
    finally:
        await client.close()
        await asyncio.gather(*(worker.kill() for worker in workers))


async def _stream(
    lab: Lab, one: Contestant, queue: str, workers: Sequence[WorkerProcess], scale: Scale
) -> dict[str, Any]:
    assert lab.postgres is not None
    async with lab.follower(one, queue=queue) as follower:
        await follower.ages(2, "say 5 every 20")
        cpu = sum([await worker.cpu() for worker in workers])
        began = time.perf_counter()
        following = asyncio.create_task(follower.ages(scale.replies, f"say {scale.pieces} every {scale.reply_ms}"))
        await asyncio.sleep(scale.pieces * scale.reply_ms / 2000)  # in the middle of the replies
        size = await lab.postgres.size(one.name)
        ages = await following
        pieces = scale.replies * scale.pieces
        assert len(ages) == pieces, "each piece reaches its follower"
        return spread(ages) | {
            "replies": scale.replies,
            "every_ms": scale.reply_ms,
            "seconds": time.perf_counter() - began,
            "piece_cpu_ms": (sum([await worker.cpu() for worker in workers]) - cpu) * 1000 / pieces,
            "connections": size["connections"],
            "server_kb": size["server_kb"],
        }


async def _talk(client: Client, count: int, turns: int, scale: Scale) -> list[float]:
    """How long each answer took, in milliseconds. The conversations stay open."""
    places = asyncio.Semaphore(scale.talking)
    ages: list[float] = []

    async def say(name: str) -> None:
        async with places:
            began = time.perf_counter()
            turn = await client.send("bench", f"until 0 size {TINY} wait {scale.model_ms}", id=name)
            assert (await turn.result()).content == "Done."
            ages.append((time.perf_counter() - began) * 1000)
            progress.step()

    progress = Progress("turns", count * turns)
    names = [f"talk-{uuid.uuid4().hex}" for _ in range(count)]
    for _ in range(turns):
        await asyncio.gather(*map(say, names))
    return ages
