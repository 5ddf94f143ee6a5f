"""The transport of the MCP server: one exchange of HTTP by the SDK, and what clients of the older protocol are asked.

A server of that protocol asks within the stream that answers a call, and the client answers by a request of its own,
which may reach another replica. So the id of what is asked says what that is, and the id of the client's session that
it can be asked: no replica keeps anything.
"""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol

from mcp.server.lowlevel import Server
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from ..client.audit import audit_caller
from ..errors import PerdureError
from ..types.plain_json import parse_json
from .operations import Call
from .origins import get_client_address
from .problems import build_problem
from .sse import HEADERS
from .turns import MAX_BODY_BYTES

SESSION_HEADER, _ASKABLE = "mcp-session-id", "askable-"
"""Only a client of the older protocol that can be asked gets the id of a session. It says so, and nothing else."""
Ask = Callable[[Mapping[str, Any]], Awaitable[None]]
"""Sends a request to the client."""


class Methods(Protocol):
    """The methods of MCP for one caller."""

    def build_server(self) -> Server[Any]:
        """Build the server that has them."""

    async def give_reply(self, id: str, result: Any) -> None:
        """Take the client's reply to what it was asked. Raises ``PerdureError``."""


class McpExchange(Response):
    """Answers one request by the SDK's transport, with a server for this caller and request alone."""

    def __init__(self, call: Call, build_methods: Callable[[Ask | None], Methods]) -> None:
        """``build_methods`` gets what asks the client, if that can be asked."""
        super().__init__()
        self._call = call
        self._build_methods = build_methods
        self._begun = asyncio.Event()
        """Set when the stream of events begins."""
        self._send: Send
        self._opens_session = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            release = self._call.hold_stream()
        except PerdureError as error:
            await build_problem(error)(scope, receive, send)
            return
        try:
            with audit_caller(self._call.caller.auth, get_client_address(scope)):
                await self._answer(scope, receive, send)
        finally:
            release()

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        size = 0

        async def receive_counted() -> Any:
            nonlocal size
            message = await receive()
            size += len(message.get("body", b""))
            if message["type"] == "http.request" and not message.get("more_body", False):
                self._call.web.rates.charge(self._call.caller, size)
            return message

        async def send_uncached(message: Any) -> None:
            if message["type"] == "http.response.start":
                own = {name.lower().encode(): value.encode() for name, value in HEADERS.items()}
                if self._opens_session:
                    own[SESSION_HEADER.encode()] = f"{_ASKABLE}{uuid.uuid4().hex}".encode()
                kept = [(name, value) for name, value in message["headers"] if name.lower() not in own]
                message = {**message, "headers": [*kept, *own.items()]}
                if dict(kept).get(b"content-type", b"").startswith(b"text/event-stream"):
                    self._send = send
            await send(message)
            if hasattr(self, "_send"):
                self._begun.set()

        body, receive_again = await _read_ahead(receive_counted)
        message = _parse_message(body)
        methods = self._build_methods(self._ask if self._is_askable(message) else None)
        if "method" not in message and isinstance(message.get("id"), str):
            try:
                await methods.give_reply(message["id"], message.get("result"))
            except PerdureError as error:
                await build_problem(self._call.caller.show_error(error))(scope, receive, send)
            else:
                await Response(status_code=202, headers=HEADERS)(scope, receive, send)
            return
        manager = StreamableHTTPSessionManager(
            methods.build_server(), stateless=True, max_request_body_size=MAX_BODY_BYTES
        )
        async with manager.run():
            await manager.handle_request(scope, receive_again, send_uncached)

    def _is_askable(self, message: Mapping[str, Any]) -> bool:
        """Whether the client has said that it can be asked: in its ``initialize``, which the session's id repeats."""
        if message.get("method") == "initialize":
            params = message.get("params")
            capabilities = params.get("capabilities") if isinstance(params, dict) else None
            self._opens_session = isinstance(capabilities, dict) and isinstance(capabilities.get("elicitation"), dict)
        return self._call.request.headers.get(SESSION_HEADER, "").startswith(_ASKABLE)

    async def _ask(self, request: Mapping[str, Any]) -> None:
        """Send a request to the client, in the stream that answers it."""
        await self._begun.wait()
        frame = b"event: message\r\ndata: " + json.dumps({"jsonrpc": "2.0", **request}).encode() + b"\r\n\r\n"
        await self._send({"type": "http.response.body", "body": frame, "more_body": True})


async def _read_ahead(receive: Receive) -> tuple[bytes, Receive]:
    """Read the body, if it is not too long for a request, and return what reads it again."""
    messages = []
    size, has_more = 0, True
    while has_more and size <= MAX_BODY_BYTES:
        message = await receive()
        messages.append(message)
        size += len(message.get("body", b""))
        has_more = message["type"] == "http.request" and message.get("more_body", False)
    body = b"".join(message.get("body", b"") for message in messages)

    async def receive_again() -> Any:
        return messages.pop(0) if messages else await receive()

    return body if size <= MAX_BODY_BYTES else b"", receive_again


def _parse_message(body: bytes) -> dict[str, Any]:
    """Return a message of JSON-RPC; an empty one for another body, which the SDK refuses."""
    try:
        message = parse_json(body)
    except (ValueError, RecursionError):
        return {"method": ""}
    return message if isinstance(message, dict) else {"method": ""}
