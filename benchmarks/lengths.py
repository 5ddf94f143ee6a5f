"""What an iteration costs in a conversation that becomes long, beside a floor that posts the same bytes."""

from __future__ import annotations

import asyncio
import statistics
import uuid
from collections.abc import Sequence

from benchmarks.contestants import BASE, Contestant
from benchmarks.lab import Lab
from benchmarks.measures import TINY, Figures, Scale

_WINDOW = 50
"""Iterations over which CPU is taken."""
_ROUNDS = 3
"""Of sessions of a few hundred iterations, each with the floor behind it; of longer ones there is one."""
_SHORT = 500
"""Iterations up to which a session takes a few seconds, so that there are rounds of it."""
_POLL = 0.02


async def lengths(lab: Lab, who: Sequence[Contestant], scale: Scale) -> Figures:
    """Worker CPU per iteration at the end of sessions of each length, by that of a floor whose requests are as long,
    measured right behind it; and the worker's memory there."""
    figures: Figures = {}
    for one in who:
        if one.workflow_name != "AgentWorkflow" or one.postgres:
            continue
        mine = figures[one.name] = {}
        for length in scale.lengths:
            rounds = [await _run_pair(lab, one, length) for _ in range(_ROUNDS if length <= _SHORT else 1)]
            mine[str(length)] = {
                "cpu_ms": statistics.median(cpu for cpu, _ in rounds),
                "floor_ms": statistics.median(floor for _, floor in rounds),
                "cpu_ratio": statistics.median(cpu / floor for cpu, floor in rounds),
                "memory_kb": lab.workers[one.name].memory_kb(),
            }
    return figures


async def _run_pair(lab: Lab, one: Contestant, length: int) -> tuple[float, float]:
    """CPU in the last window of a session of that length, and in that of the floor: a machine is not equally fast for
    minutes."""
    handle = await lab.start(one, length + 1, TINY)
    cpu_ms = await _take_window(lab, one, length - _WINDOW, length)
    await handle.result()
    return cpu_ms, statistics.median([await _run_floor(lab, length) for _ in range(_ROUNDS)])


async def _run_floor(lab: Lab, length: int) -> float:
    task = {"first": length - _WINDOW - 10, "last": length + 1, "size": TINY}
    handle = await lab.client.start_workflow(
        "FloorLong", task, id=f"{BASE}-{uuid.uuid4().hex}", task_queue=f"bench-{BASE}"
    )
    cpu_ms = await _take_window(lab, None, length - _WINDOW, length)
    await handle.result()
    return cpu_ms


async def _take_window(lab: Lab, one: Contestant | None, first: int, last: int) -> float:
    """Milliseconds of CPU per iteration between two lengths of the conversation."""
    worker = lab.workers[BASE if one is None else one.name]
    begun = await _wait_for_length(lab, range(first, last))
    before = await worker.cpu()
    ended = await _wait_for_length(lab, range(last, last + _WINDOW))
    return (await worker.cpu() - before) / (ended - begun) * 1000


async def _wait_for_length(lab: Lab, lengths: range) -> int:
    """Replies in the latest request, once these are one of ``lengths``."""
    while True:
        if (said := int(await lab.get("/said"))) in lengths:
            return said
        await asyncio.sleep(_POLL)
