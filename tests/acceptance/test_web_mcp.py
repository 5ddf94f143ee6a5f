"""Calls and tasks of MCP outlive the replica and the worker that serve them: another of each continues them.

Both are real processes, ended by SIGKILL.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from perdure.types.events import ModelDelta
from perdure.types.messages import Message
from perdure.web.mcp import KEY_META
from tests.support.engine import Engine
from tests.support.replicas import replicas_of
from tests.web.test_mcp import ask, connect, poll, read_text, start_task, with_tasks

pytestmark = [pytest.mark.server, pytest.mark.slow]


async def look(_: Any, params: Any) -> Any:
    raise AssertionError("the task asks, not the call")


def list_texts(transcript: list[Message]) -> list[tuple[str, str]]:
    return [(message.role, message.text) for message in transcript]


async def test_a_reply_outlives_the_replica_and_the_worker(engine: Engine, tmp_path: Path) -> None:
    """A client that waits for its call sends it again, and one with a task asks for it: both get the whole reply."""
    go, seen, meta = tmp_path / "go", list[dict[str, Any]](), {KEY_META: engine.task_queue}
    worker = await engine.process("streaming", TEST_GO=str(go))
    client = await engine.client()
    async with replicas_of(engine) as replicas:
        url = await replicas.start()
        with suppress(BaseExceptionGroup):  # the connections of a lost replica
            async with connect(url) as waiting, connect(url, extensions=[with_tasks(seen)]) as mcp:
                task = await start_task(mcp, seen, "slow", "hi")
                calling = asyncio.create_task(waiting.call_tool("slow", {"message": "hello"}, meta=meta))
                calling.add_done_callback(lambda cut: cut.cancelled() or cut.exception())  # nothing else looks at it
                async for event in client.run(task).events():
                    if isinstance(event, ModelDelta):
                        break
                await asyncio.gather(replicas.kill(), worker.kill())
                calling.cancel()  # its SDK may wait for the connection that is gone
        url = await replicas.start()
        await engine.process("streaming", TEST_GO=str(go))
        async with connect(url) as waiting, connect(url, extensions=[with_tasks(seen)]) as mcp:
            calling = asyncio.create_task(waiting.call_tool("slow", {"message": "hello"}, meta=meta))
            assert (await ask(mcp, "tasks/get", task))["status"] == "working"
            go.touch()
            done = await poll(mcp, task, "completed")
            called = await calling
    assert read_text(done["result"]) == read_text(called) == "Half whole."
    assert called.meta is not None
    for run_id, message in ((task, "hi"), (called.meta["perdure/session"], "hello")):
        transcript = await client.run(run_id).transcript(full=True)
        assert list_texts(transcript) == [("user", message), ("assistant", "Half whole.")]
    assert len(await (await client.store()).list_runs()) == 2


async def test_an_approval_outlives_the_replica_and_the_worker(engine: Engine) -> None:
    seen: list[dict[str, Any]] = []
    options: dict[str, Any] = {"extensions": [with_tasks(seen)], "elicitation_callback": look}
    worker = await engine.process("approving")
    yes = {"action": "accept", "content": {"approve": True}}
    no = {"action": "decline"}
    async with replicas_of(engine) as replicas:
        with suppress(BaseExceptionGroup):  # the connections of a lost replica
            async with connect(await replicas.start(), **options) as mcp:
                task = await start_task(mcp, seen, "paying", "ada bob")
                await replicas.kill()
        with suppress(BaseExceptionGroup):
            async with connect(await replicas.start(), **options) as mcp:
                asked = (await poll(mcp, task, "input_required"))["inputRequests"]
                first_key, second_key = asked
                deciding = asyncio.create_task(ask(mcp, "tasks/update", task, inputResponses={first_key: yes}))
                await asyncio.gather(replicas.kill(), worker.kill(), return_exceptions=True)
                await asyncio.gather(deciding, return_exceptions=True)
        await engine.process("approving")
        async with connect(await replicas.start(), **options) as mcp:
            await ask(mcp, "tasks/update", task, inputResponses={first_key: yes})
            await ask(mcp, "tasks/update", task, inputResponses={first_key: no, second_key: no})
            done = await poll(mcp, task, "completed")
            assert read_text(done["result"]) == "Done."
    client = await engine.client()
    transcript = await client.run(task).transcript(full=True)
    assert [message.role for message in transcript] == ["user", "assistant", "tool", "assistant"]
    assert "Denied by dev" in str(transcript[2])
    assert transcript[-1].text == "Done."
    (paid,) = engine.ledger.entries("pay")
    assert paid["key"] == asked[first_key]["params"]["message"].split('"to":"')[1].split('"')[0]
