"""Links out of the console, to Temporal's UI and the log lines of workers, and the attempts of a run, which have them.

Attempts are Temporal's word: those of calls in progress, and the last one of each call in the newest part of the
history. They name workers, so only those see them who may see every run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import quote

from starlette.responses import Response
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.enums.v1 import PendingActivityState
from temporalio.api.history.v1 import HistoryEvent
from temporalio.api.workflow.v1 import PendingActivityInfo
from temporalio.api.workflowservice.v1 import GetWorkflowExecutionHistoryReverseRequest
from temporalio.client import WorkflowExecutionDescription
from temporalio.service import RPCError

from .. import _config as config
from ..client.handles import ClientHandle
from ..embedded.home import current_home
from ..embedded.record import read_record
from ..temporal.errors import translate_service_error
from ..types.messages import clean_text
from ..web.problems import ForbiddenError
from .agents import sees_all_runs
from .inbox import count_pending
from .pages import Page, PageRoute

_EVENTS = 200
"""The last events of a history that are read."""
_MARGIN = timedelta(minutes=1)
"""Time before and behind an attempt that a link to its log lines has."""
_ERROR_CHARS = 300


def find_temporal_ui(client: ClientHandle) -> str | None:
    """Return the address of Temporal's UI: ``PERDURE_TEMPORAL_UI``, else that of the server of this machine; None if
    neither is known. Raises ``RuntimeSetupError``."""
    if (configured := config.get_temporal_ui()) is not None:
        return configured
    record = read_record(current_home())
    address = client.temporal.service_client.config.target_host.replace("localhost", "127.0.0.1")
    return record.ui_url if record is not None and record.address == address else None


def link_temporal_ui(page: Page, id: str) -> str | None:
    """Return the address of a run in Temporal's UI, for those who may see every run."""
    if not may_look_behind(page):
        return None
    client = page.call.client
    ui = find_temporal_ui(client)
    namespace = quote(client.temporal.namespace, safe="")
    return None if ui is None else f"{ui}/namespaces/{namespace}/workflows/{quote(id, safe='')}"


def may_look_behind(page: Page) -> bool:
    """Whether the visitor may see workers and Temporal: they show the runs of every tenant and agent."""
    caller = page.call.caller
    return sees_all_runs(caller) and caller.agents is None


def describe_links(page: Page) -> dict[str, Any]:
    """Return what the page of a run says of its links out."""
    return {"has_attempts": may_look_behind(page), "temporal_ui": link_temporal_ui(page, page.call.params["id"])}


@dataclass(frozen=True)
class Attempt:
    """An attempt of an activity."""

    activity: str
    number: int
    worker: str
    execution: str
    """Temporal's run id."""
    started: datetime | None = None
    ended: datetime | None = None
    state: str = "in progress"
    error: str = ""
    log_url: str | None = None


def build_log_url(template: str, run_id: str, attempt: Attempt, now: datetime) -> str:
    """Return the address of the log lines of an attempt: each value is encoded for a URL."""
    first = (attempt.started or now) - _MARGIN
    last = min((attempt.ended or now) + _MARGIN, now + _MARGIN)
    values: Mapping[str, object] = {
        "run": run_id,
        "execution": attempt.execution,
        "activity": attempt.activity,
        "attempt": attempt.number,
        "worker": attempt.worker,
        "from": first.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        "until": last.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        "from_ms": int(first.timestamp() * 1000),
        "until_ms": int(last.timestamp() * 1000),
    }
    return template.format_map({name: quote(str(value), safe="") for name, value in values.items()})


async def show_attempts(page: Page) -> Response:
    """Show the attempts of a run, the newest first, each with its worker and its log lines."""
    if not may_look_behind(page):
        raise ForbiddenError(
            "Attempts name workers, which have runs of every tenant and agent, so this page is for those who may see"
            " all of them.", hint="A token without --tenant, --agent and --session sees it.",
        )  # fmt: skip
    run, template, now = page.call.run, config.get_log_url(), datetime.now(UTC)
    description = await run.describe()
    attempts = [*_list_pending(description), *await _list_recorded(page.call.client, description)]
    if template is not None:
        attempts = [replace(one, log_url=build_log_url(template, run.id, one, now)) for one in attempts]
    return page.render(
        "attempts.html",
        run_id=run.id,
        attempts=attempts,
        has_logs=template is not None,
        temporal_ui=link_temporal_ui(page, run.id),
        count=await count_pending(page),
    )


def _list_pending(description: WorkflowExecutionDescription) -> list[Attempt]:
    """List the attempts of activities in progress: the present one, or the last that has failed."""
    return [
        Attempt(
            clean_text(pending.activity_type.name),
            pending.attempt,
            clean_text(pending.last_worker_identity),
            description.run_id or "",
            _read_time(pending.last_started_time) if pending.HasField("last_started_time") else None,
            state=_describe_pending(pending),
            error=clean_text(pending.last_failure.message)[:_ERROR_CHARS] if pending.HasField("last_failure") else "",
        )
        for pending in description.raw_description.pending_activities
    ]


def _describe_pending(pending: PendingActivityInfo) -> str:
    if pending.state != PendingActivityState.PENDING_ACTIVITY_STATE_SCHEDULED:
        return "in progress"
    return "waits for its next attempt" if pending.HasField("last_failure") else "waits for a worker"


async def _list_recorded(client: ClientHandle, description: WorkflowExecutionDescription) -> list[Attempt]:
    """List the last attempts of activities that have ended, the newest first."""
    request = GetWorkflowExecutionHistoryReverseRequest(
        namespace=client.temporal.namespace,
        execution=WorkflowExecution(workflow_id=description.id, run_id=description.run_id),
        maximum_page_size=_EVENTS,
    )
    try:
        answer = await client.temporal.workflow_service.get_workflow_execution_history_reverse(request)
    except RPCError as error:
        raise translate_service_error(client.temporal, error) from error
    events = {event.event_id: event for event in answer.history.events}
    attempts = (_read_attempt(event, events, description.run_id or "") for event in answer.history.events)
    return [attempt for attempt in attempts if attempt is not None]


_ENDS = {
    "activity_task_completed_event_attributes": "completed",
    "activity_task_failed_event_attributes": "failed",
    "activity_task_timed_out_event_attributes": "timed out",
    "activity_task_canceled_event_attributes": "cancelled",
}


def _read_attempt(end: HistoryEvent, events: Mapping[int, HistoryEvent], execution: str) -> Attempt | None:
    """Return the attempt that an event ends; None for another event, and where its beginning was not read."""
    name = end.WhichOneof("attributes")
    if name not in _ENDS:
        return None
    ended = getattr(end, name)
    started, scheduled = events.get(ended.started_event_id), events.get(ended.scheduled_event_id)
    if started is None or scheduled is None:
        return None
    begin = started.activity_task_started_event_attributes
    failure = ended.failure.message if name.startswith(("activity_task_failed", "activity_task_timed")) else ""
    return Attempt(
        clean_text(scheduled.activity_task_scheduled_event_attributes.activity_type.name),
        begin.attempt,
        clean_text(begin.identity),
        execution,
        _read_time(started.event_time),
        _read_time(end.event_time),
        _ENDS[name],
        clean_text(failure)[:_ERROR_CHARS],
    )


def _read_time(at: Any) -> datetime:
    """Return a time of Temporal's messages."""
    moment: datetime = at.ToDatetime(UTC)
    return moment


PAGES = (PageRoute("GET", "/runs/{id:segment}/attempts", show_attempts, "attempts"),)
