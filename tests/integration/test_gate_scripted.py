"""What a model sends that is not plain JSON is a malformed call: it is told so, and the conversation can be read."""

from __future__ import annotations

from typing import Any

from perdure import Agent, tool
from perdure.testing import call, scripted
from tests.support.checks import assert_closed, results


def nested(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


UNREADABLE = [
    (nested(197), "nested deeper than 150 levels"),
    (nested(250), "nested deeper than 150 levels"),
    (nested(400), "nested deeper than 150 levels"),
    (float("inf"), "Infinity is not JSON"),
    ({"\ud800": 1}, "lone surrogate"),
]


async def test_arguments_that_cannot_be_read_back_are_told_and_the_tool_does_not_run() -> None:
    ran: list[Any] = []

    @tool
    def pay(amount: Any) -> str:
        """Pay."""
        ran.append(amount)
        return "paid"

    agent = Agent("support", "openai:gpt-5-mini", tools=[pay])
    calls = [call("pay", amount=value) for value in (*(value for value, _ in UNREADABLE), nested(149))]
    async with scripted(agent, [calls, "Done."]) as script:
        run = await script.client.start("support", "Go.")
        response = await run.result()
    assert_closed(response.messages)
    *refused, paid = results(response.messages)
    for said, (_, why) in zip(refused, UNREADABLE, strict=True):
        assert why in said
    assert paid == "paid"
    assert ran == [nested(149)]
