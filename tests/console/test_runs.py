"""The list of runs: what each waits for, the address as a filter, and what is done with those that are ticked."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import quote

import pytest

from perdure import Agent, Approval, ToolContext, tool
from perdure.testing import ScriptedProvider, call
from tests.console.test_access import wait_for_waits
from tests.console.test_run import script, served
from tests.support.engine import Engine
from tests.support.pages import Browser, Html, console
from tests.support.wait import eventually
from tests.support.web import make_caller


@tool(needs_approval=Approval(expires="45m"))
def refund(amount: int) -> str:
    """Refund."""
    return "refunded"


@tool
async def ask_size(ctx: ToolContext) -> str:
    """Ask for the size."""
    return await ctx.ask("Which size?", str)


async def read_rows(browser: Browser, path: str = "/runs") -> dict[str, str]:
    """Status and what is awaited of each run, as the list shows it."""
    await browser.open(path)
    cells = re.findall(r'name="item" value="(.*?)".*?</td><td>(.*?)</td>', browser.response.text, re.DOTALL)
    return {run_id: " ".join(Html(cell).text.split()) for run_id, cell in cells}


async def test_each_row_says_what_its_run_waits_for(engine: Engine) -> None:
    agents = [
        Agent("payer", script([call("refund", amount=1), call("refund", amount=2)], "done"), tools=[refund]),
        Agent("tailor", script([call("ask_size")], "done"), tools=[ask_size]),
        Agent("desk", script(call("call_payer", task="Pay"), "done"), subagents=["payer"]),
        Agent("talker", ScriptedProvider(lambda _: "hello")),
    ]
    agents[2] = Agent("desk", script(call("call_payer", task="Pay"), "done"), subagents=[agents[0]])
    limited = make_caller("lim", "viewer", agents=("desk",))
    async with engine.served(*agents) as client, console(client, limited) as opened:
        for name in ("payer", "tailor", "desk", "talker"):
            await client.start(name, "Go", mode="session", id=f"run-{name}")
        await client.run("run-talker").turn().result()
        await wait_for_waits(client, 5)
        browser = opened.browse()

        async def are_shown() -> bool:
            rows = await read_rows(browser)
            states = {"payer": "waiting", "tailor": "waiting", "talker": "idle"}
            return all(rows.get(f"run-{name}", "").startswith(state) for name, state in states.items())

        await eventually(are_shown)
        rows = await read_rows(browser)
        assert rows["run-payer"].startswith("waiting approval: refund +1 · deadline in 44 min")
        assert rows["run-tailor"] == "waiting answer: ask_size"
        assert rows["run-talker"] == "idle for a message"
        assert rows["run-desk"].startswith("running approval: refund in payer +1 · deadline in")
        [wait] = [wait for wait in (await client.list_waits()).waits if wait.tool == "ask_size"]
        address = f"/console/inbox/run-tailor/{quote(wait.call_id, safe='')}?hash={wait.hash}"
        assert address in {given.get("href") for _, given in browser.page.tags}
        rows = await read_rows(browser, "/runs?status=waiting")
        assert sorted(rows) == ["run-payer", "run-tailor"], "what waits for a person"
        rows = await read_rows(opened.browse("lim"))
        assert rows == {"run-desk": "running"}, "nor what a subagent of another agent asks for"


async def test_a_session_that_has_gone_on_waits_for_no_message(engine: Engine) -> None:
    from tests.console.test_run import Thinker

    thinker = Thinker()
    thinker.go.set()
    async with served(engine, Agent("thinker", thinker)) as (client, opened):
        run = await client.start("thinker", "Go", mode="session", id="run-1")
        await run.turn().result()
        browser = opened.browse()

        async def shows(text: str) -> bool:
            return await read_rows(browser) == {"run-1": text}

        await eventually(lambda: shows("idle for a message"))
        thinker.go.clear()
        turn = await run.send("Again")
        await eventually(lambda: shows("running"))
        thinker.go.set()
        await turn.result()
        await eventually(lambda: shows("idle for a message"))


async def test_the_address_is_the_filter(engine: Engine) -> None:
    agents = [Agent(name, ScriptedProvider(lambda _: "hello")) for name in ("one", "two")]
    async with served(engine, *agents) as (client, opened):
        first = await client.start("one", "Go", tenant="acme", user="zoe")
        second = await client.start("two", "Go", mode="session")
        await first.result()
        await second.turn().result()
        browser = opened.browse()

        async def list_runs(query: str) -> set[str]:
            page = await browser.open(f"/runs{query}")
            return {run.id for run in (first, second) if run.id in page.text}

        both = {first.id, second.id}
        assert await list_runs("") == both
        assert "zoe" in browser.page.text
        assert await list_runs("?agent=one&tenant=acme") == {first.id}
        assert await list_runs("?status=completed") == {first.id}
        assert await list_runs("?user=zoe") == {first.id}
        assert await list_runs("?agent=nobody") == set()
        assert "No run fits" in browser.page.text
        now, hour = datetime.now(UTC), timedelta(hours=1)
        before, after = (quote((now + step).isoformat()) for step in (-hour, hour))
        assert await list_runs("?started=1h") == await list_runs(f"?started={before}/{after}") == both
        assert "in the last hour" in browser.page.text
        assert await list_runs(f"?started={before}") == both
        assert "since" in browser.page.text
        assert await list_runs(f"?started={after}") == await list_runs(f"?started=/{before}") == set()
        for wrong in ("soon", f"{before}/x", "1767225600", "<script>"):
            await browser.open(f"/runs?started={quote(wrong)}")
            assert browser.response.status_code == 400, wrong


@pytest.mark.slow
@pytest.mark.server
async def test_the_next_page_is_of_the_same_period(engine: Engine) -> None:
    name = f"worker-{engine.task_queue}"
    async with served(engine, Agent(name, ScriptedProvider(lambda _: "hello"))) as (client, opened):
        for number in range(52):
            await client.start(name, None, mode="session", id=f"{name}-{number}")

        async def are_listed() -> bool:
            return len(await client.list(agent=name, limit=100)) == 52

        await eventually(are_listed)
        browser = opened.browse()
        assert await _lists(browser, f"/runs?agent={name}&started=24h", 50)
        [more] = [given["href"] for _, given in browser.page.tags if "cursor=" in given.get("href", "")]
        assert await _lists(browser, more.removeprefix("/console"), 2), browser.page.text


async def _lists(browser: Browser, path: str, count: int) -> bool:
    return len((await browser.open(path)).find_boxes("bulk")) == count


async def test_two_ticked_runs_are_compared(engine: Engine) -> None:
    agent = Agent("worker", ScriptedProvider(lambda request: f"reply to {request.messages[-1].text}"))
    viewer = make_caller("eve", "viewer")
    async with engine.served(agent) as client, console(client, viewer) as opened:
        for name in ("first", "second", "third"):
            run = await client.start("worker", name, id=name)
            await run.result()
        browser = opened.browse("eve")
        await eventually(lambda: _lists(browser, "/runs", 3))

        def find_bulk() -> Any:
            [bulk] = [form for form in browser.page.forms if form.id == "bulk"]
            return bulk

        bulk = find_bulk()
        assert bulk.buttons == [("action", "compare")], "a viewer may read"
        page = await browser.send(bulk, bulk.buttons[0], item=["second", "first"])
        assert browser.response.url.path == "/console/compare"
        assert dict(browser.response.url.params) == {"left": "first", "right": "second"}, "the earlier one first"
        assert "reply to second" in page.text
        await browser.send(bulk, bulk.buttons[0], item=["third"])
        assert "Which run should it be compared with?" in browser.page.text
        await browser.send(bulk, bulk.buttons[0], item=["first", "second", "third"])
        assert (browser.response.status_code, "Tick two" in browser.page.text) == (400, True)
        await browser.send(bulk, ("action", "cancel"), item=["first"], sure="1")
        assert "may not pause, resume, cancel" in browser.page.text


async def test_ticked_runs_are_cancelled_after_a_second_look(engine: Engine) -> None:
    agent = Agent("worker", ScriptedProvider(lambda _: "hello"))
    stranger = make_caller("other", "operator", tenants=("other",))
    async with engine.served(agent) as client, console(client, stranger) as opened:
        runs = [await client.start("worker", "Go", mode="session") for _ in range(3)]
        for run in runs:
            await run.turn().result()
        browser = opened.browse()
        page = await browser.open("/runs?agent=worker")
        [bulk] = [form for form in page.forms if form.id == "bulk"]
        boxes = [value for _, value in page.find_boxes("bulk")]
        assert sorted(boxes) == sorted(run.id for run in runs)
        page = await browser.send(bulk, ("action", "cancel"), item=[runs[0].id, runs[1].id])
        assert "Cancel 2 runs?" in page.text
        assert [text for text in ("worker", "none", "Keep them") if text not in page.text] == []
        assert [(await run.status()).state for run in runs] == ["idle"] * 3
        page = await browser.send(page.find_form(sure="1"))
        assert page.text.count("is being cancelled") == 2

        async def are_over() -> bool:
            return [(await run.status()).state for run in runs] == ["cancelled", "cancelled", "idle"]

        await eventually(are_over)
        page = await browser.open("/runs")
        [bulk] = [form for form in page.forms if form.id == "bulk"]
        page = await browser.send(bulk, ("action", "cancel"), item=[runs[0].id, "nothing"])
        page = await browser.send(page.find_form(sure="1"))
        assert "is being cancelled" not in page.text
        assert "there is no session 'nothing'" in page.text
        other = opened.browse("other")
        await other.open("/runs")
        assert "No runs yet" in other.page.text
