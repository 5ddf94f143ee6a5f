"""Sign-ins at MCP servers whose authorization servers are broken, or hostile; what of them is stored."""

from __future__ import annotations

import asyncio
import base64
import logging
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from perdure import Agent, Client
from perdure.errors import DefinitionError, InvalidInputError, PerdureError, ToolError
from perdure.mcp import ClientCredentials, MCPServer, OAuth
from perdure.ports.grants import GrantKey
from perdure.testing import ScriptedProvider, call
from tests.support.checks import results
from tests.support.engine import Engine
from tests.support.oauth import OAuthServer, agree, serve_oauth
from tests.support.wait import eventually

RETURN = "http://127.0.0.1:9/callback"
KEY, OTHER_KEY = (base64.b64encode(bytes([number]) * 32).decode() for number in (1, 2))


@pytest.fixture
def guarded() -> Iterator[OAuthServer]:
    with serve_oauth() as server:
        yield server


@pytest.fixture
async def client(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Client]:
    monkeypatch.setenv("PERDURE_ENCRYPTION_KEYS", f"k1:{KEY}")
    async with engine.served(Agent("host", ScriptedProvider([]))) as client:
        yield client


async def begin(client: Client, guarded: OAuthServer, **options: Any) -> str:
    return (await client.grants.begin(guarded.url, redirect_uri=RETURN, **options)).url


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"registers": False}, "Registration failed: 404"),
        ({"issuer_in_metadata": "https://evil.example"}, "issuer mismatch: https://evil.example !="),
        ({"pkce": False}, "does not support PKCE with S256"),
        ({"padding": 300_000}, "is larger than 256 KiB"),
        ({"resource": "https://other.example/mcp"}, "does not match expected"),
        ({"metadata_url": "http://127.0.0.1:99999/"}, "is not valid"),
        ({"metadata_url": "http://[::1/"}, "is not valid"),
        ({"metadata_url": "file:///etc/passwd"}, "is not an http(s) URL"),
        ({"metadata_url": "/relative"}, "is not an http(s) URL"),
        ({"metadata_url": "http://" + "a" * 300 + "/"}, "cannot be reached"),
    ],
)
async def test_a_server_at_which_nobody_can_sign_in_says_why(
    client: Client, guarded: OAuthServer, settings: dict[str, Any], said: str
) -> None:
    for name, value in settings.items():
        setattr(guarded, name, value)
    with pytest.raises(ToolError) as raised:
        await begin(client, guarded)
    assert said in raised.value.message
    assert await client.grants.list() == []


async def test_a_server_that_does_not_answer_is_given_up(
    client: Client, guarded: OAuthServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("perdure.mcp.sign_in.ANSWER_SECONDS", 0.2)
    guarded.go_on.clear()
    with pytest.raises(ToolError, match=r"oauth-authorization-server/as did not answer within 0\.2 s"):
        await begin(client, guarded)


async def test_a_client_that_was_registered_by_hand(client: Client, guarded: OAuthServer) -> None:
    guarded.registers = False
    guarded.clients["by-hand"] = {}
    page = await begin(
        client, guarded, auth=OAuth(client_id="by-hand", client_secret="hush-hush", issuer=guarded.issuer)
    )
    assert "client_id=by-hand&" in page
    assert "hush" not in page
    await client.grants.finish(await agree(page))
    [grant] = await client.grants.list()
    assert grant.state == "valid"


@pytest.mark.parametrize("registers", [False, True])
async def test_the_secret_of_a_client_goes_to_its_issuer_alone(
    client: Client, guarded: OAuthServer, registers: bool
) -> None:
    """The MCP server names the authorization server, and may name its own."""
    guarded.registers = registers
    guarded.clients["by-hand"] = {}
    auth = OAuth(client_id="by-hand", client_secret="hush-hush", issuer="https://auth.elsewhere.example")
    with pytest.raises(
        ToolError,
        match=r"names the authorization server .*/as, and the client is known to https://auth.elsewhere.example",
    ):
        await begin(client, guarded, auth=auth)
    assert not any(path.startswith("POST /as/") and path != "POST /as/register" for path in guarded.asked)


async def test_a_sign_in_begins_with_the_client_that_the_agent_has_declared(
    engine: Engine, client: Client, guarded: OAuthServer
) -> None:
    """Where the agent's code is not: a command, a console. The secret is told to nobody on the way."""
    guarded.registers = False
    guarded.clients["by-hand"] = {}
    auth = OAuth(client_id="by-hand", client_secret="hush-hush-0123", issuer=guarded.issuer)
    server = MCPServer.http(guarded.url, auth=auth, name="crm")
    agent = Agent("user", ScriptedProvider([call("connect_crm"), call("act"), "Done."]), toolsets=[server])
    async with engine.served(agent) as other:
        run = await other.start("user", "Go.")
        await eventually(lambda: _has_asked(other), deadline=45, what="the question")
        [listed] = await other.grants.list()
        assert listed.state == "needs sign-in"
        page = await begin(other, guarded)
        assert "client_id=by-hand&" in page
        assert (await other.grants.finish(await agree(page))).answered == (run.id,)
        assert results((await run.result()).messages)[-1] == "act 1 as ana"
        [question] = [event async for event in run.events() if event.type == "question.asked"]
    assert "hush" not in str(question)


async def _has_asked(client: Client) -> bool:
    return bool(await client.approvals())


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"state": "another"}, "it was used, or it has expired"),
        ({"iss": "https://evil.example"}, "iss mismatch"),
        ({"iss": None}, "missing iss"),
        ({"code": None}, "without a code"),
        ({"code": "guessed"}, "the code was not taken: HTTP 400: invalid_grant"),
        ({"error": "access_denied", "error_description": "x" * 9000}, "too large"),
    ],
)
async def test_an_answer_that_is_not_the_browsers(
    client: Client, guarded: OAuthServer, change: dict[str, str | None], said: str
) -> None:
    answer = await agree(await begin(client, guarded))
    for name, value in change.items():
        answer = {key: text for key, text in answer.items() if key != name}
        answer |= {} if value is None else {name: value}
    with pytest.raises(PerdureError) as raised:
        await client.grants.finish(answer)
    assert said in raised.value.message
    assert await client.grants.list() == []


