"""Replays stored workflow histories to check, before a deploy, that this version can continue runs of earlier ones.

Also reads and writes history files and fetches histories from a server.
"""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterable, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

from temporalio.client import WorkflowExecution, WorkflowHistory
from temporalio.converter import DataConverter
from temporalio.service import RPCError, RPCStatusCode
from temporalio.worker import Replayer

from ..calls.agents import Agents
from ..client.client import Client
from ..errors import LIST_HINT, InvalidInputError, PerdureError
from ..loop.lifecycle import STATE_KEY
from ..temporal.errors import translate_rpc_error, translate_service_error
from ..types.interface import WAITING_MEMO, WORKFLOW_TYPE
from ..workflows import AgentWorkflow
from ..workflows.bulk_action import BulkActionWorkflow
from ..workflows.webhook import WebhookWorkflow

# ---
# Histories to replay: from files, and from a server with all executions of a run.


_OMITTED_HISTORY_FIELDS = ("stackTrace", "identity", "workerVersion", "meteringMetadata")
"""Fields omitted from files: those that replay does not use, and those that name machines. ``sdkMetadata`` stays: its
flags enable the SDK's checks."""
_EXPORT_HINT = "`temporal workflow show -w ID -o json`, Temporal's UI or `perdure replay --save` write one."


def read_histories(path: Path) -> dict[str, WorkflowHistory]:
    """Read the histories of a file, or of all ``*.json`` below a folder, by their paths. Raises
    ``InvalidInputError``."""
    files = sorted(path.rglob("*.json")) if path.is_dir() else [path]
    if not files:
        raise InvalidInputError(f"no history (*.json) in {path}", hint=_EXPORT_HINT)
    return {str(file): _read_history_file(file) for file in files}


def _read_history_file(file: Path) -> WorkflowHistory:
    try:
        body = file.read_text()
        started = json.loads(body)["events"][0]["workflowExecutionStartedEventAttributes"]
        return WorkflowHistory.from_json(started.get("workflowId", file.stem), body)
    except OSError as error:
        raise InvalidInputError(f"the history {file} cannot be read: {error.strerror}") from None
    except Exception as error:  # JSON, its shape, or Temporal's parser of it
        raise InvalidInputError(
            f"{file} is not a workflow history: {type(error).__name__}: {error}", hint=_EXPORT_HINT
        ) from None


async def fetch_run_histories(client: Client, id: str) -> dict[str, WorkflowHistory]:
    """Fetch all executions of a run that the server still has, the oldest first: continued as new, resumed, reopened.

    Raises ``RunNotFoundError``, ``ServerUnreachableError``.
    """
    temporal = client.temporal
    quoted = id.replace("\\", "\\\\").replace("'", "\\'")
    found: dict[str, WorkflowHistory] = {}
    try:
        pending: list[str] = [(await temporal.get_workflow_handle(id).describe()).run_id]
        pending += [seen.run_id async for seen in temporal.list_workflows(f"WorkflowId = '{quoted}'")]
        while pending:
            run_id = pending.pop()
            if run_id not in found and (history := await _fetch_execution_history(client, id, run_id)) is not None:
                found[run_id] = history
                # Visibility may lag behind; what an execution continues is in its own first event.
                before = history.events[0].workflow_execution_started_event_attributes.continued_execution_run_id
                pending += [before] if before else []
    except RPCError as error:
        raise translate_rpc_error(temporal, id, error) from error
    oldest = sorted(found.items(), key=lambda one: one[1].events[0].event_time.ToNanoseconds())
    if len(oldest) == 1:
        return {id: oldest[0][1]}
    return {f"{id} (execution {number})": history for number, (_, history) in enumerate(oldest, 1)}


async def _fetch_execution_history(client: Client, id: str, run_id: str) -> WorkflowHistory | None:
    try:
        return await client.temporal.get_workflow_handle(id, run_id=run_id).fetch_history()
    except RPCError as error:
        if error.status == RPCStatusCode.NOT_FOUND:  # past its retention
            return None
        raise


