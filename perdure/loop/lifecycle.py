"""Start, continuation and end of a run: its first state, raised limits, failures, cancellation, interrupts, pauses."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from ..errors import InvalidInputError, NewerStateError
from ..types.approvals import hash_name
from ..types.interface import OperatorPause
from ..types.limits import Bounds
from ..types.messages import NAME_CHARS, clean_text
from ..types.run_ids import read_tenant
from ..types.state import Pause, RequestedPause, RunState, TurnAnswer, read_state
from ..types.wire import TurnFailure
from . import RULES
from .apply import carry_results, drop_reminder, end_turn_at_limit
from .children import drop_branches, list_running_branches
from .external_calls import describe_withheld_result
from .limits import build_limit_failure, find_exceeded_limit, release_held_calls, uncount_tool_call
from .messages import accept_message, open_turn, receive_message, record_refusal
from .requests import build_start_message, parse_pause_request, parse_run_limits, parse_start
from .results import build_error_result
from .turns import is_turn_answered, record_unanswered_messages
from .waits import get_callback_approval, is_waiting_for_approval, record_requesters

# ---
# A turn at a limit: it ends, or its run pauses until an operator raises the limit.


def end_turn_at_budget(state: RunState) -> None:
    """End the turn if a budget is used up and neither a last answer of the model nor a pause is due.

    Nothing may be in flight. ``on_limit="finish"`` asks the model for its answer once: a turn that begins with the
    run's budget used up, or goes on after it was told to finish, ends as it stands. Also lets held calls begin, as many
    as are allowed.
    """
    release_held_calls(state)
    turn = state.turn
    if turn is None or turn.failure or state.cancelled or state.pause or state.calls or list_running_branches(state):
        return
    if state.is_pause_requested:  # an operator may raise the limit before it is resumed
        return
    if is_turn_answered(state):
        return
    use, on_limit = find_exceeded_limit(state), state.limits.on_limit
    if use is None or use.name == "max_iterations" or on_limit == "pause":
        return
    if on_limit == "finish" and turn.iteration and not turn.forced:
        return
    turn.reached = use
    state.recorded = False
    drop_reminder(state)
    drop_branches(state)
    record_unanswered_messages(state)
    if on_limit == "error":
        turn.failure = build_limit_failure(state, use)
        return
    last = turn.answer or TurnAnswer(content=turn.last_text, blob=turn.last_blob)
    turn.answer = last.model_copy(update={"finish_reason": "limit"})
    state.unsent += state.inbox
    state.inbox = []


def _merge_higher_bounds(current: Bounds | None, raised: dict[str, Any]) -> Bounds | None:
    highest = {name: value for name, value in raised.items() if value is not None}
    for name, value in current or ():
        if value is not None:
            highest[name] = max(value, highest.get(name, value))
    return Bounds.model_validate(highest) if highest else None


OPS_PER_REPLY = 1000
"""Operation numbers that a stopped model call may have used: a worker that was taken for lost may still be running
inline tools of its reply, each under a number after the call's own."""
PAUSING_ERRORS = frozenset({"TranscriptCorruptedError", "StoreVersionError"})
"""Failures that an operator can repair, after which the same step succeeds: the run pauses instead of failing."""
RUN_FAILING_ERRORS = frozenset({"AgentNotFoundError"})
"""Failures of a tool call that the next model call would have too, after waiting itself: the run fails at the first."""


def fail_run(state: RunState, type: str, message: str) -> None:
    """Fail the run: it ends as failed, with its transcript closed."""
    if state.turn is None:
        open_turn(state)
    assert state.turn is not None
    state.turn.failure = TurnFailure(type=type, message=message)
    _prepare_ending(state, "not finished: the run failed")


def cancel_run(state: RunState) -> None:
    """Cancel the run: finished results stay, every other call gets a result that says so."""
    state.cancelled = True
    _prepare_ending(state, "Cancelled: the run was cancelled before this call had finished")


def _prepare_ending(state: RunState, text: str) -> None:
    """Have the ending recorded, also after an earlier one. A model call in flight has used up its operation number."""
    state.op += 1
    state.recorded = False
    state.pause = None
    state.requested_pause = None
    state.interrupt = None
    drop_reminder(state)
    drop_branches(state)
    _close_open_calls(state, text)


