"""A model API on loopback that speaks Gemini's ``streamGenerateContent``, strictly, and says what a rule tells it to.

In a test::

    async with GoogleServer(lambda request: Call("add", {"a": 1}) if len(request["contents"]) < 3 else "2") as server:
        provider = Google(base_url=server.base_url, api_key="test")

What a reply of its own carried is known: a signature that comes back changed, or on another part, is refused.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tests.servers import google_wire
from tests.servers.google_contents import SKIPPED, RefusedError, check
from tests.servers.google_rules import parse
from tests.servers.google_wire import Reply, as_reply, reason
from tests.servers.http import Answer, GoneError, HttpServer, Request

Rule = Callable[[dict[str, Any]], Any]
"""Request JSON → ``Reply``, text, a ``Call`` or a list of both; may be async."""
_PATH = re.compile(r"/(?P<version>v\d+\w*)/(?P<model>(models|tunedModels)/[^:?/]+):streamGenerateContent\?alt=sse\Z")


@dataclass(slots=True)
class Stats:
    """What the server was asked, counted."""

    requests: int = 0
    refused: int = 0
    """Answered 4xx by the API's rules."""
    completed: int = 0
    """Replies that were sent to their end: what a user pays for."""
    aborted: int = 0
    """Replies that the client hung up on, or that were cut."""


class GoogleServer:
    """The server. ``requests`` has the JSON of what was asked, ``stats`` the counts, ``release`` ends a hang."""

    def __init__(self, rule: Rule | str = "Hello.", *, api_key: str | None = None) -> None:
        self.rule = rule
        self.requests: list[dict[str, Any]] = []
        self.paths: list[str] = []
        self.headers: list[dict[str, str]] = []
        self.stats = Stats()
        self.release = asyncio.Event()
        self._api_key = api_key
        self._given: dict[str, str] = {}
        """Signatures that went out, and the part that each went with."""
        self._asked = asyncio.Condition()
        self._http = HttpServer(self._handle)

    async def __aenter__(self) -> GoogleServer:
        await self._http.__aenter__()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._http.__aexit__(*exc)

    @property
    def base_url(self) -> str:
        """For ``Google(base_url=…)`` and ``GOOGLE_GEMINI_BASE_URL``."""
        return f"http://127.0.0.1:{self._http.port}"

    @property
    def connections(self) -> int:
        """How many are open."""
        return len(self._http._connections)

    async def wait_requests(self, count: int) -> None:
        """Until ``count`` requests have arrived."""
        async with self._asked:
            await self._asked.wait_for(lambda: self.stats.requests >= count)

    async def _handle(self, request: Request, answer: Answer) -> None:
        self.stats.requests += 1
        async with self._asked:
            self._asked.notify_all()
        found = _PATH.match(request.path)
        if request.method.upper() != "POST" or found is None:
            await answer.send(
                404, b"<!DOCTYPE html><title>Error 404 (Not Found)!!1</title>", {"content-type": "text/html"}
            )
            return
        model = found["model"]
        try:
            self._authenticate(request)
            asked = parse(request.body, model)
            self._signatures(asked)
        except RefusedError as refused:
            self.stats.refused += 1
            await answer.json(refused.status, refused.body)
            return
        self.requests.append(asked)
        self.paths.append(request.path)
        self.headers.append(request.headers)
        said = self.rule(asked) if callable(self.rule) else self.rule
        reply = as_reply(await said if inspect.isawaitable(said) else said)
        try:
            await self._send(reply, model.partition("/")[2], len(request.body), answer)
            self.stats.completed += reply.status == 200
        except (GoneError, ConnectionError, asyncio.CancelledError):
            self.stats.aborted += 1
            raise

    def _authenticate(self, request: Request) -> None:
        key = request.headers.get("x-goog-api-key")
        if not key:
            raise RefusedError(403, "Method doesn't allow unregistered callers.", "PERMISSION_DENIED")
        if self._api_key not in (None, key):
            said = "API key not valid. Please pass a valid API key."
            raise RefusedError(400, said, "INVALID_ARGUMENT", reason("API_KEY_INVALID"))
        kind = request.headers.get("content-type", "").partition(";")[0]
        check(kind == "application/json", "Unsupported content type: send application/json.")

    def _signatures(self, asked: dict[str, Any]) -> None:
        for content in asked["contents"]:
            for part in content["parts"]:
                signature = part.get("thoughtSignature")
                if signature in (None, SKIPPED):
                    continue
                check(signature in self._given, "Thought signature is not valid.")
                check(self._given[signature] == _essence(part), "Thought signature is not valid for this part.")

    def _remember(self, event: bytes) -> None:
        if b"thoughtSignature" in event:
            candidate = json.loads(event.partition(b"data: ")[2])["candidates"][0]
            for part in candidate["content"]["parts"]:
                if signature := part.get("thoughtSignature"):
                    self._given[signature] = _essence(part)

    async def _send(self, reply: Reply, model: str, size: int, answer: Answer) -> None:
        if reply.hang is not None and reply.hang_after < 0:
            await answer.wait(reply.hang)
        if reply.body is not None:
            raw = reply.body if isinstance(reply.body, bytes) else json.dumps(reply.body).encode()
            await answer.send(reply.status, raw, {"content-type": "application/json", **reply.headers})
            return
        left = reply.cut_after
        answer.start(reply.status, {"content-type": "text/event-stream", **reply.headers})
        for number, event in enumerate(google_wire.stream(reply, model=model, body_size=size)):
            if reply.hang is not None and number == reply.hang_after:
                await answer.wait(reply.hang)
            if reply.delay:
                await asyncio.sleep(reply.delay)
            if left is not None and left <= len(event):
                await answer.write(event[:left])
                answer.abort()
            left = None if left is None else left - len(event)
            self._remember(event)
            await answer.write(event)
        await answer.finish()


def _essence(part: dict[str, Any]) -> str:
    """What a signature signs: the part without it. An id may have been added to a call that had none."""
    bare = {key: value for key, value in part.items() if key != "thoughtSignature"}
    if "functionCall" in bare:
        bare["functionCall"] = {key: bare["functionCall"].get(key) for key in ("name", "args")}
    return json.dumps(bare, sort_keys=True)
