"""What the tests of the Google provider share."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from perdure.ports import Completed, ModelRequest, StreamEvent
from perdure.providers.google import Google
from perdure.types.messages import Message, Part, ToolResultPart
from tests.servers.model_server import GoogleServer

KEY = "AIzaSyTest-0123456789"
ORIGIN = "google@127.0.0.1"
MODEL = "gemini-3-pro"
HI = ModelRequest(MODEL, [Message.user("hi")])


class Asking:
    """A provider and the server that it asks."""

    def __init__(self, server: GoogleServer, provider: Google) -> None:
        self.server = server
        self.provider = provider

    async def __call__(self, rule: Any = "Hello.", request: ModelRequest = HI) -> list[StreamEvent]:
        """Ask once, with the server answering by ``rule``; everything that was streamed."""
        self.server.rule = rule if callable(rule) or isinstance(rule, str) else lambda _: rule
        return [event async for event in self.provider.stream(request)]

    async def reply(self, rule: Any = "Hello.", request: ModelRequest = HI) -> Completed:
        """The same; how it ended."""
        last = (await self(rule, request))[-1]
        assert isinstance(last, Completed)
        return last

    async def contents(self, *messages: Message, model: str = MODEL, **more: Any) -> list[dict[str, Any]]:
        """The contents that went out for ``messages``."""
        await self(request=ModelRequest(model, list(messages), **more))
        sent: list[dict[str, Any]] = self.server.requests[-1]["contents"]
        return sent


@asynccontextmanager
async def asking(**options: Any) -> AsyncIterator[Asking]:
    """A server, and a provider that asks it."""
    async with GoogleServer(api_key=KEY) as server:
        provider = Google(base_url=server.base_url, api_key=KEY, **options)
        try:
            yield Asking(server, provider)
        finally:
            await provider.aclose()


def result(call_id: str, content: str = "ok", name: str = "add", **more: Any) -> ToolResultPart:
    """A tool's result."""
    return ToolResultPart(call_id=call_id, name=name, content=content, **more)


def tool(*results: ToolResultPart) -> Message:
    """A message of results."""
    return Message(role="tool", parts=results)


def said(*parts: Part) -> Message:
    """A message of the model."""
    return Message(role="assistant", parts=parts)
