"""The middleware of ``perdure.web``: sizes, bodies, hosts, origins and rates, with the requests of hostile callers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from perdure.errors import InvalidInputError
from perdure.web.auth import Caller
from perdure.web.limits import (
    REFUSED_BODY_KEY,
    BodyLimits,
    BodyRule,
    ConnectionLimiter,
    FailureLimiter,
    RateLimiter,
    RequestLimits,
    WebLimits,
    parse_json_body,
)
from perdure.web.origins import CrossOrigin, ForwardedHeaders, HostCheck, SecurityHeaders, get_peer
from perdure.web.problems import WebError

JSON = {"content-type": "application/json"}


async def echo(request: Request) -> JSONResponse:
    """Answers with what has arrived."""
    body = await request.body()
    seen = {"size": len(body), "url": str(request.url), "peer": get_peer(request.scope)}
    return JSONResponse(seen | {"client": request.client.host if request.client else None}, headers={"Vary": "Accept"})


ECHO = Starlette(routes=[Route("/{path:path}", echo, methods=["GET", "POST", "OPTIONS"])])


def caller_of(app: ASGIApp, peer: str = "127.0.0.1") -> httpx.AsyncClient:
    transport = httpx.ASGITransport(app=app, client=(peer, 1234))
    return httpx.AsyncClient(transport=transport, base_url="http://agents.example.com")


# ---
# Sizes.


@pytest.mark.parametrize(
    ("url", "headers", "status"),
    [
        ("/a", {}, 200),
        ("/" + "a" * 9_000, {}, 414),
        ("/a?q=" + "a" * 9_000, {}, 414),
        ("/a", {f"x-{number}": "" for number in range(110)}, 431),
        ("/a", {"x-large": "a" * 33_000}, 431),
    ],
)
async def test_urls_and_headers_are_bounded(url: str, headers: dict[str, str], status: int) -> None:
    async with caller_of(RequestLimits(ECHO, limits=WebLimits())) as client:
        answer = await client.get(url, headers=headers)
    assert answer.status_code == status
    if status != 200:
        assert answer.headers["content-type"] == "application/problem+json"


async def chunks(count: int, size: int) -> AsyncIterator[bytes]:
    for _ in range(count):
        yield b"x" * size


@pytest.mark.parametrize(
    ("content", "headers", "status"),
    [
        (b"{}", JSON, 200),
        (b"{}", {"content-type": "Application/JSON; charset=UTF-8"}, 200),
        (b"", {}, 200),
        (b"{}", {}, 415),
        (b"{}", {"content-type": "text/plain"}, 415),
        (b"{}", {"content-type": "application/json; charset=latin-1"}, 415),
        (b"a=1", {"content-type": "application/x-www-form-urlencoded"}, 415),
        (b"{}", JSON | {"content-encoding": "gzip"}, 415),
        (b"x" * 101, JSON, 413),
        (b"{}", JSON | {"content-length": "10000000"}, 413),
        (b"{}", JSON | {"content-length": "-1"}, 400),
        (b"{}", JSON | {"content-length": "1_0"}, 400),
        (lambda: chunks(3, 50), JSON, 413),
        (lambda: chunks(2, 50), JSON, 200),
        (lambda: chunks(2, 50), {}, 415),
    ],
)
async def test_bodies_are_json_and_bounded(
    content: bytes | Callable[[], AsyncIterator[bytes]], headers: dict[str, str], status: int
) -> None:
    async with caller_of(BodyLimits(ECHO, limits=WebLimits(body_bytes=100))) as client:
        answer = await client.post("/a", content=content() if callable(content) else content, headers=headers)
    assert answer.status_code == status
    assert (answer.headers.get("connection") == "close") == (status != 200)


async def test_a_route_may_take_other_bodies() -> None:
    upload = BodyRule(("application/octet-stream",), 1000)
    app = BodyLimits(
        ECHO,
        limits=WebLimits(body_bytes=10),
        find_rule=lambda scope: upload if scope["path"] == "/files" else None,
    )
    headers = {"content-type": "application/octet-stream"}
    async with caller_of(app) as client:
        assert (await client.post("/files", content=b"x" * 500, headers=headers)).json()["size"] == 500
        assert (await client.post("/files", content=b"x" * 1001, headers=headers)).status_code == 413
        assert (await client.post("/files", content=b"{}", headers=JSON)).status_code == 415
        assert (await client.post("/other", content=b"x", headers=headers)).status_code == 415


async def call_asgi(
    app: ASGIApp, receive: Callable[[], Any], headers: list[tuple[bytes, bytes]], **scope: Any
) -> list[Message]:
    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    base = {"type": "http", "method": "POST", "path": "/a", "query_string": b"", "headers": headers}
    await app({**base, **scope}, receive, send)
    return sent


async def test_a_body_that_does_not_come_ends_in_408() -> None:
    async def receive() -> Message:
        await asyncio.Event().wait()
        raise AssertionError("nothing comes")

    app = BodyLimits(ECHO, limits=WebLimits(body_seconds=0.01))
    sent = await call_asgi(app, receive, [(b"content-type", b"application/json"), (b"content-length", b"5")])
    assert sent[0]["status"] == 408


async def test_a_disconnect_after_the_body_has_no_time_limit() -> None:
    gone = asyncio.Event()
    messages: list[Message] = [{"type": "http.request", "body": b"", "more_body": False}]

    async def receive() -> Message:
        if messages:
            return messages.pop()
        await gone.wait()
        return {"type": "http.disconnect"}

    async def app(_: object, receive: Callable[[], Any], __: object) -> None:
        assert (await receive())["type"] == "http.request"
        waiting = asyncio.ensure_future(receive())
        await asyncio.wait([waiting], timeout=0.05)  # longer than the body's limit
        assert not waiting.done()
        gone.set()
        assert (await waiting)["type"] == "http.disconnect"

    await call_asgi(BodyLimits(app, limits=WebLimits(body_seconds=0.01)), receive, [])


# ---
# JSON.


@pytest.mark.parametrize(
    "text", ['{"a": [1, 2.5, -1e3, "ü", null, true]}', '"\\ud83d\\ude00"', '"\\\\ud800"', "[" * 64 + "]" * 64]
)
def test_json_that_all_readers_take_alike(text: str) -> None:
    assert parse_json_body(text.encode()) == json.loads(text)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", "is empty"),
        (b" ", "is empty"),
        (b"\xff", "is not UTF-8, at character 0"),
        (b"{", "is not JSON"),
        (b"\xef\xbb\xbf{}", "is not JSON"),
        (b'["\x01"]', "is not JSON"),
        (b"[" * 65 + b"]" * 65, "deeper than 64 levels, at character 64"),
        (b"[" * 1_000_000, "more than 200,000 values"),
        (b"]" * 4_000_000, "more than 200,000 values"),
        (b'"' * 4_000_000, "more than 200,000 values"),
        (b'"\\' * 2_000_000, "is not JSON"),
        (b"[" + b"0," * 500_000 + b"0]", "more than 200,000 values"),
        (b'{"a": NaN}', "has NaN, which JSON is not to have, at character 6"),
        (b"[-Infinity]", "has -Infinity"),
        (b"[1e999]", "too large"),
        (b"1" * 5_000, "more than 100 digits, which JSON is not to have, at character 0"),
        (b'{"a": 1, "a": 2}', "the key 'a' twice"),
        (b'["\\ud800"]', "half of a surrogate pair, at character 2"),
        (b'["\\udc00"]', "half of a surrogate pair, at character 2"),
        (b'["\\ud800\\n\\udc00"]', "half of a surrogate pair, at character 2"),
        (b'["\\ud800 \\udc00"]', "half of a surrogate pair"),
        (b'["\\uD800\\uD800"]', "half of a surrogate pair"),
    ],
)
def test_json_that_is_refused(body: bytes, message: str) -> None:
    with pytest.raises(WebError) as refused:
        parse_json_body(body)
    assert refused.value.status == 400
    assert message in refused.value.message


# ---
# Hosts and origins.


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("agents.example.com", 200),
        ("Agents.Example.com.:80", 200),
        ("b.wild.example.com:9", 200),
        ("port.example.com:8443", 200),
        ("port.example.com", 421),
        ("example.com", 421),
        ("a.b.wild.example.com", 421),
        ("wild.example.com", 421),
        ("localhost", 421),
        ("127.0.0.1", 421),
        ("", 400),
        ("a b", 400),
        ("agents.example.com/x", 400),
        ("user@agents.example.com", 400),
        ("agents.example.com:x", 400),
    ],
)
async def test_hosts(host: str, status: int) -> None:
    app = HostCheck(ECHO, hosts=["agents.example.com", "*.wild.example.com", "port.example.com:8443"])
    async with caller_of(app) as client:
        assert (await client.get("/a", headers={"host": host})).status_code == status
        assert (await client.get("/healthz", headers={"host": host})).status_code == 200


@pytest.mark.parametrize("headers", [[], [(b"host", b"localhost"), (b"host", b"localhost")]])
async def test_a_host_that_is_missing_or_there_twice(headers: list[tuple[bytes, bytes]]) -> None:
    async def receive() -> Message:
        raise AssertionError("the body is not read")

    assert (await call_asgi(HostCheck(ECHO, dev=True), receive, headers))[0]["status"] == 400


async def test_names_of_this_machine_count_with_dev() -> None:
    async with caller_of(HostCheck(ECHO, dev=True)) as client:
        for host in ("localhost:8000", "127.0.0.1", "[::1]:8000", "app.localhost"):
            assert (await client.get("/a", headers={"host": host})).status_code == 200
        for host in ("evil.example", "127.0.0.1.evil.example", "10.0.0.1", "localhost.evil.example"):
            assert (await client.get("/a", headers={"host": host})).status_code == 421
    with pytest.raises(InvalidInputError, match="no host is allowed"):
        HostCheck(ECHO)


APP, EVIL = "https://app.example.com", "https://evil.example"


@pytest.mark.parametrize(
    ("method", "headers", "status", "allowed"),
    [
        ("POST", {}, 200, None),
        ("POST", {"origin": APP}, 200, APP),
        ("GET", {"origin": APP}, 200, APP),
        ("POST", {"origin": "http://agents.example.com"}, 200, None),
        ("POST", {"origin": "https://agents.example.com"}, 200, None),
        ("POST", {"origin": EVIL}, 403, None),
        ("POST", {"origin": "null"}, 403, None),
        ("POST", {"origin": ""}, 403, None),
        ("POST", {"origin": "http://agents.example.com:81"}, 403, None),
        ("POST", {"origin": "http://agents.example.com@evil.example"}, 403, None),
        ("POST", {"origin": "http://app.example.com"}, 403, None),
        ("GET", {"origin": EVIL}, 200, None),
        ("POST", {"sec-fetch-site": "cross-site"}, 403, None),
        ("GET", {"sec-fetch-site": "cross-site"}, 200, None),
        ("POST", {"origin": APP, "sec-fetch-site": "cross-site"}, 200, APP),
        ("OPTIONS", {"origin": APP, "access-control-request-method": "POST"}, 204, APP),
        ("OPTIONS", {"origin": EVIL, "access-control-request-method": "POST"}, 403, None),
    ],
)
async def test_origins(method: str, headers: dict[str, str], status: int, allowed: str | None) -> None:
    async with caller_of(CrossOrigin(ECHO, origins=[APP], credentials=True)) as client:
        answer = await client.request(method, "/a", headers=headers)
    assert (answer.status_code, answer.headers.get("access-control-allow-origin")) == (status, allowed)
    assert ("access-control-allow-credentials" in answer.headers) == (allowed is not None)
    assert "Origin" in answer.headers["vary"]
    if status == 200:
        assert "Accept" in answer.headers["vary"], "what the answer says itself stays"


@pytest.mark.parametrize(
    "origin", ["*", "null", "app.example.com", "https://app.example.com/", "https://App.example.com"]
)
def test_origins_that_cannot_be_allowed(origin: str) -> None:
    with pytest.raises(InvalidInputError, match="not an origin"):
        CrossOrigin(ECHO, origins=[origin])


async def test_what_a_proxy_says_counts_from_a_trusted_one_alone() -> None:
    app = ForwardedHeaders(ECHO, trusted=["10.0.0.0/8"])
    headers = {
        "x-forwarded-for": "1.1.1.1, 203.0.113.7, 10.0.0.9",
        "x-forwarded-proto": "https",
        "x-forwarded-host": "public.example.com",
    }
    async with caller_of(app, "::ffff:10.1.2.3") as client:
        seen = (await client.get("/a", headers=headers)).json()
        assert (seen["url"], seen["client"]) == ("https://public.example.com/a", "203.0.113.7")
        assert seen["peer"] == "10.1.2.3"
        for wrong in ({"x-forwarded-proto": "https, http"}, {"x-forwarded-proto": "ftp"}, {"x-forwarded-for": "me"}):
            assert (await client.get("/a", headers=wrong)).status_code == 400
    async with caller_of(app, "192.0.2.1") as client:
        seen = (await client.get("/a", headers=headers)).json()
        assert (seen["url"], seen["client"]) == ("http://agents.example.com/a", "192.0.2.1")


async def test_headers_of_every_answer() -> None:
    async with caller_of(SecurityHeaders(HostCheck(ECHO, hosts=["agents.example.com"]))) as client:
        for host in ("agents.example.com", "evil.example"):
            answer = await client.get("/a", headers={"host": host})
            assert answer.headers["x-content-type-options"] == "nosniff"
            assert answer.headers["referrer-policy"] == "no-referrer"
            assert answer.headers["cache-control"] == "no-store"
            assert answer.headers["content-security-policy"].startswith("default-src 'none'")

    async def cached(scope: Any, receive: Any, send: Any) -> None:
        await JSONResponse({}, headers={"Cache-Control": "max-age=60"})(scope, receive, send)

    async with caller_of(SecurityHeaders(cached)) as client:
        assert (await client.get("/a")).headers["cache-control"] == "max-age=60"


# ---
# Rates.

ANA, BEN = (Caller(name, "token:1", frozenset()) for name in ("ana", "ben"))


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_requests_of_a_caller_are_limited() -> None:
    clock = Clock()
    limiter = RateLimiter(WebLimits(requests_per_second=0.5, burst=2), clock=clock)
    for _ in range(2):
        limiter.check(ANA)
    with pytest.raises(WebError) as refused:
        limiter.check(ANA)
    assert refused.value.status == 429
    assert refused.value.headers == {
        "Retry-After": "2",
        "RateLimit-Policy": '"caller";q=2;w=4',
        "RateLimit": '"caller";r=0;t=2',
    }
    limiter.check(BEN)
    clock.now += 2
    limiter.check(ANA)
    with pytest.raises(WebError):
        limiter.check(ANA)


def test_a_large_body_counts_as_many_requests() -> None:
    clock = Clock()
    limiter = RateLimiter(WebLimits(requests_per_second=1, burst=2), clock=clock)
    limiter.check(ANA)
    limiter.charge(ANA, 60_000)
    limiter.check(ANA)
    limiter.charge(ANA, 4 * 1024 * 1024)
    with pytest.raises(WebError) as refused:
        limiter.check(ANA)
    assert refused.value.headers["Retry-After"] == "65"
    limiter.check(BEN)
    clock.now += 65
    limiter.check(ANA)


def test_the_rates_of_callers_seen_last_are_remembered() -> None:
    limiter = RateLimiter(WebLimits(burst=1, requests_per_second=0.001, buckets=3))
    for number in range(100):
        limiter.check(Caller(str(number), "proxy", frozenset()))
    assert len(limiter._buckets) == 3
    with pytest.raises(WebError):
        limiter.check(Caller("99", "proxy", frozenset()))


def test_failures_of_an_address_are_limited() -> None:
    from starlette.requests import HTTPConnection

    clock = Clock()
    limiter = FailureLimiter(WebLimits(failures_per_minute=60, failure_burst=2), clock=clock)
    one, neighbour, other = (
        HTTPConnection({"type": "http", "headers": [], "client": (host, 1)})
        for host in ("2001:db8::1", "2001:db8::2", "192.0.2.1")
    )
    for _ in range(5):
        limiter.check(other)
    for _ in range(2):
        limiter.check(one)
        limiter.record(one)
    with pytest.raises(WebError) as refused:
        limiter.check(neighbour)  # of the same network of 64 bits
    assert (refused.value.status, refused.value.headers["Retry-After"]) == (429, "1")
    limiter.check(other)
    clock.now += 1
    limiter.check(one)


def test_open_streams_of_a_caller_are_limited() -> None:
    limiter = ConnectionLimiter(WebLimits(streams=2))
    with limiter.hold(ANA), limiter.hold(ANA), limiter.hold(BEN):
        with pytest.raises(WebError) as refused, limiter.hold(ANA):
            pass
        assert refused.value.status == 429
    with limiter.hold(ANA), limiter.hold(ANA):
        pass


async def test_a_caller_who_is_not_known_learns_that_first() -> None:
    """The type of the body is said to callers who may send one."""
    acted: list[str] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        headers = dict(scope["headers"])
        if b"authorization" not in headers:
            await Response("who?", 401)(scope, receive, send)
            return
        if (refused := scope.get(REFUSED_BODY_KEY)) is not None:
            raise refused
        acted.append("acted")
        await Response("done")(scope, receive, send)

    transport = httpx.ASGITransport(BodyLimits(app, limits=WebLimits()))
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        form = {"content-type": "application/x-www-form-urlencoded"}
        assert (await client.post("/", content=b"a=1", headers=form)).status_code == 401
        known = form | {"authorization": "Bearer x"}
        assert (await client.post("/", content=b"a=1", headers=known)).status_code == 415
        assert acted == []
