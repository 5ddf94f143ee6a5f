"""Collections of garbage beside runs: what open runs, forks and schedules need stays."""

from __future__ import annotations

import asyncio
import sqlite3
import uuid
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from perdure import Agent, Client, File, Message
from perdure.client.retention import Collector, ExecutionState, GarbageReport, TemporalRuns
from perdure.errors import InvalidInputError
from perdure.ports.model import ModelRequest
from perdure.ports.store import Blob, Commit
from perdure.testing import ScriptedProvider
from perdure.types.messages import FilePart, TextPart, iter_file_parts
from tests.support.checks import users
from tests.support.engine import Engine
from tests.support.wait import eventually

TEXT = "long " * 40_000


def count_messages(request: ModelRequest) -> str:
    return f"{len(users(request.messages))} {sum(map(len, users(request.messages)))}"


def counter() -> Agent:
    return Agent("counter", ScriptedProvider(count_messages))


class AgedRuns(TemporalRuns):
    """Temporal, in which closed runs have been closed for long."""

    async def find_state(self, id: str) -> ExecutionState:
        state = await super().find_state(id)
        return replace(state, closed_at=state.closed_at - timedelta(days=100) if state.closed_at else None)


def age_rows(engine: Engine) -> None:
    """Make all that is in the store old."""
    with sqlite3.connect(engine.store_path) as database:
        for table in ("nodes", "blobs"):
            database.execute(f"UPDATE {table} SET used_on = '2026-01-01'")  # noqa: S608 - our own names
        database.execute("UPDATE runs SET created_at = '2026-01-01', updated_at = '2026-01-01'")


async def collect(client: Client) -> GarbageReport:
    """A collection of what is older than 30 days."""
    age = timedelta(days=30)
    collector = Collector(await client.store(), AgedRuns(client), datetime.now(UTC), age, 50, dry_run=False, lost=False)
    await collector.collect()
    return collector.build_report()


async def test_conversations_go_on_beside_collections(engine: Engine) -> None:
    async with engine.served(counter()) as client:
        done = await client.start("counter", TEXT)
        assert (await done.result()).content == f"1 {len(TEXT)}"

        async def chat(number: int, *turns: int) -> None:
            for turn in turns:
                said = await client.send("counter", TEXT, id=f"chat {number}")
                assert (await said.result()).content == f"{turn} {turn * len(TEXT)}"

        await asyncio.gather(*(chat(number, 1, 2) for number in range(6)))
        age_rows(engine)
        talking = asyncio.gather(*(chat(number, 3, 4, 5) for number in range(6)))
        reports = [await collect(client)]
        while not talking.done():
            reports.append(await collect(client))
        await talking
        assert sum(report.runs for report in reports) == 1
        store = await client.store()
        assert await store.get_run(done.id) is None
        assert await store.read_events(done.id) == []
        for number in range(6):
            run = client.run(f"chat {number}")
            assert len(users(await run.transcript())) == 5
            await run.close()
            await run.result()
        age_rows(engine)
        report = await collect(client)
        assert report.runs == 6
        assert await store.list_runs() == []
        age_rows(engine)
        report = await collect(client)
        assert report.nodes > 20
        assert await store.read_old_nodes("9999-01-01", ("", ""), 10) == []
        assert await store.read_old_blobs("9999-01-01", ("", ""), 10) == []


async def test_ages_and_batches_that_make_no_sense_are_refused(engine: Engine) -> None:
    async with engine.served(counter()) as client:
        for wrong in ("1d", "47h", 0, -1, "soon", None, True):
            with pytest.raises(InvalidInputError, match="older_than"):
                await client.collect_garbage(older_than=wrong)  # type: ignore[arg-type]  # wrong on purpose
        for batch in (0, 501, "1"):
            with pytest.raises(InvalidInputError, match="batch"):
                await client.collect_garbage(older_than="2d", batch=batch)  # type: ignore[arg-type]  # wrong on purpose
        assert (await client.collect_garbage(older_than="2d")).runs == 0


async def test_all_keys_whose_time_is_over_are_deleted(engine: Engine) -> None:
    async with engine.served(counter()) as client:
        store = await client.store()
        claims = (store.claim_idempotency(str(n), "h", "me", lease_seconds=0, keep_seconds=0) for n in range(501))
        await asyncio.gather(*claims)
        await client.collect_garbage(older_than="2d")
        assert await store.delete_expired_idempotency() == 0


