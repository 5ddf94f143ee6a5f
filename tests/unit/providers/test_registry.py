from __future__ import annotations

import asyncio
import importlib.util
from collections.abc import AsyncIterator

import pytest

from perdure.errors import DefinitionError, MissingExtraError, SettingsError
from perdure.ports.model import Completed, ModelRequest, StreamEvent
from perdure.providers import (
    check_settings,
    close_providers,
    get_provider,
    keep_providers_open,
    list_providers,
    parse_model,
    register_provider,
    registry,
)
from perdure.providers.openai_chat import OpenAIChat


class Silent:
    """A provider is one method."""

    closed = 0

    async def stream(self, request: ModelRequest) -> AsyncIterator[StreamEvent]:
        yield Completed(())

    async def aclose(self) -> None:
        self.closed += 1


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_factories", dict(registry._factories))
    monkeypatch.setattr(registry, "_providers", {})


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        ("openai:gpt-5", ("openai", "gpt-5")),
        ("openai-chat:gpt-5", ("openai-chat", "gpt-5")),
        ("openai:llama3:8b", ("openai", "llama3:8b")),
        ("openai:org/model", ("openai", "org/model")),
    ],
)
def test_models(model: str, expected: tuple[str, str]) -> None:
    assert parse_model(model) == expected


@pytest.mark.parametrize("model", ["gpt-5", "", ":gpt-5", "openai:", "openai: "])
def test_no_model(model: str) -> None:
    with pytest.raises(DefinitionError, match=r"(?s)provider:model.*openai"):
        parse_model(model)


def test_an_unknown_provider_names_the_known() -> None:
    with pytest.raises(
        DefinitionError, match=r"(?s)'opnai'.*openai, openai-chat, openai-responses.*Did you mean 'openai'"
    ):
        parse_model("opnai:gpt-5")


@pytest.mark.parametrize("name", ["anthropic", "google", "openai-responses"])
def test_a_built_in_provider_can_be_named(name: str) -> None:
    assert parse_model(f"{name}:x") == (name, "x")


def test_the_alias_is_the_same_provider() -> None:
    assert isinstance(get_provider("openai"), OpenAIChat)
    assert get_provider("openai") is get_provider("openai-chat")


def test_instance_class_and_factory() -> None:
    instance = Silent()
    register_provider("a", instance)
    register_provider("b", Silent)
    register_provider("c", lambda: instance)
    assert get_provider("a") is get_provider("c") is instance
    assert isinstance(get_provider("b"), Silent)
    assert get_provider("b") is get_provider("b")
    assert set(list_providers()) >= {"a", "b", "c", "openai", "openai-chat"}


def test_a_built_in_provider_can_be_replaced() -> None:
    get_provider("openai")
    register_provider("openai", Silent())
    assert isinstance(get_provider("openai-chat"), Silent)


@pytest.mark.parametrize("name", ["", " a", "a:b"])
def test_bad_names(name: str) -> None:
    with pytest.raises(DefinitionError):
        register_provider(name, Silent())


def test_no_provider() -> None:
    with pytest.raises(DefinitionError, match="stream"):
        register_provider("a", 3)  # type: ignore[arg-type]


def test_a_missing_sdk_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        registry, "find_spec", lambda name: None if name == "openai" else importlib.util.find_spec(name)
    )
    assert parse_model("openai:gpt-5")
    check_settings("openai", {"seed": 1}, {})
    with pytest.raises(MissingExtraError, match="needs the extra 'openai'"):
        get_provider("openai")


def test_custom_providers_take_all_settings_unless_they_check() -> None:
    register_provider("a", Silent())
    check_settings("a", {"anything": 1}, {"model": 2})
    register_provider("b", OpenAIChat(base_url="http://x"))
    with pytest.raises(SettingsError):
        check_settings("b", {"anything": 1}, {})


async def test_closing_closes_what_was_used() -> None:
    provider = Silent()
    register_provider("a", provider)
    get_provider("openai")
    await close_providers()
    assert provider.closed == 1


async def test_providers_are_closed_when_the_last_of_the_loop_has_left() -> None:
    provider = Silent()
    register_provider("a", provider)
    async with keep_providers_open():
        async with keep_providers_open():
            pass
        assert provider.closed == 0
        await asyncio.to_thread(asyncio.run, _use())  # another loop's end is its own
        assert provider.closed == 1
    assert provider.closed == 2
    async with keep_providers_open():
        pass
    assert provider.closed == 3


async def _use() -> None:
    async with keep_providers_open():
        pass
