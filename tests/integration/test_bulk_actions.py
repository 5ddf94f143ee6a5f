"""Bulk actions: runs that match are resumed or cancelled once each, whatever happens to workers and clients."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import pytest

from perdure import Agent, Client, Run
from perdure.client.bulk_actions import BulkAction, BulkFilter, BulkPreview
from perdure.client.run_pages import RunFilters
from perdure.errors import AuthenticationError, BulkActionNotFoundError, InvalidInputError, PerdureError
from perdure.ports.audit import AuditRow
from perdure.testing import ScriptedProvider, at
from perdure.worker import bulk_actions as bulk_activity
from tests.support.engine import ON_BOTH_STORES, Engine
from tests.support.wait import eventually

pytestmark = pytest.mark.server


class Door:
    """A provider that refuses the key until it is opened."""

    def __init__(self) -> None:
        self.is_open = False
        self.answered: list[datetime] = []
        self.refused = 0

    def __call__(self, _: Any) -> str:
        if not self.is_open:
            self.refused += 1
            raise AuthenticationError("401: the key is wrong")
        self.answered.append(datetime.now(UTC))
        return "done"


def payer(engine: Engine) -> str:
    """The agent's name: Temporal lists the runs of all tests."""
    return f"payer-{engine.task_queue}"


def name_of(engine: Engine, name: str) -> str:
    return f"{name}-{engine.task_queue}"


def strip(client: Client, id: str) -> str:
    return id.removesuffix(f"-{client.task_queue}")


def where(**filters: Any) -> BulkFilter:
    ids = filters.pop("ids", ())
    return BulkFilter(RunFilters(**filters), tuple(ids))


@asynccontextmanager
async def failed_runs(
    engine: Engine, door: Door, *names: str, beside: Sequence[Agent] = (), **options: Any
) -> AsyncIterator[Client]:
    """Runs of agent ``payer`` that have failed at a closed door; its worker also serves the agents ``beside``."""
    agent = Agent(payer(engine), ScriptedProvider(door))
    async with engine.served(agent, *beside) as client:
        for name in names:
            run = await client.start(payer(engine), f"Pay {name}", id=name_of(engine, name), **options)
            with pytest.raises(AuthenticationError):
                await run.result()
        await eventually(partial(_are_listed, client, len(names)))
        yield client


async def _are_listed(client: Client, count: int) -> bool:
    return count == len((await client.list_page(error="AuthenticationError")).runs)


async def count_executions(client: Client, id: str) -> int:
    query = f"WorkflowId = '{id}'"
    return len([one async for one in client.temporal.list_workflows(query)])


async def outcomes(client: Client, id: str) -> dict[str, tuple[str, str | None]]:
    page = await client.bulk_actions.runs(id, limit=200)
    return {strip(client, run.context_id): (run.outcome, run.detail) for run in page.runs}


async def end(client: Client, action: BulkAction) -> BulkAction:
    ended = await client.bulk_actions.wait(action.id, seconds=60)
    assert ended.is_over, ended
    return ended


