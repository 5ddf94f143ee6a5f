"""Runs that wait for approval, many more than the worker's cache has room for, and two approvers who race.

``PARKED=1000`` for as many as a team has in bad weeks (``python -m benchmarks --only parked`` prints the same).
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import Client

from benchmarks import parked

pytestmark = pytest.mark.server

COUNT = int(os.environ.get("PARKED", "120"))
KB_PER_RUN = 200
"""What the worker may take for each: a cached workflow has 60 to 80, and those beyond the cache nothing that stays."""


@pytest.mark.slow
async def test_what_is_parked_is_found_and_every_call_runs_once(
    temporal_address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parked, "CACHE", 5)
    monkeypatch.setattr(parked, "_WARM", 2)
    await parked_and_decided(temporal_address, tmp_path, 15)


@pytest.mark.slow
@pytest.mark.alone
@pytest.mark.timeout(900)
async def test_more_is_parked_than_the_cache_of_a_worker_has_room_for(temporal_address: str, tmp_path: Path) -> None:
    figures = await parked_and_decided(temporal_address, tmp_path, COUNT)
    assert figures["after_kb"] - figures["before_kb"] < KB_PER_RUN * min(COUNT, parked.CACHE) + 40_000


async def parked_and_decided(address: str, folder: Path, count: int) -> dict[str, Any]:
    client = await Client.connect(address)
    figures = await parked.park(client, address, folder, count)
    print({name: value for name, value in figures.items() if name not in ("decided", "ran")})
    parked.check(figures)
    found = [set(mine) for mine in figures["decided"].values()]
    assert set.union(*found) == {str(n) for n in range(count)}
    assert max(map(len, found)) == count, "the first listing found all of them"
    lost = [outcome for mine in figures["decided"].values() for outcome in mine.values() if "lost" in outcome]
    assert lost, "no two clients raced"
    return figures
