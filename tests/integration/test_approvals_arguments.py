"""Arguments that a decision changes, as no tool could be given them: refused, and the call waits on."""

from __future__ import annotations

import json
from typing import Any

import pytest
from temporalio.client import WorkflowUpdateFailedError

from perdure import Agent, tool
from perdure.errors import InvalidInputError
from perdure.testing import call, scripted
from tests.support.checks import assert_closed, results
from tests.support.wait import eventually


@tool(needs_approval=True)
async def pay(what: Any) -> str:
    """Pay."""
    return f"paid {what}"


def nested(levels: int) -> dict[str, Any]:
    found: Any = {}
    for _ in range(levels):
        found = {"what": found}
    return dict(found)


UNFIT = [
    (nested(900), "nested deeper than 150 levels"),
    ({"what": float("nan")}, "must be plain JSON"),
    ({"what": "\ud800"}, "must be plain JSON"),
    ({"\udc00": 1}, "must be plain JSON"),
]


async def test_arguments_that_are_no_object() -> None:
    async with scripted(Agent("support", "openai:gpt-5-mini"), ["Done."]) as script:
        run = await script.client.start("support", "Go.")
        given: Any = ["what"]
        with pytest.raises(InvalidInputError, match=r"arguments must be an object of names and values, not \['what'\]"):
            await run.approve("c", arguments=given)
        await run.result()


@pytest.mark.parametrize(("arguments", "why"), UNFIT, ids=["deep", "nan", "surrogate", "surrogate-name"])
async def test_arguments_that_are_no_plain_json(arguments: dict[str, Any], why: str) -> None:
    agent = Agent("support", "openai:gpt-5-mini", tools=[pay])
    async with scripted(agent, [call("pay", what=1), "Done."]) as script:
        run = await script.client.start("support", "Go.")

        async def waits() -> bool:
            return bool((await run.status()).approvals)

        await eventually(waits, every=0.01)
        with pytest.raises(InvalidInputError, match=r"arguments"):
            await run.approve(by="ana", arguments=arguments)
        (one,) = (await run.status()).approvals
        raw = {"call_id": one.call_id, "decision": "approve", "by": "ana", "arguments": arguments}
        with pytest.raises(WorkflowUpdateFailedError) as refused:  # as any client may send it
            await run.handle.execute_update("decide_approval", json.loads(json.dumps(raw)))
        assert why in str(refused.value.cause)
        await run.approve(by="ana", arguments={"what": nested(148)})
        response = await run.result()
    assert_closed(response.messages)
    assert "paid {'what'" in results(response.messages)[0]
