"""``AgentWorkflow``: carries out the steps that the pure loop decides on, and applies their outcomes to the state.

    signals, updates → receive ─┐
                                ├→ RunState → decide → CallModel · RunToolCalls · RecordClosing · Wait · EndRun · …
    outcomes → apply ───────────┘

All data of a run is in its state: continue-as-new carries it over, queries show it, and the result is built from it.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from datetime import datetime
from typing import Any, assert_never

from temporalio import workflow
from temporalio.common import VersioningBehavior
from temporalio.exceptions import ApplicationError

from ..loop import RULES, decide, lifecycle
from ..loop.approvals import update_approval_waits
from ..loop.background import answer_collect_calls
from ..loop.compaction import CompactConversation
from ..loop.finish import build_response
from ..loop.limits import update_work_time
from ..loop.payload_limits import STATE_BYTES
from ..loop.subagents import build_child_report, build_usage_details
from ..types.interface import WORKFLOW_TYPE
from ..types.plain_json import measure_json
from ..types.schema_version import check_schema_version
from ..types.state import RunState
from . import steps
from .child_workflows import BackgroundChildren, report_to_parent, run_branch
from .handlers import WorkflowHandlers, accept_raw_argument, decode_argument, translate_input_errors
from .host import ensure_commands, get_host
from .search_attributes import sync_visibility
from .step_tasks import StepTasks
from .steps import run_tool_calls, send_reminders_while_waiting


@workflow.defn(name=WORKFLOW_TYPE, sandboxed=False)
class AgentWorkflow(WorkflowHandlers):
    """One conversation. Its id is the ``context_id``; its input and its handlers' arguments are plain JSON."""

    def __init__(self) -> None:
        super().__init__()
        self._is_carry_over_too_large = False
        """Whether the state was too large to continue as new with, when that was last due."""

    @workflow.run
    @accept_raw_argument
    async def run(self, raw: Any = None, *more: Any) -> dict[str, Any]:
        """Drive the conversation to its end; the result is a ``Response`` without its messages."""
        state = self._open_run(raw, *more)
        with ensure_commands(state) as self._progress, sync_visibility(state, lambda: self._step, self._guard):
            return await self._run_steps(state)

    async def _run_steps(self, state: RunState) -> dict[str, Any]:
        tasks = StepTasks(state, self._guard)
        children = BackgroundChildren(state, self._guard)
        while True:
            if state.uncollected and (state.pause is None or tasks.is_stopping()):
                await steps.collect_open_work(state, tasks)
            if tasks.is_cancelling() and not state.cancelled:
                lifecycle.cancel_run(state)
            now = get_host().now()
            decided = self._guard.change_or_pause(state, "the next step", _decide_next_step, now)
            self._step = step = decided or decide.Wait("resumed")
            self._step_started_at = now.isoformat()
            next_probe = children.compute_next_probe(step, now.timestamp())
            if next_probe is not None and next_probe <= now.timestamp():
                await tasks.run_to_end(children.send_due_probes(now.timestamp()), stop=False)
                continue
            match step:
                case decide.CallModel():
                    await self._continue_as_new_if_long(state)
                    if not tasks.is_stopping():
                        await tasks.run_all([steps.call_model(state, step, tasks)])
                case CompactConversation():
                    await self._continue_as_new_if_long(state)
                    if not tasks.is_stopping():
                        await tasks.run_all([steps.compact_conversation(state, step, tasks)])
                case decide.RunToolCalls(calls=calls):
                    await run_tool_calls(state, calls, tasks, children)
                case decide.RunBranches(branches=branches):
                    await tasks.run_all([run_branch(state, branch, tasks) for branch in branches])
                case decide.SendReminders():
                    await send_reminders_while_waiting(state, tasks, children)
                case decide.RecordClosing():
                    await tasks.run_to_end(steps.record_ending(state, step, tasks), stop=not state.cancelled)
                case decide.Wait():
                    await self._continue_as_new_if_long(state)  # a run may wait for months
                    await self._wait_for_change(state, step, next_probe)
                    update_work_time(state, get_host().now(), working=step.until == "child")
                case decide.StopChildren():
                    await tasks.run_to_end(children.stop_children(), stop=False)
                case decide.ReportToParent():
                    await tasks.run_to_end(report_to_parent(state, step, self._guard), stop=False)
                case decide.EndRun(status=status):
                    result = self._guard.change_or_pause(state, "the result", _build_run_result, status)
                    if result is not None:
                        await self._end_waits()
                    if isinstance(result, BaseException):
                        raise result
                    if result is not None:
                        return result
                case _:
                    assert_never(step)

    # --- around the steps

    def _open_run(self, *arguments: Any) -> RunState:
        info = get_host().info()
        scope = info.first_execution_run_id
        if info.cron_schedule and info.continued_run_id:  # every run of a cron has the same first one
            scope += f"/{info.continued_run_id}"
        with translate_input_errors("the input"):
            values = [decode_argument(argument) for argument in arguments]
            raw: Any = values[0] if len(values) == 1 else values
        if info.parent is not None and isinstance(raw, dict):  # of a client the input is refused, see ``Parent``
            check_schema_version(raw.get("parent"), "the run's input")  # fails the workflow task, not the run
        with translate_input_errors("the input"):
            carried = lifecycle.is_continuation_input(raw, info.continued_run_id)
            parent_id = info.parent.workflow_id if info.parent else None
            rules = 1 if carried else _choose_rules()
            state = None if carried else lifecycle.create_run_state(raw, info.workflow_id, scope, parent_id, rules)
        if state is None:  # an error here fails the workflow task, not the run: another worker may be able to go on
            state = lifecycle.read_continued_state(raw, info.workflow_id)
        self._set_state(state)
        return state

    async def _wait_for_change(self, state: RunState, step: decide.Wait, next_probe: float | None) -> None:
        idle = state.idle_timeout if step.until == "message" else None
        deadlines = [at for at in (step.deadline, next_probe) if at is not None]
        if deadlines:
            idle = max(min(deadlines) - get_host().now().timestamp(), 0.001)
        try:
            with suppress(asyncio.CancelledError):  # _run_steps cancels the run before its next decision
                await get_host().wait_condition(
                    lambda: (
                        state.interrupt is not None or _is_step_outdated(state, step) or self._is_history_long(state)
                    ),
                    timeout=idle,
                    timeout_summary=_describe_wait_timer(step) if idle else None,
                )
        except TimeoutError:
            # Not if a message came together with the timeout.
            if step.until == "message" and not _is_step_outdated(state, step):
                lifecycle.close_run(state)

    async def _continue_as_new_if_long(self, state: RunState) -> None:
        """Continue as new if the history is long. Called before a model call and in a wait: nothing is in flight then,
        so the state is all that the next execution needs."""
        self._is_carry_over_too_large = False
        if not self._is_history_long(state):
            return
        self._is_ending_execution = True  # clients that wait for the turn are answered at once
        try:
            await get_host().wait_condition(get_host().all_handlers_finished)
        except asyncio.CancelledError:
            return
        finally:
            self._is_ending_execution = False
        run_id = get_host().info().run_id
        carried = self._guard.change_or_pause(state, "the next execution", lifecycle.build_continuation_input, run_id)
        # If it is too large, model calls take the waiting messages first.
        self._is_carry_over_too_large = carried is None or measure_json(carried) > STATE_BYTES
        if carried is not None and not self._is_carry_over_too_large:
            get_host().continue_as_new(carried)

    def _is_history_long(self, state: RunState) -> bool:
        """Whether the history is so long that the run should continue as new, and its state is not too large for it."""
        if self._is_carry_over_too_large:
            return False
        info, most = get_host().info(), state.max_history_events
        return info.is_continue_as_new_suggested() or (most is not None and info.get_current_history_length() > most)


