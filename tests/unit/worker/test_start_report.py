"""What a worker says at its start where a check fails in a way of its own, and while versions are replaced."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from temporalio.api.workflowservice.v1 import GetSystemInfoResponse
from temporalio.service import RPCError, RPCStatusCode

from perdure import Agent
from perdure.store.sqlite import SqliteStore
from perdure.testing import ScriptedProvider
from perdure.testing.store import MemoryStore
from perdure.worker.engine import Engine
from perdure.worker.start_report import report_start


class FakeTemporal:
    """A server that says its version, and nothing else."""

    namespace = "default"

    def __init__(self) -> None:
        self.workflow_service = self.service_client = self.operator_service = self

    async def get_system_info(self, *_: Any, **__: Any) -> GetSystemInfoResponse:
        return GetSystemInfoResponse(server_version="1.2.3")

    async def list_search_attributes(self, *_: Any, **__: Any) -> Any:
        raise RPCError("away", RPCStatusCode.UNAVAILABLE, b"")


async def report(engine: Engine, folder: Path) -> dict[str, str]:
    """What is reported, by its check."""
    temporal: Any = FakeTemporal()
    url = f"sqlite:///{folder / 'store.db'}"
    store = SqliteStore(url)
    await store.open()
    try:
        return {finding.check: finding.detail for finding in await report_start(temporal, "shop", engine, url)}
    finally:
        await store.close()


async def test_a_check_that_fails_in_a_way_of_its_own_hides_no_other(tmp_path: Path) -> None:
    class Own(ScriptedProvider):
        def check_key(self) -> None:
            raise ValueError("no such vault")

    engine = Engine([Agent("support", Own(lambda _: "Hello."))], store=MemoryStore())
    said = await report(engine, tmp_path)
    assert said["models"] == "not checked: ValueError: no such vault"
    assert said["agents"] == "support (no tools)"
    assert "Temporal server 1.2.3" in said["versions"]


@pytest.mark.parametrize(
    ("state", "is_warned"), [("current", 0), ("to be contracted", 0), ("newer", 0), ("to be expanded", 1)]
)
async def test_a_store_that_this_version_can_use_is_no_warning(
    state: str, is_warned: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a rolling deploy workers of both versions start on a store between expansion and contraction."""
    monkeypatch.setattr("perdure.store.status._describe_schema", lambda *_: state)
    assert ("store schema" in await report(Engine(store=MemoryStore()), tmp_path)) == is_warned
