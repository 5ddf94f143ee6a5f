"""MCP servers that demand OAuth: grants of people, refreshes by many workers, calls that wait for consent, machines."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from perdure import Agent, Client
from perdure.client.grants import SignedIn
from perdure.mcp import MCPServer, OAuth
from perdure.ports import ModelRequest
from perdure.testing import ScriptedProvider, call
from tests.support.checks import results
from tests.support.engine import Engine
from tests.support.oauth import OAuthServer, agree, serve_oauth

RETURN = "http://127.0.0.1:9/callback"


@pytest.fixture
def guarded() -> Iterator[OAuthServer]:
    with serve_oauth() as server:
        yield server


@pytest.fixture(autouse=True)
def _key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PERDURE_ENCRYPTION_KEYS", "k1:" + "A" * 43 + "=")


async def sign_in(client: Client, url: str, **options: Any) -> SignedIn:
    """As a person does it, in one go."""
    begun = await client.grants.begin(url, redirect_uri=RETURN, **options)
    return await client.grants.finish(await agree(begun.url))


def host(server: MCPServer, *replies: Any) -> tuple[Agent, ScriptedProvider]:
    provider = ScriptedProvider(list(replies))
    return Agent("host", provider, toolsets=[server]), provider


def shown(request: ModelRequest) -> list[str]:
    return [spec.name for spec in request.tools]


async def test_a_stored_grant_is_used_by_workers_and_refreshed(engine: Engine, guarded: OAuthServer) -> None:
    def expire(_: ModelRequest) -> Any:
        guarded.expire_all()
        return call("act")

    agent, provider = host(MCPServer.http(guarded.url, auth=OAuth()), call("look"), expire, call("act"), "Done.")
    async with engine.served(agent) as client:
        signed_in = await sign_in(client, guarded.url)
        assert (signed_in.grant.server, signed_in.grant.state) == (guarded.url, "valid")
        response = await (await client.start("host", "Go.")).result()
        assert results(response.messages) == ["look 1 as ana", "act 2 as ana", "act 3 as ana"]
        [listed] = await client.grants.list()
        assert listed.state == "valid"
    assert guarded.refreshes == 1
    assert shown(provider.requests[0]) == ["look", "act"]
