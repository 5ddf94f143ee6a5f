from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from perdure.ports import ModelRequest, StreamEvent
from perdure.providers.openai_chat import OpenAIChat
from perdure.types.messages import Message
from tests.servers.model_server import OpenAIServer, Rule

KEY = "sk-test-0123456789"

Ask = Callable[..., Awaitable[list[StreamEvent]]]


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL", "OPENAI_ORG_ID", "OPENAI_PROJECT_ID"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
async def server() -> AsyncIterator[OpenAIServer]:
    async with OpenAIServer() as running:
        yield running


@pytest.fixture
async def provider(server: OpenAIServer) -> AsyncIterator[OpenAIChat]:
    made = OpenAIChat(base_url=server.base_url, api_key=KEY)
    yield made
    await made.aclose()


@pytest.fixture
def ask(server: OpenAIServer, provider: OpenAIChat) -> Ask:
    """Ask the provider once, with the server answering by ``rule``; everything that was streamed."""

    async def run(rule: Rule | Any = "Hello.", request: ModelRequest | None = None) -> list[StreamEvent]:
        server.rule = rule if callable(rule) or isinstance(rule, str) else lambda _: rule
        request = request or ModelRequest("gpt-test", [Message.user("hi")])
        return [event async for event in provider.stream(request)]

    return run
