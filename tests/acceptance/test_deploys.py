"""Deploys under open runs, on a real server: versions are ramped and made current, drained and rolled back, and nothing
is lost or done twice."""

from __future__ import annotations

import asyncio
import uuid
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import Client as TemporalClient
from temporalio.common import VersioningBehavior, WorkerDeploymentVersion
from temporalio.worker import Worker as TemporalWorker
from temporalio.worker import WorkerDeploymentConfig

from perdure import Agent, Client, PerdurePlugin, Run, Worker
from perdure.client.progress import build_no_worker_error, has_poller
from perdure.errors import NoWorkerError
from perdure.testing import ScriptedProvider
from tests.support import faults
from tests.support.cli import Cli
from tests.support.deployments import Deployment, OtherVersion
from tests.support.engine import Engine, WorkerProcess
from tests.support.wait import eventually

pytestmark = pytest.mark.server

GATE = ("replay", "--open")


@dataclass
class Fleet:
    """The workers of a deployment in processes of their own, and sessions that stay open."""

    engine: Engine
    deployment: Deployment
    client: Client
    cli: Cli

    async def start(self, version: str) -> WorkerProcess:
        """A worker of that version of the agents' code."""
        env = {"TEST_VERSION": version, "TEST_FOLDER": str(self.engine.folder)}
        return await self.engine.process("deployed", **env, **self.deployment.environment(version))

    async def gate(self, version: str) -> None:
        """The check before the deploy: open runs replay, and the new code has what they need."""
        done = await self.cli(*GATE, "--worker", "tests/workers/deployed.py")
        assert done.code == 0, f"before {version}: {done.out}{done.err}"

    async def deploy(self, version: str) -> WorkerProcess:
        """The gate, a worker, and all runs to it."""
        await self.gate(version)
        worker = await self.start(version)
        await self.deployment.set_current(version)
        return worker

    async def open(self, agent: str, message: str, **options: Any) -> Run:
        """A new session."""
        run_id = f"{agent}-{uuid.uuid4().hex[:8]}"
        return await self.client.start(agent, message, id=run_id, mode="session", **options)

    async def holds(self, name: str) -> None:
        """Until a tool runs that holds ``name``."""
        await eventually(lambda: self.engine.ledger.counts("hold")[name], what=f"a tool that holds {name}")

    def release(self, name: str) -> None:
        """Have it end."""
        (self.engine.folder / name).touch()

    async def ask(self, run: Run, message: str) -> str:
        """The answer to a message, which begins with the version that gave it."""
        return (await (await run.send(message)).result()).content

    async def ask_all(self, runs: list[Run], message: str) -> list[str]:
        """The answers of all sessions to a message of their own."""
        return list(await asyncio.gather(*(self.ask(run, f"{message} {run.id}") for run in runs)))

    async def count_pinned(self, version: str) -> int:
        """Runs that only the workers of the version go on with: until there are none, it is draining."""
        query = (
            f"TemporalWorkerDeploymentVersion = '{self.deployment.name}:{version}' AND ExecutionStatus = 'Running' "
            "AND TemporalWorkflowVersioningBehavior = 'Pinned'"
        )
        return (await self.client.temporal.count_workflows(query)).count

    def check_ledger(self, **expected: int) -> None:
        """Every reply was given once, every payment made once; ``expected``: how many of what there are."""
        for what, count in expected.items():
            counts = self.engine.ledger.counts(what)
            assert set(counts.values()) == {1}, f"{what}: {counts}"
            assert len(counts) == count


@pytest.fixture
async def fleet(engine: Engine) -> AsyncIterator[Fleet]:
    env = {
        "TEMPORAL_ADDRESS": engine.address,
        "PERDURE_STORE_URL": str(engine.store_url),
        "PERDURE_TASK_QUEUE": engine.task_queue,
        "TEST_VERSION": "v0",
        "TEST_FOLDER": str(engine.folder),
        "TEST_LEDGER": str(engine.ledger.path),
    }
    cli = Cli(Path(__file__).parent.parent.parent, env)
    deployment = Deployment(engine.address, f"fleet-{uuid.uuid4().hex[:8]}")
    yield Fleet(engine, deployment, await engine.client(), cli)
    await cli.close()


