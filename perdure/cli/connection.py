"""How commands reach the server and the store, and find the run that an id names."""

from __future__ import annotations

import gc
import logging
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import asdict, dataclass
from itertools import filterfalse
from typing import TYPE_CHECKING, Annotated, TypeVar
from urllib.parse import quote, urlsplit, urlunsplit

import typer

from .._terminal import print_line
from ..errors import LIST_HINT, InvalidInputError, RunNotFoundError, ServerUnreachableError

if TYPE_CHECKING:
    from ..client.client import Client
    from ..client.run import Run
    from ..ports.store import RunRow
    from ..temporal.outages import ServerWatch

T = TypeVar("T")


@dataclass(frozen=True)
class ServerOptions:
    """``--address``, ``--namespace`` and ``--profile``."""

    address: Annotated[str | None, typer.Option(help="host:port of the Temporal server.")] = None
    namespace: Annotated[str | None, typer.Option("--namespace", "-n", help="Temporal namespace.")] = None
    profile: Annotated[str | None, typer.Option(help="Profile in Temporal's configuration file.")] = None


@dataclass(frozen=True)
class StoreOptions(ServerOptions):
    """The options of a server, and ``--store-url``."""

    store_url: Annotated[str | None, typer.Option(help="URL of the store of transcripts; PERDURE_STORE_URL.")] = None


ByOption = Annotated[str | None, typer.Option("--by", help="Who does this; PERDURE_USER, else the system's user.")]


@dataclass(frozen=True)
class ActorOptions(ServerOptions):
    """The options of a server, and ``--by``."""

    by: ByOption = None


@dataclass(frozen=True)
class ActorStoreOptions(StoreOptions):
    """The options of a server and a store, and ``--by``."""

    by: ByOption = None


@asynccontextmanager
async def open_client(
    server: ServerOptions,
    *,
    start_server: bool = False,
    task_queue: str | None = None,
    warnings: bool = False,
    wait: bool = False,
) -> AsyncIterator[Client]:
    """A client for the length of the block. Raises ``ServerUnreachableError``; with ``wait`` only for an address that
    may be wrong, and waits for a server that is away.

    ``warnings`` shows the warnings of Temporal's SDK and of the client, for an operator who reads a worker's log.

    The embedded server's store is used also if its address was given (``eval "$(perdure env)"``).
    """
    is_first = "perdure.client.client" not in sys.modules
    if is_first:  # what is imported is no garbage, and the search for it is a tenth of the time
        gc.disable()
    from .. import _config as config
    from ..client.client import Client
    from ..client.tasks import StartWait

    if is_first:
        gc.freeze()
        gc.enable()
    # A command reports what they warn of (no worker, an unanswered query) itself: as the run's activity or as an error.
    if not warnings:
        logging.getLogger("perdure.client").setLevel(logging.ERROR)
        _quiet_sdk()
    settings = asdict(server)
    actor = settings.pop("by", None)
    start_wait = StartWait("Temporal server")
    while True:
        try:
            client = await Client.connect(**settings, actor=actor, task_queue=task_queue, start_server=start_server)
        except ServerUnreachableError as error:
            if not (error.away and wait):
                raise
            await start_wait.wait(error.message)
        else:
            start_wait.end()
            break
    if client.store_url is None and await find_ui_url(client):
        client.store_url = config.get_home_store_url()
    from temporalio.service import RPCError

    from ..temporal.errors import translate_service_error
    from ..temporal.namespaces import check_namespace

    try:
        if start_server:  # what serves agents, or starts a run: a mistyped namespace would wait for its worker
            await check_namespace(client.temporal)
        yield client
    except RPCError as error:
        raise translate_service_error(client.temporal, error) from error
    finally:
        await client.close()


def watch_for_outages(client: Client) -> AbstractAsyncContextManager[ServerWatch]:
    """During the block, say on stderr when the server stops answering, and when it answers again."""
    from ..temporal.outages import watch_server

    return watch_server(client.temporal, lambda text: print_line(text, error=True))


def _quiet_sdk() -> None:
    """Temporal's core writes its warnings to stdout, unless the first runtime of the process is told not to."""
    from temporalio.runtime import LoggingConfig, Runtime, TelemetryConfig

    # Already set: a library in the user's file did it, or this is the second connection of the process.
    with suppress(RuntimeError):
        Runtime.set_default(Runtime(telemetry=TelemetryConfig(logging=LoggingConfig(filter="ERROR"))))


def call_client(server: ServerOptions, act: Callable[[Client], Awaitable[T]], *, task_queue: str | None = None) -> T:
    """The result of ``act``, which is called with a client of its own."""
    import asyncio  # here: a command's --help does without

    async def connect_and_act() -> T:
        async with open_client(server, task_queue=task_queue) as client:
            return await act(client)

    return asyncio.run(connect_and_act())


def call_run(server: ServerOptions, id: str, act: Callable[[Run], Awaitable[T]]) -> T:
    """The result of ``act``, which is called with the run that ``id`` names. Errors as of :func:`find_run`."""

    async def find_and_act(client: Client) -> T:
        return await act(await find_run(client, id))

    return call_client(server, find_and_act)


