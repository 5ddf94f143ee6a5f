"""Runs with remote tools, and forks, replay as they ran."""

from __future__ import annotations

import pytest

from perdure.testing import replay
from tests.replay import remote
from tests.replay.scenarios import SCENARIOS
from tests.support.engine import Engine

pytestmark = pytest.mark.server

OWN = {name: make for name, make in SCENARIOS.items() if make.__module__ == remote.__name__}


@pytest.mark.parametrize("name", OWN)
async def test_it_replays(engine: Engine, name: str) -> None:
    run = await OWN[name](engine)
    report = await replay(client=await engine.client(), id=run.id)  # raises where it does not
    assert [one.error for one in report.histories] == [None]
