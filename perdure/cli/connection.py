"""How commands reach the server and the store."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import quote, urlsplit, urlunsplit

if TYPE_CHECKING:
    from ..client import Client


@dataclass(frozen=True)
class Server:
    """What the options of a command say of server and store."""

    address: str | None = None
    namespace: str | None = None
    profile: str | None = None
    store_url: str | None = None


@asynccontextmanager
async def connected(
    server: Server,
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
    from ..client import Client

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
    if client.store_url is None and await ui_url(client):
        client.store_url = config.home_store_url()
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


def address(client: Client) -> str:
    """host:port of the server that ``client`` talks to."""
    return client.temporal.service_client.config.target_host


async def ui_url(client: Client, id: str | None = None) -> str | None:
    """Where a browser finds the Temporal UI, or run ``id`` in it; None where the server is not the embedded one."""
    from ..embedded.server import running_server

    info = await running_server()
    if info is None or address(client).replace("localhost", "127.0.0.1") != info.address:
        return None
    if id is None:
        return info.ui_url
    return f"{info.ui_url}/namespaces/{quote(client.temporal.namespace)}/workflows/{quote(id, safe='')}"


def without_password(url: str) -> str:
    """``url`` as it may be shown."""
    parts = urlsplit(url)
    if not parts.password:
        return url
    return urlunsplit(parts._replace(netloc=parts.netloc.replace(f":{parts.password}@", ":***@")))
