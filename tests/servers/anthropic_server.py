"""A model API on loopback that speaks Anthropic's Messages, strictly, and says what a rule tells it to.

In a test::

    async with AnthropicServer(lambda request: [thinking("hm"), Call("add", {"a": 1})]) as server:
        provider = Anthropic(base_url=server.base_url, api_key="test")
"""

from __future__ import annotations

import asyncio
import inspect
import json
from collections.abc import Callable
from typing import Any

from tests.servers import anthropic_wire
from tests.servers.anthropic_messages import RefusedError
from tests.servers.anthropic_rules import parse
from tests.servers.anthropic_wire import Reply, as_reply
from tests.servers.http import Answer, GoneError, HttpServer, Request
from tests.servers.openai_server import Stats

Rule = Callable[[dict[str, Any]], Any]
"""Request JSON → ``Reply``, text, a ``Call``, a block or a list of these; may be async."""


class AnthropicServer:
    """The server. ``requests`` has the JSON of what was asked and ``bodies`` its bytes, ``headers`` what came with it,
    ``stats`` the counts; ``release`` ends a hang."""

    def __init__(self, rule: Rule | str = "Hello.", *, port: int = 0, api_key: str | None = None) -> None:
        self.rule = rule
        self.requests: list[dict[str, Any]] = []
        self.bodies: list[bytes] = []
        self.headers: list[dict[str, str]] = []
        self.refusals: list[str] = []
        self.stats = Stats()
        self.release = asyncio.Event()
        self.asked = asyncio.Condition()
        self._api_key = api_key
        self._http = HttpServer(self._handle, port)

    async def __aenter__(self) -> AnthropicServer:
        await self._http.__aenter__()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._http.__aexit__(*exc)

    @property
    def base_url(self) -> str:
        """For ``Anthropic(base_url=…)`` and ``ANTHROPIC_BASE_URL``."""
        return f"http://127.0.0.1:{self._http.port}"

    async def wait_requests(self, count: int) -> None:
        """Until ``count`` requests have arrived."""
        async with self.asked:
            await self.asked.wait_for(lambda: self.stats.requests >= count)

    async def _handle(self, request: Request, answer: Answer) -> None:
        match request.method, request.path.partition("?")[0]:
            case "POST", "/v1/messages":
                await self._message(request, answer)
            case _, path:
                await answer.json(404, anthropic_wire.error_body(f"Not found: {path}", "not_found_error"))

    async def _message(self, request: Request, answer: Answer) -> None:
        self.stats.requests += 1
        async with self.asked:
            self.asked.notify_all()
        try:
            self._authenticate(request)
            version, beta = (request.headers.get(f"anthropic-{name}", "") for name in ("version", "beta"))
            asked = parse(request.body, version=version, beta=beta)
        except RefusedError as refused:
            self.stats.refused += 1
            self.refusals.append(str(refused))
            await answer.json(refused.status, refused.body)
            return
        self.requests.append(asked)
        self.bodies.append(request.body)
        self.headers.append(request.headers)
        said = self.rule(asked) if callable(self.rule) else self.rule
        reply = as_reply(await said if inspect.isawaitable(said) else said)
        try:
            await self._send(reply, asked, len(request.body), answer)
            self.stats.completed += reply.status == 200
        except (GoneError, ConnectionError, asyncio.CancelledError):
            self.stats.aborted += 1
            raise

    def _authenticate(self, request: Request) -> None:
        scheme, _, key = request.headers.get("authorization", "").partition(" ")
        if scheme != "Bearer" or not key:
            raise RefusedError(401, "x-api-key header is required", "authentication_error")
        if self._api_key not in (None, key):
            raise RefusedError(401, "invalid x-api-key", "authentication_error")
        if not request.headers.get("anthropic-version"):
            raise RefusedError(400, "anthropic-version: header is required")
        if request.headers.get("content-type", "").partition(";")[0] != "application/json":
            raise RefusedError(400, "Unsupported content type: send application/json.")

    async def _send(self, reply: Reply, asked: dict[str, Any], size: int, answer: Answer) -> None:
        if reply.hang is not None and reply.hang_after < 0:
            await answer.wait(reply.hang)
        if reply.body is not None:
            raw = reply.body if isinstance(reply.body, bytes) else json.dumps(reply.body).encode()
            await answer.send(reply.status, raw, {"content-type": "application/json", **reply.headers})
        elif not asked.get("stream"):
            whole = anthropic_wire.whole(reply, model=asked["model"], body_size=size)
            await answer.json(reply.status, whole, reply.headers)
        else:
            await self._stream(reply, asked, size, answer)

    async def _stream(self, reply: Reply, asked: dict[str, Any], size: int, answer: Answer) -> None:
        left = reply.cut_after
        answer.start(reply.status, {"content-type": "text/event-stream; charset=utf-8", **reply.headers})
        for number, event in enumerate(anthropic_wire.stream(reply, model=asked["model"], body_size=size)):
            if reply.hang is not None and number == reply.hang_after:
                await answer.wait(reply.hang)
            if reply.delay:
                await asyncio.sleep(reply.delay)
            if left is not None and left <= len(event):
                await answer.write(event[:left])
                answer.abort()
            left = None if left is None else left - len(event)
            await answer.write(event)
        await answer.finish()
