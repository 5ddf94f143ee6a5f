"""Which runs that only the store has are in other namespaces of the server."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from google.protobuf.timestamp_pb2 import Timestamp
from temporalio.service import RPCError, RPCStatusCode

from perdure.client import visibility
from perdure.client.visibility import find_other_namespaces
from perdure.ports import RunRow

CREATED = datetime(2026, 5, 1, 12, tzinfo=UTC)


def row(id: str) -> RunRow:
    return RunRow(id, "a", "", None, "completed", created_at=CREATED.isoformat())


class Frontend:
    """A server whose namespaces have these runs, by their start; None refuses the search, ... never answers it."""

    def __init__(self, **namespaces: Any) -> None:
        self.namespaces = namespaces
        self.searched: list[str] = []
        self.all_searched = asyncio.Event()

    async def list_namespaces(self, _: Any) -> Any:
        names = ["default", "temporal-system", *self.namespaces]
        return SimpleNamespace(
            namespaces=[SimpleNamespace(namespace_info=SimpleNamespace(name=name)) for name in names]
        )

    async def list_workflow_executions(self, request: Any) -> Any:
        self.searched.append(request.namespace)
        if len(self.searched) == len(self.namespaces):
            self.all_searched.set()
        await self.all_searched.wait()  # one after the other, the first would wait for ever
        found = self.namespaces[request.namespace]
        if found is None:
            raise RPCError("Request unauthorized.", RPCStatusCode.PERMISSION_DENIED, b"")
        if found is ...:
            await asyncio.Event().wait()
        return SimpleNamespace(executions=[execution(run_id, began) for run_id, began in found])


def execution(id: str, began: datetime) -> Any:
    start_time = Timestamp()
    start_time.FromDatetime(began)
    return SimpleNamespace(execution=SimpleNamespace(workflow_id=id), start_time=start_time)


async def find(frontend: Frontend, *ids: str) -> dict[str, str]:
    temporal: Any = SimpleNamespace(namespace="default", workflow_service=frontend)
    return await find_other_namespaces(temporal, [row(run_id) for run_id in ids])


async def test_namespaces_are_searched_at_once_and_one_that_refuses_hides_no_other() -> None:
    moment = CREATED - timedelta(seconds=2)
    frontend = Frontend(closed=None, staging=[("order-7", moment)], prod=[("order-8", moment)])
    assert await find(frontend, "order-7", "order-8", "order-9") == {"order-7": "staging", "order-8": "prod"}
    assert sorted(frontend.searched) == ["closed", "prod", "staging"]


async def test_one_that_does_not_answer_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(visibility, "_NAMESPACES_SECONDS", 0.2)
    assert await find(Frontend(slow=..., staging=[("order-7", CREATED)]), "order-7") == {"order-7": "staging"}


async def test_a_run_of_the_same_id_that_began_at_another_time_is_another_run() -> None:
    frontend = Frontend(staging=[("order-7", CREATED + timedelta(days=30)), ("order-8", CREATED - timedelta(hours=1))])
    assert await find(frontend, "order-7", "order-8") == {}
