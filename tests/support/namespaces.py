"""Namespaces of a test's own: without search attributes, and without a run."""

from __future__ import annotations

import uuid

from google.protobuf.duration_pb2 import Duration
from temporalio.api.workflowservice.v1 import RegisterNamespaceRequest
from temporalio.client import Client
from temporalio.service import RPCError

from perdure.temporal.attributes import register_search_attributes
from perdure.temporal.namespaces import ensure_namespace
from tests.support.wait import eventually


async def indexed_namespace(address: str, name: str) -> None:
    """A new one with perdure's search attributes: `perdure server setup --create`."""
    service = (await Client.connect(address)).service_client
    await ensure_namespace(service, name)
    await register_search_attributes(service, name)


async def a_namespace(address: str) -> Client:
    """A client of a new one, made as by another program: the server registers it within seconds."""
    name = f"bare-{uuid.uuid4().hex[:8]}"
    shared = await Client.connect(address)
    day = Duration(seconds=86400)
    request = RegisterNamespaceRequest(namespace=name, workflow_execution_retention_period=day)
    await shared.workflow_service.register_namespace(request)
    client = await Client.connect(address, namespace=name)

    async def serves() -> bool:
        try:
            await client.count_workflows()
        except RPCError:
            return False
        return True

    await eventually(serves, deadline=60, what=f"the namespace {name}")
    return client