def list_worker_arguments(client: Client) -> tuple[str, str, str, str]:
    """Arguments for a worker process: task queue, address, namespace and store URL."""
    assert client.store_url is not None, "set by the command"
    return client.task_queue, get_server_address(client), client.temporal.namespace, client.store_url


def get_server_address(client: Client) -> str:
    """host:port of the server that ``client`` talks to."""
    return client.temporal.service_client.config.target_host


async def find_ui_url(client: Client, id: str | None = None) -> str | None:
    """URL of the Temporal UI, or of run ``id`` in it; None if the server is not the embedded one."""
    from ..embedded.home import current_home
    from ..embedded.record import find_running_server, read_record

    info = read_record(current_home())
    if info is None or get_server_address(client).replace("localhost", "127.0.0.1") != info.address:
        return None
    if await find_running_server() is None:
        return None
    if id is None:
        return info.ui_url
    return f"{info.ui_url}/namespaces/{quote(client.temporal.namespace)}/workflows/{quote(id, safe='')}"


def mask_password(url: str) -> str:
    """``url`` without its password, for display."""
    parts = urlsplit(url)
    if not parts.password:
        return url
    return urlunsplit(parts._replace(netloc=parts.netloc.replace(f":{parts.password}@", ":***@")))


# ---
# Which run an id, or the beginning of one, names.

_IDS_SHOWN = 5
_STORE_ROWS_SEARCHED = 500
"""Rows of the store that are searched for a prefix, for runs that Temporal has deleted."""


async def find_run(client: Client, prefix: str) -> Run:
    """The run whose id is ``prefix``, or the only one whose id begins with it.

    Raises ``RunNotFoundError``, also for a run of another namespace whose transcript is in the store;
    ``InvalidInputError``, which names the candidates, if there are several.
    """
    run = client.run(prefix)
    try:
        await run.describe()
    except RunNotFoundError:
        ids, rows = await _list_candidates(client, prefix)
        run_id = match_run_id(prefix, ids | rows.keys())
        if run_id in rows:
            await _check_namespace_of_run(client, rows[run_id])
        return client.run(run_id)
    return run


async def _check_namespace_of_run(client: Client, row: RunRow) -> None:
    """Raise ``RunNotFoundError`` if a run that only the store has here is one of another namespace."""
    from ..client.visibility import find_other_namespaces

    other = (await find_other_namespaces(client.temporal, [row])).get(row.context_id)
    if other is not None:
        missing = f"there is no run {row.context_id!r} in namespace {client.temporal.namespace!r}"
        raise RunNotFoundError(missing, hint=f"It is in namespace {other!r}: give --namespace {other}.")


def match_run_id(prefix: str, ids: Iterable[str]) -> str:
    """The id that ``prefix`` names among ``ids``. Errors as of :func:`find_run`."""
    matching = {run_id for run_id in ids if run_id.startswith(prefix)}
    if prefix in matching:
        return prefix
    candidates = sorted(_drop_subagent_ids(matching))
    if not candidates:
        raise RunNotFoundError(f"there is no run {prefix!r}", hint=LIST_HINT)
    return require_one_id(prefix, candidates, "runs")


def require_one_id(prefix: str, ids: Sequence[str], nouns: str) -> str:
    """The only id of ``ids``, which all begin with ``prefix``. Raises ``InvalidInputError`` if there are several."""
    if len(ids) > 1:
        shown = ", ".join(ids[:_IDS_SHOWN]) + (", …" if len(ids) > _IDS_SHOWN else "")
        raise InvalidInputError(f"{len(ids)} {nouns} begin with {prefix!r}", hint=f"Give more of the id: {shown}")
    return ids[0]


async def _list_candidates(client: Client, prefix: str) -> tuple[set[str], dict[str, RunRow]]:
    """Runs that may begin with ``prefix``: ids of those that Temporal has, rows of those that only the store has."""
    from ..types.interface import WORKFLOW_TYPE

    if not prefix:
        return set(), {}
    quoted = prefix.replace("\\", "\\\\").replace("'", "\\'")
    ids: set[str] = set()
    query = f"WorkflowType = '{WORKFLOW_TYPE}' AND WorkflowId STARTS_WITH '{quoted}'"
    async for execution in client.temporal.list_workflows(query):
        ids.add(execution.id)
        if len(_drop_subagent_ids(ids)) > _IDS_SHOWN:
            return ids, {}
    if client.store_url is None:
        return ids, {}
    rows = await (await client.store()).list_runs(limit=_STORE_ROWS_SEARCHED)
    return ids, {row.context_id: row for row in rows if row.context_id not in ids}


def _drop_subagent_ids(ids: set[str]) -> set[str]:
    """``ids`` without those of subagents whose parent is among them: a shortened id means the parent."""

    def has_parent(run_id: str) -> bool:
        return any(run_id[:at] in ids for at, letter in enumerate(run_id) if letter == "/")

    return set(filterfalse(has_parent, ids))
