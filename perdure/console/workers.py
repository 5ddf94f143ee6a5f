"""Workers and task queues: who polls, what waits, which versions get tasks, which runs cannot go on, and what to do.

The page is looked at when something is wrong, so it waits for no answer of Temporal longer than a few seconds: what is
not answered is a line that says so.
"""

from __future__ import annotations

import asyncio
import json
import shlex
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Literal

from starlette.responses import Response
from temporalio.client import WorkflowExecution

from ..client.pages import gather_bounded
from ..client.queues import (
    ANSWER_SECONDS,
    FailingRun,
    QueueStatus,
    Silence,
    ask,
    describe_queue,
    find_failing_runs,
    list_deployments,
    list_flagged_executions,
    list_open_executions,
)
from ..client.run_states import build_held_up
from ..client.visibility import attribute_of
from ..errors import PerdureError, StoreError
from ..ports.failures import FailedAttempts, FailureFilter
from ..ports.times import timestamp
from ..types.interface import AGENT_ATTRIBUTE, HeldUp
from ..web.lists import read_visible_agents
from ..web.problems import ForbiddenError
from .agents import sees_all_runs
from .inbox import count_pending
from .pages import Page, PageRoute
from .texts import format_count, format_duration

MAX_QUEUES = 12
"""Task queues of the page."""
_LISTED_RUNS = 200
"""The newest open runs, by which task queues are found."""
_CHECKED_RUNS, _FLAGGED_RUNS = 25, 50
"""The newest open runs that are checked for a failing task on every look, and most of those that Temporal flags."""
MAX_CHECKED_RUNS = 1000
"""Runs that a thorough look checks, as `perdure doctor` does."""
_THOROUGH_SECONDS, _LIST_SECONDS = 12.0, 4.0
"""Longest time of a thorough look, and of the list before it."""
_QUEUE_CHARS = 1000
FAILURE_HOURS = 24
"""Hours of which the page shows failed attempts."""
_SHOWN_CALLS, _SHOWN_CAUSES = 20, 20
_LATE_SECONDS = {"workflow": 5.0, "activity": 30.0}
"""Age of the oldest task in a backlog from which more workers are needed."""
_AGENTS_NAMED = 6
_NEW_RUNS_WAIT = "runs that start there wait"


@dataclass(frozen=True)
class Fault:
    """Something that an operator should see to."""

    tone: Literal["bad", "warn"]
    text: str
    hint: str = ""
    command: str = ""


@dataclass(frozen=True)
class FailingRunView:
    """A run that cannot go on, with its agent."""

    run: FailingRun
    agent: str


@dataclass(frozen=True)
class Runs:
    """The runs that cannot go on, and how many were looked at."""

    failing: Sequence[FailingRunView] = ()
    checked: int = 0
    is_flagged: bool = False
    """Whether the server flags runs whose tasks fail, so that older ones are found, too."""
    silence: str | None = None


@dataclass(frozen=True)
class Outages:
    """What fails at present, and has failed lately."""

    held_up: Sequence[HeldUp] = ()
    """The calls that hold runs up, those that have failed for longest first."""
    runs: int = 0
    """Runs at the top that are held up."""
    failures: Sequence[FailedAttempts] = ()
    """Failed attempts of the last ``FAILURE_HOURS``, by cause, the most first."""
    silence: str | None = None


async def _read_outages(page: Page) -> Outages:
    """Read what fails. The store alone knows it; where it does not answer, the page says so."""
    since = timestamp(datetime.now(UTC) - timedelta(hours=FAILURE_HOURS))
    try:
        store = await page.call.client.store()
        calls, runs, failures = await asyncio.gather(
            store.list_failing_calls(limit=_SHOWN_CALLS),
            store.count_held_up(),
            store.sum_failed_attempts(filter=FailureFilter(since), limit=_SHOWN_CAUSES),
        )
    except StoreError as error:
        return Outages(silence=error.message)
    return Outages([build_held_up(call) for call in calls], runs, failures)


async def show_workers(page: Page) -> Response:
    """Show the task queues of open runs and agents, or the one that the address names."""
    if not sees_all_runs(page.call.caller) or page.call.caller.agents is not None:
        raise ForbiddenError(
            "Task queues have runs of every tenant and agent, so this page is for those who may see all of them.",
            hint="A token without --tenant, --agent and --session sees it.",
        )
    given = page.request.query_params
    named, is_thorough = given.get("queue", "").strip()[:_QUEUE_CHARS], given.get("check") == "all"
    client = page.call.client
    limit = MAX_CHECKED_RUNS if is_thorough else _LISTED_RUNS
    listed, flagged, deployments, tool_queues, count, outages = await asyncio.gather(
        ask(list_open_executions(client, limit), seconds=_LIST_SECONDS if is_thorough else ANSWER_SECONDS),
        ask(list_flagged_executions(client, _FLAGGED_RUNS)),
        ask(list_deployments(client)),
        _list_tool_queues(page),
        count_pending(page),
        _read_outages(page),
    )
    if isinstance(listed, Silence):
        names = [named or client.task_queue]
        queues, runs = [QueueStatus(name, silence=listed.reason) for name in names], Runs(silence=listed.reason)
    else:
        found = dict.fromkeys([client.task_queue, *(run.task_queue for run in listed), *tool_queues])
        names = [named] if named else list(found)
        queues, runs = await asyncio.gather(
            gather_bounded(lambda name: describe_queue(client, name), names[:MAX_QUEUES]),
            _find_failing(page, listed if is_thorough else listed[:_CHECKED_RUNS], flagged, is_thorough=is_thorough),
        )
        queues = [replace(queue, agents=_name_agents(queue.name, listed)) for queue in queues]
    needs = dict.fromkeys(tool_queues, "calls of tools that name it wait") | {client.task_queue: _NEW_RUNS_WAIT}
    faults = [fault for queue in queues for fault in find_faults(queue, needs.get(queue.name))]
    return page.render(
        "workers.html",
        queues=queues,
        more=max(len(names) - MAX_QUEUES, 0),
        named=named,
        faults=sorted(faults, key=lambda fault: fault.tone != "bad"),
        runs=runs,
        outages=outages,
        failure_hours=FAILURE_HOURS,
        is_thorough=is_thorough,
        deployments=deployments if not isinstance(deployments, Silence) else (),
        deployments_silence=deployments.reason if isinstance(deployments, Silence) else None,
        count=count,
        own_queue=client.task_queue,
        thorough=MAX_CHECKED_RUNS,
        now=datetime.now(UTC),
    )


