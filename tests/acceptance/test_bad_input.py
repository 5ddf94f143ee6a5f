"""What goes wrong around an agent: a clear error with the way out, nothing lost, and the run goes on afterwards."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from pathlib import Path
from typing import Any

import pytest

from perdure import Agent, Client, Run, Worker, tool
from perdure.calls import retries
from perdure.embedded.home import Home
from perdure.embedded.server import ensure_server, stop_server
from perdure.errors import (
    AgentNotFoundError,
    AuthenticationError,
    DefinitionError,
    InvalidInputError,
    PerdureError,
    RunCancelledError,
    RunIdError,
    RuntimeSetupError,
    ServerUnreachableError,
    StoreError,
    StoreVersionError,
)
from perdure.ports.model import ModelRequest
from perdure.providers.openai_chat import OpenAIChat
from perdure.testing import ScriptedProvider, call
from tests.servers.model_server import OpenAIServer
from tests.support import faults
from tests.support.checks import assert_closed, results, users
from tests.support.engine import Engine
from tests.support.scripts import Gate, calls_then
from tests.support.wait import eventually

MODEL = "openai:gpt-5"


class Bench:
    """An agent with one tool that waits at a gate, and what was paid for."""

    def __init__(self, *, idempotent: bool = False) -> None:
        self.gate = Gate()
        self.ran = 0
        self.provider = ScriptedProvider(calls_then(1, "work"))

        @tool(idempotent=idempotent)
        async def work() -> str:
            """Work."""
            self.ran += 1
            await self.gate()
            return "worked"

        self.agent = Agent("bench", self.provider, tools=[work])

    @property
    def paid(self) -> int:
        return len(self.provider.requests)

    async def at_work(self, client: Client, message: str = "go") -> Run:
        """A run whose tool waits at the gate."""
        before = self.gate.entered
        run = await client.start("bench", message)
        await eventually(lambda: self.gate.entered > before, what="a tool at work")
        return run


async def stuck(run: Run, *parts: str) -> str:
    """The reason why the run does not get on, once it has all ``parts``."""

    async def reason() -> str | None:
        said = (await run.status()).reason or ""
        return said if all(part in said for part in parts) else None

    return await eventually(reason, deadline=40, every=0.1, what=f"a reason with {parts}") or ""


async def completes(run: Run, bench: Bench | None = None) -> None:
    """It ends with the answer, every call has one result, and nothing was paid or done twice."""
    response = await asyncio.wait_for(run.result(), 60)
    assert response.content == "Done."
    assert_closed(response.messages)
    assert users(response.messages) == ["go"]
    if bench is not None:
        assert results(response.messages) == ["worked"]
        assert (bench.paid, bench.ran) == (2, 1)
    assert (await run.status()).state == "completed"


def explains(error: PerdureError, *parts: str) -> None:
    """The message names thing and reason; the hint, which is part of the text, the way out."""
    for part in parts:
        assert part in str(error), f"{part!r} is not in {error}"
    assert len(str(error).strip().splitlines()) >= 2, f"no way out: {error}"


# --- agents and tools


@pytest.mark.fault("Workers", "A deploy takes a while to bring an agent.", "Its runs wait up to 60 s for it.")
@pytest.mark.server
async def test_an_unknown_agent_is_waited_for_and_goes_on_when_a_worker_brings_it(engine: Engine) -> None:
    bench = Bench()
    bench.gate.open()
    async with engine.served(Agent("other", ScriptedProvider([]))) as client:
        run = await client.start("bench", "go")
        await stuck(run, "AgentNotFoundError", "no agent 'bench' on this worker (it serves: other)")
    async with engine.served(bench.agent):
        await completes(run, bench)


@pytest.mark.server
async def test_a_tool_that_reaches_a_worker_without_its_agent_is_run_once_all_the_same(engine: Engine) -> None:
    """In a rolling deploy the old worker may take the new agent's tool: that is no attempt to run it."""
    bench = Bench()
    bench.gate.open()
    elsewhere = f"{engine.task_queue}-tools"

    @tool(task_queue=elsewhere)
    def work() -> str:
        """Work."""
        bench.ran += 1
        return "worked"

    agent = Agent("bench", bench.provider, tools=[work])
    async with engine.served(agent) as client:
        async with Worker(client, [Agent("other", ScriptedProvider([]))], task_queue=elsewhere, drain=1.0):
            run = await client.start("bench", "go")
            await stuck(run, "tool.work", "AgentNotFoundError", "no agent 'bench'")
        async with Worker(client, [agent], task_queue=elsewhere, drain=1.0):
            await completes(run, bench)


