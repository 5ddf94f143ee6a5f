"""A chain of models as one provider: the first is called, and if it fails the next. Limits on a provider's calls."""

from __future__ import annotations

import asyncio
import copy
import logging
import time
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager, nullcontext
from dataclasses import replace
from typing import get_args

from ..errors import PerdureError, ProviderError, ProviderTimeoutError, RuntimeSetupError, TruncatedStreamError
from ..ports.model import Completed, ModelRef, ModelRequest, Provider, Restarted, StreamEvent
from ..types.limits import RateLimit
from ..types.messages import FinishReason, Part, Usage
from .endpoint import SilenceTimer
from .errors import describe_error, translate_transport_error, truncate_api_text
from .reply import read_count

# ---
# How fast this worker calls a provider: calls at once, and calls a minute, in order of arrival.


MINUTE = 60.0


class Throttle:
    """The calls of one provider in one event loop. ``async with throttle.acquire(report_wait):`` is one call.

    The first waiter holds the lock until a slot is free and the minute has passed, so calls start in order of arrival.
    A waiter that is cancelled leaves the queue and uses up nothing.
    """

    def __init__(self, name: str, limit: RateLimit, *, minute: float = MINUTE) -> None:
        self._limit_label = f"calls of {name!r} by this worker (provider_limits)"
        self._limit = limit
        self._minute = minute
        self._queue_lock = asyncio.Lock()
        self._slots = asyncio.Semaphore(limit.concurrent) if limit.concurrent is not None else None
        self._call_starts: deque[float] = deque(maxlen=limit.per_minute or 0)
        """The starts of the last calls, as many as may start within a minute."""

    @asynccontextmanager
    async def acquire(self, report_wait: Callable[[str], None]) -> AsyncIterator[None]:
        """One call. ``report_wait`` gets the reason of a wait, and "" at its end."""
        async with AsyncExitStack() as stack:
            reason = self._get_wait_reason()
            if not reason and self._queue_lock.locked():
                reason = f"{self._limit_label}: other calls come first"
            if reason:
                report_wait(reason)
            try:
                async with self._queue_lock:
                    if new_reason := self._get_wait_reason():
                        report_wait(reason := new_reason)
                    if self._slots is not None:
                        await stack.enter_async_context(self._slots)
                    await asyncio.sleep(max(0.0, self._seconds_until_free()))
                    self._call_starts.append(time.monotonic())
            finally:
                if reason:
                    report_wait("")
            yield

    def count_requests(self, more: int) -> None:
        """Count ``more`` requests that a call sent beyond its first."""
        if self._limit.per_minute is not None:
            self._call_starts.extend([time.monotonic()] * min(more, self._limit.per_minute))

    def _seconds_until_free(self) -> float:
        """Seconds until another call may start."""
        if self._limit.per_minute is None or len(self._call_starts) < self._limit.per_minute:
            return 0.0
        return self._call_starts[0] + self._minute - time.monotonic()

    def _get_wait_reason(self) -> str:
        """Why the first waiter has to wait; "" if it need not."""
        if self._slots is not None and self._slots.locked():
            return f"{self._limit_label}: {self._limit.concurrent} at once"
        if self._seconds_until_free() > 0:
            return f"{self._limit_label}: {self._limit.per_minute} a minute"
        return ""


logger = logging.getLogger("perdure.worker")

IDLE_TIMEOUT = 600.0
"""Seconds without an event after which a model is given up: heartbeats hide one that hangs. Reasoning models are silent
for minutes; this is also how long the SDKs wait for a byte."""
_MAX_MODEL_ERROR_CHARS = 300
"""Characters of each model's error in the message of a chain: all of them must fit into a failure."""


