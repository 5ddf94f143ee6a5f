"""Retries: the budget stage (limits of a model call over its attempts), the decision on a failed attempt, the store."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from time import monotonic
from typing import TypeVar

from ..errors import (
    AgentNotFoundError,
    ContextLengthError,
    ModelSlipError,
    NewerStateError,
    PerdureError,
    ProviderError,
    ProviderTimeoutError,
    StoreError,
    ToolsetError,
)
from ..tools.results import CUT
from ..types.limits import LONGEST_SECONDS, Limits
from ..types.messages import Message, clean_text
from .call import NextRequest, RequestCall
from .heartbeat import get_attempt_value, set_attempt_value

FAILED_ATTEMPTS_KEY = "failed_attempts"
"""Name of the count of failed attempts in the heartbeats of a model call. Temporal keeps the last details of an attempt
for the next one, so the count survives the worker."""


class BudgetStage:
    """Enforces an agent's limits of a model call. It is innermost, so that failures outside, for instance of the store,
    do not count as the model's.

    An error with the provider's ``retry_after`` counts as no attempt, but its wait counts as time; a wait that would
    end past the limit is not begun. An attempt still running when the time is up is cancelled. The first attempt has
    the whole time, however long it waited for a worker.
    """

    def __init__(self, limits: Callable[[str], Limits]) -> None:
        """``limits`` returns the limits of the agent of a name."""
        self._find_limits = limits
        self._failed_attempts: dict[str, int] = {}
        """Counts by call, where no Temporal heartbeats keep them (``perdure.testing``)."""

    async def request(self, call: RequestCall, next: NextRequest) -> Message:
        """See the class."""
        limits = self._find_limits(call.input.agent)
        whole = limits.call_seconds
        left = whole if whole is None or call.attempt == 1 else max(0.0, whole - _measure_elapsed(call))
        try:
            async with asyncio.timeout(left) as clock:
                return await next(call)
        except TimeoutError:
            if not clock.expired() or whole is None:
                raise
            spent = f"{_format_seconds(whole)} (call_timeout)"
            raise _mark_final(ProviderTimeoutError("the reply was not complete"), spent) from None
        except ProviderError as error:
            if (
                not error.retryable
            ):  # the caller may go on without the reply (a summary in pieces), so it does not count
                raise
            bounded = bound_wait(error, limits.retry_seconds)
            obeyed = error.retry_after is not None and not bounded
            failed = self._count_failed_attempts(call, error.requests - obeyed)
            if (why := describe_exhausted_limit(limits, failed, _measure_elapsed(call), error.retry_after)) is not None:
                raise _mark_final(error, why) from None
            raise

    def _count_failed_attempts(self, call: RequestCall, more: int) -> int:
        """Count the failed attempts, and ``more``: each request of this one, but for the one whose error asks for a
        wait that is obeyed."""
        call_id = call.owner.rpartition("/")[0]
        counted = get_attempt_value(FAILED_ATTEMPTS_KEY, 0)
        failed = (self._failed_attempts.get(call_id, 0) if counted is None else counted) + more
        if not set_attempt_value(FAILED_ATTEMPTS_KEY, failed):
            self._failed_attempts[call_id] = failed
        return failed


def bound_wait(error: ProviderError, longest: float) -> bool:
    """Limit the wait that ``error`` asks for to ``longest`` seconds, and say so in its message. Return whether it was
    longer."""
    asked = error.retry_after
    if asked is None or asked <= longest:
        return False
    error.retry_after = longest
    reason = f"the provider asks to wait {_format_seconds(asked)}, and retry_wait allows {_format_seconds(longest)}"
    error.message = f"{reason}: {error.message}"
    error.args = (error.message,)
    return True


def describe_exhausted_limit(limits: Limits, failed: int, elapsed: float, delay: float | None) -> str | None:
    """Describe the exhausted limit; None while another attempt may be made ``delay`` seconds from now."""
    if limits.attempts is not None and failed >= limits.attempts:
        return f"{failed} attempt{'s' if failed > 1 else ''} (attempts)"
    whole = limits.call_seconds
    if whole is None or elapsed + (delay or 0.0) < whole:
        return None
    if elapsed >= whole:
        return f"{_format_seconds(whole)} (call_timeout)"
    rest = f"{_format_seconds(delay or 0.0)} more of {_format_seconds(whole)}"
    return f"{_format_seconds(elapsed)}, as it is to wait {rest} (call_timeout)"


def _mark_final(error: ProviderError, spent: str) -> ProviderError:
    """Mark ``error`` as not retryable, with the exhausted limit ``spent`` in its message, and return it."""
    error.retryable = False
    error.message = f"gave up after {spent}: {error.message}"
    error.args = (error.message,)
    return error


def _measure_elapsed(call: RequestCall) -> float:
    """Return the seconds since the first attempt was scheduled."""
    return monotonic() - call.scheduled


def _format_seconds(seconds: float) -> str:
    for unit, size in (("years", 365 * 86400), ("days", 86400), ("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds:.3g} s"


# ---
# The decision on a failed attempt: whether to retry it, and the failure that is reported.


AGENT_SECONDS = 60.0
"""Seconds for which an unknown agent is retried, from the first attempt that did not find it: a deploy may be under
way."""
NEWER_STATE_SECONDS = 5.0
"""Seconds until a call that only a newer engine can run is offered again: a worker of it may take it then."""
TOOLSET_ATTEMPTS = 7
"""Attempts to list a toolset's tools: about a minute with the delays of activity_options.py, because its server may be
restarting."""
SILENT_ATTEMPTS = 3
"""Attempts with ``ProviderTimeoutError`` before the run fails with it: every attempt may have been paid for."""
SLIP_ATTEMPTS = 5
"""Attempts with ``ModelSlipError`` before the run fails with it: every attempt is paid for."""
UNEXPECTED_ATTEMPTS = 5
"""Attempts with an error other than a ``PerdureError``, or with a bare ``ProviderError`` of an author's provider,
before the run fails with it."""
FAILURE_CHARS = 1000
"""Maximum characters of an error's message. Temporal replaces a failure of more than about 4 KB, traceback and causes
included, by "Failure exceeds size limit", which hides why a run is stuck. So causes stay in the log, too."""

LONGEST_DELAY = float(LONGEST_SECONDS)
"""Maximum delay in seconds that Temporal takes; ``Limits.retry_wait`` limits a provider's ``retry_after`` well
below."""


@dataclass(frozen=True, slots=True)
class RetryDecision:
    """The decision on a failed attempt."""

    error_type: str
    """Class name of the error."""
    message: str
    retry: bool
    delay: float | None = None
    """Seconds until the next attempt, if the provider gave them."""
    ways: tuple[str, ...] = ()
    """Ways in which the loop may shorten the conversation before the next call: ``ContextLengthError.ways``."""

    @property
    def details(self) -> tuple[dict[str, list[str]], ...]:
        """The details of the Temporal failure, which the loop reads."""
        return ({"compaction": list(self.ways)},) if self.ways else ()


def decide_retry(error: Exception, attempt: int, missing: float = 0.0) -> RetryDecision:
    """Decide on attempt number ``attempt`` (from 1) that failed with ``error``. ``missing``: seconds without the agent.

    An error other than a ``PerdureError`` is a fault in the engine or in an author's prompt function: it is retried,
    up to ``UNEXPECTED_ATTEMPTS``.
    """
    max_attempts = {
        ProviderError: UNEXPECTED_ATTEMPTS,  # of unknown kind
        ProviderTimeoutError: SILENT_ATTEMPTS,
        ModelSlipError: SLIP_ATTEMPTS,
        ToolsetError: TOOLSET_ATTEMPTS,
    }.get(type(error))
    if not isinstance(error, PerdureError):
        return RetryDecision(type(error).__name__, _truncate_failure_text(str(error)), attempt < UNEXPECTED_ATTEMPTS)
    retry = error.retryable and (max_attempts is None or attempt < max_attempts)
    if isinstance(error, AgentNotFoundError):
        retry = missing < AGENT_SECONDS
    delay = error.retry_after if isinstance(error, ProviderError) else None
    delay = NEWER_STATE_SECONDS if isinstance(error, NewerStateError) else delay
    delay = None if delay is None else min(delay, LONGEST_DELAY)
    ways = error.ways if isinstance(error, ContextLengthError) else ()
    return RetryDecision(type(error).__name__, _truncate_failure_text(str(error)), retry, delay, ways)


def _truncate_failure_text(text: str) -> str:
    text = clean_text(text)  # else Temporal's client could not send the failure, nor whether to retry
    return text if len(text) <= FAILURE_CHARS else text[:FAILURE_CHARS] + CUT


# ---
# Retries of the store.

T = TypeVar("T")


async def retry_store(work: Callable[[], Awaitable[T]], report_waiting: Callable[[str], None]) -> T:
    """Return the result of ``work``, as soon as the store is available. Raises ``StoreError`` that is not retryable.

    ``report_waiting`` is called with the reason before each wait, and with "" when the waiting is over.
    """
    delay, waited = 0.2, False
    while True:
        try:
            result = await work()
        except StoreError as error:
            if not error.retryable:
                raise
            waited = True
            report_waiting(f"{type(error).__name__}: {error}")
            await asyncio.sleep(delay)
            delay = min(delay * 2, 5.0)
        else:
            if waited:
                report_waiting("")
            return result
