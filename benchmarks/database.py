"""What PostgreSQL does for an iteration, and how workers that share it add up."""

from __future__ import annotations

import asyncio
import os
import statistics
import time
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.contestants import Contestant
from benchmarks.events import reply
from benchmarks.lab import Lab
from benchmarks.measures import TINY, Figures, Scale

RUNS_A_SLOT = 2
"""Runs at once for each slot of a worker, so that none is empty while a run is between two activities."""


async def database(lab: Lab, who: Sequence[Contestant], scale: Scale) -> Figures:
    """Many runs at once: transactions, CPU of the server and bytes per iteration."""
    figures: Figures = {}
    for one in _on_postgres(who):
        assert lab.postgres is not None
        await _run_all(lab, one, lab.queue(one), runs=2, each=2)
        before = await lab.postgres.count(one.name)
        await _run_all(lab, one, lab.queue(one), runs=scale.runs, each=scale.each)
        mine: dict[str, Any] = dict((await lab.postgres.count(one.name)).per(before, scale.runs * scale.each))
        figures[one.name] = mine | await _stream(lab, one, scale) | {"settings": await lab.postgres.settings()}
    return figures


async def scaling(lab: Lab, who: Sequence[Contestant], scale: Scale) -> Figures:
    """Iterations a second of 1, 2 and more workers with few slots, whose model takes its time; the queue is full. By
    what a model call takes, in milliseconds, and the number of workers."""
    figures: Figures = {}
    for one in _on_postgres(who):
        figures[one.name] = {}
        for model_ms in (scale.model_ms, scale.long_model_ms):
            mine = {str(count): await _measure_workers(lab, one, count, model_ms, scale) for count in scale.workers}
            first = mine[str(scale.workers[0])]["iterations_s"]
            for measured in mine.values():
                measured["times"] = measured["iterations_s"] / first
            figures[one.name][str(model_ms)] = mine
    return figures


async def _stream(lab: Lab, one: Contestant, scale: Scale) -> dict[str, float]:
    """Replies that are streamed at once, by piece; each is a run of its own."""
    assert lab.postgres is not None
    pieces = scale.streams * scale.pieces
    before = await lab.postgres.count(one.name)
    cpu = await lab.workers[one.name].cpu()
    await asyncio.gather(*(reply(lab, one, scale) for _ in range(scale.streams)))
    cpu = await lab.workers[one.name].cpu() - cpu
    counted = (await lab.postgres.count(one.name)).per(before, pieces)
    return {
        "piece_transactions": counted["transactions"],
        "piece_cpu_ms": counted["server_cpu_ms"],
        "piece_wal": counted["wal_bytes"],
        "piece_worker_cpu_ms": cpu * 1000 / pieces,
    }


async def _measure_workers(lab: Lab, one: Contestant, count: int, model_ms: int, scale: Scale) -> dict[str, Any]:
    assert lab.postgres is not None
    queue = f"scaling-{one.name}-{model_ms}-{count}"
    workers = [await lab.start_worker(one, queue=queue, activities=scale.slots) for _ in range(count)]
    try:
        await asyncio.gather(*(worker.ready() for worker in workers))
        runs = RUNS_A_SLOT * scale.slots * count
        await _run_all(lab, one, queue, runs=runs, each=1)
        cpu, busy = sum([await worker.cpu() for worker in workers]), _read_busy_seconds()
        async with lab.postgres.watch_locks(one.name) as waiting:
            seconds = await _run_all(lab, one, queue, runs=runs, each=scale.each, wait=model_ms)
        cpu, busy = sum([await worker.cpu() for worker in workers]) - cpu, _read_busy_seconds() - busy
        iterations = runs * scale.each
        return {
            "iterations_s": iterations / seconds,
            "cpu_ms": cpu * 1000 / iterations,
            "lock_waits": statistics.mean(waiting),
            "busy": busy / seconds / (os.cpu_count() or 1),
        }
    finally:
        await asyncio.gather(*(worker.kill() for worker in workers))


async def _run_all(lab: Lab, one: Contestant, queue: str, *, runs: int, each: int, wait: int = 0) -> float:
    """Seconds that ``runs`` at once take, of ``each`` iterations."""
    start = one.start(each, TINY, None)
    start["message"] += f" wait {wait}"

    async def run() -> None:
        name = f"{one.name}-{uuid.uuid4().hex}"
        await lab.client.execute_workflow(one.workflow_name, start, id=name, task_queue=queue)

    began = time.perf_counter()
    await asyncio.gather(*(run() for _ in range(runs)))
    return time.perf_counter() - began


def _read_busy_seconds() -> float:
    """CPU seconds of this machine that were not idle, all CPUs and all processes together."""
    user, nice, system, _, _, irq, softirq, *_ = map(int, Path("/proc/stat").read_text().split("\n")[0].split()[1:])
    return (user + nice + system + irq + softirq) / os.sysconf("SC_CLK_TCK")


def _on_postgres(who: Sequence[Contestant]) -> list[Contestant]:
    return [one for one in who if one.postgres]