def _close_open_calls(state: RunState, text: str) -> None:
    """Give every open call an error result: a provider refuses a transcript with an open call."""
    for pending in state.calls:
        if pending.result is None:
            if is_waiting_for_approval(pending):
                uncount_tool_call(state, pending)
            note, approval = describe_withheld_result(pending), get_callback_approval(pending)
            pending.result = build_error_result(pending.call, text + note, decided=approval)
    carry_results(state)


def request_interrupt(state: RunState, raw: Any = None) -> None:
    """Record an interrupt, with a message (``raw``) or to stop the turn (``raw`` None, empty, or without content).

    The driver of the loop then stops what is in flight, and calls :func:`apply_interrupt`.
    """
    has_message = raw not in (None, "") and not (isinstance(raw, dict) and not (raw.get("content") or raw.get("input")))
    turn, is_answered = state.turn, is_turn_answered(state)
    if has_message and not receive_message(state, raw):
        return  # seen before, or refused: nothing of it is carried out
    if turn is not None and not is_answered and not state.cancelled and turn.failure is None:
        state.interrupt = "go on" if has_message else "stop"


def apply_interrupt(state: RunState) -> None:
    """Apply a recorded interrupt once nothing is in flight: close the open calls, and end the turn unless the interrupt
    came with a message."""
    interrupt, state.interrupt = state.interrupt, None
    turn = state.turn
    if turn is not None and turn.failure is not None and state.calls:
        _close_open_calls(state, "not run: the run was aborted")
    if interrupt is None or turn is None:
        return
    state.op += OPS_PER_REPLY
    state.pause = None
    drop_branches(state)
    _close_open_calls(state, "Interrupted: the user interrupted before this call had finished")
    if interrupt == "go on":
        end_turn_at_limit(state)
    elif turn.failure is None:
        drop_reminder(state)
        if turn.answer is None:
            content, blob = (turn.last_text, turn.last_blob) if turn.at_limit else ("", None)
            turn.answer = TurnAnswer(content=content, blob=blob, finish_reason="interrupted")
        elif state.inbox:  # an answer, but not to the messages since
            turn.answer.finish_reason = "interrupted"
        state.unsent += state.inbox
        state.inbox = []
        state.recorded = False
        turn.at_limit = False


def pause_run(state: RunState, reason: str, since: str, *, fault: bool = False) -> None:
    """Pause the run until it is resumed. ``since``: ISO 8601. ``fault``: it met a fault of the engine, and waits for an
    engine without it."""
    state.pause = Pause(reason=reason, since=since, fault=fault)


def request_pause(state: RunState, raw: Any, now: datetime) -> None:
    """Pause the run at the request of a client (a ``PauseRequest``), once what is in flight has ended.

    Nothing changes for a run that is paused so already, or is ending. Raises ``InvalidInputError``.
    """
    request = parse_pause_request(raw)
    if state.cancelled or (state.turn is not None and state.turn.failure) or state.is_pause_requested:
        return
    by, reason = (clean_text(text) if text else None for text in (request.by, request.reason))
    state.requested_pause = RequestedPause(asked=OperatorPause(by=by, reason=reason, at=now.isoformat()))


def resume_run(state: RunState, raw: Any = None, now: datetime | None = None) -> None:
    """Resume a paused run, whatever it is paused for: the cause is gone, or limits are raised with
    ``{"limits": {"cost_usd": 5}, "by": …}``.

    Raised limits hold for the run, those under ``turn`` for the present turn. If a limit is raised several times, the
    highest value counts. Invalid limits are refused (``status.refused``), and the run stays paused.
    """
    raw_limits = raw.get("limits") if isinstance(raw, dict) else None
    if raw_limits is not None:
        try:
            limits = parse_run_limits(raw_limits)
        except InvalidInputError as error:
            record_refusal(state, error.message)
            return
        state.raised = _merge_higher_bounds(state.raised, limits.model_dump(exclude={"turn"}))
        if limits.turn is not None and state.turn is not None:
            state.turn.raised = _merge_higher_bounds(state.turn.raised, limits.turn.model_dump())
    state.pause = None
    state.resend = True
    pause = state.requested_pause
    if pause is not None and pause.resumed is None:
        by = raw.get("by") if isinstance(raw, dict) else None
        by = clean_text(by)[:NAME_CHARS] if isinstance(by, str) and by else None
        pause.resumed = OperatorPause(by=by, at=pause.asked.at if now is None else now.isoformat())