async def test_a_token_endpoint_that_repeats_what_it_was_sent(client: Client, guarded: OAuthServer) -> None:
    guarded.repeats = True
    answer = await agree(await begin(client, guarded)) | {"code": "guessed-0123456789"}
    with pytest.raises(ToolError) as raised:
        await client.grants.finish(answer)
    assert "invalid_request: not grant_type=authorization_code" in raised.value.message
    assert "0123456789" not in raised.value.message
    assert "code_verifier=[redacted]" in raised.value.message


@pytest.mark.parametrize("scope", ["mail \x1b[2J\u202e \\ " + "x" * 500, "mail " + " ".join(["s" * 100] * 2000)])
async def test_scopes_of_a_hostile_server_are_bounded_texts(client: Client, guarded: OAuthServer, scope: str) -> None:
    guarded.gives_scope = scope
    await client.grants.finish(await agree(await begin(client, guarded)))
    [grant] = await client.grants.list()
    assert "mail" in grant.scopes
    assert len(" ".join(grant.scopes)) < 2100
    assert all(name.isascii() and name.isprintable() for name in grant.scopes)


@pytest.mark.parametrize("seconds", [10**30, -(10**30), 0])
async def test_a_token_is_listed_whatever_time_it_is_said_to_last(
    client: Client, guarded: OAuthServer, seconds: int
) -> None:
    guarded.token_fields = {"expires_in": seconds}
    signed_in = await client.grants.finish(await agree(await begin(client, guarded)))
    assert [signed_in.grant] == await client.grants.list()
    assert signed_in.grant.state == ("valid" if seconds > 0 else "refreshes")


async def test_a_time_that_is_no_number_of_the_machine_is_an_error(client: Client, guarded: OAuthServer) -> None:
    guarded.token_fields = {"expires_in": 10**400}
    answer = await agree(await begin(client, guarded))
    with pytest.raises(ToolError, match="an answer is not valid"):
        await client.grants.finish(answer)
    assert await client.grants.list() == []


@pytest.mark.parametrize("token", ["", "secret\r\nX-Evil: 1", "secret\u00e9", "secret " * 2, "secret" * 10_000])
async def test_a_token_that_no_header_can_carry_is_refused(
    client: Client, guarded: OAuthServer, caplog: Any, token: str
) -> None:
    guarded.token_fields = {"access_token": token}
    answer = await agree(await begin(client, guarded))
    with pytest.raises(ToolError, match="access token") as raised:
        await client.grants.finish(answer)
    assert "secret" not in raised.value.message + caplog.text
    assert await client.grants.list() == []


