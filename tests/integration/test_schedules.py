"""Schedules: runs that Temporal begins at certain times, on a real server."""

from __future__ import annotations

import asyncio
import uuid
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from temporalio.client import Schedule as TemporalSchedule
from temporalio.client import ScheduleActionStartWorkflow, ScheduleIntervalSpec, ScheduleSpec

from perdure import Agent, Client, Schedule, tool
from perdure.errors import InvalidInputError, RunNotFoundError, ScheduleExistsError
from perdure.ports.model import ModelRequest
from perdure.testing import ScriptedProvider, call
from tests.support.checks import users
from tests.support.engine import Engine
from tests.support.wait import eventually

pytestmark = pytest.mark.server
YEARLY = "0 0 1 1 *"


@pytest.fixture
def name() -> str:
    """Schedules of all tests are in one namespace."""
    return f"nightly-{uuid.uuid4().hex[:8]}"


async def begun(schedule: Schedule, count: int = 1) -> list[str]:
    """Ids of its runs, once there are so many."""

    async def there() -> bool:
        return (await schedule.describe()).begun >= count

    await eventually(there, what=f"{count} runs of {schedule.id}")
    return [one.id for one in (await schedule.describe()).recent]


class Rounds:
    """A model that answers with how often it was asked; ``heard(n)`` is over when that was so often."""

    def __init__(self) -> None:
        self.times: list[float] = []
        self._heard = asyncio.Condition()

    async def __call__(self, request: ModelRequest) -> str:
        async with self._heard:
            self.times.append(asyncio.get_running_loop().time())
            self._heard.notify_all()
            return f"{users(request.messages)[-1]} {len(self.times)}"

    async def heard(self, count: int) -> None:
        async with self._heard, asyncio.timeout(30):
            await self._heard.wait_for(lambda: len(self.times) >= count)


async def test_a_triggered_run_is_a_run_like_any_other(engine: Engine, name: str) -> None:
    agent = Agent("reporter", ScriptedProvider(lambda r: f"{users(r.messages)[-1]}: all is well."), context=None)
    async with engine.served(agent) as client:
        labels = {"tenant": "acme", "user": "ana"}
        made = await client.schedule(agent, "Report", id=name, cron=YEARLY, note="for the board", by="ana", **labels)
        await made.trigger()
        (run_id,) = await begun(made)
        run = client.run(run_id)
        response = await run.result()
        assert (response.content, response.context_id) == ("Report: all is well.", run_id)
        assert [message.by for message in await run.transcript() if message.role == "user"] == ["ana"]
        status = await run.status()
        assert (status.state, status.agent) == ("completed", "reporter")

        async def ended() -> bool:
            return [one.status for one in await client.list(agent="reporter") if one.id == run_id] == ["completed"]

        await eventually(ended, what="the ended run in Temporal's list")
        stored = await (await client.store()).get_run(run_id)
        assert stored is not None
        assert (stored.agent, stored.tenant, stored.user) == ("reporter", "acme", "ana")
        assert [event.type async for event in run.events()][-1] == "run"
        again = await (await client.send(agent, "And now?", id=run_id)).result()
        assert again.content == "And now?: all is well."

        async def listed() -> bool:
            return [one.id for one in await made.runs()] == [run_id]

        await eventually(listed, what="the run in Temporal's list")
        seen = await made.describe()
        assert (seen.agent, seen.when, seen.overlap, seen.note) == ("reporter", ("0 0 1 1 *",), "skip", "for the board")
        assert (seen.next[0].month, seen.next[0].day, seen.begun) == (1, 1, 1)
        assert seen.start["message"]["content"] == "Report"
        await made.delete()