@ON_BOTH_STORES
async def test_all_that_failed_with_an_error_are_resumed(engine: Engine) -> None:
    door = Door()
    async with failed_runs(engine, door, "inv-1", "inv-2", "inv-3") as client:
        door.is_open = True
        done = await client.start(payer(engine), "Pay nothing", id=name_of(engine, "fine"))
        await done.result()
        chosen = where(error="AuthenticationError", agent=payer(engine))
        preview: BulkPreview = await client.bulk_actions.preview("resume", chosen)
        assert (preview.counts, preview.is_complete) == ({"pending": 3}, True)
        assert sorted(strip(client, run.context_id) for run in preview.runs) == ["inv-1", "inv-2", "inv-3"]
        assert [run.status for run in (await client.list_page(error="AuthenticationError")).runs] == ["failed"] * 3
        action = await client.bulk_actions.start("resume", chosen, as_of=preview.as_of, by="ana", per_second=50)
        assert (action.total, action.by, action.filter["error"]) == (3, "ana", "AuthenticationError")
        ended = await end(client, action)
        assert (ended.state, ended.counts) == ("completed", {"acted": 3})
        for name in ("inv-1", "inv-2", "inv-3"):
            assert (await client.run(name_of(engine, name)).result()).content == "done"
        store = await client.store()
        [bulk] = await store.list_audit(verb="bulk.*")
        assert (bulk.by, bulk.verb, bulk.subject) == ("ana", "bulk.resume", action.id)
        assert "3 of 3 runs" in str(bulk.detail)
        assert "AuthenticationError" in str(bulk.detail)
        rows: list[AuditRow] = await store.list_audit(verb="resume")
        assert sorted((strip(client, row.subject), row.by) for row in rows) == [(f"inv-{n}", "ana") for n in (1, 2, 3)]
        [listed] = (await client.bulk_actions.list()).actions
        assert (listed.id, listed.counts) == (action.id, {"acted": 3})


async def test_what_is_not_acted_on_has_its_reason(engine: Engine) -> None:
    door = Door()
    async with failed_runs(engine, door, "inv-1", "inv-2") as client:
        door.is_open = True
        done = await client.start(payer(engine), "Pay", id=name_of(engine, "done-1"))
        await done.result()
        session = await client.start(payer(engine), "Pay", id=name_of(engine, "open-1"), mode="session")
        await session.turn().result()
        ids = [name_of(engine, name) for name in ("inv-1", "inv-2", "done-1", "open-1", "unknown")]

        async def may_act(run: Any) -> bool:
            return bool(run.id != ids[1])

        async def is_listed() -> bool:
            preview = await client.bulk_actions.preview("resume", where(ids=ids), may_act=may_act)
            return preview.counts == {"pending": 1, "refused": 1, "skipped": 2}

        await eventually(is_listed)
        action = await client.bulk_actions.start("resume", where(ids=ids), may_act=may_act)
        await end(client, action)
        assert await outcomes(client, action.id) == {
            "inv-1": ("acted", None),
            "inv-2": ("refused", "resume needs the permission to operate the run"),
            "done-1": ("skipped", "it has completed"),
            "open-1": ("skipped", "it is idle"),
        }
        action = await client.bulk_actions.start("cancel", where(ids=(ids[3], ids[2])))
        await end(client, action)
        assert await outcomes(client, action.id) == {
            "open-1": ("acted", None),
            "done-1": ("skipped", "it has ended: completed"),
        }
        await session.wait_for_close()
        assert (await client.run(ids[1]).status()).state == "failed"


async def test_of_the_ids_only_those_that_the_other_fields_have(engine: Engine) -> None:
    async with failed_runs(engine, Door(), "inv-1", "inv-2") as client:
        ids = [name_of(engine, name) for name in ("inv-1", "inv-2")]
        later = datetime.now(UTC) + timedelta(days=1)
        for fields, count in (
            ({}, 2),
            ({"search": "PAY inv-2"}, 1),
            ({"search": "key wrong"}, 2),
            ({"search": "nothing"}, 0),
            ({"error": "ToolError"}, 0),
            ({"updated_from": later}, 0),
            ({"updated_from": later - timedelta(days=2)}, 2),
        ):
            preview = await client.bulk_actions.preview("resume", where(ids=ids, **fields))
            assert preview.counts.get("pending", 0) == count, fields


