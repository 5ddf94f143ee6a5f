"""Cancelling: what is in flight stops, what is finished stays, and every call in the transcript has a result."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from typing import Any

import pytest

from perdure import Agent, Client, Message, Run, tool
from perdure.errors import RunCancelledError
from perdure.ports.model import ModelRequest
from perdure.testing import ScriptedProvider, call
from tests.support.checks import assert_closed, results, users
from tests.support.engine import Engine
from tests.support.scripts import Gate
from tests.support.wait import eventually


async def cancelled(client: Client, run: Run) -> Sequence[Message]:
    """Cancel, check how the run ended everywhere, and give its transcript."""
    await run.cancel()
    return await ended(client, run)


async def ended(client: Client, run: Run) -> Sequence[Message]:
    """The same of a run that was cancelled before."""
    with pytest.raises(RunCancelledError):
        await run.result()
    assert (await run.status()).state == "cancelled"
    row = await (await client.store()).get_run(run.id)
    assert row is not None
    assert row.status == "cancelled"
    messages = await run.transcript()
    assert_closed(messages)
    return messages


@pytest.mark.fault(
    "Clients",
    "A client cancels the run.",
    "What is finished is kept. Every tool call has a result, which says so if the call was stopped.",
)
@pytest.mark.server
async def test_an_async_tool_is_stopped(engine: Engine) -> None:
    gate, cleaned = Gate(), threading.Event()

    @tool
    async def quick() -> str:
        """End at once."""
        return "quick"

    @tool
    async def hold() -> str:
        """Hold, and clean up."""
        try:
            await gate()
        except asyncio.CancelledError:
            await asyncio.sleep(0)
            cleaned.set()
            raise
        return "held"

    provider = ScriptedProvider([["Both.", call("quick"), call("hold")]])
    async with engine.served(Agent("holder", provider, tools=[quick, hold])) as client:
        run = await client.start("holder", "Go.")
        await eventually(lambda: gate.entered)
        await eventually(lambda: _waits_for(run, ["hold"]))
        messages = await cancelled(client, run)
        assert cleaned.is_set()
    assert gate.left == 1
    assert [message.role for message in messages] == ["user", "assistant", "tool"]
    first, second = messages[-1].tool_results
    assert (first.content, first.is_error) == ("quick", False)
    assert second.is_error
    assert second.content.startswith("Cancelled: hold")


async def _waits_for(run: Run, names: list[str]) -> bool:
    return [child.tool for child in (await run.status()).calls] == names


@pytest.mark.fault("Clients", "A client cancels the run.")
async def test_a_tool_that_finishes_all_the_same_keeps_its_result(engine: Engine) -> None:
    entered, asked = threading.Event(), threading.Event()

    @tool
    async def stubborn() -> str:
        """Go on."""
        entered.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            asked.set()
        return "done all the same"

    async with engine.served(Agent("stubborn", ScriptedProvider([call("stubborn")]), tools=[stubborn])) as client:
        run = await client.start("stubborn", "Go.")
        await eventually(entered.is_set)
        messages = await cancelled(client, run)
    assert asked.is_set()
    (said,) = results(messages)
    assert said == "done all the same" or said.startswith("Cancelled")


@pytest.mark.server
async def test_a_sync_tool_cannot_be_stopped_and_the_transcript_says_so(engine: Engine) -> None:
    entered, release = threading.Event(), threading.Event()

    @tool
    def block() -> str:
        """Block."""
        entered.set()
        release.wait(30)
        return "blocked"

    async with engine.served(Agent("blocker", ScriptedProvider([call("block")]), tools=[block])) as client:
        run = await client.start("blocker", "Go.")
        await eventually(entered.is_set)
        messages = await cancelled(client, run)
        release.set()
    assert "may still complete" in results(messages)[0]


async def test_an_inline_tool_is_stopped(engine: Engine) -> None:
    gate = Gate()

    @tool(inline=True)
    async def quick() -> str:
        """End at once."""
        return "quick"

    @tool(inline=True)
    async def hold() -> str:
        """Hold."""
        await gate()
        return "held"

    provider = ScriptedProvider([[call("quick"), call("hold"), call("quick")]])
    async with engine.served(Agent("inline", provider, tools=[quick, hold])) as client:
        run = await client.start("inline", "Go.")
        await eventually(lambda: gate.entered)
        messages = await cancelled(client, run)
    first, second, third = messages[-1].tool_results
    assert first.content == "quick"
    assert second.content.startswith("Cancelled")
    assert third.content.startswith("Cancelled")


@pytest.mark.server
async def test_a_model_call_is_stopped(engine: Engine) -> None:
    gate = Gate()

    async def reply(request: ModelRequest) -> Any:
        await gate()
        return "Never."

    async with engine.served(Agent("thinker", ScriptedProvider(reply))) as client:
        run = await client.start("thinker", "Think.")
        await eventually(lambda: gate.entered)
        await run.inject("And this.", id="2")
        messages = await cancelled(client, run)
    assert gate.left == 1
    assert users(messages) == ["Think.", "And this."]


async def test_a_run_that_waits_is_cancelled(engine: Engine) -> None:
    async with engine.served(Agent("idle", ScriptedProvider([]))) as client:
        run = await client.start("idle")
        await eventually(lambda: _waiting(run))
        assert list(await cancelled(client, run)) == []


async def _waiting(run: Run) -> bool:
    return (await run.status()).state == "idle"


@pytest.mark.server
async def test_a_run_that_no_worker_has_seen_is_cancelled(engine: Engine) -> None:
    client = await engine.client()
    run = await client.start("unseen", "hi")
    await run.cancel()
    async with engine.served(Agent("unseen", ScriptedProvider(["Hi."]))):
        messages = await ended(client, run)
    assert users(messages) == ["hi"]


@pytest.mark.server
async def test_a_stuck_run_is_cancelled(engine: Engine) -> None:
    async with engine.served(Agent("other", ScriptedProvider([]))) as client:
        run = await client.start("nobody", "hi")
        await eventually(lambda: _stuck(run))
        messages = await cancelled(client, run)
    assert users(messages) == ["hi"]


async def _stuck(run: Run) -> bool:
    return "AgentNotFoundError" in ((await run.status()).reason or "")