async def test_an_agent_that_nobody_brings(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retries, "AGENT_SECONDS", 1.0)
    async with engine.served(Agent("other", ScriptedProvider([]))) as client:
        run = await client.start("bensh", "go")
        with pytest.raises(AgentNotFoundError) as caught:
            await asyncio.wait_for(run.result(), 30)
        explains(caught.value, "no agent 'bensh'", "it serves: other", "Register it with a worker")
        assert users(await run.transcript()) == ["go"]
        status = await run.status()
        assert status.state == "failed"
        assert "no agent 'bensh'" in (status.reason or "")


@pytest.mark.slow
@pytest.mark.server
async def test_an_agent_that_is_gone_while_its_tool_is_called_is_looked_for_once_and_not_again_for_the_model(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retries, "AGENT_SECONDS", 1.0)
    client = await engine.client()

    def go(_: ModelRequest) -> Any:
        worker.remove("bench")
        return call("work")

    bench = Bench()
    agent = Agent("bench", ScriptedProvider([go]), tools=list(bench.agent.toolbox))
    async with Worker(client, [agent], drain=1.0) as worker:
        run = await client.start("bench", "go")
        with pytest.raises(AgentNotFoundError, match="no agent 'bench'"):
            await asyncio.wait_for(run.result(), 30)
        assert_closed(await run.transcript())
        history = await run.handle.fetch_history()
    begun = [event.activity_task_scheduled_event_attributes.activity_type.name for event in history.events]
    steps = ["perdure.model", "tool.work", "perdure.collect", "perdure.close"]
    assert [name for name in begun if name] == steps, "the last one records it"
    assert bench.ran == 0


async def test_an_unknown_tool_is_an_answer_to_the_model(engine: Engine) -> None:
    bench = Bench()
    agent = Agent("bench", ScriptedProvider([call("wrok", a=1), "Done."]), tools=list(bench.agent.toolbox))
    async with engine.served(agent) as client:
        response = await (await client.start("bench", "go")).result()
    assert results(response.messages) == ["tool not found: wrok (there is: work)"]
    assert response.content == "Done."


def test_a_tool_without_type_hints_is_refused_before_anything_runs() -> None:
    def search(query, limit: int = 3):  # type: ignore[no-untyped-def]
        return query

    with pytest.raises(DefinitionError) as caught:
        Agent("bench", MODEL, tools=[search])
    explains(caught.value, "search", "test_bad_input.py", "parameter 'query' has no type hint", "query: str")


@pytest.mark.server
async def test_a_cycle_of_subagents_is_refused_by_the_worker(engine: Engine) -> None:
    client = await engine.client()
    agents = [Agent("a", MODEL, subagents=["b"]), Agent("b", MODEL, subagents=["a"])]
    with pytest.raises(DefinitionError) as caught:
        Worker(client, agents)
    explains(caught.value, "a cycle of subagents: a → b → a", "remove 'b' from the subagents of 'a'")


# --- Temporal


