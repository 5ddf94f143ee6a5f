"""The adapters of the wire formats, each with the fake server that it asks: ``api`` is one of them in a test.

All tests of a process share one server and one provider an adapter, and so one event loop, see ``share_event_loop``.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

import pytest
import pytest_asyncio
from openai import AsyncOpenAI
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

from perdure.ports.model import Completed, ModelRequest, StreamEvent, ToolSpec
from perdure.providers import Anthropic, Google, OpenAIChat, OpenAIResponses
from perdure.providers.pydantic_ai import PydanticAIModel
from perdure.types.messages import Message, Part, ToolResultPart
from tests.servers.model_server import AnthropicServer, GoogleServer, ModelServer, OpenAIServer, ResponsesServer

KEY = "sk-test-0123456789"
ADD = ToolSpec("add", "Adds.", {"type": "object", "properties": {"a": {"type": "integer"}}})
VARIABLES = (
    *("OPENAI_API_KEY", "OPENAI_BASE_URL", "OPENAI_ORG_ID", "OPENAI_PROJECT_ID", "OPENAI_CUSTOM_HEADERS"),
    *("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", "ANTHROPIC_BASE_URL", "ANTHROPIC_CUSTOM_HEADERS"),
    *("GEMINI_API_KEY", "GOOGLE_API_KEY", "GOOGLE_GEMINI_BASE_URL", "GOOGLE_GENAI_API_VERSION"),
)


class ByPydanticAI(PydanticAIModel):
    """A model whose client is the author's, and is closed with it."""

    def __init__(self, base_url: str, api_key: str, headers: dict[str, str] | None = None) -> None:
        self.client = AsyncOpenAI(base_url=base_url, api_key=api_key, default_headers=headers)
        super().__init__(OpenAIChatModel("gpt-test", provider=OpenAIProvider(openai_client=self.client)))

    async def aclose(self) -> None:
        await super().aclose()
        await self.client.close()


@dataclass(frozen=True, slots=True)
class Adapter:
    """One adapter, as a test makes it."""

    name: str
    make: Callable[..., Any]
    server: type[ModelServer]
    model: str
    origin: str
    key_variable: str = ""
    url_variable: str = ""
    messages: str = "messages"
    """Where the conversation stands in a request."""


OPENAI, GOOGLE = ("OPENAI_API_KEY", "OPENAI_BASE_URL"), ("GEMINI_API_KEY", "GOOGLE_GEMINI_BASE_URL")
CLAUDE = ("ANTHROPIC_API_KEY", "ANTHROPIC_BASE_URL")
ADAPTERS = {
    adapter.name: adapter
    for adapter in (
        Adapter("openai", OpenAIChat, OpenAIServer, "gpt-test", "openai@127.0.0.1", *OPENAI),
        Adapter(
            *("openai-responses", OpenAIResponses, ResponsesServer),
            *("gpt-test", "openai-responses@127.0.0.1", *OPENAI, "input"),
        ),
        Adapter("anthropic", Anthropic, AnthropicServer, "claude-sonnet-4-6", "anthropic@127.0.0.1", *CLAUDE),
        Adapter("google", Google, GoogleServer, "gemini-3-pro", "google@127.0.0.1", *GOOGLE, "contents"),
        Adapter("pydantic-ai", ByPydanticAI, OpenAIServer, "gpt-test", "pydantic-ai-openai@127.0.0.1"),
    )
}
FORMATS = tuple(ADAPTERS)[:4]


class Api:
    """A server, and a provider that asks it."""

    def __init__(self, adapter: Adapter, server: ModelServer, provider: Any) -> None:
        self.adapter, self.server, self.provider = adapter, server, provider

    @property
    def url(self) -> str:
        return self.server.url(self.adapter.server.format)

    @property
    def hi(self) -> ModelRequest:
        return self.request(Message.user("hi"))

    def request(self, *messages: Message, **more: Any) -> ModelRequest:
        return ModelRequest(more.pop("model", self.adapter.model), list(messages), **more)

    async def ask(self, rule: Any = "Hello.", request: ModelRequest | None = None) -> list[StreamEvent]:
        """Ask once, with the server answering by ``rule``; everything that was streamed."""
        self.server.rule = rule if callable(rule) or isinstance(rule, str) else lambda _: rule
        return [event async for event in self.provider.stream(request or self.hi)]

    __call__ = ask

    async def reply(self, rule: Any = "Hello.", request: ModelRequest | None = None) -> Completed:
        """The same; how it ended."""
        last = (await self.ask(rule, request))[-1]
        assert isinstance(last, Completed)
        return last

    async def sent(self, *messages: Message, **more: Any) -> list[dict[str, Any]]:
        """The messages that went out for ``messages``, which the server has checked."""
        await self.ask("Fine.", self.request(*messages, **more))
        return list(self.server.requests[-1][self.adapter.messages])

    @asynccontextmanager
    async def another(self, **options: Any) -> AsyncIterator[Api]:
        """The same with a provider that is made so."""
        options = {"base_url": self.url, "api_key": KEY, **options}
        provider = self.adapter.make(**options)
        try:
            yield Api(self.adapter, self.server, provider)
        finally:
            await provider.aclose()


def answered(request: ModelRequest, completed: Completed, *contents: str) -> ModelRequest:
    """The next request: the reply, and what its calls came to."""
    reply = Message(role="assistant", parts=completed.parts)
    pairs = zip(reply.tool_calls, contents, strict=True)
    results = [ToolResultPart(call_id=call.id, name=call.name, content=content) for call, content in pairs]
    said = tool(*results) if results else Message.user("And?")
    return replace(request, messages=[*request.messages, reply, said])


def result(call_id: str, content: str = "ok", name: str = "add", **more: Any) -> ToolResultPart:
    """A tool's result."""
    return ToolResultPart(call_id=call_id, name=name, content=content, **more)


def tool(*results: ToolResultPart) -> Message:
    """A message of results."""
    return Message(role="tool", parts=results)


def said(*parts: Part) -> Message:
    """A message of the model."""
    return Message(role="assistant", parts=parts)


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def apis() -> AsyncIterator[dict[str, Api]]:
    """All of them; a test asks for ``api``."""
    made: dict[str, Api] = {}
    async with OpenAIServer() as running:
        for name, adapter in ADAPTERS.items():
            made[name] = Api(adapter, running, adapter.make(base_url=running.url(adapter.server.format), api_key=KEY))
        yield made
        for api in made.values():
            await api.provider.aclose()


def share_event_loop(items: list[pytest.Item]) -> None:
    """The tests that use ``apis`` run on the event loop on which the server stands; for a conftest's hook."""
    for item in items:
        if pytest_asyncio.is_async_test(item) and "apis" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.asyncio(loop_scope="session"), append=False)


@pytest.fixture
def api(apis: dict[str, Api], adapter: str) -> Api:
    """That of ``adapter``, a fixture of the module or its conftest; its server remembers nothing."""
    found = apis[adapter]
    found.server.reset()
    return found


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
