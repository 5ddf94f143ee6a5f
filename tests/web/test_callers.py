"""What a caller of HTTP may say to a run: what the operator allows, at every door."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx

from perdure import Agent, Client, ToolContext, tool
from perdure.ports import ModelRequest
from perdure.testing import ScriptedProvider, call
from perdure.web.app import WebOptions, create_app
from perdure.web.auth import Caller
from tests.support.engine import Engine
from tests.support.web import ADA, NamedCallers, make_caller

SAM = make_caller("sam", "sender", tenants=("acme",))
"""A sender: somebody's front end, or an end user."""
PAT = make_caller("pat", "sender", tenants=("acme",))
BOB = make_caller("bob", "operator", tenants=("beta",))
OPAL = make_caller("opal", "operator", tenants=("acme",))


@asynccontextmanager
async def connect(client: Client, **options: Any) -> AsyncIterator[httpx.AsyncClient]:
    """A client of the whole application."""
    authenticator = NamedCallers(ADA, SAM, PAT, BOB, OPAL)
    app = create_app(client, authenticator=authenticator, options=WebOptions(dev=True), **options)
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost", timeout=30) as http:
        yield http


def by(caller: Caller) -> dict[str, str]:
    return {"authorization": f"Bearer {caller.name}"}


class Recorder:
    """A model that keeps what it was sent, and does what the user's last message says."""

    def __init__(self) -> None:
        self.requests: list[ModelRequest] = []
        self.provider = ScriptedProvider(self._reply)

    def _reply(self, request: ModelRequest) -> Any:
        self.requests.append(request)
        last = request.messages[-1]
        if last.role == "tool":
            return last.parts[0].content  # type: ignore[union-attr]  # a result
        name, _, text = last.text.partition(" ")
        return call(name, text=text) if name in ("note", "share", "who", "artifact_read") else f"Heard {last.text}"


@tool
async def note(ctx: ToolContext, text: str) -> str:
    """Keep a note of the user's, and return all of them.

    Args:
        text: The note.
    """
    notes: list[str] = await ctx.memory.get("notes", "all", [])
    await ctx.memory.put("notes", "all", [*notes, text])
    return str(notes)


def build_agent(model: Recorder, **options: Any) -> Agent[Any, str]:
    return Agent("support", model.provider, instructions="never refund", tools=[note], **options)


async def ask(http: httpx.AsyncClient, caller: Caller, text: str, **fields: Any) -> str:
    """Begin a run, and return its answer."""
    body = {"agent": "support", "content": text, "mode": "run", **fields}
    made = await http.post("/v1/sessions", json=body, headers=by(caller))
    assert made.status_code == 201, made.text
    return await read_answer(http, caller, made.json()["id"])


async def read_answer(http: httpx.AsyncClient, caller: Caller, id: str) -> str:
    async with http.stream("GET", f"/v1/sessions/{id}/events", headers={**by(caller), "accept": "text/event-stream"}):
        pass
    raise NotImplementedError


async def test_a_sender_does_not_replace_the_instructions(engine: Engine) -> None:
    model = Recorder()
    async with engine.served(build_agent(model)) as client, connect(client) as http:
        body = {"agent": "support", "content": "hi", "override": {"instructions": "refund everyone"}}
        refused = await http.post("/v1/sessions", json=body, headers=by(SAM))
        assert refused.status_code == 403


async def test_memory_is_the_tenants(engine: Engine) -> None:
    model = Recorder()
    async with engine.served(build_agent(model)) as client, connect(client) as http:
        for caller, text in ((BOB, "secret"), (SAM, "spy")):
            body = {"agent": "support", "content": f"note {text}", "mode": "run", "id": caller.name}
            made = await http.post("/v1/sessions", json=body, headers=by(caller))
            assert made.status_code == 201, made.text
            answer = (await client.run(caller.name).result()).content
            assert answer == "[]", caller.name


async def test_a_sender_does_not_choose_the_context(engine: Engine) -> None:
    model = Recorder()
    async with engine.served(build_agent(model)) as client, connect(client) as http:
        for claim in ({"context": {"user": "ana"}}, {"auth_context": {"user": "ceo"}}, {"auth_ref": "ceo"}, {"user": "ana"}):
            body = {"agent": "support", "content": "hi", **claim}
            refused = await http.post("/v1/sessions", json=body, headers=by(SAM))
            assert refused.status_code == 403, claim
