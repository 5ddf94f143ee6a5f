"""Runs as Temporal's visibility lists them: by their search attributes, where the namespace has them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

from temporalio.service import RPCError

from .errors import InvalidInputError
from .search_attributes import refuses
from .types.indexing import AGENT, PENDING, STATUS

if TYPE_CHECKING:
    from temporalio.client import WorkflowExecution

    from .client import Client

MAY_WAIT = f"({PENDING} > 0 OR {PENDING} IS NULL)"
"""A run that has not said how much waits in it may be the one that began to wait a moment ago; or no worker of it can
say. Such a run is asked."""


def of_agent(agent: str) -> str:
    """Runs of ``agent``, and those that have not said whose they are."""
    quoted = agent.replace("\\", "\\\\").replace("'", "\\'")
    return f"({AGENT} = '{quoted}' OR {AGENT} IS NULL)"


async def listed(client: Client, query: str, *narrower: str) -> AsyncIterator[WorkflowExecution]:
    """What ``query`` finds; of it what ``narrower`` lets through, where the namespace has the attributes in it."""
    found = _iterate(client, " AND ".join((query, *narrower)))
    try:
        first = await anext(found, None)
    except RPCError as error:
        if not narrower or not refuses(error):
            raise
        found = _iterate(client, query)
        first = await anext(found, None)
    if first is not None:
        yield first
        async for seen in found:
            yield seen


async def of_status(client: Client, query: str, status: str) -> AsyncIterator[WorkflowExecution]:
    """What ``query`` finds of runs with that ``PerdureStatus``. Raises ``InvalidInputError`` where there is none."""
    try:
        async for seen in _iterate(client, f"{query} AND {STATUS} = '{status}'"):
            yield seen
    except RPCError as error:
        if not refuses(error):
            raise
        raise InvalidInputError(
            f"the namespace has no search attribute {STATUS}, so it cannot tell which runs are {status}",
            hint="`perdure server setup` registers it. Without: `perdure approvals` asks every open run.",
        ) from None


def status_of(seen: WorkflowExecution) -> str | None:
    """The ``PerdureStatus`` of a run, where it has told it."""
    found = [pair.value for pair in seen.typed_search_attributes if pair.key.name == STATUS]
    return str(found[0]) if found else None


def agent_of(seen: WorkflowExecution) -> str:
    """The ``PerdureAgent`` of a run; "" where it has not told it."""
    found = [pair.value for pair in seen.typed_search_attributes if pair.key.name == AGENT]
    return str(found[0]) if found else ""


async def _iterate(client: Client, query: str) -> AsyncIterator[WorkflowExecution]:
    async for seen in client.temporal.list_workflows(query):
        yield seen
