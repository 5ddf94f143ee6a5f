"""``perdure answer``, in this process."""

from __future__ import annotations

import json

import pytest

from perdure import Agent, ToolContext, callback_tool, tool
from perdure.testing import ScriptedProvider, call
from tests.integration.test_questions import asked
from tests.support.checks import results
from tests.support.commands import Commands
from tests.support.engine import Engine


@tool
async def pay(ctx: ToolContext) -> str:
    """Pay."""
    return f"paid {await ctx.ask('How much?', float):g}"


read = callback_tool("read", "Read the page.")
look = callback_tool("look", "Look.", output={"type": "object", "required": ["seen"]})


async def test_what_is_asked_is_listed_and_answered(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    cli = Commands(engine, monkeypatch)
    calls = [call("pay"), call("read"), call("look"), call("read")]
    agent = Agent(f"desk-{engine.task_queue}", ScriptedProvider([calls, "Done."]), tools=[pay, read, look])
    async with engine.served(agent) as client:
        run = await client.start(agent, "Go.")
        waits = {one.tool: one.call_id for one in await asked(run, 4)}
        listed = (await cli("approvals", "--agent", agent.name)).out
        assert "    question: How much?\n" in listed
        assert '    form: {"type": "number"}\n' in listed
        assert "    callback: a client runs it\n" in listed
        plain = json.loads((await cli("approvals", "--agent", agent.name, "--json")).out)
        assert sorted(one["kind"] for one in plain) == ["callback", "callback", "callback", "question"]
        assert "waits for an answer: " in (await cli("show", run.id)).out

        unnamed = await cli("answer", run.id, "x")
        assert (unnamed.code, "4 calls of run" in unnamed.err) == (2, True)
        empty = await cli("answer", run.id)
        assert (empty.code, "a value, --input or --error" in empty.err) == (2, True)
        no_json = await cli("answer", run.id, waits["pay"], "much")
        assert (no_json.code, "the answer is not JSON" in no_json.err) == (2, True)
        paid = await cli("answer", run.id, waits["pay"], "3", "--by", "ana")
        assert paid.out == "pay is answered by ana\n"
        wrong = await cli("answer", run.id, waits["look"], "--input", '{"saw": 1}')
        assert (wrong.code, "seen: it is missing" in wrong.err) == (2, True)
        looked = await cli("answer", run.id, waits["look"], "--input", '{"seen": 1}', "--by", "bea", "--json")
        assert json.loads(looked.out)["by"] == "bea"
        await cli("answer", run.id, waits["read"], "3", "--by", "cleo")
        await cli("answer", run.id, "--error", "the page is gone", "--by", "dora")
        await run.result()
        assert results(await run.transcript()) == ["paid 3", "the page is gone", '{"seen": 1}', "3"]
        late = await cli("answer", run.id, waits["look"], "--input", "{}", "--by", "eve")
        assert late.code != 0
        assert "is already answered by bea" in late.err
        shown = (await cli("show", run.id)).out
        assert "← given by cleo: 3" in shown
        assert "✗ given by dora: the page is gone" in shown
        assert f"pay ({waits['pay']}): answered by ana at " in shown
        assert f"look ({waits['look']}): answered by bea at " in shown
        assert ": the page is gone\n" in shown
        assert shown.count(": answered by ") == 4
        told = (await cli("events", run.id)).out + (await cli("events", run.id)).err
        assert "? pay asks: How much?" in told
        assert "(answered: pay by ana: 3.0)" in told or "(answered: pay by ana: 3)" in told
        assert "← read (answered by cleo): 3" in told
