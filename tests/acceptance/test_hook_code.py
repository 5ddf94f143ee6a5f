"""Hooks may do what a workflow may not: they run once for each outcome, and their code may change under a live run."""

from __future__ import annotations

import asyncio
import signal
from functools import partial

import pytest

from tests.servers.http import Answer, HttpServer, Request
from tests.support.checks import assert_closed, results, users
from tests.support.engine import Engine, side_by_side

pytestmark = pytest.mark.server


KILLED_AT = [
    *(("dice", point) for point in ("model.answered", "model.recorded", "tool.acted", "tool.recorded")),
    *(("quick", point) for point in ("model.recorded", "tool.acted", "tool.recorded")),  # inside the model's activity
]


@pytest.mark.slow
async def test_a_worker_killed_at_any_point_and_other_code_afterwards(engine: Engine) -> None:
    """What was recorded was made by the old code and stays; what is not recorded yet is made by the new."""
    await side_by_side(
        engine, {f"{agent} {point}": partial(_killed_at, agent=agent, point=point) for agent, point in KILLED_AT}
    )


async def _killed_at(engine: Engine, *, agent: str, point: str) -> None:
    asked = 0

    async def answer(request: Request, answer: Answer) -> None:
        nonlocal asked
        asked += 1
        await answer.send(200, f"answer {asked}".encode())

    async with HttpServer(answer) as server:
        url = f"http://127.0.0.1:{server.port}/"
        client = await engine.client()
        doomed = await engine.process("hooking", TEST_KILL_AT=point, TEST_HOOKS="old", TEST_URL=url)
        run = await client.start(agent, "Go.", id=f"{engine.task_queue}-run")
        assert await doomed.gone() == -signal.SIGKILL
        await engine.process("hooking", TEST_HOOKS="new", TEST_URL=url)
        response = await asyncio.wait_for(run.result(), 60)
    assert_closed(response.messages)
    (said,) = users(response.messages)
    first_reply_is_old = point != "model.answered"
    assert ("old" in said, "new" in said) == (first_reply_is_old, not first_reply_is_old)
    first, second = results(response.messages)
    assert first.startswith("old: 0 " if point == "tool.recorded" else "new: 0 "), first
    assert second.startswith("new: 1 ")
    assert response.content.endswith("[new]")
    # Once for each reply and result that counts, and once more for what the lost worker had not recorded.
    counts = {what: sum(engine.ledger.counts(what).values()) for what in ("heard", "said", "after", "finished")}
    expected = {"heard": 1, "said": 3, "after": 2, "finished": 1}
    again = {"model.answered": {"heard": 1, "said": 1}, "tool.acted": {"after": 1}}.get(point, {})
    assert counts == {what: n + again.get(what, 0) for what, n in expected.items()}
    assert await client.memory.list("hooks") == {"tools": 2}
