"""Many runs that wait for approval at workers whose caches have room for few of them, and two approvers who race."""

from __future__ import annotations

import asyncio
import json
import sys
import time
import uuid
from asyncio.subprocess import PIPE, Process
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from temporalio.client import Client as TemporalClient
from temporalio.client import WorkflowHandle

from benchmarks.contestants import BASE, Contestant
from benchmarks.lab import Lab, read_cpu
from benchmarks.measures import Figures, Scale
from benchmarks.output import Progress
from benchmarks.parking import AGENT, AMOUNT, FLOOR
from perdure import Client, Run
from perdure.types.interface import PENDING_ATTRIBUTE

APPROVERS = {"ana": 3, "bea": 0}
"""With which the one changes every third call's arguments."""
CACHE = 100
"""Workflows that the worker keeps by default."""
_WARM = 20
"""Runs before the memory is looked at: what is loaded once is not the runs'."""
_STARTS = 20
"""Runs that are started, or awaited, at once."""
_STUCK_SECONDS = 180
"""Without a run more that waits."""
_LINE = 64 * 1024 * 1024

_Handle = Run | WorkflowHandle[Any, Any]
"""A run of perdure, or of the floor."""


async def parked(lab: Lab, _: Sequence[Contestant], scale: Scale) -> Figures:
    """``scale.parked`` runs at one worker on SQLite, and at two on PostgreSQL; and as many of a bare workflow. Raises
    ``AssertionError`` unless every call ran once with what its winner had approved."""
    file = lab.root / "parked.db"
    place = (lab.client, lab.address, lab.root, scale.parked, scale.parked_cache)
    figures = {
        BASE: await park(*place, read_server_cpu=lab.read_server_cpu, floor=True),
        "perdure": await park(*place, read_server_cpu=lab.read_server_cpu),
    }
    figures["perdure"]["store_bytes"] = file.stat().st_size / scale.parked
    if lab.postgres is not None:
        before = await lab.postgres.size("parked")
        url = lab.postgres.url("parked")

        async def look() -> dict[str, int]:
            assert lab.postgres is not None
            return await lab.postgres.size("parked")

        mine = await park(*place, store_url=url, workers=2, look=look, read_server_cpu=lab.read_server_cpu)
        figures["perdure-pg"] = mine
        mine["parked_bytes"] = (mine["bytes"] - before["bytes"]) / scale.parked
        mine["store_bytes"] = ((await look())["bytes"] - before["bytes"]) / scale.parked
    for mine in figures.values():
        check(mine)
    return figures


async def park(
    temporal: TemporalClient,
    address: str,
    root: Path,
    count: int,
    cache: int | None = None,
    *,
    store_url: str = "",
    workers: int = 1,
    look: Callable[[], Awaitable[dict[str, int]]] | None = None,
    read_server_cpu: Callable[[], float] | None = None,
    floor: bool = False,
) -> dict[str, Any]:
    """What ``count`` parked runs take, and what came of every call: ``decided`` by approver, ``ran`` by order.

    ``cache``: workflows that a worker keeps, ``CACHE`` by default. The store is a new SQLite file, if none is named.
    ``look`` reads figures of its server when all are parked, ``read_server_cpu`` the CPU seconds of Temporal's.
    ``floor``: runs of the bare workflow instead.
    """
    cache = cache or CACHE
    queue = f"parked-{uuid.uuid4().hex[:8]}"
    ledger = root / f"{queue}.jsonl"
    store_url = store_url or f"sqlite:///{root}/parked.db"
    client = Client(temporal, store_url=store_url, task_queue=queue, actor="parker")
    role = "floor-" if floor else ""
    async with AsyncExitStack() as stack:
        start = (f"{role}worker", address, queue, store_url, str(ledger), str(cache))
        processes = [await stack.enter_async_context(open_process(*start)) for _ in range(workers)]
        await _warm_up(client, floor=floor)
        before = await _read_memory(processes)
        began, few = time.perf_counter(), count // 5
        runs = await _start(client, range(few), floor=floor)
        await _until_waiting(client, few)
        with_few = await _read_memory(processes)
        runs += await _start(client, range(few, count), floor=floor)
        await _until_waiting(client, count)
        parked_s = time.perf_counter() - began
        after = await _read_memory(processes)
        seen = await look() if look is not None else {}
        print(f"{count} parked in {parked_s:.0f} s, {before} to {after} KB, {seen}", file=sys.stderr, flush=True)

        def read_cpus() -> dict[str, float]:
            server = {} if read_server_cpu is None else {"server_ms": 1000 * read_server_cpu() / count}
            return {"worker_ms": 1000 * sum(read_cpu(worker.pid) for worker in processes) / count, **server}

        burst = await _burst(role, address, queue, store_url, lambda: _finish(runs), read_cpus)
        at_the_end = await _read_memory(processes)
    await client.close()
    ran = [json.loads(line) for line in ledger.read_text().splitlines()]
    return {
        "count": count,
        "workers": workers,
        "cache": cache,
        "before_kb": before,
        "after_kb": after,
        "end_kb": at_the_end,
        "few_kb": with_few,
        "kb_per_run": (after - with_few) / (count - few),
        "park_s": parked_s,
        **burst,
        "ran": [one for one in ran if int(one[0]) >= 0],
        **seen,
    }


