"""A model API on loopback that speaks OpenAI's chat completions, strictly, and says what a rule tells it to.

In a test::

    async with OpenAIServer(lambda request: Call("add", {"a": 1}) if len(request["messages"]) < 3 else "2") as server:
        provider = OpenAIChat(base_url=server.base_url, api_key="test")

As a process (its first line on stdout is the base URL; ``GET /stats`` counts, ``POST /release`` ends a hang)::

    python -m tests.servers.openai_server --port 0 --iterations 40 --tool work --delay 0.01
"""

from __future__ import annotations

import argparse
import asyncio
import inspect
import json
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from tests.servers import chat_wire
from tests.servers.chat_rules import RefusedError, parse
from tests.servers.chat_wire import Call, Reply, as_reply
from tests.servers.http import Answer, GoneError, HttpServer, Request

Rule = Callable[[dict[str, Any]], Any]
"""Request JSON → ``Reply``, text, a ``Call`` or a list of both; may be async."""
CountingRule = Callable[[int], Any]
"""Number of assistant messages in the request → the same."""


@dataclass(slots=True)
class Stats:
    """What the server was asked, counted."""

    requests: int = 0
    """Everything that reached ``/chat/completions``."""
    refused: int = 0
    """Answered 4xx by the API's rules."""
    completed: int = 0
    """Replies that were sent to their end: what a user pays for."""
    aborted: int = 0
    """Replies that the client hung up on, or that were cut."""


class OpenAIServer:
    """The server. ``requests`` has the JSON of what was asked, ``stats`` the counts, ``release`` ends a hang.

    ``counting`` is the fast path for benchmarks: the reply depends only on how many assistant messages the
    body has; nothing is parsed, checked or recorded.
    """

    def __init__(
        self,
        rule: Rule | str = "Hello.",
        *,
        counting: CountingRule | None = None,
        port: int = 0,
        api_key: str | None = None,
        models: set[str] | None = None,
        record: bool = True,
        delay: float = 0.0,
    ) -> None:
        self.rule = rule
        self.counting = counting
        self.requests: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.stats = Stats()
        self.thoughts: set[object] = set()
        """What it said of its thinking: it takes that back, as compatible servers do, and nobody else's."""
        self.release = asyncio.Event()
        self.asked = asyncio.Condition()
        self._api_key = api_key
        self._models = models
        self._record = record
        self._delay = delay
        self._http = HttpServer(self._handle, port)

    async def __aenter__(self) -> OpenAIServer:
        await self._http.__aenter__()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._http.__aexit__(*exc)

    @property
    def base_url(self) -> str:
        """For ``OpenAIChat(base_url=…)`` and ``OPENAI_BASE_URL``."""
        return f"http://127.0.0.1:{self._http.port}/v1"

    async def wait_requests(self, count: int) -> None:
        """Until ``count`` requests have arrived."""
        async with self.asked:
            await self.asked.wait_for(lambda: self.stats.requests >= count)

    async def _handle(self, request: Request, answer: Answer) -> None:
        match request.method, request.path.partition("?")[0]:
            case "POST", "/v1/chat/completions":
                await self._complete(request, answer)
            case "GET", "/stats":
                await answer.json(200, asdict(self.stats))
            case "GET", "/requests":
                await answer.json(200, self.requests)
            case "POST", "/release":
                self.release.set()
                await answer.json(200, {})
            case _, path:
                message = f"Invalid URL ({request.method} {path})"
                await answer.json(404, {"error": {"message": message, "type": "invalid_request_error", "code": None}})

    async def _complete(self, request: Request, answer: Answer) -> None:
        self.stats.requests += 1
        if self.counting is not None:
            reply, asked = as_reply(self.counting(count_replies(request.body))), _STREAMED
        else:
            async with self.asked:
                self.asked.notify_all()
            try:
                self._authenticate(request)
                asked = parse(request.body, self.thoughts)
                self._know(asked)
            except RefusedError as refused:
                self.stats.refused += 1
                await answer.json(refused.status, refused.body)
                return
            reply = await self._reply(asked, request)
            self.thoughts.add(reply.thinking)
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
            message = f"The model `{asked['model']}` does not exist or you do not have access to it."
            raise RefusedError(404, message, code="model_not_found", param="model")

    async def _reply(self, asked: dict[str, Any], request: Request) -> Reply:
        if self._record:
            self.requests.append(asked)
            self.headers.append(request.headers)
        said = self.rule(asked) if callable(self.rule) else self.rule
        return as_reply(await said if inspect.isawaitable(said) else said)

    async def _send(self, reply: Reply, asked: dict[str, Any], size: int, answer: Answer) -> None:
        if reply.hang is not None and reply.hang_after < 0:
            await answer.wait(reply.hang)
        if reply.body is not None:
            raw = reply.body if isinstance(reply.body, bytes) else json.dumps(reply.body).encode()
            await answer.send(reply.status, raw, {"content-type": "application/json", **reply.headers})
        elif not asked.get("stream"):
            await answer.json(reply.status, chat_wire.whole(reply, model=asked["model"], body_size=size), reply.headers)
        else:
            await self._stream(reply, asked, size, answer)

    async def _stream(self, reply: Reply, asked: dict[str, Any], size: int, answer: Answer) -> None:
        include_usage = bool(asked.get("stream_options", {}).get("include_usage"))
        delay = reply.delay or self._delay
        left = reply.cut_after
        answer.start(reply.status, {"content-type": "text/event-stream; charset=utf-8", **reply.headers})
        events = chat_wire.stream(reply, model=asked["model"], body_size=size, include_usage=include_usage)
        for number, event in enumerate(events):
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


