"""Runs that wait for approval, many more than the worker's cache has room for, and two approvers who race.

``PARKED=1000`` for as many as a team has in bad weeks (``python -m benchmarks --only parked`` prints the same).
"""

from __future__ import annotations

import asyncio
import os
import signal
import uuid
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import Client

import perdure
from benchmarks import parked
from benchmarks.parking import AGENT
from perdure.client.visibility import read_pending_memo
from tests.support.wait import eventually

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
    floor = await parked.park(await Client.connect(temporal_address), temporal_address, tmp_path, 6, floor=True)
    parked.check(floor)


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


@pytest.mark.slow
async def test_a_worker_that_stands_still_loses_no_row_of_what_waits(temporal_address: str, tmp_path: Path) -> None:
    """Workflow tasks that it has taken time out meanwhile, and come again behind those of all runs that were started
    later: a call then begins to wait late, and has its row all the same."""
    temporal = await Client.connect(temporal_address)
    queue, store_url = f"still-{uuid.uuid4().hex[:8]}", f"sqlite:///{tmp_path}/store.db"
    client = perdure.Client(temporal, store_url=store_url, task_queue=queue, actor="tests")
    store, waiting = await client.store(), {f"{queue}-{number}" for number in range(24)}
    for name in sorted(waiting):
        await client.start(AGENT, name, mode="session", id=name)
    for number in range(60):
        await client.start(AGENT, None, mode="session", id=f"{queue}-idle-{number}")
    arguments = ("worker", temporal_address, queue, store_url, str(tmp_path / "ledger"), "200")
    async with parked.open_process(*arguments) as worker:

        async def has_begun() -> bool:
            return await store.count_waits() > 4

        await eventually(has_begun)
        os.kill(worker.pid, signal.SIGSTOP)
        await asyncio.sleep(11)  # longer than a workflow task may take
        os.kill(worker.pid, signal.SIGCONT)

        async def has_row_and_memo_of_each() -> bool:
            rows = await store.list_waits(limit=200)
            shown = [await read_pending_memo(await client.run(name).describe()) for name in waiting]
            return {row.context_id for row in rows} == waiting and all(shown)

        await eventually(has_row_and_memo_of_each, deadline=120)
        rows = await store.list_waits(limit=200)
        pending = [call for name in waiting for call in (await client.run(name).status()).approvals]
        assert sorted(row.hash for row in rows) == sorted(call.hash for call in pending), "each once"
    await client.close()