async def list_run_ids(client: Client, query: str) -> list[str]:
    """List the ids of the runs that match a Temporal query, the newest first. Raises ``InvalidInputError`` for an
    invalid query."""
    ids: dict[str, None] = {}
    try:
        async for seen in client.temporal.list_workflows(f"WorkflowType = '{WORKFLOW_TYPE}' AND ({query})"):
            ids[seen.id] = None
    except RPCError as error:
        if error.status == RPCStatusCode.INVALID_ARGUMENT:
            raise InvalidInputError(f"the query {query!r}: {error.message}") from error
        raise translate_rpc_error(client.temporal, query, error) from error
    return list(ids)


@dataclass(frozen=True, slots=True)
class OpenRun:
    """An open run, and what it needs of the workers that take it over."""

    id: str
    run_id: str
    agent: str
    """Empty if the run's memo does not have it: a client other than perdure's has started the run."""
    tools: tuple[str, ...] = ()
    """Tools of its calls that wait for a decision or an answer, as far as its memo has them."""


def build_open_query(task_queue: str | None) -> str:
    """Build the query for all open runs of a task queue, or of the namespace."""
    quoted = (task_queue or "").replace("\\", "\\\\").replace("'", "\\'")
    return "ExecutionStatus = 'Running'" + (f" AND TaskQueue = '{quoted}'" if task_queue else "")


async def list_open_runs(client: Client, task_queue: str | None = None) -> AsyncGenerator[OpenRun]:
    """List the open runs of ``task_queue``, or of the namespace, the newest first."""
    query = f"WorkflowType = '{WORKFLOW_TYPE}' AND {build_open_query(task_queue)}"
    async for seen in client.temporal.list_workflows(query):
        memo = await _read_memo(seen)
        waiting = memo.get(WAITING_MEMO)
        names = [call.get("tool") for call in waiting if isinstance(call, dict)] if isinstance(waiting, list) else []
        tools = tuple(dict.fromkeys(name for name in names if isinstance(name, str)))
        yield OpenRun(seen.id, seen.run_id, str(memo.get("agent", "")), tools)


async def _read_memo(execution: WorkflowExecution) -> Mapping[str, Any]:
    try:
        return await execution.memo()
    except Exception:  # written with another codec
        return {}


async def fetch_open_histories(
    client: Client, runs: AsyncIterable[OpenRun]
) -> AsyncGenerator[tuple[OpenRun, WorkflowHistory]]:
    """Fetch the history of the present execution of each run: what a worker loads that takes the run over.

    ``HISTORIES_AHEAD`` at a time, so that no more are in memory however many runs are open. Leaves out runs that
    Temporal has deleted since.
    """
    pending: deque[tuple[OpenRun, asyncio.Task[WorkflowHistory | None]]] = deque()

    async def take_first() -> tuple[OpenRun, WorkflowHistory | None]:
        run, task = pending.popleft()
        return run, await task

    try:
        async for run in runs:
            task = asyncio.create_task(_fetch_execution_history(client, run.id, run.run_id))
            pending.append((run, task))
            if len(pending) >= HISTORIES_AHEAD:
                first, history = await take_first()
                if history is not None:
                    yield first, history
        while pending:
            first, history = await take_first()
            if history is not None:
                yield first, history
    finally:
        for _, task in pending:
            task.cancel()


HISTORIES_AHEAD = 8
"""Histories that are fetched at a time, while those before them are replayed."""


def format_history_json(history: WorkflowHistory) -> str:
    """Format a history as JSON, one event a line, so that a diff of two is readable."""
    events = json.loads(history.to_json())["events"]
    lines = ",\n".join(json.dumps(_strip_omitted_fields(event), separators=(",", ":")) for event in events)
    return f'{{"events":[\n{lines}\n]}}\n'


def _strip_omitted_fields(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _strip_omitted_fields(inner) for key, inner in value.items() if key not in _OMITTED_HISTORY_FIELDS}
    return [_strip_omitted_fields(inner) for inner in value] if isinstance(value, list) else value