@workflow.defn(name=WORKFLOW_TYPE, sandboxed=False, versioning_behavior=VersioningBehavior.AUTO_UPGRADE)
class VersionedAgentWorkflow(AgentWorkflow):
    """The same for workers that are versions of a deployment. Temporal requires a behaviour of their workflows, and
    refuses one of other workers."""

    @workflow.run
    @accept_raw_argument
    async def run(self, raw: Any = None, *more: Any) -> dict[str, Any]:
        """See base class."""
        return await super().run(raw, *more)


def _choose_rules() -> int:
    """Return the version of the loop's rules for a run that begins: this engine's, but in a replay those by which the
    run began."""
    return next((rules for rules in range(RULES, 1, -1) if get_host().patched(f"perdure-rules-{rules}")), 1)


def _decide_next_step(state: RunState, now: datetime) -> decide.NextStep:
    lifecycle.apply_interrupt(state)
    update_work_time(state, now)
    lifecycle.end_turn_at_budget(state)
    update_approval_waits(state, now)
    answer_collect_calls(state)
    return decide.decide(state)


def _is_step_outdated(state: RunState, step: decide.Wait) -> bool:
    """Whether the next step is no longer ``step``."""
    try:
        return decide.decide(state) != step
    except Exception:  # the decision on the next step fails again, and then pauses the run
        return state.pause is None


def _build_run_result(state: RunState, status: str) -> dict[str, Any] | BaseException:
    """Build the result of the run: a ``Response`` without its messages, or the error that it ends with."""
    if status == "cancelled":
        return asyncio.CancelledError("the run was cancelled")
    failure = state.turn.failure if state.turn else None
    if status == "failed" and failure is not None:
        details = [build_usage_details(state)] if state.parent is not None else []
        return ApplicationError(failure.message, *details, type=failure.type, non_retryable=True)
    response = build_response(state)
    if state.parent is not None:
        response = response.model_copy(update=build_child_report(state))
    return response.model_dump(mode="json", exclude_none=True)


def _describe_wait_timer(step: decide.Wait) -> str:
    return {"approval": "approval expires", "message": "idle timeout"}.get(step.until, "look after subagents")
