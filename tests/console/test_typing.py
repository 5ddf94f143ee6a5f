"""What is typed into a form changes its text, and nothing else: in Chromium, on every page of the console."""

from __future__ import annotations

import re
from importlib import resources
from typing import Any, get_args
from urllib.parse import quote

import pytest

from perdure import Client
from perdure.client.run import Run
from perdure.console.app import PAGE_ROUTES
from tests.console.test_browser import build_agents, list_pages, office, start_all
from tests.support.chromium import Chromium, Window
from tests.support.engine import Engine
from tests.support.typist import LETTERS, Typist, Way

pytestmark = pytest.mark.slow
PHONE = {"viewport": {"width": 390, "height": 800}, "is_mobile": True, "has_touch": True}
NO_PAGES = {
    *("inbox_changes", "context", "outcome", "panel", "earlier", "live", "file", "export_events", "export_messages"),
    *("chat_state", "chat_earlier", "chat_live", "chat_outcome", "audit_csv", "audit_lines", "signed_in", "find_page"),
}
"""Routes that answer with a part of a page, a file or events, or lead on: they have no form of their own."""
ELSEWHERE = {"schedule"}
"""Pages that need Temporal's schedules, of a real server: test_schedules_browser.py types into them."""


async def list_addresses(client: Client, runs: dict[str, Run[Any]]) -> dict[str, str]:
    """An address of each page, by the name of its route: a new page, and its forms, are tested without a word here."""
    samples = await list_pages(client, runs)
    [wait] = [wait for wait in (await client.list_waits()).waits if wait.tool == "refund"]
    webhook, message = samples["delivery"].split("/")[2:4]
    values = {
        "id": quote(wait.run_id, safe=""),
        "call_id": wait.call_id,
        "agent": "support",
        "webhook": webhook,
        "message": message,
        "bulk": samples["bulk"].rpartition("/")[2],
    }
    addresses = {
        route.name: re.sub(r"\{(\w+):\w+\}", lambda part: values[part[1]], route.path)
        for route in PAGE_ROUTES
        if route.method == "GET" and route.name not in NO_PAGES | ELSEWHERE
    }
    question = next(wait for wait in (await client.list_waits()).waits if wait.kind == "question")
    return addresses | {
        "ask_bulk": samples["bulk-new"],
        "question": f"/inbox/{quote(question.run_id, safe='')}/{question.call_id}",
        "chat-question": f"/chat/tailor/{quote(runs['tailor'].id, safe='')}",
        "run-standing": samples["run-standing"],
        "login": "/login",
    }


def test_every_page_is_known() -> None:
    names = {route.name for route in PAGE_ROUTES}
    assert names >= NO_PAGES | ELSEWHERE


@pytest.mark.fault("Borders", "A person types into a form of the console.", "Only the text changes: no key decides.")
@pytest.mark.parametrize("way", get_args(Way))
async def test_typing_into_any_form_changes_its_text_alone(engine: Engine, way: Way) -> None:
    async with office(engine, *build_agents(), what="typing into forms") as (client, at):
        runs = await start_all(client)
        addresses = await list_addresses(client, runs)
        store = await client.store()
        audit = await store.list_audit()
        typed, sends_by_enter = 0, set[str]()
        for name, address in addresses.items():
            window = await at.open(address, **(PHONE if way == "touch" else {}))
            typist = Typist(window, way, every_field=way == "mouse")
            await typist.type_everywhere()
            assert window.complaints == [], name
            typed += typist.typed
            sends_by_enter |= typist.sends_by_enter
            await window.page.context.close()
        assert typed >= (70 if way == "mouse" else 20)
        assert {one.rpartition("/")[2] for one in sends_by_enter} <= {"GET", "composer", "login"}, "Enter alone sends"
        assert await store.list_audit() == audit, "nobody has asked for anything"
        for agent, tool in (("support", "refund"), ("privacy", "delete_account"), ("tailor", "ask_size")):
            assert [one.tool for one in (await runs[agent].status()).approvals] == [tool]


@pytest.mark.parametrize("reason", ["amount is wrong", "duplicate invoice"])
async def test_a_reason_that_is_typed_after_a_click_decides_nothing(engine: Engine, reason: str) -> None:
    async with office(engine, *build_agents(), what="the reason of a denial") as (client, at):
        runs = await start_all(client)
        window = await at.open("/inbox")
        page = window.page
        row = page.locator(".row:has-text('refund')")
        await row.get_by_text("Deny…").click()
        await page.keyboard.type(reason)
        assert await row.get_by_label("Reason").input_value() == reason
        assert await row.locator(".deny-pop[open]").count() == 1
        assert [one.tool for one in (await runs["support"].status()).approvals] == ["refund"]
        assert await row.get_by_role("button", name="Approve").count() == 0
        named = "Deny refund: order id A-1007, amount 129.50, reason “Damaged on arrival: cracked shad…”"
        assert await row.get_by_role("button", name="Deny").inner_text() == named


