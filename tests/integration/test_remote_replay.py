"""Runs with remote tools, and forks, replay as they ran."""

from __future__ import annotations

import runpy
from unittest.mock import patch

import pytest

from perdure.testing import replay
from tests.replay.scenarios import SCENARIOS
from tests.support.engine import Engine

pytestmark = pytest.mark.server

with patch.dict(SCENARIOS, clear=True):  # which of them are stored is for tests/replay to say
    runpy.run_module("tests.replay.remote")
    OWN = dict(SCENARIOS)


@pytest.mark.parametrize("name", OWN)
async def test_it_replays(engine: Engine, name: str) -> None:
    run = await OWN[name](engine)
    report = await replay(client=await engine.client(), id=run.id)  # raises where it does not
    assert [one.error for one in report.histories] == [None]
