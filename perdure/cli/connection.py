"""How commands reach the server and the store."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import quote, urlsplit, urlunsplit

from ..errors import LIST_HINT, InvalidInputError, RunNotFoundError

if TYPE_CHECKING:
    from ..client.client import Client
    from ..client.run import Run


@dataclass(frozen=True)
class ConnectionOptions:
    """What the options of a command say of server and store."""

    address: str | None = None
    namespace: str | None = None
    profile: str | None = None
    store_url: str | None = None


@asynccontextmanager
async def open_client(
    server: ConnectionOptions,
    *,
    start_server: bool = False,
    task_queue: str | None = None,
    actor: str | None = None,
    warnings: bool = False,
) -> AsyncIterator[Client]:
    """A client for the length of the block. Raises ``ServerUnreachableError``.

    ``warnings``: those of Temporal's SDK and of the client are shown, for an operator who reads a worker's log.

    The embedded server's store is used also when its address was named (``eval "$(perdure env)"``).
    """
    from .. import config
    from ..client.client import Client

    # What they warn of (a run without a worker, a query that nobody answers) a command shows by itself: as what the run
    # waits for, or as its error.
    if not warnings:
        logging.getLogger("perdure.client").setLevel(logging.ERROR)
        _quiet_sdk()
    client = await Client.connect(
        address=server.address,
        namespace=server.namespace,
        profile=server.profile,
        store_url=server.store_url,
        task_queue=task_queue,
        actor=actor,
        start_server=start_server,
    )
    if client.store_url is None and await find_ui_url(client):
        client.store_url = config.get_home_store_url()
    try:
        yield client
    finally:
        await client.close()


def _quiet_sdk() -> None:
    """Temporal's core writes its warnings to stdout, unless the runtime that it makes first is told not to."""
    from temporalio.runtime import LoggingConfig, Runtime, TelemetryConfig

    # Already set: a library in the user's file did it, or this is the second connection of the process.
    with suppress(RuntimeError):
        Runtime.set_default(Runtime(telemetry=TelemetryConfig(logging=LoggingConfig(filter="ERROR"))))


def get_server_address(client: Client) -> str:
    """host:port of the server that ``client`` talks to."""
    return client.temporal.service_client.config.target_host


async def find_ui_url(client: Client, id: str | None = None) -> str | None:
    """Where a browser finds the Temporal UI, or run ``id`` in it; None where the server is not the embedded one."""
    from ..embedded.server import find_running_server

    info = await find_running_server()
    if info is None or get_server_address(client).replace("localhost", "127.0.0.1") != info.address:
        return None
    if id is None:
        return info.ui_url
    return f"{info.ui_url}/namespaces/{quote(client.temporal.namespace)}/workflows/{quote(id, safe='')}"


def mask_password(url: str) -> str:
    """``url`` as it may be shown."""
    parts = urlsplit(url)
    if not parts.password:
        return url
    return urlunsplit(parts._replace(netloc=parts.netloc.replace(f":{parts.password}@", ":***@")))


# ---
# Which run an id, or the beginning of one, means.


T = TypeVar("T")
_RUN_IDS_SHOWN = 5
_STORE_ROWS_SEARCHED = 500
"""Rows of the store that are looked through for a prefix: runs that Temporal has forgotten."""


def act_on_run(server: ConnectionOptions, id: str, act: Callable[[Run], Awaitable[T]], *, by: str | None = None) -> T:
    """What ``act`` does with the run that ``id`` means, in a client of its own. Errors as of :func:`find_run`."""

    async def go() -> T:
        async with open_client(server, actor=by) as client:
            return await act(await find_run(client, id))

    return asyncio.run(go())


async def find_run(client: Client, prefix: str) -> Run:
    """The run whose id is ``prefix``, or the only one whose id begins so.

    Raises ``RunNotFoundError``; ``InvalidInputError`` when there are several, which it names.
    """
    from temporalio.service import RPCError, RPCStatusCode

    from ..temporal_service import translate_rpc_error

    run = client.run(prefix)
    try:
        await run.handle.describe()
    except RPCError as error:
        if error.status != RPCStatusCode.NOT_FOUND:
            raise translate_rpc_error(client.temporal, prefix, error) from error
    else:
        return run
    return client.run(match_run_id(prefix, await _list_candidate_ids(client, prefix)))


def match_run_id(prefix: str, ids: Iterable[str]) -> str:
    """The id that ``prefix`` means, among ``ids``. Errors as of :func:`find_run`."""
    matching = {known for known in ids if known.startswith(prefix)}
    if prefix in matching:
        return prefix
    found = sorted(_drop_subagent_ids(matching))
    if not found:
        raise RunNotFoundError(f"there is no run {prefix!r}", hint=LIST_HINT)
    if len(found) > 1:
        shown = ", ".join(found[:_RUN_IDS_SHOWN]) + (", …" if len(found) > _RUN_IDS_SHOWN else "")
        raise InvalidInputError(f"{len(found)} runs begin with {prefix!r}", hint=f"Give more of the id: {shown}")
    return found[0]


async def _list_candidate_ids(client: Client, prefix: str) -> set[str]:
    from ..types.interface import WORKFLOW_TYPE

    if not prefix:
        return set()
    quoted = prefix.replace("\\", "\\\\").replace("'", "\\'")
    ids: set[str] = set()
    query = f"WorkflowType = '{WORKFLOW_TYPE}' AND WorkflowId STARTS_WITH '{quoted}'"
    async for seen in client.temporal.list_workflows(query):
        ids.add(seen.id)
        if len(_drop_subagent_ids(ids)) > _RUN_IDS_SHOWN:
            return ids
    if client.store_url is not None:
        ids.update(row.context_id for row in await (await client.store()).list_runs(limit=_STORE_ROWS_SEARCHED))
    return ids


def _drop_subagent_ids(ids: set[str]) -> set[str]:
    """``ids`` without the subagents of others among them: whoever shortens the id of a run does not mean these."""
    return {one for one in ids if not any(one[:at] in ids for at, letter in enumerate(one) if letter == "/")}
