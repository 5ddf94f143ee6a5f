"""Mistakes in a provider of one's own: said where it is registered, or in words that its author can use."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from typing import Any

import pytest

from perdure import Agent
from perdure.calls.retries import UNEXPECTED_ATTEMPTS, decide_retry
from perdure.errors import (
    DefinitionError,
    ProviderConnectionError,
    ProviderError,
    ProviderTimeoutError,
    TruncatedStreamError,
)
from perdure.ports.model import Completed, ModelRef, ModelRequest, Restarted, StreamEvent, TextDelta, ToolCallDelta
from perdure.providers import get_provider, register_provider, registry
from perdure.providers.fallback import ModelChain
from perdure.testing import ScriptedProvider
from perdure.types.messages import Message, TextPart, Usage

REQUEST = ModelRequest("m", [Message.user("hi")])


class Returns:
    async def stream(self, request: ModelRequest) -> list[StreamEvent]:
        return [TextDelta("Hello.")]


class NotAsync:
    def stream(self, request: ModelRequest) -> Any:
        yield TextDelta("Hello.")


class Gives:
    """Yields what it was given, and raises what of it is an exception."""

    def __init__(self, *events: Any) -> None:
        self.events = events

    async def stream(self, request: ModelRequest) -> AsyncIterator[StreamEvent]:
        for event in self.events:
            if isinstance(event, Exception):
                raise event
            yield event


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_factories", dict(registry._factories))
    monkeypatch.setattr(registry, "_providers", {})


async def read(*providers: Any, find: Callable[[ModelRef], Any] | None = None) -> list[StreamEvent]:
    models = [ModelRef(f"p{number}", "m", one) for number, one in enumerate(providers)]
    async with aclosing(ModelChain(models, find or (lambda model: model.own)).stream(REQUEST)) as events:  # type: ignore[arg-type,return-value]
        return [event async for event in events]


async def test_numbers_that_count_no_tokens_are_dropped() -> None:
    """A run adds them up; with more than 64 bits or less than nothing it got no further."""
    usage = Usage(input_tokens=2**70, output_tokens=-5, cached_tokens=7)
    [completed] = await read(Gives(Completed((TextPart(text="Hello."),), usage=usage)))
    assert isinstance(completed, Completed)
    assert completed.usage == Usage(cached_tokens=7)


@pytest.mark.parametrize(("cls", "said"), [(Returns, "has no yield"), (NotAsync, "is not async")])
def test_a_method_that_cannot_stream_is_refused_where_it_is_given(cls: type, said: str) -> None:
    for given in (cls, cls()):
        with pytest.raises(DefinitionError, match=rf"(?s)'own'.*{said}.*async generator method"):
            register_provider("own", given)
    with pytest.raises(DefinitionError, match=f"(?s)agent 'a'.*{cls.__name__}.*{said}"):
        Agent("a", cls())
    register_provider("own", lambda: cls())  # what a factory makes is seen when it is asked
    with pytest.raises(DefinitionError, match=f"(?s)'own', as its factory made it.*{said}"):
        Agent("a", "own:m")


def test_a_factory_that_makes_no_provider() -> None:
    register_provider("own", lambda: None)  # type: ignore[arg-type,return-value]
    with pytest.raises(DefinitionError, match="has no stream method: None"):
        get_provider("own")


def test_what_was_registered_stays_when_its_successor_is_refused() -> None:
    register_provider("own", Gives())
    with pytest.raises(DefinitionError):
        register_provider("own", Returns())
    assert isinstance(get_provider("own"), Gives)


@pytest.mark.parametrize(
    ("event", "said"),
    [
        ("Hello.", "yielded 'Hello.'"),
        (TextDelta(None), r"yielded TextDelta\(text=None\)"),  # type: ignore[arg-type]
        (ToolCallDelta(0, "", "f", {"a": 1}), "yielded ToolCallDelta"),  # type: ignore[arg-type]
        (Completed("Hello."), "parts are 'Hello.'"),  # type: ignore[arg-type]
        (Completed(None), "parts are None"),  # type: ignore[arg-type]
        (Completed(part for part in [TextPart(text="Hello.")]), "parts are <generator"),  # type: ignore[arg-type]
        (Completed(("Hello.",)), "parts are"),  # type: ignore[arg-type]
        (Completed((), usage={"input_tokens": 1}), "for usage"),  # type: ignore[arg-type]
        (Completed((), finish_reason="end_turn"), "'end_turn' for finish_reason"),  # type: ignore[arg-type]
    ],
)
async def test_what_is_no_event_is_said_at_once(event: Any, said: str) -> None:
    with pytest.raises(ProviderError, match=rf"(?s)the provider of p0:m .*{said}.*perdure\.ports") as raised:
        await read(Gives(event, Completed((TextPart(text="Hello."),))))
    assert not decide_retry(raised.value, 1).retry


async def test_what_is_right_is_not_formatted(monkeypatch: pytest.MonkeyPatch) -> None:
    """The text of a large reply takes the worker's loop tens of milliseconds."""
    formatted: list[object] = []
    for cls in (TextPart, TextDelta, Completed):
        monkeypatch.setattr(cls, "__repr__", lambda self: formatted.append(self) or "x")
    await read(Gives(TextDelta("Hello."), Completed((TextPart(text="Hello."),))))
    assert not formatted


@pytest.mark.parametrize(
    ("error", "cls"),
    [
        (KeyError("boom"), ProviderError),
        (ConnectionRefusedError("nobody there"), ProviderConnectionError),
        (TimeoutError("too slow"), ProviderTimeoutError),
    ],
)
async def test_an_error_that_is_no_provider_error(error: Exception, cls: type[ProviderError]) -> None:
    with pytest.raises(ProviderError, match=str(error)) as raised:
        await read(Gives(error))
    assert type(raised.value) is cls
    assert "sent nothing" not in str(raised.value)
    assert decide_retry(raised.value, 1).retry
    assert cls is not ProviderError or not decide_retry(raised.value, UNEXPECTED_ATTEMPTS).retry
    _, restarted, *_, completed = await read(Gives(TextDelta("Hel"), error), ScriptedProvider(["Hello."]))
    assert isinstance(restarted, Restarted)
    assert isinstance(completed, Completed)
    assert completed.provider == "p1"


async def test_a_connection_that_breaks_when_the_reply_has_begun() -> None:
    with pytest.raises(TruncatedStreamError, match="in the middle"):
        await read(Gives(TextDelta("Hel"), ConnectionResetError("gone")))


async def test_a_factory_that_fails_is_a_model_that_failed() -> None:
    def find(model: ModelRef) -> Any:
        return model.own if model.own is not None else {}["MISSING"]

    *_, completed = await read(None, ScriptedProvider(["Hello."]), find=find)
    assert isinstance(completed, Completed)
