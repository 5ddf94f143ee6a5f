"""Schedules by httpx, on a real server: the engine in this process has none."""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import Any
from urllib.parse import quote

import pytest

from perdure import Agent
from perdure.console.schedules import describe_times, read_message
from perdure.testing import ScriptedProvider
from tests.console.test_agents import says
from tests.console.test_hostile import TEXT, check_page
from tests.support.engine import Engine
from tests.support.pages import Html, console
from tests.support.wait import eventually
from tests.support.web import make_caller

ACME, OTHER = make_caller("acme", "operator", tenants=("acme",)), make_caller("other", "operator", tenants=("other",))
VIEWER = make_caller("eve", "viewer")


@pytest.mark.server
async def test_a_schedule_is_paused_resumed_triggered_and_deleted(engine: Engine) -> None:
    agent = Agent("echo", ScriptedProvider(lambda request: f"heard: {request.messages[-1].text}"))
    async with (
        engine.served(agent) as client,
        console(client, ACME, OTHER, VIEWER) as opened,
        AsyncExitStack() as stack,
    ):
        name = f"{engine.task_queue} daily"
        schedule = await client.schedule(
            "echo",
            TEXT,
            id=name,
            cron="0 7 * * 1-5",
            timezone="Europe/Lisbon",
            tenant="acme",
            user="u1",
            by='"><b>eve\u202e',
        )
        stack.push_async_callback(lambda: _delete(schedule))
        path = f"/schedules/{quote(name)}"
        browser = opened.browse("acme")

        async def is_listed() -> Html | None:
            listed = await browser.open("/schedules?agent=echo")
            return listed if f"/console{path}" in {given.get("href") for _, given in listed.tags} else None

        page = await eventually(is_listed)
        check_page(page, browser.response.text)
        assert "at 07:00, Monday to Friday" in page.text
        page = await browser.open(path)
        check_page(page, browser.response.text)
        assert says(page, "at 07:00, Monday to Friday 0 7 * * 1-5")
        assert says(page, "Time zone Europe/Lisbon")
        assert says(page, "alert(1)")
        assert page.text.count(", 07:00 in") == 10, "the next ten times, in the schedule's time zone"
        assert says(page, "It has started none yet.")

        page = await browser.send(page.find_form(path, action="pause"), note="<b>holidays</b>")
        assert browser.response.status_code == 200
        check_page(page, browser.response.text)
        assert "paused by acme: <b>holidays</b>" in page.text
        assert (await schedule.describe()).paused

        page = await browser.send(page.find_form(path, action="trigger"), overlap="allow_all")
        assert "A run was asked for." in page.text

        async def has_run() -> Html | None:
            shown = await browser.open(path)
            return shown if says(shown, "completed") else None

        page = await eventually(has_run)
        [link] = {given["href"] for _, given in page.tags if given.get("href", "").startswith("/console/runs/")}
        await browser.open(link.removeprefix("/console"))
        assert browser.response.status_code == 200

        page = await browser.open(path)
        page = await browser.send(page.find_form(path, action="resume"))
        assert "It goes on." in page.text
        assert not (await schedule.describe()).paused

        whole = f"/schedules/{quote(schedule.id, safe='')}"
        for caller, path_of, status in (("other", path, 404), ("other", whole, 404), ("eve", whole, 200)):
            visitor = opened.browse(caller)
            shown = await visitor.open(path_of)
            assert visitor.response.status_code == status
            assert not [form for form in shown.forms if form.action.endswith("daily")]
        viewer = opened.browse("eve")
        form = page.find_form(path, action="pause")
        shown = await viewer.open(whole)
        await viewer.send(form)
        assert viewer.response.status_code == 403, "a form of another browser"
        assert "No schedule" in (await opened.browse("other").open("/schedules")).text

        await browser.open(path)
        await browser.send(browser.page.find_form(path, action="delete"))
        assert browser.response.status_code == 400, "not without the tick"
        await browser.open(path)
        page = await browser.send(browser.page.find_form(path, action="delete"), sure="1")
        assert "The schedule is deleted." in page.text
        await browser.open(path)
        assert browser.response.status_code == 404
        rows = await (await client.store()).list_audit(subject=schedule.id)
        verbs = {row.verb for row in rows if row.by == "acme"}
        assert verbs >= {"schedule.pause", "schedule.resume", "schedule.trigger", "schedule.delete"}
        assert {row.auth for row in rows if row.by == "acme"} == {"token:acme"}


