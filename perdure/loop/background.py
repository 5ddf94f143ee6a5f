"""Subagents in background: start, message, end and collection.

The model names each by a handle. Its outcome is kept in the state until the model collects it, and for some time after.
"""

from __future__ import annotations

from typing import Any

from pydantic import ValidationError

from ..types.messages import Usage, clean_text
from ..types.plain_json import measure_json
from ..types.state import RunState, ToolCallState
from ..types.subagents import (
    CHILD_ANSWER_CHARS,
    CHILD_ERROR_CHARS,
    MAX_ROW_NAMES,
    BackgroundRun,
    ChildEnding,
    CollectCall,
    RunUsage,
)
from ..types.tool_calls import SubagentCall
from ..types.validation_errors import describe_validation_error
from .apply import fail_call, finish_call
from .children import build_child_run_id, find_background_run, is_waiting_for_background, list_active_background_runs
from .decide import EndStatus
from .finish import build_response
from .limits import add_usage
from .messages import record_refusal
from .results import can_fit_result
from .subagents import (
    CHILD_AT_LIMIT,
    CHILD_CANCELLED,
    CHILD_INTERRUPTED,
    ChildOutcome,
    build_child_start,
    is_unanswered_at_limit,
)
from .waits import list_requesters, record_requesters

UNCOLLECTED_BYTES = 256 * 1024
"""Bytes (as JSON) of answers not yet collected; above it no further subagent is started in background."""
COLLECTED_BYTES = 128 * 1024
"""Bytes (as JSON) of collected answers that are kept; the oldest beyond it are dropped."""
MAX_BACKGROUND_ROWS = 200
"""Rows of the table of background runs; beyond it the oldest collected ones are dropped."""


def prepare_background_run(state: RunState, pending: ToolCallState) -> tuple[BackgroundRun, dict[str, Any]] | None:
    """Add the row of the run that the call starts; return it with the run's input. None if the run may not begin: the
    call's result then has the reason."""
    request = pending.call.disposition
    assert isinstance(request, SubagentCall), "a call of another agent"
    start = _find_capacity_problem(state, request.background or 0) or build_child_start(state, pending)
    if isinstance(start, str):
        fail_call(state, pending, start)
        return None
    state.background_count += 1
    row = BackgroundRun(
        handle=f"b{state.background_count}",
        op=pending.op,
        call_id=pending.call.id,
        agent=request.agent,
        scope=start["parent"]["scope"],
        state="starting",
        limits=start["parent"].get("limits"),
    )
    state.background_runs.append(row)
    _prune_collected_runs(state)
    return row, start


def mark_background_started(state: RunState, pending: ToolCallState, row: BackgroundRun) -> None:
    """Mark the run as started, and give the call its result. The run may have ended already."""
    if row.state == "starting":
        row.state = "running"
    finish_call(state, pending, f"started as {row.handle}")


def fail_background_start(state: RunState, pending: ToolCallState, row: BackgroundRun, error: str) -> None:
    """Remove the row of a run that could not be started, and fail the call with ``error``."""
    row.state = "failed"
    state.background_runs.remove(row)
    fail_call(state, pending, f"not started: {error}")


def apply_child_ended(state: RunState, raw: Any) -> None:
    """Apply a background run's report of its end (``ChildEnding``), which may come twice. Refused (``status.refused``)
    unless it names a run that this one started, with that run's scope."""
    try:
        ending = ChildEnding.model_validate(raw)
    except ValidationError as error:
        record_refusal(state, f"child_ended: {describe_validation_error(error, 'the argument')}")
        return
    row = next((row for row in state.background_runs if build_child_run_id(state, row) == ending.context_id), None)
    if row is None or row.scope != ending.scope:
        record_refusal(state, f"child_ended: this run has not started {ending.context_id!r:.100} in background")
        return
    _count_background_usage(state, row, ending.used)
    # A message that arrived as it ended may have kept it going: its last answer counts, until one is collected.
    if not row.is_running and (row.collected or row.stopped or ending.state != "completed"):
        return
    _record_row_requesters(state, row, ending.asked_by)
    row.state = ending.state
    row.blob = ending.blob
    text = ending.content if ending.state == "completed" else ending.error or ending.content
    row.text = None if ending.blob is not None else clean_text(text)
    answer_collect_calls(state)


