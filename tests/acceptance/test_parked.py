"""Runs that wait for approval, many more than the worker's cache has room for, and two approvers who race.

``PARKED=1000`` for as many as a team has in bad weeks (``python -m benchmarks --only parked`` prints the same).
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from temporalio.client import Client

from benchmarks.parked import CACHE, check, park

pytestmark = [pytest.mark.server, pytest.mark.slow, pytest.mark.alone, pytest.mark.timeout(900)]

COUNT = int(os.environ.get("PARKED", "120"))
KB_PER_RUN = 200
"""What the worker may take for each: a cached workflow has 60 to 80, and those beyond the cache nothing that stays."""


async def test_what_is_parked_is_found_and_every_call_runs_once(temporal_address: str, tmp_path: Path) -> None:
    client = await Client.connect(temporal_address)
    figures = await park(client, temporal_address, tmp_path, COUNT)
    print({name: value for name, value in figures.items() if name not in ("decided", "ran")})
    check(figures)
    found = [set(mine) for mine in figures["decided"].values()]
    assert set.union(*found) == {str(n) for n in range(COUNT)}
    assert max(map(len, found)) == COUNT, "whoever looked first found all of them"
    lost = [outcome for mine in figures["decided"].values() for outcome in mine.values() if "lost" in outcome]
    assert lost, "nobody raced"
    assert figures["after_kb"] - figures["before_kb"] < KB_PER_RUN * min(COUNT, CACHE) + 40_000