async def open_form(at: Chromium, key: str) -> Window:
    window = await at.open("/inbox")
    await window.page.locator(".row:has-text('refund')").focus()
    await window.page.keyboard.press(key)
    return window


@pytest.mark.parametrize("key", ["a", "d"])
async def test_a_key_opens_the_form_of_a_row_and_another_sends_it(engine: Engine, key: str) -> None:
    async with office(engine, *build_agents(), what="keys of a row") as (client, at):
        await start_all(client)
        window = await open_form(at, key)
        page = window.page
        await page.keyboard.type(LETTERS)
        await page.keyboard.press("Enter")
        row = page.locator(".row:has-text('refund')")
        assert (await row.locator(".pop[open] textarea").input_value()).rstrip("\n") == LETTERS
        assert await page.locator(".row.decided, .outcome").count() == 0
        await page.keyboard.press("Escape")
        assert await page.locator(".pop[open]").count() == 0
        assert await row.evaluate("row => document.activeElement === row"), "Escape gives the focus back"
        assert window.complaints == []


async def test_no_shortcut_is_live_beside_an_open_form_or_with_a_modifier(engine: Engine) -> None:
    async with office(engine, *build_agents(), what="shortcuts beside a form") as (client, at):
        await start_all(client)
        window = await open_form(at, "d")
        page = window.page
        chosen = await page.locator(".row.current").get_attribute("id")
        await page.evaluate("document.activeElement.blur()")
        for key in ("a", "j", "x", "o", "e", "?"):
            await page.keyboard.press(key)
        assert await page.locator(".row.current").get_attribute("id") == chosen
        assert await page.locator(".approve-pop[open], input:checked, details.keys[open]").count() == 0
        await page.keyboard.press("Escape")
        for held in ("Control", "Alt", "Meta", "Shift"):
            await page.keyboard.down(held)
            await page.keyboard.press("d")
            await page.keyboard.up(held)
            assert await page.locator(".pop[open]").count() == 0, held
        assert page.url.endswith("/inbox")


async def test_a_shortcut_cannot_send_a_form(engine: Engine) -> None:
    """The next page's shortcut, too: one that is declared wrongly sends nothing, and says so."""
    async with office(engine, *build_agents(), what="a shortcut that sends") as (client, at):
        runs = await start_all(client)
        window = await at.open("/inbox")
        page = window.page
        source = await page.locator("script[src*='inbox.js']").get_attribute("src")
        await page.evaluate(
            """async source => {
                const { declareKeys } = await import(source.replace('inbox.js', 'keys.js'));
                declareKeys({ z: () => document.querySelector(".deny-pop form button[name=decision]").click() });
            }""",
            source,
        )
        await page.keyboard.press("z")
        assert window.complaints == ["a shortcut may not send a form"]
        assert [one.tool for one in (await runs["support"].status()).approvals] == ["refund"]


def test_one_script_listens_to_keys() -> None:
    files = resources.files("perdure.console")
    for folder in ("assets", "templates"):
        for file in files.joinpath(folder).iterdir():
            if file.name != "keys.js":
                assert not re.search(r"keydown|keyup|keypress|accesskey", file.read_text()), file.name


async def test_a_decision_is_taken_back_in_its_row(engine: Engine) -> None:
    async with office(engine, *build_agents(), what="what is taken back", undo_seconds=60) as (client, at):
        runs = await start_all(client)
        window = await open_form(at, "a")
        page = window.page
        await page.keyboard.type("fine")
        await page.keyboard.press("Control+Enter")
        row = page.locator(".row:has-text('refund')")
        outcome = row.locator(".outcome[data-pending]")
        await outcome.wait_for()
        assert "Approving refund, by you" in await outcome.inner_text()
        colleague = await at.open("/inbox", name="bob")
        await colleague.page.locator(".row:has-text('refund') .outcome[data-pending]").wait_for()
        await row.get_by_role("button", name="Take back").click()
        await row.locator(".deny-pop > summary").wait_for()
        assert "Nothing was decided." in await row.locator(".problem").inner_text()
        await colleague.page.locator(".row:has-text('refund') .deny-pop > summary").wait_for()
        assert [one.tool for one in (await runs["support"].status()).approvals] == ["refund"]
        assert window.complaints == colleague.complaints == []


async def test_the_answer_of_a_decision_appears_in_its_row(engine: Engine) -> None:
    async with office(engine, *build_agents(), what="the answer in a row", undo_seconds=1) as (client, at):
        await start_all(client)
        window = await open_form(at, "d")
        page = window.page
        await page.keyboard.type("too much")
        await page.keyboard.press("Control+Enter")
        row = page.locator(".row:has-text('refund')")
        await row.locator(".outcome[data-pending]").wait_for()
        await page.locator(".row.decided:has-text('refund')").wait_for(timeout=10_000)
        assert "Denied by you" in await row.locator(".outcome").inner_text()
        assert window.complaints == []
