"""Runs that no worker serves: what commands say, ``perdure terminate``, and namespaces that do not exist."""

from __future__ import annotations

import uuid
from collections import Counter
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import Client as TemporalClient

from perdure import Agent, Client, Run, Worker, tool
from perdure.cli import run as run_command
from perdure.client import progress
from perdure.client.inbox import _MAX_CONCURRENT_STATUS_READS
from perdure.errors import RuntimeSetupError
from perdure.testing import ScriptedProvider, call
from tests.support.commands import Commands
from tests.support.engine import Engine
from tests.support.namespaces import a_namespace, indexed_namespace
from tests.support.scripts import Gate, replied
from tests.support.wait import eventually
from tests.support.web import serve


@pytest.fixture
def cli(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> Commands:
    return Commands(engine, monkeypatch)


def waiting_at(gate: Gate) -> Agent:
    @tool(name="gate")
    async def wait() -> str:
        """Wait until the test opens it."""
        await gate()
        return "passed"

    def reply(request: Any) -> Any:
        return "Again." if replied(request) else call("gate")

    return Agent("waiter", ScriptedProvider(reply), tools=[wait])


@pytest.mark.server
async def test_cancel_and_close_say_that_no_worker_answers(
    engine: Engine, cli: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_command, "_UNSERVED_SECONDS", 0.5)
    client = await engine.client()
    run = await client.start("nobody", "Hi", id=f"unserved-{uuid.uuid4().hex[:8]}", mode="session")
    for command in ("close", "cancel"):
        done = await cli(command, run.id, "--wait")
        assert done.code == 4
        assert f"no worker of task queue '{engine.task_queue}' has answered for 1 s" in done.err
        assert f"perdure worker FILE --task-queue {engine.task_queue}" in done.err
        assert f"perdure terminate {run.id}" in done.err
    assert (await cli("terminate", run.id, "-m", "a leftover")).out == f"{run.id} is terminated\n"
    assert (await cli("show", run.id, "--json")).json["status"]["state"] == "terminated"
    again = await cli("terminate", run.id)
    assert (again.code, "has ended" in again.err) == (1, True)


async def test_a_message_after_terminate_closes_the_open_calls(engine: Engine, cli: Commands) -> None:
    gate = Gate()
    async with engine.served(waiting_at(gate)) as client:
        run = await client.start("waiter", "Go.", id="ended-1", mode="session")
        await eventually(lambda: gate.entered)
        done = await cli("terminate", "ended-1", "--json")
        assert done.json == {"id": "ended-1", "status": "terminated"}
        gate.open()
        assert (await cli("send", "ended-1", "And now?", "--wait")).out == "Again.\n"
        messages = await run.transcript()
    (result,) = [part for message in messages for part in message.tool_results]
    assert result.is_error
    assert [message.text for message in messages if message.role == "user"] == ["Go.", "And now?"]


@pytest.mark.server
async def test_an_unknown_namespace_is_neither_created_nor_served(
    engine: Engine, cli: Commands, tmp_path: Path
) -> None:
    name = f"typo-{uuid.uuid4().hex[:8]}"
    file = tmp_path / "agents.py"
    file.write_text('from perdure import Agent\na = Agent("a", "openai:x")\n')
    for command in (["dev", str(file)], ["run", "a", "Hi", "-d"]):
        done = await cli(*command, "-n", name)
        assert (done.code, f"there is no namespace '{name}'" in done.err) == (4, True)
        assert "perdure server setup --create" in done.err
    client = Client(await TemporalClient.connect(engine.address, namespace=name), store_url=engine.store_url)
    with pytest.raises(RuntimeSetupError, match="there is no namespace"):
        async with Worker(client, [Agent("a", ScriptedProvider([]))]):
            raise AssertionError("it serves")
    assert (await cli("server", "setup", "--create", "-n", name)).code == 0
    assert (await cli("list", "-n", name)).code == 0


@pytest.mark.server
async def test_a_run_of_another_namespace_is_not_shown_as_one_of_this(engine: Engine, cli: Commands) -> None:
    agent = Agent("greeter", ScriptedProvider(lambda _: "Hello."))
    async with engine.served(agent) as client:
        run = await client.start(agent, "Hi", id=f"here-{uuid.uuid4().hex[:8]}")
        await run.result()
    other = f"other-{uuid.uuid4().hex[:8]}"
    await indexed_namespace(engine.address, other)
    for command in ("events", "show"):

        async def refused(command: str = command) -> Any:  # visibility has the run a moment later
            done = await cli(command, run.id, "-n", other)
            return done if done.code == 3 else None

        done = await eventually(refused)
        assert f"there is no run '{run.id}' in namespace '{other}'" in done.err
        assert "--namespace default" in done.err
    assert (await cli("list", "-q", "-n", other)).out == ""
    assert (await cli("events", run.id, "-n", "default")).code == 0


@pytest.mark.server
@pytest.mark.parametrize("count", [10, pytest.param(100, marks=pytest.mark.slow)])
async def test_the_inbox_does_not_wait_for_runs_that_no_worker_serves(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    client = await engine.client()
    leftovers = [await client.start("nobody", "Hi") for _ in range(count)]
    service = client.temporal.service_client
    requests: Counter[str] = Counter()
    send = service._rpc_call

    async def count_request(rpc: str, *arguments: Any, **options: Any) -> Any:
        requests[rpc] += 1
        return await send(rpc, *arguments, **options)

    monkeypatch.setattr(service, "_rpc_call", count_request)
    await eventually(lambda: listed_all(client, count))
    requests.clear()
    assert await client.approvals(agent="nobody") == [], "not of runs that other tests have left open"
    assert requests["update_workflow_execution"] == 0, "a run that never began has no pending calls to be asked for"
    for run in leftovers:
        await run.terminate()


@pytest.mark.server
async def test_the_inbox_asks_a_queue_whose_worker_has_gone_once(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a namespace without search attributes, where runs that have begun must be asked."""
    gate, count = Gate(), 3 * _MAX_CONCURRENT_STATUS_READS
    temporal = await a_namespace(engine.address)
    client = Client(temporal, store_url=engine.store_url, task_queue=engine.task_queue)
    async with Worker(client, [waiting_at(gate)], drain=0):
        runs = [await client.start("waiter", "Go.") for _ in range(count)]
        await eventually(lambda: gate.entered == count)
    await eventually(lambda: listed_all(client, count))
    asked: set[str] = set()
    ask = Run.ask_workflow

    async def count_question(run: Run, view: Any, task_id: str | None = None) -> Any:
        asked.add(run.id)
        return await ask(run, view, task_id)

    monkeypatch.setattr(Run, "ask_workflow", count_question)
    assert await client.approvals() == []
    assert len(asked) <= _MAX_CONCURRENT_STATUS_READS
    gate.open()
    for run in runs:
        await run.terminate()
    await client.close()


async def listed_all(client: Client, count: int) -> bool:
    query = f"TaskQueue = '{client.task_queue}'"
    return len([run async for run in client.temporal.list_workflows(query)]) == count


@pytest.mark.server
@pytest.mark.slow
async def test_decisions_say_that_no_worker_answers(
    engine: Engine, cli: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "UNANSWERED_SECONDS", 0.5)
    monkeypatch.setattr(progress, "MAX_POLLER_AGE", timedelta(seconds=0.1))

    @tool(needs_approval=True)
    def refund() -> str:
        """Refund."""
        return "refunded"

    agent = Agent("refunder", ScriptedProvider(lambda _: call("refund")), tools=[refund])
    async with engine.served(agent) as client:
        run = await client.start(agent, "Hi", id=f"undecided-{uuid.uuid4().hex[:8]}")

        async def waits() -> bool:
            return bool((await run.status()).approvals)

        await eventually(waits)
        [pending] = (await run.status()).approvals
    for command in (("approve", run.id, pending.call_id, "--hash", pending.hash), ("deny", run.id, pending.call_id)):
        done = await cli(*command)
        assert done.code == 4
        assert f"no worker has polled task queue '{engine.task_queue}' for 1 s" in done.err
        assert f"perdure worker FILE --task-queue {engine.task_queue}" in done.err
    client = await engine.client()
    async with serve(client) as service, service.connect() as http:
        decision = {"run_id": run.id, "call_id": pending.call_id, "hash": pending.hash, "decision": "deny"}
        answer = await http.post("/approvals:decide", json={"decisions": [decision]})
        [result] = answer.json()["results"]
        assert (result["problem"]["status"], result["problem"]["error"]) == (503, "NoWorkerError")
        event = {"type": "approval", "call_id": pending.call_id, "hash": pending.hash, "decision": "approve"}
        answer = await http.post(f"/sessions/{run.id}/events", json=event)
        assert (answer.status_code, answer.json()["error"]) == (503, "NoWorkerError")
        assert answer.json()["detail"] == "No worker serves this run at present."
    await client.run(run.id).terminate()
