"""Webhooks on the wire: the URLs that may be called, signed requests as of Standard Webhooks, and the bodies of events.

Standard library alone: a worker has no HTTP client in common with all its extras, and the connection must go to the
address that was checked, which they do not offer. Why: docs/decisions/041-webhooks.md.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import hmac
import ipaddress
import json
import re
import secrets
import socket
import ssl
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from fnmatch import fnmatchcase
from functools import cache
from http.client import HTTPException, HTTPResponse, IncompleteRead
from importlib.metadata import PackageNotFoundError, version
from io import BytesIO
from typing import Any, cast
from urllib.parse import quote, urlsplit

from .errors import InvalidInputError
from .ports.times import add_seconds
from .ports.webhooks import WEBHOOK_EVENT_TYPES
from .types.events import Event, RunEvent, TurnEvent
from .types.messages import Data, clean_text

# ---
# Which types there are.


PING = "ping"
"""The type of a test."""
WEBHOOK_TYPES = tuple(
    sorted(
        {
            *(name for name in WEBHOOK_EVENT_TYPES if name not in ("run", "turn")),
            *(f"run.{state}" for state in RunEvent.model_fields["state"].annotation.__args__),  # type: ignore[union-attr]  # a Literal
            *(f"turn.{state}" for state in TurnEvent.model_fields["state"].annotation.__args__),  # type: ignore[union-attr]  # a Literal
        }
    )
)
"""Every type that a subscription may ask for: those of runs and turns with their states."""


def get_webhook_type(event: Event) -> str:
    """Return the type that webhooks know the event by: ``run.completed`` for an event of a run."""
    return f"{event.type}.{event.state}" if isinstance(event, RunEvent | TurnEvent) else event.type


def matches_types(patterns: Iterable[str], type: str) -> bool:
    """Whether a subscription to ``patterns`` is one to ``type``."""
    return any(fnmatchcase(type, pattern) for pattern in patterns)


class WebhookTask(Data):
    """What is to be delivered: the input of the workflow and of its activity. The body is read from the store."""

    webhook_id: str
    message_id: str
    type: str
    at: str = ""
    """Time of the event."""
    stream: str = ""
    seq: int = 0
    context_id: str = ""
    agent: str | None = None
    tenant: str | None = None
    user: str | None = None


# ---
# Where requests may go.


URL_CHARS = 2000
_URL_HINT = "For instance https://hooks.example.com/perdure."
_TRANSLATED = (ipaddress.ip_network("64:ff9b::/96"), ipaddress.ip_network("2002::/16"))
"""IPv6 networks whose addresses have an IPv4 address in them, which may be a private one."""
_NOT_PUBLIC = tuple(
    ipaddress.ip_network(network)
    for network in (
        "168.63.129.16/32",  # Azure's wire server, of each virtual machine alone; the registries call it global
        *("192.0.0.0/24", "192.31.196.0/24", "192.52.193.0/24", "192.88.99.0/24", "192.175.48.0/24"),
        *("64:ff9b:1::/48", "100::/64", "100:0:0:1::/64", "2001::/23", "2620:4f:8000::/48", "3fff::/20", "5f00::/16"),
    )
)
"""Networks that some version of Python takes for global, and that no endpoint is in: IANA's registries of special
purposes grow, and a Python keeps those of its release."""
Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Resolve = Callable[[str, int], Awaitable[list[str]]]
"""Returns the addresses of a host and port. Raises ``OSError``."""


@dataclass(frozen=True, slots=True)
class AllowList:
    """Hosts and networks that may be reached although they are not public, and by plain HTTP."""

    hosts: frozenset[str] = frozenset()
    networks: tuple[ipaddress.IPv4Network | ipaddress.IPv6Network, ...] = ()

    @classmethod
    def parse(cls, text: str) -> AllowList:
        """Parse ``hooks.corp.example, 10.1.0.0/16, 127.0.0.1``. Raises ``InvalidInputError``."""
        hosts, networks = set[str](), []
        for entry in filter(None, map(str.strip, text.split(","))):
            try:
                networks.append(ipaddress.ip_network(entry.strip("[]")))
            except ValueError:
                if "/" in entry or not re.fullmatch(r"[A-Za-z0-9_.-]+", entry):
                    raise InvalidInputError(
                        f"PERDURE_WEBHOOK_ALLOW has {entry[:80]!r}, which is neither a host nor a network",
                        hint="For instance PERDURE_WEBHOOK_ALLOW='hooks.corp.example,10.1.0.0/16'.",
                    ) from None
                hosts.add(entry.lower().rstrip("."))
        return cls(frozenset(hosts), tuple(networks))

    def has_address(self, address: Address) -> bool:
        """Whether the address is in one of the networks."""
        return bool(self._list_networks(address))

    def find_allowance(self, endpoint: Endpoint, addresses: Iterable[str]) -> str:
        """Return the entries by which an endpoint with these addresses may be reached, as text for :meth:`parse`; ""
        for one that needs none."""
        if endpoint.host in self.hosts:
            return endpoint.host
        checked = [ipaddress.ip_address(text) for text in addresses]
        needed = [address for address in checked if not (endpoint.is_https and is_public(address))]
        networks = [str(network) for address in needed for network in self._list_networks(address)]
        return ",".join(dict.fromkeys(networks))

    def _list_networks(self, address: Address) -> list[ipaddress.IPv4Network | ipaddress.IPv6Network]:
        return [network for network in self.networks if address.version == network.version and address in network]


class EndpointForbiddenError(InvalidInputError):
    """The URL of a webhook leads to what it may not reach: not public, or plain HTTP. It is not tried again."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """The parts of a checked URL."""

    is_https: bool
    host: str
    port: int
    target: str
    """Path and query."""

    @property
    def host_header(self) -> str:
        """Value of the header ``Host``."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == (443 if self.is_https else 80) else f"{host}:{self.port}"


