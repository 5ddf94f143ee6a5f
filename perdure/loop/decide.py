"""What comes next: for every state exactly one kind of thing."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal

from ..types.limits import LimitUse
from ..types.plain_json import size
from ..types.state import PendingBranch, PendingCall, RunState
from ..types.subagents import AsTell
from ..types.tool_calls import AsSubagent
from ..types.wire import Closing, New, NewMessage
from . import children, payload_limits
from .children import collects, running
from .compaction import Compact, compaction
from .external_calls import carried
from .finish import REMINDER_ID, force, response
from .limits import exceeded
from .waits import deadline, due, waits_for_person


@dataclass(frozen=True, slots=True)
class CallModel:
    """Call the model with what is new since the head."""

    new: tuple[New, ...]
    taken: int
    """How many messages of the inbox are among ``new``."""
    purpose: Literal["call", "force_finish"] = "call"
    limit: LimitUse | None = None
    """Why the model is to finish."""


@dataclass(frozen=True, slots=True)
class RunCalls:
    """Run these tool calls, all at once. Those that do not fit beside them come next."""

    calls: tuple[PendingCall, ...]


@dataclass(frozen=True, slots=True)
class RunBranches:
    """Run these branches of the step, all at once; then the step is tried again."""

    branches: tuple[PendingBranch, ...]


@dataclass(frozen=True, slots=True)
class Remind:
    """Tell that these calls still wait for somebody's approval."""

    calls: tuple[PendingCall, ...]


@dataclass(frozen=True, slots=True)
class Close:
    """Record how the run ends, and what no model call was given any more."""

    new: tuple[New, ...]
    taken: int
    """How many messages of the inbox are among ``new``."""
    closing: Closing


@dataclass(frozen=True, slots=True)
class Wait:
    """Wait for a message, for an operator, for somebody's approval or answer, or for a subagent in background."""

    until: Literal["message", "resumed", "approval", "child"]
    deadline: float | None = None
    """When the wait for an approval or answer ends by itself, or a reminder is due: seconds since 1970."""


@dataclass(frozen=True, slots=True)
class StopChildren:
    """Stop the subagents in background, which do not outlive their parent, and wait until they have ended."""


@dataclass(frozen=True, slots=True)
class Report:
    """Tell the parent of a run in background how it ends."""

    status: Literal["completed", "failed", "cancelled"]


@dataclass(frozen=True, slots=True)
class End:
    """The run is over, and how."""

    status: Literal["completed", "failed", "cancelled"]


Next = CallModel | Compact | RunCalls | RunBranches | Remind | Close | Wait | StopChildren | Report | End


Ending = Literal["completed", "failed", "cancelled"]


def decide(state: RunState) -> Next:
    """The next step of ``state``; changes nothing."""
    turn = state.turn
    if state.pause is not None and state.pause.fault:  # also of an ending, which would fail again at once
        return Wait("resumed")
    if state.cancelled:
        return _close_once(state, "cancelled")
    if turn is not None and turn.failure is not None:
        return _close_once(state, "failed")
    if state.pause is not None:
        return Wait("resumed")
    ready = tuple(
        call for call in state.calls if call.result is None and not waits_for_person(call) and not collects(call)
    )
    if waiting := tuple(call for call in ready if not call.held):
        return RunCalls(_at_once(waiting, state))
    if still := due(state):
        return Remind(still)
    if held := tuple(call for call in ready if call.held):
        limit = exceeded(state)
        return RunCalls(_at_once(held, state)) if limit is None else _pause(state, limit)
    if branches := children.waiting(state):
        return RunBranches(branches)
    if any(map(waits_for_person, state.calls)):
        return Wait("approval", deadline(state))
    if any(map(collects, state.calls)):
        return Wait("child")
    if turn is None or (turn.answer is not None and not state.inbox):
        return _between_turns(state)
    return _model_or_limit(state)


def joining(state: RunState, flying: Collection[int]) -> tuple[PendingCall, ...]:
    """The calls that begin beside others (``flying``: their operations): those that a person has let go since.

    What did not fit beside the others when they began waits for them to end.
    """
    turn = state.turn
    if state.cancelled or state.interrupt or state.pause or turn is None or turn.failure:
        return ()
    flown = tuple(call for call in state.calls if call.op in flying)
    more = tuple(
        call
        for call in state.calls
        if call.result is None
        and (call.decided is not None or call.answers or call.returned is not None)
        and not (call.held or waits_for_person(call) or collects(call) or call.op in flying)
    )
    return _at_once((*flown, *more), state)[len(flown) :] if more else ()


def _between_turns(state: RunState) -> Next:
    if state.turn is None:
        return _end(state, "completed") if state.closed else Wait("message")
    # The model activity recorded the answer that it gave. That the turn ended otherwise is for us to say.
    unsaid = state.turn.answer is not None and state.turn.answer.finish_reason in ("limit", "interrupted")
    if state.mode == "run" or state.closed:
        # Of a session the activity said that it waits. And what a subagent used that ended since is not recorded yet.
        late = any(not row.collected for row in state.background)
        record = bool(state.carry) or bool(state.revoked) or unsaid or late or state.mode == "session"
        return _close_once(state, "completed") if record else _end(state, "completed")
    if state.carry or (unsaid and not state.recorded):
        return _closing(state, "waiting")
    return Wait("message")