def close_run(state: RunState) -> None:
    """Close the run: a session ends after its current turn, a run that waits for its first message at once."""
    state.closed = True
    state.recorded = False


# ---
# The first state of an execution, from its JSON input.


STATE_KEY, CONTINUED_RUN_KEY = "state", "continues"
"""The keys of the input of an execution that continues an earlier one: its state, and its run id.

A client cannot write such an input: Temporal makes run ids as runs start, so the id of the execution that the new one
continues is known to that execution alone.
"""


def is_continuation_input(raw: Any, continued_run_id: str | None) -> bool:
    """Whether ``raw`` was written by ``continued_run_id``, the execution that, according to Temporal, this one
    continues."""
    is_carried = isinstance(raw, dict) and raw.keys() == {STATE_KEY, CONTINUED_RUN_KEY}
    return is_carried and continued_run_id is not None and raw[CONTINUED_RUN_KEY] == continued_run_id


def read_continued_state(raw: dict[str, Any], context_id: str) -> RunState:
    """Read the state from the input of an execution that continues an earlier one (:func:`is_continuation_input`).

    Raises ``NewerStateError``, ``InvalidInputError``.
    """
    state = read_state(raw[STATE_KEY])
    if state.rules > RULES:
        raise NewerStateError(f"state: it is decided by rules {state.rules}, this engine has rules up to {RULES}")
    if state.context_id != context_id:
        raise InvalidInputError(f"state: it belongs to run {state.context_id!r:.200}")
    return state


def create_run_state(
    raw: Any, context_id: str, scope: str, parent_id: str | None = None, rules: int = RULES
) -> RunState:
    """Create the state of a new run. ``parent_id``: the parent workflow that Temporal reports, if there is one;
    ``rules``: the version of the rules that it is decided by.

    Raises ``InvalidInputError`` that names what is wrong with ``raw``.
    """
    start = parse_start(raw)
    start = start.model_copy(update={"tenant": read_tenant(context_id, start.tenant)})
    parent = start.parent
    is_child = parent is not None and parent.context_id == parent_id
    if parent is not None and not is_child:  # reopened by a client: only its restrictions hold
        parent = parent.model_copy(update={"background": False})
    state = RunState(
        rules=rules,
        context_id=context_id,
        agent=start.agent,
        mode=start.mode,
        context=start.context,
        auth_context=start.auth_context,
        auth_ref=start.auth_ref,
        parent=parent,
        tenant=start.tenant,
        user=start.user,
        max_history_events=start.max_history_events,
        idle_timeout=start.idle_timeout,
        store_id=start.store_id,
        resume=start.resume,
        scope=parent.scope if parent is not None and is_child else scope,
        is_child=is_child,
        overrides=start.override.model_dump(mode="json", exclude_none=True) if start.override else None,
        head=start.history,
    )
    asked = start.caller_request.override if start.caller_request is not None else None
    if asked is not None:
        state.caller_overrides = asked.model_dump(mode="json", exclude_none=True)
    if any(given is not None for given in (start.override, asked, start.context, start.history)):
        record_requesters(state, [name] if (name := hash_name(start.by)) is not None else [], every_turn=True)
    if start.message is not None:
        message = build_start_message(start.message)
        state.resend = start.resume and message.content is None  # reopened by ``Run.resume``
        accept_message(state, message)
    return state


def build_continuation_input(state: RunState, run_id: str) -> dict[str, Any]:
    """Build the input of the execution that continues from ``state`` of ``run_id``; read back by
    :func:`read_continued_state`."""
    carried = state.model_copy(update={"rules": RULES})  # the next execution begins by the rules of this engine
    return {STATE_KEY: carried.model_dump(mode="json", exclude_none=True), CONTINUED_RUN_KEY: run_id}
