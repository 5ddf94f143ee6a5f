"""Hooks around subagents: what one is asked and has answered may be changed, or vetoed."""

from __future__ import annotations

from typing import Any

import pytest

from perdure import Agent, Veto, hook
from perdure.contrib.hooks import redact
from perdure.errors import HookError, RunNotFoundError
from perdure.testing import ScriptedProvider, call
from tests.integration.test_subagents import echo, told
from tests.support.checks import assert_closed, results, users
from tests.support.children import find_child_id
from tests.support.engine import Engine


async def test_what_a_subagent_is_asked_and_answers_goes_through_hooks_in_order(engine: Engine) -> None:
    seen: list[Any] = []

    @hook("before_subagent")
    def polite(message: str, agent: str) -> str:
        return f"Please, {agent}: {message}"

    @hook("before_subagent")
    async def look(name: str, call_id: str, message: str, ctx: Any) -> None:
        seen.append((name, bool(call_id), message, ctx.agent))

    @hook("after_subagent")
    def shout(result: Any) -> str:
        return result.content.upper()

    @hook("after_subagent")
    def mark(result: Any, name: str) -> Any:
        return result.model_copy(update={"content": f"{name}: {result.content}"})

    replies: Any = [[call("call_researcher", task="look"), call("nothing")], told]
    boss = Agent("boss", ScriptedProvider(replies), subagents=[echo()], hooks=[polite, look, shout, mark])
    async with engine.served(boss) as client:
        run = await client.start(boss, "Go.")
        response = await run.result()
        child = await client.run(await find_child_id(client, run.id, 1)).transcript()
    assert users(child) == ["Please, researcher: look"]
    assert seen == [("call_researcher", True, "Please, researcher: look", "boss")]
    assert response.content.startswith(
        "call_researcher: RESEARCHER: PLEASE, RESEARCHER: LOOK | tool not found: nothing"
    )
    assert results(response.messages)[0] == "call_researcher: RESEARCHER: PLEASE, RESEARCHER: LOOK"
    assert_closed(response.messages)


async def test_a_vetoed_subagent_never_runs_and_the_model_is_told_why(engine: Engine) -> None:
    @hook("before_subagent")
    def no(message: str) -> Veto | None:
        return Veto("not on a Sunday") if "work" in message else None

    replies: Any = [[call("call_researcher", task="work"), call("call_researcher", task="rest")], told]
    boss = Agent("boss", ScriptedProvider(replies), subagents=[echo()], hooks=[no])
    async with engine.served(boss) as client:
        run = await client.start(boss, "Go.")
        response = await run.result()

        with pytest.raises(RunNotFoundError):
            await client.run(await find_child_id(client, run.id, 1)).status()
        assert (await client.run(await find_child_id(client, run.id, 2)).status()).state == "completed"
    assert response.content == "Vetoed: not on a Sunday | researcher: rest"


@pytest.mark.parametrize(
    ("event", "returned"), [("before_subagent", 7), ("before_subagent", "x" * 40_000), ("after_subagent", 7)]
)
async def test_what_such_a_hook_may_not_return_names_it(engine: Engine, event: Any, returned: Any) -> None:
    @hook(event)
    def wrong() -> Any:
        return returned

    replies: Any = [call("call_researcher", task="look")]
    boss = Agent("boss", ScriptedProvider(replies), subagents=[echo()], hooks=[wrong])
    async with engine.served(boss) as client:
        run = await client.start(boss, "Go.")
        with pytest.raises(HookError, match=rf"the hook wrong \({event}\) returned"):
            await run.result()
        assert_closed(await run.transcript())


async def test_redact_keeps_what_a_subagent_says_out_of_the_parents_transcript(engine: Engine) -> None:
    replies: Any = [call("call_researcher", task="look"), told]
    boss = Agent("boss", ScriptedProvider(replies), subagents=[echo()], hooks=[redact([r"l\w+k"])])
    async with engine.served(boss) as client:
        response = await (await client.start(boss, "Go.")).result()
    assert results(response.messages) == ["researcher: [redacted]"]
    assert response.content == "researcher: [redacted]"
