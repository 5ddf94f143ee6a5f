"""Who sends a request, and what they may do: tokens, proxies, ``--dev``, and the roles."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any

import pytest
from starlette.requests import HTTPConnection

from perdure.errors import InvalidInputError
from perdure.ports.tokens import TokenRow, generate_token
from perdure.testing.store import MemoryStore
from perdure.web.auth import (
    ROLES,
    Authenticator,
    AuthenticatorChain,
    BearerTokens,
    Caller,
    DevAccess,
    ProxyHeaders,
    Resource,
    RoleAuthorizer,
    Verb,
    check_allowed,
    get_list_scope,
)
from perdure.web.limits import FailureLimiter, WebLimits
from perdure.web.problems import ForbiddenError, NotFoundError, UnauthorizedError, WebError

LAST_USE = "SELECT last_used_at FROM api_tokens WHERE id = :id"
NOW = "2026-06-01T12:00:00.000000+00:00"


def request(headers: Sequence[tuple[str, str]] = (), peer: str = "127.0.0.1") -> HTTPConnection:
    """A request of that peer; of ``""`` by a Unix socket, as uvicorn says it."""
    raw = [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in headers]
    client, server = ((peer, 9), ("10.0.0.5", 8000)) if peer else (None, ("/run/web.sock", None))
    return HTTPConnection({"type": "http", "headers": raw, "client": client, "server": server})


class StoreClient:
    """The part of a client that tokens need."""

    def __init__(self, store: MemoryStore) -> None:
        self._store = store

    async def store(self, *, create: bool = False) -> MemoryStore:
        return self._store


class Service:
    """A store with tokens, and who authenticates by it."""

    def __init__(self) -> None:
        self.store = MemoryStore()
        self.now = NOW
        client: Any = StoreClient(self.store)
        self.tokens = BearerTokens(client, now=lambda: self.now)

    async def create(self, role: str = "sender", **fields: Any) -> tuple[str, str]:
        new = generate_token()
        await self.store.create_token(TokenRow(new.id, new.hash, "ana", role, NOW, "root", **fields))
        return new.id, new.token

    async def call(self, token: str) -> Caller | None:
        return await self.tokens.authenticate(request([("Authorization", f"Bearer {token}")]))


async def test_a_token_says_who_calls_and_what_it_is_limited_to() -> None:
    service = Service()
    token_id, token = await service.create(tenants=("acme",), sessions=("s1",))
    expected = Caller("ana", f"token:{token_id}", ROLES["sender"], ("acme",), None, ("s1",))
    assert await service.call(token) == expected
    basic = base64.b64encode(f"any:{token}".encode()).decode()
    assert await service.tokens.authenticate(request([("Authorization", f"basic {basic}")])) == expected
    assert token not in repr(service.store.run_sql("SELECT * FROM api_tokens")), "the store has a hash"
    token_id, token = await service.create(role="of-a-later-version")
    assert (await service.call(token) or expected).verbs == frozenset()


async def test_tokens_that_are_refused() -> None:
    service = Service()
    token_id, token = await service.create(expires_at=NOW)
    with pytest.raises(UnauthorizedError, match="expired"):
        await service.call(token)
    token_id, token = await service.create()
    assert await service.call(token)
    await service.store.revoke_token(token_id, NOW)
    with pytest.raises(UnauthorizedError, match="revoked"):
        await service.call(token)
    token_id, token = await service.create()
    other = (await service.create())[1]
    for wrong in (
        token[:-1] + ("0" if token[-1] != "0" else "1"),
        f"pdr_{token_id}_{other[-64:]}",
        f"pdr_{'0' * 16}_{'0' * 64}",
        f"pdr_{token_id}_",
        f"pdr_{token_id}_{token[-64:]}0",
        token.upper().replace("PDR", "pdr"),
        "pdr_" + "a" * 100_000,
    ):
        with pytest.raises(UnauthorizedError):
            await service.call(wrong)
    with pytest.raises(UnauthorizedError, match="several"):
        await service.tokens.authenticate(request([("Authorization", f"Bearer {token}")] * 2))
    for broken in ("Basic ?", "Basic /w=="):
        with pytest.raises(UnauthorizedError, match="base64"):
            await service.tokens.authenticate(request([("Authorization", broken)]))


@pytest.mark.parametrize("value", ["Negotiate abc", "Bearer eyJhbGciOi", "Bearer", "", "Basic YTpi"])
async def test_credentials_of_another_kind_are_left_to_others(value: str) -> None:
    assert await Service().tokens.authenticate(request([("Authorization", value)])) is None


async def test_the_last_use_is_written_once_a_minute() -> None:
    service = Service()
    token_id, token = await service.create()
    for now, recorded in [
        (NOW, NOW),
        ("2026-06-01T12:00:59.000000+00:00", NOW),
        ("2026-06-01T12:01:00.000000+00:00", "2026-06-01T12:01:00.000000+00:00"),
    ]:
        service.now = now
        await service.call(token)
        assert service.store.run_sql(LAST_USE, id=token_id) == [(recorded,)]


PROXY = ProxyHeaders(["10.0.0.0/8", "unix"], tenants="x-tenant", roles="x-role")
GIVEN = [("X-Forwarded-User", "ana"), ("X-Tenant", "acme"), ("X-Role", "approver")]


async def test_a_trusted_proxy_says_who_calls() -> None:
    expected = Caller("ana", "proxy", ROLES["approver"], ("acme",))
    for peer in ("10.1.2.3", "::ffff:10.1.2.3", ""):
        assert await PROXY.authenticate(request(GIVEN, peer)) == expected
    for peer in ("192.0.2.1", "127.0.0.1", "::1", "testclient"):
        assert await PROXY.authenticate(request(GIVEN, peer)) is None, "ignored, never believed"
    assert await PROXY.authenticate(request(peer="10.1.2.3")) is None


@pytest.mark.parametrize("client", [None, ("", 0)])
@pytest.mark.parametrize("server", [None, ("10.0.0.5", 8000), ("::1", 8000)])
async def test_a_tcp_peer_that_has_gone_is_not_taken_for_a_unix_socket(client: Any, server: Any) -> None:
    """uvicorn knows no address of it either."""
    connection = request(GIVEN)
    connection.scope.update(client=client, server=server)
    assert await PROXY.authenticate(connection) is None


@pytest.mark.parametrize("at", [0, 1, 2])
@pytest.mark.parametrize("value", ["", " ", "a,viewer", "viewer,", "an\xe4", "a\tb", "x" * 201, None])
async def test_headers_of_a_proxy_that_are_refused(at: int, value: str | None) -> None:
    name = GIVEN[at][0]
    changed = [*GIVEN[:at], *([GIVEN[at]] * 2 if value is None else [(name, value)]), *GIVEN[at + 1 :]]
    with pytest.raises(UnauthorizedError):
        await PROXY.authenticate(request(changed, "10.0.0.1"))
    if at > 0:
        with pytest.raises(UnauthorizedError):
            await PROXY.authenticate(request([*GIVEN[:at], *GIVEN[at + 1 :]], "10.0.0.1"))


async def test_groups_of_a_proxy_are_roles() -> None:
    proxy = ProxyHeaders(
        ["10.0.0.1"], roles="x-groups", role_names={"ops": "operator", "reviewers": "approver"}, lists=True
    )
    user = ("x-forwarded-user", "ana")
    caller = await proxy.authenticate(request([user, ("x-groups", "all, reviewers,ops")], "10.0.0.1"))
    assert caller is not None
    assert caller.verbs == ROLES["operator"]
    for groups in ("all", "admin", "ops,,all", ""):
        with pytest.raises(UnauthorizedError):
            await proxy.authenticate(request([user, ("x-groups", groups)], "10.0.0.1"))
    with pytest.raises(UnauthorizedError):
        await proxy.authenticate(request([("x-forwarded-user", "ana,root"), ("x-groups", "ops")], "10.0.0.1"))


def test_settings_of_a_proxy_that_are_refused() -> None:
    bad: Any = "root"
    for wrong in (lambda: ProxyHeaders(["10.0.0.0/40"]), lambda: ProxyHeaders(bad), lambda: ProxyHeaders([], role=bad)):
        with pytest.raises(InvalidInputError):
            wrong()


LOCAL = ("Host", "localhost:8000")


@pytest.mark.parametrize("peer", ["127.0.0.1", "::1", "::ffff:127.0.0.1", "127.9.9.9"])
async def test_dev_lets_this_machine_in(peer: str) -> None:
    assert await DevAccess().authenticate(request([LOCAL], peer)) == Caller("dev", "dev", ROLES["admin"])


@pytest.mark.parametrize(
    ("headers", "peer"),
    [
        ([LOCAL], "192.0.2.1"),
        ([LOCAL], ""),
        ([LOCAL], "testclient"),
        ([], "127.0.0.1"),
        ([LOCAL, LOCAL], "127.0.0.1"),
        ([("Host", "rebound.example:8000")], "127.0.0.1"),
        *(
            ([LOCAL, (name, "1.2.3.4")], "127.0.0.1")
            for name in ("Forwarded", "X-Forwarded-For", "X-Forwarded-Prefix", "X-Real-IP", "Via", "CF-Ray")
        ),
    ],
)
async def test_dev_refuses_what_comes_from_elsewhere(headers: list[tuple[str, str]], peer: str) -> None:
    with pytest.raises(ForbiddenError):
        await DevAccess().authenticate(request(headers, peer))


class DeskCookie:
    """An authenticator of a program's own."""

    async def authenticate(self, connection: HTTPConnection) -> Caller | None:
        if connection.cookies.get("desk") != "open":
            return None
        return Caller("desk", "cookie", ROLES["viewer"])


