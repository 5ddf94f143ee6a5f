"""Retries: the budget stage (limits of a model call over its attempts), the decision on a failed attempt, the store."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from time import monotonic
from typing import NamedTuple, TypeVar

from temporalio.common import RetryPolicy

from ..errors import (
    AgentNotFoundError,
    ContextLengthError,
    ModelSlipError,
    NewerStateError,
    PerdureError,
    ProviderError,
    ProviderTimeoutError,
    RetryLaterError,
    StoreError,
    ToolsetError,
)
from ..tools.results import CUT
from ..types.limits import LONGEST_SECONDS, Limits
from ..types.messages import Message, clean_text
from .call import NextRequest, RequestCall
from .heartbeat import get_attempt_values, measure_agent_missing

FAILED_ATTEMPTS_KEY = "failed_attempts"
"""Name of the count of a model call's failed requests in the values that attempts pass on, which survive the worker.

What decides counts failures, never attempts: one whose worker was lost, or that ended with ``RetryLaterError``, is an
attempt of Temporal's and no failure.
"""


class BudgetStage:
    """Enforces an agent's limits of a model call. It is innermost, so that failures outside, for instance of the store,
    do not count as the model's.

    An error with the provider's ``retry_after`` counts as no attempt, but its wait counts as time; a wait that would
    end past the limit is not begun. An attempt still running when the time is up is cancelled. Until an attempt has
    failed, the next one has the whole time, however long it waited for a worker.
    """

    def __init__(self, limits: Callable[[str], Limits]) -> None:
        """``limits`` returns the limits of the agent of a name."""
        self._find_limits = limits

    async def request(self, call: RequestCall, next: NextRequest) -> Message:
        """See the class."""
        limits = self._find_limits(call.input.agent)
        whole = limits.call_seconds
        has_failed = get_attempt_values().get(FAILED_ATTEMPTS_KEY, -1) >= 0
        left = max(0.0, whole - _measure_elapsed(call)) if whole is not None and has_failed else whole
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
            failed = _count_failed_requests(error.requests - obeyed)
            if (why := describe_exhausted_limit(limits, failed, _measure_elapsed(call), error.retry_after)) is not None:
                raise _mark_final(error, why) from None
            raise


def _count_failed_requests(more: int) -> int:
    """Count the failed requests of the call, and ``more``: each one of this attempt, but for the one whose error asks
    for a wait that is obeyed."""
    values = get_attempt_values()
    failed = values.get(FAILED_ATTEMPTS_KEY, 0) + more
    values.set(FAILED_ATTEMPTS_KEY, failed)
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
"""Failures to list a toolset's tools: about a minute with the delays of activity_options.py, because its server may be
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
    is_failure: bool = True
    """False for an attempt that only asks to be made later."""
    failures: int = 0
    """How many attempts have failed by now, for whatever reason."""
    ways: tuple[str, ...] = ()
    """Ways in which the loop may shorten the conversation before the next call: ``ContextLengthError.ways``."""

    @property
    def details(self) -> tuple[dict[str, list[str]], ...]:
        """The details of the Temporal failure, which the loop reads."""
        return ({"compaction": list(self.ways)},) if self.ways else ()


def decide_attempt(error: Exception) -> RetryDecision:
    """Decide on the current attempt, which failed with ``error``, and count the failure: once, however often it is
    decided."""
    limit, values = _find_failure_limit(error), get_attempt_values()
    same = 0 if limit is None else values.count(limit.key)
    decision = decide_retry(error, same, measure_agent_missing(error))
    return replace(decision, failures=values.count("failures")) if decision.is_failure else decision


class _FailureLimit(NamedTuple):
    key: str
    """The name under which failures are counted together."""
    most: int


def _find_failure_limit(error: Exception) -> _FailureLimit | None:
    """Return how many failures like ``error`` end a call; None for those that end it at once, or never."""
    if not isinstance(error, PerdureError) or type(error) is ProviderError:  # of unknown kind
        return _FailureLimit("unexpected", UNEXPECTED_ATTEMPTS)
    return {
        ProviderTimeoutError: _FailureLimit("silent", SILENT_ATTEMPTS),
        ModelSlipError: _FailureLimit("slips", SLIP_ATTEMPTS),
        ToolsetError: _FailureLimit("toolset", TOOLSET_ATTEMPTS),
    }.get(type(error))


def decide_retry(error: Exception, failures: int, missing: float = 0.0) -> RetryDecision:
    """Decide on an attempt that failed with ``error``, as ``failures`` of its call have by now, with this one, in the
    same way. ``missing``: seconds without the agent.

    An error other than a ``PerdureError`` is a fault in the engine or in an author's prompt function: it is retried,
    up to ``UNEXPECTED_ATTEMPTS``.
    """
    limit = _find_failure_limit(error)
    retry = limit is None or failures < limit.most
    delay: float | None = None
    ways: tuple[str, ...] = ()
    match error:
        case AgentNotFoundError():
            retry = missing < AGENT_SECONDS
        case NewerStateError():
            delay = NEWER_STATE_SECONDS
        case RetryLaterError():
            delay = error.seconds
        case PerdureError():
            retry = retry and error.retryable
            delay = error.retry_after if isinstance(error, ProviderError) else None
            ways = error.ways if isinstance(error, ContextLengthError) else ()
    delay = None if delay is None else min(max(0.0, delay), LONGEST_DELAY)  # 0 for NaN
    is_failure = not isinstance(error, RetryLaterError)
    text = _truncate_failure_text(str(error))
    return RetryDecision(type(error).__name__, text, retry, delay, is_failure, ways=ways)


def compute_backoff(failures: int, policy: RetryPolicy) -> float:
    """Return the seconds before the next attempt after that many failures. Temporal counts its attempts, among them
    those that did not fail."""
    first, most = policy.initial_interval.total_seconds(), policy.maximum_interval
    longest = 100 * first if most is None else most.total_seconds()
    return float(min(first * policy.backoff_coefficient ** min(failures - 1, 50), longest))


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
