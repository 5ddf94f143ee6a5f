"""Workers stand still with a run's workflow tasks: Temporal holds updates back, and clients wait for that to pass."""

from __future__ import annotations

import asyncio
import signal

import pytest

from perdure import Run
from perdure.errors import RunNotReadyError
from tests.support.engine import Engine
from tests.support.wait import eventually
from tests.support.web import ADA, serve

pytestmark = [pytest.mark.server, pytest.mark.slow]

REFUSED_FROM = 3
"""Attempts of a workflow task after which Temporal's server refuses updates."""


async def _attempt(run: Run) -> int:
    return (await run.handle.describe()).raw_description.pending_workflow_task.attempt


async def test_updates_that_temporal_refuses_for_the_moment(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    workers = await asyncio.gather(*(engine.process("approving") for _ in range(4)))
    client = await engine.client()
    run = await client.start("paying", "bob")
    await eventually(lambda: _waits(run))
    [pending] = (await run.status()).approvals
    for worker in workers:  # their polls stay open, so they are given the tasks, and never end one
        worker.process.send_signal(signal.SIGSTOP)
    await run.inject("Hurry.")

    async def refuses() -> bool:
        return await _attempt(run) >= REFUSED_FROM

    await eventually(refuses, deadline=60, every=0.5, what="a workflow task that has timed out twice")
    with pytest.raises(RunNotReadyError, match="takes no requests at present"):
        await run.ask_workflow("status")
    assert [call.run_id for call in await client.approvals() if call.run_id == run.id] == [run.id]
    monkeypatch.setattr("perdure.web.sessions.MESSAGE_SECONDS", 1.0)
    async with serve(client, ADA) as service, service.connect() as http:
        message = {"type": "message", "content": "And carol."}
        answer = await http.post(f"/sessions/{run.id}/events", json=message, headers={"idempotency-key": "k-1"})
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
        assert answer.json()["error"] in ("RunNotReadyError", "NoWorkerError")
    approving = asyncio.create_task(run.approve(hash=pending.hash, call_id=pending.call_id))
    sending = asyncio.create_task(run.send("And dave.", message_id="m-1"))
    await asyncio.sleep(0)
    for worker in workers:
        worker.process.send_signal(signal.SIGCONT)
    assert (await asyncio.wait_for(approving, 60)).state == "approved"
    await asyncio.wait_for(sending, 60)
    await eventually(lambda: engine.ledger.counts("pay") == {"bob": 1})


async def _waits(run: Run) -> bool:
    return bool((await run.status()).approvals)
