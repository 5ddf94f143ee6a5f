"""Runs that call other agents replay as they ran, parents and children."""

from __future__ import annotations

import pytest
from temporalio.client import WorkflowExecutionStatus

from perdure.testing import replay
from tests.replay import subagents
from tests.replay.scenarios import SCENARIOS
from tests.support.engine import Engine

pytestmark = pytest.mark.server

MADE = {name: make for name, make in SCENARIOS.items() if make.__module__ == subagents.__name__}


@pytest.mark.parametrize("name", sorted(MADE))
async def test_it_replays(engine: Engine, name: str) -> None:
    root = (await MADE[name](engine)).id.partition("/")[0]  # it may have given the child
    client = await engine.client()
    for one in (root, f"{root}/1"):
        await replay(client=client, id=one)  # raises where it does not
    child = await client.run(f"{root}/1").handle.describe()
    assert child.status is not WorkflowExecutionStatus.RUNNING
