"""HTTP exchanges with MCP servers: what the POSTs of a request came to, and what that says of the request.

Servers, and the proxies in front of them, agree on little. ``judge`` is the one place that says of an answer whether it
is the server's own, whether the request was not carried out and may be sent again, or whether its outcome is unknown.
Decision 065 has the reports that the table is made from.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from enum import StrEnum
from functools import partial
from typing import Any

import httpx2
from mcp import MCPError, types
from pydantic_core import from_json

MAX_ANSWER_BYTES = 32 * 1024 * 1024
"""Size limit of one answer: of a body in JSON, or of one event."""
CONNECT_TIMEOUT = 30.0
"""Seconds to connect and to send; how long an answer may take is the matter of the tool's own timeout."""
_ERROR_BYTES, _LOOP_BYTES = 16 * 1024, 256 * 1024
"""How much of an error's body is read, and how large an answer is parsed on the event loop."""
_SHOWN_CHARS, _SEARCHED_CHARS = 200, 1_000
_MAX_RECORDED = 64
"""Exchanges that are recorded of one request."""
_SESSION_HEADER, _OPENING_METHODS = "mcp-session-id", ("initialize", "server/discover")

_NO_SESSION = re.compile(
    r"session.{0,40}?(not found|not exist|unknown|invalid|expired|terminated|closed|not initiali[sz]ed|mismatch"
    r"|required|missing|timed? ?out|no longer|inactive)|(no|invalid|bad|missing|unknown|expired) "
    r"(valid |active |such )?(mcp[ -])?session|server not initiali[sz]ed",
    re.IGNORECASE | re.DOTALL,
)
"""What servers say of a session that they do not know, where they do not say 404: 400 (older Python and TypeScript
servers), 401 (Rust), 403, or 200."""
_CLOSED_TEXT = re.compile(r"SSE stream (ended|failed)|Connection closed\b|Failed to parse (JSON response|SSE message)")
"""The SDK's own words for an answer that did not come, or cannot be read. Servers use its codes, too."""


class Verdict(StrEnum):
    """What an exchange says of its request."""

    OWN = "own"
    """The server's own answer."""
    AGAIN = "again"
    """Not carried out, and may be sent again after a while."""
    NEW_SESSION = "new session"
    """Not carried out, since the server does not know the session: to be sent again in a new one."""
    REFUSED = "refused"
    """Not carried out, and sent again it would be refused again."""
    LOST = "lost"
    """The outcome is unknown."""


@dataclass(slots=True)
class Exchange:
    """A POST of a JSON-RPC message, and its answer."""

    method: str
    """Of the message."""
    has_session: bool
    status: int = 0
    """Of HTTP; 0 if no answer came."""
    failure: str = ""
    """The error of the transport."""
    was_sent: bool = True
    """False if the transport failed before the server can have read anything."""
    is_unreadable: bool = False
    """The answer has no answer to the message."""
    error_code: int | None = None
    """Of the JSON-RPC error in the body."""
    is_own_error: bool = False
    """That error has the message's id: the server has read the message."""
    text: str = ""
    """What the body says of an error."""
    retry_after: float | None = None

    def describe(self) -> str:
        """Describe what came, for an error message."""
        if self.failure:
            return self.failure
        return f"HTTP {self.status}" + (f": {self.text}" if self.text else "")


_exchanges: ContextVar[list[Exchange] | None] = ContextVar("perdure_mcp_exchanges", default=None)


def record_exchanges(exchanges: list[Exchange] | None) -> Any:
    """Record the exchanges of requests that are sent in this context in the list. Return the token to reset it."""
    return _exchanges.set(exchanges)


def stop_recording(token: Any) -> None:
    _exchanges.reset(token)


# ---
# The table.

