"""A model API on loopback that speaks four wire formats, strictly, and says what a rule tells it to.

In a test::

    async with OpenAIServer(lambda request: Call("add", {"a": 1}) if len(request["messages"]) < 3 else "2") as server:
        provider = OpenAIChat(base_url=server.base_url, api_key="test")

Every server answers the paths of all four formats; its class only says for which one ``base_url`` is. What a format
checks and how it writes a reply stands in its module: ``chat``, ``responses``, ``anthropic``, ``google``.
"""

from __future__ import annotations

import asyncio
import inspect
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from tests.servers.anthropic import Messages
from tests.servers.chat import ChatCompletions
from tests.servers.google import GenerateContent
from tests.servers.http import Answer, GoneError, HttpServer, Request
from tests.servers.responses import Responses
from tests.servers.wire import Call, RefusedError, Reply, WireFormat, as_reply, error

__all__ = [
    "FORMATS",
    "AnthropicServer",
    "Call",
    "GoogleServer",
    "ModelServer",
    "OpenAIServer",
    "Reply",
    "ResponsesServer",
    "Rule",
    "as_reply",
    "error",
]

Rule = Callable[[dict[str, Any]], Any]
"""Request JSON → ``Reply``, text, a ``Call``, a block or a list of these; may be async."""
FORMATS = {made.name: made for made in (ChatCompletions, Responses, Messages, GenerateContent)}


@dataclass(slots=True)
class Stats:
    """What the server was asked, counted."""

    requests: int = 0
    """All that came on the path of a format."""
    refused: int = 0
    """Answered 4xx by the API's rules."""
    completed: int = 0
    """Replies that were sent to their end: what a user pays for."""
    aborted: int = 0
    """Replies that the client hung up on, or that were cut."""


class ModelServer:
    """The server. ``requests`` has the JSON of what was not refused, ``bodies``, ``headers`` and ``paths`` what came
    with it; ``refusals`` says why others were. ``replies`` is said before ``rule`` is asked; ``release`` is for replies
    that hang.

    Models that are in ``plain_models`` do not reason: Responses refuses to give them encrypted reasoning.
    """

    format: ClassVar[type[WireFormat]]
    """For which ``base_url`` is."""

    def __init__(
        self,
        rule: Rule | str = "Hello.",
        *,
        port: int = 0,
        api_key: str | None = None,
        models: set[str] | None = None,
        plain_models: set[str] | None = None,
        record: bool = True,
    ) -> None:
        self.reset(rule)
        self._asked = asyncio.Condition()
        self._api_key = api_key
        self._models = models
        self._plain_models = plain_models or set()
        self._record = record
        self._http = HttpServer(self._handle, port)

    def reset(self, rule: Rule | str = "Hello.") -> None:
        """Forget all that was asked and said."""
        self.rule = rule
        self.replies: list[Any] = []
        self.requests: list[dict[str, Any]] = []
        self.bodies: list[bytes] = []
        self.headers: list[dict[str, str]] = []
        self.paths: list[str] = []
        self.refusals: list[str] = []
        self.stats = Stats()
        self.release = asyncio.Event()
        self.formats = {name: made() for name, made in FORMATS.items()}

    async def __aenter__(self) -> Self:
        await self._http.__aenter__()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._http.__aexit__(*exc)

    @property
    def base_url(self) -> str:
        """For ``Provider(base_url=…)`` and the provider's variable in the environment."""
        return self.url(self.format)

    def url(self, format: type[WireFormat]) -> str:
        """The address for another format."""
        return f"http://127.0.0.1:{self._http.port}{format.base}"

    @property
    def connections(self) -> int:
        """How many are open."""
        return len(self._http._connections)

    async def wait_requests(self, count: int) -> None:
        """Until ``count`` requests have arrived."""
        async with self._asked:
            await self._asked.wait_for(lambda: self.stats.requests >= count)

    async def _handle(self, request: Request, answer: Answer) -> None:
        for wire in self.formats.values():
            if request.method.upper() == "POST" and (found := wire.path.fullmatch(request.path)):
                await self._reply(wire, found.groupdict().get("model"), request, answer)
                return
        message = f"Invalid URL ({request.method} {request.path})"
        await answer.json(404, {"error": {"message": message, "type": "invalid_request_error", "code": None}})

    async def _reply(self, wire: WireFormat, model: str | None, request: Request, answer: Answer) -> None:
        self.stats.requests += 1
        async with self._asked:
            self._asked.notify_all()
        try:
            wire.authenticate(request.headers, self._api_key)
            asked = wire.parse(request, model)
            wire.check_model(asked, self._models, self._plain_models)
        except RefusedError as refused:
            self.stats.refused += 1
            self.refusals.append(str(refused))
            await answer.json(refused.status, wire.error_body(refused))
            return
        if self._record:
            self.requests.append(asked)
            self.bodies.append(request.body)
            self.headers.append(request.headers)
            self.paths.append(request.path)
        said = self.replies.pop(0) if self.replies else self.rule(asked) if callable(self.rule) else self.rule
        reply = as_reply(await said if inspect.isawaitable(said) else said)
        try:
            await self._send(reply, wire, asked | ({"model": model} if model else {}), len(request.body), answer)
            self.stats.completed += reply.status == 200
        except (GoneError, ConnectionError, asyncio.CancelledError):
            self.stats.aborted += 1
            raise

    async def _send(self, reply: Reply, wire: WireFormat, asked: dict[str, Any], size: int, answer: Answer) -> None:
        if reply.hang is not None and reply.hang_after < 0:
            await answer.wait(reply.hang)
        body = wire.error_body(reply.error) if reply.error else reply.body
        if body is not None:
            raw = body if isinstance(body, bytes) else json.dumps(body).encode()
            await answer.send(reply.status, raw, {"content-type": "application/json", **reply.headers})
            return
        if not asked.get("stream") and wire.name != GenerateContent.name:  # which only streams here
            await answer.json(reply.status, wire.whole(reply, asked, size), reply.headers)
            return
        left = reply.cut_after
        answer.start(reply.status, {"content-type": "text/event-stream; charset=utf-8", **reply.headers})
        for number, piece in enumerate(wire.stream(reply, asked, size)):
            if reply.hang is not None and number == reply.hang_after:
                await answer.wait(reply.hang)
            if reply.delay:
                await asyncio.sleep(reply.delay)
            if left is not None and left <= len(piece):
                await answer.write(piece[:left])
                answer.abort()
            left = None if left is None else left - len(piece)
            await answer.write(piece)
        await answer.finish()


class OpenAIServer(ModelServer):
    """For ``OpenAIChat``."""

    format = ChatCompletions


class ResponsesServer(ModelServer):
    """For ``OpenAIResponses``."""

    format = Responses


class AnthropicServer(ModelServer):
    """For ``Anthropic``."""

    format = Messages


class GoogleServer(ModelServer):
    """For ``Google``."""

    format = GenerateContent
