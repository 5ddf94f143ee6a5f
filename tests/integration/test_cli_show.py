"""``perdure show`` of a tree: what it has used, also while subagents run."""

from __future__ import annotations

from typing import Any

import pytest

from perdure import Agent, Limits, tool
from perdure.testing import ScriptedProvider, call
from tests.support.children import find_child_id
from tests.support.commands import Commands
from tests.support.engine import Engine
from tests.support.scripts import Gate, replied
from tests.support.wait import eventually


async def test_the_totals_of_a_tree_are_live(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    cli, gate = Commands(engine, monkeypatch), Gate()

    @tool(name="gate")
    async def wait() -> str:
        """Wait until the test opens it."""
        await gate()
        return "passed"

    def reply(name: str) -> Any:
        return lambda request: "Done." if replied(request) else call(name, **({} if name == "gate" else {"task": "x"}))

    low = Agent("low", ScriptedProvider(reply("gate")), tools=[wait])
    mid = Agent("mid", ScriptedProvider(reply("call_low")), subagents=[low])
    limits = Limits(tokens=10_000)
    top = Agent("top", ScriptedProvider(reply("call_mid")), subagents=[mid], limits=limits)

    async def below() -> list[str]:
        return [await find_child_id(client, "t", *ops) for ops in ((1,), (1, 1))]

    async def total_of_the_transcripts() -> int:
        messages = [message for name in ("t", *await below()) for message in await client.run(name).transcript()]
        return sum(message.usage.total_tokens for message in messages if message.usage is not None)

    async with engine.served(top, mid, low) as client:
        run = await client.start(top, "Go.", id="t")
        await eventually(lambda: gate.entered)
        live, text = (await cli("show", "t", "-o", "json")).json, (await cli("show", "t")).out
        tokens = await total_of_the_transcripts()
        own = live["status"]["usage"]["input_tokens"] + live["status"]["usage"]["output_tokens"]
        assert tokens > own > 0
        assert live["tree"]["runs"] == 3
        assert live["tree"]["usage"]["input_tokens"] + live["tree"]["usage"]["output_tokens"] == tokens
        assert live["tree"]["seconds"] >= 0
        assert [use["used"] for use in live["limits"] if use["name"] == "tokens"] == [tokens]
        assert [use["used"] for use in live["status"]["limits"] if use["name"] == "tokens"] == [own]
        assert f"the run has used {tokens} of 10,000 tokens (tokens)\n" in text
        assert "  with its subagents: 3 runs · " in text
        assert [child["call_id"] for child in live["children"]] == ["call_1", "call_1"]
        mid_id, low_id = await below()
        shown = (await cli("show", mid_id, "-o", "json")).json
        assert (shown["tree"]["runs"], [child["id"] for child in shown["children"]]) == (2, [low_id])
        gate.open()
        await run.result()
        ended = (await cli("show", "t", "-o", "json")).json
        usage = ended["tree"]["usage"]
        assert usage == ended["status"]["usage"], "nothing is counted twice once the subagents have ended"
        assert usage["input_tokens"] + usage["output_tokens"] == await total_of_the_transcripts()