_BY_STATUS: Mapping[int, Verdict] = {
    400: Verdict.REFUSED, 401: Verdict.REFUSED, 402: Verdict.REFUSED, 403: Verdict.REFUSED, 404: Verdict.AGAIN,
    405: Verdict.REFUSED, 406: Verdict.REFUSED, 407: Verdict.REFUSED, 409: Verdict.AGAIN, 410: Verdict.REFUSED,
    411: Verdict.REFUSED, 412: Verdict.REFUSED, 413: Verdict.REFUSED, 414: Verdict.REFUSED, 415: Verdict.REFUSED,
    416: Verdict.REFUSED, 417: Verdict.REFUSED, 418: Verdict.REFUSED, 421: Verdict.AGAIN, 422: Verdict.REFUSED,
    423: Verdict.AGAIN, 425: Verdict.AGAIN, 426: Verdict.REFUSED, 428: Verdict.REFUSED, 429: Verdict.AGAIN,
    431: Verdict.REFUSED, 451: Verdict.REFUSED, 501: Verdict.REFUSED, 505: Verdict.REFUSED, 511: Verdict.REFUSED,
}  # fmt: skip
"""Statuses that say that the request was not carried out. All others from 400 on say nothing of it: some frameworks
send a 408 when a handler takes long, and proxies a 499 and a 503 for requests that they have passed on."""
_SESSION_STATUSES = frozenset({400, 404, 410})
"""Statuses that concern the session where the request named one: 404 by the specification, the others by what servers
send."""
GATEWAY_STATUSES = frozenset({502, 503, 504})
"""A proxy has no server behind it, which may be restarting."""
_SESSION_CODES = frozenset({types.INVALID_REQUEST, -32000, -32001})
_REDIRECT, _CLIENT_ERROR, _SERVER_ERROR, _ACCEPTED, _NOT_FOUND = 300, 400, 500, 202, 404


def judge(exchange: Exchange) -> Verdict:
    """Judge the answer to a message by its exchange."""
    status, has_session = exchange.status, exchange.has_session
    if exchange.failure:
        return Verdict.LOST if exchange.was_sent else Verdict.AGAIN
    if status < _REDIRECT:
        return Verdict.LOST if exchange.is_unreadable else Verdict.OWN
    if status < _CLIENT_ERROR:
        return Verdict.REFUSED  # a redirect to another place, or one that would lose the message
    names_session = has_session and _NO_SESSION.search(exchange.text) is not None
    if has_session and status == _NOT_FOUND:
        return Verdict.NEW_SESSION
    verdict = _BY_STATUS.get(status, Verdict.LOST)
    if verdict is Verdict.REFUSED and names_session:
        return Verdict.NEW_SESSION
    if exchange.is_own_error and (status < _SERVER_ERROR or exchange.error_code != types.INTERNAL_ERROR):
        return Verdict.OWN
    if status == _NOT_FOUND and exchange.error_code is not None:
        return Verdict.OWN
    return Verdict.NEW_SESSION if has_session and status in _SESSION_STATUSES else verdict


def judge_request(exchanges: Sequence[Exchange], error: MCPError) -> tuple[Verdict, Exchange | None]:
    """Judge a request that has ended with ``error``, by its exchanges; return the one that decides, if any.

    A request may have several exchanges: redirects, the rounds of a call that asks for input. Whatever one of them has
    done is done: only if none reached the server may the request be sent again.
    """
    if error.code in (types.CONNECTION_CLOSED, types.PARSE_ERROR) and _CLOSED_TEXT.match(error.message):
        return Verdict.LOST, None
    if not exchanges:
        return Verdict.OWN, None
    last, verdict = exchanges[-1], judge(exchanges[-1])
    if verdict in (Verdict.AGAIN, Verdict.NEW_SESSION, Verdict.REFUSED) and _may_be_done(exchanges[:-1]):
        return Verdict.LOST, last
    return verdict, last


def _may_be_done(exchanges: Sequence[Exchange]) -> bool:
    """Whether one of the exchanges may have done something."""
    rounds = (exchange for exchange in exchanges if not _REDIRECT <= exchange.status < _CLIENT_ERROR)
    return any(judge(exchange) in (Verdict.OWN, Verdict.LOST) for exchange in rounds)


