"""When a Temporal server counts as ready."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from temporalio.service import RPCError, RPCStatusCode

from perdure.temporal import namespaces


class Frontend:
    """A frontend that has not yet read its list of namespaces for the first ``unready`` requests that need it."""

    def __init__(self, unready: int) -> None:
        self.unready = unready

    async def get_cluster_info(self, _: Any) -> Any:
        return SimpleNamespace(cluster_id="c1")

    async def describe_namespace(self, _: Any) -> None:
        """From the database."""

    async def count_workflow_executions(self, _: Any) -> None:
        self.unready -= 1
        if self.unready >= 0:
            raise RPCError("Namespace default is not found.", RPCStatusCode.NOT_FOUND, b"")


async def test_a_frontend_that_does_not_serve_its_namespace_is_not_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    frontend = Frontend(unready=2)

    async def connect(_: str) -> Any:
        return SimpleNamespace(workflow_service=frontend)

    monkeypatch.setattr(namespaces, "_connect_service", connect)
    found = [await namespaces.read_cluster_id("localhost:1", seconds=5, starting=True) for _ in range(3)]
    assert found == [None, None, "c1"]
    frontend.unready = 1
    assert await namespaces.read_cluster_id("localhost:1", seconds=5) == "c1", "it has served: who it is is enough"
