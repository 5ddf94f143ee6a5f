"""Runs with subagents, with remote tools, and forks, replay as they ran: parents and children."""

from __future__ import annotations

from functools import partial

import pytest
from temporalio.client import WorkflowExecutionStatus

from perdure.testing import replay
from tests.replay import remote, subagents
from tests.replay.scenarios import SCENARIOS, Scenario
from tests.support.children import find_child_id
from tests.support.engine import Engine, side_by_side

pytestmark = pytest.mark.server


@pytest.mark.slow
async def test_what_each_scenario_makes_replays(engine: Engine) -> None:
    with_children = {name: partial(_with_child, make=make) for name, make in _made_in(subagents.__name__).items()}
    alone = {name: partial(_replays, make=make) for name, make in _made_in(remote.__name__).items()}
    assert with_children
    assert alone
    await side_by_side(engine, {**with_children, **alone})


def _made_in(module: str) -> dict[str, Scenario]:
    return {name: make for name, make in SCENARIOS.items() if make.__module__ == module}


async def _replays(engine: Engine, *, make: Scenario) -> None:
    run = await make(engine)
    await replay(client=await engine.client(), id=run.id)  # raises where it does not


async def _with_child(engine: Engine, *, make: Scenario) -> None:
    root = (await make(engine)).id.partition("/")[0]  # it may have given the child
    client = await engine.client()
    for one in (root, await find_child_id(client, root, 1)):
        await replay(client=client, id=one)
    child = await client.run(await find_child_id(client, root, 1)).handle.describe()
    assert child.status is not WorkflowExecutionStatus.RUNNING
