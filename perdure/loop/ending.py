"""What stops a step, a turn or the run: failures, cancellation, interrupts, pauses, closing."""

from __future__ import annotations

from typing import Any

from ..types.state import Answer, Failure, Pause, RunState
from ..types.wire import NewResult
from .apply import collect, drop_reminder, end_at_limit
from .asking import asks, let_go
from .branching import drop_branches
from .elsewhere import withheld
from .limits import unused
from .receive import open_turn, receive
from .settling import raise_limits

OPS_OF_A_REPLY = 1000
"""Operation numbers that a model call which was stopped may have used: a worker that was taken for lost may still be
running inline tools of its reply, each under a number behind the call's own."""
PAUSING = frozenset({"TranscriptCorruptedError", "StoreVersionError"})
"""Failures that an operator can mend, after which the same step succeeds: the run waits instead of failing."""
ENDING = frozenset({"AgentNotFoundError"})
"""Failures of a tool call that the next model call would have too, after its own wait: the run fails with the first."""


def fail(state: RunState, type: str, message: str) -> None:
    """The run cannot go on: it ends as failed, with its transcript closed."""
    if state.turn is None:
        open_turn(state)
    assert state.turn is not None
    state.turn.failure = Failure(type=type, message=message)
    _ending(state, "not finished: the run failed")


def cancel(state: RunState) -> None:
    """Somebody cancelled the run: finished results stay, every other call gets one that says so."""
    state.cancelled = True
    _ending(state, "Cancelled: the run was cancelled before this call had finished")


def _ending(state: RunState, text: str) -> None:
    """Record the ending, over an earlier one too. A model call in flight has used up its operation number."""
    state.op += 1
    state.recorded = False
    state.pause = None
    state.interrupt = None
    drop_reminder(state)
    drop_branches(state)
    _close_calls(state, text)


def _close_calls(state: RunState, text: str) -> None:
    """A result for every call that has none: a provider refuses a transcript with an open call."""
    for pending in state.calls:
        if pending.result is None:
            if asks(pending):
                unused(state, pending)
            call = pending.call
            pending.result = NewResult(
                call_id=call.id,
                name=call.name,
                text=text + withheld(pending),
                is_error=True,
                decided=let_go(pending),
            )
    collect(state)


def interrupt(state: RunState, raw: Any = None) -> None:
    """Somebody interrupts, to say something (``raw``, a message) or to stop the turn (None, or an empty object).

    Only noted here: whoever drives the loop stops what is in flight, and then calls :func:`stopped`.
    """
    says = not (raw is None or raw == "" or (isinstance(raw, dict) and not (raw.get("content") or raw.get("input"))))
    running = state.turn is not None and (state.turn.answer is None or bool(state.inbox))
    if says and not receive(state, raw):
        return  # seen before, or refused: nothing of it is carried out
    if running and not state.cancelled and state.turn is not None and state.turn.failure is None:
        state.interrupt = "go on" if says else "stop"


def stopped(state: RunState) -> None:
    """Nothing is in flight any more: close what was interrupted, and end the turn unless there is something to say."""
    how, state.interrupt = state.interrupt, None
    turn = state.turn
    if turn is not None and turn.failure is not None and state.calls:
        _close_calls(state, "not run: the run was aborted")
    if how is None or turn is None:
        return
    state.op += OPS_OF_A_REPLY
    state.pause = None
    drop_branches(state)
    _close_calls(state, "Interrupted: the user interrupted before this call had finished")
    if how == "go on":
        end_at_limit(state)
    elif turn.failure is None:
        drop_reminder(state)
        if turn.answer is None:
            last = (turn.last_text, turn.last_blob) if turn.at_limit else ("", None)
            turn.answer = Answer(content=last[0], blob=last[1], finish_reason="interrupted")
        elif state.inbox:  # an answer, but not to what was said since
            turn.answer.finish_reason = "interrupted"
        state.carry += state.inbox
        state.inbox = []
        state.recorded = False
        turn.at_limit = False


def pause(state: RunState, reason: str, since: str, *, fault: bool = False) -> None:
    """The run waits for an operator; ``fault``: for an engine without the fault that it came upon."""
    state.pause = Pause(reason=reason, since=since, fault=fault)


def resume(state: RunState, raw: Any = None) -> None:
    """The operator says that the cause is gone, or raises limits: ``{"limits": {"cost_usd": 5}}``."""
    if raise_limits(state, raw):
        state.pause = None
        state.resend = True


def close(state: RunState) -> None:
    """A session ends after its current turn; a run that waits for its first message ends at once."""
    state.closed = True
    state.recorded = False
