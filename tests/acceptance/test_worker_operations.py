"""What operators see of ``perdure worker``: its probes, its drain and what it says at its start."""

from __future__ import annotations

import asyncio
import http.client
import json
import re
import signal
import uuid
from collections.abc import AsyncIterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from perdure import Agent, Worker, tool
from perdure.testing import ScriptedProvider, call
from tests.support.cli import Cli, Command
from tests.support.engine import Engine
from tests.support.faults import taken_away
from tests.support.postgres import run_server
from tests.support.wait import eventually

pytestmark = pytest.mark.server

AGENTS = """
import asyncio, os, time
from pathlib import Path
from perdure import Agent, tool
from perdure.testing import ScriptedProvider, call

FOLDER = Path(os.environ["CLI_TEST_FOLDER"])

def enter(name):
    with (FOLDER / "entered").open("a") as entered:
        entered.write(name + " ")

def answer(*names):
    def reply(request):
        results = [result.content for message in request.messages for result in message.tool_results]
        return "; ".join(results) if results else [call(name) for name in names]
    return ScriptedProvider(reply)

@tool(timeout=300)
async def stubborn() -> str:
    "Does not end when it is cancelled."
    enter("stubborn")
    while True:
        try:
            await asyncio.sleep(1000)
        except asyncio.CancelledError:
            pass

@tool(timeout=300)
def blocking() -> str:
    "Blocks its thread."
    enter("blocking")
    time.sleep(1000)

@tool(timeout=300, idempotent=True)
def gate() -> str:
    "Waits until the test opens it."
    enter("gate")
    while not (FOLDER / "open").exists():
        time.sleep(0.02)
    return "passed"

@tool(needs_approval=True)
def refund() -> str:
    "Refunds."
    enter("refund")
    return "refunded"

class Blocking:
    "A provider that blocks a thread of the worker's own event loop."

    async def stream(self, request):
        enter("provider")
        await asyncio.to_thread(time.sleep, 1000)
        yield None

blocked = Agent("blocked", Blocking())
opener = Agent("opener", answer("gate"), tools=[gate])
stuck = Agent("stuck", answer("stubborn", "blocking"), tools=[stubborn, blocking])
clerk = Agent("clerk", answer("refund"), tools=[refund])
keyless = Agent("keyless", "openai:gpt-5", tools=[gate])
"""


@pytest.fixture
async def cli(temporal_address: str, tmp_path: Path) -> AsyncIterator[Cli]:
    """Commands in a folder with ``agents.py``, on a task queue and a store of this test's own."""
    (tmp_path / "agents.py").write_text(AGENTS)
    env = {
        "TEMPORAL_ADDRESS": temporal_address,
        "PERDURE_HOME": str(tmp_path / "home"),
        "PERDURE_STORE_URL": f"sqlite:///{tmp_path / 'store.db'}",
        "PERDURE_TASK_QUEUE": f"operations-{uuid.uuid4().hex[:8]}",
        "CLI_TEST_FOLDER": str(tmp_path),
    }
    cli = Cli(tmp_path, env)
    try:
        yield cli
    finally:
        await cli.close()


def named(name: str) -> str:
    return f"{name}-{uuid.uuid4().hex[:8]}"


async def start_worker(cli: Cli, *options: str, file: str = "agents.py") -> tuple[Command, str]:
    """A worker that serves, and the address of its health endpoint."""
    worker = await cli.spawn("worker", file, "--health", "0", *options)
    line = await worker.until("health: http://")
    return worker, line.removeprefix("health: http://").partition("/")[0]


def probe(address: str, path: str) -> tuple[int, dict[str, Any]]:
    host, _, port = address.rpartition(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=10)
    connection.request("GET", path)
    response = connection.getresponse()
    return response.status, json.loads(response.read())


async def until_status(address: str, status: int) -> dict[str, Any]:
    """The readiness report once it has this status."""

    def read() -> dict[str, Any] | None:
        answered, report = probe(address, "/readyz")
        return report if answered == status else None

    report = await eventually(read, what=f"readiness {status}")
    assert report is not None
    return report


