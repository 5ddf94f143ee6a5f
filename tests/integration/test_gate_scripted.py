"""What a model sends that is not plain JSON is a malformed call: it is told so, and the conversation can be read."""

from __future__ import annotations

from typing import Any

import pytest

from perdure import Agent, tool
from perdure.testing import call, scripted
from tests.support.checks import assert_closed, results


def nested(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (nested(197), "nested deeper than 150 levels"),
        (nested(250), "nested deeper than 150 levels"),
        (nested(400), "nested deeper than 150 levels"),
        (float("inf"), "Infinity is not JSON"),
        ({"\ud800": 1}, "lone surrogate"),
    ],
    ids=["197-levels", "250-levels", "400-levels", "1e999", "surrogate"],
)
async def test_arguments_that_cannot_be_read_back_are_told_and_the_tool_does_not_run(value: Any, why: str) -> None:
    ran: list[Any] = []

    @tool
    def pay(amount: Any) -> str:
        """Pay."""
        ran.append(amount)
        return "paid"

    agent = Agent("support", "openai:gpt-5-mini", tools=[pay])
    async with scripted(agent, [[call("pay", amount=value), call("pay", amount=nested(149))], "Done."]) as script:
        run = await script.client.start("support", "Go.")
        response = await run.result()
    assert_closed(response.messages)
    refused, paid = results(response.messages)
    assert why in refused
    assert paid == "paid"
    assert ran == [nested(149)]
