"""Whether a failed attempt is retried, and the failure that is reported; retries of the store."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeVar

from temporalio import activity
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
from ..types.limits import LONGEST_SECONDS
from ..types.messages import clean_text
from .heartbeat import get_attempt_values, measure_agent_missing

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

SHORTEST_DELAY = 0.1
"""Minimum delay in seconds after ``RetryLaterError``, which no count of failures bounds."""
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
            delay = max(SHORTEST_DELAY, error.seconds)  # for NaN, too
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


def find_next_delay(decision: RetryDecision) -> float | None:
    """Return the seconds until the next attempt of the current activity, None if none follows. Outside an activity it
    follows at once."""
    if not decision.retry:
        return None
    if decision.delay is not None:
        return decision.delay
    info = activity.info() if activity.in_activity() else None
    if info is None or info.retry_policy is None:
        return 0.0
    return compute_backoff(min(decision.failures or info.attempt, info.attempt), info.retry_policy)


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
