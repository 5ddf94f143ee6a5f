"""Histories to replay: from files, and of runs that a server knows, every execution of them."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from urllib.parse import quote

from temporalio.client import WorkflowHistory
from temporalio.service import RPCError, RPCStatusCode

from ..client import Client
from ..errors import InvalidInputError
from ..translate import translated
from ..types.interface import WORKFLOW

_NOISE = ("stackTrace", "identity", "workerVersion", "meteringMetadata")
"""Left out of files: what replay does not look at, and what names machines. ``sdkMetadata`` stays: its flags switch the
SDK's checks on."""
_EXPORT = "`temporal workflow show -w ID -o json`, Temporal's UI or `perdure replay --save` make one."


def read_histories(path: Path) -> dict[str, WorkflowHistory]:
    """The histories of a file, or of all ``*.json`` below a folder, by their paths. Raises ``InvalidInputError``."""
    files = sorted(path.rglob("*.json")) if path.is_dir() else [path]
    if not files:
        raise InvalidInputError(f"there is no history (*.json) in {path}", hint=_EXPORT)
    return {str(file): _read(file) for file in files}


def _read(file: Path) -> WorkflowHistory:
    try:
        body = file.read_text()
        started = json.loads(body)["events"][0]["workflowExecutionStartedEventAttributes"]
        return WorkflowHistory.from_json(started.get("workflowId", file.stem), body)
    except OSError as error:
        raise InvalidInputError(f"the history {file} cannot be read: {error.strerror}") from None
    except Exception as error:  # JSON, its shape, or Temporal's parser of it
        raise InvalidInputError(
            f"{file} is no workflow history: {type(error).__name__}: {error}", hint=_EXPORT
        ) from None


async def histories_of_run(client: Client, id: str) -> dict[str, WorkflowHistory]:
    """All executions of a run that the server still has, the oldest first: continued as new, resumed, reopened.

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
            if run_id not in found and (history := await _fetch(client, id, run_id)) is not None:
                found[run_id] = history
                # Visibility may lag behind; what an execution continues is in its own first event.
                before = history.events[0].workflow_execution_started_event_attributes.continued_execution_run_id
                pending += [before] if before else []
    except RPCError as error:
        raise translated(temporal, id, error) from error
    oldest = sorted(found.items(), key=lambda one: one[1].events[0].event_time.ToNanoseconds())
    if len(oldest) == 1:
        return {id: oldest[0][1]}
    return {f"{id} (execution {number})": history for number, (_, history) in enumerate(oldest, 1)}


async def _fetch(client: Client, id: str, run_id: str) -> WorkflowHistory | None:
    try:
        return await client.temporal.get_workflow_handle(id, run_id=run_id).fetch_history()
    except RPCError as error:
        if error.status == RPCStatusCode.NOT_FOUND:  # past its retention
            return None
        raise


async def ids_of(client: Client, query: str) -> list[str]:
    """Ids of the runs that a Temporal query finds, the newest first. Raises ``InvalidInputError`` for a wrong query."""
    ids: dict[str, None] = {}
    try:
        async for seen in client.temporal.list_workflows(f"WorkflowType = '{WORKFLOW}' AND ({query})"):
            ids[seen.id] = None
    except RPCError as error:
        if error.status == RPCStatusCode.INVALID_ARGUMENT:
            raise InvalidInputError(f"the query {query!r}: {error.message}") from error
        raise translated(client.temporal, query, error) from error
    return list(ids)


def history_json(history: WorkflowHistory) -> str:
    """Its JSON, an event a line, so that a diff of two can be read."""
    events = json.loads(history.to_json())["events"]
    lines = ",\n".join(json.dumps(_without_noise(event), separators=(",", ":")) for event in events)
    return f'{{"events":[\n{lines}\n]}}\n'


def _without_noise(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_noise(inner) for key, inner in value.items() if key not in _NOISE}
    return [_without_noise(inner) for inner in value] if isinstance(value, list) else value


def save_histories(folder: Path, id: str, histories: Iterable[WorkflowHistory]) -> list[Path]:
    """Write ``<id>.json``, or ``<id>.<n>.json`` of several executions, n from 1. Raises ``InvalidInputError``."""
    every = list(histories)
    name = quote(id, safe=" ")
    written = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for number, history in enumerate(every, 1):
            file = folder / (f"{name}.{number}.json" if len(every) > 1 else f"{name}.json")
            file.write_text(history_json(history))
            written.append(file)
    except OSError as error:
        raise InvalidInputError(f"histories cannot be written to {folder}: {error.strerror}") from None
    return written