def is_first_round(request: httpx2.Request) -> bool:
    """Whether ``request``, which is under way in this context, is a message before which nothing can have been done: no
    later round of a call, and no GET for the rest of an answer."""
    return _read_message(request) is not None and not _may_be_done((_exchanges.get() or [])[:-1])


def ends_session(exchanges: Sequence[Exchange], error: MCPError) -> bool:
    """Whether the server's own answer says that it does not know the session any longer."""
    has_session = any(exchange.has_session for exchange in exchanges)
    return (
        has_session and error.code in _SESSION_CODES and _NO_SESSION.search(error.message[:_SEARCHED_CHARS]) is not None
    )


# ---
# The client.


class ExchangeClient(httpx2.AsyncClient):
    """An HTTP client for the SDK that records exchanges, and answers each of its requests.

    An error of the transport becomes an answer with status 599: raised, it would end all requests of the connection. An
    answer that the SDK would not match with its request, and wait for another for ever, becomes one that it takes.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(timeout=httpx2.Timeout(CONNECT_TIMEOUT, read=None), **options)

    async def send(self, request: httpx2.Request, *, stream: bool = False, **options: Any) -> httpx2.Response:
        """See base class."""
        message = _read_message(request)
        if message is None:
            return await super().send(request, stream=stream, **options)
        exchange = Exchange(str(message.get("method", "")), _SESSION_HEADER in request.headers)
        recorded = _exchanges.get()
        if recorded is not None and len(recorded) < _MAX_RECORDED:
            recorded.append(exchange)
        try:
            response = await super().send(request, stream=True, **options)
            return await _examine(response, message, exchange)
        except httpx2.RequestError as error:
            exchange.failure = f"{type(error).__name__}: {error}".rstrip(": ")
            exchange.was_sent = not isinstance(
                error, httpx2.ConnectError | httpx2.ConnectTimeout | httpx2.PoolTimeout | httpx2.ProxyError
            )
            if exchange.method in _OPENING_METHODS:
                raise
            return httpx2.Response(_FAILED, request=request)


_FAILED = 599
"""Status of an answer that did not come."""


def _read_message(request: httpx2.Request) -> dict[str, Any] | None:
    """Return the JSON-RPC message of a POST; None for other requests."""
    if request.method != "POST":
        return None
    try:
        message = json.loads(request.content)
    except (ValueError, RecursionError, httpx2.RequestNotRead):
        return None
    return message if isinstance(message, dict) and "jsonrpc" in message else None


async def _examine(response: httpx2.Response, message: Mapping[str, Any], exchange: Exchange) -> httpx2.Response:
    """Note what the answer to ``message`` is, and return it as the SDK takes it."""
    exchange.status = status = response.status_code
    has_request = "id" in message and "method" in message
    media_type = response.headers.get("content-type", "").partition(";")[0].strip().lower()
    if _REDIRECT <= status < _CLIENT_ERROR:
        if response.next_request is None:
            await response.aclose()
            return httpx2.Response(_FAILED, request=response.request)
        location = response.next_request.url.copy_with(userinfo=b"", query=None, fragment=None)
        exchange.text = f"a redirect to {location}"
        return response
    if status < _REDIRECT and media_type == "text/event-stream":
        return response
    if status == _ACCEPTED or not has_request:
        exchange.is_unreadable = has_request
        if status < _CLIENT_ERROR:
            return response
    body, is_whole = await _read_body(response, MAX_ANSWER_BYTES if status < _REDIRECT else _ERROR_BYTES)
    if status >= _CLIENT_ERROR:
        exchange.retry_after = _read_retry_after(response.headers.get("retry-after", ""))
        exchange.error_code, exchange.is_own_error, exchange.text = _read_error(body, message.get("id"))
        body = body if is_whole else b""
    elif not is_whole:
        exchange.is_unreadable, exchange.text = True, f"it has more than {MAX_ANSWER_BYTES:,} bytes"
    else:
        find_answer = partial(_find_answer, body, message["id"])
        answer = find_answer() if len(body) < _LOOP_BYTES else await asyncio.to_thread(find_answer)
        if answer is None:
            exchange.is_unreadable, exchange.text = True, _shorten(body)
        else:
            body, media_type = answer, "application/json"
    if exchange.is_unreadable:
        return httpx2.Response(_FAILED, request=response.request)
    headers = {"content-type": media_type} if media_type else {}
    if session := response.headers.get(_SESSION_HEADER):
        headers[_SESSION_HEADER] = session
    return httpx2.Response(status, headers=headers, content=body, request=response.request)


async def _read_body(response: httpx2.Response, limit: int) -> tuple[bytes, bool]:
    """Read at most ``limit`` bytes of the body, and close the response. Return them, and whether they are all."""
    pieces, size = [], 0
    try:
        async for piece in response.aiter_bytes():
            pieces.append(piece)
            size += len(piece)
            if size > limit:
                return b"".join(pieces)[:limit], False
    finally:
        await response.aclose()
    return b"".join(pieces), True


def _read_error(body: bytes, id: Any) -> tuple[int | None, bool, str]:
    """Return the code of the JSON-RPC error in a body, whether that has the message's ``id``, and the body's text."""
    text = _shorten(body)
    try:
        value = from_json(body)
    except ValueError:
        return None, False, text
    error = value.get("error") if isinstance(value, dict) else None
    code = error.get("code") if isinstance(error, dict) else None
    if not isinstance(error, dict) or not isinstance(code, int) or "jsonrpc" not in value:
        return None, False, text
    return code, value.get("id") == id, _shorten(str(error.get("message", "")).encode(errors="replace"))


def _read_retry_after(text: str) -> float | None:
    """Return the seconds of a ``Retry-After``, which may be a point in time; None for none, or a wrong one."""
    try:
        return float(text) if text.strip().isdigit() else parsedate_to_datetime(text).timestamp() - time.time()
    except (TypeError, ValueError, ArithmeticError):
        return None


def _find_answer(body: bytes, id: Any) -> bytes | None:
    """Return the body of an answer to the request ``id`` as the SDK takes it; None if ``body`` has none.

    Servers answer with the id as a text, with null, or with one that stood in the arguments; some answer with a batch.
    A POST has one request, so an answer on it is that request's.
    """
    try:
        value = from_json(body)
    except ValueError:
        return None
    answers = [each for each in (value if isinstance(value, list) else [value]) if _is_answer(each)]
    own = [answer for answer in answers if answer.get("id") == id] or answers
    if len(own) != 1:
        return None
    if own[0] is value and type(value.get("id")) is type(id) and value["id"] == id and value.get("jsonrpc") == "2.0":
        return body
    return json.dumps({**own[0], "jsonrpc": "2.0", "id": id}).encode()


def _is_answer(value: Any) -> bool:
    return isinstance(value, dict) and (
        isinstance(value.get("result"), dict) or (isinstance(value.get("error"), dict) and "result" not in value)
    )


_TAG = re.compile(r"<[^<>]*>")


def _drop_elements(text: str, name: str) -> str:
    """Return ``text`` without the elements of that name; one that has no end takes the rest along."""
    searched, kept, at = text.lower(), list[str](), 0
    while (start := searched.find(f"<{name}", at)) >= 0:
        kept.append(text[at:start])
        at = searched.find(f"</{name}", start)
        if at < 0:
            return " ".join(kept)
    return " ".join((*kept, text[at:]))


def _shorten(body: bytes) -> str:
    """Return the beginning of a body as one line of text, without the marks of HTML."""
    text = body[: 4 * _SEARCHED_CHARS].decode(errors="replace")
    if text.lstrip().startswith("<"):
        for name in ("style", "script"):
            text = _drop_elements(text, name)
        text = _TAG.sub(" ", text)
    line = " ".join(text.split())
    return line if len(line) <= _SHOWN_CHARS else f"{line[:_SHOWN_CHARS]}…"