@pytest.mark.parametrize("by", ["message", "history"])
async def test_a_file_that_is_named_while_it_is_collected_stays(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    async with engine.served(counter()) as client:
        store = await client.store()
        blob = Blob.from_content(b"x" * 50_000)
        await store.commit(Commit(blobs=[blob]))
        age_rows(engine)
        find_blobs = store.find_blobs

        async def collect_behind(names: Sequence[str]) -> set[str]:
            found = await find_blobs(names)
            monkeypatch.undo()
            assert (await collect(client)).blobs == 0
            return found

        monkeypatch.setattr(store, "find_blobs", collect_behind)
        part = FilePart(media_type="text/plain", blob=blob.ref)
        if by == "message":
            run = await client.start("counter", ["look", part])
        else:
            history = [Message(role="user", parts=(TextPart(text="look"), part)), Message.assistant("I see.")]
            run = await client.start("counter", "again", history=history)
        [kept] = list(iter_file_parts((await run.result()).messages))
        assert await client.file(kept) == b"x" * 50_000


@pytest.mark.server
async def test_what_waits_in_temporal_is_held(engine: Engine) -> None:
    client = await engine.client()
    async with engine.served(counter()) as served:
        base = await served.start("counter", TEXT)
        first = await base.result()
    waiting = await client.start("counter", [TEXT, File(b"x" * 50_000, media_type="text/plain")])
    fork = await client.start("counter", "from there", history=first)
    schedule = await client.schedule(
        "counter", "again", id=f"later-{uuid.uuid4().hex[:8]}", cron="0 0 1 1 *", history=first.head, paused=True
    )
    ended = await client.start("counter", "?" * 200_000)
    await ended.terminate("by mistake")

    async def are_listed() -> bool:
        """Temporal's lists show what is new after a moment."""
        listed = [run.id for run in await client.list(status="open")]
        return {waiting.id, fork.id} <= set(listed) and ended.id not in listed and bool(await client.schedules())

    await eventually(are_listed, what="the runs and the schedule in the lists")
    store = await client.store()
    age_rows(engine)
    await store.commit(Commit(blobs=[Blob.from_content(b"nothing")]))
    age_rows(engine)
    report = await collect(client)
    assert (report.runs, report.blobs) == (1, 1)
    assert await store.get_run(base.id) is None
    age_rows(engine)
    assert (await collect(client)).blobs == 0
    await ended.resume()
    async with engine.served(counter()) as served:
        answer = await served.run(waiting.id).result()
        assert answer.content == f"1 {len(TEXT)}"
        [file] = list(iter_file_parts(answer.messages))
        assert await client.file(file) == b"x" * 50_000
        assert (await served.run(fork.id).result()).content == f"2 {len(TEXT) + len('from there')}"
        assert (await served.run(ended.id).result()).content == "1 200000"
        await schedule.trigger()

        async def has_run() -> Any:
            return (await schedule.describe()).recent

        recent = await eventually(has_run, what="a run of the schedule")
        assert (await served.run(recent[0].id).result()).content == f"2 {len(TEXT) + len('again')}"
    await schedule.delete()


@pytest.mark.slow
@pytest.mark.server
async def test_another_namespace_is_refused(engine: Engine) -> None:
    async with engine.served(counter()) as client:
        run = await client.start("counter", "hello")
        await run.result()
        temporal = client.temporal
        await temporal.workflow_service.delete_workflow_execution(_build_deletion(temporal.namespace, run.id))

        async def is_deleted() -> bool:
            return (await TemporalRuns(client).find_state(run.id)).name == "missing"

        await eventually(is_deleted, what="the run to be gone from Temporal")
        with pytest.raises(InvalidInputError, match="none of the newest runs"):
            await client.collect_garbage(older_than="2d")
        assert await (await client.store()).get_run(run.id) is not None


def _build_deletion(namespace: str, id: str) -> Any:
    from temporalio.api.common.v1 import WorkflowExecution
    from temporalio.api.workflowservice.v1 import DeleteWorkflowExecutionRequest

    return DeleteWorkflowExecutionRequest(namespace=namespace, workflow_execution=WorkflowExecution(workflow_id=id))