async def test_an_answer_counts_once_and_for_the_person_who_began(client: Client, guarded: OAuthServer) -> None:
    answer = await agree(await begin(client, guarded, by="ana"))
    with pytest.raises(InvalidInputError, match="another person has begun"):
        await client.grants.finish(answer, by="eve")
    answer = await agree(await begin(client, guarded, by="ana"))
    done = await asyncio.gather(*(client.grants.finish(answer) for _ in range(3)), return_exceptions=True)
    assert sorted(type(one).__name__ for one in done) == ["InvalidInputError", "InvalidInputError", "SignedIn"]


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("http://169.254.169.254/latest", "not https"),
        ("https://127.0.0.1/token", "whose address is not public"),
        ("https://[::ffff:10.0.0.1]/token", "whose address is not public"),
        ("https://user:word@example.com/", "with credentials in the URL"),
    ],
)
async def test_a_server_on_the_internet_leads_to_no_address_of_this_network(
    client: Client, guarded: OAuthServer, monkeypatch: pytest.MonkeyPatch, url: str, said: str
) -> None:
    """Loopback counts as public here: there is no server on the internet in a test."""
    from perdure.mcp import sign_in

    page = await begin(client, guarded)
    real, own = sign_in._is_private_host, f"http://127.0.0.1:{guarded.port}"
    check = sign_in._check_address

    async def is_private(asked: str) -> bool:
        return not asked.startswith(own) and await real(asked)

    async def check_address(asked: str, server: str, may_be_private: bool) -> None:
        if not asked.startswith(own):
            await check(asked, server, may_be_private)

    monkeypatch.setattr(sign_in, "_is_private_host", is_private)
    monkeypatch.setattr(sign_in, "_check_address", check_address)
    assert page
    guarded.token_url = url
    answer = await agree(await begin(client, guarded))
    with pytest.raises(ToolError) as raised:
        await client.grants.finish(answer)
    assert said in raised.value.message
    assert "word" not in raised.value.message


async def test_a_server_with_an_address_on_the_internet_is_on_the_internet(
    client: Client, guarded: OAuthServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever others its name has: its owner says which."""

    async def resolve(*_: Any) -> list[str]:
        return ["127.0.0.1", "8.8.8.8"]

    monkeypatch.setattr("perdure.mcp.sign_in.resolve_host", resolve)
    with pytest.raises(ToolError, match="which is not https"):
        await begin(client, guarded)
    assert guarded.asked == []


async def test_what_is_stored_is_sealed_and_survives_a_change_of_the_key(
    engine: Engine, client: Client, guarded: OAuthServer, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    caplog.set_level(logging.DEBUG)
    page = await begin(client, guarded)
    await client.grants.finish(await agree(page))
    [token] = guarded.access
    [refresh] = guarded.refresh
    store = await client.store()
    row = await store.get_grant(GrantKey("", "", guarded.url))
    assert row is not None
    assert row.key_id == "k1"
    for secret in (token, refresh):
        assert secret not in row.sealed
        assert secret not in caplog.text
    agent = Agent(
        "user", ScriptedProvider([call("act"), "Done."]), toolsets=[MCPServer.http(guarded.url, auth=OAuth())]
    )
    monkeypatch.setenv("PERDURE_ENCRYPTION_KEYS", f"k2:{OTHER_KEY}")
    [grant] = await client.grants.list()
    assert (grant.state, grant.key_id) == ("sealed", "k1")
    with pytest.raises(InvalidInputError, match="was encrypted with key 'k1'"):
        await client.grants.delete(guarded.url)
    monkeypatch.setenv("PERDURE_ENCRYPTION_KEYS", f"k2:{OTHER_KEY},k1:{KEY}")
    guarded.expire_all()
    async with engine.served(agent) as other:
        response = await (await other.start("user", "Go.")).result()
    assert results(response.messages) == ["act 1 as ana"]
    [grant] = await client.grants.list()
    assert (grant.state, grant.key_id) == ("valid", "k2"), "what is written again has the new key"


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: OAuth(client_secret="x"), "a client_secret without a client_id"),
        (lambda: OAuth(client_id="x", client_secret="x"), "a client_secret without the issuer that knows it"),
        (lambda: OAuth(client_id="x", issuer="x.example"), "OAuth: issuer is the http"),
        (lambda: OAuth(scopes=["a b"]), "scopes are texts without spaces"),
        (lambda: OAuth(client_metadata_url="http://x.example/c.json"), "is an https URL with a path"),
        (lambda: ClientCredentials("id", "https://x.example"), "give client_secret or private_key"),
        (lambda: ClientCredentials("id", "x.example", "secret"), "issuer is the http"),
        (lambda: MCPServer.http("https://x.example/mcp", auth="token"), "auth is OAuth"),  # type: ignore[arg-type]  # as a user may
        (lambda: MCPServer.http("https://me:secret@x.example/mcp", auth=OAuth()), "a URL with credentials and auth="),
    ],
)
def test_a_definition_that_cannot_work_is_refused(make: Any, said: str) -> None:
    with pytest.raises(DefinitionError) as raised:
        make()
    assert said in raised.value.message
    assert "secret" not in raised.value.message.replace("client_secret", "")