def save_histories(folder: Path, id: str, histories: Iterable[WorkflowHistory]) -> list[Path]:
    """Write ``<id>.json``, or ``<id>.<n>.json`` of several executions, n from 1. Raises ``InvalidInputError``."""
    every = list(histories)
    name = quote(id, safe=" ")
    written = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for number, history in enumerate(every, 1):
            file = folder / (f"{name}.{number}.json" if len(every) > 1 else f"{name}.json")
            file.write_text(format_history_json(history))
            written.append(file)
    except OSError as error:
        raise InvalidInputError(f"histories cannot be written to {folder}: {error.strerror}") from None
    return written


@dataclass(frozen=True, slots=True)
class Replayed:
    """The replay result of one history."""

    name: str
    """Its file, or the id of its run."""
    events: int
    error: str | None = None
    """Why it does not replay."""
    missing: str | None = None
    """What the run needs and the agents that it was compared with do not have (``perdure replay --worker``)."""

    @property
    def is_ok(self) -> bool:
        """Whether it replays, and nothing that it needs is missing."""
        return self.error is None and self.missing is None


@dataclass(frozen=True, slots=True)
class ReplayReport:
    """The replay results of all histories; ``str(report)`` is for people."""

    histories: tuple[Replayed, ...]

    @property
    def failed(self) -> tuple[Replayed, ...]:
        """Those that do not replay."""
        return tuple(one for one in self.histories if one.error is not None)

    @property
    def unserved(self) -> tuple[Replayed, ...]:
        """Those of runs that need an agent or a tool which is missing."""
        return tuple(one for one in self.histories if one.missing is not None)

    def __str__(self) -> str:
        return "\n".join(self.list_lines())

    def list_lines(self, *, ok: bool = True) -> list[str]:
        """List the results and their sum, as lines. Without ``ok`` those that are not as they should be alone."""
        lines = [f"ok      {one.name} ({one.events} events)" for one in self.histories if ok and one.is_ok]
        lines += [f"MISSING {one.name}\n        {one.missing}" for one in self.unserved]
        lines += [f"FAILED  {one.name} ({one.events} events)\n        {one.error}" for one in self.failed]
        failed, unserved, total = len(self.failed), len(self.unserved), len(self.histories)
        said = f"all {total}" if total > 1 else "the one history"
        if not total:
            lines.append("no open runs: nothing to replay")
        if unserved:
            lines.append(f"{unserved} of {total} need what the workers will not have: their next call fails")
        if failed:
            lines.append(
                f"{failed} of {total} do not replay: such runs get stuck when workers of this version take them over"
            )
        elif not unserved and total:
            lines.append(f"{said} replay{'' if total > 1 else 's'}")
        return lines


class ReplayError(PerdureError):
    """A history does not replay. ``report`` has all results."""

    def __init__(self, report: ReplayReport) -> None:
        super().__init__(str(report), hint="Keep workers of the version that began these runs until they have ended.")
        self.report = report


async def replay(
    path: Path | str | None = None,
    *,
    client: Client | None = None,
    id: str | None = None,
    query: str | None = None,
    workflows: Sequence[type] = (),
    data_converter: DataConverter | None = None,
) -> ReplayReport:
    """Replay histories with the workflow of this version: those of a file or a folder (``path``), or of runs on the
    server of ``client``: the run ``id``, or all that a Temporal ``query`` finds (``"ExecutionStatus = 'Running'"``),
    each with all its executions.

    ``workflows`` are the application's own classes whose histories are among them. Encrypted histories need the
    ``data_converter`` that decrypts them; a client has its own.

    Raises ``ReplayError``, with the report, if one does not replay; ``InvalidInputError`` if there is nothing to
    replay: an empty check must not pass. ``RunNotFoundError``, ``ServerUnreachableError``.
    """
    histories = await _load_histories(path, client, id, query)
    converter = data_converter or (client.temporal.data_converter if client else DataConverter.default)
    report = await replay_histories(histories, workflows, converter)
    if report.failed:
        raise ReplayError(report)
    return report


async def replay_histories(
    histories: Mapping[str, WorkflowHistory],
    workflows: Sequence[type] = (),
    data_converter: DataConverter = DataConverter.default,
) -> ReplayReport:
    """Replay ``histories``, by their names, and return the report."""

    async def iterate() -> AsyncGenerator[tuple[str, WorkflowHistory]]:
        for named in histories.items():
            yield named

    return ReplayReport(tuple([one async for one in replay_each(iterate(), workflows, data_converter)]))