def apply_background_outcome(state: RunState, row: BackgroundRun, ended: ChildOutcome) -> None:
    """Apply the close of the run's workflow, as Temporal reports it. Nearly all have reported their own end before."""
    if not row.is_running:
        return
    response, used = ended.response, ended.response or ended.used
    if used is not None:
        run_usage = RunUsage(usage=used.usage, cost_usd=used.cost_usd, tool_calls=used.tool_calls or 0)
        _count_background_usage(state, row, run_usage)
        _record_row_requesters(state, row, used.asked_by)
    if response is not None:
        row.state, row.blob = "completed", response.blob
        row.text = response.content if response.blob is None else None
    else:
        row.state = "lost" if ended.lost else "failed"
        error = ended.error or "its run closed without reporting a result"
        row.text = clean_text(f"the agent was lost: {error}" if ended.lost else error)[:CHILD_ERROR_CHARS]
    answer_collect_calls(state)


def _record_row_requesters(state: RunState, row: BackgroundRun, names: tuple[str, ...]) -> None:
    """Keep the people whose input led to the outcome of the run, until it is collected."""
    known = list(dict.fromkeys([*row.asked_by, *names]))
    if len(known) <= MAX_ROW_NAMES:
        row.asked_by = known
    else:
        record_requesters(state, known, every_turn=True)


def abandon_background_runs(state: RunState) -> None:
    """Mark the active background runs as cancelled: the run ends without waiting for them any longer."""
    for row in list_active_background_runs(state):
        row.state, row.text = "cancelled", "RunCancelledError: stopped with the run that had started it"


def build_child_ended(state: RunState, status: EndStatus) -> ChildEnding:
    """Build the report of a background run to its parent, for an end with ``status``."""
    assert state.parent is not None, "a background run has a parent"
    answer, failure = build_response(state), state.turn.failure if state.turn else None
    error: str | None = None
    if status == "cancelled":
        error = CHILD_CANCELLED
    elif status == "failed" and failure is not None:
        error = f"{failure.type}: {failure.message}"
    elif answer.finish_reason == "interrupted":
        status, error = "cancelled", answer.content or CHILD_INTERRUPTED
    elif is_unanswered_at_limit(answer):
        status, error = "failed", CHILD_AT_LIMIT
    completed = status == "completed"
    return ChildEnding(
        context_id=state.context_id,
        scope=state.parent.scope,
        state=status,
        content=answer.content[:CHILD_ANSWER_CHARS] if completed and answer.blob is None else "",
        blob=answer.blob if completed else None,
        error=None if error is None else clean_text(error)[:CHILD_ERROR_CHARS],
        used=RunUsage(usage=state.usage, cost_usd=state.cost_usd, tool_calls=state.tool_calls),
        asked_by=tuple(list_requesters(state)),
    )


def answer_collect_calls(state: RunState) -> None:
    """Set the results of collect calls: the outcome of a run that has ended, an error for an unknown handle or too long
    an answer, or, for a call that does not wait, that the run is still running."""
    for pending in [pending for pending in state.calls if is_waiting_for_background(pending)]:
        request = pending.call.disposition
        assert isinstance(request, CollectCall), "it collects"
        row = find_background_run(state, request.handle)
        if row is None:
            fail_call(state, pending, _build_unknown_handle_text(state, request.handle))
        elif row.is_running:
            if not request.wait:
                finish_call(state, pending, f"{row.handle} ({row.agent}) is still running")
        elif not can_fit_result(state, row.text):
            text = f"not collected: with the answer of {row.handle} those of this reply are too long: collect it apart"
            fail_call(state, pending, text)
        else:
            row.collected = True
            record_requesters(state, row.asked_by)
            if row.text is None and row.blob is None:
                text = f"the answer of {row.handle} ({row.agent}) was collected before and is no longer kept: see above"
                finish_call(state, pending, text)
            else:
                finish_call(state, pending, row.text, blob=row.blob, is_error=row.state != "completed")
    _prune_collected_runs(state)


