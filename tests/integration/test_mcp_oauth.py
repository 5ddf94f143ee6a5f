"""MCP servers that demand OAuth: grants of people, refreshes by many workers, calls that wait for consent, machines."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest

from perdure import Agent, Client, ToolContext
from perdure.client.grants import SignedIn
from perdure.errors import ApprovalDecidedError, StoreError, ToolError
from perdure.mcp import ClientCredentials, MCPServer, OAuth
from perdure.ports.model import ModelRequest
from perdure.store.grants import GrantTables
from perdure.testing import ScriptedProvider, call
from tests.support.checks import results
from tests.support.engine import Engine
from tests.support.oauth import OAuthServer, agree, serve_oauth
from tests.support.wait import eventually

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


async def waiting(run: Any) -> Any:
    """Until a call of the run waits for consent."""

    async def one() -> Any:
        found = [each for each in (await run.status()).approvals if each.consent is not None]
        return found[0] if found else None

    return await eventually(one, deadline=45, what="a call that waits for consent")


async def test_without_consent_a_run_has_one_tool_that_asks_for_it_and_then_the_real_ones(
    engine: Engine, guarded: OAuthServer
) -> None:
    server = MCPServer.http(guarded.url, auth=OAuth(scopes=["mail"]), name="crm", prefix="c_")
    agent, provider = host(server, call("c_connect_crm"), call("c_act"), "Done.")
    async with engine.served(agent) as client:
        run = await client.start("host", "Go.", tenant="acme")
        pending = await waiting(run)
        assert guarded.asked == [], "nothing is sent to a server without a grant"
        assert pending.kind == "question"
        assert pending.question == f"Sign in to {guarded.url} (scopes: mail)"
        assert pending.consent.model_dump() == {
            "server": guarded.url,
            "scopes": ("mail",),
            "tenant": "acme",
            "user": "",
        }
        await sign_in(client, guarded.url)
        assert (await waiting(run)).hash == pending.hash, "another tenant's grant does not answer it"
        signed_in = await sign_in(client, guarded.url, tenant="acme", scopes=("mail",))
        assert signed_in.answered == (run.id,)
        response = await run.result()
        events = [event async for event in run.events()]
    assert [shown(request) for request in provider.requests] == [["c_connect_crm"], *[["c_look", "c_act"]] * 2]
    connected, acted = results(response.messages)
    assert connected == "Signed in to crm. From the next step on its tools are available: 2."
    assert acted == "act 1 as ana"
    [asked] = [event for event in events if event.type == "question.asked"]
    assert asked.consent is not None
    assert asked.consent.server == guarded.url
    assert "access-" not in str(events)


async def test_a_call_whose_grant_was_revoked_waits_for_consent_and_runs_once(
    engine: Engine, guarded: OAuthServer
) -> None:
    def revoke(_: ModelRequest) -> Any:
        guarded.revoke_all()
        return call("act")

    agent, provider = host(MCPServer.http(guarded.url, auth=OAuth(), recheck=0.0), revoke, call("act"), "Done.")
    async with engine.served(agent) as client:
        await sign_in(client, guarded.url)
        run = await client.start("host", "Go.")
        pending = await waiting(run)
        [listed] = await client.grants.list()
        assert listed.state == "needs sign-in"
        await run.answer(pending.call_id, True, by="ana")  # by hand, and nobody has signed in
        await eventually(lambda: _has_asked_again(run, pending.hash), deadline=45, what="the same question, once more")
        signed_in = await sign_in(client, guarded.url)
        assert signed_in.answered == (run.id,)
        response = await run.result()
    assert results(response.messages) == ["act 1 as ana", "act 2 as ana"]
    assert shown(provider.requests[-1]) == ["look", "act"]


async def _has_asked_again(run: Any, hash: str) -> bool:
    return any(each.hash != hash for each in (await run.status()).approvals)


async def test_a_token_that_is_refused_once_a_call_has_begun_does_not_have_it_made_again(
    engine: Engine, guarded: OAuthServer
) -> None:
    guarded.breaks_streams = True
    agent, _ = host(MCPServer.http(guarded.url, auth=OAuth()), call("act"), "Done.")
    async with engine.served(agent) as client:
        await sign_in(client, guarded.url)
        [told] = results((await (await client.start("host", "Go.")).result()).messages)
    assert [name for name, _ in guarded.calls] == ["act"]
    assert "the call may have happened or not" in told


async def test_a_person_who_does_not_sign_in_is_an_error_that_the_model_sees(
    engine: Engine, guarded: OAuthServer
) -> None:
    agent, _ = host(MCPServer.http(guarded.url, auth=OAuth(), name="crm"), call("connect_crm"), "I cannot.")
    async with engine.served(agent) as client:
        run = await client.start("host", "Go.")
        pending = await waiting(run)
        await run.answer(pending.call_id, error="I have no account there", by="bo")
        [told] = results((await run.result()).messages)
    assert told == "QuestionDeclinedError: bo did not sign in: I have no account there"


async def test_each_user_has_a_grant_and_a_run_without_a_user_is_told_so(engine: Engine, guarded: OAuthServer) -> None:
    server = MCPServer.http(guarded.url, auth=OAuth(per_user=True), name="crm")
    provider = ScriptedProvider(
        lambda request: "Done." if request.messages[-1].role == "tool" else call(shown(request)[0])
    )
    async with engine.served(Agent("host", provider, toolsets=[server])) as client:
        nobody = await (await client.start("host", "Go.")).result()
        assert results(nobody.messages) == [
            "NoUserError: MCP server 'crm' is used with the grant of the run's user, and this run has no user.\n"
            "Start the run with user=…, or let all runs share a grant: OAuth(per_user=False)."
        ]
        for name in ("ana", "bo"):
            guarded.user = name
            await sign_in(client, guarded.url, user=name)
        for name in ("bo", "ana"):
            run = await client.start("host", "Go.", user=name)
            [told] = results((await run.result()).messages)
            assert told.endswith(f"as {name}")
        run = await client.start("host", "Go.", user="eve")
        assert (await waiting(run)).consent.user == "eve"


async def test_a_scope_that_a_tool_demands_is_asked_for_and_not_twice(engine: Engine, guarded: OAuthServer) -> None:
    guarded.scopes = {"act": "write"}
    agent, _ = host(MCPServer.http(guarded.url, auth=OAuth(scopes=["read"])), call("look"), call("act"), "Done.")
    async with engine.served(agent) as client:
        await sign_in(client, guarded.url, scopes=("read",))
        run = await client.start("host", "Go.")
        pending = await waiting(run)
        assert pending.consent.scopes == ("read", "write")
        signed_in = await sign_in(client, guarded.url, scopes=pending.consent.scopes)
        assert signed_in.grant.scopes == ("read", "write")
        response = await run.result()
    assert results(response.messages) == ["look 1 as ana", "act 2 as ana"]


async def test_a_scope_that_the_grant_has_and_the_server_still_demands_is_an_error(
    engine: Engine, guarded: OAuthServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent, _ = host(MCPServer.http(guarded.url, auth=OAuth(), name="crm"), call("act"), "Done.")
    async with engine.served(agent) as client:
        await sign_in(client, guarded.url, scopes=("write",))
        guarded.scopes = {"act": "write"}
        for token in guarded.access.values():
            token.scope = ""
        response = await (await client.start("host", "Go.")).result()
    assert results(response.messages) == [
        "ToolError: MCP server 'crm' demands a scope that its grant has (write): signing in again does not help"
    ]


async def test_workers_that_refresh_at_once_use_the_refresh_token_once(engine: Engine, guarded: OAuthServer) -> None:
    servers = [MCPServer.http(guarded.url, auth=OAuth(), name="crm") for _ in range(3)]
    agents = [host(server, call("act"), "Done.")[0] for server in servers]
    for at, agent in enumerate(agents):
        agent.name = f"host{at}"
    async with engine.served(*agents) as client:
        await sign_in(client, guarded.url)
        guarded.expire_all()
        guarded.go_on.clear()
        runs = [await client.start(agent.name, "Go.") for agent in agents]
        await asyncio.to_thread(guarded.refreshing.wait, 45)
        guarded.go_on.set()
        told = [results((await run.result()).messages) for run in runs]
    assert guarded.refreshes == 1
    assert guarded.revoked == []
    assert sorted(text for [text] in told) == [f"act {n} as ana" for n in (1, 2, 3)]


async def test_a_call_that_asks_for_a_scope_does_not_end_the_refresh_of_another(
    engine: Engine, guarded: OAuthServer
) -> None:
    """Nor what it says of its client: a second refresh would use the refresh token twice."""
    guarded.registers = False
    guarded.clients |= {"old": {}, "new": {}}
    agents = [
        host(MCPServer.http(guarded.url, auth=OAuth(client_id=client_id), name="crm"), call(tool), "Done.")[0]
        for client_id, tool in (("old", "look"), ("new", "act"), ("old", "look"))
    ]
    for at, agent in enumerate(agents):
        agent.name = f"host{at}"
    async with engine.served(*agents) as client:
        await sign_in(client, guarded.url, auth=OAuth(client_id="old"))
        guarded.scopes = {"act": "write"}
        guarded.go_on.clear()
        guarded.expire_all()
        refreshing = await client.start("host0", "Go.")
        await asyncio.to_thread(guarded.refreshing.wait, 45)
        for token in guarded.access.values():
            token.expires_at = float("inf")
        await waiting(await client.start("host1", "Go."))
        guarded.refreshing.clear()
        guarded.expire_all()
        third = await client.start("host2", "Go.")
        assert not await asyncio.to_thread(guarded.refreshing.wait, 3), "it waits for the first one"
        guarded.go_on.set()
        told = [results((await run.result()).messages) for run in (refreshing, third)]
    assert guarded.refreshes == 1
    assert sorted(told) == [["look 1 as ana"], ["look 2 as ana"]]


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (503, None),
        (429, '{"error": "invalid_request"}'),
        (400, '{"error": "temporarily_unavailable"}'),
        (302, ""),
        (403, "<h1>Blocked by the firewall</h1>"),
        (404, "404 page not found"),
        (400, '["error"]'),
        (200, "<h1>Maintenance</h1>"),
    ],
)
async def test_a_token_endpoint_that_fails_is_an_error_and_the_grant_stays(
    engine: Engine, guarded: OAuthServer, monkeypatch: pytest.MonkeyPatch, status: int, body: str | None
) -> None:
    monkeypatch.setattr("perdure.mcp.server.RETRY_DELAYS", (0.0,))

    def fail(_: ModelRequest) -> Any:
        guarded.expire_all()
        guarded.refresh_status, guarded.refresh_body = status, body
        return call("act")

    def mend(_: ModelRequest) -> Any:
        guarded.refresh_status, guarded.refresh_body = 200, None
        return call("act")

    agent, _ = host(MCPServer.http(guarded.url, auth=OAuth()), fail, mend, "Done.")
    async with engine.served(agent) as client:
        await sign_in(client, guarded.url)
        response = await (await client.start("host", "Go.")).result()
    failed, acted = results(response.messages)
    assert "was not refreshed: " + (f"HTTP {status}" if status != 200 else "the answer is not valid") in failed
    assert acted == "act 1 as ana"


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (400, '{"error": "invalid_grant"}'),
        (401, '{"error": "invalid_client"}'),
        (200, '{"error": "bad_refresh_token", "error_description": "as GitHub says it"}'),
    ],
)
async def test_an_authorization_server_that_refuses_a_refresh_has_a_person_asked(
    engine: Engine, guarded: OAuthServer, status: int, body: str
) -> None:
    def refuse(_: ModelRequest) -> Any:
        guarded.expire_all()
        guarded.refresh_status, guarded.refresh_body = status, body
        return call("act")

    agent, _ = host(MCPServer.http(guarded.url, auth=OAuth()), refuse, "Done.")
    async with engine.served(agent) as client:
        await sign_in(client, guarded.url)
        run = await client.start("host", "Go.")
        await waiting(run)
        assert (await sign_in(client, guarded.url)).answered == (run.id,)
        assert results((await run.result()).messages) == ["act 1 as ana"]


async def test_a_store_that_is_away_is_waited_for_and_asks_nobody(
    engine: Engine, guarded: OAuthServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent, _ = host(MCPServer.http(guarded.url, auth=OAuth()), call("act"), "Done.")
    async with engine.served(agent) as client:
        await sign_in(client, guarded.url)
        guarded.expire_all()
        failures = {"get_grant": 2, "lease_grant": 1, "update_grant": 2}
        for name in failures:
            monkeypatch.setattr(GrantTables, name, _fail_at_first(getattr(GrantTables, name), name, failures))
        response = await (await client.start("host", "Go.")).result()
    assert results(response.messages) == ["act 1 as ana"]
    assert set(failures.values()) == {0}
    assert guarded.refreshes == 1


def _fail_at_first(method: Any, name: str, failures: dict[str, int]) -> Any:
    async def call_method(*args: Any, **options: Any) -> Any:
        if failures[name]:
            failures[name] -= 1
            error = StoreError("the store is away")
            error.retryable = True
            raise error
        return await method(*args, **options)

    return call_method


async def test_a_machine_has_tokens_of_its_own_and_fetches_them_again(engine: Engine, guarded: OAuthServer) -> None:
    def expire(_: ModelRequest) -> Any:
        guarded.expire_all()
        return call("act")

    auth = ClientCredentials("robot", guarded.issuer, "robot-secret", scopes=["mail"])
    agent, _ = host(MCPServer.http(guarded.url, auth=auth), call("act"), expire, "Done.")
    async with engine.served(agent) as client:
        response = await (await client.start("host", "Go.")).result()
    assert results(response.messages) == ["act 1 as robot", "act 2 as robot"]
    assert {token.scope for token in guarded.access.values()} == {"mail"}


async def test_the_secret_of_a_machine_goes_to_its_issuer_only(engine: Engine, guarded: OAuthServer) -> None:
    auth = ClientCredentials("robot", "http://127.0.0.1:9/other", "robot-secret")
    server = MCPServer.http(guarded.url, auth=auth)
    with pytest.raises(ToolError, match="issuer") as raised:
        await server.list(ToolContext())
    assert "robot-secret" not in str(raised.value)
    assert "POST /as/token" not in guarded.asked
    await server.close()


@pytest.mark.server
@pytest.mark.slow
@pytest.mark.parametrize("rotates", [False, True])
async def test_a_worker_that_is_killed_in_a_refresh_costs_a_consent_at_most(
    engine: Engine, guarded: OAuthServer, rotates: bool
) -> None:
    """With a refresh token that rotates the answer that the worker did not get had the only good one."""
    guarded.rotates = rotates
    client = await engine.client()
    worker = await engine.process("signing", TEST_MCP_URL=guarded.url)
    await sign_in(client, guarded.url)
    assert (await (await client.start("host", "Go.")).result()).content == "Done."
    guarded.expire_all()
    guarded.go_on.clear()
    run = await client.start("host", "Go.")
    await asyncio.to_thread(guarded.refreshing.wait, 60)
    await worker.kill()
    guarded.go_on.set()
    await engine.process("signing", TEST_MCP_URL=guarded.url)
    if rotates:
        await waiting(run)
        assert (await sign_in(client, guarded.url)).answered == (run.id,)
    response = await run.result()
    assert response.content == "Done."
    assert results(response.messages)[-1].endswith("as ana")


@pytest.mark.server
async def test_a_call_waits_without_a_worker_and_is_answered_by_the_next_one(
    engine: Engine, guarded: OAuthServer
) -> None:
    client = await engine.client()
    worker = await engine.process("signing", TEST_MCP_URL=guarded.url)
    run = await client.start("host", "Go.")
    pending = await waiting(run)
    assert pending.tool == "connect_crm"
    await worker.kill()
    signed_in = await sign_in(client, guarded.url)
    assert (signed_in.answered, signed_in.unanswered) == ((), (run.id,))
    await engine.process("signing", TEST_MCP_URL=guarded.url)
    with suppress(ApprovalDecidedError):  # the server may have kept the answer for the worker
        await run.answer(pending.call_id, True, by="ana")
    response = await run.result()
    assert results(response.messages) == ["Signed in to crm. From the next step on its tools are available: 2."]