async def replay_each(
    histories: AsyncIterable[tuple[str, WorkflowHistory]],
    workflows: Sequence[type] = (),
    data_converter: DataConverter = DataConverter.default,
) -> AsyncGenerator[Replayed]:
    """Replay ``histories`` one after the other, by their names: each is taken when those before it are done."""
    replayer = Replayer(
        workflows=[AgentWorkflow, WebhookWorkflow, BulkActionWorkflow, *workflows],
        data_converter=data_converter,
        build_id="replay",
    )
    present = ""

    async def feed() -> AsyncGenerator[WorkflowHistory]:
        nonlocal present
        async for name, history in histories:
            present = name
            yield history

    async with replayer.workflow_replay_iterator(feed()) as results:
        async for result in results:
            failure = result.replay_failure
            error = None if failure is None else f"{type(failure).__name__}: {failure}"
            yield Replayed(present, len(result.history.events), error)


async def replay_open_runs(
    client: Client,
    *,
    task_queue: str | None = None,
    agents: Agents | None = None,
    report_progress: Callable[[int], object] = lambda _: None,
) -> ReplayReport:
    """Replay the present executions of all open runs of ``task_queue``, or of the namespace: the check before a deploy.

    With ``agents``, also compares the runs with them. ``report_progress`` is called with the number of runs after each.
    Raises ``ServerUnreachableError``.
    """
    needs: dict[str, str | None] = {}

    async def name_histories() -> AsyncGenerator[tuple[str, WorkflowHistory]]:
        runs = list_open_runs(client, task_queue)
        async with aclosing(runs), aclosing(fetch_open_histories(client, runs)) as fetched:
            async for run, history in fetched:
                if agents is not None:
                    agent = run.agent or await _read_started_agent(client, history)
                    needs[run.id] = describe_missing(agents, replace(run, agent=agent))
                yield run.id, history

    results = []
    try:
        async for one in replay_each(name_histories(), data_converter=client.temporal.data_converter):
            results.append(replace(one, missing=needs.pop(one.name, None)))
            report_progress(len(results))
    except RPCError as error:
        raise translate_service_error(client.temporal, error) from error
    return ReplayReport(tuple(results))


async def _read_started_agent(client: Client, history: WorkflowHistory) -> str:
    """Read the agent's name from the input of an execution; "" if it has none: the run refuses such an input."""
    arguments = history.events[0].workflow_execution_started_event_attributes.input.payloads
    try:
        (raw,) = await client.temporal.data_converter.decode(arguments)
        return str(raw.get(STATE_KEY, raw)["agent"])
    except Exception:
        return ""


def describe_missing(agents: Agents, run: OpenRun) -> str | None:
    """Describe what ``run`` needs and ``agents`` do not have; None if they have it, as far as Temporal's list says.

    Tools of toolsets and of clients are known in a run alone, so an agent that has such lacks none.
    """
    if not run.agent:
        return None
    agent = agents.find(run.agent)
    if agent is None:
        return f"there is no agent {run.agent!r}: the run fails a minute after its next call"
    if agent.toolsets or agent.client_tools:
        return None
    missing = [name for name in run.tools if name not in agent.toolbox and name not in agents.tools]
    if not missing:
        return None
    return (
        f"agent {run.agent!r} has no tool {missing[0]!r}, and a call of it waits: the model is told that it is unknown"
    )


async def _load_histories(
    path: Path | str | None, client: Client | None, id: str | None, query: str | None
) -> dict[str, WorkflowHistory]:
    if sum(one is not None for one in (path, id, query)) != 1 or (path is None) != (client is not None):
        raise InvalidInputError(
            "replay() needs either a path, or a client with id or query",
            hint="replay(path), replay(client=client, id=…) or replay(client=client, query=…).",
        )
    if path is not None:
        return read_histories(Path(path))
    assert client is not None, "checked above"
    ids = [id] if id is not None else await list_run_ids(client, query or "")
    if not ids:
        raise InvalidInputError(f"no run matches {query!r}", hint=LIST_HINT)
    found: dict[str, WorkflowHistory] = {}
    for one in ids:
        found |= await fetch_run_histories(client, one)
    return found