async def until_entered(cli: Cli, *names: str) -> None:
    entered = cli.folder / "entered"
    await eventually(lambda: entered.exists() and set(names) <= set(entered.read_text().split()), what=str(names))


@contextmanager
def replaced_by_a_directory(path: Path) -> Any:
    with taken_away(path):
        path.mkdir()
        try:
            yield
        finally:
            path.rmdir()


@pytest.mark.slow
async def test_probes_follow_the_store_and_the_drain(cli: Cli) -> None:
    worker, address = await start_worker(cli)
    report = await until_status(address, 200)
    assert report["worker"]["task_queue"] == cli.env["PERDURE_TASK_QUEUE"]
    with replaced_by_a_directory(cli.folder / "store.db"):
        report = await until_status(address, 503)
        failing = {name: check for name, check in report["checks"].items() if check["state"] == "failing"}
        assert list(failing) == ["store"]
        assert "is a directory" in failing["store"]["reason"]
        assert probe(address, "/healthz")[0] == 200, "a restart would not help"
    await until_status(address, 200)

    run_id = named("gate")
    assert (await cli("run", "opener", "Go", "--id", run_id, "--detach")).code == 0
    await until_entered(cli, "gate")
    worker.send(signal.SIGTERM)
    report = await until_status(address, 503)
    assert report["checks"]["draining"]["reason"] == "the worker drains, 1 call in progress"
    assert probe(address, "/healthz")[0] == 200, "a liveness probe must not cut the drain short"
    begun = await worker.until("draining: 1 call may end within 630 s")
    assert re.search(rf"gate of run {run_id} \(at most (2\d\d|300) s more\)", begun)
    (cli.folder / "open").touch()
    assert await worker.ended() == 0
    await start_worker(cli)
    assert (await cli("wait", run_id)).out == "passed\n"
    assert (cli.folder / "entered").read_text() == "gate ", "its call has ended in the drain"


@pytest.mark.slow
async def test_a_drain_that_takes_too_long_ends_and_the_runs_go_on(cli: Cli) -> None:
    worker, _ = await start_worker(cli, "--drain", "0.5")
    run_id = named("stuck")
    assert (await cli("run", "stuck", "Go", "--id", run_id, "--detach")).code == 0
    await until_entered(cli, "stubborn", "blocking")
    worker.send(signal.SIGTERM)
    assert await worker.ended() == 0
    cancelled = re.search(r"the drain's 0.5 s are over, and 2 calls are cancelled: (.*)", worker.output)
    assert cancelled is not None
    for name in ("stubborn", "blocking"):
        assert f"{name} of run {run_id}" in cancelled[1]
    next_worker, _ = await start_worker(cli)
    done = await cli("wait", run_id)
    assert done.code == 0
    assert done.out.count("OutcomeUnknown") == 2, done.out
    assert sorted((cli.folder / "entered").read_text().split()) == ["blocking", "stubborn"], "called once each"
    next_worker.send(signal.SIGTERM)
    assert await next_worker.ended() == 0


@pytest.mark.slow
async def test_a_process_that_cannot_end_is_ended(cli: Cli) -> None:
    """The end of an event loop waits for its threads: on Python 3.11 without a limit."""
    worker, _ = await start_worker(cli, "--drain", "0.5")
    run_id = named("blocked")
    assert (await cli("run", "blocked", "Go", "--id", run_id, "--detach")).code == 0
    await until_entered(cli, "provider")
    worker.send(signal.SIGTERM)
    assert await worker.ended() == 1
    assert f"calls are cancelled: model call of run {run_id}" in worker.output.replace("call is", "calls are")
    assert "ended by force, as it did not stop in time; the runs go on with the next worker" in worker.output


