"""Agents on the keyless models, as a newcomer uses them: tools, approvals, typed answers, subagents, sessions."""

from __future__ import annotations

from typing import Literal

import pytest
from pydantic import BaseModel

from perdure import Agent, ModelRetry, load_agent, tool
from perdure.cli.doctor import _check_tools
from perdure.errors import ParseError
from perdure.types.events import ModelDelta
from tests.support.checks import assert_closed, results
from tests.support.engine import Engine
from tests.support.wait import eventually


@tool
async def refund(order_id: str, amount: float) -> str:
    """Refund an order."""
    if amount > 100:
        raise ValueError("more than 100 is not refunded")
    return f"refunded {amount:g} for {order_id}"


async def test_a_tool_is_called_and_its_result_told(engine: Engine) -> None:
    agent = Agent("support", "demo:tools", tools=[refund])
    async with engine.served(agent) as client:
        response = await (await client.start(agent, "Order 77 arrived broken, it cost 12.50.")).result()
        failed = await (await client.start(agent, "Refund order 8: 1,250.")).result()
    assert response.content == "[demo:tools] refund answered: refunded 12.5 for 77"
    assert (response.cost_usd, response.iterations) == (0.0, 2)
    assert [message.model for message in response.messages if message.role == "assistant"] == ["demo:tools"] * 2
    assert failed.content == "[demo:tools] refund failed: ValueError: more than 100 is not refunded"
    assert_closed(response.messages)


@pytest.mark.parametrize("is_approved", [True, False])
async def test_a_call_waits_for_its_approval(engine: Engine, is_approved: bool) -> None:
    agent = Agent("support", "demo:tools", tools=[tool(refund.fn, needs_approval=True)])
    async with engine.served(agent) as client:
        run = await client.start(agent, "Refund order 7: 3 Euro.")

        async def is_waiting() -> bool:
            return bool((await run.status()).approvals)

        await eventually(is_waiting, what="a call that waits")
        await (run.approve if is_approved else run.deny)(by="ana")
        response = await run.result()
    assert response.content.startswith(
        "[demo:tools] refund answered: refunded 3 for 7" if is_approved else "[demo:tools] refund failed: Denied by ana"
    )


class Verdict(BaseModel):
    order_id: str
    state: Literal["open", "closed"]
    note: str


@pytest.mark.parametrize("model", ["demo:echo", "demo:tools"])
async def test_a_typed_answer(engine: Engine, model: str) -> None:
    agent = Agent("judge", model, output=Verdict, tools=[refund])
    async with engine.served(agent) as client:
        verdict = (await (await client.start(agent, "Order 12 is closed.")).result()).output
        assert isinstance(verdict, Verdict)
    assert (verdict.order_id, verdict.state) == ("12", "closed")
    assert verdict.note.startswith(f"[{model}] ")


async def test_a_validator_that_is_never_content_ends_the_run(engine: Engine) -> None:
    agent = Agent("judge", "demo:echo", output=Verdict)

    @agent.output_validator
    def refuse(verdict: Verdict) -> None:
        raise ModelRetry("no")

    async with engine.served(agent) as client:
        with pytest.raises(ParseError):
            await (await client.start(agent, "Order 12.")).result()


async def test_a_subagent_gets_the_words_and_its_answer_comes_back(engine: Engine) -> None:
    clerk = Agent("clerk", "demo:echo", description="Repeats a task.")
    boss = Agent("boss", "demo:tools", subagents=[clerk])
    async with engine.served(boss) as client:
        response = await (await client.start(boss, "Ask the clerk for a task.")).result()
    assert results(response.messages) == ["[demo:echo] Ask the clerk for a task."]


async def test_a_session_streams_its_answers_in_pieces(engine: Engine) -> None:
    agent = Agent("parrot", "demo:echo")
    async with engine.served(agent) as client:
        for text in (" ".join(f"word{number}" for number in range(100)), "Five six."):
            turn = await client.send(agent, text, id="s")
            pieces = [event.text async for event in turn.events() if isinstance(event, ModelDelta)]
            assert pieces or text == "Five six.", "a second of text is streamed"
            assert f"[demo:echo] {text}".startswith("".join(pieces)), "the end comes with the whole reply"
            assert (await turn.result()).content == f"[demo:echo] {text}"


async def test_a_file_and_doctor(engine: Engine) -> None:
    agent = load_agent({"name": "parrot", "model": "demo:echo", "instructions": "Repeat."})
    async with engine.served(agent) as client:
        assert (await (await client.start("parrot", "Hi")).result()).content == "[demo:echo] Hi"
    assert [finding async for finding in _check_tools(agent) if finding.status != "ok"] == []
