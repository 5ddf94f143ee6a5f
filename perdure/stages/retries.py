"""Heartbeats of an activity, the budget stage (limits of a model call over its attempts), and the retry decision."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import ContextVar, copy_context
from dataclasses import dataclass
from time import monotonic
from types import TracebackType

from pydantic_core import to_jsonable_python
from temporalio import activity

from ..errors import (
    AgentNotFoundError,
    ContextLengthError,
    PerdureError,
    ProviderError,
    ProviderTimeoutError,
    ToolsetError,
)
from ..ports import ModelCall, ModelReply, NextModel, NextTool, ToolCall
from ..tools.results import CUT
from ..types.limits import LONGEST_SECONDS, Limits
from ..types.messages import clean_text
from ..types.wire import ToolOutput

HEARTBEAT_INTERVAL = 0.5
"""Seconds between heartbeats: a cancellation arrives with the response to one, and an interrupt is to stop a call
within a second. A tenth of the timeout (workflows/options.py), and what the SDK lets through (worker/plugin.py)."""

_AGENT_MISSING_SINCE = "agent missing since"

_current_heartbeat: ContextVar[Heartbeat | None] = ContextVar("perdure_heartbeat", default=None)


class Heartbeat:
    """``async with Heartbeat():`` heartbeats until the end of the block; its details say why the activity waits."""

    def __init__(self) -> None:
        self._details: tuple[object, ...] = ()
        self._values: dict[str, int] = {}
        self._timer: asyncio.TimerHandle | None = None

    async def __aenter__(self) -> Heartbeat:
        self._token = _current_heartbeat.set(self)
        self._heartbeat = activity.heartbeat
        for (
            details
        ) in activity.info().heartbeat_details:  # of the previous attempt, which includes the values of earlier ones
            if isinstance(details, dict) and isinstance(kept := details.get("kept"), dict):
                self._values = {name: value for name, value in kept.items() if isinstance(value, int)}
        self._context = copy_context()  # the activity's: heartbeat() finds its activity there
        self._schedule_tick()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._timer is not None:
            self._timer.cancel()
        _current_heartbeat.reset(self._token)

    def set_details(self, *details: object) -> None:
        """Set the details of the next heartbeats; shown as the reason of a stuck run."""
        self._details = details

    def get_value(self, name: str) -> int:
        """Return what :meth:`set_value` stored in this attempt or an earlier one; 0 by default."""
        return self._values.get(name, 0)

    def set_value(self, name: str, value: int) -> None:
        """Store ``value`` for this attempt and the next ones."""
        if self._values.get(name, 0) != value:
            self._values[name] = value
            self._context.run(self._send)

    def build_reporter(self) -> Callable[..., None]:
        """Return a function that sets the author's details and heartbeats at once; callable from any thread."""
        loop = asyncio.get_running_loop()

        def report(*details: object) -> None:
            # Encode here, where the author's code sees the error: a heartbeat that cannot be encoded cancels its
            # activity.
            plain = tuple(to_jsonable_python(detail) for detail in details)
            loop.call_soon_threadsafe(self._send_details, plain, context=self._context)

        return report

    def _send_details(self, details: tuple[object, ...]) -> None:
        self._details = details
        self._send()

    def _schedule_tick(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(HEARTBEAT_INTERVAL, self._tick, context=self._context)

    def _tick(self) -> None:
        self._send()
        self._schedule_tick()

    def _send(self) -> None:
        self._heartbeat(*self._details, *([{"kept": self._values}] if self._values else []))


def report_waiting(reason: str) -> None:
    """Report why the current activity, if there is one, waits, in its heartbeats; "" when it no longer does."""
    if (current := _current_heartbeat.get()) is not None:
        current.set_details(*([{"waiting": reason}] if reason else []))


def get_attempt_value(name: str) -> int | None:
    """Return the value that the attempts of the current activity stored under ``name``; None outside an activity."""
    current = _current_heartbeat.get()
    return None if current is None else current.get_value(name)


def set_attempt_value(name: str, value: int) -> bool:
    """Store ``value`` for the current activity's next attempts. Return whether there is an activity."""
    if (current := _current_heartbeat.get()) is not None:
        current.set_value(name, value)
    return current is not None


def measure_agent_missing(error: Exception) -> float:
    """Return the seconds since the first of the activity's attempts that did not find its agent; this one has failed
    with ``error``. Uses the server's clock: each attempt may run on another machine."""
    if (current := _current_heartbeat.get()) is None:
        return 0.0
    now, since = activity.info().started_time.timestamp(), 0
    if isinstance(error, AgentNotFoundError):
        since = current.get_value(_AGENT_MISSING_SINCE) or int(now)
    current.set_value(_AGENT_MISSING_SINCE, since)
    return now - since if since else 0.0


def build_heartbeat_reporter() -> Callable[..., None]:
    """Return the function behind a tool's ``ctx.heartbeat``; outside an activity it does nothing."""
    current = _current_heartbeat.get()
    return current.build_reporter() if current is not None else _ignore_heartbeat


def _ignore_heartbeat(*details: object) -> None:
    """No activity, no heartbeat."""


# ---
# The budget stage: limits of one model call over all its attempts (``Limits``); past them the last error fails the run.


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

    async def model(self, call: ModelCall, next: NextModel) -> ModelReply:
        """See the class."""
        if call.input.purpose == "close":
            return await next(call)
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
            failed = self._count_failed_attempts(call, obeyed=error.retry_after is not None and not bounded)
            if (why := describe_exhausted_limit(limits, failed, _measure_elapsed(call), error.retry_after)) is not None:
                raise _mark_final(error, why) from None
            raise

    async def tool(self, call: ToolCall, next: NextTool) -> ToolOutput:
        """Tools count their own attempts, in the journal."""
        return await next(call)

    def _count_failed_attempts(self, call: ModelCall, *, obeyed: bool) -> int:
        """Count the failed attempts, including this one unless the wait that the provider asks for is ``obeyed``."""
        of_call = call.owner.rpartition("/")[0]
        before = get_attempt_value(FAILED_ATTEMPTS_KEY)
        failed = (self._failed_attempts.get(of_call, 0) if before is None else before) + (not obeyed)
        if not set_attempt_value(FAILED_ATTEMPTS_KEY, failed):
            self._failed_attempts[of_call] = failed
        return failed


def bound_wait(error: ProviderError, longest: float) -> bool:
    """Limit the wait that ``error`` asks for to ``longest`` seconds, and say so in its message. Return whether it was
    longer."""
    asked = error.retry_after
    if asked is None or asked <= longest:
        return False
    error.retry_after = longest
    waits = f"the provider asks to wait {_format_seconds(asked)}, and retry_wait allows {_format_seconds(longest)}"
    error.message = f"{waits}: {error.message}"
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


def _measure_elapsed(call: ModelCall) -> float:
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
TOOLSET_ATTEMPTS = 7
"""Attempts to list a toolset's tools: about a minute with the delays of workflows/options.py, because its server may be
restarting."""
SILENT_ATTEMPTS = 3
"""Attempts with ``ProviderTimeoutError`` before the run fails with it: every attempt may have been paid for."""
UNEXPECTED_ATTEMPTS = 5
"""Attempts with an error other than a ``PerdureError``, or with a bare ``ProviderError`` of an author's provider,
before the run fails with it."""
FAILURE_CHARS = 1000
"""Maximum characters of an error's message. Temporal replaces a failure of more than about 4 KB, traceback and causes
included, by "Failure exceeds size limit", which hides why a run is stuck. So causes stay in the log, too."""

LONGEST_DELAY = float(LONGEST_SECONDS)
"""Maximum delay in seconds that Temporal takes. ``Limits.retry_wait`` limits a provider's ``retry_after`` far below."""


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
    most = {
        ProviderError: UNEXPECTED_ATTEMPTS,  # of unknown kind
        ProviderTimeoutError: SILENT_ATTEMPTS,
        ToolsetError: TOOLSET_ATTEMPTS,
    }.get(type(error))
    if not isinstance(error, PerdureError):
        return RetryDecision(type(error).__name__, _truncate_failure_text(str(error)), attempt < UNEXPECTED_ATTEMPTS)
    retry = error.retryable and (most is None or attempt < most)
    if isinstance(error, AgentNotFoundError):
        retry = missing < AGENT_SECONDS
    delay = error.retry_after if isinstance(error, ProviderError) else None
    delay = None if delay is None else min(delay, LONGEST_DELAY)
    ways = error.ways if isinstance(error, ContextLengthError) else ()
    return RetryDecision(type(error).__name__, _truncate_failure_text(str(error)), retry, delay, ways)


def _truncate_failure_text(text: str) -> str:
    text = clean_text(text)  # else Temporal's client could not send the failure, nor whether to retry
    return text if len(text) <= FAILURE_CHARS else text[:FAILURE_CHARS] + CUT
