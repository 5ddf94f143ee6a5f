"""A real browser for tests of pages: the system's Chromium, driven by Playwright.

Without either the tests are left out, and the end of pytest's output says so; with ``PERDURE_REQUIRE_CHROMIUM`` in the
environment, as in ``.ci/run``, they fail instead. ``CHROMIUM`` names another binary.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from tests.support.left_out import leave_out

if TYPE_CHECKING:
    from playwright.async_api import Browser, BrowserContext, Page

NAMES = ("chromium", "chromium-browser", "google-chrome")
ROOT = Path(__file__).parent.parent.parent
PICTURES = ROOT / "build" / "console"
"""Where pictures of the pages are kept, as output of the build."""


@dataclass
class Window:
    """A browser's window, and what it complained about."""

    page: Page
    complaints: list[str] = field(default_factory=list)
    """Errors of scripts, violations of the policy, files that could not be loaded, and dialogs."""
    requests: list[str] = field(default_factory=list)

    def foreign_requests(self, url: str) -> list[str]:
        """What was asked of other hosts than that of ``url``."""
        own = urlsplit(url).netloc
        return [request for request in self.requests if urlsplit(request).netloc not in (own, "")]


@dataclass
class Chromium:
    """A running browser."""

    browser: Browser
    url: str
    contexts: list[BrowserContext] = field(default_factory=list)

    async def open(self, path: str, *, name: str = "ada", **options: Any) -> Window:
        """Open a page of the console in a window of its own, as that caller."""
        options.setdefault("viewport", {"width": 1280, "height": 860})
        headers = {"Authorization": f"Bearer {name}"} if name else {}
        context = await self.browser.new_context(extra_http_headers=headers, **options)
        context.set_default_timeout(20_000)
        self.contexts.append(context)
        window = Window(await context.new_page())
        page, complaints = window.page, window.complaints
        page.on("console", lambda said: said.type in ("error", "warning") and complaints.append(said.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("dialog", lambda dialog: complaints.append(f"dialog: {dialog.message}"))
        page.on("request", lambda request: window.requests.append(request.url))
        await page.goto(f"{self.url}/console{path}")
        return window


@asynccontextmanager
async def chromium(url: str, what: str) -> AsyncIterator[Chromium]:
    """Run a browser for the service at ``url``. Leaves the test of ``what`` out where there is none."""
    binary = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)
    if binary is None:
        leave_out(what, "no Chromium on PATH; apt-get install chromium", required_by="PERDURE_REQUIRE_CHROMIUM")
    if find_spec("playwright") is None:
        leave_out(what, "no playwright; make test-all installs it", required_by="PERDURE_REQUIRE_CHROMIUM")
    from playwright.async_api import async_playwright

    async with async_playwright() as playwright:
        # No sandbox: root has none. Only pages of this test are opened.
        arguments = ["--no-sandbox", "--disable-dev-shm-usage"]
        browser = await playwright.chromium.launch(executable_path=binary, args=arguments)
        started = Chromium(browser, url)
        try:
            yield started
        finally:
            for context in started.contexts:
                await context.close()
            await browser.close()
