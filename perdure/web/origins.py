"""Where requests come from: peers, proxies, hosts and origins, and the headers that answers carry for browsers.

The middleware is plain ASGI, which passes streams on as they come.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Collection, Iterable, MutableMapping, Sequence
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ..errors import InvalidInputError
from .problems import WebError, build_problem

SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS", "TRACE"})
FORWARDING_HEADERS = (
    *("forwarded", "x-forwarded", "x-real-ip", "via", "cf-", "true-client-ip", "x-client-ip", "x-cluster-client-ip"),
    *("x-original-", "x-envoy-", "fly-", "tailscale-", "ngrok-"),
)
"""What the names of headers begin with that proxies and tunnels add."""
PEER_KEY = "perdure.peer"
"""Where the scope has the address of the TCP peer, once ``client`` is what a proxy says."""

UNIX_PEER = "unix"
"""The peer of a Unix socket, which has no address."""


def get_peer(scope: Scope) -> str | None:
    """Return the address of the TCP peer, whatever proxies say of the client. None if the server gives none that is an
    address; ``"unix"`` for a Unix socket, which the server's own address shows: a TCP peer that has gone has none
    either."""
    client = scope[PEER_KEY] if PEER_KEY in scope else scope.get("client")
    if client and client[0]:
        return _normalize_address(client[0])
    server = scope.get("server")
    return UNIX_PEER if server is not None and server[1] is None else None


def get_client_address(scope: Scope) -> str:
    """Return the address of the client, as trusted proxies give it; for limits, so of IPv6 the network of 64 bits that
    one subscriber has."""
    client = scope.get("client")
    host = _normalize_address(client[0]) if client and client[0] else None
    if host is None:
        return UNIX_PEER
    address = ipaddress.ip_address(host)
    return host if address.version == 4 else str(ipaddress.ip_network((address, 64), strict=False))


def _normalize_address(host: str) -> str | None:
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return None
    mapped = address.ipv4_mapped if address.version == 6 else None
    return str(mapped or address)


def is_loopback(address: str) -> bool:
    """Whether it is an address of this machine."""
    return address != UNIX_PEER and ipaddress.ip_address(address).is_loopback


class TrustedPeers:
    """Addresses and networks whose headers are believed: ``10.0.0.0/8``, ``::1``, or ``unix``.

    Raises ``InvalidInputError`` for another text.
    """

    def __init__(self, entries: Sequence[str]) -> None:
        if isinstance(entries, str):
            raise InvalidInputError("trusted peers are a list of networks, not one text", hint='trusted=["10.0.0.0/8"]')
        self._has_unix = UNIX_PEER in entries
        self._networks = [_parse_network(entry) for entry in entries if entry != UNIX_PEER]

    def __contains__(self, peer: str | None) -> bool:
        if peer is None:
            return False
        if peer == UNIX_PEER:
            return self._has_unix
        address = ipaddress.ip_address(peer)
        return any(address in network for network in self._networks)


def _parse_network(entry: str) -> ipaddress.IPv4Network | ipaddress.IPv6Network:
    try:
        return ipaddress.ip_network(entry)
    except ValueError:
        raise InvalidInputError(
            f"{entry!r} is not an address or a network", hint="For instance: 10.0.0.0/8, ::1, or unix."
        ) from None


class Host(NamedTuple):
    """The value of a Host header."""

    name: str
    """In small letters, without brackets and without the dot at the end."""
    port: int | None


_HOST = re.compile(r"(?:\[([0-9a-f:.]+)\]|([a-z0-9_-]+(?:\.[a-z0-9_-]+)*)\.?)(?::([0-9]{1,5}))?")


def parse_host(value: str) -> Host | None:
    """Return name and port; None for a text that is not a host."""
    match = _HOST.fullmatch(value.lower()) if len(value) < 300 else None
    if match is None:
        return None
    return Host(match[1] or match[2], int(match[3]) if match[3] else None)


def is_loopback_name(name: str) -> bool:
    """Whether a host's name is one of this machine."""
    address = _normalize_address(name)
    return name == "localhost" or name.endswith(".localhost") or (address is not None and is_loopback(address))


# ---
# Middleware.


async def send_problem(error: WebError, scope: Scope, receive: Receive, send: Send) -> None:
    """Answer with the error."""
    await build_problem(error)(scope, receive, send)


