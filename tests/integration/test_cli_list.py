"""``perdure list --roots`` and ``--query``."""

from __future__ import annotations

import re
from typing import Any

import pytest

from perdure import Agent
from perdure.errors import InvalidInputError
from perdure.ports import ModelRequest
from perdure.testing import ScriptedProvider, call
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
    async with engine.served(boss, helper):
        assert (await cli("run", "boss", "Go.", "--id", "team/7")).code == 0
        assert (await cli("list", "-q")).out.split() == ["team/7/1", "team/7"]
        assert (await cli("list", "-q", "--roots")).out.split() == ["team/7"]
        assert (await cli("list", "-q", "--roots", "--agent", "helper")).out == ""
        reopened = await cli("send", "team/7/1", "Again.", "--wait")
        assert reopened.out == "Done.\n", "an execution without a parent"
        assert (await cli("list", "-q", "--roots")).out.split() == ["team/7"]
    async with engine.served(boss, helper):  # by a service that never heard of the runs
        assert sorted((await cli("list", "-q")).out.split()) == ["team/7", "team/7/1"]
        assert (await cli("list", "-q", "--roots", "--limit", "1")).out.split() == ["team/7"]


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
            return await listed("--query", f"{ids} AND ExecutionStatus = 'Completed'") == {root, f"{root}/1", other}

        await eventually(all_are_visible)
        assert await listed("--query", f"WorkflowId = '{engine.task_queue}-it\\'s'") == {root}
        assert await listed("--query", f"{ids} OR TaskQueue = 'none'", "--roots") == {root, other}
        assert await listed("--query", ids, "--agent", "helper") == {f"{root}/1", other}
        assert await listed("--query", ids, "--agent", "helper", "--roots") == {other}
        assert await listed("--query", ids, "--status", "failed") == set()
        assert await listed("--query", ids, "--status", "running") == set()
        with monkeypatch.context() as patch:  # as if its id did not tell: run_agent gives other ones
            patch.setattr("perdure.client.visibility._CHILD_NUMBER", re.compile("none"))
            roots = await listed("--roots", "--limit", "1000")
        assert roots >= {root, other}
        assert f"{root}/1" not in roots, "the store has it, and Temporal knows its parent"
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
