"""A chain of models as one provider: the first is asked, and where it fails the next."""

from __future__ import annotations

import asyncio
import copy
import logging
import time
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager, nullcontext
from dataclasses import replace

from ..errors import PerdureError, ProviderError, ProviderTimeoutError, RuntimeSetupError, TruncatedStreamError
from ..ports import Completed, ModelRef, ModelRequest, Provider, Restarted, StreamEvent
from ..types.limits import RateLimit
from .registry import check_event, translate_unexpected_error

# ---
# How fast this worker calls a provider: so many calls at once, and so many a minute, first come, first served.


MINUTE = 60.0


class Throttle:
    """The calls of one provider. ``async with throttle.turn():`` is one call; entering it waits for its turn.

    Of one event loop. Whoever is first in line holds the door while it waits for a place and for the minute to pass, so
    nobody overtakes; a waiter that is cancelled leaves the line and takes nothing with it.
    """

    def __init__(self, name: str, limit: RateLimit, *, minute: float = MINUTE) -> None:
        self._limit_label = f"calls of {name!r} by this worker (provider_limits)"
        self._limit = limit
        self._minute = minute
        self._queue_lock = asyncio.Lock()
        self._places = asyncio.Semaphore(limit.concurrent) if limit.concurrent is not None else None
        self._call_starts: deque[float] = deque(maxlen=limit.per_minute or 0)
        """When the last calls began, as many as may begin within a minute."""

    @asynccontextmanager
    async def acquire(self, waiting: Callable[[str], None]) -> AsyncIterator[None]:
        """One call. ``waiting`` is told why it waits, and "" when it no longer does."""
        async with AsyncExitStack() as held:
            why = self._get_wait_reason() or (
                f"{self._limit_label}: other calls come first" if self._queue_lock.locked() else ""
            )
            if why:
                waiting(why)
            try:
                async with self._queue_lock:
                    if now := self._get_wait_reason():
                        waiting(why := now)
                    if self._places is not None:
                        await held.enter_async_context(self._places)
                    await asyncio.sleep(max(0.0, self._seconds_until_free()))
                    self._call_starts.append(time.monotonic())
            finally:
                if why:
                    waiting("")
            yield

    def _seconds_until_free(self) -> float:
        """Seconds until another call may begin."""
        if self._limit.per_minute is None or len(self._call_starts) < self._limit.per_minute:
            return 0.0
        return self._call_starts[0] + self._minute - time.monotonic()

    def _get_wait_reason(self) -> str:
        """What the first in line has to wait for; "" for nothing."""
        if self._places is not None and self._places.locked():
            return f"{self._limit_label}: {self._limit.concurrent} at once"
        if self._seconds_until_free() > 0:
            return f"{self._limit_label}: {self._limit.per_minute} a minute"
        return ""


logger = logging.getLogger("perdure.worker")

IDLE_TIMEOUT = 600.0
"""Seconds without anything from a model after which it is given up: heartbeats hide one that hangs. Reasoning models
are silent for minutes; this is also what the SDKs wait for a byte."""
_MAX_MODEL_ERROR_CHARS = 300
"""Characters that the message of a chain has of each model's error: all of them are to fit a failure's size."""


def _ignore_wait_reason(reason: str) -> None:
    """Nobody is told why a call waits."""


class ModelChain:
    """The models of one call, of which there may be only one.

    The next is asked at once, whatever the one before failed with, also when that said when to come back: a user waits
    for the answer, and the first model is asked again with the next call. Not after an error without ``fallback``: the
    next would refuse the request too. A model that is silent for ``idle`` seconds has failed; waiting for a turn
    (``throttles``, by the names of providers) does not count. ``waiting`` is told why a call waits, "" at its end.

    When all have failed, the error is the one that passes soonest, or the first if none is worth another attempt.
    """

    def __init__(
        self,
        models: Sequence[ModelRef],
        find: Callable[[ModelRef], Provider],
        *,
        idle: float = IDLE_TIMEOUT,
        throttles: Mapping[str, Throttle] | None = None,
        waiting: Callable[[str], None] = _ignore_wait_reason,
    ) -> None:
        self._models = models
        self._find_provider = find
        self._idle = idle
        self._throttles = throttles or {}
        self._report_wait = waiting

    async def stream(self, request: ModelRequest) -> AsyncIterator[StreamEvent]:
        """The reply of the first model that has one. ``Completed`` says which. Raises ``ProviderError``, also for what
        an author's provider raises instead; ``RuntimeSetupError`` where a model's SDK is not installed."""
        failed: list[tuple[ModelRef, PerdureError]] = []
        for model in self._models:
            if failed:
                before, error = failed[-1]
                logger.warning("%s failed, asking %s: %s: %s", before, model, type(error).__name__, error.message)
                yield Restarted(str(model), type(error).__name__, error.message)
            try:
                async with aclosing(self._stream_model(model, request)) as events:
                    async for event in events:
                        yield event
                return
            except (ProviderError, RuntimeSetupError) as error:
                failed.append((model, error))
                if not getattr(error, "fallback", True):
                    break
        raise _merge_model_errors(failed) from None

    async def _stream_model(self, model: ModelRef, request: ModelRequest) -> AsyncGenerator[StreamEvent, None]:
        """What one model streams, to its end."""
        last: StreamEvent | None = None
        try:
            async with aclosing(self._stream_provider(model, request)) as events:
                async for event in events:
                    last = event
                    yield event
        except PerdureError:
            raise
        except Exception as error:
            logger.exception("the provider of %s raised what is no ProviderError", model)
            raise translate_unexpected_error(model, error, begun=last is not None) from None
        if not isinstance(last, Completed):
            raise TruncatedStreamError(f"the stream of {model} ended before its reply was complete")

    async def _stream_provider(self, model: ModelRef, request: ModelRequest) -> AsyncGenerator[StreamEvent, None]:
        provider = self._find_provider(model)
        throttle = self._throttles.get(model.provider)
        async with throttle.acquire(self._report_wait) if throttle is not None else nullcontext():
            events = provider.stream(replace(request, model=model.name))
            try:
                while (event := await self._next_event(events)) is not None:
                    check_event(model, event)
                    if isinstance(event, Completed):
                        provider_name, name = event.provider or model.provider, event.model or model.name
                        event = replace(event, provider=provider_name, model=name)
                    yield event
            finally:
                close = getattr(events, "aclose", None)
                if close is not None:
                    await close()

    async def _next_event(self, events: AsyncIterator[StreamEvent]) -> StreamEvent | None:
        try:
            async with asyncio.timeout(self._idle) as clock:
                return await anext(events)
        except StopAsyncIteration:
            return None
        except TimeoutError:
            if not clock.expired():
                raise  # the provider's own
            raise ProviderTimeoutError(f"the model sent nothing for {self._idle:g} s") from None


def _merge_model_errors(failed: Sequence[tuple[ModelRef, PerdureError]]) -> PerdureError:
    """The error to raise; of several it says what each model said."""
    passing = [error for _, error in failed if error.retryable]
    error = min(passing, key=lambda one: getattr(one, "retry_after", None) or 0.0, default=failed[0][1])
    if len(failed) == 1:
        return error
    said = "; ".join(f"{model}: {type(one).__name__}: {_truncate_model_error(one.message)}" for model, one in failed)
    whole = copy.copy(error)
    whole.message = f"every model of the chain failed. {said}"
    whole.args = (whole.message,)
    return whole


def _truncate_model_error(text: str) -> str:
    return text if len(text) <= _MAX_MODEL_ERROR_CHARS else text[:_MAX_MODEL_ERROR_CHARS] + "…"