async def is_waiting(run: Run) -> bool:
    return bool((await run.status()).approvals)


def versions(answers: list[str]) -> Counter[str]:
    return Counter(answer.partition(":")[0] for answer in answers)


@pytest.mark.slow
@pytest.mark.parametrize("size", [3, 40])
async def test_sessions_stay_open_across_three_deploys(fleet: Fleet, size: int) -> None:
    engine, deployment = fleet.engine, fleet.deployment
    first = await fleet.start("v1")
    await deployment.set_current("v1")
    careful = [await fleet.open("careful", f"hello {n}") for n in range(size)]
    plain = [await fleet.open("plain", f"hi {n}") for n in range(size)]
    sessions = careful + plain
    assert versions([(await run.turn().result()).content for run in sessions]) == {"v1": 2 * size}

    # A turn of each agent is in progress in the first deploy, and a call of each waits for approval.
    holding = {agent: await fleet.open(agent, f"hold {agent}") for agent in ("careful", "plain")}
    paying = {agent: await fleet.open(agent, f"pay {agent}") for agent in ("careful", "plain")}
    late = await fleet.open("careful", "pay late")
    await eventually(lambda: len(engine.ledger.entries("hold")) == 2, what="tools that run")
    for run in (*paying.values(), late):
        await eventually(lambda run=run: is_waiting(run), what="a call that waits")  # type: ignore[misc]

    await fleet.gate("v2")
    second = await fleet.start("v2")
    await deployment.set_ramping("v2", 50)
    ramped = versions(await fleet.ask_all(sessions, "ramp"))
    assert ramped.keys() <= {"v1", "v2"}
    assert sum(ramped.values()) == 2 * size
    await deployment.set_current("v2")
    assert versions(await fleet.ask_all(sessions, "two")) == {"v2": 2 * size}
    for name in holding:
        fleet.release(name)
    turns = {agent: (await run.turn().result()).content for agent, run in holding.items()}
    assert turns == {"careful": "v1: v1 held careful", "plain": "v2: v1 held plain"}
    for run in paying.values():
        await run.approve()
    turns = {agent: (await run.turn().result()).content for agent, run in paying.items()}
    assert turns == {"careful": "v1: v1 paid careful", "plain": "v2: v2 paid plain"}
    assert await fleet.ask(holding["careful"], "and now?") == "v2: and now?"

    third = await fleet.deploy("v3")
    assert versions(await fleet.ask_all(sessions, "three")) == {"v3": 2 * size}
    assert await second.stop() == 0
    # The first version is still needed: one of its turns waits for a person.
    status = await late.status()
    assert (status.version, status.version_pinned) == (f"{deployment.name}.v1", True)
    assert (await deployment.describe("v1"))["drainageInfo"]["drainageStatus"] == "draining"
    await eventually(lambda: _equals(fleet.count_pinned("v1"), 1), what="one run that is pinned")
    await late.approve()
    assert (await late.turn().result()).content == "v1: v1 paid late"
    await eventually(lambda: _equals(fleet.count_pinned("v1"), 0), what="no run that is pinned")
    assert await first.stop() == 0

    await fleet.deploy("v4")
    assert await third.stop() == 0
    everyone = [*sessions, *holding.values(), *paying.values(), late]
    assert versions(await fleet.ask_all(everyone, "four")) == {"v4": len(everyone)}
    said = await fleet.cli("show", late.id)
    assert f"on version {deployment.name}.v4" in said.out
    fleet.check_ledger(reply=2 * size * 4 + 2 * 5 + 1 + len(everyone), pay=3, hold=2)


