"""A provider, or a tool, that is down: where people look, they see since when, of what, and how often it has failed."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from perdure import Agent, Client, Worker
from perdure.client.waits import reconcile_waits
from perdure.errors import AuthenticationError
from perdure.ports.failures import HELD_UP_ATTEMPTS
from perdure.providers import OpenAIChat
from perdure.store.sqlite import SqliteStore
from perdure.testing import ScriptedProvider, call
from perdure.types.events import RunEvent
from tests.servers.model_server import OpenAIServer, Reply, error
from tests.support.children import find_child_id
from tests.support.commands import Commands
from tests.support.engine import ON_BOTH_STORES, Engine
from tests.support.pages import console
from tests.support.scripts import replied
from tests.support.wait import eventually
from tests.support.web import make_caller, serve

DOWN = error(500, "The server had an error.", type="server_error")


class Outage:
    """A rule of a model server that is down for a number of requests, and hangs at the next one until ``over`` is
    set."""

    def __init__(self, requests: int, *answers: Any) -> None:
        self.over = asyncio.Event()
        self._replies: Iterator[Any] = iter(
            [*[DOWN] * requests, Reply("Back.", hang=self.over, hang_after=-1), *answers]
        )

    def __call__(self, _: Any) -> Any:
        return next(self._replies)


async def list_run_states(client: Client, run_id: str) -> list[str]:
    events = [event async for event in client.run(run_id).events(wait=False)]
    return [event.state for event in events if isinstance(event, RunEvent)]


async def test_a_provider_that_is_down_is_seen_where_people_look(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    cli, outage = Commands(engine, monkeypatch), Outage(HELD_UP_ATTEMPTS + 1)
    async with OpenAIServer(outage) as server:
        provider = OpenAIChat(server.base_url, "test")
        desk = Agent("desk", provider)
        idle = Agent("idle", ScriptedProvider(lambda _: "Done."))
        async with engine.served(desk, idle) as client, console(client, make_caller("eve", "viewer")) as opened:
            await (await client.start("idle", "Go.", id="well")).result()
            run = await client.start("desk", "Go.", id="ill", user="ann")
            await server.wait_requests(HELD_UP_ATTEMPTS + 2)

            done = await cli("list")
            assert done.code == 0, done.err
            listed = done.out.splitlines()
            [row] = [line for line in listed if line.startswith("ill")]
            source = str(desk.chain[0])
            assert "  held up  " in row
            assert f"Go. · 4 attempts of {source} in 0 s, last: ProviderServerError 500; next is due" in row
            assert (await cli("list", "-q", "--status", "held_up")).out == "ill\n"
            assert (await cli("list", "-q", "--status", "open")).out == "ill\n"
            assert (await cli("list", "-q", "--status", "running")).out == ""
            [as_json] = json.loads((await cli("list", "--status", "held_up", "-o", "json")).out)
            assert (as_json["status"], as_json["held_up"][0]["attempts"]) == ("held_up", 4)
            shown = (await cli("show", "ill")).out
            assert "ill  held up  agent desk" in shown
            assert "\nasked Go.\n" in shown, "no reply is recorded, and so no message is in the transcript"
            assert f"held up: 4 attempts of {source}" in shown
            assert "The server had an error." in shown

            status = await run.status()
            [held_up] = status.held_up
            assert (status.state, held_up.source, held_up.status, held_up.attempts) == ("held_up", source, 500, 4)
            assert (held_up.error_type, held_up.context_id, held_up.agent) == ("ProviderServerError", "ill", "desk")
            assert held_up.since is not None
            assert held_up.next_at is not None
            for filters in ({}, {"status": "held_up"}, {"user": "ann"}, {"status": "held_up", "agent": "desk"}):
                assert [(one.id, one.status) for one in await client.list(**filters) if one.id == "ill"] == [
                    ("ill", "held_up")
                ]
            assert await client.list(status="held_up", user="other") == []

            async with opened.service.connect() as http:
                listing = (await http.get("/sessions", params={"status": "held_up"})).json()["data"]
                assert [(one["id"], one["status"], one["held_up"][0]["status"]) for one in listing] == [
                    ("ill", "held_up", 500)
                ]
                session = (await http.get("/sessions/ill")).json()
                assert (session["state"], session["held_up"][0]["source"]) == ("held_up", source)
            browser = opened.browse()
            page = await browser.open("/runs?status=held_up")
            assert "held up" in page.text
            assert f"4 attempts of {source}" in " ".join(page.text.split())
            assert "well" not in page.text
            page = await browser.open("/runs/ill")
            assert "The server had an error." in page.text
            assert f"4 attempts of {source}" in " ".join(page.text.split())
            assert await list_run_states(client, "ill") == ["started", "held_up"]
            page = await browser.open("/workers")
            assert "1 run is held up" in page.text
            assert "ProviderServerError" in page.text
            page = await browser.open("/costs")
            assert "Errors 80.0 % 4 requests" in page.squeeze(), "four of five: the other run was answered"
            assert f"{source} 500 ProviderServerError 4" in page.squeeze()
            async with opened.service.connect() as http:
                by_model = (await http.get("/usage", params={"group": "model"})).json()
            [own] = [row for row in by_model["data"] if row["key"] == source]
            assert (own["calls"], own["failed_attempts"], own["errors"]) == (0, 4, 0)
            [cause] = by_model["failures"]
            assert (cause["source"], cause["status"], cause["attempts"], cause["ended"]) == (source, 500, 4, 0)

            outage.over.set()
            assert (await run.result()).content == "Back."
            assert await list_run_states(client, "ill") == ["started", "held_up", "recovered", "completed"]
            assert (await cli("list", "-q", "--status", "held_up")).out == ""
            store = await client.store()
            assert await store.list_failing_calls(held_up=False) == []
            [failed] = await store.sum_failed_attempts()
            assert (failed.source, failed.status, failed.attempts, failed.ended) == (source, 500, 4, 0)
        await provider.aclose()


async def test_a_failure_or_two_hold_nothing_up(engine: Engine) -> None:
    outage = Outage(HELD_UP_ATTEMPTS - 1)
    async with OpenAIServer(outage) as server:
        provider = OpenAIChat(server.base_url, "test")
        async with engine.served(Agent("desk", provider)) as client:
            run = await client.start("desk", "Go.", id="r")
            await server.wait_requests(HELD_UP_ATTEMPTS)
            assert (await run.status()).state == "running"
            outage.over.set()
            await run.result()
            assert await list_run_states(client, "r") == ["started", "completed"]
            assert await (await client.store()).list_failing_calls(held_up=False) == []
        await provider.aclose()


async def test_a_wrong_key_is_a_failed_attempt_that_ends_its_call(engine: Engine) -> None:
    async with OpenAIServer(lambda _: error(401, "Incorrect API key provided.")) as server:
        provider = OpenAIChat(server.base_url, "test")
        async with engine.served(Agent("desk", provider)) as client:
            with pytest.raises(AuthenticationError):
                await (await client.start("desk", "Go.", id="r")).result()
            store = await client.store()
            [failed] = await store.sum_failed_attempts("agent")
            assert (failed.key, failed.status, failed.attempts, failed.ended) == ("desk", 401, 1, 1)
            async with serve(client) as service, service.connect() as http:
                usage = (await http.get("/usage")).json()
                assert (usage["total"]["calls"], usage["total"]["errors"]) == (0, 1), "a wrong key is an error"
                assert usage["data"][0]["unanswered_calls"] == 1
            assert await store.list_failing_calls(held_up=False) == []
        await provider.aclose()


async def test_a_run_is_held_up_by_its_subagent(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    cli, outage = Commands(engine, monkeypatch), Outage(HELD_UP_ATTEMPTS)
    async with OpenAIServer(outage) as server:
        provider = OpenAIChat(server.base_url, "test")
        checker = Agent("checker", provider)
        boss = Agent(
            "boss",
            ScriptedProvider(lambda request: "All done." if replied(request) else call("call_checker", task="a")),
            subagents=[checker],
        )
        async with engine.served(boss, checker) as client:
            run = await client.start("boss", "Go.", id="team")
            await server.wait_requests(HELD_UP_ATTEMPTS + 1)
            child = await find_child_id(client, "team", 1)
            status = await run.status()
            assert (status.state, [one.context_id for one in status.held_up]) == ("held_up", [child])
            assert (await cli("list", "-q", "--status", "held_up", "--roots")).out.split() == ["team"]
            assert sorted((await cli("list", "-q", "--status", "held_up")).out.split()) == sorted(["team", child])
            shown = (await cli("show", "team")).out
            assert f"held up: 3 attempts of {checker.chain[0]} in subagent {child}" in shown
            outage.over.set()
            assert (await run.result()).content == "All done."
            assert (await cli("list", "-q", "--status", "held_up")).out == ""
        await provider.aclose()


async def test_wait_names_the_subagent_that_fails(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    cli, outage = Commands(engine, monkeypatch), Outage(HELD_UP_ATTEMPTS)
    async with OpenAIServer(outage) as server:
        provider = OpenAIChat(server.base_url, "test")
        checker = Agent("checker", provider)
        boss = Agent(
            "boss",
            ScriptedProvider(lambda request: "All done." if replied(request) else call("call_checker", task="a")),
            subagents=[checker],
        )
        async with engine.served(boss, checker) as client:
            await client.start("boss", "Go.", id="team")
            waiting = await cli.spawn("wait", "team")
            await server.wait_requests(HELD_UP_ATTEMPTS + 1)
            await waiting.until("held up: 3 attempts")
            outage.over.set()
            assert await waiting.ended() == 0
            assert "All done." in waiting.output
            child = await find_child_id(client, "team", 1)
            lines = [line for line in waiting.output.splitlines() if "held up" in line]
            assert len(lines) == 1, "once for each failed attempt, although it looks twice a second"
            assert f"held up: 3 attempts of {checker.chain[0]} in subagent {child}" in lines[0]
        await provider.aclose()


async def test_a_run_that_ends_while_it_is_held_up_leaves_no_row(engine: Engine) -> None:
    outage = Outage(HELD_UP_ATTEMPTS)
    async with OpenAIServer(outage) as server:
        provider = OpenAIChat(server.base_url, "test")
        async with engine.served(Agent("desk", provider)) as client:
            run = await client.start("desk", "Go.", id="r")
            await server.wait_requests(HELD_UP_ATTEMPTS + 1)
            await run.cancel()
            await run.wait_for_close()
            assert await (await client.store()).list_failing_calls(held_up=False) == []
            assert await list_run_states(client, "r") == ["started", "held_up", "cancelled"]
        await provider.aclose()


@pytest.mark.parametrize("by", ["perdure", "temporal"])
async def test_a_run_that_is_terminated_while_it_is_held_up_leaves_no_row(engine: Engine, by: str) -> None:
    outage = Outage(HELD_UP_ATTEMPTS)
    async with OpenAIServer(outage) as server:
        provider = OpenAIChat(server.base_url, "test")
        async with engine.served(Agent("desk", provider)) as client:
            run = await client.start("desk", "Go.", id="r")
            await server.wait_requests(HELD_UP_ATTEMPTS + 1)
            store = await client.store()
            if by == "perdure":
                await run.terminate()
                assert await store.list_failing_calls(held_up=False) == []
            else:
                await run.handle.terminate()
                assert [one.context_id for one in await store.list_failing_calls()] == ["r"], "no worker records it"
                assert await client.list(status="held_up") == [], "Temporal knows better"
                assert (await run.status()).state == "terminated"
                assert (await reconcile_waits(client)).removed == 1
                assert await store.list_failing_calls(held_up=False) == []
            outage.over.set()
        await provider.aclose()


async def test_code_of_the_author_that_fails_holds_its_run_up(engine: Engine) -> None:
    failures, over = 0, asyncio.Event()

    async def instructions(_: Any) -> str:
        nonlocal failures
        failures += 1
        if failures <= HELD_UP_ATTEMPTS:
            raise ConnectionError("the policy server is down")
        await over.wait()
        return "Be brief."

    agent = Agent("desk", ScriptedProvider(lambda _: "Done."), instructions=instructions)
    async with engine.served(agent) as client:
        run = await client.start("desk", "Go.", id="r")
        await eventually(lambda: failures == HELD_UP_ATTEMPTS + 1)
        [held_up] = (await run.status()).held_up
        assert (held_up.source, held_up.error_type, held_up.call) == ("", "ConnectionError", "perdure.model")
        over.set()
        assert (await run.result()).content == "Done."
        assert await list_run_states(client, "r") == ["started", "held_up", "recovered", "completed"]


@pytest.mark.server
@ON_BOTH_STORES
async def test_what_failed_is_counted_once_whatever_the_workers_deaths(engine: Engine) -> None:
    asked, over = 0, asyncio.Event()

    def rule(_: Any) -> Any:
        nonlocal asked
        asked += 1
        return Reply("Back.", hang=over, hang_after=-1) if asked in (2, 5) else DOWN

    async with OpenAIServer(rule) as server:
        client = await engine.client()
        run = await client.start("counting", "Go.")
        worker = await engine.process("counting", TEST_MODEL_URL=server.base_url, PERDURE_HEARTBEAT="0.5")
        await eventually(lambda: asked == 2)
        await worker.kill()
        await engine.process("counting", TEST_MODEL_URL=server.base_url, PERDURE_HEARTBEAT="0.5")
        await eventually(lambda: asked == 5, deadline=60)
        status = await run.status()
        assert (status.state, [one.attempts for one in status.held_up]) == ("held_up", [3])
        over.set()
        assert (await run.result()).content == "Back."
        assert await list_run_states(client, run.id) == ["started", "held_up", "recovered", "completed"]
        store = await client.store()
        assert await store.list_failing_calls(held_up=False) == []
        [failed] = await store.sum_failed_attempts()
        assert (failed.status, failed.attempts, failed.ended) == (500, 3, 0)


@pytest.mark.server
async def test_where_the_store_fails_temporal_says_what_holds_the_run_up(engine: Engine, tmp_path: Path) -> None:
    """The workers have another store by mistake: they write nothing into it of this run."""
    agent = Agent("desk", ScriptedProvider(lambda _: "Hello."))
    async with engine.served(agent) as client:
        run = await client.start("desk", "Go.", mode="session")
        await run.turn().result()
    url = f"sqlite:///{tmp_path}/stranger.db"
    other = SqliteStore(url)
    await other.open()
    await other.close()
    stranger = Client(await engine.temporal(), store_url=url, task_queue=engine.task_queue)
    async with Worker(stranger, [agent], drain=1.0):
        await run.send("Again.")

        async def is_held_up() -> bool:
            return (await run.status()).state == "held_up"

        await eventually(is_held_up, deadline=60)
        [held_up] = (await run.status()).held_up
        assert (held_up.source, held_up.error_type, held_up.call) == ("store", "StoreMismatchError", "perdure.model")
        assert held_up.attempts >= HELD_UP_ATTEMPTS
        await run.terminate()
    await stranger.close()
