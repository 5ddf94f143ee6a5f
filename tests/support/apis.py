"""Our strict servers in one shape: the same reply, said in each of the four wire formats, and the provider that asks.

::

    async with strict_api("anthropic") as api:
        api.replies = [Says("Hm.", [("add", {"a": 1})], thinking="which?"), Says("2")]
        agent = Agent("a", api.model, …)        # the provider is registered for the length of the block
"""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from perdure.providers import Anthropic, Google, OpenAIChat, OpenAIResponses, register_provider, registry
from tests.servers import anthropic_wire, chat_wire, google_wire, responses_wire
from tests.servers.anthropic_server import AnthropicServer
from tests.servers.google_server import GoogleServer
from tests.servers.openai_server import OpenAIServer
from tests.servers.responses_server import ResponsesServer

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

    def rule(self, _: object) -> Any:
        """The next reply, in the server's own words."""
        # Not an exception, which would cut the connection, and be tried again until the test's time is up.
        return _SAY[self.format](
            self.replies.pop(0) if self.replies else Says("The test has no reply left.", status=404)
        )


def _chat(says: Says) -> Any:
    if says.status != 200:
        return chat_wire.error(says.status, says.text, **_after(says))
    ends = {"length": "length", "filtered": "content_filter"}.get(says.ends)
    calls = [chat_wire.Call(name, given) for name, given in says.calls]
    return chat_wire.Reply(says.text, calls, says.thinking, finish_reason=ends, **_how(says))


def _responses(says: Says) -> Any:
    if says.status != 200:
        said = chat_wire.error(says.status, says.text, **_after(says))  # the two have one form of errors
        return responses_wire.Reply(status=said.status, body=said.body, headers=said.headers)
    items: list[Any] = []
    if says.thinking:
        search = {"type": "search", "query": says.thinking}
        found = {"type": "web_search_call", "id": responses_wire.fresh("ws"), "status": "completed", "action": search}
        items += [responses_wire.reasoning(says.thinking), found]
    if says.text or not says.calls:
        items.append(responses_wire.message(says.text, phase="commentary" if says.calls else "final_answer"))
    items += [responses_wire.function_call(chat_wire.Call(name, given)) for name, given in says.calls]
    ends = {"length": "max_output_tokens", "filtered": "content_filter"}.get(says.ends)
    return responses_wire.Reply(items=items, incomplete=ends, **_how(says))


def _anthropic(says: Says) -> Any:
    if says.status != 200:
        return anthropic_wire.error(says.status, says.text, "api_error", **_after(says))
    blocks: list[Any] = []
    if says.thinking:
        asked = {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"query": "x"}}
        found = {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": []}
        blocks += [
            anthropic_wire.thinking(says.thinking),
            {"type": "redacted_thinking", "data": "sealed/1"},
            asked,
            found,
        ]
    if says.text:
        blocks.append({"type": "text", "text": says.text})
    blocks += [anthropic_wire.tool_use(chat_wire.Call(name, given)) for name, given in says.calls]
    ends = {"length": "max_tokens", "filtered": "refusal"}.get(says.ends)
    return anthropic_wire.Reply(blocks=blocks, finish_reason=ends, **_how(says))


def _google(says: Says) -> Any:
    if says.status != 200:
        labels = {400: "INVALID_ARGUMENT", 401: "UNAUTHENTICATED", 429: "RESOURCE_EXHAUSTED"}
        return google_wire.error(says.status, says.text, labels.get(says.status, "INTERNAL"), **_after(says))
    signed = base64.b64encode(f"google {says.thinking}".encode()).decode() if says.thinking else None
    calls = [
        google_wire.Call(name, given if isinstance(given, Mapping) else {}, signature=None if n else signed)
        for n, (name, given) in enumerate(says.calls)
    ]
    ends = {"length": "MAX_TOKENS", "filtered": "SAFETY"}.get(says.ends, "STOP")
    text_signed = None if calls else signed
    return google_wire.Reply(says.text, calls, says.thinking, text_signed, finish_reason=ends, **_how(says))


def _how(says: Says) -> dict[str, Any]:
    return {"cut_after": says.cut_after, "delay": says.delay}


def _after(says: Says) -> dict[str, str]:
    return {} if says.retry_after is None else {"retry_after": str(says.retry_after)}


_SAY: dict[str, Callable[[Says], Any]] = {
    "openai": _chat,
    "openai-responses": _responses,
    "anthropic": _anthropic,
    "google": _google,
}
_MADE: dict[str, tuple[Any, Any, str]] = {
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
