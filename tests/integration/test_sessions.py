"""Sessions by plain signals: every message that comes after an answer opens a turn, until ``close``."""

from __future__ import annotations

from typing import Any

from perdure import Agent
from perdure.ports.model import ModelRequest
from perdure.testing import ScriptedProvider
from perdure.types.interface import WORKFLOW_TYPE
from tests.support.checks import users
from tests.support.engine import Engine
from tests.support.wait import eventually


async def test_a_session_takes_turns_until_it_is_closed(engine: Engine) -> None:
    def reply(request: ModelRequest) -> Any:
        return f"answer to {users(request.messages)[-1]}"

    async with engine.served(Agent("talker", ScriptedProvider(reply))) as client:
        handle = await client.temporal.start_workflow(
            WORKFLOW_TYPE,
            {"agent": "talker", "message": "one", "mode": "session"},
            id=f"session-{engine.task_queue}",
            task_queue=engine.task_queue,
        )
        run = client.run(handle.id)

        async def waits(turn: int) -> bool:
            status = await run.status()
            return (status.state, status.doing, status.turn) == ("idle", "message", turn)

        await eventually(lambda: waits(1), what="the first answer")
        first = (await run.status()).task_id
        await run.inject("two")
        await eventually(lambda: waits(2), what="the second answer")
        assert (await run.status()).task_id != first
        await handle.signal("close")
        response = await run.result()
    assert response.content == "answer to two"
    assert [message.text for message in response.messages if message.role == "assistant"] == [
        "answer to one",
        "answer to two",
    ]


async def test_a_run_without_a_message_may_be_closed(engine: Engine) -> None:
    async with engine.served(Agent("talker", ScriptedProvider([]))) as client:
        run = await client.start("talker")
        await run.handle.signal("close")
        response = await run.result()
    assert (response.content, response.iterations) == ("", 0)
