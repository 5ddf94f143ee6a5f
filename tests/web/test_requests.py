"""What the review of the HTTP API has found: requests that got past a check, or learned of what is another's."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from perdure import Agent, Client
from perdure.testing import ScriptedProvider
from perdure.web import files, limits
from perdure.web.app import OPERATIONS, WebOptions, build_middleware, create_app
from perdure.web.auth import Caller
from perdure.web.limits import HeldBytes
from perdure.web.openapi import build_document
from perdure.web.problems import WebError
from tests.support.engine import Engine
from tests.support.web import ADA, NamedCallers, make_caller


@asynccontextmanager
async def connect(client: Client, *callers: Caller) -> AsyncIterator[httpx.AsyncClient]:
    """A client of the whole application; ``as_caller`` gives the headers of a request."""
    app = create_app(client, authenticator=NamedCallers(ADA, *callers), options=WebOptions(dev=True))
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost", timeout=30) as http:
        yield http


def as_caller(name: str) -> dict[str, str]:
    return {"authorization": f"Bearer {name}"}


def answering() -> Agent:
    return Agent("echo", ScriptedProvider(lambda _: "Hi."))


async def test_a_wrong_method_is_told_all_that_the_path_has(engine: Engine) -> None:
    async with engine.served(answering()) as client, connect(client) as http:
        for path, methods in {
            "/v1/sessions/x": "DELETE, GET, HEAD",
            "/v1/schedules/x": "DELETE, GET, HEAD, PUT",
            "/v1/sessions": "GET, HEAD, POST",
            "/agui/echo": "GET, HEAD, POST",
            "/healthz": "GET, HEAD",
        }.items():
            answer = await http.patch(path)
            assert (answer.status_code, answer.headers["allow"]) == (405, methods), path


def test_a_body_that_may_be_left_out_is_not_required_by_the_document() -> None:
    paths = build_document(OPERATIONS)["paths"]
    assert paths["/schedules/{id}/pause"]["post"]["requestBody"]["required"] is False
    assert paths["/sessions"]["post"]["requestBody"]["required"] is True
    assert paths["/sessions/{id}/events"]["post"]["requestBody"]["required"] is True
    refusals = paths["/sessions/{id}/events"]["post"]["responses"].keys() - {"202", "default"}
    assert refusals == {*map(str, (400, 401, 403, 404, 408, 409, 413, 414, 415, 421, 429, 431, 503, 504))}


async def test_an_id_does_not_choose_the_rule_of_a_body() -> None:
    async def read(request: Request) -> Response:
        return Response(str(len(await request.body())))

    routes = [Route("/{path:path}", read, methods=["POST"])]
    app = Starlette(routes=routes, middleware=build_middleware(WebOptions(dev=True)))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost") as http:
        plain = {"content-type": "text/plain"}
        assert (await http.post("/v1/files", content=b"x", headers=plain)).text == "1"
        for path in ("/agui/x%2Fv1%2Ffiles", "/ui/x%2Fdecide%2Fy", "/v1/sessions/x%2Fv1%2Ffiles"):
            assert (await http.post(path, content=b"x", headers=plain)).status_code == 415, path
        both = {"content-type": "application/json", "transfer-encoding": "chunked", "content-length": "2"}
        assert (await http.post("/v1/sessions", content=b"{}", headers=both)).status_code == 400


async def test_json_of_the_front_ends_is_read_as_that_of_the_api(engine: Engine) -> None:
    async with engine.served(answering()) as client, connect(client) as http:
        headers = as_caller("ada") | {"content-type": "application/json"}
        for path in ("/agui/echo", "/ui/echo"):
            for body in (b'{"id": "a", "id": "b"}', b'{"id": NaN}', b'{"id": ' + b"[" * 100 + b"]" * 100 + b"}"):
                answer = await http.post(path, content=body, headers=headers)
                assert (answer.status_code, answer.json()["error"]) == (400, "JsonError"), (path, body)
            nested = await http.post(path, content=b"[]", headers=headers)
            assert (nested.status_code, nested.json()["error"]) == (400, "InvalidInputError")


async def test_refused_forks_and_schedules_are_in_the_audit_trail(engine: Engine) -> None:
    bound = make_caller("bound", sessions=("@acme/one",))
    acme = make_caller("acme", tenants=("acme",))
    async with engine.served(answering()) as client, connect(client, bound, acme) as http:
        await client.start("echo", "Hi.", id="one", tenant="acme", mode="session")
        forked = await http.post("/v1/sessions/%40acme%2Fone/fork", json={"id": "two"}, headers=as_caller("bound"))
        assert forked.status_code == 403, forked.text
        new = {"agent": "echo", "content": "Hi.", "every": "1h", "id": "nightly", "tenant": "zoo"}
        assert (await http.post("/v1/schedules", json=new, headers=as_caller("acme"))).status_code == 403
        rows = await (await client.store()).list_audit()
        refused = {(row.by, row.subject, row.verb) for row in rows if row.refused}
        assert refused == {("bound", "session", "fork"), ("acme", "session", "schedule")}


async def test_a_hidden_webhook_is_as_an_unknown_one(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PERDURE_WEBHOOK_ALLOW", "127.0.0.1")
    acme = make_caller("acme", "admin", tenants=("acme",))
    async with engine.served(answering()) as client, connect(client, acme) as http:
        hooks = [
            await client.webhooks.create("https://127.0.0.1/", tenant=name) for name in ("zoo", "acme", "zoo", "acme")
        ]
        hidden, own, _, last = (hook.id for hook in hooks)
        for path in ("", "/deliveries"):
            answers = [
                await http.get(f"/v1/webhooks/{name}{path}", headers=as_caller("acme")) for name in (hidden, "wh_0")
            ]
            assert [answer.status_code for answer in answers] == [404, 404]
            assert answers[0].text.replace(hidden, "") == answers[1].text.replace("wh_0", "")
        first = (await http.get("/v1/webhooks?limit=1", headers=as_caller("acme"))).json()
        assert [hook["id"] for hook in first["data"]] == [own], "the page is full of what the caller may see"
        page = {"limit": "1", "after": first["cursor"]}
        rest = (await http.get("/v1/webhooks", params=page, headers=as_caller("acme"))).json()
        assert [hook["id"] for hook in rest["data"]] == [last]


def test_one_caller_does_not_hold_all_that_may_be_in_transfer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "HELD_BYTES", 1000)
    monkeypatch.setattr(limits, "MAX_FILE_BYTES", 300)
    held = HeldBytes()
    held.take(300, "a")
    with pytest.raises(WebError) as refused:
        held.take(1, "a")
    assert (refused.value.status, refused.value.headers["Retry-After"]) == (429, "10")
    held.take(300, "b")
    held.take(300, "c")
    with pytest.raises(WebError) as full:
        held.take(300, "d")
    assert full.value.status == 503
    held.release(300, "a")
    held.take(300, "a")
    assert held.count == 900


async def test_a_file_is_not_sent_for_hours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "BODY_SECONDS", 0.2)
    sent, closed = list[Any](), list[bool]()

    async def send(message: Any) -> None:
        sent.append(message)
        await asyncio.sleep(0.05)  # each piece in time

    download = files.Download(bytes(100 * 65536), {}, "image/png", lambda: closed.append(True))
    await download({"type": "http", "method": "GET"}, None, send)  # type: ignore[arg-type]  # nothing is received
    assert len(sent) < 100
    assert sent[-1]["more_body"] is True, "the answer was not ended as if it were whole"
    assert closed == [True]


async def test_a_request_without_a_token_is_401_whatever_its_body_is(engine: Engine) -> None:
    async with engine.served(answering()) as client, connect(client) as http:
        form = {"content-type": "application/x-www-form-urlencoded"}
        for path in ("/v1/sessions", "/v1/schedules/x/pause", "/openai/v1/chat/completions", "/agui/echo"):
            unknown = await http.post(path, content=b"agent=echo", headers=form)
            known = await http.post(path, content=b"agent=echo", headers=form | as_caller("ada"))
            assert (path, unknown.status_code, known.status_code) == (path, 401, 415)
        assert [row.verb for row in await (await client.store()).list_audit()] == []
