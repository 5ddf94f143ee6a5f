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
from perdure.ports.store import RunRow

CREATED = datetime(2026, 5, 1, 12, tzinfo=UTC)


def row(id: str, scope: str = "") -> RunRow:
    return RunRow(id, "a", scope, None, "completed", created_at=CREATED.isoformat())


class Frontend:
    """A server whose namespaces have these runs, by their start; None refuses the search, ... never answers it.

    A page has one execution, and the first run id is described.
    """

    def __init__(self, **namespaces: Any) -> None:
        self.namespaces = namespaces
        self.searched: list[str] = []
        self.queries: list[str] = []
        self.all_searched = asyncio.Event()

    async def list_namespaces(self, _: Any) -> Any:
        names = ["default", "temporal-system", *self.namespaces]
        return SimpleNamespace(
            namespaces=[SimpleNamespace(namespace_info=SimpleNamespace(name=name)) for name in names]
        )

    async def list_workflow_executions(self, request: Any) -> Any:
        self.searched.append(request.namespace)
        self.queries.append(request.query)
        if len(self.searched) == len(self.namespaces):
            self.all_searched.set()
        await self.all_searched.wait()  # one after the other, the first would wait for ever
        found = self.namespaces[request.namespace]
        if found is None:
            raise RPCError("Request unauthorized.", RPCStatusCode.PERMISSION_DENIED, b"")
        if found is ...:
            await asyncio.Event().wait()
        start = int(request.next_page_token or 0)
        named = [one for one in found if f"'{one[0]}'" in request.query]
        token = str(start + 1).encode() if start + 1 < len(named) else b""
        return SimpleNamespace(executions=[execution(*one) for one in named[start : start + 1]], next_page_token=token)

    async def describe_workflow_execution(self, request: Any) -> Any:
        assert request.execution.run_id == f"latest of {request.execution.workflow_id}"
        info = SimpleNamespace(first_run_id=f"first of {request.execution.workflow_id}")
        return SimpleNamespace(workflow_execution_info=info)


def execution(id: str, began: datetime) -> Any:
    start_time = Timestamp()
    start_time.FromDatetime(began)
    return SimpleNamespace(execution=SimpleNamespace(workflow_id=id, run_id=f"latest of {id}"), start_time=start_time)


async def find(frontend: Frontend, *ids: str, scope: str = "") -> dict[str, str]:
    temporal: Any = SimpleNamespace(namespace="default", workflow_service=frontend)
    return await find_other_namespaces(temporal, [row(run_id, scope) for run_id in ids])


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


@pytest.mark.parametrize("scope", ["first of order-7", "first of order-7/a3"])
async def test_a_run_that_has_continued_as_new_is_told_by_its_first_execution(scope: str) -> None:
    frontend = Frontend(staging=[("order-7", CREATED + timedelta(days=90))])
    assert await find(frontend, "order-7", scope=scope) == {"order-7": "staging"}
    assert await find(frontend, "order-7", scope="first of another") == {}


async def test_ids_are_sent_in_parts_and_all_pages_are_read() -> None:
    ids = [f"order-{number}" for number in range(250)]
    frontend = Frontend(staging=[(run_id, CREATED) for run_id in ids[98:102]])
    assert await find(frontend, *ids) == dict.fromkeys(ids[98:102], "staging")
    assert sorted(query.count("'order-") for query in frontend.queries) == [50, 100, 100, 100, 100], "two pages, twice"
