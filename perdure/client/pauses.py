"""Pauses, resumes, cancels and terminates runs. A run is resumed from a pause, or after it has ended."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from datetime import datetime
from typing import Any

from temporalio.client import WorkflowExecutionDescription

from ..errors import InvalidInputError, PerdureError, RunClosedError, RunNotFoundError, RunStuckError
from ..loop.requests import parse_pause_request, parse_run_limits
from ..temporal.errors import build_closed_error
from ..temporal.workflow_tasks import find_failing_task
from ..types.interface import Status
from .audit import audit_steering
from .follow import WorkflowBehind, read_event_log_state, retry_while_behind
from .handles import RunHandle
from .messages import is_end_stored, reopen_run, wait_for_closed_status
from .visibility import build_closed_status

_CHILD_START_SECONDS = 2.0
"""Seconds in which a subagent in progress begins; after that it counts as one that waits for its parent to be
resumed."""
_CHILD_RETRY_SECONDS = 0.1


async def pause_run(run: RunHandle, *, reason: str | None, children: bool, by: str) -> None:
    """See :meth:`perdure.client.run.Run.pause`."""
    request = {"by": by, "reason": reason}
    parse_pause_request(request)
    async with audit_steering(run.client, "pause", run.id, by=by, detail=reason):
        with run.temporal_errors():
            await run.handle.signal("pause", request)
    if children:  # none can begin any more
        await _for_each_child(run, lambda child: pause_run(child, reason=reason, children=True, by=by))


async def resume_run(
    run: RunHandle,
    *,
    limits: Mapping[str, Any] | None,
    children: bool,
    by: str,
    reopen: bool = True,
    from_store: bool = False,
) -> None:
    """See :meth:`perdure.client.run.Run.resume`. Without ``reopen``, a run that has ended is left as it is."""
    raised = parse_run_limits(limits).model_dump(mode="json", exclude_none=True) if limits else {}
    asked = raised | ({"from_store": True} if from_store else {})
    async with audit_steering(run.client, "resume", run.id, by=by, detail=json.dumps(asked) if asked else None):
        override = {"limits": raised} if raised else {}
        is_open = await _resume_run_itself(run, override, by=by, reopen=reopen, from_store=from_store)
    if children and is_open:  # of a subagent that has ended, the parent has the outcome
        await _for_each_child(run, lambda child: resume_run(child, limits=None, children=True, by=by, reopen=False))


async def _resume_run_itself(
    run: RunHandle, override: dict[str, Any], *, by: str, reopen: bool, from_store: bool
) -> bool:
    """Resume the run without its subagents; return whether it is the same execution that goes on."""
    closed = await wait_for_closed_status(run)
    if from_store:
        run.handle = await reopen_run(run, override, by=by, lost=await _describe_lost(run, is_open=closed is None))
        return False
    if closed is not None and not reopen:
        return False
    if closed is not None and closed.state == "completed":
        raise RunClosedError(f"run {run.id!r} has completed", hint="Send it a message, and it continues.")
    if closed is not None:
        run.handle = await reopen_run(run, override, by=by)
        return False
    if (failing := await find_failing_task(run.client.temporal, await run.describe())) is not None:
        raise RunStuckError(f"run {run.id!r} is not paused: {failing}", hint=failing.way_out)
    await wait_for_pause(run)
    with run.temporal_errors():
        await run.handle.signal("resume", {**override, "by": by})
    return True


async def cancel_run(run: RunHandle, *, by: str) -> None:
    """See :meth:`perdure.client.run.Run.cancel`."""
    async with audit_steering(run.client, "cancel", run.id, by=by):
        # Temporal accepts the cancellation of a closed run without an error.
        if build_closed_status(await run.describe()) is not None:
            raise build_closed_error(run.id)
        # The handle may be of an execution that has failed since, while another client has reopened the run.
        latest = run.client.temporal.get_workflow_handle(run.id)
        with run.temporal_errors():
            await latest.cancel(reason=f"by {by}")


async def terminate_run(run: RunHandle, reason: str | None, *, by: str) -> None:
    """See :meth:`perdure.client.run.Run.terminate`."""
    text = f"by {by}{f': {reason}' if reason else ''}"
    async with audit_steering(run.client, "terminate", run.id, by=by, detail=reason):
        with run.temporal_errors():
            await run.client.temporal.get_workflow_handle(run.id).terminate(reason=text)
    if run.has_store:  # no worker records the end; who reads the run's events next does
        with suppress(PerdureError):
            store = await run.client.store()
            failures = await store.list_run_failures([run.id], held_up=False)
            for context_id in {call.context_id for call in failures.get(run.id, ())}:
                await store.remove_failing_calls(context_id)


async def _describe_lost(run: RunHandle, *, is_open: bool) -> WorkflowExecutionDescription:
    """Describe the execution of ``run`` of which the store lacks something. Raises ``InvalidInputError`` if it does
    not, ``TranscriptUnavailableError`` without a store."""
    await run.client.store()
    execution = await run.describe()
    if await is_end_stored(run, execution) and not (is_open and (await run.status(decided=False)).state == "paused"):
        raise InvalidInputError(
            f"the store has the end of run {run.id!r}", hint="Nothing of it is lost: resume it without from_store."
        )
    return execution


async def wait_for_pause(run: RunHandle) -> None:
    """Wait until the workflow of ``run`` has the pause that its events show, where a worker answers."""

    async def check_pause() -> None:
        if not (paused_at := (await read_event_log_state(run, run.id)).paused_at):
            return
        status = await run.status(decided=False)
        running_since = status.since if status.state in ("running", "held_up") else None
        if running_since and datetime.fromisoformat(paused_at) >= datetime.fromisoformat(running_since):
            raise WorkflowBehind(PerdureError("the workflow does not have its pause yet"))

    with suppress(PerdureError):  # without a worker, the signal arrives after the pause anyway
        await retry_while_behind(check_pause)


async def _for_each_child(run: RunHandle, act: Callable[[RunHandle], Awaitable[None]]) -> None:
    """Call ``act`` with each subagent in progress. Leaves out those that have ended, and those that do not begin while
    ``run`` is paused. Raises ``NoWorkerError``: without a worker it is not known which are in progress."""
    try:
        status = Status.model_validate(await run.ask_workflow("status"))
    except RunClosedError:  # and its subagents with it
        return
    ids = [call.context_id for call in status.calls if call.context_id is not None]
    ids += [row.context_id for row in status.background if row.state in ("starting", "running")]
    deadline = asyncio.get_running_loop().time() + _CHILD_START_SECONDS

    async def act_on(id: str) -> None:
        while True:
            try:
                with suppress(RunClosedError):
                    await act(run.client.run(id))
                return
            except RunNotFoundError:
                if asyncio.get_running_loop().time() > deadline:
                    return
            await asyncio.sleep(_CHILD_RETRY_SECONDS)

    await asyncio.gather(*map(act_on, dict.fromkeys(ids)))