async def test_a_filter_that_names_nothing_or_finds_nothing_is_refused(engine: Engine) -> None:
    async with engine.served(Agent(payer(engine), ScriptedProvider(["done"]))) as client:
        for verb, chosen, text in (
            ("cancel", BulkFilter(), "names nothing"),
            ("resume", where(roots=False), "names nothing"),
            ("delete", where(agent=payer(engine)), "resume or to cancel"),
            ("resume", where(agent=payer(engine)), "no run to resume"),
            ("resume", where(ids=["x"] * 501), "500"),
            ("resume", where(ids=["\0"]), "ids"),
        ):
            with pytest.raises(InvalidInputError, match=text):
                await client.bulk_actions.start(verb, chosen)  # type: ignore[arg-type]  # what callers may send
        for options in ({"per_second": 0}, {"per_second": True}, {"concurrency": 51}, {"concurrency": 0}):
            with pytest.raises(InvalidInputError, match="must be a number"):
                await client.bulk_actions.start("resume", where(agent=payer(engine)), **options)  # type: ignore[arg-type]
        with pytest.raises(BulkActionNotFoundError, match="no bulk action"):
            await client.bulk_actions.get("unknown\0")


async def test_runs_that_started_after_the_preview_are_left_out(engine: Engine) -> None:
    async with engine.served(Agent(payer(engine), ScriptedProvider(lambda _: "done"))) as client:
        first = await client.start(payer(engine), "Pay", id=name_of(engine, "first"), mode="session")
        await first.turn().result()
        before = datetime.now(UTC)
        later = await client.start(payer(engine), "Pay", id=name_of(engine, "later"), mode="session")
        await later.turn().result()
        action = await client.bulk_actions.start("cancel", where(agent=payer(engine)), as_of=before)
        await end(client, action)
        assert await outcomes(client, action.id) == {"first": ("acted", None)}


async def test_they_are_resumed_at_even_intervals(engine: Engine) -> None:
    door = Door()
    async with failed_runs(engine, door, *(f"inv-{n}" for n in range(5))) as client:
        door.is_open = True
        action = await client.bulk_actions.start("resume", where(agent=payer(engine)), per_second=4, concurrency=50)
        await end(client, action)
        runs = (await client.bulk_actions.runs(action.id)).runs
        times = [datetime.fromisoformat(str(run.done_at)) for run in runs]
        assert max(times) - min(times) >= timedelta(seconds=0.75), "four intervals of a quarter of a second"


async def test_two_people_at_once_act_once_on_each_run(engine: Engine) -> None:
    door = Door()
    names = [f"inv-{n}" for n in range(4)]
    async with failed_runs(engine, door, *names) as client:
        door.is_open = True
        actions = await asyncio.gather(
            *(
                client.bulk_actions.start("resume", where(agent=payer(engine)), by=by, per_second=100)
                for by in ("ana", "bo")
            )
        )
        for action in actions:
            assert (await end(client, action)).state == "completed"
        for name in names:
            await client.run(name_of(engine, name)).result()
            assert await count_executions(client, name_of(engine, name)) == 2
        again = await client.bulk_actions.start("resume", where(agent=payer(engine)), id=actions[0].id)
        assert (again.id, again.counts) == (actions[0].id, (await client.bulk_actions.get(actions[0].id)).counts)


async def test_a_run_that_was_resumed_and_failed_again_is_not_resumed_twice(engine: Engine) -> None:
    door = Door()
    async with failed_runs(engine, door, "inv-1") as client:
        lost: list[int] = []

        def lose_the_record() -> None:
            if not lost:
                lost.append(1)
                raise asyncio.CancelledError

        with at("bulk.acted", lose_the_record):
            action = await client.bulk_actions.start("resume", where(agent=payer(engine)))
            assert (await end(client, action)).counts == {"acted": 1}
        assert lost
        await client.run(name_of(engine, "inv-1")).wait_for_close()
        assert await count_executions(client, name_of(engine, "inv-1")) == 2, "the second attempt has resumed nothing"
        rows = await (await client.store()).list_audit(verb="resume")
        assert [strip(client, row.subject) for row in rows] == ["inv-1"]


