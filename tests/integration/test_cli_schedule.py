"""``perdure schedule``, in this process on a real server: only that has schedules."""

from __future__ import annotations

import asyncio
import uuid
from typing import Any

import pytest
from temporalio.client import Schedule as TemporalSchedule
from temporalio.client import ScheduleActionStartWorkflow, ScheduleSpec

from perdure import Agent
from perdure.testing import ScriptedProvider
from tests.support.checks import users
from tests.support.commands import Commands
from tests.support.engine import Engine
from tests.support.wait import eventually

pytestmark = pytest.mark.server


@pytest.fixture
def cli(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> Commands:
    return Commands(engine, monkeypatch)


async def test_a_schedule_from_its_making_to_its_end(engine: Engine, cli: Commands) -> None:
    name = f"weekly-{uuid.uuid4().hex[:8]}"
    agent = Agent(f"desk-{name}", ScriptedProvider(lambda r: f"{users(r.messages)[-1]} Done."))
    async with engine.served(agent) as client:
        when = ["--cron", "0 7 * * 1-5", "--timezone", "Europe/Lisbon", "--every", "30d"]
        why = ["-m", "asked by the board", "--by", "ana"]
        made = await cli("schedule", "create", agent.name, "Sum up.", "--id", name, *when, *why)
        assert (made.code, made.err) == (0, "")
        assert made.out.startswith(f"{name}  20")
        taken = await cli("schedule", "create", agent.name, "Sum up.", "--id", name, "--every", "1h")
        assert (taken.code, f"a schedule {name!r} already" in taken.err) == (1, True)

        async def listed() -> bool:
            return (await cli("schedule", "list", "-q", "--agent", agent.name)).out == f"{name}\n"

        await eventually(listed, what="the schedule in the list")
        table = (await cli("schedule", "list", "--agent", agent.name)).out.splitlines()
        assert table[0].split() == ["ID", "AGENT", "WHEN", "NEXT"]
        assert "0 7 * * 1-5; every 30d (Europe/Lisbon)" in table[1]

        prefix = name[:-2]
        triggered = await cli("schedule", "trigger", prefix, "--json")
        assert triggered.json == {"id": name, "triggered": True}

        async def begun() -> bool:
            return (await client.get_schedule(name).describe()).begun == 1

        await eventually(begun, what="the run")
        shown = (await cli("schedule", "show", prefix)).out
        (run,) = [line.split()[1] for line in shown.splitlines() if line.startswith("run ")]
        assert (await cli("wait", run)).out == "Sum up. Done.\n"
        for line in (f"agent     {agent.name}", "says      Sum up.", "overlap   skip", "note      asked by the board"):
            assert f"{line}\n" in shown
        assert (await cli("show", run[:-3])).code == 0, "the beginning of a run's id is enough"
        assert run in (await cli("list", "--agent", agent.name)).out

        paused = await cli("schedule", "pause", name, "-m", "holidays", "--by", "bea")
        assert paused.out == f"{name} is paused\n"
        plain = (await cli("schedule", "show", name, "-o", "json")).json
        assert (plain["paused"], plain["note"], plain["recent"][0]["id"]) == (True, "paused by bea: holidays", run)
        assert (await cli("schedule", "resume", name)).out == f"{name} is resumed\n"
        other = ["--id", name, "--every", "2h", "--replace", "--json"]
        replaced = await cli("schedule", "create", agent.name, "-", *other, stdin="From a file.")
        assert (replaced.json["when"], replaced.json["start"]["message"]["content"]) == (["every 2h"], "From a file.")
        assert (await cli("schedule", "delete", name)).out == f"{name} is deleted\n"


async def test_a_schedule_that_is_not_there_and_wrong_usage(cli: Commands) -> None:
    for command in ("show", "pause", "resume", "trigger", "delete"):
        gone = await cli("schedule", command, "nothing-of-this-name")
        assert (gone.code, "there is no schedule 'nothing-of-this-name'" in gone.err) == (3, True), command
    for arguments, says in [
        (("--id", "x", "--cron", "soon"), "CronString does not have 5-7 fields"),
        (("--id", "x"), "needs cron or every"),
        (("--id", "x", "--every", "1h", "--context", "[]"), "--context must be a JSON object"),
        (("--every", "1h"), "Missing option '--id'"),
    ]:
        refused = await cli("schedule", "create", "desk", "Go.", *arguments)
        assert (refused.code, says in refused.err) == (2, True), refused.err
    unasked = await cli("schedule", "create", "desk", "--id", "x", "--every", "1h")
    assert (unasked.code, "give either MESSAGE or --input" in unasked.err) == (2, True)


async def test_a_prefix_of_several(engine: Engine, cli: Commands) -> None:
    name = f"pair-{uuid.uuid4().hex[:8]}"
    client = await engine.client()
    made = [await client.schedule("desk", "Go.", id=f"{name}-{one}", every="1d") for one in "ab"]

    async def listed() -> bool:
        return len([one for one in await client.schedules() if one.id.startswith(name)]) == 2

    await eventually(listed, what="both in the list")
    several = await cli("schedule", "delete", name)
    assert (several.code, f"{name}-a, {name}-b" in several.err) == (2, True)
    for one in made:
        await one.delete()


@pytest.mark.slow  # in `make test`: the prefixes of test_a_schedule_from_its_making_to_its_end
async def test_a_prefix_is_found_among_more_than_are_listed(engine: Engine, cli: Commands) -> None:
    name = f"zz-{uuid.uuid4().hex[:8]}"
    client = await engine.client()
    made = await asyncio.gather(
        *(client.schedule("desk", "Go.", id=f"{name}-{one:03}", every="1d", paused=True) for one in range(101))
    )

    async def listed() -> bool:
        ids = [one.id async for one in await client.temporal.list_schedules()]
        return sum(one.startswith(name) for one in ids) == len(made)

    await eventually(listed, what="all in the list")
    shown = await cli("schedule", "show", f"{name}-10", "--json")
    assert (shown.code, shown.json["id"]) == (0, f"{name}-100"), shown.err
    await asyncio.gather(*(one.delete() for one in made))


async def test_what_others_have_scheduled_is_shown_whatever_it_is(engine: Engine, cli: Commands) -> None:
    name = f"odd-{uuid.uuid4().hex[:8]}"
    client = await engine.client()
    deep: dict[str, Any] = {}
    for _ in range(900):
        deep = {"a": deep}
    inputs: list[Any] = [
        {"agent": "a\x1b[31m\nred", "message": "half a \ud83d"},
        {"agent": "a", "message": {"input": deep}},
        {"agent": 5, "message": [1]},
        ["no object"],
    ]
    for place, given in enumerate(inputs):
        action = ScheduleActionStartWorkflow("AgentWorkflow", given, id=name, task_queue="nobody")
        await client.temporal.create_schedule(f"{name}-{place}", TemporalSchedule(action=action, spec=ScheduleSpec()))

    async def listed() -> bool:
        return len([one async for one in await client.temporal.list_schedules() if one.id.startswith(name)]) == 4

    await eventually(listed, what="all in the list")
    table = await cli("schedule", "list")
    assert (table.code, "\x1b" in table.out) == (0, False), table.err
    assert [line.split()[1:] for line in table.out.splitlines() if line.startswith(name)] == [
        ["a\\x1b[31m\\nred", "never"],
        ["never"],
        ["5", "never"],
        ["never"],
    ]
    told = {one["id"]: one["start"] for one in (await cli("schedule", "list", "--json")).json}
    assert told[f"{name}-0"]["message"] == "half a \ufffd"
    assert told[f"{name}-1"] == {}, "no run begins with what is nested so deep"
    for place in range(len(inputs)):
        assert (await cli("schedule", "show", f"{name}-{place}")).code == 0
        await client.get_schedule(f"{name}-{place}").delete()