def find_tell_target(state: RunState, pending: ToolCallState, handle: str) -> BackgroundRun | None:
    """Find the run that the call sends a message to; None, and an error as the call's result, if there is none or it
    has ended."""
    row = find_background_run(state, handle)
    if row is None:
        fail_call(state, pending, _build_unknown_handle_text(state, handle))
    elif not row.is_running:
        fail_call(state, pending, f"not delivered: {row.handle} ({row.agent}) has ended: collect its answer")
        return None
    return row


def _find_capacity_problem(state: RunState, limit: int) -> str | None:
    """Return why no further background run may be started now; None if one may."""
    running = list_active_background_runs(state)
    if len(running) >= limit:
        handles = ", ".join(row.handle for row in running)
        return f"not started: {len(running)} agents run in background, which is the limit: collect one ({handles})"
    uncollected = [row for row in state.background_runs if not row.is_running and not row.collected]
    uncollected_bytes = sum(measure_json(row.text) for row in uncollected)
    if uncollected_bytes > UNCOLLECTED_BYTES or len(uncollected) + len(running) >= MAX_BACKGROUND_ROWS:
        handles = ", ".join(row.handle for row in uncollected)
        return f"not started: too many answers wait to be collected: collect them first ({handles})"
    return None


def _build_unknown_handle_text(state: RunState, handle: str) -> str:
    known = ", ".join(row.handle for row in state.background_runs)
    hint = f"there is: {known}" if known else "this run has not started an agent in background"
    return f"no agent {handle!r:.50} ({hint})"


def _count_background_usage(state: RunState, row: BackgroundRun, used: RunUsage) -> None:
    """Add to the run's usage what its background run reports as used, beyond what it reported before."""
    before = row.used
    counted = before.usage.model_dump()
    usage = Usage.model_validate({name: max(n, counted[name]) for name, n in used.usage.model_dump().items()})
    tool_calls = max(used.tool_calls, before.tool_calls)
    state.tool_calls += tool_calls - before.tool_calls
    cost = max((cost for cost in (used.cost_usd, before.cost_usd) if cost is not None), default=None)
    add_usage(state, usage - before.usage, None if cost is None else cost - (before.cost_usd or 0.0))
    row.used = RunUsage(usage=usage, cost_usd=cost, tool_calls=tool_calls)


def _prune_collected_runs(state: RunState) -> None:
    """Drop the oldest collected answers and rows beyond ``COLLECTED_BYTES`` and ``MAX_BACKGROUND_ROWS``."""
    bytes_left = COLLECTED_BYTES
    for row in reversed(state.background_runs):
        if row.collected and row.text is not None and (bytes_left := bytes_left - measure_json(row.text)) < 0:
            row.text = None
    collected = [row for row in state.background_runs if row.collected]
    for row in collected[: max(0, len(state.background_runs) - MAX_BACKGROUND_ROWS)]:
        state.background_runs.remove(row)


# ---
# Probes, by which a background run and its parent find out that the other one was lost (terminated, for instance).


FIRST_CHILD_PROBE, MAX_CHILD_PROBE = 30.0, 600.0
"""Seconds until the next probe of a background run that a call waits for: first and largest interval."""
FIRST_PARENT_PROBE, MAX_PARENT_PROBE = 3600.0, 24 * 3600.0
"""Seconds until the next probe of a background run's parent: first and largest interval. A probe costs an idle parent
four events of history, for each of its subagents."""


def compute_child_probe_time(row: BackgroundRun) -> float:
    """Return when the background run is probed next, in seconds since 1970."""
    if row.looked is None:
        return 0.0
    return row.looked + min(MAX_CHILD_PROBE, FIRST_CHILD_PROBE * 2.0 ** min(row.looks - 1, 10))


def compute_parent_probe_time(state: RunState) -> float:
    """Return when the parent is probed next, in seconds since 1970."""
    return (state.parent_seen_at or 0.0) + min(
        MAX_PARENT_PROBE, FIRST_PARENT_PROBE * 2.0 ** min(state.parent_checks, 10)
    )