async def test_the_first_that_knows_the_credentials_decides() -> None:
    service = Service()
    _, token = await service.create()
    own: Authenticator = DeskCookie()
    chain = AuthenticatorChain([service.tokens, own])
    with_token = ("Authorization", f"Bearer {token}")
    assert (await chain.authenticate(request([with_token, ("Cookie", "desk=open")]))).name == "ana"
    assert (await chain.authenticate(request([("Cookie", "desk=open")]))).name == "desk"
    with pytest.raises(UnauthorizedError) as nothing:
        await chain.authenticate(request())
    assert nothing.value.headers == {"WWW-Authenticate": 'Bearer realm="perdure"'}
    with pytest.raises(UnauthorizedError) as wrong:
        await chain.authenticate(request([("Authorization", "Bearer pdr_x"), ("Cookie", "desk=open")]))
    assert 'error="invalid_token"' in wrong.value.headers["WWW-Authenticate"]
    with pytest.raises(UnauthorizedError) as page:
        await chain.authenticate(request([("Accept", "text/html,*/*")]))
    assert page.value.headers["WWW-Authenticate"].startswith("Basic ")


async def test_an_address_with_many_wrong_tokens_has_to_wait() -> None:
    service = Service()
    chain = AuthenticatorChain([service.tokens], failures=FailureLimiter(WebLimits(failure_burst=2), clock=lambda: 0.0))
    wrong = [("Authorization", "Bearer pdr_x")]
    for _ in range(2):
        with pytest.raises(UnauthorizedError):
            await chain.authenticate(request(wrong, "192.0.2.1"))
    with pytest.raises(WebError) as waits:
        await chain.authenticate(request(wrong, "192.0.2.1"))
    assert waits.value.status == 429
    with pytest.raises(UnauthorizedError):
        await chain.authenticate(request(wrong, "192.0.2.2"))