class Overlap:
    """Makes two attempts of a bulk action overlap: the record of the first is lost behind its act, and the second has
    looked at the run before that. ``meanwhile`` happens in between."""

    def __init__(self, patch: pytest.MonkeyPatch, meanwhile: Callable[[Run[Any]], Awaitable[None]]) -> None:
        self.attempts = 0
        self._meanwhile = meanwhile
        self._resume = bulk_activity._resume
        patch.setattr(bulk_activity, "_resume", self._resume_later)
        patch.setattr(bulk_activity, "_has_changed", self._look)

    async def _resume_later(self, run: Run[Any], *arguments: Any, **options: Any) -> Any:
        if self.attempts:
            await self._meanwhile(run)
        return await self._resume(run, *arguments, **options)

    async def _look(self, *_: Any) -> bool:
        return False

    def lose_the_first_record(self) -> None:
        self.attempts += 1
        if self.attempts == 1:
            raise asyncio.CancelledError


async def _has_state(run: Run[Any], state: str) -> bool:
    return (await run.status()).state == state


async def test_attempts_that_overlap_open_a_run_once(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail_again(run: Run[Any]) -> None:
        await run.wait_for_close()

    overlap, door = Overlap(monkeypatch, fail_again), Door()
    async with failed_runs(engine, door, "inv-1") as client:
        with at("bulk.acted", overlap.lose_the_first_record):
            action = await client.bulk_actions.start("resume", where(agent=payer(engine)))
            assert (await end(client, action)).counts == {"acted": 1}
        assert overlap.attempts == 2
        await client.run(name_of(engine, "inv-1")).wait_for_close()
        assert door.refused == 2, "of the start, and of one resume"


async def test_attempts_that_overlap_end_no_pause_that_came_since(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def pause_again(run: Run[Any]) -> None:
        await eventually(partial(_has_state, run, "idle"))
        await (await engine.client()).run(run.id).pause(reason="stop")
        await eventually(partial(_has_state, run, "paused"))

    overlap = Overlap(monkeypatch, pause_again)
    async with engine.served(Agent(payer(engine), ScriptedProvider(lambda _: "done"))) as client:
        run = await client.start(payer(engine), "Pay", id=name_of(engine, "open-1"), mode="session")
        await run.turn().result()
        await run.pause()

        async def is_found() -> bool:
            preview = await client.bulk_actions.preview("resume", where(agent=payer(engine)))
            return preview.counts == {"pending": 1}

        await eventually(is_found)
        with at("bulk.acted", overlap.lose_the_first_record):
            action = await client.bulk_actions.start("resume", where(agent=payer(engine)))
            assert (await end(client, action)).counts == {"acted": 1}
        assert overlap.attempts == 2
        assert (await run.status()).state == "paused"


async def test_a_bulk_action_is_stopped(engine: Engine) -> None:
    door = Door()
    async with failed_runs(engine, door, *(f"inv-{n}" for n in range(3))) as client:
        door.is_open = True
        action = await client.bulk_actions.start("resume", where(agent=payer(engine)), per_second=0.1)

        async def has_begun() -> bool:
            return (await client.bulk_actions.get(action.id)).counts.get("acted") == 1

        await eventually(has_begun)
        stopped = await client.bulk_actions.stop(action.id, by="bo")
        assert (stopped.state, stopped.stopped_by, stopped.counts) == ("stopped", "bo", {"acted": 1, "pending": 2})
        handle = client.temporal.get_workflow_handle(f"perdure-bulk/{action.id}")
        await handle.result()
        assert (await client.bulk_actions.get(action.id)).counts == {"acted": 1, "pending": 2}


@pytest.mark.server
async def test_a_bulk_action_that_temporal_cancels_is_stopped(engine: Engine) -> None:
    door = Door()
    async with failed_runs(engine, door, *(f"inv-{n}" for n in range(3))) as client:
        action = await client.bulk_actions.start("resume", where(agent=payer(engine)), per_second=0.1)
        handle = client.temporal.get_workflow_handle(f"perdure-bulk/{action.id}")

        async def has_begun() -> bool:
            return (await client.bulk_actions.get(action.id)).counts.get("acted") == 1

        await eventually(has_begun)
        await handle.cancel()
        assert (await end(client, action)).state == "stopped"


async def test_a_bulk_action_without_a_worker_says_so(engine: Engine) -> None:
    door = Door()
    async with failed_runs(engine, door, "inv-1"):
        client = await engine.client()
    action = await client.bulk_actions.start("resume", where(agent=payer(engine)))
    assert "no worker" in str(action.problem)
    await client.bulk_actions.stop(action.id)


async def list_words(client: Client, **filters: Any) -> list[tuple[str, str | None, str | None]]:
    page = await client.list_page(**filters)
    return [
        (strip(client, run.id), run.first_message, run.error_type)
        for run in page.runs
        if strip(client, run.id) != run.id
    ]


@ON_BOTH_STORES
async def test_lists_have_the_first_message_and_the_error_the_newest_first(engine: Engine) -> None:
    door, zoe = Door(), name_of(engine, "zoe")
    async with failed_runs(engine, door, "inv-1", "inv-2", user=zoe) as client:
        door.is_open = True
        session: Run[Any] = await client.start(
            payer(engine), f"Hello  {'x' * 300}\nthere", id=name_of(engine, "talk"), mode="session"
        )
        await session.turn().result()
        turn = await session.send("Another message")
        await turn.result()
        long = f"Hello {'x' * 193}…"
        rows = [("talk", long, None), *((f"inv-{n}", f"Pay inv-{n}", "AuthenticationError") for n in (2, 1))]

        async def is_listed() -> bool:
            return await list_words(client) == rows

        await eventually(is_listed)
        pages = [await client.list_page(user=zoe, limit=1)]
        while pages[-1].cursor is not None:
            pages.append(await client.list_page(user=zoe, limit=1, cursor=pages[-1].cursor))
        assert [strip(client, run.id) for page in pages for run in page.runs] == ["inv-2", "inv-1"]
        assert await list_words(client, search="PAY inv-2") == rows[1:2]
        assert await list_words(client, search="key wrong", user=zoe) == rows[1:]
        assert await list_words(client, search="talk") == rows[:1]
        assert await list_words(client, search="nothing") == []
        listed = await client.list(query=f"TaskQueue = '{client.task_queue}'")
        assert [(strip(client, run.id), run.first_message, run.error_type) for run in listed] == rows
        assert listed[1].error is not None
        assert "401" in listed[1].error
        unrecorded = await client.start("unserved", "Wait", id=name_of(engine, "later"), mode="session")

        async def is_found() -> bool:
            return unrecorded.id in [run.id for run in (await client.list_page(search=unrecorded.id[:-1])).runs]

        await eventually(is_found)


async def test_a_search_without_a_store_is_refused(engine: Engine) -> None:
    client = await engine.client(store=False)
    with pytest.raises(PerdureError, match="no store"):
        await client.list_page(search="x")
    with pytest.raises(PerdureError, match="no store"):
        await client.bulk_actions.preview("resume", where(agent="x"))


async def test_a_worker_that_is_killed_resumes_no_run_twice(engine: Engine) -> None:
    names = [name_of(engine, f"inv-{number}") for number in range(3)]
    door = engine.folder / "door"
    env = {"TEST_AGENT": payer(engine), "TEST_DOOR": str(door)}
    client = await engine.client()
    lost = await engine.process("bulk", **env, TEST_KILL_POINT="bulk.acted")
    for name in names:
        run = await client.start(payer(engine), "Pay", id=name)
        with pytest.raises(AuthenticationError):
            await run.result()
    await eventually(partial(_are_listed, client, 3))
    door.touch()
    action = await client.bulk_actions.start("resume", where(agent=payer(engine)), per_second=20)
    assert await lost.gone() != 0
    assert not (await client.bulk_actions.get(action.id)).is_over
    await engine.process("bulk", **env)
    assert (await end(client, action)).counts == {"acted": 3}
    for name in names:
        assert (await client.run(name).result()).content == "done"
        assert await count_executions(client, name) == 2
    rows = await (await client.store()).list_audit(verb="resume")
    assert sorted(row.subject for row in rows) == sorted(names), "one row each"
