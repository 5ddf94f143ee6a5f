"""A model API on loopback that speaks OpenAI's Responses format, strictly, and says what a rule tells it to.

In a test::

    async with ResponsesServer(lambda request: [Call("add", {"a": 1})] if not outputs(request) else "2") as server:
        provider = OpenAIResponses(base_url=server.base_url, api_key="test")
"""

from __future__ import annotations

import asyncio
import inspect
import itertools
import json
from collections.abc import Callable
from typing import Any

from tests.servers import responses_wire
from tests.servers.chat_messages import RefusedError, check
from tests.servers.http import Answer, GoneError, HttpServer, Request
from tests.servers.openai_server import Stats
from tests.servers.responses_rules import parse
from tests.servers.responses_wire import Reply, as_reply

Rule = Callable[[dict[str, Any]], Any]
"""Request JSON → ``Reply``, text, a ``Call`` or a list of both; may be async."""

ENCRYPTED = "reasoning.encrypted_content"


class ResponsesServer:
    """The server. ``requests`` has the JSON of what was asked, ``bodies`` its bytes, ``stats`` the counts.

    Models that are in ``plain_models`` do not reason: they refuse to be asked for encrypted reasoning, as the older
    ones of the real API do.
    """

    def __init__(
        self,
        rule: Rule | str = "Hello.",
        *,
        api_key: str | None = None,
        models: set[str] | None = None,
        plain_models: set[str] = frozenset(),  # type: ignore[assignment]  # read only
        delay: float = 0.0,
    ) -> None:
        self.rule = rule
        self.requests: list[dict[str, Any]] = []
        self.bodies: list[bytes] = []
        self.headers: list[dict[str, str]] = []
        self.stats = Stats()
        self.release = asyncio.Event()
        self.asked = asyncio.Condition()
        self._api_key = api_key
        self._models = models
        self._plain_models = plain_models
        self._delay = delay
        self._needs: dict[str, str] = {}
        self._http = HttpServer(self._handle)

    async def __aenter__(self) -> ResponsesServer:
        await self._http.__aenter__()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._http.__aexit__(*exc)

    @property
    def base_url(self) -> str:
        """For ``OpenAIResponses(base_url=…)`` and ``OPENAI_BASE_URL``."""
        return f"http://127.0.0.1:{self._http.port}/v1"

    async def wait_requests(self, count: int) -> None:
        """Until ``count`` requests have arrived."""
        async with self.asked:
            await self.asked.wait_for(lambda: self.stats.requests >= count)

    async def _handle(self, request: Request, answer: Answer) -> None:
        match request.method, request.path.partition("?")[0]:
            case "POST", "/v1/responses":
                await self._respond(request, answer)
            case _, path:
                message = f"Invalid URL ({request.method} {path})"
                await answer.json(404, {"error": {"message": message, "type": "invalid_request_error", "code": None}})

    async def _respond(self, request: Request, answer: Answer) -> None:
        self.stats.requests += 1
        async with self.asked:
            self.asked.notify_all()
        try:
            self._authenticate(request)
            asked = parse(request.body, self._needs)
            self._know(asked)
        except RefusedError as refused:
            self.stats.refused += 1
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
            raise RefusedError(401, "You didn't provide an API key.")
        if self._api_key not in (None, key):
            raise RefusedError(401, f"Incorrect API key provided: {key}.", code="invalid_api_key")
        if request.headers.get("content-type", "").partition(";")[0] != "application/json":
            raise RefusedError(400, "Unsupported content type: send application/json.")

    def _know(self, asked: dict[str, Any]) -> None:
        if self._models is not None and asked["model"] not in self._models:
            message = f"The requested model '{asked['model']}' does not exist."
            raise RefusedError(400, message, code="model_not_found", param="model")
        if asked["model"] in self._plain_models:
            plain = ENCRYPTED not in asked.get("include", ())
            check(plain, "Encrypted content is not supported with this model.", "include")

    async def _send(self, reply: Reply, asked: dict[str, Any], size: int, answer: Answer) -> None:
        if reply.hang is not None and reply.hang_after < 0:
            await answer.wait(reply.hang)
        if reply.body is not None:
            raw = reply.body if isinstance(reply.body, bytes) else json.dumps(reply.body).encode()
            await answer.send(reply.status, raw, {"content-type": "application/json", **reply.headers})
            return
        encrypted = ENCRYPTED in asked.get("include", ())
        ended = responses_wire.whole(reply, asked=asked, body_size=size, encrypted=encrypted)
        for before, after in itertools.pairwise(ended["output"]):
            if before["type"] == "reasoning":
                self._needs[after["id"]] = before["id"]
        if asked.get("stream"):
            await self._stream(reply, ended, answer)
        else:
            await answer.json(reply.status, ended, reply.headers)

    async def _stream(self, reply: Reply, ended: dict[str, Any], answer: Answer) -> None:
        delay = reply.delay or self._delay
        left = reply.cut_after
        answer.start(reply.status, {"content-type": "text/event-stream; charset=utf-8", **reply.headers})
        for number, event in enumerate(responses_wire.stream(reply, ended)):
            if reply.hang is not None and number == reply.hang_after:
                await answer.wait(reply.hang)
            if delay:
                await asyncio.sleep(delay)
            if left is not None and left <= len(event):
                await answer.write(event[:left])
                answer.abort()
            left = None if left is None else left - len(event)
            await answer.write(event)
        await answer.finish()


def outputs(request: dict[str, Any]) -> list[Any]:
    """The outputs of function calls in a request's input, in order."""
    return [item["output"] for item in request["input"] if item.get("type") == "function_call_output"]
