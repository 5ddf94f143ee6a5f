"""Lists runs: those that Temporal lists, those that only the store has, and those that are held up."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from datetime import UTC, datetime

from temporalio.client import WorkflowExecution
from temporalio.service import RPCError, RPCStatusCode

from ..errors import InvalidInputError
from ..ports.failures import FailingCall, FailingCursor
from ..temporal.errors import translate_service_error
from ..types.messages import clean_text
from ..types.run_states import OPEN_STATES
from .handles import ClientHandle
from .run_states import RunSummary, add_recorded_texts, refine_states
from .visibility import (
    IDS_PER_QUERY,
    INDEXED_STATES,
    OPEN,
    ROOTS_FILTER,
    RUNS_QUERY,
    add_recorded_labels,
    build_agent_filter,
    build_ids_query,
    build_label_filters,
    build_run_summary,
    find_other_namespaces,
    has_agent_and_status,
    has_labels,
    has_recorded_parent,
    list_executions,
    select_roots,
)

_FOREIGN_CHILDREN = 1000
"""Rows of runs without a recorded parent, beyond the limit of a list, of which Temporal may name another workflow."""
_QUERY_HINT = """Queries are Temporal's: "StartTime > '2026-01-31T00:00:00Z' AND PerdureAgent = 'support'"; \
https://docs.temporal.io/list-filter has all of it."""


async def list_runs(
    client: ClientHandle,
    *,
    agent: str | None = None,
    status: str | None = None,
    tenant: str | None = None,
    user: str | None = None,
    roots: bool = False,
    query: str | None = None,
    limit: int = 50,
) -> list[RunSummary]:
    """List runs, the newest first. An execution that continued as new is not a run of its own. See ``Client.list``.

    Raises ``InvalidInputError`` for a ``query`` that Temporal refuses, and for a ``status`` that needs search
    attributes that the namespace does not have.
    """
    if query is not None:
        await _check_query(client, query)
    if status == "held_up" and query is None and client.store_url is not None:
        return await _list_all_held_up(client, agent, tenant, user, roots=roots, limit=limit)
    summaries: dict[str, RunSummary] = {}
    seen_ids: set[str] = set()
    # Temporal lists all open runs before any closed one, and takes no other order.
    labels = {"tenant": tenant, "user": user}
    filters = [*build_label_filters(labels), *([ROOTS_FILTER] if roots else [])]
    for executions in _build_run_listings(client, agent, status, filters, query=query):
        matches = 0
        async for chunk in _read_chunks(client, executions, seen_ids, labels, roots=roots):
            for summary in await refine_states(client, chunk):
                if matches < limit and has_agent_and_status(summary, agent, status) and has_labels(summary, labels):
                    summaries[summary.id] = summary
                    matches += 1
            if matches >= limit:
                break
    asks_temporal_alone = query is not None or status == OPEN or status in OPEN_STATES
    if client.store_url is not None and len(summaries) < limit and not asks_temporal_alone:
        most = limit + len(seen_ids) + _FOREIGN_CHILDREN if roots else limit
        store = await client.store()
        rows = await store.list_runs(agent=agent, status=status, tenant=tenant, user=user, roots=roots, limit=most)
        rows = [row for row in rows if row.context_id not in seen_ids]  # a terminated run does not write to the store
        if roots:
            rows = await select_roots(client, rows, limit)
        elsewhere = await find_other_namespaces(client.temporal, rows)
        for row in rows:
            started = datetime.fromisoformat(row.created_at)
            if row.context_id not in elsewhere:
                summaries[row.context_id] = RunSummary(
                    row.context_id, row.agent, row.status, started, tenant=row.tenant, user=row.user
                )
    newest = sorted(summaries.values(), key=lambda run: run.started or datetime.min.replace(tzinfo=UTC), reverse=True)
    return await add_recorded_texts(client, newest[:limit])


async def _read_chunks(
    client: ClientHandle,
    executions: AsyncGenerator[WorkflowExecution],
    seen_ids: set[str],
    labels: Mapping[str, str | None],
    *,
    roots: bool,
) -> AsyncGenerator[list[RunSummary]]:
    """Yield the runs of ``executions`` that are not in ``seen_ids``, to which they are added: many at once, whose
    states are read together."""
    chunk: list[RunSummary] = []
    async for execution in executions:
        if execution.id in seen_ids:
            continue
        seen_ids.add(execution.id)
        if roots and (execution.parent_id or await has_recorded_parent(client, execution.id)):
            continue
        summary = await build_run_summary(client, execution)
        if any(value is not None and getattr(summary, name) is None for name, value in labels.items()):
            summary = await add_recorded_labels(client, summary)
        chunk.append(summary)
        if len(chunk) == IDS_PER_QUERY:
            yield chunk
            chunk = []
    if chunk:
        yield chunk


