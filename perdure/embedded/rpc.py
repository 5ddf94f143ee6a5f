"""The few calls to a Temporal frontend that tell which server it is and set it up."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from datetime import timedelta

from google.protobuf.duration_pb2 import Duration
from temporalio.api.namespace.v1 import NamespaceConfig
from temporalio.api.workflowservice.v1 import (
    DescribeNamespaceRequest,
    GetClusterInfoRequest,
    RegisterNamespaceRequest,
    UpdateNamespaceRequest,
)
from temporalio.service import ConnectConfig, RPCError, RPCStatusCode, ServiceClient

from ..errors import RuntimeSetupError, ServerStartError
from ..search_attributes import register

RETENTION = timedelta(days=3650)
"""How long closed runs are kept in Temporal: the dev server's own 24 hours would lose them over a weekend."""


async def cluster_id(address: str, *, seconds: float) -> str | None:
    """The id of the Temporal cluster that answers at ``address`` and serves its default namespace, if any."""
    try:
        async with asyncio.timeout(seconds):
            service = await _connect(address)
            info = await service.workflow_service.get_cluster_info(GetClusterInfoRequest())
            # The frontend answers before it can serve; a described namespace says that it can.
            await service.workflow_service.describe_namespace(DescribeNamespaceRequest(namespace="default"))
    except (TimeoutError, RuntimeError, RPCError):
        return None
    return info.cluster_id or None


async def keep_closed_runs(address: str) -> bool:
    """Raise the default namespace's retention to :data:`RETENTION`, start-dev having no flag for it.

    Returns:
        Whether it was less before.

    Raises:
        ServerStartError: the server refuses.
    """
    try:
        service = (await _connect(address)).workflow_service
        current = await service.describe_namespace(DescribeNamespaceRequest(namespace="default"), retry=True)
        if current.config.workflow_execution_retention_ttl.seconds >= RETENTION.total_seconds():
            return False
        config = NamespaceConfig(workflow_execution_retention_ttl=_duration(RETENTION))
        await service.update_namespace(UpdateNamespaceRequest(namespace="default", config=config), retry=True)
    except (RuntimeError, RPCError) as error:
        raise ServerStartError(f"the Temporal dev server cannot be set up: {error}") from error
    return True


async def index_runs(address: str, namespace: str = "default") -> None:
    """Give ``namespace`` the search attributes by which runs are found. Without them everything works all the same, so
    it raises nothing: ``perdure doctor`` says what is missing, and ``perdure server setup`` why."""
    with suppress(RuntimeError, RuntimeSetupError):
        await register(await _connect(address), namespace)


async def ensure_namespace(address: str, namespace: str) -> None:
    """Register ``namespace`` with the embedded server unless it has it.

    Raises:
        RuntimeSetupError: the server refuses; the name is not a valid one, say.
    """
    request = RegisterNamespaceRequest(namespace=namespace, workflow_execution_retention_period=_duration(RETENTION))
    try:
        await (await _connect(address)).workflow_service.register_namespace(request)
    except RPCError as error:
        if error.status is not RPCStatusCode.ALREADY_EXISTS:
            raise RuntimeSetupError(f"the namespace {namespace!r} cannot be made: {error.message}") from error
    await index_runs(address, namespace)


def _duration(delta: timedelta) -> Duration:
    duration = Duration()
    duration.FromTimedelta(delta)
    return duration


async def _connect(address: str) -> ServiceClient:
    return await ServiceClient.connect(ConnectConfig(target_host=address))