async def _delete(schedule: Any) -> None:
    from perdure.errors import ScheduleNotFoundError

    try:
        await schedule.delete()
    except ScheduleNotFoundError:
        return


@pytest.mark.server
async def test_a_viewer_and_a_forged_form_change_nothing(engine: Engine) -> None:
    async with engine.served(Agent("echo", ScriptedProvider(["hi"]))) as client, console(client, VIEWER) as opened:
        schedule = await client.schedule("echo", "hi", id=f"{engine.task_queue}-s", every="1h")
        try:
            path = f"/schedules/{schedule.id}"
            viewer, operator = opened.browse("eve"), opened.browse()
            page = await viewer.open(path)
            assert says(page, "takes the role operator")
            own = (await operator.open(path)).find_form(path, action="pause")
            token = next(value for name, value in page.forms[0].fields if name == "form_token") if page.forms else ""
            fields = [(name, token if name == "form_token" else value) for name, value in own.fields]
            own.fields[:] = fields
            await viewer.send(own)
            assert viewer.response.status_code == 403
            for action in ("", "create", "__class__"):
                await operator.open(path)
                form = operator.page.find_form(path, action="pause")
                await operator.send(form, action=action)
                assert operator.response.status_code == 400
            await operator.open(path)
            await operator.send(operator.page.find_form(path, action="pause"), note="x" * 1_001)
            assert operator.response.status_code == 400
            assert not (await schedule.describe()).paused
        finally:
            await schedule.delete()


async def test_no_schedules(engine: Engine) -> None:
    async with engine.served(Agent("echo", ScriptedProvider(["hi"]))) as client, console(client) as opened:
        browser = opened.browse()
        page = await browser.open("/schedules")
        assert "No schedules" in page.text
        page = await browser.open("/schedules?agent=%3Cscript%3E")
        check_page(page, browser.response.text)
        assert "No schedule fits" in page.text
        await browser.open("/schedules?after=nonsense")
        assert browser.response.status_code == 400


@pytest.mark.parametrize(
    ("when", "words"),
    [
        ("0 7 * * 1-5", "at 07:00, Monday to Friday"),
        ("0 9,17 * * *", "at 09:00 and 17:00 every day"),
        ("30 8 1 * *", "at 08:30 on day 1 of the month"),
        ("0 6 * 6-8 *", "at 06:00 in June to August"),
        ("0 0 1 1 *", "at 00:00 on 1 January"),
        ("0 0 1,15 1,7 *", "at 00:00 on day 1 and 15 of January and July"),
        ("*/15 * * * *", "every 15 minutes"),
        ("5 * * * *", "every hour at :05"),
        ("0 */2 * * 0,6", "every 2 hours at :00, Sunday and Saturday"),
        ("*/10 9-17 * * 1-5", "every 10 minutes from 09:00 to 17:59, Monday to Friday"),
        ("30 9-17 * * *", "every hour from 09:30 to 17:30"),
        ("* * * * *", "every minute"),
        ("every 1h30m", "every 1h30m"),
        ("0 7 1-7 * 1", None),
        ("1-3 * * * *", None),
        ("0 -5 * * *", None),
        ("0 5- * * *", None),
        ("0 0 7 * * 1-5 2030", None),
        ("0 7 * * 9", None),
        ("", None),
    ],
)
def test_times_in_words(when: str, words: str | None) -> None:
    assert describe_times(when) == words


@pytest.mark.parametrize(
    ("message", "shown"),
    [
        ("hi", ("hi", False)),
        ({"content": "hi", "by": "ana"}, ("hi", False)),
        ({"input": {"a": 1}, "content": "x"}, ('{\n  "a": 1\n}', True)),
        ({"content": [{"type": "text", "text": "a"}, {"type": "file"}]}, ("a\n[a file]", False)),
        (None, ("", False)),
        (5, ("5", True)),
    ],
)
def test_what_runs_begin_with(message: Any, shown: tuple[str, bool]) -> None:
    assert read_message(message) == shown
