"""The inbox with many calls, in a real Chromium: one line each, unfolded before anything is decided."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from perdure import Agent, Approval, Client, tool
from perdure.testing import ScriptedProvider, call
from tests.console.test_access import wait_for_waits
from tests.console.test_browser import office, wait_for_decided
from tests.support.chromium import PICTURES, Chromium
from tests.support.engine import Engine

pytestmark = pytest.mark.slow
VENDORS = ("ACME GmbH", "Nordwind", "Zorro & Sons", "Hafner Metallbau AG")


@tool(needs_approval=Approval(expires="6h"), summary="Pay {invoice_id} of {vendor}: {amount}")
def pay_invoice(invoice_id: str, vendor: str, amount: float, note: str = "") -> str:
    """Pay a supplier's invoice."""
    return "paid"


@tool(needs_approval=Approval(separate=True), summary="Close the account of {email}")
def close_account(email: str) -> str:
    """Close a customer's account."""
    return "closed"


@tool(needs_approval=True)
def send_letter(to: str, text: str) -> str:
    """Send a letter."""
    return "sent"


def answer(request: Any) -> Any:
    if request.messages[-1].role == "tool":
        return "done"
    number = int(request.messages[-1].text)
    if number % 10 == 3:
        return call("close_account", email=f"user{number}@example.com")
    if number % 10 == 7:
        return call("send_letter", to="Ms. Weber", text="Dear Ms. Weber,\n" + "we are sorry.\n" * 20)
    vendor = VENDORS[number % 4]
    return call("pay_invoice", invoice_id=f"INV-{1000 + number}", vendor=vendor, amount=round(17.25 * number**1.7, 2))


@asynccontextmanager
async def desk(engine: Engine, count: int, what: str) -> AsyncIterator[tuple[Client, Chromium]]:
    agent = Agent("desk", ScriptedProvider(answer), tools=[pay_invoice, close_account, send_letter])
    async with office(engine, agent, what=what) as (client, at):
        for number in range(count):
            by = ("ada", "jo", "weber")[number % 3]
            await client.start("desk", str(number), mode="session", user=by, by=by, tenant=("acme", None)[number % 2])
        await wait_for_waits(client, count)
        yield client, at


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_thirty_calls_are_seen_at_once(engine: Engine, scheme: Any) -> None:
    async with desk(engine, 40, "an inbox with many calls") as (_, at):
        for path, name in (
            ("/inbox", "inbox-full"),
            ("/inbox?group=tool", "inbox-grouped"),
            ("/inbox?order=amount", "inbox-amounts"),
        ):
            window = await at.open(path, color_scheme=scheme, viewport={"width": 1280, "height": 1000})
            page = window.page
            await page.screenshot(path=PICTURES / scheme / f"{name}-1280.png")
            if name == "inbox-full":
                seen = "innerHeight >= row.getBoundingClientRect().bottom"
                count = await page.evaluate(f"[...document.querySelectorAll('.row')].filter(row => {seen}).length")
                assert count >= 30, "at 1280 x 1000"
            phone = await at.open(path, color_scheme=scheme, viewport={"width": 390, "height": 860})
            await phone.page.screenshot(path=PICTURES / scheme / f"{name}-390.png")
            assert window.complaints == phone.complaints == []
        await page.locator(".row").nth(2).focus()
        await page.keyboard.press("a")
        await page.screenshot(path=PICTURES / scheme / "inbox-open-1280.png")


async def test_no_key_acts_on_a_row_that_is_folded(engine: Engine) -> None:
    async with desk(engine, 12, "keys on folded rows") as (_, at):
        window = await at.open("/inbox")
        page = window.page
        shown = ".row-body:visible"
        for key, opened in (("a", ".approve-pop[open]"), ("d", ".deny-pop[open]"), ("x", "input[name=item]:checked")):
            row = page.locator(".row", has_text="INV-1001")
            await row.focus()
            assert await page.locator(shown).count() == 0
            await page.keyboard.press(key)
            assert await row.locator(opened).count() == 1
            assert await row.locator(shown).inner_text() != "", f"{key} shows what it acts on"
            assert "1001" in await row.locator(".args").inner_text()
            if key == "x":
                await page.keyboard.press("v")
                assert await row.locator("input[name=item]:checked").count() == 0, "what is folded is not ticked"
            else:
                assert "Pay INV-1001" in await row.locator(".named:visible").inner_text()
                await page.keyboard.press("Escape")
                await page.keyboard.press("v")
        assert await page.locator(".row.decided").count() == 0
        letter = page.locator(".row", has_text="send letter")
        await letter.focus()
        await page.keyboard.press("a")
        assert (await letter.locator(".args").inner_text()).count("we are sorry.") == 20, "all that is approved is seen"
        await page.keyboard.press("Control+Enter")
        await wait_for_decided(page, 1)
        assert window.complaints == []


async def test_own_calls_have_a_reason_in_the_place_of_a_button(engine: Engine) -> None:
    async with desk(engine, 4, "calls of one's own") as (_, at):
        for name, may_approve in (("ada", False), ("bob", True)):
            window = await at.open("/inbox?tool=close_account", name=name)
            page = window.page
            row = page.locator(".row")
            assert await row.locator(".approve-pop").count() == int(may_approve)
            assert await row.locator(".deny-pop").count() == 1
            assert await page.locator(".no-ticks").count() == 1, "nothing here is ticked, so there are no boxes"
            assert await page.locator("input[type=checkbox]").count() == 0
            await row.focus()
            await page.keyboard.press("a")
            text = await row.locator(".row-body").inner_text()
            assert ("You asked for this call" in text) is not may_approve
            assert await row.locator(".named:visible").count() == int(may_approve)
            assert window.complaints == []


async def test_search_groups_and_order_are_in_the_address(engine: Engine) -> None:
    async with desk(engine, 14, "search in the inbox") as (_, at):
        page = (await at.open("/inbox")).page
        await page.get_by_label("Search").fill("inv-1001")
        await page.get_by_role("button", name="Filter").click()
        assert await page.locator(".row h2").all_inner_texts() == ["Pay INV-1001 of Nordwind: 17.25"]
        await page.get_by_role("link", name="Clear").click()
        await page.get_by_role("link", name="Amount").click()
        shown = await page.locator(".row .amount").all_inner_texts()
        amounts = [float(text.replace(",", "")) for text in shown]
        assert amounts == sorted(amounts, reverse=True)
        assert len(amounts) == 11
        await page.goto(f"{at.url}/console/inbox?group=user")
        assert [text.split()[0] for text in await page.locator(".group").all_inner_texts()] == ["ada", "jo", "weber"]
        await page.get_by_role("link", name="Only these").last.click()
        assert await page.locator(".row").count() == 4
        assert "user weber" in await page.locator(".only").inner_text()