async def _equals(count: Any, expected: int) -> bool:
    return bool(await count == expected)


@pytest.mark.slow
async def test_a_pinned_turn_takes_its_subagents_and_its_later_executions_along(fleet: Fleet) -> None:
    first = await fleet.start("v1")
    await fleet.deployment.set_current("v1")
    lead = await fleet.open("lead", "delegate child")
    # Long enough a history for the model call after the tool to come in the next execution.
    long = await fleet.open("careful", "hold long", max_history_events=11)
    own = await fleet.open("plain", "hold own", max_history_events=11)
    for name in ("child", "long", "own"):
        await fleet.holds(name)
    await fleet.start("v2")
    await fleet.deployment.set_current("v2")
    for name in ("child", "long", "own"):
        fleet.release(name)
    assert (await lead.turn().result()).content == "v1: v1: v1 held child"
    assert (await long.turn().result()).content == "v1: v1 held long"
    assert (await own.turn().result()).content == "v2: v1 held own"
    assert (await long.handle.describe()).run_id != long.handle.first_execution_run_id, "it has continued as new"
    assert versions(await fleet.ask_all([lead, long, own], "next")) == {"v2": 3}
    assert await first.stop() == 0
    fleet.check_ledger(hold=3)


@pytest.mark.slow
async def test_a_pinned_turn_whose_workers_are_gone_is_named_and_recovered(fleet: Fleet) -> None:
    first = await fleet.start("v1")
    await fleet.deployment.set_current("v1")
    paying = await fleet.open("careful", "pay bob")
    await eventually(lambda: is_waiting(paying), what="a call that waits")
    await fleet.start("v2")
    await fleet.deployment.set_current("v2")
    assert await first.stop() == 0

    async def reason() -> bool:
        status = await paying.status()
        return (status.reason or "").startswith(f"no worker answers on version {fleet.deployment.name}.v1")

    await eventually(reason, what="a status that names the version")
    said = await fleet.cli("show", paying.id)
    assert f"on version {fleet.deployment.name}.v1, pinned" in said.out
    waiting = await fleet.cli("approvals")
    assert paying.id in waiting.out, "it is in the inbox, which asks no worker"
    error = await build_no_worker_error(fleet.client, await paying.describe(), 10.0)
    name = fleet.deployment.name
    assert f"to workers of version {name}.v1, and those" in error.message
    assert error.message.endswith(f"are of version {name}.v2")

    override = ("workflow", "update-options", "--workflow-id", paying.id, "--versioning-override-behavior")
    code, output = await fleet.deployment.cli(*override, "auto_upgrade")
    assert code == 0, output
    await paying.approve()
    assert (await paying.turn().result()).content == "v2: v2 paid bob"
    code, output = await fleet.deployment.cli(*override, "unspecified")
    assert code == 0, output
    await fleet.start("v3")
    await fleet.deployment.set_current("v3")
    assert await fleet.ask(paying, "and now?") == "v3: and now?"
    fleet.check_ledger(pay=1)


@pytest.mark.slow
async def test_a_rollback_over_a_store_that_the_new_version_has_migrated(fleet: Fleet) -> None:
    engine = fleet.engine
    await fleet.start("v1")
    await fleet.deployment.set_current("v1")
    plain, careful = await fleet.open("plain", "hi"), await fleet.open("careful", "hello")
    for run in (plain, careful):
        await run.turn().result()
    second = await fleet.start("v2")
    await fleet.deployment.set_current("v2")
    # The schema of a later perdure, which has added to it; ``usable_from`` stays.
    faults.sql(engine.store_path, "UPDATE perdure_version SET version_num = '9999'")
    waiting, held = await fleet.open("plain", "pay ann"), await fleet.open("careful", "hold back")
    await eventually(lambda: is_waiting(waiting), what="a call that waits")
    await fleet.holds("back")
    assert versions(await fleet.ask_all([plain, careful], "two")) == {"v2": 2}

    await fleet.gate("v1")
    await fleet.start("v1")  # another worker of the old version opens the newer store
    await fleet.deployment.set_current("v1")
    assert versions(await fleet.ask_all([plain, careful], "three")) == {"v1": 2}
    await waiting.approve()
    assert (await waiting.turn().result()).content == "v1: v1 paid ann"
    fleet.release("back")
    assert (await held.turn().result()).content == "v2: v2 held back"
    assert await second.stop() == 0
    assert await fleet.ask(held, "next") == "v1: next"
    fleet.check_ledger(pay=1, hold=1)


