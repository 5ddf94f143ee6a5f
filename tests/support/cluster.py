"""``make cluster``: what a cluster is, on one machine and without containers.

Temporal's production server, its four roles as four processes, on a PostgreSQL server; another PostgreSQL server with
the store; three workers; two clients. Workers and clients have a home each and share no file: each reaches Temporal
and the store over links of its own (``worker-0-temporal``, ``client-1-store``), on which toxiproxy makes faults.

``python -m tests.support.cluster`` runs it until Ctrl-C. Nothing is left of it then, nor after ``kill -9``.
"""

from __future__ import annotations

import asyncio
import os
import shlex
import shutil
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from tests.support.engine import WorkerProcess
from tests.support.go_programs import UnavailableError, find_programs
from tests.support.ledger import Ledger
from tests.support.ports import find_free_ports
from tests.support.postgres import PostgresServer
from tests.support.process_guard import ProcessGuard
from tests.support.temporal_roles import TemporalRoles
from tests.support.toxiproxy import Link, Toxiproxy

WORKERS = ("worker-0", "worker-1", "worker-2")
CLIENTS = ("client-0", "client-1")
TASK_QUEUE = "cluster"
TOOL_SECONDS = "0.5"
"""What a tool takes: some run in a worker whenever it is killed."""


class Cluster:
    """All processes of a cluster, and the links between them."""

    def __init__(self, folder: Path, programs: Path, model_url: str) -> None:
        self.folder = folder
        self.guard = ProcessGuard(folder)
        self.databases = {name: _make_postgres(folder / name) for name in ("store", "temporal-database")}
        self.workers: dict[str, WorkerProcess] = {}
        self.toxiproxy = Toxiproxy(programs / "toxiproxy", folder / "toxiproxy.log")
        self.guard.add(self.toxiproxy.process.pid)
        self.temporal = TemporalRoles(programs, folder / "temporal", self.databases["temporal-database"], self.guard)
        self._model_url = model_url
        self._unfinished: set[asyncio.Task[None]] = set()

    @property
    def links(self) -> dict[str, Link]:
        """By name: that of a worker or client, and ``temporal`` or ``store``."""
        return self.toxiproxy.links

    async def start(self) -> None:
        """Start everything but clients, and wait until it serves."""
        await asyncio.gather(*(self._finish(self._create_database, name) for name in self.databases))
        await self.toxiproxy.ready()
        await self.temporal.start()
        for name in (*WORKERS, *CLIENTS):
            self.machine(name).mkdir()
            await self.toxiproxy.link(f"{name}-temporal", self.temporal.port)
            await self.toxiproxy.link(f"{name}-store", self.databases["store"].port)
        await asyncio.gather(*map(self.start_worker, WORKERS))

    def machine(self, name: str) -> Path:
        """The folder of a worker or client; no other knows it."""
        return self.folder / name

    def environment(self, name: str) -> dict[str, str]:
        """The settings of a worker or client."""
        return {
            "TEMPORAL_ADDRESS": f"127.0.0.1:{self.links[f'{name}-temporal'].port}",
            "PERDURE_STORE_URL": f"postgresql://postgres@127.0.0.1:{self.links[f'{name}-store'].port}/postgres",
            "PERDURE_TASK_QUEUE": TASK_QUEUE,
            "PERDURE_HOME": str(self.machine(name) / "home"),
            "PERDURE_USER": name,
        }

    def ledger(self, name: str) -> Ledger:
        """The effects of a worker, or what a client was told."""
        return Ledger(self.machine(name) / "ledger.jsonl")

    def spawn(self, module: str, name: str, **env: str) -> WorkerProcess:
        """Start a process of tests/workers on the machine ``name``."""
        settings = {**self.environment(name), "TEST_LEDGER": str(self.ledger(name).path), **env}
        process = WorkerProcess(module, settings, self.machine(name) / f"{module}.log")
        self.guard.add(process.process.pid)
        return process

    async def start_worker(self, name: str) -> None:
        """Start a worker, and again until it serves, as a supervisor does: it ends where Temporal is away."""
        while True:
            settings = {"TEST_MODEL_URL": self._model_url, "TEST_TOOL_SECONDS": TOOL_SECONDS}
            worker = self.workers[name] = self.spawn("cluster_worker", name, **settings)
            try:
                await worker.ready()
            except RuntimeError:
                self.guard.remove(worker.process.pid)
                await asyncio.sleep(0.5)
            else:
                return

    async def kill_worker(self, name: str) -> None:
        """SIGKILL, and wait until it is gone."""
        worker = self.workers[name]
        await worker.kill()
        self.guard.remove(worker.process.pid)

    async def restart_database(self, name: str) -> None:
        """An immediate stop of a PostgreSQL server, and a start that recovers from its log."""
        await self._finish(self._stop_database, name)
        await self._finish(self._start_database, name)

    async def close(self) -> None:
        """End all processes and remove the folder."""
        await asyncio.gather(*self._unfinished, return_exceptions=True)
        try:
            for server in self.databases.values():  # a PostgreSQL server that is killed leaves shared memory behind
                await asyncio.to_thread(server.stop, signal.SIGQUIT)
        finally:
            await asyncio.to_thread(self.guard.close)
        self.toxiproxy.process.wait()
        self.temporal.wait_for_end()
        for worker in self.workers.values():
            await asyncio.to_thread(worker.process.wait_blocking, 60)

    async def _finish(self, work: Callable[[str], None], name: str) -> None:
        """Run ``work`` in a thread. It is done when the cluster closes, also where its caller is cancelled: a server
        that starts later would stay."""
        task = asyncio.ensure_future(asyncio.to_thread(work, name))
        self._unfinished.add(task)
        task.add_done_callback(self._unfinished.discard)
        await asyncio.shield(task)

    def _create_database(self, name: str) -> None:
        self.databases[name].create()
        self._start_database(name)

    def _start_database(self, name: str) -> None:
        server = self.databases[name]
        server.spawn()
        self.guard.add(server.pid)
        server.wait_for_answer()

    def _stop_database(self, name: str) -> None:
        server = self.databases[name]
        pid = server.pid
        server.stop(signal.SIGQUIT)
        self.guard.remove(pid)


