"""What waits while a chat is open, in this process. At a terminal: test_cli_chat.py."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from dataclasses import replace
from typing import Any

import pytest

from perdure import Agent, ToolContext, tool
from perdure.cli.chat.conversation import ChatSession
from perdure.cli.chat.requests import AnswerEntry, ApprovalEntry
from perdure.cli.chat.terminal import LiveTurn
from perdure.client.decisions import RunWait
from perdure.errors import ApprovalDecidedError, InvalidInputError
from perdure.ports.model import ModelRequest
from perdure.testing import ScriptedProvider, call
from tests.support.checks import users
from tests.support.children import find_child_id
from tests.support.commands import Commands
from tests.support.engine import Engine
from tests.support.scripts import Gate, replied
from tests.support.wait import eventually


async def test_a_chat_decides_calls_of_its_run_and_of_subagents(engine: Engine) -> None:
    """As the prompt of the terminal does it: the session reads what waits, and sends the decisions."""

    @tool(needs_approval=True)
    async def refund(order: str) -> str:
        """Refund an order."""
        return f"refunded {order}"

    @tool
    async def pick(ctx: ToolContext) -> str:
        """Ask."""
        return await ctx.ask("Which?")

    def results(request: ModelRequest) -> str:
        return " | ".join(part.content for part in request.messages[-1].tool_results)

    helper = Agent("helper", ScriptedProvider([call("refund", order="b"), results]), tools=[refund])
    calls = [call("refund", order="a"), call("pick"), call("call_helper", task="x")]
    boss = Agent("boss", ScriptedProvider([calls, results]), tools=[refund, pick], subagents=[helper])
    async with engine.served(boss, helper) as client:
        session = ChatSession(client, "boss", "chat", {})
        turn, _ = await session.send_message("Go.")
        live = LiveTurn()
        async with aclosing(turn.events()) as events:
            async for event in events:
                list(live.feed(event))
                if live.asking_runs:
                    break
        found: dict[str, RunWait] = {}

        async def all_wait() -> bool:
            _, waiting, _ = await session.read_requests(live.asking_runs)
            found.update({f"{one.run_id} {one.call.tool}": one for one in waiting})
            return len(found) == 3

        await eventually(all_wait)
        below = f"{await find_child_id(client, 'chat', 3)} refund"
        assert set(found) == {"chat refund", "chat pick", below}
        shown = found["chat refund"]
        reused = replace(shown, call=shown.call.model_copy(update={"hash": found[below].call.hash}))
        with pytest.raises(InvalidInputError, match="its hash is another"):  # not the call that the prompt had shown
            await session.decide(ApprovalEntry(reused, approved=False))
        await session.decide(ApprovalEntry(shown, approved=False, comment="no"))
        await session.decide(ApprovalEntry(found[below], approved=True))
        with pytest.raises(ApprovalDecidedError, match="already denied"):
            await session.decide(ApprovalEntry(found["chat refund"], approved=True))
        await session.decide(AnswerEntry(found["chat pick"], "this one"))
        answer = (await session.wait_for_answer(turn)).content
        _, waiting, decided = await session.read_requests(live.asking_runs)
    assert answer.split(" | ") == [answer.split(" | ")[0], "this one", "refunded b"]
    assert "no" in answer.split(" | ")[0]
    assert waiting == []
    assert decided["chat", found["chat refund"].call.call_id].state == "denied"


async def test_a_chat_that_comes_back_to_a_paused_run_gets_its_answer(engine: Engine) -> None:
    opened = Gate()

    @tool
    async def gate() -> str:
        """Wait."""
        await opened()
        return "open"

    agent = Agent("guard", ScriptedProvider([call("gate"), "Done.", "Again."]), tools=[gate])
    async with engine.served(agent) as client:
        await ChatSession(client, "guard", "chat", {}).send_message("Go.")
        await eventually(lambda: opened.entered)
        run = client.run("chat")
        await run.pause(by="ana")
        opened.open()

        async def is_paused() -> bool:
            return (await run.status()).state == "paused"

        await eventually(is_paused)
        session = ChatSession(client, "guard", "chat", {})
        details = await session.load_run_details()
        assert details is not None
        turn = await session.find_open_turn(details.status)
        assert turn is not None
        await run.resume()
        assert (await session.wait_for_answer(turn)).content == "Done."
        await run.pause(by="ana")
        await eventually(is_paused)
        assert await session.find_open_turn(await run.status()) is None, "no answer is to come"


async def test_a_pipe_decides_nothing(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """What waits is named on stderr; the next line is a message, also when it is a y."""
    cli = Commands(engine, monkeypatch)

    @tool(needs_approval=True)
    async def refund(order: str) -> str:
        """Refund an order."""
        return f"refunded {order}"

    def reply(request: ModelRequest) -> Any:
        text = users(request.messages)[-1]
        return call("refund", order="a") if text == "Refund" and not replied(request) else f"Heard: {text}"

    async with engine.served(Agent("clerk", ScriptedProvider(reply), tools=[refund])) as client:
        piped = asyncio.ensure_future(cli("chat", "clerk", "--id", "chat", stdin="Refund\ny\n"))

        async def waits() -> bool:
            return any(pending.run_id == "chat" for pending in await client.approvals())

        await eventually(waits)
        await client.run("chat").approve(by="ana")
        done = await piped
    assert (done.code, done.out) == (0, "Heard: Refund\nHeard: y\n")
