"""The layout of every page in Chromium, wide and on a phone, in light and dark: nothing sticks out. Takes pictures."""

from __future__ import annotations

from typing import Literal

import pytest

from tests.console.test_browser import build_agents, office, start_all
from tests.console.test_typing import list_addresses
from tests.support.chromium import PICTURES
from tests.support.engine import Engine

pytestmark = pytest.mark.slow

FIND_OVERFLOW = """() => {
  const width = document.documentElement.clientWidth, whole = document.scrollingElement.scrollWidth;
  const scrolling = '.table-wrap[role=region][tabindex], pre';
  const isCut = (part) => part && (getComputedStyle(part).textOverflow === 'ellipsis' || isCut(part.parentElement));
  const sticksOut = (part) => {
    if (!part.checkVisibility() || part.closest(`${scrolling}, .unseen, .skip, svg`)) return false;
    const { left, right } = part.getBoundingClientRect();
    return right > left && (right > width + 1 || left < -1) && !isCut(part.parentElement);
  };
  const found = [...document.body.querySelectorAll('*')].filter(sticksOut).map(part => part.outerHTML.slice(0, 140));
  return [...(whole > innerWidth ? [`the page is ${whole} wide`] : []), ...found.slice(0, 5)];
}"""
"""Elements that stick out of the page: only those in a region that is marked as one that scrolls may."""


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_no_page_is_wider_than_its_window(engine: Engine, scheme: Literal["light", "dark"]) -> None:
    folder = PICTURES / scheme
    folder.mkdir(parents=True, exist_ok=True)
    async with office(engine, *build_agents(), what="the layout of pages") as (client, at):
        addresses = await list_addresses(client, await start_all(client))
        wide: dict[str, list[str]] = {}
        for name, address in (addresses | {"error": "/nothing", "inbox-empty": "/inbox?agent=nobody"}).items():
            for width in (1280, 390):
                window = await at.open(address, color_scheme=scheme, viewport={"width": width, "height": 860})
                page = window.page
                await page.wait_for_timeout(150)
                if found := await page.evaluate(FIND_OVERFLOW):
                    wide[f"{name} {width}"] = found
                await page.evaluate("scrollTo(0, 0)")
                await page.screenshot(path=folder / f"{name}-{width}.png", full_page=True)
                await page.context.close()
        assert wide == {}


@pytest.mark.parametrize("has_script", [True, False])
async def test_a_phone_has_a_menu_of_the_pages(engine: Engine, has_script: bool) -> None:
    async with office(engine, *build_agents(), what="the menu") as (client, at):
        await start_all(client)
        window = await at.open("/inbox", viewport={"width": 390, "height": 700}, java_script_enabled=has_script)
        page = window.page
        link = page.get_by_role("link", name="Costs")
        assert not await link.is_visible()
        await page.locator(".menu > summary").click()
        for name in ("Inbox 4", "Runs", "Chat", "Agents", "Schedules", "Workers", "Webhooks", "Audit", "Costs"):
            shown = page.get_by_role("navigation").get_by_role("link", name=name, exact=True)
            box = await shown.bounding_box()
            assert box is not None
            assert 0 <= box["x"] <= box["x"] + box["width"] <= 390
            assert box["height"] >= 40
        if has_script:
            await page.screenshot(path=PICTURES / "light" / "menu-390.png")
        await link.click()
        await page.wait_for_url("**/costs")
        assert window.complaints == []
