"""PARITY.md, part A: providers and their settings, at strict servers of the four formats."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from perdure import Agent, register_provider
from perdure.ports.model import Completed, ModelRequest, StreamEvent, TextDelta
from perdure.providers import registry
from perdure.types.messages import TextPart
from tests.support.apis import FORMATS, KEY, Says, StrictApi, strict_api
from tests.support.engine import Engine

VARIABLES = {
    "openai": ("OPENAI_BASE_URL", "OPENAI_API_KEY"),
    "openai-responses": ("OPENAI_BASE_URL", "OPENAI_API_KEY"),
    "anthropic": ("ANTHROPIC_BASE_URL", "ANTHROPIC_API_KEY"),
    "google": ("GOOGLE_GEMINI_BASE_URL", "GEMINI_API_KEY"),
}


class Echo:
    """A provider of one method."""

    async def stream(self, request: ModelRequest) -> AsyncIterator[StreamEvent]:
        text = request.messages[-1].text
        yield TextDelta(text)
        yield Completed((TextPart(text=text),), model=request.model)


async def ask(engine: Engine, agent: Agent, message: str = "Go.") -> Any:
    """The response of one run."""
    async with engine.served(agent) as client:
        return await (await client.start(agent.name, message)).result()


@pytest.mark.parametrize("format", FORMATS)
async def test_a11_a_provider_by_its_key(engine: Engine, monkeypatch: pytest.MonkeyPatch, format: str) -> None:
    """By the built-in key, and as an endpoint of one's own name that has its own URL and key."""
    async with strict_api(format) as api:
        for name, value in zip(VARIABLES[format], (api.server.base_url, KEY), strict=True):
            monkeypatch.setenv(name, value)
        api.replies = [Says("By its key."), Says("By its URL.")]
        built_in = await ask(engine, Agent("a", f"{format}:{api.name}"))
        monkeypatch.setenv(VARIABLES[format][1], "another key, which the server refuses")
        compatible = await ask(engine, Agent("b", api.model))
    assert (built_in.content, compatible.content) == ("By its key.", "By its URL.")
    assert (api.asked, api.refused) == (2, 0)


async def test_a11_a_custom_provider_is_one_method(engine: Engine) -> None:
    register_provider("echo", Echo)
    try:
        response = await ask(engine, Agent("parrot", "echo:any"), "Hello!")
    finally:
        registry._providers.pop("echo")
    assert response.content == "Hello!"
    assert response.messages[-1].model == "any"


SAMPLING: dict[str, Any] = {"temperature": 0.5, "max_tokens": 9000, "top_p": None}
ON_THE_WIRE: list[tuple[str, dict[str, Any], dict[str, Any], dict[str, Any]]] = [
    (
        "openai",
        {"top_p": 0.5, "max_tokens": 90, "stop": ["END"], "seed": 7, "metadata": {"a": "b"}, "reasoning_effort": "low"},
        {"store": True, "service_tier": "flex"},
        {
            "top_p": 0.5,
            "max_tokens": 90,
            "stop": ["END"],
            "seed": 7,
            "metadata": {"a": "b"},
            "reasoning_effort": "low",
            "store": True,
            "service_tier": "flex",
        },
    ),
    (
        "openai-responses",
        SAMPLING | {"metadata": {"a": "b"}, "reasoning_effort": "low"},
        {"truncation": "auto"},
        {
            "temperature": 0.5,
            "max_output_tokens": 9000,
            "metadata": {"a": "b"},
            "reasoning": {"effort": "low"},
            "truncation": "auto",
        },
    ),
    (
        "anthropic",
        SAMPLING | {"top_k": 4, "stop": ["END"], "metadata": {"user_id": "u"}},
        {"service_tier": "auto"},
        {
            "temperature": 0.5,
            "max_tokens": 9000,
            "top_k": 4,
            "stop_sequences": ["END"],
            "metadata": {"user_id": "u"},
            "service_tier": "auto",
        },
    ),
    (
        "google",
        SAMPLING | {"top_k": 4, "stop": ["END"], "seed": 7},
        {"safetySettings": []},
        {
            "generationConfig": {
                "temperature": 0.5,
                "maxOutputTokens": 9000,
                "topK": 4,
                "stopSequences": ["END"],
                "seed": 7,
                "thinkingConfig": {"includeThoughts": True},
            },
            "safetySettings": [],
        },
    ),
]
"""Provider, settings, options; and all that the request has besides the conversation and what the adapter sets."""
ADAPTERS_OWN = {"model", "messages", "input", "contents", "stream", "stream_options", "store", "include", "system"}


@pytest.mark.parametrize(("format", "settings", "options", "wire"), ON_THE_WIRE, ids=[each[0] for each in ON_THE_WIRE])
async def test_a12_settings_have_one_spelling_and_go_out_under_each_providers_names(
    engine: Engine, format: str, settings: dict[str, Any], options: dict[str, Any], wire: dict[str, Any]
) -> None:
    async with strict_api(format) as api:
        api.replies = [Says("Done.")]
        await ask(engine, Agent("a", api.model, settings=settings, provider_options=options))
    assert said_besides(api, wire) == wire


def said_besides(api: StrictApi, wire: dict[str, Any]) -> dict[str, Any]:
    [request] = api.requests
    return {key: value for key, value in request.items() if key in wire or key not in ADAPTERS_OWN}


@pytest.mark.parametrize(
    ("format", "key", "supported"),
    [
        ("openai", "top_k", "anthropic, google"),
        ("openai-responses", "seed", "openai, google"),
        ("openai-responses", "stop", "openai, anthropic, google"),
        ("anthropic", "seed", "openai, google"),
        ("google", "metadata", "openai, openai-responses, anthropic"),
    ],
)
def test_a12_a_setting_that_the_provider_lacks_is_refused_when_the_agent_is_defined(
    format: str, key: str, supported: str
) -> None:
    with pytest.raises(ValueError, match=rf"'{format}' has no setting '{key}'; supported by: {supported}"):
        Agent("a", f"{format}:any", settings={key: 1})
    with pytest.raises(ValueError, match=rf"'{format}_x'.*'{format}'"):
        Agent("a", f"{format}:any", settings={f"{format}_x": 1})
    Agent("a", f"{format}:any", settings={key: None})