async def _list_tool_queues(page: Page) -> list[str]:
    """List the task queues that tools of recorded agents name."""
    queues = dict[str, None]()
    for rows in (await read_visible_agents(page.call)).values():
        try:
            tools = json.loads(rows[0].body).get("tools", ())
            queues |= {tool["task_queue"]: None for tool in tools if isinstance(tool.get("task_queue"), str)}
        except (ValueError, RecursionError, AttributeError, TypeError):  # written by another version
            continue
    return list(queues)


def _name_agents(queue: str, runs: Iterable[WorkflowExecution]) -> tuple[str, ...]:
    names = (attribute_of(run, AGENT_ATTRIBUTE) for run in runs if run.task_queue == queue)
    return tuple(dict.fromkeys(str(name) for name in names if name))[:_AGENTS_NAMED]


# ---
# Runs that cannot go on.


async def _find_failing(
    page: Page, newest: Sequence[WorkflowExecution], flagged: list[WorkflowExecution] | Silence, *, is_thorough: bool
) -> Runs:
    candidates = {run.id: run for run in newest}
    is_flagged = not isinstance(flagged, Silence)
    # What is flagged comes last: its attributes say more than those of a list that was made before.
    candidates |= {} if isinstance(flagged, Silence) else {run.id: run for run in flagged}
    question = find_failing_runs(page.call.client, candidates.values())
    failing = await (ask(question, seconds=_THOROUGH_SECONDS) if is_thorough else ask(question))
    if isinstance(failing, Silence):
        return Runs(is_flagged=is_flagged, silence=failing.reason)
    views = await gather_bounded(lambda run: _build_failing_view(page, run), failing)
    return Runs([view for view in views if view is not None], len(newest), is_flagged)


async def _build_failing_view(page: Page, run: FailingRun) -> FailingRunView | None:
    """Name the agent of a run; None for a run that the visitor may not see."""
    try:
        resource = await ask(page.call.web.find_session(run.id))
    except PerdureError:
        return None
    if isinstance(resource, Silence) or not await page.call.may("read", resource):
        return None
    return FailingRunView(run, resource.agent or "")


# ---
# What an operator should see to.


def find_faults(queue: QueueStatus, need: str | None) -> Iterator[Fault]:
    """Yield what is wrong with a task queue. ``need``: what waits without workers, also while no run is open there."""
    if queue.silence is not None:
        return
    live, runs = queue.live, queue.open_runs or 0
    start = f"perdure worker FILE --task-queue {shlex.quote(queue.name)}"
    if not live:
        if runs:
            stand = f"{format_count(runs)} open {'run stands' if runs == 1 else 'runs stand'} still."
            yield Fault("bad", f"No worker polls {queue.name}: {stand}", "Start one:", start)
        elif need is not None:
            yield Fault("warn", f"No worker polls {queue.name}: {need}.", "Start one:", start)
        return
    unrouted = list(_find_version_faults(queue)) if runs or any(worker.workflow_at for worker in live) else []
    yield from unrouted
    if all(worker.activity_at is None or not replace(worker, workflow_at=None).is_live for worker in live):
        yield Fault(
            "warn",
            f"No worker of {queue.name} has polled for activities, which are model and tool calls, lately.",
            "All their slots may be in use, or they take workflow tasks alone.",
        )
    for kind, backlog in (("workflow", queue.workflow_backlog), ("activity", queue.activity_backlog)):
        # Where tasks go to a version without workers, more workers of another one are no help.
        if backlog is not None and backlog.count and backlog.seconds > _LATE_SECONDS[kind] and not unrouted:
            what = "workflow task" if kind == "workflow" else "model or tool call"
            number = f"1 {what} waits" if backlog.count == 1 else f"{format_count(backlog.count)} {what}s wait"
            text = f"{number} in {queue.name}, the oldest for {format_duration(backlog.seconds)}."
            yield Fault("warn", text, "Start more workers:", start)


def _find_version_faults(queue: QueueStatus) -> Iterator[Fault]:
    """Versions to which Temporal sends tasks, and that no worker has."""
    others = sorted({worker.version for worker in queue.live})
    for version in queue.unserved_versions:
        wanted = f"of version {version}" if version else "without a version"
        have = " and ".join(f"of version {other}" if other else "without a version" for other in others)
        text = f"Temporal sends runs of {queue.name} to workers {wanted}, and those that poll are {have}."
        name, _, build_id = (others[-1] or version).partition(".")
        target = f"--build-id {shlex.quote(build_id)}" if others[-1] else "--unversioned"
        command = f"temporal worker deployment set-current-version --deployment-name {shlex.quote(name)} {target}"
        yield Fault("bad", text, "Start such a worker, or have Temporal send them to these:", command)


PAGES = (PageRoute("GET", "/workers", show_workers, "workers"),)
