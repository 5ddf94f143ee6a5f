"""What is typed into a form changes its text, and nothing else: in Chromium, on every page of the console."""

from __future__ import annotations

import pytest

from tests.console.test_browser import build_agents, office, start_all
from tests.support.engine import Engine

pytestmark = pytest.mark.slow


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
        assert [one.name for one in (await runs["support"].status()).approvals] == ["refund"]
        assert await row.get_by_role("button", name="Approve").count() == 0
