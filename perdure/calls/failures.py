"""The failures stage, apart because each stage has its file: records a failed attempt, whichever stage failed."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from ..errors import ProviderError, RunIdError, StoreError, TranscriptCorruptedError
from ..ports.store import EventLog, build_batch_token
from ..types.wire import ToolOutput
from .call import CallT, NextTool, OutputT, RemindCall, StepCall, ToolCall
from .event_builders import build_failure_events
from .event_feed import build_event_batch, write_last_batch
from .retries import decide_attempt


class FailuresStage:
    """Records the errors of attempts, including each inline tool's own. Re-raises every error."""

    def __init__(self, store: EventLog) -> None:
        self._store = store

    async def step(self, call: CallT, next: Callable[[CallT], Awaitable[OutputT]]) -> OutputT:
        """Around a step's call."""
        try:
            return await next(call)
        except Exception as error:
            await self._write_failure(call, error, build_batch_token(call.asked_at, call.attempt))
            raise

    async def tool(self, call: ToolCall, next: NextTool) -> ToolOutput:
        """Around a tool call. An exception of the tool itself does not reach this stage: it is a result."""
        try:
            return await next(call)
        except Exception as error:
            await self._write_failure(call, error, build_batch_token(call.asked_at))
            raise

    async def _write_failure(self, call: StepCall | ToolCall, error: Exception, token: str) -> None:
        if isinstance(error, StoreError) and not isinstance(error, TranscriptCorruptedError):
            return  # the store is down, or is not the run's
        if isinstance(error, RunIdError):
            return  # the events are another run's
        events = [
            *call.recording.pending_events,
            *build_failure_events(call, decide_attempt(error), _find_source(call, error), _read_status(error)),
        ]
        # A reminder runs beside tools, and these are not late because of it.
        advances = not isinstance(call, ToolCall | RemindCall)
        await write_last_batch(self._store, build_event_batch(call, events, token, advances=advances))


def _find_source(call: StepCall | ToolCall, error: Exception) -> str:
    """Return what failed (``ErrorEvent.source``): a tool, or the model that was called last."""
    if isinstance(call, ToolCall):
        return call.input.name
    return call.recording.model if isinstance(error, ProviderError) else ""


def _read_status(error: Exception) -> int | None:
    """Return the HTTP status; None for anything else that an author's provider gave."""
    status = error.status if isinstance(error, ProviderError) else None
    return status if isinstance(status, int) and 100 <= status <= 999 else None
