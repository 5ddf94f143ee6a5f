"""An agent that no worker has recorded: refused at every door before anything is created, and named by clients."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from mcp import MCPError
from starlette.applications import Starlette

from perdure import Agent, Client
from perdure.console import console_routes
from perdure.errors import RunNotFoundError
from perdure.testing import ScriptedProvider
from perdure.web.agui import agui_routes
from perdure.web.app import WebOptions, build_web, create_app
from perdure.web.vercel import vercel_routes
from tests.support.commands import Commands
from tests.support.engine import Engine
from tests.support.pages import Browser
from tests.support.web import ADA, NamedCallers, serve
from tests.web.test_agui import build_input
from tests.web.test_agui import user as agui_user
from tests.web.test_mcp import connect
from tests.web.test_vercel import build_chat, user

pytestmark = pytest.mark.server
NOPE = "nope"
MESSAGES = [{"role": "user", "content": "hi"}]
DOORS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "session": ("POST", "/v1/sessions", {"agent": NOPE, "content": "hi"}),
    "empty session": ("POST", "/v1/sessions", {"agent": NOPE, "id": "s1-of-nope"}),
    "schedule": ("POST", "/v1/schedules", {"agent": NOPE, "content": "hi", "every": "1h"}),
    "changed schedule": ("PUT", "/v1/schedules/KNOWN", {"agent": NOPE, "content": "hi", "every": "1h"}),
    "vercel": ("POST", f"/ui/{NOPE}", build_chat(user("hi"))),
    "agui": ("POST", f"/agui/{NOPE}", build_input("r1", agui_user("hi"))),
    "chat completions": ("POST", "/openai/v1/chat/completions", {"model": NOPE, "messages": MESSAGES}),
    "chat stream": ("POST", "/openai/v1/chat/completions", {"model": NOPE, "messages": MESSAGES, "stream": True}),
    "responses": ("POST", "/openai/v1/responses", {"model": NOPE, "input": "hi"}),
}


def build_agent() -> Agent[Any, Any]:
    return Agent("helper", ScriptedProvider(lambda _: "Hello."))


def build_app(client: Client) -> Starlette:
    named = NamedCallers(ADA)
    app = create_app(client, authenticator=named, options=WebOptions(dev=True), pages=console_routes)
    web = build_web(client, authenticator=named)
    for route in [*vercel_routes(web), *agui_routes(web)]:
        app.router.routes.insert(0, route)
    return app


async def check_nothing_was_created(client: Client) -> None:
    assert [run.agent for run in await client.list(agent=NOPE)] == []
    assert await (await client.store()).list_runs() == []
    assert await client.schedules(agent=NOPE) == []


async def test_every_door_answers_404_before_anything_is_created(engine: Engine) -> None:
    async with engine.served(build_agent()) as client:
        known = f"known-{engine.task_queue}"
        await client.schedule("helper", "hi", id=known, every="1h", paused=True)
        async with serve(client, app=build_app(client)) as service:
            base = service.url.removesuffix("/v1")
            async with service.connect("ada") as http:
                for name, (method, path, body) in DOORS.items():
                    refused = await http.request(method, f"{base}{path.replace('KNOWN', known)}", json=body)
                    assert (name, refused.status_code) == (name, 404), refused.text
                    assert f"agent '{NOPE}'" in refused.text or f"model '{NOPE}'" in refused.text, (name, refused.text)
            browser = Browser(base, token="ada")
            form = (await browser.open("/chat/helper")).find_form("/chat/helper")
            form.action = f"/console/chat/{NOPE}"
            await browser.send(form, text="hi")
            assert browser.response.status_code == 404
            await browser.http.aclose()
            async with connect(service) as mcp:
                with pytest.raises(MCPError, match=NOPE):
                    await mcp.call_tool(NOPE, {"message": "hi"})
        await check_nothing_was_created(client)


def list_warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What is said of agents; other loggers may say more, as far as earlier tests have left them talking."""
    return [record.getMessage() for record in caplog.records if record.name == "perdure.agents"]


async def test_clients_and_commands_are_warned(
    engine: Engine, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    cli = Commands(engine, monkeypatch)
    async with engine.served(build_agent()) as client:
        with caplog.at_level(logging.WARNING, "perdure.agents"):
            await (await client.start("helper", "hi")).result()
            assert list_warnings(caplog) == []
            await client.schedule("helpre", "hi", id=f"typo-{engine.task_queue}", every="1h", paused=True)
            other = f"other-{engine.task_queue}"
            made = await cli("schedule", "create", "helpre", "hi", "--id", other, "--every", "1h")
            assert made.code == 0, made
        warning = "no worker has recorded an agent 'helpre': its run waits for one that serves it."
        assert list_warnings(caplog) == [f"{warning} Recorded are: helper."] * 2, (
            "a process prints the second one on stderr"
        )


@pytest.mark.parametrize("command", [("run",), ("run", "-d"), ("chat",), ("send",)])
async def test_commands_start_nothing_with_an_agent_that_the_workers_do_not_have(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]
) -> None:
    cli = Commands(engine, monkeypatch)
    run_id = f"typo-{engine.task_queue}"
    arguments = (run_id, "hi", "--agent", "helpre") if command == ("send",) else ("helpre", "hi", "--id", run_id)
    async with engine.served(build_agent()) as client:
        refused = await cli(command[0], *arguments, *command[1:])
        assert refused.code == 3, refused
        assert "there is no agent 'helpre': no worker has recorded it. Recorded are: helper." in refused.err
        assert f"perdure worker FILE --task-queue {engine.task_queue}" in refused.err
        with pytest.raises(RunNotFoundError):
            await client.run(run_id).describe()
        known = await cli(command[0], *(part.replace("helpre", "helper") for part in arguments), *command[1:])
        assert known.code == 0, known
        if command == ("send",):
            again = await cli("send", run_id, "and?", "--agent", "helpre")
            assert again.code == 0, "the conversation exists, so the agent is not used"


async def test_a_command_may_start_an_agent_before_the_worker_of_its_queue(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    cli = Commands(engine, monkeypatch)
    async with engine.served(build_agent()) as client:
        other = f"{engine.task_queue}-other"
        made = await cli("run", "newer", "hi", "-d", "--id", f"newer-{other}", "--task-queue", other)
        assert made.code == 0, made
        await client.run(f"newer-{other}").terminate()


async def test_a_store_without_any_agent_refuses_nothing(engine: Engine, caplog: pytest.LogCaptureFixture) -> None:
    """The worker of a fresh set-up may come after its first request."""
    client, early = await engine.client(), f"early-{engine.task_queue}"
    await client.store(create=True)
    async with serve(client) as service, service.connect("ada") as http:
        made = await http.post("/sessions", json={"agent": "helper", "content": "hi", "id": early})
        assert made.status_code in (201, 503), made.text
        async with engine.served(build_agent()):
            await client.run(early).turn().result()
    assert "no worker has recorded" not in caplog.text