@pytest.mark.parametrize("kind", ["refused", "silent", "another program", "no such host"])
async def test_an_unreachable_temporal_address(kind: str) -> None:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        port = listening.getsockname()[1]
        if kind in ("silent", "another program"):
            listening.listen()
        if kind == "another program":
            listening.setblocking(False)
            answering = asyncio.ensure_future(answer_as_http(listening))
        address = f"no-such-host.invalid:{port}" if kind == "no such host" else f"127.0.0.1:{port}"
        with pytest.raises(ServerUnreachableError) as caught:
            async with asyncio.timeout(60):  # it gives up by itself
                await Client.connect(address=address)
        if kind == "another program":
            answering.cancel()
    explains(caught.value, f"no Temporal server at {address}", "the given address", "Check the address")


async def answer_as_http(listening: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    while True:
        connection, _ = await loop.sock_accept(listening)
        with connection:
            await loop.sock_sendall(connection, b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n")


@pytest.mark.fault(
    "Temporal",
    "The Temporal server is killed.",
    "Runs wait, and continue when it is back. A tool that ended meanwhile keeps its result.",
)
@pytest.mark.slow
@pytest.mark.server
async def test_a_server_that_is_killed_and_comes_back(temporal_address: str, tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    server = await ensure_server(home)
    engine = Engine(server.address, tmp_path)
    bench = Bench()
    try:
        async with engine.served(bench.agent) as client:
            run = await bench.at_work(client)
            os.kill(server.pid, signal.SIGKILL)
            with pytest.raises(PerdureError) as caught:
                await asyncio.wait_for(run.status(), 60)
            explains(caught.value, server.address)
            assert isinstance(caught.value, ServerUnreachableError)
            bench.gate.open()  # the tool ends while there is no server to tell
            again = await ensure_server(home)
            assert again.address == server.address
            await completes(run, bench)
    finally:
        await engine.close()
        await stop_server(home)


# --- the model's API


async def test_a_wrong_api_key(engine: Engine) -> None:
    async with OpenAIServer("Hello.", api_key="sk-right-0123456789") as server:
        provider = OpenAIChat(base_url=server.base_url, api_key="sk-wrong-0123456789")
        async with engine.served(Agent("bench", provider)) as client:
            run = await client.start("bench", "go")
            with pytest.raises(AuthenticationError) as caught:
                await asyncio.wait_for(run.result(), 30)
            explains(caught.value, "127.0.0.1 answered 401", "Incorrect API key", "Check api_key and base_url")
            assert "sk-wrong" not in str(caught.value)
            assert server.stats.requests == 1  # no retry mends it
            assert users(await run.transcript()) == ["go"]
            status = await run.status()
            assert status.state == "failed"
            assert "AuthenticationError" in (status.reason or "")
        await provider.aclose()


# --- the store: locked, read-only, full


@pytest.mark.fault(
    "The store",
    "The store is locked, full or taken away while a tool runs.",
    "The run waits and says why. What was done is kept until it can be written.",
)
@pytest.mark.server
async def test_a_store_that_is_locked_while_a_tool_runs(engine: Engine) -> None:
    bench = Bench()
    async with engine.served(bench.agent) as client:
        run = await bench.at_work(client)
        with faults.locked(engine.store_path):
            bench.gate.open()
            reason = await stuck(run, "tool.work", "is locked by another process", str(engine.store_path))
            assert "Close the program that holds it" in reason
            assert bench.ran == 1
        await completes(run, bench)


@pytest.mark.server
async def test_a_store_that_is_locked_when_the_model_answers(engine: Engine) -> None:
    """The reply is paid for: it is kept until the store takes it, however long that is."""
    bench = Bench()
    bench.gate.open()
    async with engine.served(bench.agent) as client:
        await client.store()
        with faults.locked(engine.store_path):
            run = await client.start("bench", "go")
            await stuck(run, "perdure.model", "is locked by another process")
        await completes(run, bench)


@pytest.mark.server
async def test_a_store_that_is_locked_when_the_worker_starts(engine: Engine) -> None:
    """While its transactions are short it can be read; held for good, it cannot, and the worker says so."""
    bench = Bench()
    bench.gate.open()
    async with engine.served(bench.agent):
        pass
    with faults.locked(engine.store_path, readers_too=True):
        client = await engine.client()
        run = await client.start("bench", "go")
        with pytest.raises(StoreError) as caught:
            async with engine.served(bench.agent):
                pass
        explains(caught.value, str(engine.store_path), "is locked by another process", "Close the program")
    async with engine.served(bench.agent):
        await completes(run, bench)


@pytest.mark.server
async def test_a_store_that_becomes_read_only_while_a_tool_runs(engine: Engine) -> None:
    bench = Bench()
    async with engine.served(bench.agent) as client:
        run = await bench.at_work(client)
        with faults.read_only(engine.store_path):
            bench.gate.open()
            reason = await stuck(run, "tool.work", "is read-only", str(engine.store_path))
            assert "Make the file and its directory writable" in reason
        await completes(run, bench)


@pytest.mark.slow
@pytest.mark.server
async def test_a_store_that_is_read_only_when_the_worker_starts(engine: Engine) -> None:
    """A file that cannot be written: either the worker says so at once, or the run's status does."""
    bench = Bench()
    bench.gate.open()
    async with engine.served(bench.agent):
        pass
    client = await engine.client()
    with faults.read_only(engine.store_path):
        try:
            async with engine.served(bench.agent):
                run = await client.start("bench", "go")
                await stuck(run, "is read-only")
        except StoreError as error:
            explains(error, str(engine.store_path), "is read-only", "writable")
            run = await client.start("bench", "go")
    async with engine.served(bench.agent):
        response = await asyncio.wait_for(run.result(), 60)
    assert response.content == "Done."


@pytest.mark.fault("The store", "The store is locked, full or taken away while a tool runs.")
@pytest.mark.server
async def test_a_disk_that_is_full_while_a_tool_runs(engine: Engine, tmp_path: Path) -> None:
    with faults.small_disk(tmp_path / "disk", kilobytes=1024) as disk:
        engine.store_path = disk / "store.db"
        engine.store_url = f"sqlite:///{engine.store_path}"
        bench = Bench()
        async with engine.served(bench.agent) as client:
            run = await bench.at_work(client, "go")
            filler = faults.fill(disk)
            bench.gate.open()
            reason = await stuck(run, "disk", "full", str(engine.store_path))
            assert "Free space there" in reason
            filler.unlink()
            await completes(run, bench)
        await engine.close()


async def test_a_disk_that_is_full_when_the_worker_starts(engine: Engine, tmp_path: Path) -> None:
    with faults.small_disk(tmp_path / "disk", kilobytes=2048) as disk:
        filler = faults.fill(disk)
        engine.store_path = disk / "store.db"
        engine.store_url = f"sqlite:///{engine.store_path}"
        bench = Bench()
        bench.gate.open()
        with pytest.raises(StoreError) as caught:
            async with engine.served(bench.agent):
                pass
        explains(caught.value, str(engine.store_path), "full", "Free space")
        filler.unlink()
        async with engine.served(bench.agent) as client:
            await completes(await client.start("bench", "go"), bench)
        await engine.close()


# --- the store: altered, replaced, gone


ALTER = "UPDATE nodes SET body = replace(CAST(body AS TEXT), 'go', 'no')"


@pytest.mark.fault(
    "The store",
    "A byte of a transcript is changed.",
    "The run pauses. It continues after you restored the row and called `perdure resume`.",
)
@pytest.mark.server
@pytest.mark.parametrize(
    ("harm", "said"),
    [(ALTER, "was altered"), ("DELETE FROM nodes", "is missing from the store")],
    ids=["altered", "deleted"],
)
async def test_a_transcript_that_is_harmed_pauses_the_run_until_it_is_restored(
    engine: Engine, harm: str, said: str
) -> None:
    bench = Bench(idempotent=True)
    async with engine.served(bench.agent) as client:
        run = await bench.at_work(client)
    # Another worker goes on: this one remembers what it wrote.
    rows = faults.sql(engine.store_path, "SELECT * FROM nodes")
    assert rows
    faults.sql(engine.store_path, harm)
    bench.gate.open()
    async with engine.served(bench.agent) as client:
        run = client.run(run.id)
        reason = await stuck(run, "TranscriptCorruptedError", said, rows[0][0])
        assert "backup" in reason
        assert "resume" in reason or "fork" in reason
        status = await run.status()
        assert status.state == "paused"
        assert status.since is not None
        assert bench.paid == 1

        await run.resume()  # too early: the same pause again, and nothing is lost
        await eventually(lambda: later_pause(run, status.since), what="another pause")

        faults.sql(engine.store_path, "DELETE FROM nodes")
        for row in rows:
            faults.sql(engine.store_path, "INSERT INTO nodes VALUES (?, ?, ?, ?, ?)", *row)
        await run.resume()
        await completes(run)
        assert bench.paid == 2


@pytest.mark.server
async def test_a_run_whose_transcript_is_harmed_can_be_cancelled(engine: Engine) -> None:
    bench = Bench(idempotent=True)
    async with engine.served(bench.agent) as client:
        run = await bench.at_work(client)
    faults.sql(engine.store_path, "DELETE FROM nodes")
    bench.gate.open()
    async with engine.served(bench.agent) as client, asyncio.timeout(60):
        run = client.run(run.id)
        await stuck(run, "TranscriptCorruptedError")
        await run.cancel()
        with pytest.raises(RunCancelledError):
            await run.result()
        row = await (await client.store()).get_run(run.id)
    assert row is not None
    assert row.status == "cancelled"
    assert bench.paid == 1


async def later_pause(run: Run, since: str) -> bool:
    status = await run.status()
    return status.state == "paused" and (status.since or "") > since


@pytest.mark.fault(
    "The store",
    "A worker has another store than the run.",
    "It is told which store it needs, and the right worker continues.",
)
@pytest.mark.server
async def test_a_worker_with_another_store_is_told_which_and_the_right_one_goes_on(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PERDURE_NEW_STORE", "1")
    bench = Bench(idempotent=True)
    async with engine.served(bench.agent) as client:
        run = await bench.at_work(client)
    bench.gate.open()
    wrong = Engine(engine.address, engine.folder / "elsewhere")
    wrong.folder.mkdir()
    wrong.task_queue = engine.task_queue
    async with wrong.served(bench.agent):
        reason = await stuck(run, "StoreMismatchError", f"run {run.id} is kept in store", "this worker has store")
        assert "PERDURE_STORE_URL" in reason
        assert bench.paid == 1
    await wrong.close()
    assert faults.sql(wrong.store_path, "SELECT count(*) FROM journal") == [(0,)]
    async with engine.served(bench.agent):
        await completes(run)


@pytest.mark.server
async def test_a_store_of_a_newer_perdure(engine: Engine) -> None:
    bench = Bench()
    bench.gate.open()
    async with engine.served(bench.agent):
        pass
    ((version,),) = faults.sql(engine.store_path, "SELECT version_num FROM perdure_version")
    faults.sql(engine.store_path, "UPDATE perdure_version SET version_num = '9999'")
    async with engine.served(bench.agent):  # it only has more than this perdure knows
        pass
    faults.sql(engine.store_path, "UPDATE meta SET usable_from = '9999'")
    client = await engine.client()
    run = await client.start("bench", "go")
    with pytest.raises(StoreVersionError) as caught:
        async with engine.served(bench.agent):
            pass
    explains(caught.value, "schema 9999", version, "Upgrade perdure")
    faults.sql(engine.store_path, "UPDATE perdure_version SET version_num = ?", version)
    faults.sql(engine.store_path, "UPDATE meta SET usable_from = ?", version)
    async with engine.served(bench.agent):
        await completes(run, bench)


@pytest.mark.fault("The store", "The store is locked, full or taken away while a tool runs.")
@pytest.mark.server
async def test_a_store_that_is_taken_away_while_a_tool_runs(engine: Engine) -> None:
    bench = Bench()
    async with engine.served(bench.agent) as client:
        run = await bench.at_work(client)
        with faults.taken_away(engine.store_path):
            bench.gate.open()
            reason = await stuck(run, "tool.work", "was removed while it was in use", str(engine.store_path))
            assert "Put the file back" in reason
        await completes(run, bench)


@pytest.mark.server
async def test_a_store_that_is_deleted_is_not_silently_begun_anew(engine: Engine) -> None:
    """A worker that begins meanwhile says what is missing, and makes no store in its place."""
    bench = Bench(idempotent=True)
    async with engine.served(bench.agent) as client:
        run = await bench.at_work(client)
    await engine.close()
    bench.gate.open()
    with faults.taken_away(engine.store_path):
        with pytest.raises(StoreError) as caught:
            async with engine.served(bench.agent):
                pass
        explains(caught.value, "there is no store at", run.id, "Put that store back there")
        await engine.close()
        assert not engine.store_path.exists()
    async with engine.served(bench.agent) as client:
        await completes(client.run(run.id))


# --- what a caller gets wrong


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"context": {"a": object()}}, "plain JSON"),
        ({"context": [1]}, "dictionary"),
        ({"context": {"a": float("nan")}}, "plain JSON"),
        ({"context": {"a": "x" * 3_000_000}}, "16,384"),
        ({"id": ""}, "up to 900 bytes"),
        ({"id": "i" * 901}, "up to 900 bytes"),
        ({"id": "a\ud800"}, "up to 900 bytes"),
        ({"id": "a/b"}, "no slash"),
        ({"agent": ""}, "agent: "),
        ({"agent": 7}, "agent: "),
        ({"message": 7}, "must be text"),
        ({"max_history_events": 1}, "max_history_events: "),
    ],
    ids=lambda value: str(value)[:36],  # no address of an object: each process collects for itself
)
async def test_a_start_that_cannot_be_sent_starts_nothing(engine: Engine, arguments: dict[str, Any], said: str) -> None:
    async with engine.served(Bench().agent) as client:
        with pytest.raises((InvalidInputError, RunIdError), match=said):
            await client.start(**{"agent": "bench", "message": "go", **arguments})


