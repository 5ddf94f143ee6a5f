"""Backups that are put back: the store is older than Temporal's history, or the history is older than the store."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sqlite3
from pathlib import Path

import pytest

from perdure import Agent, Client, Run, tool
from perdure.embedded.home import Home
from perdure.embedded.server import ensure_server, stop_server
from perdure.errors import InvalidInputError, TranscriptCorruptedError
from perdure.ports.model import ModelRequest
from perdure.store.administration import copy_store
from perdure.testing import ScriptedProvider
from perdure.types.interface import Status
from tests.support.checks import assert_closed, results, users
from tests.support.engine import ON_BOTH_STORES, Engine
from tests.support.scripts import Gate, calls_then
from tests.support.wait import eventually


def back_up(path: Path, backup: Path) -> None:
    """An online backup of a SQLite file."""
    source = sqlite3.connect(path)
    source.execute("VACUUM INTO ?", (str(backup),))
    source.close()


def put_back(backup: Path, path: Path) -> None:
    """Put a backup in the place of the store, which no process uses."""
    for suffix in ("", "-wal", "-shm"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)
    shutil.copy(backup, path)


class Counted:
    """An agent that answers with the number of messages it has seen, and counts what is paid for."""

    def __init__(self) -> None:
        self.provider = ScriptedProvider(self.reply)
        self.agent = Agent("counted", self.provider)

    def reply(self, request: ModelRequest) -> str:
        return f"{sum(message.role == 'user' for message in request.messages)}: {request.messages[-1].text}"

    @property
    def paid(self) -> int:
        return len(self.provider.requests)


async def ask(client: Client, text: str, id: str) -> str:
    turn = await client.send("counted", text, id=id)
    response = await asyncio.wait_for(turn.result(), 30)
    return response.content


async def wait_for_pause(run: Run, after: str = "") -> tuple[str, str]:
    """Why and since when the run is paused, once it is since a later time than ``after``."""

    async def find_pause() -> Status | None:
        status = await run.status()
        return status if status.state == "paused" and (status.since or "") > after else None

    status: Status | None = await eventually(find_pause, deadline=30, every=0.1, what="a pause")
    assert status is not None
    return status.reason or "", status.since or ""


@pytest.mark.fault(
    "The store",
    "The store is restored from a backup older than the runs.",
    "An open run pauses; a message to an ended one is refused. `perdure resume --from-store` "
    "continues from what is there.",
)
@pytest.mark.server
@ON_BOTH_STORES
async def test_a_session_whose_store_is_older_pauses_and_goes_on_from_what_is_there(engine: Engine) -> None:
    counted = Counted()
    backup_url = f"sqlite:///{engine.folder}/backup.db" if engine.databases is None else engine.databases.make()
    async with engine.served(counted.agent) as client:
        run = await client.start("counted", "one", mode="session")
        await run.turn().result()  # else the next message may join this turn
        assert await ask(client, "two", run.id) == "2: two"
        await copy_store(str(engine.store_url), backup_url, report=lambda _: None)
        assert await ask(client, "three", run.id) == "3: three"
        with pytest.raises(InvalidInputError, match="has the end of run"):
            await run.resume(from_store=True)
    engine.store_url = backup_url
    async with engine.served(counted.agent) as client:
        run = client.run(run.id)
        await client.send("counted", "four", id=run.id)
        reason, since = await wait_for_pause(run)
        assert "is missing from the store" in reason
        assert "perdure resume ID --from-store" in reason
        await run.resume()
        reason, _ = await wait_for_pause(run, since)  # the node is missing as before
        assert "is missing from the store" in reason
        assert counted.paid == 3

        await run.resume(from_store=True)
        assert await ask(client, "five", run.id) == "3: five"
        assert users(await run.transcript()) == ["one", "two", "five"]
        # The reopened run asks the model to go on; the message joins that call, if it comes before it, or gets its own.
        assert counted.paid in (4, 5)


@pytest.mark.fault("The store", "The store is restored from a backup older than the runs.")
@pytest.mark.server
async def test_a_conversation_that_ended_after_the_backup_is_not_continued_in_silence(engine: Engine) -> None:
    counted, backup = Counted(), engine.folder / "backup.db"
    async with engine.served(counted.agent) as client:
        run = await client.start("counted", "one", id=f"{engine.task_queue}-a")
        await asyncio.wait_for(run.result(), 30)
        back_up(engine.store_path, backup)
        assert await ask(client, "two", run.id) == "2: two"
        await client.run(run.id).close()
        await client.run(run.id).wait_for_close()
        unknown = await client.start("counted", "uno", id=f"{engine.task_queue}-b")
        await asyncio.wait_for(unknown.result(), 30)
    put_back(backup, engine.store_path)
    async with engine.served(counted.agent) as client:
        for ended in (run, unknown):
            with pytest.raises(TranscriptCorruptedError, match="does not have the end of run") as caught:
                await client.send("counted", "three", id=ended.id)
            assert f"perdure resume {ended.id} --from-store" in str(caught.value)
        assert counted.paid == 3

        await client.run(run.id).resume(from_store=True)
        assert await ask(client, "three", run.id) == "2: three"
        await client.run(unknown.id).resume(from_store=True)  # the store has nothing of it: from its first message
        response = await asyncio.wait_for(client.run(unknown.id).result(), 30)
        assert users(response.messages) == ["uno"]


class Paying:
    """An agent whose two tool calls act for money; the second waits at a gate."""

    def __init__(self) -> None:
        self.gate = Gate()
        self.paid: list[int] = []
        self.provider = ScriptedProvider(calls_then(2, "pay"))

        @tool
        async def pay() -> str:
            """Pay."""
            self.paid.append(len(self.paid))
            if len(self.paid) == 2:
                await self.gate()
            return "paid"

        self.agent = Agent("paying", self.provider, tools=[pay])


@pytest.mark.server
async def test_a_store_older_than_a_turn_in_progress_pays_nothing_in_silence(engine: Engine) -> None:
    paying, backup = Paying(), engine.folder / "backup.db"
    async with engine.served(paying.agent) as client:
        other = await client.start("paying", "make the store", id=f"{engine.task_queue}-first", history=None)
        await eventually(lambda: paying.gate.entered, what="a tool at work")
        back_up(engine.store_path, backup)  # its first payment is in it, and that the second has begun
        paying.gate.open()
        assert (await asyncio.wait_for(other.result(), 30)).content == "Done."
    assert len(paying.paid) == 2
    put_back(backup, engine.store_path)
    async with engine.served(paying.agent) as client:
        run = client.run(other.id)
        with pytest.raises(TranscriptCorruptedError, match="does not have the end of run"):
            await client.send("paying", "more", id=run.id)
        await run.resume(from_store=True)
        response = await asyncio.wait_for(run.result(), 30)
        assert_closed(response.messages)
        assert results(response.messages)[0] == "paid"
        assert results(response.messages)[1].startswith("OutcomeUnknown")
    assert len(paying.paid) == 2, "the model is told that the outcome of the second is unknown"


@pytest.mark.fault(
    "Temporal", "Temporal is restored from a backup older than the store.", "What was paid for is used again."
)
@pytest.mark.slow
@pytest.mark.server
async def test_a_history_older_than_the_store_pays_nothing_again(tmp_path: Path) -> None:
    """Temporal is restored from an older backup: the calls that it has forgotten are in the journal."""
    home = Home(tmp_path / "home")
    server = await ensure_server(home)
    engine = Engine(server.address, tmp_path)
    paying = Paying()
    try:
        async with engine.served(paying.agent) as client:
            run = await client.start("paying", "go")
            await eventually(lambda: paying.gate.entered, what="a tool at work")
            os.kill(server.pid, signal.SIGKILL)
            backup = [Path(shutil.copy(path, tmp_path)) for path in home.root.glob("temporal.db*")]
            assert backup
            paying.gate.open()  # recorded in the store while there is no server to tell
            server = await ensure_server(home)
            assert (await asyncio.wait_for(run.result(), 60)).content == "Done."
            late = await client.start("paying", "late")
            assert (await asyncio.wait_for(late.result(), 60)).content == "Done."
        paid, requests = len(paying.paid), len(paying.provider.requests)
        os.kill(server.pid, signal.SIGKILL)
        for path in home.root.glob("temporal.db*"):
            path.unlink()
        for copy in backup:
            shutil.copy(copy, home.root)
        assert (await ensure_server(home)).address == server.address
        async with engine.served(paying.agent) as client:
            response = await asyncio.wait_for(client.run(run.id).result(), 60)
            assert response.content == "Done."
            assert results(response.messages) == ["paid", "paid"]
            assert (len(paying.paid), len(paying.provider.requests)) == (paid, requests)
            turn = await client.send("paying", "more", id=late.id)  # Temporal has forgotten the run
            response = await asyncio.wait_for(turn.result(), 60)
            assert users(await client.run(late.id).transcript()) == ["late", "more"]
    finally:
        await engine.close()
        await stop_server(home)
