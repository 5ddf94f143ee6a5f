"""PARITY.md, part D: what an event-driven agent core does, durably."""

from __future__ import annotations

import base64
import re

import pytest

from perdure import Agent, RunContext, ToolContext, hook, tool
from perdure.testing import ScriptedProvider, call
from tests.support.checks import results
from tests.support.engine import Engine
from tests.support.scripts import Gate, calls_then
from tests.support.wait import eventually


@tool
def note(what: str) -> str:
    """Note something."""
    return f"noted {what}"


@pytest.mark.server
async def test_d7_the_state_is_persisted_and_resumed(engine: Engine) -> None:
    """The worker that began the run goes; another one, with nothing in memory, ends it."""
    reply, gate = calls_then(3, "note", what="{n}"), Gate()

    async def held(request: object) -> object:
        await gate()
        return reply(request)  # type: ignore[arg-type]  # ModelRequest

    async with engine.served(Agent("keeper", ScriptedProvider(calls_then(3, "note", what="{n}")), tools=[note])):
        pass  # a worker that is gone before the run begins
    client = await engine.client()
    run = await client.start("keeper", "Go.")
    async with engine.served(Agent("keeper", ScriptedProvider(held), tools=[note])):
        await eventually(lambda: gate.entered, what="a model call")
    async with engine.served(Agent("keeper", ScriptedProvider(reply), tools=[note])):
        response = await run.result()
    assert response.content == "Done."
    assert results(response.messages) == ["noted 0", "noted 1", "noted 2"]


async def test_d1_turns_with_a_message_or_without_and_a_task_id_given_or_made(engine: Engine) -> None:
    replies = [call("note", what="a"), "One.", "Two."]
    async with engine.served(Agent("keeper", ScriptedProvider(replies), tools=[note])) as client:
        given = await client.send("keeper", "Go.", id=f"d1-{engine.task_queue}", task_id="task-7")
        assert (given.task_id, (await given.result()).task_id) == ("task-7", "task-7")
        bare = await client.send("keeper", None, id=given.run.id)
        response = await bare.result()
    assert bare.task_id not in (None, "task-7")
    assert (response.content, response.context_id) == ("Two.", given.run.id)
    assert [message.role for message in response.messages] == ["user", "assistant", "tool", "assistant", "assistant"]


@pytest.mark.server  # reads the whole history
async def test_d5_the_auth_context_reaches_hooks_tools_and_prompts(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And whatever they call; history has it sealed."""
    monkeypatch.setenv("PERDURE_ENCRYPTION_KEYS", f"k1:{base64.b64encode(b'k' * 32).decode()}")
    told: list[str] = []

    def header(ctx: RunContext) -> str:
        assert ctx.auth_context is not None
        return f"Bearer {ctx.auth_context['token']}"

    @hook("before_tool_call")
    def before(ctx: ToolContext) -> None:
        told.append(header(ctx))

    @tool
    async def downstream(ctx: ToolContext) -> str:
        """Call an API for the user."""
        told.append(header(ctx))
        return "called"

    def prompt(ctx: RunContext) -> str:
        assert ctx.auth_context is not None
        told.append(header(ctx))
        return f"You act for {ctx.auth_context['user']}."

    script = ScriptedProvider([[call("downstream")], "Done."])
    agent = Agent("actor", script, tools=[downstream], instructions=prompt, hooks=[before])
    async with engine.served(agent) as client:
        run = await client.start(agent, "Go.", auth_context={"user": "ana", "token": "s3cret"})
        response = await run.result()
    assert told == ["Bearer s3cret"] * 4
    assert response.messages[0].text == "You act for ana."
    raw = (await run.handle.fetch_history()).to_json()
    payloads = [base64.b64decode(data).decode() for data in re.findall(r'"data": ?"([^"]+)"', raw)]
    assert any("perdure1:k1:" in payload for payload in payloads)
    assert not any("s3cret" in text for text in [raw, *payloads])
