"""``perdure list --roots`` and ``--query``."""

from __future__ import annotations

from typing import Any

import pytest

from perdure import Agent
from perdure.errors import InvalidInputError
from perdure.ports.model import ModelRequest
from perdure.ports.store import Commit, EventBatch, NewEvent, RunRow, build_batch_token
from perdure.store.sqlite import SqliteStore
from perdure.testing import ScriptedProvider, call
from perdure.testing.fake_service import InProcessService
from perdure.types.events import RunEvent
from perdure.types.subagents import Lineage, PathStep
from tests.support.children import find_child_id
from tests.support.commands import Commands
from tests.support.engine import Engine
from tests.support.scripts import replied
from tests.support.wait import eventually

helper = Agent("helper", ScriptedProvider(lambda _: "Done."))


def delegate(request: ModelRequest) -> Any:
    return "All done." if replied(request) else call("call_helper", task="a")


boss = Agent("boss", ScriptedProvider(delegate), subagents=[helper])


async def test_roots_leave_out_subagents_also_those_that_only_the_store_has(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    cli = Commands(engine, monkeypatch)
    async with engine.served(boss, helper) as client:
        assert (await cli("run", "boss", "Go.", "--id", "team-7")).code == 0
        child = await find_child_id(client, "team-7", 1)
        assert (await cli("list", "-q")).out.split() == [child, "team-7"]
        assert (await cli("list", "-q", "--roots")).out.split() == ["team-7"]
        assert (await cli("list", "-q", "--roots", "--agent", "helper")).out == ""
        reopened = await cli("send", child, "Again.", "--wait")
        assert reopened.out == "Done.\n", "an execution without a parent"
        assert (await cli("list", "-q", "--roots")).out.split() == ["team-7"]
    async with engine.served(boss, helper):  # by a service that never heard of the runs
        assert sorted((await cli("list", "-q")).out.split()) == ["team-7", child]
        assert (await cli("list", "-q", "--roots", "--limit", "1")).out.split() == ["team-7"]


async def test_an_id_that_looks_like_a_subagents_is_no_reason_to_leave_a_run_out(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    cli = Commands(engine, monkeypatch)
    ids = ["acme", "acme/2026", "acme/abc123-7"]
    async with engine.served(helper) as client:
        for run_id in ids:  # a plain client of Temporal may give any id
            start = {"agent": "helper", "message": "Go."}
            await client.temporal.start_workflow("AgentWorkflow", start, id=run_id, task_queue=client.task_queue)
            await client.run(run_id).result()
        assert sorted((await cli("list", "-q", "--roots")).out.split()) == ids
    async with engine.served(helper):  # by a service that never heard of the runs
        assert sorted((await cli("list", "-q", "--roots")).out.split()) == ids


async def test_children_of_long_ago_cost_no_request(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    cli = Commands(engine, monkeypatch)
    requests = 0
    list_executions = InProcessService._on_list_workflow_executions

    async def count(service: InProcessService, request: Any) -> Any:
        nonlocal requests
        requests += 1
        return await list_executions(service, request)

    monkeypatch.setattr(InProcessService, "_on_list_workflow_executions", count)
    async with engine.served(helper) as client:
        await (await client.start("helper", "Go.", id="old")).result()
        store = await client.store()
        for number in range(250):
            run_id, lineage = f"old/{number}", Lineage(root="old", agent="a", path=(PathStep(agent="a", call_id="1"),))
            events = EventBatch(run_id, [NewEvent(RunEvent(state="started"))], build_batch_token("t"), lineage=lineage)
            await store.commit(Commit(run=RunRow(run_id, "a", "s", None, "completed"), events=events))
        assert (await cli("list", "-q", "--roots")).out.split() == ["old"]
        assert requests == 2, "open runs, and closed ones"
        assert len((await cli("list", "-q")).out.split()) == 50


@pytest.mark.server
async def test_a_query_is_temporals_and_combines_with_the_filters(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    cli = Commands(engine, monkeypatch)
    ids = f"WorkflowId STARTS_WITH '{engine.task_queue}'"
    root, other = f"{engine.task_queue}-it's", f"{engine.task_queue}-2"
    async with engine.served(boss, helper) as client:
        for run_id, agent in ((root, "boss"), (other, "helper")):
            await (await client.start(agent, "Go.", id=run_id)).result()

        async def listed(*options: str) -> set[str]:
            done = await cli("list", "-q", *options)
            assert done.code == 0, done.err
            return set(done.out.split("\n")) - {""}

        async def all_are_visible() -> bool:
            return await listed("--query", f"{ids} AND ExecutionStatus = 'Completed'") == {
                root,
                await find_child_id(client, root, 1),
                other,
            }

        await eventually(all_are_visible)
        assert await listed("--query", f"WorkflowId = '{engine.task_queue}-it\\'s'") == {root}
        assert await listed("--query", f"{ids} OR TaskQueue = 'none'", "--roots") == {root, other}
        assert await listed("--query", ids, "--agent", "helper") == {await find_child_id(client, root, 1), other}
        assert await listed("--query", ids, "--agent", "helper", "--roots") == {other}
        assert await listed("--query", ids, "--status", "failed") == set()
        assert await listed("--query", ids, "--status", "running") == set()
        list_rows = SqliteStore.list_runs
        with monkeypatch.context() as patch:  # as if its events did not tell: those of run_agent have no root
            patch.setattr(
                SqliteStore, "list_runs", lambda *args, **options: list_rows(*args, **options | {"roots": False})
            )
            roots = await listed("--roots", "--limit", "1000")
        assert roots >= {root, other}
        assert await find_child_id(client, root, 1) not in roots, "the store has it, and Temporal knows its parent"
        for wrong in ("WorkflowId = it's", "NoSuchAttribute = 1", f"{ids}) OR (TaskQueue = 'x'", "ORDER BY StartTime"):
            refused = await cli("list", "--query", wrong, "--agent", "helper", "--roots")
            assert refused.code == 2, wrong
            assert "error: Temporal refuses the query: " in refused.err
            assert "https://docs.temporal.io/list-filter" in refused.err
        assert "NoSuchAttribute" in (await cli("list", "--query", "NoSuchAttribute = 1")).err


@pytest.mark.parametrize("query", ["", "  ", "a = '\0'", "a = '\ud800'"])
async def test_what_is_no_query_is_refused_before_it_is_sent(engine: Engine, query: str) -> None:
    async with engine.served(helper) as client:
        with pytest.raises(InvalidInputError, match=r"the query .* is empty or has characters"):
            await client.list(query=query)