class ForwardedHeaders:
    """Takes scheme, Host and client address from ``X-Forwarded-Proto``, ``-Host`` and ``-For`` of trusted proxies; from
    other peers they count for nothing. The server itself must not do so: run uvicorn with ``proxy_headers=False``."""

    def __init__(self, app: ASGIApp, *, trusted: Sequence[str] = ()) -> None:
        self._app = app
        self._trusted = TrustedPeers(trusted)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a connection."""
        if scope["type"] not in ("http", "websocket") or get_peer(scope) not in self._trusted:
            await self._app(scope, receive, send)
            return
        try:
            changed = self._apply(scope)
        except WebError as error:
            await send_problem(error, scope, receive, send)
            return
        await self._app(changed, receive, send)

    def _apply(self, scope: Scope) -> Scope:
        headers = Headers(scope=scope)
        changed: MutableMapping[str, Any] = {**scope, PEER_KEY: scope.get("client")}
        if (proto := _get_single(headers, "x-forwarded-proto")) is not None:
            if proto.lower() not in ("http", "https"):
                raise WebError("X-Forwarded-Proto is neither http nor https", name="ForwardedHeaderError")
            changed["scheme"] = proto.lower()
        if (host := _get_single(headers, "x-forwarded-host")) is not None:
            others = [pair for pair in scope["headers"] if pair[0].lower() != b"host"]
            changed["headers"] = [(b"host", host.encode("latin-1")), *others]
        forwarded = ",".join(headers.getlist("x-forwarded-for"))
        for hop in reversed(forwarded.split(",") if forwarded else ()):
            address = _normalize_address(hop.strip())
            if address is None:
                raise WebError("X-Forwarded-For has a value that is not an address", name="ForwardedHeaderError")
            changed["client"] = (address, 0)
            if address not in self._trusted:
                break
        return changed


def _get_single(headers: Headers, name: str) -> str | None:
    values = headers.getlist(name)
    if len(values) > 1 or (values and "," in values[0]):
        raise WebError(
            f"there are several values of {name}",
            name="ForwardedHeaderError",
            hint="The outermost proxy must set it, and the others keep it.",
        )
    return values[0].strip() if values else None


class HostCheck:
    """Refuses requests for another host: 421, and 400 without exactly one proper Host.

    ``hosts``: names (``api.example.com``, ``*.example.com``), each with a port or for all ports. ``dev``: also the
    names of this machine. ``exempt``: paths that need none, for the probes of orchestrators, which name an address.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        hosts: Iterable[str] = (),
        dev: bool = False,
        exempt: Collection[str] = ("/healthz", "/readyz"),
    ) -> None:
        self._app = app
        self._dev = dev
        self._exempt = frozenset(exempt)
        self._hosts = {_parse_allowed_host(host) for host in hosts}
        if not self._hosts and not dev:
            raise InvalidInputError("no host is allowed", hint='Name the service\'s own: hosts=["agents.example.com"].')

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a connection."""
        if scope["type"] == "http" and scope["path"] not in self._exempt:
            try:
                self._check(Headers(scope=scope).getlist("host"))
            except WebError as error:
                await send_problem(error, scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _check(self, values: Sequence[str]) -> None:
        host = parse_host(values[0]) if len(values) == 1 else None
        if host is None:
            raise WebError("the request needs one Host header with a host's name", name="HostError")
        if self._dev and is_loopback_name(host.name):
            return
        parent = f"*.{host.name.partition('.')[2]}"
        allowed = {(name, port) for name in (host.name, parent) for port in (None, host.port)}
        if not self._hosts & allowed:
            raise WebError("this service does not answer for that host", status=421, name="HostError")


def _parse_allowed_host(entry: str) -> tuple[str, int | None]:
    is_pattern = entry.startswith("*.")
    host = parse_host(entry.removeprefix("*."))
    if host is None:
        raise InvalidInputError(f"{entry!r} is not a host", hint="For instance: api.example.com, *.example.com:8443.")
    return (f"*.{host.name}" if is_pattern else host.name), host.port


class CrossOrigin:
    """Refuses requests that web pages of other origins make with methods that act, and gives CORS headers to the
    origins that are allowed.

    ``origins``: exact origins (``https://app.example.com``). ``credentials``: browsers may send them cookies and Basic
    credentials. The own origin is always allowed, also by https where a proxy ended TLS unseen.
    """

    ALLOWED_METHODS = "GET, HEAD, POST, PUT, PATCH, DELETE"
    ALLOWED_HEADERS = (
        "Authorization, Content-Type, Idempotency-Key, If-None-Match, Last-Event-ID, X-Perdure-Session, "
        # what OpenAI's SDK sends from a page
        "OpenAI-Organization, OpenAI-Project, X-Stainless-Arch, X-Stainless-Helper-Method, X-Stainless-Lang, "
        "X-Stainless-OS, X-Stainless-Package-Version, X-Stainless-Retry-Count, X-Stainless-Runtime, "
        "X-Stainless-Runtime-Version, X-Stainless-Timeout"
    )
    EXPOSED_HEADERS = (
        "Idempotency-Replayed, ETag, Link, Location, RateLimit, RateLimit-Policy, Retry-After, WWW-Authenticate, "
        "X-Perdure-Session, X-Perdure-Waits, X-Should-Retry"
    )

    def __init__(self, app: ASGIApp, *, origins: Iterable[str] = (), credentials: bool = False) -> None:
        self._app = app
        self._origins = frozenset(_check_origin(origin) for origin in origins)
        self._credentials = credentials

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a connection."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        origins = headers.getlist("origin")
        allowed = origins[0] if len(origins) == 1 and self._is_allowed(scope, headers, origins[0]) else None
        is_preflight = scope["method"] == "OPTIONS" and "access-control-request-method" in headers

        async def send_with_cors(message: Message) -> None:
            if message["type"] == "http.response.start":
                answer = MutableHeaders(scope=message)
                answer.add_vary_header("Origin")
                for name in [name for name in answer if name.startswith("access-control-")]:
                    del answer[name]
                if allowed in self._origins:
                    answer.update(self._build_headers(str(allowed), is_preflight=is_preflight))
            await send(message)

        if is_preflight and allowed is not None:
            await Response(status_code=204)(scope, receive, send_with_cors)
        elif is_preflight or (scope["method"] not in SAFE_METHODS and self._is_foreign(headers, allowed)):
            error = WebError(
                "pages of that origin may not send this request",
                status=403,
                name="CrossOriginError",
                hint="Start `perdure serve` with --allow-origin and that origin; in code: WebOptions(origins=…).",
            )
            await send_problem(error, scope, receive, send_with_cors)
        else:
            await self._app(scope, receive, send_with_cors)

    def _is_foreign(self, headers: Headers, allowed: str | None) -> bool:
        if "origin" in headers:
            return allowed is None
        return headers.get("sec-fetch-site") == "cross-site"

    def _is_allowed(self, scope: Scope, headers: Headers, origin: str) -> bool:
        return origin in self._origins or is_own_origin(scope.get("scheme", "http"), headers.get("host", ""), origin)

    def _build_headers(self, origin: str, *, is_preflight: bool) -> dict[str, str]:
        headers = {"Access-Control-Allow-Origin": origin}
        if self._credentials:
            headers["Access-Control-Allow-Credentials"] = "true"
        if is_preflight:
            headers["Access-Control-Allow-Methods"] = self.ALLOWED_METHODS
            headers["Access-Control-Allow-Headers"] = self.ALLOWED_HEADERS
            headers["Access-Control-Max-Age"] = "600"
        else:
            headers["Access-Control-Expose-Headers"] = self.EXPOSED_HEADERS
        return headers


_DEFAULT_PORTS = {"http": 80, "https": 443}


def _check_origin(origin: str) -> str:
    scheme, _, rest = origin.partition("://")
    host = parse_host(rest)
    if scheme not in _DEFAULT_PORTS or host is None or origin != origin.lower():
        raise InvalidInputError(
            f"{origin!r} is not an origin",
            hint="Name each one: https://app.example.com, without a path; * and null are not allowed.",
        )
    return origin


def is_own_origin(scheme: str, host: str, origin: str) -> bool:
    """Whether ``origin`` is that of the request itself; of a request by http also the same host's by https."""
    try:
        parts = urlsplit(origin)
        port = parts.port
    except ValueError:
        return False
    own = parse_host(host)
    if own is None or parts.scheme not in _DEFAULT_PORTS or (scheme == "https" and parts.scheme == "http"):
        return False
    if (
        parts.hostname != own.name
        or origin.lower() != f"{parts.scheme}://{parts.netloc}".lower()
        or "@" in parts.netloc
    ):
        return False
    expected = own.port or _DEFAULT_PORTS[parts.scheme]
    return (port or _DEFAULT_PORTS[parts.scheme]) == expected


class SecurityHeaders:
    """Adds headers that keep browsers and caches from misusing answers, where the answer does not set them itself."""

    HEADERS = (
        ("X-Content-Type-Options", "nosniff"),
        ("Referrer-Policy", "no-referrer"),
        ("Cache-Control", "no-store"),
        ("Content-Security-Policy", "default-src 'none'; frame-ancestors 'none'"),
    )

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a connection."""

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in self.HEADERS:
                    headers.setdefault(name, value)
            await send(message)

        await self._app(scope, receive, send_with_headers if scope["type"] == "http" else send)
