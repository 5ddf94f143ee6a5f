"""What is measured of live text: how old it is when it comes, and what it costs to write it."""

from __future__ import annotations

import asyncio
import math
import time
import uuid
from collections.abc import Sequence
from typing import Any

from benchmarks.contestants import UNSTREAMED, Contestant
from benchmarks.lab import Lab
from benchmarks.measures import Figures, Scale, in_rounds, ratio

PACE = 20
"""Milliseconds from one piece of a streamed reply to the next."""
_SHARES = {"p50": 0.5, "p95": 0.95, "p99": 0.99, "max": 1.0}


def following(who: Sequence[Contestant]) -> list[Contestant]:
    """Those of whom this is measured: a floor has no events, and an inline tool changes nothing of them."""
    return [one for one in who if one.name in ("perdure", "perdure-pg")]


async def events(lab: Lab, who: Sequence[Contestant], scale: Scale) -> Figures:
    """From the moment a piece of a reply leaves the model to ``run.events()`` in another process, in milliseconds.

    One reply at a time, and many at once.
    """
    figures: Figures = {}
    for one in following(who):
        mine: dict[str, Any] = {}
        async with lab.follower(one) as follower:
            await follower.ages(1, f"say 5 every {PACE}")  # warms up
            for streams in dict.fromkeys((1, scale.streams)):
                ages = [age for _ in range(scale.stream_rounds) for age in await follower.ages(streams, _order(scale))]
                mine[str(streams)] = spread(ages)
        figures[one.name] = mine
    return figures


def spread(values: Sequence[float]) -> dict[str, float]:
    """How many there are, two percentiles and the largest."""
    ordered = sorted(values)
    at = {name: ordered[math.ceil(share * len(ordered)) - 1] for name, share in _SHARES.items()}
    return {"pieces": len(ordered), **at}


def _order(scale: Scale) -> str:
    return f"say {scale.pieces} every {PACE}"


async def streaming(lab: Lab, who: Sequence[Contestant], scale: Scale) -> Figures:
    """A worker that writes replies while they come, by one that writes them when they are whole, in the same rounds; on
    SQLite.

    One run and many, as elsewhere, with replies that are whole at once; and replies that take a while, many at once.
    """
    figures: Figures = {}
    for one in [one for one in following(who) if not one.postgres]:
        if UNSTREAMED.name not in lab.workers:
            await (await lab.start_worker(UNSTREAMED)).ready()
        pair = (one, UNSTREAMED)
        single = await in_rounds(lab, pair, scale.rounds, runs=1, each=scale.iterations)
        many = await in_rounds(lab, pair, scale.run_rounds, runs=scale.runs, each=scale.each)
        slow: dict[str, list[tuple[float, float]]] = {each.name: [] for each in pair}
        for number in range(scale.stream_rounds):
            for each in pair[:: 1 if number % 2 else -1]:
                slow[each.name].append(await _measure_slow(lab, each, scale))
        figures[one.name] = {
            name: {"wall_ratio": ratio(rounds, pair, 0), "cpu_ratio": ratio(rounds, pair, 1)}
            for name, rounds in (("single", single), ("concurrent", many), ("slow", slow))
        }
    return figures


async def _measure_slow(lab: Lab, one: Contestant, scale: Scale) -> tuple[float, float]:
    """Wall and worker CPU seconds of replies that are streamed at once."""
    worker = lab.workers[one.name]
    cpu, began = await worker.cpu(), time.perf_counter()
    await asyncio.gather(*(reply(lab, one, scale) for _ in range(scale.streams)))
    return time.perf_counter() - began, await worker.cpu() - cpu


async def reply(lab: Lab, one: Contestant, scale: Scale) -> None:
    """A run whose reply comes in pieces."""
    order = {"agent": "bench", "message": _order(scale)}
    name = f"{one.name}-{uuid.uuid4().hex}"
    await lab.client.execute_workflow(one.workflow_name, order, id=name, task_queue=lab.queue(one))