async def test_a_paused_schedule_begins_nothing_and_a_resumed_one_runs_that_each_pay_for_themselves(
    engine: Engine, name: str
) -> None:
    rounds = Rounds()
    async with engine.served(Agent("ticker", ScriptedProvider(rounds))) as client:
        made = await client.schedule("ticker", "Tick", id=name, every=1, paused=True)
        assert (await made.describe()).paused
        await made.trigger()
        await rounds.heard(1)
        await begun(made)
        assert (await made.describe()).begun == 1, "what was due meanwhile was left out"
        await made.resume()
        await rounds.heard(3)
        await made.pause(note="enough", by="ana")
        ids = await begun(made, 3)
        answers = [(await client.run(one).result()).content for one in ids[:3]]
        status = await made.describe()
        listed = [one.id for one in await made.runs()]
        await made.delete()
    assert set(ids[:3]) <= set(listed)
    assert listed == sorted(listed, reverse=True), "the newest first: an id ends with the time"
    assert answers == ["Tick 1", "Tick 2", "Tick 3"], "none is the outcome of another"
    assert all(one.startswith(f"schedule:{name}-2") for one in ids)
    assert (status.paused, status.note, status.when) == (True, "paused by ana: enough", ("every 1s",))


async def test_a_backfill_begins_what_was_due(engine: Engine, name: str) -> None:
    """What is made up for twice is one conversation: Temporal gives both the same id, and nothing said is lost."""
    rounds = Rounds()
    async with engine.served(Agent("ticker", ScriptedProvider(rounds))) as client:
        made = await client.schedule("ticker", "Day", id=name, cron="0 0 * * *", paused=True)
        first = datetime(2025, 12, 31, 12, tzinfo=UTC)
        with pytest.raises(InvalidInputError, match="time zone"):
            await made.backfill(datetime(2025, 12, 31), first)  # noqa: DTZ001  # that is the mistake
        await made.backfill(first, first + timedelta(days=3))
        ids = await begun(made, 3)
        assert ids == [f"schedule:{name}-2026-01-0{day}T00:00:00Z" for day in (1, 2, 3)]
        responses = [await client.run(one).result() for one in ids]
        assert [response.context_id for response in responses] == ids
        await due(made, 1)
        await rounds.heard(4)
        again = await client.run(ids[0]).result()
        assert [message.text for message in again.messages] == ["Day", responses[0].content, "Day", "Day 4"]
        await made.delete()


@tool(needs_approval=True)
async def pay(amount: int) -> str:
    """Pay."""
    return f"paid {amount}"


def model(request: ModelRequest) -> Any:
    """Pays, once in each turn."""
    return "Paid." if request.messages[-1].role == "tool" else call("pay", amount=3)


async def due(schedule: Schedule, day: int, *, overlap: Any = "skip") -> str:
    """Lets the run of that day of January begin; its id."""
    at = datetime(2026, 1, day, tzinfo=UTC)
    await schedule.backfill(at - timedelta(minutes=1), at, overlap=overlap)
    return f"schedule:{schedule.id}-2026-01-{day:02}T00:00:00Z"


async def waits(client: Client, id: str) -> None:
    """Until the run is there, and waits for an approval."""

    async def waiting() -> bool:
        try:
            return (await client.run(id).status()).doing == "approval"
        except RunNotFoundError:
            return False

    await eventually(waiting, what=f"{id} at an approval")


async def test_a_run_that_waits_for_an_approval_when_the_next_is_due(engine: Engine, name: str) -> None:
    async with engine.served(Agent("payer", ScriptedProvider(model), tools=[pay])) as client:
        made = await client.schedule("payer", "Pay.", id=name, cron="0 0 * * *", paused=True)
        first = await due(made, 1)
        await waits(client, first)
        await due(made, 2)

        async def skipped() -> bool:
            return (await made.describe()).skipped == 1

        await eventually(skipped, what="a time that is left out")
        assert (await made.describe()).running == (first,)
        third = await due(made, 3, overlap="buffer_one")
        with pytest.raises(RunNotFoundError):
            await client.run(third).status()
        fourth = await due(made, 4, overlap="allow_all")
        await waits(client, fourth)

        async def in_inbox() -> bool:
            return {one.run_id for one in await client.approvals(agent="payer")} >= {first, fourth}

        await eventually(in_inbox, what="both in the inbox")
        await client.run(first).approve(by="ana")
        assert (await client.run(first).result()).content == "Paid."

        async def third_begun() -> bool:
            # Asked for a description the schedule looks at once what has ended; by itself now and then 55 s later.
            return third in (await made.describe()).running

        await eventually(third_begun, what="the run that waited for the first")
        await waits(client, third)
        assert (await made.describe()).skipped == 1
        for run_id in (third, fourth):
            await client.run(run_id).approve(by="ana")
            assert (await client.run(run_id).result()).content == "Paid."
        await made.delete()


