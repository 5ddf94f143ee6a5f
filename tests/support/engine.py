"""The engine under test: a task queue and a store of its own on the session's Temporal server."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, cast

import pytest
from temporalio.client import Client as TemporalClient
from temporalio.client import WorkflowHistory

from perdure import Agent, Client, Worker
from perdure.errors import ServerUnreachableError
from perdure.ports.test_seams import Point
from perdure.testing import kill_at
from perdure.worker.replay import fetch_run_histories, list_run_ids, replay_histories
from tests.support import forkserver
from tests.support.clock import shift_clock
from tests.support.histories import idle_tasks
from tests.support.ledger import Ledger
from tests.support.postgres import Databases
from tests.support.wait import eventually

ON_BOTH_STORES = pytest.mark.parametrize(
    "store_kind", ["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)], indirect=True
)
"""Mark of a test of an ``engine`` that runs once on each kind of store."""

ROOT = Path(__file__).parent.parent.parent


class WorkerProcess:
    """A worker in a process of its own: ``python -m tests.workers.<module>``. It prints ``ready`` when it serves."""

    def __init__(self, module: str, env: dict[str, str], log: Path) -> None:
        self.log = log
        self._ready = log.with_suffix(".ready")
        self._ready.unlink(missing_ok=True)
        with log.open("ab") as output, Path(os.devnull).open() as nothing:
            self.process = forkserver.fork(
                ("-m", f"tests.workers.{module}"),
                cwd=ROOT,
                env={**os.environ, **env, "TEST_READY": str(self._ready)},
                descriptors=(nothing.fileno(), output.fileno(), output.fileno()),
                new_session=True,
            )

    async def ready(self) -> WorkerProcess:
        """Until it serves. Raises ``RuntimeError`` with its output if it ends before."""

        def up() -> bool:
            if self.process.poll() is not None:
                raise RuntimeError(f"the worker ended: {self.log.read_text()}")
            return self._ready.exists()

        await eventually(up, deadline=60, what="a worker process that serves")
        return self

    async def gone(self) -> int:
        """Until it has ended by itself; its exit code."""
        return await asyncio.to_thread(self.process.wait_blocking, 60)

    async def kill(self) -> None:
        """SIGKILL, and wait until it is gone."""
        self.process.send_signal(signal.SIGKILL)
        await asyncio.to_thread(self.process.wait_blocking)

    async def stop(self) -> int:
        """SIGTERM, and wait until it has drained; its exit code."""
        self.process.send_signal(signal.SIGTERM)
        return await asyncio.to_thread(self.process.wait_blocking, 60)


class Engine:
    """A fresh task queue and store. Workers and clients that it makes use both."""

    def __init__(self, address: str, folder: Path) -> None:
        self.address = address
        self.folder = folder
        self.task_queue = f"test-{uuid.uuid4().hex[:8]}"
        self.store_path = folder / "store.db"
        self.store_url: str | None = f"sqlite:///{self.store_path}"
        self.databases: Databases | None = None
        """Where stores are made instead of in files (``keep_stores_in``)."""
        self.ledger = Ledger(folder / "ledger.jsonl")
        self._clients: list[Client] = []
        self._processes: list[WorkerProcess] = []
        self._temporal: TemporalClient | None = None

    def keep_stores_in(self, databases: Databases | None) -> None:
        """Keep the store in a new database of a PostgreSQL server, and so those of engines beside this one."""
        self.databases = databases
        if databases is not None:
            self.store_url = databases.make()

    async def temporal(self) -> TemporalClient:
        """A plain Temporal client, one per test."""
        if self._temporal is None:
            self._temporal = await TemporalClient.connect(self.address)
        return self._temporal

    async def client(self, *, store: bool = True, **options: Any) -> Client:
        """A client on this task queue, closed at the end of the test."""
        url = self.store_url if store else None
        client = Client(await self.temporal(), store_url=url, task_queue=self.task_queue, actor="tests", **options)
        self._clients.append(client)
        return client

    @asynccontextmanager
    async def served(self, *agents: Agent, **options: Any) -> AsyncIterator[Client]:
        """A worker in this process for the length of the block; yields a client."""
        client = await self.client()
        async with Worker(client, agents, **{"drain": 1.0, **options}):
            yield client

    async def process(self, module: str, **env: str) -> WorkerProcess:
        """A worker process (tests/workers/<module>.py) that serves; killed at the end of the test."""
        started = self.spawn(module, **env)
        return await started.ready()

    def spawn(self, module: str, **env: str) -> WorkerProcess:
        """The same, without waiting for it."""
        settings = {
            "TEMPORAL_ADDRESS": self.address,
            "PERDURE_STORE_URL": str(self.store_url),
            "PERDURE_TASK_QUEUE": self.task_queue,
            "TEST_LEDGER": str(self.ledger.path),
            **env,
        }
        process = WorkerProcess(module, settings, self.folder / f"worker-{len(self._processes)}.log")
        self._processes.append(process)
        return process

    def forget_processes(self) -> None:
        """Leave out the replay of histories at the end: this version of perdure is not to read them."""
        self._processes.clear()

    async def close(self) -> None:
        """Kill processes, close clients. Every history that a worker process had a part in is replayed: a kill must not
        leave one behind that no worker can ever go on with."""
        for process in self._processes:
            if process.process.poll() is None:
                await process.kill()
        if self._processes:
            with suppress(ServerUnreachableError):  # killed by the test, too; the engine after it has the same queue
                await self._replay()
            self._processes.clear()
        for client in self._clients:
            await client.close()

    async def _replay(self) -> None:
        await assert_replayable(await self.client(store=False), self.folder / "unreplayable")


async def assert_replayable(client: Client, kept: Path) -> int:
    """Replay every history of the client's task queue; those that do not replay are written to the folder ``kept``.
    Returns how many there are."""
    histories: dict[str, WorkflowHistory] = {}
    for run_id in await list_run_ids(client, f"TaskQueue = '{client.task_queue}'"):
        histories |= await fetch_run_histories(client, run_id)
    report = await replay_histories(histories, data_converter=client.temporal.data_converter)
    for one in report.failed:
        kept.mkdir(exist_ok=True)
        (kept / f"{one.name.replace('/', '_')}.json").write_text(histories[one.name].to_json())
    assert not report.failed, f"{report}\nthe histories are in {kept}"
    for name, history in histories.items():
        idle = [task for task in idle_tasks(history.events) if task.received]
        assert not idle, f"workflow tasks of {name} have no command: {idle}"
    return len(histories)


async def side_by_side(engine: Engine, scenarios: Mapping[str, Callable[[Engine], Awaitable[object]]]) -> None:
    """Run all scenarios at once, each with a task queue and a store of its own on the server of ``engine``.

    What follows a kill is mostly waiting, for a heartbeat that does not come. Raises an ``ExceptionGroup`` of those
    that failed; notes say which.
    """

    async def run(name: str, scenario: Callable[[Engine], Awaitable[object]]) -> None:
        folder = engine.folder / re.sub(r"\W+", "-", name)
        folder.mkdir()
        own = Engine(engine.address, folder)
        own.keep_stores_in(engine.databases)
        try:
            try:
                await scenario(own)
            finally:
                await own.close()
        except asyncio.CancelledError:  # of the test's time
            print(f"scenario that had not ended: {name}")
            raise
        except Exception as error:
            error.add_note(f"scenario: {name}")
            raise

    ended = await asyncio.gather(*(run(*one) for one in scenarios.items()), return_exceptions=True)
    failed = [error for error in ended if isinstance(error, Exception)]
    if failed:
        raise ExceptionGroup(f"{len(failed)} of {len(scenarios)} scenarios failed", failed)


def run_worker(agents: Iterable[Agent], **options: Any) -> None:
    """Main of a worker process: connect by the environment, serve, say ``ready``. ``options`` are ``Worker``'s.

    With ``TEST_KILL_AT`` it kills itself at that named point, the first time in this test; with ``TEST_CLOCK_SECONDS``
    its perdure has a clock that is wrong by as much.
    """
    if point := os.environ.get("TEST_KILL_AT"):
        kill_at(cast(Point, point), once=f"{os.environ['TEST_LEDGER']}.killed")
    if seconds := os.environ.get("TEST_CLOCK_SECONDS"):
        shift_clock(float(seconds))

    async def main() -> None:
        client = await Client.connect()
        async with Worker(client, agents, **options):
            Path(os.environ["TEST_READY"]).touch()
            stop = asyncio.Event()
            asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
            await stop.wait()
        await client.close()

    asyncio.run(main())