def parse_webhook_url(url: object) -> Endpoint:
    """Parse the URL of an endpoint. Raises ``InvalidInputError``; the host is not resolved."""
    if not isinstance(url, str) or not 0 < len(url) <= URL_CHARS:
        raise InvalidInputError(f"the URL of a webhook is a text of 1 to {URL_CHARS:,} characters", hint=_URL_HINT)
    if not re.fullmatch(r"[\x21-\x7e]+", url):  # no line may begin in a header, and hosts are compared
        raise InvalidInputError("the URL of a webhook has other characters than ASCII", hint="Encode it: %20, xn--….")
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise InvalidInputError(f"the URL of the webhook is not valid: {error}", hint=_URL_HINT) from None
    if parts.scheme not in ("https", "http") or not host or "%" in host or "\\" in url:
        raise InvalidInputError("the URL of a webhook is https://host/path", hint=_URL_HINT)
    if "@" in parts.netloc:
        raise InvalidInputError(
            "the URL of a webhook has no user and password", hint="Receivers check the signature instead."
        )
    if port == 0:
        raise InvalidInputError("the URL of the webhook has port 0", hint=_URL_HINT)
    is_https = parts.scheme == "https"
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    return Endpoint(is_https, host.lower().rstrip("."), port or (443 if is_https else 80), target)


