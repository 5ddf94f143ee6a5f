"""Clients whose store is not the run's, messages whose text is in none, and a run that ends all the same."""

from __future__ import annotations

import asyncio
import logging
import uuid
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from perdure import Agent, Client, Run, Worker, tool
from perdure.errors import RunCancelledError, StoreError, StoreMismatchError
from perdure.ports.model import ModelRequest
from perdure.ports.store import Store
from perdure.store import open_store
from perdure.testing import ScriptedProvider, call
from tests.support.checks import users
from tests.support.engine import Engine
from tests.support.faults import sql
from tests.support.scripts import Gate
from tests.support.wait import eventually

RECORDED = """SELECT 1 FROM journal WHERE kind = 'tool' AND instr(CAST(outcome AS TEXT), '"done"')"""
LOSE = """UPDATE journal SET outcome = NULL WHERE kind = 'tool' AND instr(CAST(outcome AS TEXT), '"done"')"""
NOWHERE = {"content": {"hash": "0" * 64, "size": 1}, "id": "lost"}


@pytest.fixture
async def stranger(engine: Engine, tmp_path: Path) -> Any:
    """A client of the same server and queue with a store of its own."""
    url = f"sqlite:///{tmp_path / 'other.db'}"
    other = open_store(url)
    await other.open()
    await other.close()
    client = Client(await engine.temporal(), store_url=url, task_queue=engine.task_queue)
    yield client
    await client.close()


@pytest.mark.server
async def test_a_client_with_another_store_is_told_which_and_how_to_get_the_answer(
    engine: Engine, stranger: Client
) -> None:
    async with engine.served(Agent("a", ScriptedProvider(["forty-two"]))) as client:
        run = await client.start("a", "hi")
        response = await run.result()
    ours = (await stranger.store()).store_id
    for ask in (stranger.run(run.id).result, stranger.run(run.id).transcript):
        with pytest.raises(StoreMismatchError) as caught:
            await ask()
        for said in (str(response.store_id), ours, "PERDURE_STORE_URL", "run.handle.result()"):
            assert said in str(caught.value)
    assert (await stranger.run(run.id).handle.result())["content"] == "forty-two"


@pytest.mark.server
async def test_a_long_message_from_a_client_with_another_store(engine: Engine, stranger: Client) -> None:
    """Once the run's store is known the sender is told; before, the run says in its transcript what it lacks."""
    gate = Gate()

    async def reply(request: ModelRequest) -> str:
        await gate()
        return f"{len(users(request.messages))}"

    async with engine.served(Agent("a", ScriptedProvider(reply))) as client:
        run = await client.start("a", "one")
        await eventually(lambda: gate.entered)
        await stranger.run(run.id).inject("x" * 200_000, id="m1")
        gate.open()
        response = await run.result()
        assert response.content == "2"
        assert users(response.messages)[0] == "one"
        assert "[message m1 could not be read: its text (200,000 bytes" in users(response.messages)[1]
        waiting = await client.temporal.start_workflow(
            "AgentWorkflow",
            {"agent": "a", "message": "hi", "mode": "session"},
            id=f"s-{uuid.uuid4().hex}",
            task_queue=engine.task_queue,
        )
        await eventually(lambda: _waits(client.run(waiting.id)))
        with pytest.raises(StoreMismatchError, match="is kept in store"):
            await stranger.run(waiting.id).inject("x" * 200_000)
        other = (await stranger.store()).store_id
        await waiting.signal("inject_user_message", NOWHERE | {"store_id": other})
        status = await eventually(lambda: _refused(client.run(waiting.id)))
        assert f"its content is in store {other}" in status.refused[0]
        await client.run(waiting.id).cancel()


async def _waits(run: Run) -> bool:
    return (await run.status()).state == "idle"


async def _refused(run: Run) -> Any:
    status = await run.status()
    return status if status.refused else None


@pytest.mark.server
async def test_a_message_whose_text_is_nowhere_keeps_no_other_out(engine: Engine) -> None:
    client = await engine.client()
    run = await client.start("a", "important")
    await run.handle.signal("inject_user_message", NOWHERE)
    await run.inject("and this")
    async with engine.served(Agent("a", ScriptedProvider(["Done."]))):
        response = await run.result()
    assert users(response.messages)[0::2] == ["important", "and this"]
    assert f"[message lost could not be read: blob {'0' * 64} (1 bytes) is missing" in users(response.messages)[1]


@pytest.mark.server
async def test_a_run_whose_result_is_lost_pauses_and_can_still_be_cancelled(engine: Engine) -> None:
    @tool
    async def work() -> str:
        """Work, and lose what it came to."""
        return "done"

    gate = Gate()

    @tool(idempotent=True)
    async def hold() -> str:
        """Hold."""
        await gate()
        return "held"

    agent = Agent("a", ScriptedProvider([[call("work"), call("hold")], "never"]), tools=[work, hold])
    async with engine.served(agent, drain=0.1) as client:
        run = await client.start("a", "go")
        await eventually(lambda: gate.entered and sql(engine.store_path, RECORDED))
    sql(engine.store_path, LOSE)  # the next worker remembers nothing
    gate.open()
    async with engine.served(agent) as client:
        status = await eventually(lambda: _paused(run))
        await run.cancel()
        with pytest.raises(RunCancelledError):
            await run.result()
        row = await (await client.store()).get_run(run.id)
        transcript = await run.transcript()
    assert "TranscriptCorruptedError" in status.reason
    assert row is not None
    assert row.status == "cancelled"
    work_result, hold_result = (part for message in transcript for part in message.tool_results)
    assert "could not be read" in work_result.content
    assert hold_result.content == "held"


