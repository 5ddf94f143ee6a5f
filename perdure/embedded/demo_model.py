"""The model of ``perdure demo``: needs no key and no network, and still reads files to answer.

In process: ``async with DemoModel() as model: … model.base_url``. As a process, with the base URL as the first
line of stdout::

    python -m perdure.embedded.demo_model --port 0 --delay 0.02
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import AsyncGenerator, Sequence

from .demo import wire
from .demo.http import HOST, Answer, HttpServer, Request
from .demo.rules import reply

DELAY = 0.02
"""Seconds between two tokens: slow enough to watch."""


class DemoModel:
    """The model as a server on loopback. ``requests`` counts what was asked, ``completed`` what was answered whole."""

    def __init__(self, *, port: int = 0, delay: float = DELAY) -> None:
        self.requests = 0
        self.completed = 0
        self._delay = delay
        self._http = HttpServer(self._handle, port)

    async def __aenter__(self) -> DemoModel:
        await self._http.__aenter__()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._http.__aexit__(*exc)

    @property
    def base_url(self) -> str:
        """For ``OPENAI_BASE_URL`` or ``OpenAIChat(base_url=…)``."""
        return f"http://{HOST}:{self._http.port}/v1"

    async def _handle(self, request: Request) -> Answer:
        match request.method, request.path:
            case "POST", "/v1/chat/completions":
                return self._complete(request.body)
            case "GET", "/v1/models":
                return Answer(json={"object": "list", "data": [{"id": "demo", "object": "model"}]})
            case "GET", "/stats":
                return Answer(json={"requests": self.requests, "completed": self.completed})
            case method, path:
                return _error(404, f"Unknown URL: {method} {path}")

    def _complete(self, body: bytes) -> Answer:
        self.requests += 1
        try:
            conversation = wire.parse(body)
        except (ValueError, KeyError, TypeError) as error:
            return _error(400, f"The request is no chat completion: {error}")
        say = wire.number_calls(reply(conversation), conversation)
        if conversation.stream:
            return Answer(events=self._counted(wire.stream(say, conversation, len(body), self._delay)))
        self.completed += 1
        return Answer(json=wire.whole(say, conversation, len(body)))

    async def _counted(self, events: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
        async for event in events:
            yield event
        self.completed += 1


def _error(status: int, message: str) -> Answer:
    return Answer(status, {"error": {"message": message, "type": "invalid_request_error", "param": None, "code": None}})


async def serve(port: int, delay: float) -> None:
    """Serve until killed; prints the base URL first."""
    async with DemoModel(port=port, delay=delay) as model:
        sys.stdout.write(f"{model.base_url}\n")
        sys.stdout.flush()
        await asyncio.Event().wait()


def main(argv: Sequence[str] | None = None) -> None:
    """Entry of ``python -m perdure.embedded.demo_model``."""
    parser = argparse.ArgumentParser(prog="perdure.embedded.demo_model", description="The demo's small model.")
    parser.add_argument("--port", type=int, default=0, help="0 takes a free one")
    parser.add_argument("--delay", type=float, default=DELAY, help="seconds between two tokens")
    options = parser.parse_args(argv)
    try:
        asyncio.run(serve(options.port, options.delay))
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