async def resolve_host(host: str, port: int) -> list[str]:
    """Resolve by the operating system."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))


async def find_addresses(endpoint: Endpoint, allow: AllowList, resolve: Resolve = resolve_host) -> list[str]:
    """Resolve the host of the endpoint, and check every address.

    Raises ``InvalidInputError`` if it cannot be resolved, ``EndpointForbiddenError`` if one address is not public, or
    for plain HTTP, unless the allow-list has the host or the addresses.
    """
    try:
        found = await resolve(endpoint.host, endpoint.port)
    except (OSError, UnicodeError) as error:
        raise InvalidInputError(f"the host {endpoint.host[:100]} cannot be resolved: {error}") from None
    addresses = [ipaddress.ip_address(text) for text in found]
    if not addresses:
        raise InvalidInputError(f"the host {endpoint.host[:100]} has no address")
    if endpoint.host in allow.hosts:
        return found
    refused = [address for address in addresses if not allow.has_address(address)]
    if not refused:
        return found
    hint = "Create it where PERDURE_WEBHOOK_ALLOW names its host or network: that is kept with it, for all workers."
    if private := [address for address in refused if not is_public(address)]:
        raise EndpointForbiddenError(
            f"the host {endpoint.host[:100]} has the address {private[0]}, which is not public", hint=hint
        )
    if not endpoint.is_https:
        raise EndpointForbiddenError("the URL of a webhook is https: the body has what agents do", hint=hint)
    return found


def is_public(address: Address) -> bool:
    """Whether the address is one of the internet: not private, loopback, link-local, shared (CGNAT), multicast,
    unspecified or reserved, and no IPv6 address that stands for an IPv4 one."""
    if any(address.version == network.version and address in network for network in _NOT_PUBLIC):
        return False
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is not None or any(address in network for network in _TRANSLATED):
            return False
        if address.is_site_local:
            return False
    return address.is_global and not address.is_multicast and not address.is_reserved and not address.is_unspecified


# ---
# Secrets and signatures.


SECRET_PREFIX = "whsec_"  # noqa: S105  # no secret
SECRET_BYTES = 32


def generate_secret() -> str:
    """Generate a secret."""
    return SECRET_PREFIX + base64.b64encode(secrets.token_bytes(SECRET_BYTES)).decode()


def check_secret(secret: object) -> str:
    """Return the secret. Raises ``InvalidInputError``, which does not show it."""
    if isinstance(secret, str) and secret.startswith(SECRET_PREFIX):
        with suppress(ValueError):
            if 24 <= len(_decode_secret(secret)) <= 64:
                return secret
    raise InvalidInputError(
        "the secret of a webhook is whsec_ and 24 to 64 bytes as base64", hint="Leave it out: then one is generated."
    )


def _decode_secret(secret: str) -> bytes:
    try:
        return base64.b64decode(secret.removeprefix(SECRET_PREFIX), validate=True)
    except binascii.Error as error:
        raise ValueError(str(error)) from None


def sign_webhook(all_secrets: Iterable[str], message_id: str, seconds: int, body: bytes) -> str:
    """Return the value of ``webhook-signature``: one signature for each secret, separated by spaces."""
    signed = f"{message_id}.{seconds}.".encode() + body
    digests = (hmac.digest(_decode_secret(secret), signed, hashlib.sha256) for secret in all_secrets)
    return " ".join(f"v1,{base64.b64encode(digest).decode()}" for digest in digests)


def build_webhook_headers(all_secrets: Iterable[str], message_id: str, now: datetime, body: bytes) -> dict[str, str]:
    """Build the headers of an attempt at ``now``."""
    seconds = int(now.timestamp())
    return {
        "content-type": "application/json",
        "user-agent": f"perdure/{_get_version()}",
        "webhook-id": message_id,
        "webhook-timestamp": str(seconds),
        "webhook-signature": sign_webhook(all_secrets, message_id, seconds, body),
    }


@cache
def _get_version() -> str:
    try:
        return version("perdure")
    except PackageNotFoundError:  # not installed: run from its source
        return "source"


# ---
# The body of an event.


BODY_BYTES = 64 * 1024
"""Most bytes of a body."""
FIELD_BYTES = 16 * 1024
"""Most bytes of one field of an event, as JSON; a larger one is null, and named in ``omitted``."""
_ENVELOPE = {"type", "at", "context_id", "task_id", "path", "seq", "attempt", "name", "expires_in"}
_FORMATS: dict[str, Any] = {"mode": "json", "exclude_none": True, "exclude": _ENVELOPE}


def build_event_body(event: Event, task: WebhookTask, public_url: str | None) -> bytes:
    """Build the body for an event of the stream that ``task`` names. The same for every attempt.

    ``public_url`` is that of the application with the page for decisions, which the link of a waiting call leads to.
    """
    data: dict[str, Any] = {
        "run_id": event.context_id,
        "root": task.stream,
        "task_id": event.task_id,
        "agent": task.agent,
        "tenant": task.tenant,
        "user": task.user,
        "seq": event.seq,
        "path": [step.model_dump(mode="json", exclude_none=True) for step in event.path],
    }
    own = event.model_dump(**_FORMATS)
    if (name := getattr(event, "name", None)) is not None:
        own["tool"] = name
    if (seconds := getattr(event, "expires_in", None)) is not None and event.at:
        with suppress(OverflowError):
            own["expires_at"] = add_seconds(event.at, seconds)
    call_id, call_hash = own.get("call_id"), own.get("hash")
    if public_url and call_id and call_hash:
        session = quote(event.context_id, safe="")
        own["decision_url"] = (
            f"{public_url}/decide/{session}/{quote(call_id, safe='')}?hash={quote(call_hash, safe='')}"
        )
    return _encode_body(task.type, event.at, data, own)


def build_ping_body(task: WebhookTask) -> bytes:
    """Build the body of a test."""
    return _encode_body(task.type, task.at, {}, {"webhook_id": task.webhook_id})


def _encode_body(type: str, at: str, data: dict[str, Any], own: dict[str, Any]) -> bytes:
    """Encode the body; of the event's ``own`` fields the largest are left out until it is short enough."""
    sizes = {name: len(json.dumps(value)) for name, value in own.items()}
    omitted = [name for name, size in sizes.items() if size > FIELD_BYTES]
    while True:
        fields = data | {name: None if name in omitted else value for name, value in own.items()}
        if omitted:
            fields["omitted"] = sorted(omitted)
        body = json.dumps({"type": type, "timestamp": at, "data": fields}, separators=(",", ":")).encode()
        left = {name: size for name, size in sizes.items() if name not in omitted}
        if len(body) <= BODY_BYTES or not left:
            return body
        omitted.append(max(left, key=lambda name: left[name]))


