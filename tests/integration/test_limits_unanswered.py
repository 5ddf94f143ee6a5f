"""A message that comes during the last model call that a limit allows: the ending says that nothing answers it."""

from __future__ import annotations

from typing import Any

import pytest

from perdure import Agent, Client, Limits, Run, tool
from perdure.errors import BudgetExceededError
from perdure.ports.model import Completed, ModelRequest
from perdure.testing import ScriptedProvider, call
from perdure.types.interface import Status
from perdure.types.messages import TextPart, Usage
from tests.support.checks import assert_closed, users
from tests.support.cli import Cli
from tests.support.engine import Engine
from tests.support.scripts import Gate
from tests.support.wait import eventually


@tool
async def add(a: int, b: int) -> int:
    """Add."""
    return a + b


class Model:
    """One call of 100 tokens that asks for a tool; the answer that is then due stands at the gate."""

    def __init__(self, *, hold: int) -> None:
        self.gate, self.asked, self._hold = Gate(), 0, hold

    async def __call__(self, request: ModelRequest) -> Completed:
        self.asked += 1
        if self.asked == self._hold:
            await self.gate()
        usage = Usage(input_tokens=100)
        if request.tools:
            return Completed((TextPart(text="So far."), call("add", a=1, b=1)), "tool_calls", usage=usage)
        return Completed((TextPart(text="All I know."),), usage=usage)


def agent(model: Any, on_limit: Any) -> Agent:
    limits = Limits(turn=Limits(tokens=50))
    return Agent("asked", model, tools=[add], limits=limits, on_limit=on_limit)


async def interjected(client: Client, model: Model, id: str) -> None:
    """Two messages come while the last model call is under way; one of them has no id."""
    run = client.run(id)
    await eventually(lambda: model.gate.entered)
    before = (await run.status()).queued
    await run.inject("And in winter?", id="m-1")
    await run.inject("And at night?")

    async def heard() -> bool:
        return (await run.status()).queued == before + 2

    await eventually(heard)
    model.gate.open()


async def test_the_turn_of_a_session_says_so(engine: Engine) -> None:
    model = Model(hold=2)
    async with engine.served(agent(ScriptedProvider(model), "finish")) as client:
        turn = await client.send("asked", "Go.", id="s-1")
        await interjected(client, model, "s-1")
        response = await turn.result()
        assert (response.content, response.finish_reason) == ("All I know.", "limit")
        run = client.run("s-1")

        async def told() -> Status | None:
            status = await run.status()
            return status if status.unanswered and status.doing == "message" else None

        assert (await eventually(told)).unanswered == ("m-1", "")
        assert (await turn.result()).unanswered == ("m-1", "")
        again = await (await client.send("asked", "More.", id="s-1")).result()
        assert again.unanswered == (), "the next turn has its own"
        assert (await run.status()).unanswered == ()
        await run.close()
        await run.result()
        messages = await run.transcript()
        ends = [event async for event in turn.events() if event.type == "turn" and event.state == "completed"]
    assert_closed(messages)
    assert [text for text in users(messages) if text.startswith("And")] == ["And in winter?", "And at night?"]
    assert [event.unanswered for event in ends] == [(), ("m-1", "")]


async def run_to_the_limit(client: Client, model: Model) -> Run:
    run = await client.start("asked", "Go.")
    await interjected(client, model, run.id)
    response = await run.result()
    assert response.finish_reason == "limit"
    assert response.unanswered == (await run.status()).unanswered == ("m-1", "")
    return run


async def test_the_result_of_a_run_says_so_under_return(engine: Engine) -> None:
    model = Model(hold=1)
    async with engine.served(agent(ScriptedProvider(model), "return")) as client:
        await run_to_the_limit(client, model)


@pytest.mark.server
async def test_the_result_of_a_run_and_show_and_events_say_so(engine: Engine) -> None:
    cli = Cli(engine.folder, {"TEMPORAL_ADDRESS": engine.address, "PERDURE_STORE_URL": str(engine.store_url)})
    model = Model(hold=2)
    async with engine.served(agent(ScriptedProvider(model), "finish")) as client:
        run = await run_to_the_limit(client, model)
        shown, told = (await cli("show", run.id)).out, (await cli("events", run.id)).out
    said = "at a limit: 2 messages got no answer (m-1)\n"
    assert said in shown
    assert said.replace("\n", ")\n") in told


async def test_under_error_the_error_says_so(engine: Engine) -> None:
    model = Model(hold=1)
    async with engine.served(agent(ScriptedProvider(model), "error")) as client:
        run = await client.start("asked", "Go.")
        await interjected(client, model, run.id)
        with pytest.raises(BudgetExceededError, match="2 messages that came meanwhile got no answer: m-1"):
            await run.result()
        messages = await run.transcript()
    assert_closed(messages)
    assert users(messages) == ["Go.", "And in winter?", "And at night?"]