def check(figures: dict[str, Any]) -> None:
    """Every call ran once, with what its winner had approved, and the loser heard who that was."""
    ran = Counter(order for order, _ in figures["ran"])
    amounts = dict(figures["ran"])
    decided = figures["decided"]
    assert set(ran) == {str(n) for n in range(figures["count"])}, "every call ran"
    assert set(ran.values()) == {1}, f"once: {ran.most_common(3)}"
    for order, amount in amounts.items():
        won = {name: mine[order]["won"] for name, mine in decided.items() if "won" in mine.get(order, {})}
        assert list(won.values()) == [amount], f"call {order} ran with {amount}, approved was {won}"
        (winner,) = won
        edits = APPROVERS[winner]
        assert amount == (1 if edits and int(order) % edits == 0 else AMOUNT), f"{winner} approved {amount} of {order}"
        lost = [mine[order]["lost"] for mine in decided.values() if "lost" in mine.get(order, {})]
        assert all(f"already approved by {winner}" in text for text in lost), lost


async def _warm_up(client: Client, *, floor: bool) -> None:
    runs = await _start(client, range(-_WARM, 0), floor=floor)
    await _until_waiting(client, _WARM)
    if floor:
        for run in runs:
            handle = client.temporal.get_workflow_handle(run.id)
            await handle.execute_update("decide", {"order": "-1", "amount": AMOUNT, "by": "parker"})
    else:
        for one in await client.approvals(agent=AGENT):
            await one.approve()
    await _finish(runs)
    await _until_waiting(client, 0)


async def _start(client: Client, orders: range, *, floor: bool) -> list[_Handle]:
    limit = asyncio.Semaphore(_STARTS)
    progress = Progress("started", len(orders))

    async def start(order: int) -> _Handle:
        name, queue = f"{client.task_queue}.{order}", client.task_queue
        async with limit:
            run: _Handle
            if floor:
                run = await client.temporal.start_workflow(FLOOR, str(order), id=name, task_queue=queue)
            else:
                run = await client.start(AGENT, str(order), id=name)
            progress.step()
            return run

    return list(await asyncio.gather(*map(start, orders)))


async def _finish(runs: list[_Handle]) -> None:
    """Await their ends, few at once: ten thousand long polls keep a development server from its other work."""
    limit = asyncio.Semaphore(_STARTS)
    progress = Progress("ended", len(runs))

    async def finish(run: _Handle) -> None:
        async with limit:
            await run.result()
            progress.step()

    await asyncio.gather(*map(finish, runs))


async def _until_waiting(client: Client, count: int) -> None:
    """Until one query finds so many runs that wait. Raises ``RuntimeError`` if nothing changes any more."""
    query = f"{PENDING_ATTRIBUTE} > 0 AND TaskQueue = '{client.task_queue}' AND ExecutionStatus = 'Running'"
    progress = Progress("waiting", count)
    last, changed_at = -1, time.monotonic()
    while (now := (await client.temporal.count_workflows(query)).count) != count:
        if now != last:
            last, changed_at = now, time.monotonic()
        if time.monotonic() - changed_at > _STUCK_SECONDS:
            raise RuntimeError(f"{now} of {count} runs wait, as {_STUCK_SECONDS} s ago: {query}")
        progress.set(now)
        await asyncio.sleep(0.1 if count <= 1000 else 1)  # to count ten thousand takes PostgreSQL a while


async def _burst(
    role: str,
    address: str,
    queue: str,
    store_url: str,
    finish: Callable[[], Awaitable[None]],
    read_cpus: Callable[[], dict[str, float]],
) -> dict[str, Any]:
    """What the approvers, each a process of its own, say came of it (``decided``), how many seconds the slower one
    looked (for all by Temporal, for the first page of the store, for all its pages), both decided, and it took until
    ``finish``; and what ``read_cpus`` grew by meanwhile.

    They look at the same moment, which asks no worker (docs/decisions/023): two queries at once for a run that a worker
    has to load while its cache is full can leave it stuck there, whatever its workflow (temporalio 1.35).
    """
    decided: dict[str, Any] = {}

    async def approve(name: str, process: Process) -> None:
        decided[name] = json.loads(await _ask(process))

    first, second = APPROVERS
    async with (
        open_process(f"{role}approver", address, queue, store_url, first, str(APPROVERS[first])) as one,
        open_process(f"{role}approver", address, queue, store_url, second, str(APPROVERS[second])) as other,
    ):
        looked = [json.loads(line) for line in await asyncio.gather(_ask(one), _ask(other))]
        slower = map(max, zip(*looked, strict=True))
        seconds = dict(zip(("inbox_s", "page_s", "listed_s"), slower, strict=False))  # the floor has no store
        began, cpus = time.perf_counter(), read_cpus()
        await asyncio.gather(approve(first, one), approve(second, other))
        seconds["burst_s"] = time.perf_counter() - began
        await finish()
        seconds["done_s"] = time.perf_counter() - began
        return {"decided": decided, **seconds, **{name: ms - cpus[name] for name, ms in read_cpus().items()}}


@asynccontextmanager
async def open_process(*arguments: str) -> AsyncIterator[Process]:
    """A process of ``parking.py`` for the length of the block."""
    command = (sys.executable, "-m", "benchmarks.parking", *arguments)
    process = await asyncio.create_subprocess_exec(*command, stdin=PIPE, stdout=PIPE, limit=_LINE)
    try:
        assert process.stdout is not None
        if (line := await process.stdout.readline()) != b"ready\n":
            raise RuntimeError(f"a process did not start: {line!r}")
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def _read_memory(workers: Sequence[Process]) -> int:
    """Memory of all workers, in KB."""
    return sum([int(await _ask(worker)) for worker in workers])


async def _ask(process: Process) -> bytes:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(b"\n")
    line = await process.stdout.readline()
    if not line:
        raise RuntimeError("a process ended")
    return line