async def test_a_worker_of_the_users_own_with_a_deployment_config(fleet: Fleet) -> None:
    """Temporal's worker, whose ``default_versioning_behavior`` says nothing, or pins everything."""
    engine, deployment = fleet.engine, fleet.deployment
    temporal = await engine.temporal()

    def build_worker(build_id: str, behavior: VersioningBehavior) -> TemporalWorker:
        agents = [
            Agent(name, ScriptedProvider(lambda _: f"{build_id}: hi"), versioning=versioning)
            for name, versioning in (("plain", "auto_upgrade"), ("careful", "pinned"))
        ]
        return TemporalWorker(
            temporal,
            task_queue=engine.task_queue,
            plugins=[PerdurePlugin(agents, store_url=engine.store_url)],
            deployment_config=WorkerDeploymentConfig(
                WorkerDeploymentVersion(deployment.name, build_id),
                use_worker_versioning=True,
                default_versioning_behavior=behavior,
            ),
        )

    async with build_worker("v1", VersioningBehavior.UNSPECIFIED):
        await deployment.set_current("v1")
        runs = [await fleet.open(agent, "one") for agent in ("plain", "careful")]
        assert versions([(await run.turn().result()).content for run in runs]) == {"v1": 2}
    temporal = await TemporalClient.connect(engine.address)  # a worker of a queue for each client
    async with build_worker("v2", VersioningBehavior.PINNED):
        await deployment.set_current("v2")
        assert versions(await fleet.ask_all(runs, "two")) == {"v2": 2}


async def test_a_worker_says_whether_runs_are_routed_to_its_version(fleet: Fleet) -> None:
    deployment, agent = fleet.deployment, Agent("plain", ScriptedProvider(lambda _: "hi"))
    version = WorkerDeploymentVersion(deployment.name, "v1")

    async def read_report(worker: Worker) -> tuple[str, str]:
        (finding,) = [found for found in await worker.report_start() if found.check == "deployment"]
        return finding.status, f"{finding.detail} {finding.hint}"

    async with Worker(fleet.client, [agent], deployment=version) as worker:
        status, text = await read_report(worker)
        assert status == "warn"
        assert "neither the current nor the ramping version" in text
        assert f"set-current-version --deployment-name {deployment.name} --build-id v1" in text
        await deployment.set_ramping("v1", 30)
        assert "30 % of what is not pinned" in (await read_report(worker))[1]
        await deployment.set_current("v1")
        status, text = await read_report(worker)
        assert (status, text.partition(" of ")[0]) == ("ok", "v1 is the current version")


