"""Our strict servers in one shape: the same reply, said in each of the four wire formats, and the provider that asks.

::

    async with strict_api("anthropic") as api:
        api.replies = [Says("Hm.", [("add", {"a": 1})], thinking="which?"), Says("2")]
        agent = Agent("a", api.model, …)        # the provider is registered for the length of the block
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from perdure.providers import Anthropic, Google, OpenAIChat, OpenAIResponses, register_provider, registry
from tests.servers.model_server import (
    AnthropicServer,
    Call,
    GoogleServer,
    ModelServer,
    OpenAIServer,
    Reply,
    ResponsesServer,
    error,
)

KEY = "sk-test-0123456789"

FORMATS = ("openai", "openai-responses", "anthropic", "google")


@dataclass(frozen=True, slots=True)
class Says:
    """A reply. With ``thinking`` it has all that is opaque in the format: signatures, sealed thoughts, searches."""

    text: str = ""
    calls: Sequence[tuple[str, Mapping[str, Any] | str]] = ()
    """Names and arguments; a text goes out as it is, where the format has text there."""
    thinking: str = ""
    ends: str = ""
    """``length`` or ``filtered``: the reply ends before its time."""
    status: int = 200
    """Of an error; ``text`` is then its message."""
    retry_after: int | None = None
    """Seconds, with an error."""
    cut_after: int | None = None
    """Reset the connection after this many bytes."""
    delay: float = 0.0
    """Seconds before each piece."""


@dataclass(slots=True)
class StrictApi:
    """One server, and its provider. ``model`` is what an agent takes."""

    format: str
    name: str
    """Of the model, without the provider."""
    server: Any
    replies: list[Says] = field(default_factory=list)
    """What it says to the requests that are not refused, in order."""

    @property
    def provider(self) -> str:
        """Name under which it is registered."""
        return f"strict-{self.format}"

    @property
    def model(self) -> str:
        return f"{self.provider}:{self.name}"

    @property
    def requests(self) -> list[dict[str, Any]]:
        """What it was asked and did not refuse."""
        return list(self.server.requests)

    @property
    def refused(self) -> int:
        """How many requests it refused, for breaking the API's rules or for their key."""
        return int(self.server.stats.refused)

    @property
    def asked(self) -> int:
        """How many requests came."""
        return int(self.server.stats.requests)

    def rule(self, _: object) -> Reply:
        """The next reply."""
        # Not an exception, which would cut the connection, and be tried again until the test's time is up.
        says = self.replies.pop(0) if self.replies else Says("The test has no reply left.", status=404)
        if says.status != 200:
            after = {} if says.retry_after is None else {"retry_after": str(says.retry_after)}
            return error(says.status, says.text, **after)
        calls = [Call(name, given) for name, given in says.calls]
        how = {"cut_after": says.cut_after, "delay": says.delay}
        return Reply(says.text, calls, says.thinking, says.ends, opaque=True, **how)


_MADE: dict[str, tuple[type[ModelServer], Any, str]] = {
    "openai": (OpenAIServer, OpenAIChat, "gpt-5-mini"),
    "openai-responses": (ResponsesServer, OpenAIResponses, "gpt-5"),
    "anthropic": (AnthropicServer, Anthropic, "claude-sonnet-4-6"),
    "google": (GoogleServer, Google, "gemini-3-pro"),
}


@asynccontextmanager
async def strict_api(
    format: str, name: str = "", *, api_key: str | None = KEY, **options: Any
) -> AsyncIterator[StrictApi]:
    """A server of ``format`` and its provider, for the length of the block. ``options`` are the provider's."""
    server_class, provider_class, name = _MADE[format]
    async with server_class(api_key=KEY) as server:
        api = StrictApi(format, name, server)
        server.rule = api.rule
        provider = provider_class(server.base_url, api_key, **options)
        register_provider(api.provider, provider)
        try:
            yield api
        finally:
            registry._providers.pop(api.provider)
            await provider.aclose()


def opaque_in(request: Mapping[str, Any], format: str) -> bool:
    """Whether there is something in ``request`` that only the server of ``format`` can have given."""
    text = json.dumps(request)
    return any(mark in text for mark in _MARKS[format])


_MARKS = {
    "openai": ('"reasoning_content"',),
    "openai-responses": ("gAAAA", '"rs_', '"ws_'),
    "anthropic": ('"sig/', "sealed/", "srvtoolu_"),
    "google": ('"Z29vZ2xl',),
}
