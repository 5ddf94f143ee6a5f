"""A visitor of one tenant names runs and schedules as it has named them: the tenant is no part of what it sees."""

from __future__ import annotations

import asyncio
import uuid
from typing import Any
from urllib.parse import quote

import pytest

from perdure import Agent, tool
from perdure.testing import ScriptedProvider, call
from tests.support.engine import Engine
from tests.support.pages import Html, console
from tests.support.wait import eventually
from tests.support.web import make_caller

pytestmark = pytest.mark.server


def lead() -> Agent:
    @tool(needs_approval=True)
    def pay() -> str:
        return "paid"

    def reply(request: Any) -> Any:
        last = request.messages[-1]
        if last.role == "user":
            return call("pay") if "pay" in last.text else call("call_helper", task="Find.")
        return "Done."

    helper = Agent("helper", ScriptedProvider(lambda _: "Found."), description="Finds.")
    return Agent("lead", ScriptedProvider(reply), subagents=[helper], tools=[pay])


async def test_a_visitor_of_one_tenant_sees_ids_without_it(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PERDURE_WEBHOOK_ALLOW", "127.0.0.1")
    tenant = f"acme & co {uuid.uuid4().hex[:8]}"
    prefix = f"@{quote(tenant, safe='')}/"
    sam = make_caller("sam", "admin", tenants=(tenant,))
    async with engine.served(lead()) as client, console(client, sam) as opened:
        run = await client.start("lead", "Go.", id="order-7", mode="session", tenant=tenant, user="ann")
        await run.turn().result()
        [child] = await run.children()
        fork = await run.fork(message="And now?", id="order-8", by="sam")
        await fork.turn().result()
        waiting = await client.start("lead", "pay", id="order-9", tenant=tenant)
        schedule = await client.schedule("lead", "pay", id="nightly", cron="0 7 1 1 *", tenant=tenant)
        await schedule.trigger()
        webhook = await client.webhooks.create("https://127.0.0.1/", session=run.id, tenant=tenant)
        browser = opened.browse("sam")
        child_name = quote(child.id.removeprefix(prefix), safe="")

        async def has_started() -> bool:
            return bool((await schedule.describe()).recent)

        async def is_listed() -> bool:
            shown = (await browser.open("/runs?children=1")).text
            return all(text in shown for text in ("order-7", "order-8", "order-9"))

        async def waits() -> bool:
            return "order-9" in (await browser.open("/inbox")).text

        try:
            await asyncio.gather(eventually(has_started), eventually(is_listed), eventually(waits))
            for path, text in {
                "/runs": "order-7",
                "/runs?children=1": child.id.removeprefix(prefix),
                "/runs/order-7": "order-7",
                f"/runs/{quote(run.id, safe='')}": "order-7",
                f"/runs/{child_name}": "order-7/",
                "/runs/order-8": "Fork of order-7",
                "/chat/lead": "lead",
                "/chat/lead/order-7": "order-7",
                "/compare?left=order-7&right=order-8": "order-8",
                "/schedules": "nightly",
                "/schedules/nightly": "schedule:nightly-",
                "/audit": "order-8",
                "/audit?subject=order-7": "order-7",
                f"/audit?subject={webhook.id}": "webhook",
                "/costs": "lead",
                "/costs/runs": "order-7",
                f"/webhooks/{webhook.id}": "order-7",
                "/runs/order-6": "no such page or run",
            }.items():
                page = await browser.open(path)
                shown = " ".join([page.squeeze(), *list_texts(page)])
                assert text in shown, f"{path}: {shown}"
                assert "@acme" not in shown, f"{path}: {shown}"
            # The form of the page does what it says to the visitor's own run.
            page = await browser.open("/runs/order-7")
            await browser.send(page.find_form(action="close"))
            assert browser.response.url.path == "/console/runs/order-7"
            await run.wait_for_close()
        finally:
            await schedule.delete()
            await waiting.terminate()


def list_texts(page: Html) -> list[str]:
    """What fields have in them, and what is said of them."""
    names = ("aria-label", "title", "placeholder")
    shown = [given[name] for _, given in page.tags for name in names if name in given]
    return shown + [
        given["value"]
        for tag, given in page.tags
        if tag == "input" and given.get("type") != "hidden" and given.get("type") != "checkbox" and "value" in given
    ]


async def test_an_address_with_the_slashes_of_an_id_leads_to_the_run(engine: Engine) -> None:
    """As the command line prints it, and people type it."""
    async with engine.served(lead()) as client, console(client) as opened:
        run = await client.start("lead", "Go.", id="order-7")
        await run.result()
        [child] = await run.children()
        assert "/" in child.id
        browser = opened.browse()
        page = await browser.open(f"/runs/{child.id}")
        shown = f"/console/runs/{quote(child.id, safe='')}".encode()
        assert (browser.response.status_code, browser.response.url.raw_path) == (200, shown)
        assert child.id in page.text
        await browser.open("/runs/no/such")
        assert browser.response.status_code == 404
        await browser.open("/runs/")
        assert browser.response.url.path == "/console/runs"