async def test_a_run_that_temporal_routes_to_no_version_says_so(fleet: Fleet) -> None:
    """The first deploy, before a version is current: a worker polls, and gets nothing."""
    deployment, agent = fleet.deployment, Agent("plain", ScriptedProvider(lambda _: "hi"))
    run = await fleet.open("plain", "one")

    async def refusal() -> NoWorkerError:
        with pytest.raises(NoWorkerError) as refused:
            await run.begun(within=0)
        return refused.value

    assert "no worker has polled task queue" in (await refusal()).message
    async with Worker(fleet.client, [agent], deployment=WorkerDeploymentVersion(deployment.name, "v1")):

        async def names_version() -> bool:
            error = await refusal()
            command = f"set-current-version --deployment-name {deployment.name} --build-id v1"
            routed = f"to workers without a version, and those that poll task queue {fleet.engine.task_queue!r}"
            said = f"{routed} are of version {deployment.name}.v1"
            return said in error.message and command in (error.hint or "")

        await eventually(names_version, what="an error that names the version")
        said = (await fleet.cli("show", run.id)).out
        assert f"those that poll task queue {fleet.engine.task_queue!r} are of version {deployment.name}.v1" in said
        assert f"set-current-version --deployment-name {deployment.name} --build-id v1" in said
        await deployment.set_current("v1")
        assert (await run.turn().result()).content == "hi"
        # A second run is taken as soon as it is there: the version is current, and polls again then.
        other = await fleet.open("plain", "two")

        async def is_polled() -> bool:
            return await has_poller(fleet.client, await other.describe())

        await eventually(is_polled)