class ModelChain:
    """The models of one call, of which there may be only one.

    The next is called at once, whatever error the one before had, even with a time to retry: a user waits for the
    answer, and the first model is tried again with the next call. An error without ``fallback`` ends the chain: the
    next model would refuse the request too. A model that is silent for ``idle`` seconds has failed; waiting for a
    throttle (by the name of the provider) does not count. ``report_wait`` gets the reason of such a wait, "" at its
    end.

    If all models fail, the error is the one with the shortest wait among those worth a retry, or else the first.
    """

    def __init__(
        self,
        models: Sequence[ModelRef],
        find_provider: Callable[[ModelRef], Provider],
        *,
        idle: float = IDLE_TIMEOUT,
        throttles: Mapping[str, Throttle] | None = None,
        report_wait: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._models = models
        self._find_provider = find_provider
        self._idle = idle
        self._throttles = throttles or {}
        self._report_wait = report_wait

    async def stream(self, request: ModelRequest) -> AsyncIterator[StreamEvent]:
        """The reply of the first model that succeeds; ``Completed`` names it. Raises ``ProviderError``, also for other
        exceptions of an author's provider; ``RuntimeSetupError`` if a model's SDK is not installed."""
        failed: list[tuple[ModelRef, PerdureError]] = []
        for model in self._models:
            if failed:
                failed_model, error = failed[-1]
                logger.warning("%s failed, asking %s: %s: %s", failed_model, model, type(error).__name__, error.message)
                yield Restarted(str(model), type(error).__name__, error.message, getattr(error, "status", None))
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

    def find_left_out(self, request: ModelRequest) -> Mapping[str, str]:
        """Find the tools of ``request`` that the first model's API cannot take, by name, and the reasons."""
        model = self._models[0]
        try:
            translate_tools = getattr(self._find_provider(model), "translate_tools", None)
        except PerdureError:  # the call itself says so
            return {}
        left_out: Mapping[str, str] = (
            {} if translate_tools is None else translate_tools(model.name, request.tools).left_out
        )
        return left_out

    async def _stream_model(self, model: ModelRef, request: ModelRequest) -> AsyncGenerator[StreamEvent, None]:
        """The events of one model, which must end with ``Completed``."""
        event: StreamEvent | None = None
        idle = SilenceTimer(self._idle)
        throttle = self._throttles.get(model.provider)
        try:
            provider = self._find_provider(model)
            async with throttle.acquire(self._report_wait) if throttle is not None else nullcontext():
                events = provider.stream(replace(request, model=model.name))
                try:
                    while True:
                        with idle:
                            event = await anext(events)
                        _check_event(model, event)
                        if isinstance(event, Completed):
                            event = _name_model(event, model)
                            if throttle is not None:
                                throttle.count_requests(event.requests - 1)
                        yield event
                except StopAsyncIteration:
                    pass
                finally:
                    idle.close()
                    if (close := getattr(events, "aclose", None)) is not None:
                        await close()
        except PerdureError as error:
            if throttle is not None and isinstance(error, ProviderError):
                throttle.count_requests(error.requests - 1)
            raise
        except Exception as error:
            if idle.has_expired and isinstance(error, TimeoutError):  # not one of the provider's own
                raise ProviderTimeoutError(f"the model sent nothing for {self._idle:g} s") from None
            logger.exception("the provider of %s raised an exception other than ProviderError", model)
            raise _translate_unexpected_error(model, error, reply_started=event is not None) from None
        if not isinstance(event, Completed):
            raise TruncatedStreamError(f"the stream of {model} ended before its reply was complete")


def _name_model(reply: Completed, model: ModelRef) -> Completed:
    """``reply`` with the names of the provider and the model that gave it, and with a usage that can be counted."""
    counts = dict(reply.usage)
    usage = Usage(**{kind: read_count(counts, kind) for kind in Usage.model_fields})
    return replace(reply, provider=reply.provider or model.provider, model=reply.model or model.name, usage=usage)


def _merge_model_errors(failed: Sequence[tuple[ModelRef, PerdureError]]) -> PerdureError:
    """The error to raise; of several it quotes all."""
    passing = [error for _, error in failed if error.retryable]
    error = min(passing, key=lambda each: getattr(each, "retry_after", None) or 0.0, default=failed[0][1])
    if len(failed) == 1:
        return error
    texts = [
        f"{model}: {type(each).__name__}: {truncate_api_text(each.message, _MAX_MODEL_ERROR_CHARS)}"
        for model, each in failed
    ]
    merged = copy.copy(error)
    if isinstance(merged, ProviderError):
        merged.status = getattr(failed[-1][1], "status", None)  # those before were reported as the next one was called
    merged.message = f"every model of the chain failed. {'; '.join(texts)}"
    merged.args = (merged.message,)
    return merged


# ---
# What an author's provider must do: yield known events, and raise errors that say whether to retry.


_DELTA_TEXT_FIELDS = ("text", "id", "name", "arguments")
_STREAM_EVENT_TYPES = get_args(StreamEvent)
_REPLY_PART_TYPES = get_args(get_args(Part)[0])
_FINISH_REASONS = get_args(FinishReason)


def _check_event(model: ModelRef, event: object) -> None:
    """Check that ``event`` is a stream event. Raises ``ProviderError``, not retryable."""
    problem = hint = ""
    if not isinstance(event, _STREAM_EVENT_TYPES):
        hint = "Yield TextDelta, ThinkingDelta, ToolCallDelta, last Completed."
    elif not isinstance(event, Completed):
        if not all(isinstance(getattr(event, name), str) for name in _DELTA_TEXT_FIELDS if hasattr(event, name)):
            hint = 'The text fields of a delta must be str; use "" for no text.'
    elif not isinstance(event.parts, list | tuple) or not all(
        isinstance(part, _REPLY_PART_TYPES) for part in event.parts
    ):
        problem = f"completed a reply whose parts are {event.parts!r:.100}"
        hint = 'For instance Completed((TextPart(text="Hello."),)).'
    elif not isinstance(event.usage, Usage):
        problem, hint = f"gave {event.usage!r:.100} for usage", "For instance Usage(input_tokens=7)."
    elif event.finish_reason not in _FINISH_REASONS:
        problem = f"gave {event.finish_reason!r:.100} for finish_reason"
        hint = f"It must be one of {', '.join(_FINISH_REASONS)}."
    if hint:
        problem = problem or f"yielded {event!r:.100}"  # only now: of a large reply it takes long
        raise ProviderError(f"the provider of {model} {problem}", hint=f"{hint} See perdure.ports.model.")


def _translate_unexpected_error(model: ModelRef, error: Exception, *, reply_started: bool) -> ProviderError:
    """Translate an exception of an author's provider. Transport errors are recognized; any other is retryable."""
    provider_error = translate_transport_error(error, reply_started, str(model))
    if provider_error is None:
        hint = "A provider must raise only ProviderError: its subclasses say whether to retry (perdure.errors)."
        provider_error = ProviderError(f"the provider of {model} raised {describe_error(error)}", hint=hint)
        provider_error.retryable = True
    return provider_error
