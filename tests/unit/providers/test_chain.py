"""A chain of models: who is asked, who answers, and what is raised when none does."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

import pytest

from perdure.errors import (
    AuthenticationError,
    BadRequestError,
    ContentFilterError,
    ContextLengthError,
    OverloadedError,
    ProviderError,
    ProviderTimeoutError,
    RateLimitError,
    RuntimeSetupError,
    TruncatedStreamError,
)
from perdure.ports.model import Completed, ModelRef, ModelRequest, Restarted, StreamEvent, TextDelta
from perdure.providers.fallback import ModelChain, Throttle
from perdure.testing import ScriptedProvider
from perdure.types.limits import RateLimit
from perdure.types.messages import Message

REQUEST = ModelRequest("first", [Message.user("hi")])


def chain(*replies: Any, **options: Any) -> tuple[ModelChain, list[ScriptedProvider]]:
    """Of one model for each reply: ``p0:m0``, ``p1:m1``, …"""
    providers = [one if hasattr(one, "stream") else ScriptedProvider([one]) for one in replies]
    models = [ModelRef(f"p{number}", f"m{number}", provider) for number, provider in enumerate(providers)]
    return ModelChain(models, lambda model: model.own, **options), providers  # type: ignore[arg-type,return-value]


async def read(model: ModelChain) -> list[StreamEvent]:
    async with aclosing(model.stream(REQUEST)) as events:
        return [event async for event in events]


class Silent:
    """Says half a word and no more."""

    def __init__(self) -> None:
        self.closed = False

    async def stream(self, request: ModelRequest) -> AsyncIterator[StreamEvent]:
        try:
            yield TextDelta("half a")
            await asyncio.Event().wait()
        finally:
            self.closed = True


async def test_the_first_that_answers_is_named_and_the_rest_are_not_asked() -> None:
    model, (first, second) = chain("Hello.", "Never.")
    *_, completed = await read(model)
    assert isinstance(completed, Completed)
    assert (completed.provider, completed.model) == ("p0", "m0")
    assert [request.model for request in first.requests] == ["m0"]
    assert second.requests == []


@pytest.mark.parametrize(
    "error",
    [
        RateLimitError("slow down", retry_after=0.1),
        OverloadedError("full"),
        AuthenticationError("no key"),
        ContextLengthError("too long"),
        ContentFilterError("refused"),
        RuntimeSetupError("no SDK"),
    ],
    ids=lambda error: type(error).__name__,
)
async def test_an_error_falls_through_to_the_next_at_once(error: Exception) -> None:
    model, (_, second) = chain(lambda _: error, "Hello.")
    first, *_, completed = await read(model)
    assert first == Restarted("p1:m1", type(error).__name__, error.message)  # type: ignore[attr-defined]
    assert isinstance(completed, Completed)
    assert (completed.provider, completed.model) == ("p1", "m1")
    assert [request.model for request in second.requests] == ["m1"]


async def test_a_bad_request_is_refused_once() -> None:
    model, (_, second) = chain(lambda _: BadRequestError("no such field"), "Never.")
    with pytest.raises(BadRequestError, match=r"^no such field$"):
        await read(model)
    assert second.requests == []


async def test_what_a_model_streamed_before_it_failed_is_followed_by_the_restart() -> None:
    model, (first, _) = chain(Silent(), "Hello.", idle=0.05)
    events = await read(model)
    assert events[0] == TextDelta("half a")
    assert events[1] == Restarted("p1:m1", "ProviderTimeoutError", "the model sent nothing for 0.05 s")
    assert first.closed  # type: ignore[attr-defined]


async def test_a_stream_without_an_end_is_cut() -> None:
    class Cut:
        async def stream(self, request: ModelRequest) -> AsyncIterator[StreamEvent]:
            yield TextDelta("half a")

    with pytest.raises(TruncatedStreamError, match="p0:m0"):
        await read(chain(Cut())[0])
    *_, completed = await read(chain(Cut(), "Whole.")[0])
    assert isinstance(completed, Completed)


@pytest.mark.parametrize(
    ("errors", "raised"),
    [
        ([AuthenticationError("a"), OverloadedError("b")], 1),
        ([RateLimitError("a", retry_after=60), RateLimitError("b", retry_after=2)], 1),
        ([RateLimitError("a", retry_after=2), RateLimitError("b", retry_after=60)], 0),
        ([RateLimitError("a", retry_after=2), OverloadedError("b")], 1),
        ([AuthenticationError("a"), ContentFilterError("b")], 0),
        ([OverloadedError("a"), BadRequestError("b")], 0),
    ],
)
async def test_when_all_fail_it_is_the_error_that_passes_soonest(errors: list[ProviderError], raised: int) -> None:
    model, _ = chain(*[(lambda _, error=error: error) for error in errors])
    with pytest.raises(ProviderError) as caught:
        await read(model)
    assert type(caught.value) is type(errors[raised])
    assert caught.value.retry_after == errors[raised].retry_after
    first, second = (type(error).__name__ for error in errors)
    assert str(caught.value) == f"every model of the chain failed. p0:m0: {first}: a; p1:m1: {second}: b"


async def test_waiting_for_a_turn_is_not_silence() -> None:
    """The place is given back when the stream ends, and when it is closed in the middle."""
    throttle, said, waits = Throttle("p0", RateLimit(concurrent=1)), list[str](), asyncio.Event()

    def waiting(why: str) -> None:
        said.append(why)
        waits.set()

    model, _ = chain(ScriptedProvider(lambda _: "Hello."), idle=0.05, throttles={"p0": throttle}, report_wait=waiting)
    async with throttle.acquire(said.append):
        second = asyncio.create_task(read(model))
        await waits.wait()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.Event().wait(), 0.1)  # longer than it may be silent
        assert not second.done()
    assert isinstance((await second)[-1], Completed)
    assert said == ["calls of 'p0' by this worker (provider_limits): 1 at once"] * 2 + [""]
    async with aclosing(model.stream(REQUEST)) as events:
        await anext(events)
    assert isinstance((await read(model))[-1], Completed)


async def test_a_silent_model_is_given_up() -> None:
    with pytest.raises(ProviderTimeoutError, match=r"sent nothing for 0\.05 s"):
        await read(chain(Silent(), idle=0.05)[0])
