"""A run whose id is that of another's conversation, or of a deleted one, ends without reading or writing anything."""

from __future__ import annotations

from typing import Any

import pytest

from perdure import Agent
from perdure.client.retention import is_id_deleted
from perdure.errors import RunIdError
from perdure.testing import ScriptedProvider
from tests.support.engine import Engine


@pytest.mark.fault(
    "Borders",
    "A plain Temporal client starts a run over the row of another tenant, user or root, or of a deleted run.",
    "The run fails. It reads and writes nothing of that row.",
)
@pytest.mark.parametrize(
    ("labels", "resume"),
    [
        ({}, False),  # with resume it gets the labels of the conversation: decision 036
        ({"user": "eve"}, False),
        ({"user": "eve"}, True),
    ],
)
async def test_a_start_over_the_row_of_another(engine: Engine, labels: dict[str, Any], resume: bool) -> None:
    """As for a conversation that Temporal has forgotten: its rows are those of another id here."""
    asked: list[Any] = []

    def reply(request: Any) -> str:
        asked.append(request)
        return "heard"

    agent = Agent("support", ScriptedProvider(reply))
    async with engine.served(agent) as client:
        store = await client.store()
        own = await client.start(agent, "SECRET", id=f"own-{engine.task_queue}", user="ann")
        await own.result()
        row, events = await store.get_run(own.id), await store.read_events(own.id)
        start = {"agent": "support", "message": "steal", "resume": resume, **labels}
        thief = await client.temporal.start_workflow("AgentWorkflow", start, id=own.id, task_queue=engine.task_queue)
        with pytest.raises(RunIdError, match="this id cannot be used"):
            await client.run(thief.id).result()
        assert (await store.get_run(own.id), await store.read_events(own.id)) == (row, events)
    assert len(asked) == 1


@pytest.mark.fault(
    "Borders", "A plain Temporal client starts a run over the row of another tenant, user or root, or of a deleted run."
)
@pytest.mark.parametrize("resume", [False, True])
async def test_a_message_after_the_deletion_brings_nothing_back(engine: Engine, resume: bool) -> None:
    agent = Agent("support", ScriptedProvider(lambda _: "heard"))
    async with engine.served(agent) as client:
        store = await client.store()
        run = await client.start(agent, "One.", id=f"gone-{engine.task_queue}")
        await run.result()
        await client.delete(run.id)
        assert await is_id_deleted(store, run.id)
        assert not await is_id_deleted(store, "another")
        start = {"agent": "support", "message": "Two.", "resume": resume}
        await client.temporal.start_workflow("AgentWorkflow", start, id=run.id, task_queue=engine.task_queue)
        with pytest.raises(RunIdError, match="this id cannot be used"):
            await client.run(run.id).result()
        assert (await store.get_run(run.id), await store.read_events(run.id)) == (None, [])
