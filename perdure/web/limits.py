"""What a request may cost: sizes, times, rates and open streams. Everything is counted in this process alone, so with
several replicas a caller has that much of each."""

from __future__ import annotations

import asyncio
import json
import math
import re
import time
from collections import OrderedDict
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, ParamSpec, TypeVar

from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect, HTTPConnection, Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ..types.messages import MAX_FILE_BYTES
from .auth import Caller
from .origins import get_client_address, send_problem
from .problems import RETRY_SECONDS, WebError


@dataclass(frozen=True, slots=True)
class WebLimits:
    """How much one request, and one caller, may ask for. Rates and streams are per replica."""

    body_bytes: int = 4 * 1024 * 1024
    """Of a JSON body; a route for files has its own: :class:`BodyRule`."""
    body_seconds: float = 30.0
    """Time in which a body must be here."""
    headers: int = 100
    header_bytes: int = 32 * 1024
    url_bytes: int = 8 * 1024
    json_depth: int = 64
    json_values: int = 200_000
    """Values and keys of a JSON body: each costs up to a hundred bytes of memory."""
    requests_per_second: float = 50.0
    """Of a caller, over time."""
    burst: int = 200
    """Requests that a caller may send at once."""
    failures_per_minute: float = 10.0
    """Failed authentications of an address, over time."""
    failure_burst: int = 20
    buckets: int = 10_000
    """Callers, and addresses, whose rates are remembered: those seen last."""
    streams: int = 200
    """Open streams of a caller."""
    upload_bytes: int = 2 * 1024**3
    """Of the files that a caller has uploaded and may still name: today and yesterday (UTC), in all replicas."""
    upload_files: int = 2_000
    """Number of these files."""


