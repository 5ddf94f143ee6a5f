"""What one model call may take over all its attempts (``Limits``): past it, the last error fails the run."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from time import monotonic

from ..errors import ProviderError, ProviderTimeoutError
from ..ports import ModelCall, ModelReply, NextModel, NextTool, ToolCall
from ..types.limits import Limits
from ..types.wire import ToolOutput
from .heartbeat import remember, remembered

FAILED = "failed_attempts"
"""What the heartbeats of a model call say of its attempts so far. Temporal keeps the last details of an attempt for the
next one, so the count survives the worker."""


class BudgetStage:
    """Innermost: what fails outside, the store for instance, is not the model's failure.

    An error that the provider said when to come back from costs no attempt, but time; a wait that would end past the
    limit is not begun. An attempt that is still under way when the time is up is broken off. The first attempt is given
    the whole time, however long it waited for a worker.
    """

    def __init__(self, limits: Callable[[str], Limits]) -> None:
        """``limits`` of the agent of that name."""
        self._limits = limits
        self._failed: dict[str, int] = {}
        """By call, where there is no Temporal to remember it (``perdure.testing``)."""

    async def model(self, call: ModelCall, next: NextModel) -> ModelReply:
        """See the class."""
        if call.input.purpose == "close":
            return await next(call)
        limits = self._limits(call.input.agent)
        whole = limits.call_seconds
        left = whole if whole is None or call.attempt == 1 else max(0.0, whole - _elapsed(call))
        try:
            async with asyncio.timeout(left) as clock:
                return await next(call)
        except TimeoutError:
            if not clock.expired() or whole is None:
                raise
            spent = f"{_duration(whole)} (call_timeout)"
            raise _final(ProviderTimeoutError("the reply was not complete"), spent) from None
        except ProviderError as error:
            if not error.retryable:  # whoever can do without (a summary in pieces) has failed at nothing
                raise
            bounded = bound_wait(error, limits.retry_seconds)
            failed = self._count(call, obeyed=error.retry_after is not None and not bounded)
            if (why := exhausted(limits, failed, _elapsed(call), error.retry_after)) is not None:
                raise _final(error, why) from None
            raise

    async def tool(self, call: ToolCall, next: NextTool) -> ToolOutput:
        """Tools count their own attempts, in the journal."""
        return await next(call)

    def _count(self, call: ModelCall, *, obeyed: bool) -> int:
        """How many attempts have failed, this one included unless the wait that the provider asks for is ``obeyed``."""
        of_call = call.owner.rpartition("/")[0]
        before = remembered(FAILED)
        failed = (self._failed.get(of_call, 0) if before is None else before) + (not obeyed)
        if not remember(FAILED, failed):
            self._failed[of_call] = failed
        return failed


def bound_wait(error: ProviderError, longest: float) -> bool:
    """Make the wait that ``error`` asks for at most ``longest`` seconds; its message says so. Whether it was longer."""
    asked = error.retry_after
    if asked is None or asked <= longest:
        return False
    error.retry_after = longest
    error.message = (
        f"the provider asks to wait {_duration(asked)}, and retry_wait allows {_duration(longest)}: {error.message}"
    )
    error.args = (error.message,)
    return True


def exhausted(limits: Limits, failed: int, elapsed: float, delay: float | None) -> str | None:
    """What is used up, in words; None while another attempt may be made ``delay`` seconds from now."""
    if limits.attempts is not None and failed >= limits.attempts:
        return f"{failed} attempt{'s' if failed > 1 else ''} (attempts)"
    whole = limits.call_seconds
    if whole is None or elapsed + (delay or 0.0) < whole:
        return None
    if elapsed >= whole:
        return f"{_duration(whole)} (call_timeout)"
    return f"{_duration(elapsed)}, as it is to wait {_duration(delay or 0.0)} more of {_duration(whole)} (call_timeout)"


def _final(error: ProviderError, spent: str) -> ProviderError:
    """``error`` as the last one: not tried again."""
    error.retryable = False
    error.message = f"gave up after {spent}: {error.message}"
    error.args = (error.message,)
    return error


def _elapsed(call: ModelCall) -> float:
    """Seconds since the first attempt was scheduled."""
    return monotonic() - call.scheduled


def _duration(seconds: float) -> str:
    for unit, size in (("years", 365 * 86400), ("days", 86400), ("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds:.3g} s"