async def _paused(run: Run) -> Any:
    status = await run.status()
    return status if status.state == "paused" else None


@pytest.mark.server
async def test_twenty_calls_open_one_store(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[Store] = []

    def opening(url: str, **options: Any) -> Store:
        opened.append(open_store(url, **options))
        return opened[-1]

    monkeypatch.setattr("perdure.client.client.open_store", opening)
    client = await engine.client()
    stores = await asyncio.gather(*(client.store() for _ in range(20)))
    assert len(opened) == 1
    assert {id(store) for store in stores} == {id(opened[0])}


# --- a store that is away


@pytest.mark.server
async def test_a_worker_that_starts_while_the_store_is_away_makes_no_other_in_its_place(engine: Engine) -> None:
    agent = Agent("a", ScriptedProvider(["forty-two"] * 3))
    async with engine.served(agent) as client:
        run = await client.start("a", "hi", mode="session")
        response = await run.turn().result()
    away = engine.store_path.rename(engine.store_path.with_name("away.db"))
    with pytest.raises(StoreError) as caught:
        async with engine.served(agent):
            pass
    for named in (str(engine.store_path), str(response.store_id), run.id, "PERDURE_NEW_STORE"):
        assert named in str(caught.value)
    assert not engine.store_path.exists()
    away.rename(engine.store_path)
    async with engine.served(agent) as client:
        turn = await client.send("a", "and now?", id=run.id)
        assert (await turn.result()).content == "forty-two"
        await run.close()


async def test_an_operator_may_begin_with_an_empty_store(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    agent = Agent("a", ScriptedProvider(["one", "two"]))
    async with engine.served(agent) as client:
        first = await (await client.start("a", "hi")).result()
    engine.store_path.unlink()
    monkeypatch.setenv("PERDURE_NEW_STORE", "1")
    async with engine.served(agent) as client:
        second = await (await client.start("a", "hi")).result()
    assert second.content == "two"
    assert second.store_id != first.store_id


@pytest.mark.server
async def test_a_new_store_is_said(engine: Engine, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "perdure.store")
    async with engine.served(Agent("a", ScriptedProvider(["one"]))) as client:
        made = (await client.store()).store_id
    assert [f"made a new store, {made}, at {engine.store_path}" in record.message for record in caplog.records] == [
        True
    ]


@pytest.mark.server
async def test_readers_make_no_store(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perdure.client.run.ANSWER_TIMEOUT", timedelta(seconds=1))  # no worker is there to give one
    client = await engine.client()
    run = await client.start("a", "hi")
    assert (await run.status()).state == "running"
    assert [one.id for one in await client.list(limit=1000) if one.id == run.id] == [run.id]
    assert [event async for event in run.events(wait=False)] == []
    assert await run.transcript() == []
    with pytest.raises(StoreError, match="no store at"):
        await client.memory.get("n", "k")
    assert not engine.store_path.exists()
    async with engine.served(Agent("a", ScriptedProvider(["forty-two"]))):
        assert (await run.result()).messages[-1].text == "forty-two"
    assert (await client.store()).store_id


async def test_runs_go_on_when_the_store_that_was_away_is_back(engine: Engine, tmp_path: Path) -> None:
    """Meanwhile others have read, and another worker has tried to start."""
    gate = Gate()

    async def reply(request: ModelRequest) -> str:
        if users(request.messages)[-1] != "hi":
            await gate()
        return "forty-two"

    agent = Agent("a", ScriptedProvider(reply))
    async with engine.served(agent) as client:
        before = [await client.start("a", "hi", mode="session") for _ in range(3)]
        for run in before:
            await run.turn().result()
        runs = [await client.start("a", "more") for _ in range(3)]
        turns = [await client.send("a", "more", id=run.id) for run in before]
        await eventually(lambda: gate.entered >= 6)
        away = tmp_path / "away"
        away.mkdir()
        for path in engine.store_path.parent.glob("store.db*"):
            path.rename(away / path.name)
        other = await engine.client()
        with pytest.raises(StoreMismatchError, match="finds no store at"):
            await other.run(before[0].id).transcript()
        with pytest.raises(StoreError, match="no store at"):
            async with Worker(other, [agent], drain=1.0):
                pass
        gate.open()
        assert not engine.store_path.exists()
        for path in away.iterdir():
            path.rename(engine.store_path.parent / path.name)
        answers = [await run.result() for run in runs] + [await turn.result() for turn in turns]
        assert [answer.content for answer in answers] == ["forty-two"] * 6
        assert {answer.store_id for answer in answers} == {(await client.store()).store_id}
        for run in before:
            await run.close()
