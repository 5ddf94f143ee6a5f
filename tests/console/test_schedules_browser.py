"""The pages of schedules, and of workers that are in trouble, in a real Chromium: width, axe, pictures."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Literal, get_args
from urllib.parse import quote, unquote

import pytest

from perdure import Agent, Client
from perdure.testing import ScriptedProvider
from tests.console.test_browser import find_violations, office
from tests.support.chromium import PICTURES, Chromium
from tests.support.engine import Engine
from tests.support.typist import Typist, Way
from tests.support.wait import eventually

pytestmark = [pytest.mark.slow, pytest.mark.server]


@asynccontextmanager
async def timetable(engine: Engine, what: str) -> AsyncIterator[tuple[Client, Chromium, dict[str, str]]]:
    """Three schedules, and a queue without workers: a browser for their pages."""
    reporter = Agent("reporter", ScriptedProvider(lambda _: "The **report** is written."), description="Writes reports")
    async with office(engine, reporter, what=what) as (client, at):
        names = {name: f"{engine.task_queue}-{name}" for name in ("morning-report", "sync", "year-end")}
        made = [
            await client.schedule(
                "reporter", "Write the day's report: what was refunded, and why. Send it to the owners of the shop.",
                id=names["morning-report"], cron="0 7 * * 1-5", timezone="Europe/Lisbon", tenant="acme", user="ana",
            ),
            await client.schedule("reporter", "Compare the stock", id=names["sync"], every="15m"),
            await client.schedule("reporter", "Close the year", id=names["year-end"], cron="0 0 1 1 *"),
        ]  # fmt: skip
        try:
            await made[0].trigger()
            await made[2].pause(note="the accountants want to look first", by="ana")

            async def has_run() -> bool:
                runs = (await made[0].describe()).recent
                return bool(runs) and (await client.run(runs[0].id).status()).state == "completed"

            await eventually(has_run)
            idle = Client(client.temporal, store_url=engine.store_url, task_queue=f"{engine.task_queue}-idle")
            for number in range(2):
                await idle.start("reporter", "Go", id=f"{engine.task_queue}-waits-{number}")
            await idle.close()
            paths = {
                "schedules": "/schedules",
                "schedule": f"/schedules/{quote(made[0].id, safe='')}",
                "schedule-paused": f"/schedules/{names['year-end']}",
                "workers-trouble": f"/workers?queue={engine.task_queue}-idle",
            }

            async def is_listed() -> bool:
                page = (await at.open("/schedules?agent=reporter")).page
                return await page.locator("tbody tr").count() == 3

            await eventually(is_listed, every=0.5)
            yield client, at, paths
        finally:
            for schedule in made:
                await schedule.delete()
            for number in range(2):
                await client.run(f"{engine.task_queue}-waits-{number}").terminate()


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_pictures_of_schedules(engine: Engine, scheme: Literal["light", "dark"]) -> None:
    PICTURES.mkdir(parents=True, exist_ok=True)
    async with timetable(engine, "pictures of schedules") as (_, at, paths):
        for name, path in paths.items():
            for size, width in (("", 1280), ("-phone", 390)):
                window = await at.open(path, color_scheme=scheme, viewport={"width": width, "height": 860})
                await window.page.screenshot(path=PICTURES / f"{name}-{scheme}{size}.png")
                assert window.complaints == []
                wide = await window.page.evaluate("document.documentElement.scrollWidth")
                assert wide <= width, f"{name} is {wide} wide on a screen of {width}"


@pytest.mark.node
@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_schedules_have_no_violations_of_wcag(engine: Engine, scheme: Literal["light", "dark"]) -> None:
    async with timetable(engine, "accessibility of schedules") as (_, at, paths):
        found = {name: await find_violations(await at.open(path, color_scheme=scheme)) for name, path in paths.items()}
        assert {name: told for name, told in found.items() if told} == {}


async def test_a_schedule_without_javascript(engine: Engine) -> None:
    async with timetable(engine, "schedules without JavaScript") as (client, at, paths):
        window = await at.open(paths["schedule"], java_script_enabled=False)
        page = window.page
        await page.get_by_text("Pause…").click()
        await page.get_by_label("Note").fill("holidays")
        await page.get_by_role("button", name="Pause the schedule").click()
        await page.get_by_text("It is paused.").wait_for()
        schedule = client.get_schedule(unquote(paths["schedule"].rpartition("/")[2]))
        assert (await schedule.describe()).note == "paused by ada: holidays"
        await page.get_by_text("Delete…").click()
        await page.get_by_role("button", name="Delete the schedule").click()
        assert await page.get_by_role("button", name="Delete the schedule").is_visible(), "not without the tick"


@pytest.mark.parametrize("way", get_args(Way))
async def test_typing_into_forms_of_a_schedule_changes_their_text_alone(engine: Engine, way: Way) -> None:
    async with timetable(engine, "typing into forms of schedules") as (_, at, paths):
        phone = {"viewport": {"width": 390, "height": 800}, "is_mobile": True, "has_touch": True}
        for name in ("schedule", "schedule-paused", "schedules"):
            window = await at.open(paths[name], **(phone if way == "touch" else {}))
            typist = Typist(window, way)
            await typist.type_everywhere()
            assert window.complaints == []
            assert typist.typed > 0 or name == "schedules"
            assert typist.sends_by_enter <= {"GET"}
