"""The budget stage: the limits of a model call over its attempts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from time import monotonic

from ..errors import ProviderError, ProviderTimeoutError
from ..types.limits import Limits
from ..types.messages import Message
from .call import NextRequest, RequestCall
from .heartbeat import get_attempt_values

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
            ):  # the caller may continue without the reply (a summary in pieces), so it does not count
                raise
            bounded = bound_wait(error, limits.retry_seconds)
            obeyed = error.retry_after is not None and not bounded
            failed = _count_failed_requests(error.requests - obeyed)
            if (why := describe_exhausted_limit(limits, failed, _measure_elapsed(call), error.retry_after)) is not None:
                raise _mark_final(error, why) from None
            raise


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


def _count_failed_requests(more: int) -> int:
    """Count the failed requests of the call, and ``more``: each one of this attempt, but for the one whose error asks
    for a wait that is obeyed."""
    values = get_attempt_values()
    failed = values.get(FAILED_ATTEMPTS_KEY, 0) + more
    values.set(FAILED_ATTEMPTS_KEY, failed)
    return failed
