"""``perdure doctor``: a store that is missing although there are runs."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from perdure.embedded import diagnosis


@pytest.mark.parametrize(("file", "runs", "warned"), [(False, 1, True), (False, 0, False), (True, 1, False)])
async def test_a_store_that_is_missing_is_a_warning_where_there_are_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: bool, runs: int, warned: bool
) -> None:
    path = tmp_path / "store.db"
    monkeypatch.setenv("PERDURE_STORE_URL", f"sqlite:///{path}")

    class Server:
        namespace, workflow_service, service_client = "default", SimpleNamespace(), None

        async def list_workflows(self, *_: Any, **__: Any) -> AsyncIterator[Any]:
            for n in range(runs):
                yield SimpleNamespace(id=f"run-{n}", run_id="")

        def get_workflow_handle(self, *_: Any, **__: Any) -> Any:
            return SimpleNamespace(describe=nothing)

    async def nothing(*_: Any, **__: Any) -> None:
        return None

    async def connected(*_: Any) -> Any:
        return Server()

    async def attributes(*_: Any) -> diagnosis.Finding:
        return diagnosis.Finding("search attrs", "ok", "")

    Server.workflow_service.describe_namespace = nothing
    monkeypatch.setattr(diagnosis, "connect", connected)
    monkeypatch.setattr(diagnosis, "find_failing_task", nothing)
    monkeypatch.setattr(diagnosis, "check_search_attributes", attributes)
    if file:
        path.touch(mode=0o600)
    found = await diagnosis.check_servers("127.0.0.1:7233", None, None)
    said = [one.detail for one in found if one.status == "warn" and one.check == "store file"]
    assert said == ([f"none at {path}, but run run-0 is on the server"] if warned else [])
    assert [one.status for one in found if one.check == "server"] == ["ok"]