def _build_run_listings(
    client: ClientHandle, agent: str | None, status: str | None, filters: Sequence[str], *, query: str | None
) -> list[AsyncGenerator[WorkflowExecution]]:
    ours = f"{RUNS_QUERY} AND ({query})" if query is not None else RUNS_QUERY
    if status in INDEXED_STATES:
        return [list_executions(client, f"{ours} AND ExecutionStatus = 'Running'", *filters, status=status)]
    if agent is not None:
        filters = (*filters, build_agent_filter(agent))
    which = ["= 'Running'"]
    if status != OPEN and status not in OPEN_STATES:
        which.append("!= 'Running' AND ExecutionStatus != 'ContinuedAsNew'")
    return [list_executions(client, f"{ours} AND ExecutionStatus {each}", *filters) for each in which]


async def _check_query(client: ClientHandle, query: str) -> None:
    """Raise ``InvalidInputError`` for a query that Temporal refuses.

    It is sent alone: among perdure's filters its error could be taken for that of a missing search attribute.
    """
    if not query.strip() or clean_text(query) != query:
        raise InvalidInputError(
            f"the query {query!r:.100} is empty or has characters that no query has", hint=_QUERY_HINT
        )
    # Among the filters "a) OR (b" would find workflows that are not runs, and ORDER BY is not possible.
    for text in (query, f"{RUNS_QUERY} AND ({query})"):
        try:
            await anext(client.temporal.list_workflows(text, page_size=1, limit=1), None)
        except RPCError as error:
            if error.status is RPCStatusCode.INVALID_ARGUMENT:
                raise InvalidInputError(f"Temporal refuses the query: {error.message}", hint=_QUERY_HINT) from error
            raise translate_service_error(client.temporal, error) from error


# ---
# Runs that are held up.


async def _list_all_held_up(
    client: ClientHandle, agent: str | None, tenant: str | None, user: str | None, *, roots: bool, limit: int
) -> list[RunSummary]:
    filters = {"agent": agent, "tenant": tenant, "user": user}
    found: list[RunSummary] = []
    after: FailingCursor | None = None
    while len(found) < limit:
        runs, after = await list_held_up_runs(client, after, IDS_PER_QUERY, roots=roots, filters=filters)
        found += runs
        if after is None:
            break
    return found[:limit]


async def list_held_up_runs(
    client: ClientHandle, after: FailingCursor | None, limit: int, *, roots: bool, filters: Mapping[str, str | None]
) -> tuple[list[RunSummary], FailingCursor | None]:
    """List runs that are held up, those that have been for longest first, from the call ``after`` on: of at most
    ``limit`` calls. Return the place of the last call, None at the end.

    A run with several such calls is listed with the first of them, and one that has ended since with none.
    """
    store = await client.store()
    calls = await store.list_failing_calls(after=after, limit=limit)
    found = {name: call for call in reversed(calls) for name in _list_runs_of_call(call, roots=roots)}
    failures = await store.list_run_failures(list(found))
    first = [name for name, call in found.items() if failures.get(name, ())[:1] == (call,)]
    query = f"{build_ids_query(first)} AND ExecutionStatus = 'Running'"
    executions: list[WorkflowExecution] = []
    if first:
        executions = [execution async for execution in list_executions(client, query)]
    runs = {execution.id: await build_run_summary(client, execution) for execution in executions}
    refined = await refine_states(client, [runs[name] for name in reversed(first) if name in runs])
    shown = [
        run
        for run in refined
        if run.status == "held_up" and all(value in (None, getattr(run, name)) for name, value in filters.items())
    ]
    return shown, calls[-1].get_cursor() if len(calls) == limit else None


def _list_runs_of_call(call: FailingCall, *, roots: bool) -> Iterable[str]:
    """List the runs that a call holds up: its own, and those above it."""
    if roots:
        return (call.root,)
    below = call.context_id.removeprefix(call.root).split("/")[1:]
    return [call.root, *("/".join((call.root, *below[:depth])) for depth in range(1, len(below) + 1))]
