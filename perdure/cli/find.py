"""Which run an id, or the beginning of one, means."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, TypeVar

from ..errors import InvalidInputError, RunNotFoundError
from .connection import Server, connected

if TYPE_CHECKING:
    from ..client import Client
    from ..run import Run

T = TypeVar("T")
_SHOWN = 5
_MOST = 500
"""Rows of the store that are looked through for a prefix: runs that Temporal has forgotten."""


def on_run(server: Server, id: str, act: Callable[[Run], Awaitable[T]], *, by: str | None = None) -> T:
    """What ``act`` does with the run that ``id`` means, in a client of its own. Errors as of :func:`find_run`."""

    async def go() -> T:
        async with connected(server, actor=by) as client:
            return await act(await find_run(client, id))

    return asyncio.run(go())


async def find_run(client: Client, prefix: str) -> Run:
    """The run whose id is ``prefix``, or the only one whose id begins so.

    Raises ``RunNotFoundError``; ``InvalidInputError`` when there are several, which it names.
    """
    from temporalio.service import RPCError, RPCStatusCode

    from ..translate import translated

    run = client.run(prefix)
    try:
        await run.handle.describe()
    except RPCError as error:
        if error.status != RPCStatusCode.NOT_FOUND:
            raise translated(client.temporal, prefix, error) from error
    else:
        return run
    return client.run(unique(prefix, await _candidates(client, prefix)))


def unique(prefix: str, ids: Iterable[str]) -> str:
    """The id that ``prefix`` means, among ``ids``. Errors as of :func:`find_run`."""
    matching = {known for known in ids if known.startswith(prefix)}
    if prefix in matching:
        return prefix
    found = sorted(_roots(matching))
    if not found:
        raise RunNotFoundError(f"there is no run {prefix!r}", hint="`perdure list` shows the runs there are.")
    if len(found) > 1:
        shown = ", ".join(found[:_SHOWN]) + (", …" if len(found) > _SHOWN else "")
        raise InvalidInputError(f"{len(found)} runs begin with {prefix!r}", hint=f"Give more of the id: {shown}")
    return found[0]


async def _candidates(client: Client, prefix: str) -> set[str]:
    from ..types.interface import WORKFLOW

    if not prefix:
        return set()
    quoted = prefix.replace("\\", "\\\\").replace("'", "\\'")
    ids: set[str] = set()
    query = f"WorkflowType = '{WORKFLOW}' AND WorkflowId STARTS_WITH '{quoted}'"
    async for seen in client.temporal.list_workflows(query):
        ids.add(seen.id)
        if len(_roots(ids)) > _SHOWN:
            return ids
    if client.store_url is not None:
        ids.update(row.context_id for row in await (await client.store()).runs(limit=_MOST))
    return ids


def _roots(ids: set[str]) -> set[str]:
    """``ids`` without the subagents of others among them: whoever shortens the id of a run does not mean these."""
    return {one for one in ids if not any(one[:at] in ids for at, letter in enumerate(one) if letter == "/")}
