"""A task of MCP outlives its replica and its worker: another of each continues it."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import pytest

from tests.support.engine import Engine
from tests.support.web import serve
from tests.web.test_mcp import ask, connect, poll, read_text, start_task, with_tasks


@pytest.mark.server
@pytest.mark.slow
async def test_an_approval_outlives_the_replica_and_the_worker(engine: Engine) -> None:
    seen: list[dict[str, Any]] = []

    async def look(_: Any, params: Any) -> Any:
        raise AssertionError("the task asks, not the call")

    options: dict[str, Any] = {"extensions": [with_tasks(seen)], "elicitation_callback": look}
    worker = await engine.process("approving")
    with suppress(BaseExceptionGroup):  # the connections of a lost replica
        async with serve(await engine.client()) as first, connect(first, **options) as mcp:
            task = await start_task(mcp, seen, "paying", "ada bob")
            await first.kill()
    async with serve(await engine.client()) as second, connect(second, **options) as mcp:
        asked = (await poll(mcp, task, "input_required"))["inputRequests"]
        assert len(asked) == 2
        await worker.kill()
        first_key, second_key = asked
        yes = {"action": "accept", "content": {"approve": True}}
        no = {"action": "decline"}
        await engine.process("approving")
        await ask(mcp, "tasks/update", task, inputResponses={first_key: yes})
    async with serve(await engine.client()) as third, connect(third, **options) as mcp:
        await ask(mcp, "tasks/update", task, inputResponses={first_key: no, second_key: no})
        done = await poll(mcp, task, "completed")
        assert read_text(done["result"]) == "Done."
    client = await engine.client()
    messages = await asyncio.wait_for(client.run(task).transcript(), 30)
    assert messages[-1].text == "Done."
    assert len(engine.ledger.entries("pay")) == 1
