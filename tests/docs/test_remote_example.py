"""The tool in another language: Temporal's own SDK on one side, perdure on the other."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from temporalio import activity
from temporalio.client import Client
from temporalio.worker import Worker

from tests.docs.asked import Request, results
from tests.docs.loopback import EXAMPLES, Loopback, succeeded
from tests.servers.model_server import Call
from tests.support import npm

pytestmark = pytest.mark.server

SOURCE = EXAMPLES / "34_remote_tool"
ANSWER = "{'city': 'Rome', 'euros': 285}, Error: we have no hotel in Bonn, Vetoed: we book for 30 nights at most\n"


def rule(request: Request) -> Any:
    found = results(request)
    if not found:
        asked = [{"city": "Rome", "nights": 3}, {"city": "Bonn"}, {"city": "Rome", "nights": 31}]
        return [Call("price", one) for one in asked]
    rome = json.loads(found[0])
    assert rome.pop("quote"), "the activity's id"
    return f"{rome}, {found[1]}, {found[2]}"


class Error(Exception):
    """Called as errors are in TypeScript."""


@activity.defn(name="tool.price")
async def price(asked: dict[str, Any]) -> dict[str, Any]:
    """What worker.ts does."""
    if asked["city"] != "Rome":
        raise Error(f"we have no hotel in {asked['city']}")
    return {"city": "Rome", "euros": 95 * asked.get("nights", 1), "quote": activity.info().activity_id}


async def test_an_agent_with_a_tool_elsewhere(loopback: Loopback) -> None:
    """``agent.py``, with a worker of Temporal's Python SDK in the place of worker.ts."""
    loopback.model.rule = rule
    await loopback.own_namespace()
    client = await Client.connect(loopback.address, namespace=loopback.namespace)
    async with Worker(client, task_queue="prices", activities=[price]):
        assert succeeded(await loopback.python(SOURCE / "agent.py")) == ANSWER


def test_the_worker_in_typescript_serves_what_the_agent_calls() -> None:
    worker, agent = (SOURCE / "worker.ts").read_text(), (SOURCE / "agent.py").read_text()
    assert "activities: { 'tool.price': price }" in worker
    assert "'prices'" in worker
    assert 'remote_tool(\n    "price",' in agent
    assert 'task_queue="prices"' in agent


@pytest.mark.node
async def test_a_tool_in_typescript(loopback: Loopback) -> None:
    modules = await asyncio.to_thread(npm.packages, SOURCE, "the tool in TypeScript")
    folder = npm.copy(SOURCE, modules, loopback.folder / "remote")
    loopback.model.rule = rule
    await loopback.own_namespace()
    worker = await loopback.spawn("npm", "start", "--silent", cwd=folder)
    assert succeeded(await loopback.python(SOURCE / "agent.py")) == ANSWER
    await loopback.kill(worker)