# ---
# The request.


REQUEST_SECONDS = 15.0
"""For all of an attempt: resolving, connecting, sending, and the answer's headers."""
ANSWER_BYTES = 4096
"""Most bytes of the answer's body that are read."""
_HEAD_BYTES = 32 * 1024
_BODY_SECONDS = 2.0
"""For the answer's body, which is for people; an endpoint may not close the connection."""
_TRIED_ADDRESSES = 3
MAX_RETRY_AFTER = 24 * 3600.0


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer of an endpoint."""

    status: int
    text: str
    """Beginning of its body."""
    retry_after: float | None = None
    """Seconds that it asks to wait, at most a day."""


async def post_webhook(endpoint: Endpoint, addresses: Sequence[str], headers: Mapping[str, str], body: bytes) -> Answer:
    """Send a request to one of the checked ``addresses``; TLS verifies the name of the host.

    Raises ``OSError`` (also ``ssl.SSLError``) or ``ValueError`` if there is no valid answer; the caller bounds
    the time.
    """
    reader, writer = await _connect(endpoint, addresses)
    try:
        lines = [f"POST {endpoint.target} HTTP/1.1", f"host: {endpoint.host_header}", "connection: close"]
        lines += [f"content-length: {len(body)}", *(f"{name}: {value}" for name, value in headers.items())]
        writer.write("\r\n".join([*lines, "", ""]).encode("ascii") + body)
        with suppress(ConnectionError):  # an endpoint may answer before it has read all
            await writer.drain()
        head = await _read_head(reader)
        rest = bytearray()
        with suppress(TimeoutError, OSError):
            async with asyncio.timeout(_BODY_SECONDS):
                while len(rest) < 2 * ANSWER_BYTES and (piece := await reader.read(ANSWER_BYTES)):
                    rest += piece
        return _parse_answer(head, bytes(rest))
    finally:
        writer.transport.abort()


async def _connect(endpoint: Endpoint, addresses: Sequence[str]) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    options: dict[str, Any] = {"limit": _HEAD_BYTES}
    if endpoint.is_https:
        options |= {"ssl": _get_tls(), "server_hostname": endpoint.host}
    failure: OSError = OSError("no address")
    for address in addresses[:_TRIED_ADDRESSES]:
        try:
            return await asyncio.open_connection(address, endpoint.port, **options)
        except OSError as error:
            failure = error
    raise failure


@cache
def _get_tls() -> ssl.SSLContext:
    return ssl.create_default_context()


async def _read_head(reader: asyncio.StreamReader) -> bytes:
    """Read the head of the final answer: those of 1xx come before it."""
    while True:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except asyncio.IncompleteReadError:
            raise ValueError("the endpoint closed the connection without an answer") from None
        except asyncio.LimitOverrunError:
            raise ValueError("the headers of the answer are too long") from None
        if not re.match(rb"HTTP/1\.[01] 1\d\d", head):
            return head


class _AnswerBytes:
    """What ``HTTPResponse`` takes for a socket."""

    def __init__(self, content: bytes) -> None:
        self._content = content

    def makefile(self, _mode: str) -> BytesIO:
        return BytesIO(self._content)


def _parse_answer(head: bytes, rest: bytes) -> Answer:
    response = HTTPResponse(cast(socket.socket, _AnswerBytes(head + rest)))
    try:
        response.begin()
    except HTTPException as error:
        raise ValueError(f"the answer is not HTTP: {type(error).__name__}") from None
    try:
        content = response.read(ANSWER_BYTES)
    except IncompleteRead as error:
        content = error.partial
    except (HTTPException, ValueError):
        content = b""
    text = clean_text(content[:ANSWER_BYTES].decode("utf-8", "replace"))
    return Answer(response.status, text, _parse_retry_after(response.getheader("retry-after")))


def _parse_retry_after(value: str | None) -> float | None:
    if value is None:
        return None
    seconds: float | None = None
    if re.fullmatch(r"[0-9]{1,9}", value.strip()):
        seconds = float(value)
    else:
        with suppress(ValueError, TypeError, OverflowError):
            at = parsedate_to_datetime(value)
            seconds = ((at if at.tzinfo else at.replace(tzinfo=UTC)) - datetime.now(UTC)).total_seconds()
    return None if seconds is None else min(max(seconds, 0.0), MAX_RETRY_AFTER)
