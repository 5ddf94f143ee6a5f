"""Open streams of the HTTP API: they end with the rights of their followers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from perdure import Agent, Client
from perdure.errors import StoreError
from perdure.testing import ScriptedProvider
from perdure.web import sse
from perdure.web.app import WebOptions, create_app
from perdure.web.auth import AuthenticatorChain, BearerTokens, Caller
from perdure.web.limits import FailureLimiter, WebLimits
from tests.support.engine import Engine
from tests.support.wait import eventually

STREAM = {"accept": "text/event-stream"}


class CountedTokens(BearerTokens):
    looks = 0
    store_is_down = False

    async def authenticate(self, connection: Any) -> Caller | None:
        self.looks += 1
        if self.store_is_down:
            raise StoreError("down")
        return await super().authenticate(connection)


@asynccontextmanager
async def serve_tokens(client: Client) -> AsyncIterator[tuple[httpx.AsyncClient, CountedTokens, Any]]:
    tokens = CountedTokens(client)
    limits = WebLimits(failures_per_minute=0.001, failure_burst=1)
    chain = AuthenticatorChain([tokens], failures=FailureLimiter(limits))
    app = create_app(client, authenticator=chain, options=WebOptions(dev=True, limits=limits))
    created = await client.tokens.create("ada", role="operator")
    transport = httpx.ASGITransport(app)
    headers = {"authorization": f"Bearer {created.token}"}
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost", headers=headers) as http:
        yield http, tokens, created


async def open_stream(http: httpx.AsyncClient, tokens: CountedTokens) -> asyncio.Task[httpx.Response]:
    """A stream that has been checked at least once."""
    session = (await http.post("/v1/sessions", json={"agent": "echo"})).json()["id"]
    looks = tokens.looks
    following = asyncio.create_task(http.get(f"/v1/sessions/{session}/events", headers=STREAM))
    await eventually(lambda: tokens.looks > looks + 2)
    assert not following.done()
    return following


async def test_a_stream_ends_when_its_token_is_revoked(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sse, "CHECK_SECONDS", 0.01)
    async with (
        engine.served(Agent("echo", ScriptedProvider([]))) as client,
        serve_tokens(client) as (http, tokens, own),
    ):
        following = await open_stream(http, tokens)
        tokens.store_is_down = True
        looks = tokens.looks
        await eventually(lambda: tokens.looks > looks + 2)
        assert not following.done(), "a store that does not answer ends no stream"
        tokens.store_is_down = False
        wrong = httpx.Headers({"authorization": f"Bearer {own.token[:-1]}x"})
        assert [(await http.get("/v1/agents", headers=wrong)).status_code for _ in range(2)] == [401, 429]
        looks = tokens.looks
        await eventually(lambda: tokens.looks > looks + 2)
        assert not following.done(), "wrong tokens of the same address end no stream of another's"
        await client.tokens.revoke(own.info.id)
        answer = await asyncio.wait_for(following, 10)
        assert (answer.status_code, answer.text.endswith(": connect again\n\n")) == (200, True)