class RequestLimits:
    """Refuses requests with too many or too large headers (431), or a URL that is too long (414)."""

    def __init__(self, app: ASGIApp, *, limits: WebLimits) -> None:
        self._app = app
        self._limits = limits

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a connection."""
        if scope["type"] == "http" and (error := self._find_excess(scope)) is not None:
            await send_problem(error, scope, receive, send)
            return
        await self._app(scope, receive, send)

    def _find_excess(self, scope: Scope) -> WebError | None:
        limits, headers = self._limits, scope["headers"]
        path = scope.get("raw_path") or scope["path"].encode()
        if len(path) + len(scope.get("query_string", b"")) > limits.url_bytes:
            return WebError(f"the URL may have {limits.url_bytes:,} bytes", status=414, name="UrlTooLongError")
        if len(headers) > limits.headers:
            return WebError(f"a request may have {limits.headers} headers", status=431, name="HeadersTooLargeError")
        if sum(len(name) + len(value) + 4 for name, value in headers) > limits.header_bytes:
            text = f"the headers may have {limits.header_bytes:,} bytes"
            return WebError(text, status=431, name="HeadersTooLargeError")
        return None


# ---
# Bodies.


ANY_TYPE = "*/*"


@dataclass(frozen=True, slots=True)
class BodyRule:
    """What the bodies of a route may be."""

    types: tuple[str, ...]
    """Content types, for instance ``multipart/form-data``; ``ANY_TYPE`` for all."""
    max_bytes: int
    seconds: float = 30.0


class BodyLimits:
    """Refuses bodies of another content type (415), that are too large (413) or too slow (408), while they are read.

    ``find_rule`` returns the rule of a request whose body is not JSON, None for all others.
    """

    def __init__(
        self, app: ASGIApp, *, limits: WebLimits, find_rule: Callable[[Scope], BodyRule | None] = lambda _: None
    ) -> None:
        self._app = app
        self._json_rule = BodyRule(("application/json",), limits.body_bytes, limits.body_seconds)
        self._find_rule = find_rule

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a connection."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        rule = self._find_rule(scope) or self._json_rule
        has_started = False
        headers = Headers(scope=scope)
        reader: _BodyReader | None = None

        async def send_unless_refused(message: Message) -> None:
            nonlocal has_started
            is_unknown_caller = message["type"] == "http.response.start" and message["status"] == 401
            if reader is not None and reader.error is not None and not has_started and not is_unknown_caller:
                return  # what the application makes of the error, for instance 500
            has_started = True
            await send(message)

        try:
            try:
                reader = _BodyReader(receive, headers, rule, _check_declared_body(headers, rule))
            except WebError as error:
                if error.status != 415:
                    raise
                reader = _BodyReader(receive, headers, rule, None)
                reader.error = scope[REFUSED_BODY_KEY] = error
            await self._app(scope, reader, send_unless_refused)
        except WebError as error:
            if has_started or (reader is not None and error is not reader.error):
                raise
            await send_problem(error, scope, receive, send)
        else:
            if reader.error is not None and not has_started:
                await send_problem(reader.error, scope, receive, send)


REFUSED_BODY_KEY = "perdure.refused_body"
"""In the scope: the error of a body of another type. ``Web.authenticate`` raises it once the caller is
known: a request without credentials is 401 whatever its body is."""
_CLOSE = {"Connection": "close"}
"""What is left of the body is not read, so the connection cannot be used again."""


def _check_declared_body(headers: Headers, rule: BodyRule) -> int | None:
    """Check what the headers say of the body, and return its length."""
    lengths = headers.getlist("content-length")
    length = None
    if lengths:
        is_ambiguous = len(lengths) > 1 or "transfer-encoding" in headers  # proxies disagree on where such a body ends
        if is_ambiguous or not re.fullmatch(r"[0-9]{1,18}", lengths[0]):
            raise WebError("the Content-Length is not one number", name="BodyError", headers=_CLOSE)
        length = int(lengths[0])
    if length or "transfer-encoding" in headers or "content-type" in headers:
        _check_content_type(headers, rule, has_body=bool(length) or "transfer-encoding" in headers)
    if length is not None and length > rule.max_bytes:
        raise _build_size_error(rule)
    return length


def _check_content_type(headers: Headers, rule: BodyRule, *, has_body: bool = True) -> None:
    types = headers.getlist("content-type")
    media_type, _, parameters = types[0].partition(";") if types else ("", "", "")
    charset = re.search(r"charset\s*=\s*\"?([^\s\";]+)", parameters, re.IGNORECASE)
    is_json = "application/json" in rule.types
    is_any = ANY_TYPE in rule.types
    is_wrong = len(types) > 1 or not (is_any or media_type.strip().lower() in rule.types)
    if has_body and (is_wrong or (is_json and charset and charset[1].lower() not in ("utf-8", "utf8"))):
        shown = " or ".join(rule.types) + (" in UTF-8" if is_json else "")
        raise WebError(
            f"the body must be {shown}",
            status=415,
            name="ContentTypeError",
            hint=f"Send `Content-Type: {rule.types[0]}`.",
            headers={"Accept": ", ".join(rule.types), **_CLOSE},
        )
    if any(value.strip().lower() not in ("", "identity") for value in headers.getlist("content-encoding")):
        raise WebError(
            "the body must not be compressed",
            status=415,
            name="ContentTypeError",
            hint="Leave Content-Encoding out.",
            headers={"Accept-Encoding": "identity", **_CLOSE},
        )


def _build_size_error(rule: BodyRule) -> WebError:
    return WebError(
        f"the body may have {rule.max_bytes:,} bytes",
        status=413,
        name="BodyTooLargeError",
        hint="Upload large contents as files.",
        headers=_CLOSE,
    )


class _BodyReader:
    """A ``receive`` that counts the bytes and the time of the body."""

    def __init__(self, receive: Receive, headers: Headers, rule: BodyRule, length: int | None) -> None:
        self._receive = receive
        self._headers = headers
        self._rule = rule
        self._is_checked = bool(length) or "transfer-encoding" in headers
        self._bytes = 0
        self._deadline: float | None = None
        self._is_over = False
        self.error: WebError | None = None
        """Why the body is refused."""

    async def __call__(self) -> Message:
        if self.error is not None:
            raise self.error
        try:
            return await self._read()
        except WebError as error:
            self.error = error
            raise

    async def _read(self) -> Message:
        if self._is_over:  # a disconnect may take as long as it likes
            return await self._receive()
        if self._deadline is None:
            self._deadline = asyncio.get_running_loop().time() + self._rule.seconds
        try:
            async with asyncio.timeout_at(self._deadline):
                message = await self._receive()
        except TimeoutError:
            raise WebError(
                f"the body was not here after {self._rule.seconds:g} s",
                status=408,
                name="BodyTimeoutError",
                headers=_CLOSE,
            ) from None
        if message["type"] == "http.request":
            self._count(message.get("body", b""))
            self._is_over = not message.get("more_body", False)
        return message

    def _count(self, body: bytes) -> None:
        if body and not self._is_checked:  # HTTP/2 needs no header for a body
            _check_content_type(self._headers, self._rule)
            self._is_checked = True
        self._bytes += len(body)
        if self._bytes > self._rule.max_bytes:
            raise _build_size_error(self._rule)


BODY_SECONDS = 600.0
"""Longest time in which a body is received."""
CHUNK_SECONDS = 30.0
"""Longest time between two pieces of a body."""


async def iterate_body(request: Request, max_bytes: int) -> AsyncGenerator[bytes]:
    """Yield the pieces of the body, whatever its Content-Length says. Raises ``WebError``."""
    too_large = WebError(f"the body may have {max_bytes:,} bytes", status=413, name="BodyTooLargeError")
    length = request.headers.get("content-length", "0")
    if not length.isdecimal() or len(length) > 15 or int(length) > max_bytes:
        raise too_large
    size, stream = 0, request.stream()
    loop = asyncio.get_running_loop()
    deadline = loop.time() + BODY_SECONDS
    while True:
        try:
            async with asyncio.timeout_at(min(deadline, loop.time() + CHUNK_SECONDS)):
                piece = await anext(stream, None)
        except TimeoutError:
            raise WebError("the body came too slowly", status=408, name="BodyTimeoutError") from None
        except ClientDisconnect:
            raise WebError("the body ended early", name="BodyIncompleteError") from None
        if piece is None:
            return
        size += len(piece)
        if size > max_bytes:
            raise too_large
        yield piece


# ---
# JSON.

_STRING = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)', re.DOTALL)
"""A string, also one that does not end: what follows it would be looked at again and again."""
_UNUSUAL_NUMBER = re.compile(r"-?Infinity|NaN|(?<![0-9])[0-9]{101,}")
_ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|.)", re.DOTALL)
_STEPS = {"[": 1, "{": 1, "]": -1, "}": -1}


THREAD_BYTES = 32 * 1024
"""Size of a body from which on a thread reads it, and what is in it: an event loop serves others meanwhile."""
P = ParamSpec("P")
T = TypeVar("T")


async def call_for_size(size: int, function: Callable[P, T], *args: P.args, **options: P.kwargs) -> T:
    """Call ``function``, which takes time in proportion to ``size`` bytes: in a thread, unless they are few."""
    if size <= THREAD_BYTES:
        return function(*args, **options)
    return await asyncio.to_thread(function, *args, **options)


def parse_json_body(body: bytes, max_depth: int = 64, max_values: int = 200_000) -> Any:
    """Return the value of a JSON body.

    Raises ``WebError`` with status 400 for what is no JSON in UTF-8, nested deeper than ``max_depth``, of more than
    ``max_values`` values, and for what readers of JSON take differently: NaN and Infinity, numbers too large for a
    float or of more than 100 digits, keys that are there twice, and lone surrogates. Positions are characters from 0.
    """
    try:
        text = body.decode()
    except UnicodeDecodeError as error:
        raise _build_json_error("is not UTF-8", error.start) from None
    if not text.strip():
        raise _build_json_error("is empty")
    _check_shape(text, max_depth, max_values)
    if "\\ud" in text or "\\uD" in text:
        _check_surrogates(text)
    try:
        return json.loads(text, object_pairs_hook=_build_object, parse_float=_parse_float)
    except json.JSONDecodeError as error:
        raise _build_json_error(f"is not JSON: {error.msg}", error.pos) from None
    except (ValueError, RecursionError):
        raise _build_json_error("is not JSON") from None


def _build_json_error(reason: str, position: int | None = None) -> WebError:
    where = "" if position is None else f", at character {position:,}"
    return WebError(f"the body {reason}{where}", status=400, name="JsonError")


def _check_shape(text: str, max_depth: int, max_values: int) -> None:
    """Check depth, count and numbers on the text: linear in its length, and nothing is built from it."""
    too_many = f"has more than {max_values:,} values"
    # In the place of each string as many spaces, so that positions stay.
    bare, strings = _STRING.subn(lambda match: " " * (match.end() - match.start()), text, count=max_values + 1)
    if strings > max_values or sum(map(bare.count, ",[]{}")) > 2 * max_values:
        raise _build_json_error(too_many)
    brackets = [(match.start(), _STEPS[match[0]]) for match in re.finditer(r"[\[\]{}]", bare)]
    for (position, _), depth in zip(brackets, accumulate(step for _, step in brackets), strict=True):
        if depth > max_depth:
            raise _build_json_error(f"is nested deeper than {max_depth} levels", position)
    if (unusual := _UNUSUAL_NUMBER.search(bare)) is not None:
        what = "a number of more than 100 digits" if unusual[0][-1].isdigit() else unusual[0]
        raise _build_json_error(f"has {what}, which JSON is not to have", unusual.start())


def _check_surrogates(text: str) -> None:
    """Refuse ``\\ud800`` without its second half, and the reverse."""
    high_end = -1
    for match in _ESCAPE.finditer(text):
        code = int(match[1], 16) if match[1] else 0
        is_low = 0xDC00 <= code < 0xE000
        if is_low != (high_end == match.start()):
            raise _build_json_error("has half of a surrogate pair", match.start() if is_low else high_end - 6)
        if high_end >= 0 and not is_low:
            raise _build_json_error("has half of a surrogate pair", high_end - 6)
        high_end = match.end() if 0xD800 <= code < 0xDC00 else -1
    if high_end >= 0:
        raise _build_json_error("has half of a surrogate pair", high_end - 6)


def _build_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) < len(pairs):
        seen: set[str] = set()
        key = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]  # adds it
        raise _build_json_error(f"has the key {key[:50]!r} twice in an object")
    return value


def _parse_float(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise _build_json_error(f"has the number {text[:50]}, which is too large")
    return value


# ---
# Rates.


@dataclass(slots=True)
class _Bucket:
    tokens: float
    at: float


class _Buckets:
    """Token buckets by key; the one used longest ago makes room for a new one."""

    def __init__(self, rate: float, burst: int, size: int, clock: Callable[[], float]) -> None:
        self._rate, self._burst, self._size, self._clock = rate, burst, size, clock
        self._buckets: OrderedDict[str, _Bucket] = OrderedDict()

    def __len__(self) -> int:
        return len(self._buckets)

    def fill(self, key: str) -> _Bucket:
        """Return the bucket as it is now."""
        now = self._clock()
        bucket = self._buckets.get(key)
        if bucket is None:
            while len(self._buckets) >= self._size:
                self._buckets.popitem(last=False)
            bucket = self._buckets[key] = _Bucket(float(self._burst), now)
        self._buckets.move_to_end(key)
        bucket.tokens = min(self._burst, bucket.tokens + (now - bucket.at) * self._rate)
        bucket.at = now
        return bucket

    def build_error(self, bucket: _Bucket, policy: str, reason: str) -> WebError:
        """Build the error for a bucket with less than one token."""
        seconds = max(1, math.ceil((1 - bucket.tokens) / self._rate))
        window = max(1, math.ceil(self._burst / self._rate))
        return WebError(
            reason,
            status=429,
            name="RateLimitError",
            hint=f"Try again in {seconds} s.",
            headers={
                "Retry-After": str(seconds),
                "RateLimit-Policy": f'"{policy}";q={self._burst};w={window}',
                "RateLimit": f'"{policy}";r=0;t={seconds}',
            },
        )


_BYTES_PER_REQUEST = 64 * 1024
"""Bytes of a JSON body that cost about as much CPU as a small request: to check and read 4 MB takes up to 0.4 s."""


class RateLimiter:
    """Requests per caller. ``clock`` gives seconds that never go back."""

    def __init__(self, limits: WebLimits, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._buckets = _Buckets(limits.requests_per_second, limits.burst, limits.buckets, clock)

    def check(self, caller: Caller) -> None:
        """Count a request. Raises ``WebError`` with status 429, ``Retry-After`` and the RateLimit headers."""
        bucket = self._buckets.fill(get_caller_key(caller))
        if bucket.tokens < 1:
            raise self._buckets.build_error(bucket, "caller", "the caller sends too many requests")
        bucket.tokens -= 1

    def charge(self, caller: Caller, body_bytes: int) -> None:
        """Count a JSON body as further requests, one for each ``_BYTES_PER_REQUEST``: those after it have to wait."""
        self.charge_requests(caller, body_bytes // _BYTES_PER_REQUEST)

    def charge_requests(self, caller: Caller, count: float) -> None:
        """Count work as further requests: those after it have to wait."""
        self._buckets.fill(get_caller_key(caller)).tokens -= count


class FailureLimiter:
    """Failed authentications per address of clients, so that a flood of wrong tokens does not reach the store."""

    def __init__(self, limits: WebLimits, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._buckets = _Buckets(limits.failures_per_minute / 60, limits.failure_burst, limits.buckets, clock)

    def check(self, connection: HTTPConnection) -> None:
        """Raise ``WebError`` with status 429 for an address that has failed too often. Counts nothing."""
        bucket = self._buckets.fill(get_client_address(connection.scope))
        if bucket.tokens < 1:
            reason = "too many requests of this address had wrong credentials"
            raise self._buckets.build_error(bucket, "failures", reason)

    def record(self, connection: HTTPConnection) -> None:
        """Count a failure."""
        bucket = self._buckets.fill(get_client_address(connection.scope))
        bucket.tokens = max(0.0, bucket.tokens - 1)


class ConnectionLimiter:
    """Open streams per caller."""

    def __init__(self, limits: WebLimits) -> None:
        self._limit = limits.streams
        self._open: dict[str, int] = {}

    @contextmanager
    def hold(self, caller: Caller) -> Generator[None]:
        """Count a stream for the length of the block. Raises ``WebError`` with status 429 if the caller has as many as
        it may."""
        key = get_caller_key(caller)
        if self._open.get(key, 0) >= self._limit:
            raise WebError(
                f"the caller has {self._limit} open streams",
                status=429,
                name="ConnectionLimitError",
                hint="Close streams that are not read.",
                headers={"Retry-After": "10"},
            )
        self._open[key] = self._open.get(key, 0) + 1
        try:
            yield
        finally:
            self._open[key] -= 1
            if not self._open[key]:
                del self._open[key]


# ---
# Bodies and files in memory.


HELD_BYTES = 512 * 1024 * 1024
"""Most bytes of all bodies and files that this process receives or sends at one time."""


_CALLER_SHARE = 4


class HeldBytes:
    """Counts the bytes of bodies and files that are in memory, also for each caller."""

    def __init__(self) -> None:
        self.count = 0
        self._by_caller: dict[str, int] = {}

    def take(self, size: int, caller: str = "") -> None:
        """Count ``size`` bytes, until they are released. Raises ``WebError`` with status 503 if there are too many,
        with 429 if they are the caller's: it may have a quarter of all, and one file in any case."""
        own = self._by_caller.get(caller, 0)
        if own and own + size > max(HELD_BYTES // _CALLER_SHARE, MAX_FILE_BYTES):
            raise WebError(
                "the caller has too many large files in transfer", status=429, name="ConnectionLimitError",
                hint="Send the request again when the others have ended.", headers={"Retry-After": "10"},
            )  # fmt: skip
        if self.count + size > HELD_BYTES:
            raise WebError(
                "too many large files are in transfer", status=503, name="OverloadedError",
                hint="Send the request again.", headers={"Retry-After": str(RETRY_SECONDS)},
            )  # fmt: skip
        self.count += size
        self._by_caller[caller] = own + size

    def release(self, size: int, caller: str = "") -> None:
        """Count ``size`` bytes no longer."""
        self.count -= size
        self._by_caller[caller] = self._by_caller.get(caller, 0) - size
        if self._by_caller[caller] <= 0:
            del self._by_caller[caller]


def get_caller_key(caller: Caller) -> str:
    """Return what a caller's limits are counted by: its name, and how it has proved it."""
    return f"{caller.auth}/{caller.name}"