async def test_cancel_other_closes_the_transcript_of_the_run_that_waits(engine: Engine, name: str) -> None:
    async with engine.served(Agent("payer", ScriptedProvider(model), tools=[pay])) as client:
        made = await client.schedule("payer", "Pay.", id=name, cron="0 0 * * *", paused=True)
        first = await due(made, 1)
        await waits(client, first)
        second = await due(made, 2, overlap="cancel_other")
        await waits(client, second)
        assert (await client.run(first).status()).state == "cancelled"
        messages = await client.run(first).transcript()
        asked = [one.id for message in messages for one in message.tool_calls]
        assert [one.call_id for message in messages for one in message.tool_results] == asked != []
        await client.run(second).deny(by="ana")
        await client.run(second).result()
        await made.delete()


async def test_a_schedule_of_that_id_is_refused_or_replaced(engine: Engine, name: str) -> None:
    client = await engine.client()
    made = await client.schedule("nobody", "One", id=name, cron=YEARLY)
    with pytest.raises(ScheduleExistsError, match=name):
        await client.schedule("nobody", "Two", id=name, cron=YEARLY)
    await made.pause(note="holidays")
    again = await client.schedule("other", "Two", id=name, every="2h", if_exists="replace")
    status = await again.describe()
    assert (status.agent, status.when, status.start["message"]["content"]) == ("other", ("every 2h",), "Two")
    assert (status.paused, status.note) == (True, "paused by tests: holidays")
    await again.delete()


async def test_schedules_are_listed_and_those_of_others_are_not(engine: Engine, name: str) -> None:
    client = await engine.client()
    agent = f"agent-{name}"
    cron = ["0 7 * * 1-5", "*/15 8-18 1,15 * *"]
    one = await client.schedule(agent, "Go", id=f"{name}-a", cron=cron, timezone="Europe/Lisbon", every="90m")
    two = await client.schedule(agent, "Go", id=f"{name}-b", every=timedelta(days=1), overlap="allow_all", paused=True)
    spec = ScheduleSpec(intervals=[ScheduleIntervalSpec(every=timedelta(days=1))])
    action = ScheduleActionStartWorkflow("Own", id="own", task_queue="own")
    own = await client.temporal.create_schedule(f"{name}-own", TemporalSchedule(action=action, spec=spec))

    async def listed() -> bool:
        return {one.id async for one in await client.temporal.list_schedules()} >= {one.id, two.id, own.id}

    await eventually(listed, what="all schedules in Temporal's list")
    found = await client.schedules(agent=agent)
    assert [(one.id, one.when, one.timezone, one.overlap, one.paused) for one in found] == [
        (one.id, (*cron, "every 1h30m"), "Europe/Lisbon", "skip", False),
        (two.id, ("every 1d",), None, "allow_all", True),
    ]
    assert len(await client.schedules(limit=1)) == 1
    assert own.id not in [one.id for one in await client.schedules()]
    with pytest.raises(InvalidInputError, match="starts another workflow, not an agent"):
        await client.get_schedule(own.id).describe()
    with pytest.raises(InvalidInputError, match="starts another workflow, not an agent"):
        await client.schedule(agent, "Go", id=own.id, every="1h", if_exists="replace")
    left = (await own.describe()).schedule.action
    assert isinstance(left, ScheduleActionStartWorkflow)
    assert left.workflow == "Own", "it is as it was"
    for schedule in (one, two, own):
        await schedule.delete()
