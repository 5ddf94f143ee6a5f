"""What is too large for Temporal, sent by a client that knows nothing of it, kills and hangs no run."""

from __future__ import annotations

import asyncio
import json
import uuid
from typing import Any

import pytest
from temporalio.api.common.v1 import Payload
from temporalio.client import WorkflowFailureError, WorkflowHandle
from temporalio.common import RawValue
from temporalio.exceptions import ApplicationError

from perdure import Agent, tool
from perdure.loop.payload_limits import CALLS_AT_ONCE, CONTEXT_BYTES
from perdure.ports.model import ModelRequest
from perdure.testing import ScriptedProvider, call
from tests.support.checks import assert_closed, results, users
from tests.support.engine import Engine
from tests.support.scripts import Gate, replied
from tests.support.wait import eventually

pytestmark = pytest.mark.server


def utf8(value: Any) -> RawValue:
    """JSON as most SDKs write it: as UTF-8, which Python's SDK triples when it hands it on."""
    data = json.dumps(value, ensure_ascii=False).encode()
    return RawValue(Payload(metadata={"encoding": b"json/plain"}, data=data))


async def started(engine: Engine, raw: Any) -> WorkflowHandle[Any, Any]:
    """A run that a plain client started."""
    temporal = await engine.temporal()
    return await temporal.start_workflow(
        "AgentWorkflow", raw, id=f"plain-{uuid.uuid4().hex}", task_queue=engine.task_queue
    )


async def test_a_start_that_is_too_large_fails_at_once_and_says_how_large(engine: Engine) -> None:
    starts: list[tuple[Any, str]] = [
        (utf8({"agent": "a", "message": "ж" * 500_000}), "3,000,015 bytes as JSON and may have 1,048,576"),
        ({"agent": "a", "message": "y" * 2_090_000}, "puts a long one into the store"),
        ({"agent": "a", "message": "go", "context": {"x": "y" * 1_000_000}}, "context has 1,000,009 bytes"),
    ]
    provider = ScriptedProvider(["never"])
    async with engine.served(Agent("a", provider)):
        for raw, said in starts:
            with pytest.raises(WorkflowFailureError) as failed:
                await (await started(engine, raw)).result()
            cause = failed.value.cause
            assert isinstance(cause, ApplicationError)
            assert cause.type == "InvalidInputError"
            assert said in cause.message
    assert provider.requests == []


async def test_a_signal_that_is_too_large_is_refused_and_the_run_goes_on(engine: Engine) -> None:
    gate = Gate()

    async def reply(request: ModelRequest) -> str:
        await gate()
        return " ".join(users(request.messages))

    async with engine.served(Agent("a", ScriptedProvider(reply))) as client:
        handle = await started(engine, {"agent": "a", "message": "one"})
        await eventually(lambda: gate.entered)
        await handle.signal("inject_user_message", utf8("ж" * 500_000))
        await handle.signal("inject_user_message", {"content": {"hash": "nope", "size": 1}})
        await handle.signal("inject_user_message", "two")
        refused = await eventually(lambda: _refused(client.run(handle.id), 2))
        gate.open()
        response = await client.run(handle.id).result()
    assert "3,000,015 bytes as JSON and may have 1,048,576" in refused[0]
    assert "hash" in refused[1]
    assert response.content == "one two"


async def _refused(run: Any, count: int) -> Any:
    refused = (await run.status()).refused
    return refused if len(refused) == count else None


@pytest.mark.slow
async def test_three_hundred_calls_with_the_largest_context_run_and_keep_their_order(engine: Engine) -> None:
    """Together their inputs have 5 MB; the server takes 4 MB from one workflow task. That they begin in steps is the
    loop's: tests/unit/loop/test_receive.py."""
    most, now, ran = 0, 0, 0

    @tool
    async def look(n: int) -> int:
        """Look."""
        nonlocal most, now, ran
        now, ran = now + 1, ran + 1
        most = max(most, now)
        await asyncio.sleep(0)
        now -= 1
        return n

    def reply(request: ModelRequest) -> Any:
        return [call("look", n=n) for n in range(300)] if replied(request) == 0 else "Done."

    assert CALLS_AT_ONCE > 300
    async with engine.served(Agent("a", ScriptedProvider(reply), tools=[look])) as client:
        run = await client.start("a", "go", context={"x": "y" * (CONTEXT_BYTES - 20)})
        response = await run.result()
    assert results(response.messages) == [str(n) for n in range(300)]
    assert ran == 300
    assert_closed(response.messages)


async def test_a_run_that_waits_continues_as_new_when_what_is_signalled_makes_its_history_long(engine: Engine) -> None:
    @tool
    def look() -> str:
        """Look."""
        return "seen"

    session = Agent("idle", ScriptedProvider(["One."]))
    paused = Agent("paused", ScriptedProvider([call("look")]), tools=[look], max_iterations=1, on_limit="pause")
    async with engine.served(session, paused):
        for agent in (session, paused):
            start = {"agent": agent.name, "message": "go", "mode": "session", "max_history_events": 60}
            handle = await started(engine, start)
            first = (await handle.describe()).run_id

            async def again(handle: WorkflowHandle[Any, Any] = handle, first: str | None = first) -> bool:
                await handle.signal("inject_user_message", {"nothing": 1})
                return (await handle.describe()).run_id != first

            await eventually(again)
            assert (await handle.query("status"))["state"] == agent.name
            await handle.terminate()
