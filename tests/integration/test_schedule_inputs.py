"""What a schedule is made of: what is refused, under which codec it is kept, what its runs begin with."""

from __future__ import annotations

import dataclasses
import uuid
from datetime import UTC, datetime
from typing import Any

import pytest
from temporalio.client import Client as TemporalClient
from temporalio.converter import DataConverter

from perdure import Agent, Client, Message, Run
from perdure.errors import (
    DefinitionError,
    InvalidInputError,
    RunError,
    RunIdError,
    RunNotFoundError,
    ScheduleNotFoundError,
)
from perdure.testing import ScriptedProvider, scripted
from tests.support.checks import users
from tests.support.codec import Backwards
from tests.support.engine import Engine
from tests.support.wait import eventually

pytestmark = pytest.mark.server
YEARLY = "0 0 1 1 *"


@pytest.fixture
def name() -> str:
    """Schedules of all tests are in one namespace."""
    return f"made-{uuid.uuid4().hex[:8]}"


async def test_what_a_schedule_starts_is_under_the_clients_codec(engine: Engine, name: str) -> None:
    converter = dataclasses.replace(DataConverter.default, payload_codec=Backwards())
    encoding = Client(await TemporalClient.connect(engine.address, data_converter=converter), task_queue="any")
    made = await encoding.schedule("desk", "A secret.", id=name, every="1d")
    assert (await made.describe()).start["message"]["content"] == "A secret."
    blind = await (await engine.client()).get_schedule(name).describe()
    assert (blind.agent, blind.start, blind.when) == ("", {}, ("every 1d",)), "the rest can be told all the same"
    assert "secret" not in str(await made.handle.describe())
    await made.delete()


async def test_the_kit_without_a_server_says_what_it_lacks() -> None:
    async with scripted(Agent("scripted", "openai:gpt-5-mini"), []) as script:
        with pytest.raises(RunError, match='engine="temporal"'):
            await script.client.schedule("scripted", "Go.", id="x", every="1h")
        assert await script.client.schedules() == []


async def test_a_scheduled_run_goes_on_from_a_history(engine: Engine, name: str) -> None:
    async with engine.served(Agent("echo", ScriptedProvider(lambda r: "|".join(users(r.messages))))) as client:
        made = await client.schedule("echo", "two", id=name, cron="0 0 * * *", history=[Message.user("one")])
        await made.backfill(datetime(2025, 12, 31, 12, tzinfo=UTC), datetime(2026, 1, 1, 12, tzinfo=UTC))
        run = client.run(f"schedule:{name}-2026-01-01T00:00:00Z")
        await eventually(lambda: _there(run), what="the run")
        assert (await run.result()).content == "one|two"
        await made.delete()


async def _there(run: Run) -> bool:
    try:
        await run.status()
    except RunNotFoundError:
        return False
    return True


async def test_what_is_no_schedule_is_refused_before_one_is_made(engine: Engine, name: str) -> None:
    client = await engine.client()
    typed = Agent("typed", ScriptedProvider([]), max_iterations=3)
    wrong: list[tuple[dict[str, Any], str]] = [
        ({}, "needs cron or every"),
        ({"cron": "every day"}, "CronString does not have 5-7 fields"),
        ({"cron": "61 7 * * *"}, "Minute is not in range"),
        ({"cron": "0 7 30 2 *"}, "is never due: month 2 has no day 30"),
        ({"cron": [YEARLY, ""]}, "must be a cron expression, not"),
        ({"cron": YEARLY, "timezone": "Mars/Base"}, "unknown time zone Mars/Base"),
        ({"every": "1h", "timezone": "Europe/Lisbon"}, "timezone applies to cron"),
        ({"every": "often"}, "every: 'often' is not a duration"),
        ({"every": 1.5}, "whole seconds"),
        ({"cron": YEARLY, "overlap": "maybe"}, "overlap is one of skip, "),
        ({"cron": YEARLY, "mode": "always"}, "mode of a run"),
        ({"cron": YEARLY, "idle_timeout": "soon"}, "idle_timeout"),
        ({"cron": YEARLY, "context": {"size": float("nan")}}, "plain JSON"),
        ({"cron": YEARLY, "auth_context": {"token": "t"}}, "sealed for one run"),
        ({"cron": YEARLY, "auth_ref": ""}, "auth_ref"),
        ({"cron": YEARLY, "if_exists": "attach"}, "if_exists"),
        ({"cron": YEARLY, "message": None}, "needs a message"),
        ({"cron": 7}, "cron must be a cron expression, not 7"),
        ({"cron": YEARLY, "timezone": "\udcff"}, "must name a time zone, not"),
        ({"cron": YEARLY, "note": 7}, "note is text, not 7"),
        ({"cron": YEARLY, "paused": "no"}, "paused is True or False, not 'no'"),
        ({"cron": YEARLY, "id": 7}, "id of a schedule is a text of 1 to 800 bytes, not 7"),
        ({"cron": YEARLY, "id": "x" * 801}, "id of a schedule"),
    ]
    for options, says in wrong:
        with pytest.raises(InvalidInputError, match=says):
            await client.schedule(typed, **{"message": "Go", "id": name, **options})
    with pytest.raises(RunIdError, match="no slash"):  # each run has the id of its schedule in its own
        await client.schedule(typed, "Go", id="a/b", cron=YEARLY)
    with pytest.raises(DefinitionError, match="tools"):
        await client.schedule(typed, "Go", id=name, cron=YEARLY, override={"tools": ["nothing"]})
    with pytest.raises(ScheduleNotFoundError, match=name):
        await client.get_schedule(name).describe()


async def test_notes_and_times_of_any_kind(engine: Engine, name: str) -> None:
    client = await engine.client()
    made = await client.schedule("desk", "Go", id=name, cron=YEARLY, note="half a \ud83d")
    assert (await made.describe()).note == "half a \ufffd"
    await made.pause(note="\udcff", by="a\ud800")
    assert (await made.describe()).note == "paused by a\ufffd: \ufffd"
    with pytest.raises(InvalidInputError, match="times with a time zone"):
        await made.backfill("2026-01-01", datetime(2026, 1, 2, tzinfo=UTC))  # type: ignore[arg-type]  # a mistake
    with pytest.raises(InvalidInputError, match="start of a backfill must be before its end"):
        await made.backfill(datetime(2026, 1, 2, tzinfo=UTC), datetime(2026, 1, 1, tzinfo=UTC))
    assert await client.schedules(limit=0) == []
    await made.delete()


async def test_a_schedule_that_is_not_there(engine: Engine, name: str) -> None:
    client = await engine.client()
    missing = client.get_schedule(name)
    for verb in (missing.pause, missing.resume, missing.trigger, missing.delete, missing.describe):
        with pytest.raises(ScheduleNotFoundError, match="there is no schedule"):
            await verb()
    made = await client.schedule("nobody", "Go", id=name, cron=YEARLY)
    await made.delete()
    with pytest.raises(ScheduleNotFoundError):
        await made.trigger()
    with pytest.raises(ScheduleNotFoundError):
        await made.backfill(datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 1, 2, tzinfo=UTC))