@pytest.mark.server
async def test_a_second_worker_of_one_client_on_one_queue(engine: Engine) -> None:
    async with engine.served(Bench().agent) as client:
        with pytest.raises(RuntimeSetupError) as caught:
            async with Worker(client, [Bench().agent]):
                pass
        explains(caught.value, engine.task_queue, "already", "one worker all the agents")


def test_the_cases_are_those_of_the_issue() -> None:
    """Each line of the issue has a test here; this one says which."""
    named: dict[str, Any] = {
        "an unknown agent": test_an_agent_that_nobody_brings,
        "an unknown tool": test_an_unknown_tool_is_an_answer_to_the_model,
        "a tool without type hints": test_a_tool_without_type_hints_is_refused_before_anything_runs,
        "a cycle of subagents": test_a_cycle_of_subagents_is_refused_by_the_worker,
        "an unreachable Temporal address": test_an_unreachable_temporal_address,
        "a locked store": test_a_store_that_is_locked_while_a_tool_runs,
        "a read-only store": test_a_store_that_becomes_read_only_while_a_tool_runs,
        "a wrong API key": test_a_wrong_api_key,
        "a full disk": test_a_disk_that_is_full_while_a_tool_runs,
        "a corrupted transcript row": test_a_transcript_that_is_harmed_pauses_the_run_until_it_is_restored,
    }
    assert all(callable(test) for test in named.values())