STARTING = """
import asyncio, os, time
from contextlib import asynccontextmanager
from pathlib import Path
from perdure import Agent

def enter(name):
    (Path(os.environ["CLI_TEST_FOLDER"]) / "entered").write_text(name)

@asynccontextmanager
async def lifespan():
    enter("lifespan")
    await asyncio.Event().wait()
    yield

clerk = Agent("clerk", "openai:gpt-5")
"""


async def test_a_signal_ends_a_worker_that_waits_for_its_lifespan(cli: Cli) -> None:
    (cli.folder / "starting.py").write_text(STARTING)
    worker = await cli.spawn("worker", "starting.py", "--health", "0")
    await until_entered(cli, "lifespan")
    worker.send(signal.SIGTERM)
    assert await worker.ended() == 0, worker.output
    assert "Traceback" not in worker.output


async def test_a_signal_ends_a_worker_that_imports_its_agents(cli: Cli) -> None:
    """By a handler of the worker's own: process 1 of a container ignores a signal that has none."""
    (cli.folder / "starting.py").write_text(STARTING + "enter('import')\ntime.sleep(1000)\n")
    worker = await cli.spawn("worker", "starting.py")
    await until_entered(cli, "import")
    worker.send(signal.SIGTERM)
    assert await worker.ended() == 128 + signal.SIGTERM


async def test_a_second_signal_ends_at_once_and_nothing_is_lost(cli: Cli) -> None:
    worker, _ = await start_worker(cli)
    run_id = named("gate")
    assert (await cli("run", "opener", "Go", "--id", run_id, "--detach")).code == 0
    await until_entered(cli, "gate")
    worker.send(signal.SIGTERM)
    await worker.until("SIGTERM: finishing what runs")
    worker.send(signal.SIGTERM)
    assert await worker.ended() == 128 + signal.SIGTERM
    assert "ended at once; the runs go on with the next worker" in worker.output
    (cli.folder / "open").touch()
    await start_worker(cli)
    assert (await cli("wait", run_id)).out == "passed\n"
    assert (cli.folder / "entered").read_text() == "gate gate ", "an idempotent tool is called again"


async def test_a_worker_says_at_its_start_what_it_serves_and_what_is_missing(cli: Cli) -> None:
    first, _ = await start_worker(cli)
    clerk, opener = named("clerk"), named("opener")
    for agent, run_id in (("clerk", clerk), ("opener", opener)):
        assert (await cli("run", agent, "Go", "--id", run_id, "--detach")).code == 0
    await until_entered(cli, "gate")
    await first.until(
        "warning: models: openai:gpt-5: No API key: OPENAI_API_KEY is not set. (agents: keyless) → Set it"
    )

    async def waits() -> bool:
        return clerk in (await cli("approvals")).out

    await eventually(waits, every=0.2)
    first.send(signal.SIGTERM)
    (cli.folder / "open").touch()
    await first.ended()
    assert re.search(
        r"agents: blocked \(no tools\), clerk \(1 tool\), keyless \(1 tool\), opener \(1 tool\), stuck \(2 tools\)\n",
        first.output,
    )
    assert re.search(
        r"versions: perdure \S+, Python 3\.\S+, Temporal server \S+, store schema 0002 \(SQLite", first.output
    )
    assert "open runs:" not in first.output

    # Code without the tool that a run waits for. (The other agent's run has ended, or waits for its own agent.)
    lacking = AGENTS.replace("tools=[refund]", "tools=[]").replace("opener = Agent(", "Agent(")
    (cli.folder / "lacking.py").write_text(lacking)
    (cli.folder / "open").unlink()
    second, _ = await start_worker(cli, file="lacking.py")
    await second.until(
        f"warning: open runs: run {clerk} waits in a call of tool refund, which agent clerk no longer has"
    )
    assert (await cli("approve", clerk)).code == 0
    done = await cli("wait", clerk)
    assert (done.code, "refund" in done.out) == (0, True), "the model is told that there is no such tool"
    assert "refund" not in (cli.folder / "entered").read_text()


