"""A call that waits has the same names wherever it is shown: Python, commands, HTTP, OpenAI's API, webhooks."""

from __future__ import annotations

import json
from typing import Any

import pytest

from perdure import Agent, tool
from perdure._webhook_wire import WebhookTask, build_event_body
from perdure.testing import ScriptedProvider, call
from tests.support.commands import Commands
from tests.support.engine import Engine
from tests.support.wait import eventually
from tests.support.web import make_caller, serve

NAMES = ("tool", "run_id", "call_id", "hash")


@tool(needs_approval=True)
def pay(amount: int) -> str:
    """Pay."""
    return f"paid {amount}"


async def test_a_waiting_call_has_one_set_of_names(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    cli = Commands(engine, monkeypatch)
    agent = Agent(f"desk-{engine.task_queue}", ScriptedProvider([call("pay", amount=3), "Done."]), tools=[pay])
    async with engine.served(agent) as client, serve(client, make_caller("ada", "admin")) as service:
        run = await client.start(agent, "Pay 3.")

        async def list_calls() -> list[Any]:
            return await client.approvals(agent=agent.name)

        [pending] = await eventually(list_calls)
        expected = {name: getattr(pending, name) for name in NAMES}
        assert (expected["tool"], expected["run_id"]) == ("pay", run.id)

        def select(fields: dict[str, Any]) -> dict[str, Any]:
            return {name: fields[name] for name in NAMES}

        status = await run.status()
        assert {"run_id": run.id, **status.approvals[0].model_dump(include=set(NAMES))} == expected
        assert [(one.tool, one.call_id, one.state) for one in status.calls] == [("pay", expected["call_id"], "waiting")]
        [listed] = json.loads((await cli("approvals", "--agent", agent.name, "--json")).out)
        assert select(listed) == expected
        async with service.connect("ada") as http:
            [row] = (await http.get("/approvals", params={"agent": agent.name})).json()["data"]
            assert select(row) == expected
            decision = expected | {"decision": "deny"}
            decision.pop("tool")
            [result] = (await http.post("/approvals:decide", json={"decisions": [decision]})).json()["results"]
            assert (result["run_id"], result["decided"]["tool"]) == (run.id, "pay")
        async for event in run.events():
            if event.type == "approval.requested":
                task = WebhookTask(webhook_id="w", message_id="m", type=event.type, stream=run.id)
                assert select(json.loads(build_event_body(event, task, None))["data"]) == expected
                break
