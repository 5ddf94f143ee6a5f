"""The HTTP API beside a bare Starlette: cheap reads, silent followers, followers of replies, the latency of a turn."""

from __future__ import annotations

import asyncio
import json
import resource
import statistics
import sys
import time
import uuid
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import aiohttp

from benchmarks.contestants import CONTESTANTS, Contestant
from benchmarks.events import PACE, spread
from benchmarks.lab import Lab, WorkerProcess
from benchmarks.measures import TINY, Figures, Scale
from perdure import Client

NAME = "perdure"
CONNECTIONS = 16
IDLE_SECONDS = 20.0
"""How long silent followers are watched: longer than the time between two keep-alives."""
EACH = 10
"""Followers of each reply that is streamed."""


class WebProcess(WorkerProcess):
    """A process that answers HTTP."""

    def __init__(self, process: asyncio.subprocess.Process, url: str, http: aiohttp.ClientSession) -> None:
        super().__init__(process)
        self.url = url
        self.http = http

    async def read(self, path: str) -> bytes:
        """Answer of a GET. Raises for an error."""
        async with self.http.get(self.url + path) as answer:
            answer.raise_for_status()
            return await answer.read()

    async def post(self, path: str, body: Any) -> Any:
        """Answer of a POST, from JSON. Raises for an error."""
        async with self.http.post(self.url + path, json=body) as answer:
            answer.raise_for_status()
            return await answer.json()


async def web(lab: Lab, _: Sequence[Contestant], scale: Scale) -> Figures:
    """One process of perdure's API and one bare one, with the same client, one after the other."""
    _allow_connections(2 * (scale.web_idle + scale.web_active))
    one = CONTESTANTS[NAME]
    queue = "web"
    worker = await lab.start_worker(one, queue=queue)
    async with AsyncExitStack() as stack:
        stack.push_async_callback(worker.kill)
        await worker.ready()
        client = Client(lab.client, store_url=lab.store_url(one), task_queue=queue, actor="bench")
        stack.push_async_callback(client.close)
        served = await stack.enter_async_context(serve(lab.address, lab.store_url(one), queue))
        bare = await stack.enter_async_context(serve())
        session = f"web-{uuid.uuid4().hex}"
        turn = await client.send("bench", f"until 3 size {TINY}", id=session)
        await turn.result()
        reads = {
            "session": f"/v1/sessions/{session}",
            "turn": f"/v1/sessions/{session}/turns/{turn.task_id}",
            "events": f"/v1/sessions/{session}/events?limit=20",
            "page": f"/v1/sessions/{session}/events?limit=5",
            "list": "/v1/sessions?limit=20",
        }
        figures: dict[str, Any] = {"reads": {}}
        for name, path in reads.items():
            size = len(await served.read(path))
            rates = await _alternate(
                lambda path=path: _count_reads(served, path, scale.web_reads),  # type: ignore[misc]
                lambda size=size: _count_reads(bare, f"/echo?size={size}", scale.web_reads),  # type: ignore[misc]
            )
            figures["reads"][name] = {"bytes": size, "per_s": rates[0], "ratio": rates[0] / rates[1]}
        figures["idle"] = await _hold_silent(served, [f"/v1/sessions/{session}/events"] * scale.web_idle)
        async with serve(lab.address, lab.store_url(one), queue) as other:  # whose memory is not that of those before
            await other.read("/v1/sessions?limit=1")
            figures["idle_apart"] = await _hold_silent(other, await _open_sessions(client, scale.web_apart))
        figures["idle_bare"] = await _hold_silent(bare, ["/silence"] * scale.web_idle)
        figures["active"] = await _hear(served, client, scale)
        figures["active_bare"] = await _hear_bare(bare, scale)
        figures["turn"] = await _time_turns(served, client, scale)
        return {NAME: figures}


def _allow_connections(count: int) -> None:
    """Raise the limit of open files, also that of the processes that are started from here. Raises ``SystemExit``."""
    wanted = count + 500
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < wanted:
        raise SystemExit(f"{wanted:,} files must be open, and {hard:,} may be: ulimit -Hn, or fewer --web-idle")
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


@asynccontextmanager
async def serve(*arguments: str) -> AsyncIterator[WebProcess]:
    """A process of ``web_server.py`` for the length of the block."""
    command = [sys.executable, "-m", "benchmarks.web_server", *arguments]
    process = await asyncio.create_subprocess_exec(*command, stdin=PIPE, stdout=PIPE)
    connector = aiohttp.TCPConnector(limit=0)
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=60)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout, read_bufsize=2**20) as http:
        assert process.stdout is not None
        port = int(await process.stdout.readline())
        served = WebProcess(process, f"http://127.0.0.1:{port}", http)
        try:
            yield served
        finally:
            await served.kill()


