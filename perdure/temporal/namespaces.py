"""Namespaces of a Temporal server: whether one exists, how one is created, and what the dev server's own needs."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from datetime import timedelta

from google.protobuf.duration_pb2 import Duration
from temporalio.api.namespace.v1 import NamespaceConfig
from temporalio.api.workflowservice.v1 import (
    CountWorkflowExecutionsRequest,
    DescribeNamespaceRequest,
    GetClusterInfoRequest,
    RegisterNamespaceRequest,
    UpdateNamespaceRequest,
)
from temporalio.client import Client as TemporalClient
from temporalio.service import ConnectConfig, RPCError, RPCStatusCode, ServiceClient

from ..errors import RuntimeSetupError, ServerStartError
from .attributes import RPC_TIMEOUT, register_search_attributes
from .errors import build_namespace_error

_NAMESPACE_CHECKS, _NAMESPACE_POLL_SECONDS = 150, 0.2
"""Most checks of whether a server serves a new namespace, and the seconds between two."""
RETENTION = timedelta(days=3650)
"""How long Temporal keeps closed runs: the dev server's default of 24 hours would lose them over a weekend."""


_RETENTION_MESSAGE = Duration(seconds=int(RETENTION.total_seconds()))


async def check_namespace(temporal: TemporalClient) -> None:
    """Raise ``RuntimeSetupError`` if the server does not have the client's namespace."""
    request = DescribeNamespaceRequest(namespace=temporal.namespace)
    try:
        await temporal.workflow_service.describe_namespace(request, timeout=RPC_TIMEOUT)
    except RPCError as error:  # a client may lack the permission, or the server be busy: the next request shows it
        if error.status == RPCStatusCode.NOT_FOUND:
            raise build_namespace_error(temporal.namespace) from error


async def read_cluster_id(address: str, *, seconds: float, starting: bool = False) -> str | None:
    """Return the id of the Temporal cluster at ``address``; None if none answers, or if it is ``starting`` and does not
    serve its default namespace yet."""
    try:
        async with asyncio.timeout(seconds):
            service = await _connect_service(address)
            info = await service.workflow_service.get_cluster_info(GetClusterInfoRequest())
            if starting:
                # The frontend answers before it can serve: it describes a namespace from the database, and serves it
                # once that is in its own list, which on a busy machine was seconds later.
                await service.workflow_service.describe_namespace(DescribeNamespaceRequest(namespace="default"))
                await service.workflow_service.count_workflow_executions(
                    CountWorkflowExecutionsRequest(namespace="default")
                )
    except (TimeoutError, RuntimeError, RPCError):
        return None
    return info.cluster_id or None


async def keep_closed_runs(address: str) -> bool:
    """Raise the default namespace's retention to :data:`RETENTION`, since start-dev has no flag for it.

    Returns:
        Whether it was shorter before.

    Raises:
        ServerStartError: the server refuses.
    """
    try:
        service = (await _connect_service(address)).workflow_service
        current = await service.describe_namespace(DescribeNamespaceRequest(namespace="default"), retry=True)
        if current.config.workflow_execution_retention_ttl.seconds >= RETENTION.total_seconds():
            return False
        config = NamespaceConfig(workflow_execution_retention_ttl=_RETENTION_MESSAGE)
        await service.update_namespace(UpdateNamespaceRequest(namespace="default", config=config), retry=True)
    except (RuntimeError, RPCError) as error:
        raise ServerStartError(f"the Temporal dev server cannot be set up: {error}") from error
    return True


async def index_runs(address: str, namespace: str = "default") -> None:
    """Register the search attributes by which runs are found. They are optional, so this raises nothing: ``perdure
    doctor`` reports what is missing, and ``perdure server setup`` the reason."""
    with suppress(RuntimeError, RuntimeSetupError):
        await register_search_attributes(await _connect_service(address), namespace)


async def ensure_namespace(service: ServiceClient, namespace: str) -> None:
    """Register ``namespace`` if it is missing, and wait until the server serves it.

    Raises:
        RuntimeSetupError: the server refuses, for instance an invalid name.
    """
    request = RegisterNamespaceRequest(namespace=namespace, workflow_execution_retention_period=_RETENTION_MESSAGE)
    try:
        await service.workflow_service.register_namespace(request)
    except RPCError as error:
        if error.status is not RPCStatusCode.ALREADY_EXISTS:
            raise RuntimeSetupError(f"the namespace {namespace!r} cannot be made: {error.message}") from error
    for _ in range(_NAMESPACE_CHECKS):
        if await _is_served(service, namespace):
            return
        await asyncio.sleep(_NAMESPACE_POLL_SECONDS)


async def _is_served(service: ServiceClient, namespace: str) -> bool:
    """Whether the server serves ``namespace``: it reads its own list of them every few seconds."""
    try:
        await service.workflow_service.count_workflow_executions(CountWorkflowExecutionsRequest(namespace=namespace))
    except RPCError as error:
        return error.status is not RPCStatusCode.NOT_FOUND
    return True


async def _connect_service(address: str) -> ServiceClient:
    return await ServiceClient.connect(ConnectConfig(target_host=address))
