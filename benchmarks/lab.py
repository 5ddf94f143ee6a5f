"""The bench itself: a dev server, a fake model and worker processes of its own, all gone afterwards."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import sys
import tempfile
import urllib.request
import uuid
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from temporalio.client import Client, WorkflowHandle

from benchmarks.contestants import CONTESTANTS, Contestant
from benchmarks.floor import ACTIVITIES_VARIABLE
from benchmarks.postgres import BenchPostgres, open_postgres
from perdure.embedded.binary import ensure_binary
from perdure.embedded.home import Home, current_home
from perdure.embedded.server import ensure_server, stop_server

_LINE = 64 * 1024 * 1024
"""Bytes that a process may say in one line."""


def read_cpu(pid: int) -> float:
    """CPU seconds of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class WorkerProcess:
    """One worker in a process of its own."""

    def __init__(self, process: Process) -> None:
        self._process = process

    async def ready(self) -> None:
        """Until it polls."""
        assert self._process.stdout is not None
        line = await self._process.stdout.readline()
        if line != b"ready\n":
            raise RuntimeError(f"a process did not start: {line!r}")

    async def cpu(self) -> float:
        """CPU seconds of all its threads so far."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(b"\n")
        return float(await self._process.stdout.readline())

    def memory_kb(self) -> int:
        """Memory that it has, in KB."""
        lines = Path(f"/proc/{self._process.pid}/status").read_text().splitlines()
        return int(next(line.split()[1] for line in lines if line.startswith("VmRSS")))

    async def kill(self) -> None:
        """SIGKILL."""
        if self._process.returncode is None:
            self._process.kill()
        await self._process.wait()


class FollowerProcess(WorkerProcess):
    """Starts runs and follows them, in a process of its own."""

    async def ages(self, runs: int, message: str) -> list[float]:
        """How old every piece of text was when it came, in milliseconds, of so many runs at once."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps([runs, message]).encode() + b"\n")
        line = await self._process.stdout.readline()
        if not line:
            raise RuntimeError("a follower ended")
        return list(json.loads(line))


@dataclass(slots=True)
class Lab:
    """``model_url``: the fake model's base URL."""

    client: Client
    address: str
    model_url: str
    root: Path
    server_pid: int
    """The dev server's."""
    postgres: BenchPostgres | None = None
    """Only with a contestant whose store it is."""
    workers: dict[str, WorkerProcess] = field(default_factory=dict)

    def queue(self, contestant: Contestant) -> str:
        """Its task queue."""
        return f"bench-{contestant.name}"

    def store_url(self, contestant: Contestant) -> str:
        """Its store."""
        if not contestant.postgres:
            return f"sqlite:///{self.root}/{contestant.name}.db"
        assert self.postgres is not None, "open_lab was given its name"
        return self.postgres.url(contestant.name)

    async def start_worker(
        self, contestant: Contestant, *, queue: str | None = None, activities: int | None = None
    ) -> WorkerProcess:
        """A worker, which may not poll yet; with a ``queue`` one that the caller kills."""
        environment = {**os.environ, "OPENAI_BASE_URL": self.model_url, "OPENAI_API_KEY": "bench"}
        if activities is not None:
            environment[ACTIVITIES_VARIABLE] = str(activities)
        if contestant.is_peer:
            program, store = [str(Path(sys.prefix, "peers/bin/python")), "-m", "benchmarks.peers"], []
        else:
            program, store = [sys.executable, "-m", "benchmarks.worker"], [self.store_url(contestant)]
        process = await asyncio.create_subprocess_exec(
            *program,
            contestant.name,
            self.address,
            queue or self.queue(contestant),
            *store,
            stdin=PIPE,
            stdout=PIPE,
            env=environment,
        )
        worker = WorkerProcess(process)
        if queue is None:
            self.workers[contestant.name] = worker
        return worker

    @asynccontextmanager
    async def follower(self, contestant: Contestant, *, queue: str | None = None) -> AsyncIterator[FollowerProcess]:
        """A follower for the length of the block."""
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "benchmarks.follower",
            self.address,
            self.store_url(contestant),
            queue or self.queue(contestant),
            stdin=PIPE,
            stdout=PIPE,
            limit=_LINE,
        )
        follower = FollowerProcess(process)
        try:
            await follower.ready()
            yield follower
        finally:
            await follower.kill()

    async def start(
        self, contestant: Contestant, iterations: int, size: int, kill: str | None = None
    ) -> WorkflowHandle[Any, Any]:
        """Start a run."""
        return await self.client.start_workflow(
            contestant.workflow_name,
            contestant.start(iterations, size, kill),
            id=f"{contestant.name}-{uuid.uuid4().hex}",
            task_queue=self.queue(contestant),
        )

    def read_server_cpu(self) -> float:
        """CPU seconds of the dev server so far."""
        return read_cpu(self.server_pid)

    async def count_calls(self) -> int:
        """Model calls so far, of all contestants."""
        return int(await self.get("/calls"))

    async def get(self, path: str) -> bytes:
        """Ask the fake model."""

        def ask() -> bytes:
            with urllib.request.urlopen(self.model_url.removesuffix("/v1") + path) as answer:  # noqa: S310  # loopback
                return bytes(answer.read())

        return await asyncio.to_thread(ask)


@asynccontextmanager
async def open_lab(names: Sequence[str], *, with_postgres: bool = False) -> AsyncIterator[Lab]:
    """Everything up, with a worker for each of ``names``, for the length of the block; PostgreSQL also where one of
    them has it as its store."""
    binary = await ensure_binary(current_home().create())
    os.environ["PERDURE_TEMPORAL_CLI"] = str(binary.path)  # the server below gets a home without a cache
    async with AsyncExitStack() as stack:
        # Under the home, not /tmp: that may be memory, and a sync of the disk belongs to the figures.
        root = Path(tempfile.mkdtemp(prefix="bench-", dir=current_home().root))
        stack.callback(shutil.rmtree, root, ignore_errors=True)
        home = Home(root)
        stack.push_async_callback(stop_server, home)
        server = await ensure_server(home)
        model = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "benchmarks.mock_model", stdin=PIPE, stdout=PIPE
        )
        stack.push_async_callback(WorkerProcess(model).kill)
        assert model.stdout is not None
        url = (await model.stdout.readline()).decode().strip()
        with_postgres = with_postgres or any(CONTESTANTS[name].postgres for name in names)
        postgres = stack.enter_context(open_postgres()) if with_postgres else None
        lab = Lab(await Client.connect(server.address), server.address, url, root, server.pid, postgres)
        stack.push_async_callback(_stop_workers, lab)
        for name in names:
            await lab.start_worker(CONTESTANTS[name])
        await asyncio.gather(*(worker.ready() for worker in lab.workers.values()))
        yield lab


async def _stop_workers(lab: Lab) -> None:
    await asyncio.gather(*(worker.kill() for worker in lab.workers.values()))