async def test_runs_of_an_agent_that_the_new_code_lacks_are_named(cli: Cli) -> None:
    first, _ = await start_worker(cli)
    run_id = named("clerk")
    assert (await cli("run", "clerk", "Go", "--id", run_id, "--detach")).code == 0

    async def waits() -> bool:
        return run_id in (await cli("approvals")).out

    await eventually(waits, every=0.2)
    first.send(signal.SIGTERM)
    await first.ended()
    (cli.folder / "lacking.py").write_text(AGENTS.replace("clerk = Agent(", "Agent("))
    second, _ = await start_worker(cli, file="lacking.py")
    queue = cli.env["PERDURE_TASK_QUEUE"]
    line = await second.until(f"warning: open runs: run {run_id} of queue {queue} is open, and its agent clerk is not")
    assert "→ Serve it by a worker of this queue" in line
    second.send(signal.SIGTERM)
    await second.ended()
    await start_worker(cli)
    assert (await cli("approve", run_id)).code == 0
    assert (await cli("wait", run_id)).out == "refunded\n", "nothing was lost meanwhile"


async def test_a_port_in_use_ends_the_worker_with_the_way_out(cli: Cli) -> None:
    _, address = await start_worker(cli)
    second = await cli("worker", "agents.py", "--health", address)
    assert second.code == 4
    assert f"the health endpoint cannot listen on {address}" in second.err
    assert "PERDURE_HEALTH_ADDRESS" in second.err
    cli.env["PERDURE_HEALTH_ADDRESS"] = "nonsense"
    third = await cli("worker", "agents.py")
    assert (third.code, "'nonsense' is not of the form [HOST:]PORT" in third.err) == (4, True)


async def test_a_run_that_cannot_be_replayed_is_reported(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    @tool(needs_approval=True)
    def pay() -> str:
        """Pay."""
        return "paid"

    agent = Agent(
        "payer", ScriptedProvider(lambda r: "Done." if r.messages[-1].role == "tool" else call("pay")), tools=[pay]
    )
    client = await engine.client()
    with monkeypatch.context() as other_code:
        other_code.setattr("perdure.workflows.host.Host.upsert_memo", lambda *_: None)
        async with Worker(client, [agent], drain=0.0):
            run = await client.start("payer", "Go.")

            async def asks() -> bool:
                return bool((await run.status()).approvals)

            await eventually(asks)
    async with Worker(client, [agent], drain=0.0, health_address="0") as worker:
        await run.handle.signal("probe")

        async def reported() -> Any:
            _, report = await asyncio.to_thread(probe, str(worker.health_address), "/readyz")
            tasks = report["checks"]["workflow_tasks"]
            return tasks if tasks["failures"] else None

        tasks = await eventually(reported)
        assert (tasks["state"], tasks["failing_runs"], tasks["last"]["run_id"]) == ("warning", 1, run.id)
        assert "TMPRL1100" in tasks["last"]["reason"]
    await run.terminate("it cannot go on")


@pytest.mark.postgres
async def test_readiness_follows_a_postgres_that_stops(engine: Engine) -> None:
    agent = Agent("greeter", ScriptedProvider(lambda _: "Hello."))
    with run_server() as postgres:
        engine.store_url = postgres.url
        client = await engine.client()
        async with Worker(client, [agent], drain=0.0, health_address="0") as worker:
            address = str(worker.health_address)

            async def until(status: int) -> dict[str, Any]:
                async def read() -> dict[str, Any] | None:
                    answered, report = await asyncio.to_thread(probe, address, "/readyz")
                    return report if answered == status else None

                report = await eventually(read, what=f"readiness {status}")
                assert report is not None
                return report

            await until(200)
            await asyncio.to_thread(postgres.stop)
            report = await until(503)
            assert report["checks"]["store"]["state"] == "failing"
            assert report["checks"]["temporal"]["state"] == "ok"
            assert (await asyncio.to_thread(probe, address, "/healthz"))[0] == 200
            await asyncio.to_thread(postgres.start)
            await until(200)