async def _alternate(*measures: Callable[[], Awaitable[float]]) -> list[float]:
    """Medians of three rounds, in turn, after one that warms up."""
    rounds = [[await one() for one in measures] for _ in range(4)][1:]
    return [statistics.median(values) for values in zip(*rounds, strict=True)]


async def _count_reads(served: WebProcess, path: str, count: int) -> float:
    """Reads a second over ``CONNECTIONS`` connections."""
    left = iter(range(count))

    async def work() -> None:
        for _ in left:
            await served.read(path)

    began = time.perf_counter()
    await asyncio.gather(*(work() for _ in range(CONNECTIONS)))
    return count / (time.perf_counter() - began)


async def _open_sessions(client: Client, count: int) -> list[str]:
    """Paths of the events of so many sessions that wait for their first message."""
    runs = [await client.start("bench", None, mode="session") for _ in range(count)]
    return [f"/v1/sessions/{run.id}/events" for run in runs]


async def _hold_silent(served: WebProcess, paths: Sequence[str]) -> dict[str, float]:
    """Memory and CPU of followers to whom nothing is said but that the stream is alive."""
    before = served.memory_kb()
    async with AsyncExitStack() as stack:
        headers = {"Accept": "text/event-stream"}
        for first in range(0, len(paths), 50):
            opening = (served.http.get(served.url + path, headers=headers) for path in paths[first : first + 50])
            for answer in await asyncio.gather(*opening):
                stack.push_async_callback(_close, answer)
                answer.raise_for_status()
        began, cpu = time.perf_counter(), await served.cpu()
        await asyncio.sleep(IDLE_SECONDS)
        used = (await served.cpu() - cpu) / (time.perf_counter() - began)
        memory = served.memory_kb()
    return {"count": len(paths), "kb_each": (memory - before) / len(paths), "cpu_percent": used * 100}


async def _close(answer: aiohttp.ClientResponse) -> None:
    answer.close()


async def _hear(served: WebProcess, client: Client, scale: Scale) -> dict[str, float]:
    """How old pieces are when they come to followers by HTTP, in milliseconds."""

    async def one() -> list[float]:
        run = await client.start("bench", f"say {scale.pieces} every {PACE}")
        path = f"/v1/sessions/{run.id}/events"
        found = await asyncio.gather(*(_follow(served, path) for _ in range(EACH)))
        return [age for ages in found for age in ages]

    return await _measure_ages(served, one, scale.web_active)


async def _hear_bare(bare: WebProcess, scale: Scale) -> dict[str, float]:
    async def one() -> list[float]:
        path = f"/say?pieces={scale.pieces}&every={PACE}"
        found = await asyncio.gather(*(_follow(bare, path) for _ in range(EACH)))
        return [age for ages in found for age in ages]

    return await _measure_ages(bare, one, scale.web_active)


async def _measure_ages(
    served: WebProcess, one: Callable[[], Awaitable[list[float]]], followers: int
) -> dict[str, float]:
    await one()  # warms up
    cpu = await served.cpu()
    found = await asyncio.gather(*(one() for _ in range(max(followers // EACH, 1))))
    ages = [age for ages in found for age in ages]
    return {"followers": followers, "cpu_us": (await served.cpu() - cpu) * 1e6 / len(ages), **spread(ages)}


async def _follow(served: WebProcess, path: str) -> list[float]:
    """Ages of the pieces of one reply, until its stream ends."""
    seen: dict[str, float] = {}
    async with served.http.get(served.url + path, headers={"Accept": "text/event-stream"}) as answer:
        answer.raise_for_status()
        async for line in answer.content:
            if line.startswith(b"data: "):
                now = time.monotonic_ns()
                event = json.loads(line[6:])
                if event["type"] in ("model.delta", "model.completed", "delta"):
                    for piece in event.get("text", "").split():
                        seen.setdefault(piece, (now - int(piece)) / 1e6)
    return list(seen.values())


async def _time_turns(served: WebProcess, client: Client, scale: Scale) -> dict[str, float]:
    """A turn by HTTP beside one by the Python client, in turn, in milliseconds."""
    session = f"web-turns-{uuid.uuid4().hex}"
    order = f"until 0 size {TINY}"
    await (await client.send("bench", order, id=session)).result()
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(scale.web_turns):
        began = time.perf_counter()
        sent = await served.post(f"/v1/sessions/{session}/events", {"type": "message", "content": order})
        turn = json.loads(await served.read(f"/v1/sessions/{session}/turns/{sent['task_id']}?wait=30"))
        assert turn["state"] == "completed", turn
        times[0].append((time.perf_counter() - began) * 1000)
        began = time.perf_counter()
        await (await client.send("bench", order, id=session)).result()
        times[1].append((time.perf_counter() - began) * 1000)
    http, python = map(statistics.median, times)
    return {"http_ms": http, "python_ms": python, "added_ms": http - python}
