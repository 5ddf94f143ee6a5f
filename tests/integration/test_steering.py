"""Messages that join a run, and what ``status`` says meanwhile."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from perdure import Agent, tool
from perdure.errors import RateLimitError
from perdure.ports.model import ModelRequest
from perdure.testing import ScriptedProvider, call
from tests.support.checks import assert_closed, users
from tests.support.engine import Engine
from tests.support.scripts import Gate, replied
from tests.support.wait import eventually


async def in_state(run: Any, **wanted: Any) -> Any:
    """The status once it has these fields."""

    async def look() -> Any:
        status = await run.status()
        return status if all(getattr(status, name) == value for name, value in wanted.items()) else None

    return await eventually(look, what=f"status {wanted}")


async def test_a_message_during_a_model_call_joins_the_next_iteration(engine: Engine) -> None:
    gate = Gate()

    async def reply(request: ModelRequest) -> Any:
        if replied(request) == 0:
            await gate()
        return f"seen {len(users(request.messages))}"

    async with engine.served(Agent("listener", ScriptedProvider(reply))) as client:
        run = await client.start("listener", "one")
        await eventually(lambda: gate.entered)
        await run.inject("two")
        await run.inject("three", id="3")
        await run.inject("three again", id="3")
        assert (await in_state(run, queued=3)).doing == "model"
        gate.open()
        response = await run.result()
    # The first reply was an answer; what arrived before it was recorded extends the turn.
    assert response.content == "seen 3"
    assert users(response.messages) == ["one", "two", "three"]
    assert [message.id for message in response.messages if message.role == "user"] == [None, None, "3"]


async def test_a_message_during_a_tool_call_stands_behind_its_result(engine: Engine) -> None:
    gate = Gate()

    @tool
    async def hold() -> str:
        """Hold."""
        await gate()
        return "held"

    provider = ScriptedProvider([call("hold"), "Done."])
    async with engine.served(Agent("holder", provider, tools=[hold])) as client:
        run = await client.start("holder", "Go.")
        await eventually(lambda: gate.entered)
        status = await in_state(run, doing="tools")
        assert [(child.tool, child.kind) for child in status.calls] == [("hold", "activity")]
        await run.inject("Hurry.")
        await in_state(run, queued=1)
        gate.open()
        response = await run.result()
    assert [message.role for message in response.messages] == ["user", "assistant", "tool", "user", "assistant"]
    assert_closed(response.messages)


@pytest.mark.server
async def test_messages_before_the_first_task_keep_their_order(engine: Engine) -> None:
    client = await engine.client()
    provider = ScriptedProvider(lambda request: " ".join(users(request.messages)))
    run = await client.start("early", "0")
    for n in range(1, 6):
        await run.inject(str(n), id=str(n))
        await run.inject(str(n), id=str(n))
    async with engine.served(Agent("early", provider)):
        response = await run.result()
    assert response.content == "0 1 2 3 4 5"
    assert response.calls == 1


@pytest.mark.fault(
    "Clients",
    "A client sends a signal that cannot be read.",
    "The signal is refused, `status` says so, and the run continues.",
)
async def test_what_cannot_be_understood_is_kept_for_the_status(engine: Engine) -> None:
    gate = Gate()

    async def reply(request: ModelRequest) -> str:
        await gate()
        return "Hello."

    async with engine.served(Agent("tolerant", ScriptedProvider(reply))) as client:
        run = await client.start("tolerant", "hi")
        await eventually(lambda: gate.entered)
        for bad in (7, None, {"text": "hi"}, {"content": 7}, ["hi"]):
            await run.handle.signal("inject_user_message", bad)
        status = await eventually(lambda: _refused(run, 5))
        assert status.queued == 1  # the first message: its call has not answered yet
        gate.open()
        response = await run.result()
    assert users(response.messages) == ["hi"]


async def _refused(run: Any, count: int) -> Any:
    status = await run.status()
    return status if len(status.refused) == count else None


@pytest.mark.server
async def test_the_status_says_why_a_run_is_stuck(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "perdure.client.run.ANSWER_TIMEOUT", timedelta(seconds=1)
    )  # at first no worker is there to give one
    ready = False

    def reply(request: ModelRequest) -> Any:
        return "Hi." if ready else RateLimitError("the quota is used up", retry_after=0.2)

    client = await engine.client()
    run = await client.start("stuck", "hi")
    waiting = await run.status()
    assert waiting.state == "running"
    assert waiting.reason == "no worker answers on its task queue"
    assert waiting.agent == "stuck"
    async with engine.served(Agent("other", ScriptedProvider(["Hi."]))):
        status = await eventually(lambda: _reason(run, "AgentNotFoundError"))
        assert "it serves: other" in status.reason
    async with engine.served(Agent("stuck", ScriptedProvider(reply))):
        status = await eventually(lambda: _reason(run, "RateLimitError"))
        assert "the quota is used up" in status.reason
        assert status.doing == "model"
        ready = True
        assert (await run.result()).content == "Hi."
        assert (await run.status()).state == "completed"


async def _reason(run: Any, part: str) -> Any:
    status = await run.status()
    return status if part in (status.reason or "") else None


@pytest.mark.server
async def test_the_status_of_a_call_that_waits_for_a_worker(engine: Engine) -> None:
    @tool(task_queue="nobody-there")
    async def far() -> str:
        """Run elsewhere."""
        return "far"

    async with engine.served(Agent("remote", ScriptedProvider([call("far"), "Done."]), tools=[far])) as client:
        run = await client.start("remote", "Go.")
        status = await eventually(lambda: _reason(run, "waits for a worker"))
        assert status.reason == "tool.far waits for a worker"
        await run.cancel()
        await in_state(run, state="cancelled")


async def test_many_runs_at_once_do_not_mix(engine: Engine) -> None:
    @tool
    async def double(n: int) -> int:
        """Twice."""
        return 2 * n

    def reply(request: ModelRequest) -> Any:
        n = int(users(request.messages)[0])
        return call("double", n=n) if replied(request) < 2 else f"{n}"

    async with engine.served(Agent("many", ScriptedProvider(reply), tools=[double])) as client:
        runs = await asyncio.gather(*(client.start("many", str(n)) for n in range(20)))
        responses = await asyncio.gather(*(run.result() for run in runs))
    assert [response.content for response in responses] == [str(n) for n in range(20)]