async def test_what_serves_itself_has_no_version(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """No version of the process's deployment is current: nothing would come to a worker that has one."""
    monkeypatch.setenv("TEMPORAL_ADDRESS", engine.address)
    monkeypatch.setenv("PERDURE_HOME", str(tmp_path))
    for name, value in Deployment(engine.address, f"never-{uuid.uuid4().hex[:8]}").environment("v1").items():
        monkeypatch.setenv(name, value)
    assert (await Agent("plain", ScriptedProvider(["hi"])).call("Hello.")).content == "hi"


# ---
# The gate, with a version of perdure that cannot go on with the open runs, and with agents that lack what they need.


@pytest.fixture
async def copies(tmp_path: Path) -> AsyncIterator[Any]:
    """Makes copies of perdure: ``copies(name, changes)``."""
    made: list[OtherVersion] = []

    def copy(name: str, changes: dict[str, tuple[str, str]]) -> OtherVersion:
        made.append(OtherVersion(tmp_path / name, changes))
        return made[-1]

    yield copy
    for one in made:
        await one.close()


@pytest.mark.slow
async def test_the_gate_stops_a_version_that_cannot_replay_open_runs(fleet: Fleet, copies: Any) -> None:
    nothing = await fleet.cli(*GATE)
    assert (nothing.code, nothing.out) == (0, "no open runs: nothing to replay\n")
    await fleet.start("v1")
    await fleet.deployment.set_current("v1")
    runs = [await fleet.open("plain", f"hi {n}") for n in range(20)]
    paying = await fleet.open("careful", "pay bob")
    for run in runs:
        await run.turn().result()
    await eventually(lambda: is_waiting(paying), what="a call that waits")

    async def count() -> bool:  # visibility lags behind a little
        return (await fleet.client.temporal.count_workflows(f"TaskQueue = '{fleet.engine.task_queue}'")).count == 21

    await eventually(count)
    passed = await fleet.cli(*GATE)
    assert (passed.code, passed.out) == (0, "all 21 replay\n")
    assert f"replays 21 open runs of task queue {fleet.engine.task_queue}" in passed.err
    incompatible = copies(
        "incompatible", {"types/wire.py": ('MODEL_ACTIVITY = "perdure.model"', 'MODEL_ACTIVITY = "m"')}
    )
    code, output = await incompatible.run("-m", "perdure", *GATE, env=fleet.cli.env)
    assert code == 1, output
    assert "21 of 21 do not replay" in output
    assert "NondeterminismError" in output
    code, output = await incompatible.run("-m", "perdure", *GATE, "-o", "json", env=fleet.cli.env)
    assert code == 1, output

    file = fleet.engine.folder / "lacking.py"
    agents = 'from perdure import Agent\ncareful = Agent("careful", "openai:gpt-5")\n'
    file.write_text(agents)
    lacking = await fleet.cli(*GATE, "--worker", str(file))
    assert lacking.code == 1
    assert "there is no agent 'plain'" in lacking.out
    assert "agent 'careful' has no tool 'pay'" in lacking.out
    assert "21 of 21 need what the workers will not have" in lacking.out
    for wrong in ((*GATE, paying.id), (*GATE, "--query", "x"), ("replay", paying.id, "--worker", str(file))):
        assert (await fleet.cli(*wrong)).code == 2


async def test_the_gate_knows_the_agents_of_plain_clients_and_of_a_folder(fleet: Fleet) -> None:
    """A run that a plain Temporal client has started, and that no worker has taken: its memo has no agent."""
    start, folder = {"agent": "filed", "message": "hi", "mode": "session"}, fleet.engine.folder / "agents"
    queue = fleet.engine.task_queue
    await fleet.client.temporal.start_workflow("AgentWorkflow", start, id=f"plain-{queue}", task_queue=queue)

    async def is_listed() -> bool:  # visibility lags behind a little
        return (await fleet.client.temporal.count_workflows(f"TaskQueue = '{queue}'")).count == 1

    await eventually(is_listed)
    code = fleet.engine.folder / "code.py"
    code.write_text('from perdure import Agent\nother = Agent("other", "openai:gpt-5")\n')
    folder.mkdir()
    (folder / "filed.json").write_text('{"name": "filed", "model": "openai:gpt-5"}')
    lacking = await fleet.cli(*GATE, "--worker", str(code))
    assert lacking.code == 1
    assert "there is no agent 'filed'" in lacking.out
    passed = await fleet.cli(*GATE, "--worker", str(code), "--agents", str(folder))
    assert (passed.code, passed.out) == (0, "the one history replays\n"), passed.err
    assert (await fleet.cli(*GATE, "--agents", str(folder))).code == 2


@pytest.mark.slow  # it waits for retries; tests/unit/types/test_schema_version.py has what is refused
async def test_a_worker_of_another_engine_version_on_the_queue(engine: Engine, copies: Any, fleet: Fleet) -> None:
    """Two versions of perdure serve one queue without versions of a deployment. What the older one must not read it
    refuses, and the newer one takes it."""
    newer = copies("newer", {"types/schema_version.py": ("SCHEMA_VERSION = 1", "SCHEMA_VERSION = 2")})
    ready = engine.folder / "newer.ready"
    env = {**fleet.cli.env, "TEST_READY": str(ready), "TEST_VERSION": "v2"}

    async def start_newer() -> asyncio.subprocess.Process:
        ready.unlink(missing_ok=True)
        process: asyncio.subprocess.Process = await newer.spawn("-m", "tests.workers.deployed", env=env)
        await eventually(lambda: ready.exists() or process.returncode is not None, what="a newer worker")
        assert process.returncode is None
        return process

    process = await start_newer()
    held, waiting = await fleet.open("careful", "hold it"), await fleet.open("lead", "delegate child")
    for name in ("it", "child"):
        await fleet.holds(name)
    process.kill()
    await process.wait()
    older = engine.spawn("deployed", TEST_VERSION="v1", TEST_FOLDER=str(engine.folder))
    await older.ready()
    refused = r"schema version 2, this engine reads up to 1"
    for run in (held, waiting):
        await run.handle.signal("probe")
        await eventually(lambda run=run: _has_reason(run, refused), what="a status that says why")  # type: ignore[misc]
    for name in ("it", "child"):
        fleet.release(name)
    await start_newer()  # beside the older one
    assert (await held.turn().result()).content == "v2: v2 held it"
    assert (await waiting.turn().result()).content == "v2: v2: v2 held child"
    # New runs begin on either, and all of them have their answer.
    more = [await fleet.open("plain", f"hi {n}") for n in range(6)]
    assert versions([(await run.turn().result()).content for run in more]).keys() <= {"v1", "v2"}
    await older.kill()
    engine.forget_processes()
    assert set(engine.ledger.counts("reply").values()) == {1}


async def _has_reason(run: Run, text: str) -> bool:
    return text in ((await run.status()).reason or "")