_STREAMED: dict[str, Any] = {"model": "counting", "stream": True, "stream_options": {"include_usage": True}}


def count_replies(body: bytes) -> int:
    """How many assistant messages a request has, without parsing it: inside a text the quotes are escaped."""
    return body.count(b'"role":"assistant"') + body.count(b'"role": "assistant"')


def counted(iterations: int, tool: str, arguments: dict[str, Any], text: str = "Done.") -> CountingRule:
    """``iterations`` replies that call ``tool``, then ``text``. Arguments that are texts may have ``{n}``."""

    def rule(replies: int) -> Any:
        if replies >= iterations:
            return text
        filled = {k: v.replace("{n}", str(replies)) if isinstance(v, str) else v for k, v in arguments.items()}
        return Call(tool, filled)

    return rule


async def serve(options: argparse.Namespace) -> None:
    """Serve until killed."""
    plain = counted(options.iterations, options.tool, json.loads(options.arguments), options.text)
    release = asyncio.Event()

    def rule(replies: int) -> Reply:
        reply = as_reply(plain(replies))
        if replies == options.hang_at:
            reply.hang, reply.hang_after = release, 2
        return reply

    def strict(request: dict[str, Any]) -> Any:
        return rule(sum(message["role"] == "assistant" for message in request["messages"]))

    counting = None if options.strict else rule
    async with OpenAIServer(strict, counting=counting, port=options.port, delay=options.delay) as server:
        server.release = release
        print(server.base_url, flush=True)
        await asyncio.Event().wait()


def main(argv: list[str]) -> None:
    """Entry of ``python -m tests.servers.openai_server``."""
    parser = argparse.ArgumentParser(description="A fake model: so many tool calls, then a text.")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--iterations", type=int, default=10, help="replies that call the tool")
    parser.add_argument("--tool", default="work")
    parser.add_argument("--arguments", default="{}", help="JSON; {n} in a text is the iteration")
    parser.add_argument("--text", default="Done.")
    parser.add_argument("--delay", type=float, default=0.0, help="seconds before each piece")
    parser.add_argument("--hang-at", type=int, default=-1, help="reply that stops midway until POST /release")
    parser.add_argument("--strict", action="store_true", help="check and record every request")
    asyncio.run(serve(parser.parse_args(argv)))


if __name__ == "__main__":
    main(sys.argv[1:])