def _model_or_limit(state: RunState) -> Next:
    if any(isinstance(item, NewMessage) for item in state.carry) and _fitting(state.carry) < len(state.carry):
        return _closing(state, "waiting")  # what a stopped turn was told is more than one call is given
    limit = exceeded(state)
    if limit is not None and state.limits.on_limit == "pause":
        return _pause(state, limit)
    if (shorter := compaction(state)) is not None:
        return shorter
    taken = _room(state) if state.branching is None else state.branching.taken
    new = (*state.carry, *state.inbox[:taken])
    if limit is None:
        return CallModel(new, taken)
    # "error" and "return" end the turn where its last outcome is applied (apply.py, settling.py). What still comes here
    # under them is a message that joined an ended turn: it gets an answer, and no more tools.
    order = NewMessage(content=force(state.limits.protocol, limit), id=REMINDER_ID)
    return CallModel((*new, order), taken, "force_finish", limit)


def _pause(state: RunState, limit: LimitUse) -> Next:
    """Wait for somebody to raise ``limit``. First what there is is recorded, for whoever is to decide."""
    told = state.turn is not None and limit.same(state.turn.reached)
    return Wait("resumed") if told else _closing(state, "paused", limit)


def _at_once(waiting: tuple[PendingCall, ...], state: RunState) -> tuple[PendingCall, ...]:
    """Those from the front of ``waiting`` that one workflow task may ask for: at least one."""
    waiting = waiting[: payload_limits.CALLS_AT_ONCE]
    if len(waiting) == 1:
        return waiting
    each = size(state.context) + size(state.auth_context) + payload_limits.CALL_BYTES
    total = subagents = 0
    for index, pending in enumerate(waiting):
        total += each + size(pending.call.arguments) + sum(size(one.model_dump()) for one in pending.answers)
        total += carried(pending)
        if isinstance(how := pending.call.disposition, AsSubagent | AsTell):
            total += size(how.message)
            subagents += isinstance(how, AsSubagent)
        if index and (total > payload_limits.CALLS_BYTES or subagents > payload_limits.SUBAGENTS_AT_ONCE):
            return waiting[:index]
    return waiting


def _room(state: RunState) -> int:
    """How many messages from the front of the inbox one step is given behind what it must be given.

    At least one, so that steps which bring more results each time cannot keep a long message out; unless it would not
    fit at all.
    """
    if not state.inbox:
        return 0
    total = sum(_size(item) for item in state.carry)
    for index, message in enumerate(state.inbox):
        total += _size(message)
        most = payload_limits.MESSAGES_BYTES if index else payload_limits.MESSAGE_BYTES + payload_limits.MESSAGES_BYTES
        if total > most and (index or state.carry):
            return index
    return len(state.inbox)


def _fitting(carry: list[New]) -> int:
    """How many items from the front one step is given, at least one: an interrupt leaves messages among them."""
    total = 0
    for index, item in enumerate(carry):
        total += _size(item)
        if index and total > payload_limits.MESSAGES_BYTES:
            return index
    return len(carry)


def _size(item: New) -> int:
    return size(item.model_dump(mode="json", exclude_none=True))


def _close_once(state: RunState, status: Ending) -> Next:
    if running(state):  # what they have used by then is recorded, too
        return StopChildren()
    if state.recorded and not state.inbox and not state.carry and not state.revoked:
        return _end(state, status)
    return _closing(state, status)


def _end(state: RunState, status: Ending) -> Report | End:
    """A run in background says so first, and again if it went on meanwhile."""
    waited = state.parent is not None and state.parent.background
    return Report(status) if waited and state.reported != state.op else End(status)


def _closing(
    state: RunState,
    status: Literal["completed", "failed", "cancelled", "waiting", "paused"],
    limit: LimitUse | None = None,
) -> Close:
    carried = _fitting(state.carry)
    taken = _room(state) if carried == len(state.carry) and status != "paused" else 0
    failure = state.turn.failure if state.turn else None
    answered = state.turn is not None and state.turn.answer is not None and not state.inbox and failure is None
    closing = Closing(
        status=status,
        turn="completed" if answered and status not in ("completed", "paused") else None,
        error_type=failure.type if failure else None,
        error=failure.message if failure else None,
        response=response(state).model_dump(mode="json", exclude_none=True),
        limit=limit or _ended_at(state),
    )
    return Close((*state.carry[:carried], *state.inbox[:taken]), taken, closing)


def _ended_at(state: RunState) -> LimitUse | None:
    """The limit that the turn ended at, if it did."""
    turn = state.turn
    if turn is None or turn.reached is None:
        return None
    at_limit = turn.answer is not None and turn.answer.finish_reason == "limit"
    failed = turn.failure is not None and turn.failure.type in ("MaxIterationsError", "BudgetExceededError")
    return turn.reached if at_limit or failed else None