def _make_postgres(folder: Path) -> PostgresServer:
    """A server with the durability of production, in a folder of its user."""
    folder.mkdir(mode=0o755)
    if os.geteuid() == 0:
        shutil.chown(folder, "nobody")
    server = PostgresServer(folder, {"fsync": "on", "autovacuum": "on"})
    (server.port,) = find_free_ports(1)
    return server


@asynccontextmanager
async def run_cluster(programs: Path, model_url: str) -> AsyncIterator[Cluster]:
    """A cluster whose agents call the model at ``model_url``; ``programs`` is that of ``find_programs``."""
    folder = Path(tempfile.mkdtemp(prefix="perdure-cluster-", dir="/var/tmp"))  # PostgreSQL's user can reach it
    folder.chmod(0o755)
    cluster = Cluster(folder, programs, model_url)
    try:
        await cluster.start()
        yield cluster
    except Exception as error:
        error.add_note(f"the logs of Temporal end with:\n{cluster.temporal.read_logs()}")
        raise
    finally:
        await cluster.close()


async def _serve(programs: Path) -> None:
    """Run a cluster until a signal, and say how to use it."""
    from tests.servers.model_server import OpenAIServer
    from tests.support.cluster_model import ClusterModel

    task = asyncio.current_task()
    assert task is not None
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    async with OpenAIServer(ClusterModel(), record=False) as model, run_cluster(programs, model.base_url) as cluster:
        print(f"Temporal   {cluster.temporal.address}")
        for name, server in cluster.databases.items():
            print(f"{name:<10} {server.url}")
        print(f"links      {cluster.toxiproxy.url}/proxies")
        print(f"logs       {cluster.folder}")
        for name in CLIENTS:
            settings = cluster.machine(name) / "env"
            lines = (f"export {key}={shlex.quote(value)}\n" for key, value in cluster.environment(name).items())
            settings.write_text("".join(lines))
            print(f"{name}   . {settings}")
        print('then       .venv/bin/perdure run counting "run 1"   (Ctrl-C here ends the cluster)', flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    try:
        with suppress(asyncio.CancelledError):
            asyncio.run(_serve(find_programs()))
    except UnavailableError as error:
        sys.exit(f"make cluster: {error}")
