"""The lease of an ``Idempotency-Key``: renewed by the replica that acts, and soon free after one that was lost."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest

from perdure import Agent, Client
from perdure.client.run import Run
from perdure.errors import StoreError
from perdure.testing import ScriptedProvider
from perdure.web import key_lease
from tests.support.engine import Engine
from tests.support.wait import eventually
from tests.support.web import ADA, serve


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_lease, "LEASE_SECONDS", 0.5)
    monkeypatch.setattr(key_lease, "RENEW_SECONDS", 0.05)


class SlowForks:
    """Forks that wait for the gate, and claims of keys that are counted, and refused while the store is ``away``."""

    def __init__(self, client: Client, monkeypatch: pytest.MonkeyPatch, store: Any) -> None:
        self.gate = asyncio.Event()
        self.begun = self.claims = 0
        self.away = False
        claim, fork = store.claim_idempotency, Run.fork

        async def count(*given: Any, **options: Any) -> Any:
            if self.away:
                raise StoreError("away")
            self.claims += 1
            return await claim(*given, **options)

        async def wait(*given: Any, **options: Any) -> Any:
            self.begun += 1
            await self.gate.wait()
            return await fork(*given, **options)

        monkeypatch.setattr(store, "claim_idempotency", count)
        monkeypatch.setattr(Run, "fork", wait)


async def _fork(http: httpx.AsyncClient) -> httpx.Response:
    return await http.post("/sessions/origin/fork", json={"content": "x"}, headers={"idempotency-key": "k-1"})


async def _open(client: Client, monkeypatch: pytest.MonkeyPatch) -> SlowForks:
    run = await client.start("desk", "Go.", id="origin")
    await run.result()
    return SlowForks(client, monkeypatch, await client.store())


async def test_a_request_that_takes_longer_than_its_lease_keeps_its_key(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with engine.served(Agent("desk", ScriptedProvider(["Done."] * 3))) as client:
        forks = await _open(client, monkeypatch)
        async with serve(client, ADA) as service, service.connect() as http:
            first = asyncio.create_task(_fork(http))
            await eventually(lambda: forks.claims > 12)  # each a renewal later: longer than the lease
            again = await _fork(http)
            assert (again.status_code, again.json()["error"]) == (409, "IdempotencyKeyInUse"), again.text
            assert again.headers["retry-after"] == "1"
            forks.gate.set()
            answer = await first
            assert answer.status_code == 201, answer.text
            replayed = await _fork(http)
            assert (replayed.status_code, replayed.json()["id"]) == (201, answer.json()["id"])
            assert replayed.headers["idempotency-replayed"] == "true"
            assert forks.begun == 1


async def test_a_replica_without_its_store_stops_acting_and_a_repeat_is_the_same_act(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with engine.served(Agent("desk", ScriptedProvider(["Done."] * 3))) as client:
        forks = await _open(client, monkeypatch)
        async with serve(client, ADA) as service, service.connect() as http:
            first = asyncio.create_task(_fork(http))
            await eventually(lambda: forks.claims > 1)
            forks.away = True
            lost = await first
            assert (lost.status_code, lost.json()["error"]) == (503, "IdempotencyKeyLost"), lost.text
            assert lost.headers["retry-after"] == "1"
            forks.away = False
            forks.gate.set()
            answer = await _fork(http)
            assert answer.status_code == 201, answer.text
            assert forks.begun == 2
            assert (await _fork(http)).json()["id"] == answer.json()["id"]