async def test_another_look_at_a_known_request_is_no_guess_and_no_use() -> None:
    service = Service()
    token_id, token = await service.create()
    chain = AuthenticatorChain([service.tokens], failures=FailureLimiter(WebLimits(failure_burst=1), clock=lambda: 0.0))
    known = request([("Authorization", f"Bearer {token}")], "192.0.2.1")
    caller = await chain.authenticate(known)
    with pytest.raises(UnauthorizedError):
        await chain.authenticate(request([("Authorization", "Bearer pdr_x")], "192.0.2.1"))
    service.now = "2026-06-01T13:00:00.000000+00:00"
    assert await chain.authenticate(known) == caller, "also while new requests of the address have to wait"
    assert service.store.run_sql(LAST_USE, id=token_id) == [(NOW,)]
    await service.store.revoke_token(token_id, NOW)
    for _ in range(3):
        with pytest.raises(UnauthorizedError, match="revoked"):
            await chain.authenticate(known)


ROOT = Caller("root", "dev", ROLES["admin"])
ACME = Caller("ana", "proxy", ROLES["operator"], tenants=("acme",))
DESK = Caller("desk", "proxy", ROLES["sender"], agents=("support",), sessions=("s1",))


@pytest.mark.parametrize(
    ("caller", "verb", "resource", "allowed"),
    [
        (ROOT, "operate", Resource("session", "s", agent="a"), True),
        (ROOT, "admin", Resource("webhook"), True),
        (ACME, "admin", Resource("webhook", tenant="acme"), False),
        (ACME, "operate", Resource("session", "s", agent="a", tenant="acme"), True),
        (ACME, "read", Resource("session", "s", agent="a", tenant="other"), False),
        (ACME, "read", Resource("session", "s", agent="a"), False),
        (ACME, "read", Resource("session"), True),
        (ACME, "read", Resource("session", tenant="other"), False),
        (ACME, "send", Resource("session", agent="a"), True),
        (ACME, "send", Resource("session", "new", agent="a"), False),
        (ACME, "send", Resource("session", agent="a", tenant="acme"), True),
        (ACME, "read", Resource("agent", "a"), True),
        (DESK, "send", Resource("session", "s1", agent="support"), True),
        (DESK, "send", Resource("session", "s1/call/7", agent="support"), True),
        (DESK, "read", Resource("session", "s10", agent="support"), False),
        (DESK, "read", Resource("session", "s1", agent="other"), False),
        (DESK, "decide", Resource("approval", "s1", agent="support"), False),
        (DESK, "send", Resource("session", agent="other"), False),
        (DESK, "send", Resource("session", "new", agent="support"), False),
        (DESK, "read", Resource("schedule", "s1", agent="support"), False),
        (DESK, "read", Resource("agent", "support"), True),
        (DESK, "read", Resource("agent", "other"), False),
    ],
)
async def test_what_callers_may_do(caller: Caller, verb: Verb, resource: Resource, allowed: bool) -> None:
    assert await RoleAuthorizer().is_allowed(caller, verb, resource) is allowed


async def test_what_may_not_be_read_is_not_there() -> None:
    own = Resource("session", "s", agent="a", tenant="acme")
    await check_allowed(RoleAuthorizer(), ACME, "send", own)
    with pytest.raises(ForbiddenError, match="may not manage tokens"):
        await check_allowed(RoleAuthorizer(), ACME, "admin", own)
    with pytest.raises(NotFoundError):
        await check_allowed(RoleAuthorizer(), ACME, "send", Resource("session", "s", agent="a", tenant="other"))


def test_what_lists_may_show() -> None:
    scope = get_list_scope(DESK)
    assert (scope.tenants, scope.agents, scope.sessions) == (None, ("support",), ("s1",))
    assert scope.shows(id="s1/x", agent="support", tenant="any")
    assert not scope.shows(id="s2", agent="support", tenant=None)
    assert not get_list_scope(ACME).shows(id="s", agent="a", tenant=None)
