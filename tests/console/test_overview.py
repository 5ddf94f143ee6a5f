"""The console's start, and its links out: Temporal's UI and the log lines of workers."""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from perdure import Agent, tool
from perdure.console.attempts import Attempt, build_log_url
from perdure.errors import ProviderServerError, RuntimeSetupError
from perdure.testing import ScriptedProvider, call
from tests.console.test_access import wait_for_waits
from tests.console.test_runs import read_rows
from tests.integration.test_bulk_actions import Door, failed_runs, name_of, payer
from tests.support.engine import Engine
from tests.support.pages import Browser, console
from tests.support.wait import eventually
from tests.support.web import make_caller

pytestmark = pytest.mark.server


@tool(needs_approval=True)
def refund(amount: int) -> str:
    """Refund."""
    return "refunded"


def list_figures(browser: Browser) -> list[tuple[str, str]]:
    """Return the links of the page with the number that each begins with."""
    text = browser.response.text
    found = re.findall(r'<a href="(/console/[^"]+)">(?:<strong>)?(\d+)\+?[ <]', text[text.index("<main") :])
    return [(href.replace("&amp;", "&"), number) for href, number in found]


async def count_rows(browser: Browser, href: str) -> int:
    """The rows of all pages of a list: other tests have left runs on the server."""
    rows: set[str] = set()
    while href:
        rows |= (await read_rows(browser, href.removeprefix("/console"))).keys()
        [href] = [link for link in browser.page.list_links() if "cursor=" in link][:1] or [""]
    return len(rows)


async def test_every_number_is_that_of_its_list(engine: Engine) -> None:
    door = Door()
    asking = Agent(name_of(engine, "asker"), ScriptedProvider([call("refund", amount=1)]), tools=[refund])
    acme = make_caller("acme", "operator", tenants=(name_of(engine, "acme"),))  # other tests have left runs
    async with failed_runs(engine, door, "inv-1", "inv-2", beside=[asking]) as client:
        await client.start(asking.name, "Go", id=name_of(engine, "ask-1"), mode="session")
        await wait_for_waits(client, 1)
        async with console(client, acme) as opened:
            browser = opened.browse()
            await browser.open("/")
            assert str(browser.response.url.path) == "/console/overview"

            async def has_all() -> bool:
                await browser.open("/overview")
                return len(list_figures(browser)) >= 4

            await eventually(has_all)
            page = browser.page.text
            assert "AuthenticationError" in page
            assert "refund" in page
            assert "1 of" in page, "a worker"
            checked = 0
            for href, number in list_figures(browser):
                if "/console/runs?" in href:
                    assert await count_rows(browser, href) == int(number), href
                    checked += 1
            assert checked >= 2
            other = opened.browse("acme")
            await other.open("/overview")
            assert "AuthenticationError" not in other.page.text
            assert "Workers" not in other.page.text
            assert "No runs yet" in other.page.text
            assert "perdure run" in other.page.text


async def test_what_is_held_up_is_counted_by_its_cause(engine: Engine) -> None:
    def fail(_: Any) -> Any:
        raise ProviderServerError("500: down")

    agent = Agent(payer(engine), ScriptedProvider(fail))
    async with engine.served(agent) as client, console(client) as opened:
        run = await client.start(agent.name, "Pay INV-8", id=name_of(engine, "held"))
        browser = opened.browse()

        async def is_counted() -> bool:
            await browser.open("/overview")
            return len([href for href, number in list_figures(browser) if "held_up" in href and number == "1"]) == 2

        await eventually(is_counted)
        links = [href for href, number in list_figures(browser) if "held_up" in href and number == "1"]
        assert "ProviderServerError" in browser.page.text
        for href in links:
            assert list(await read_rows(browser, href.removeprefix("/console"))) == [run.id]
        assert await read_rows(browser, "/runs?status=held_up&error=ToolError") == {}
        for query in ("?status=held_up", f"?agent={agent.name}"):
            assert "Pay INV-8" in (await browser.open(f"/runs{query}")).text, "before the first reply, too"

        async def says_that_it_waits() -> bool:
            return "waits for its next attempt 500: down" in (await browser.open(f"/runs/{run.id}/attempts")).squeeze()

        await eventually(says_that_it_waits)
        await run.terminate("the test is over")


async def test_links_to_temporal_and_to_the_log_lines_of_each_attempt(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PERDURE_TEMPORAL_UI", "https://temporal.example.com/")
    monkeypatch.setenv("PERDURE_LOG_URL", "https://logs.example.com/q?w={worker}&a={attempt}&f={from_ms}&x={execution}")
    door = Door()
    viewer = make_caller("acme", "operator", tenants=("acme",))
    async with failed_runs(engine, door, "inv-1") as client, console(client, viewer) as opened:
        run_id = name_of(engine, "inv-1")
        browser = opened.browse()
        await browser.open(f"/runs/{run_id}")
        wanted = f"https://temporal.example.com/namespaces/default/workflows/{run_id}"
        assert wanted in browser.page.list_links()
        await browser.open(f"/runs/{run_id}/attempts")
        [first, *_] = [href for href in browser.page.list_links() if href.startswith("https://logs.example.com")]
        fields = parse_qs(urlsplit(first).query)
        description = await client.run(run_id).describe()
        assert fields["x"] == [description.run_id]
        assert fields["a"] == ["1"]
        assert "@" in fields["w"][0], "the identity of the worker"
        assert "perdure.model" in browser.page.text
        other = opened.browse("acme")
        await other.open(f"/runs/{run_id}/attempts")
        assert other.response.status_code == 404


async def test_values_of_a_log_url_are_encoded() -> None:
    from datetime import UTC, datetime

    now = datetime(2026, 11, 28, 3, tzinfo=UTC)
    attempt = Attempt("tool&x=1", 3, "1@host/'\"><", "e/1", now, now)
    url = build_log_url(
        "https://l.example/?a={activity}&w={worker}&r={run}&f={from}&u={until}", "run {x} ü", attempt, now
    )
    assert parse_qs(urlsplit(url).query) == {
        "a": ["tool&x=1"],
        "w": ["1@host/'\"><"],
        "r": ["run {x} ü"],
        "f": ["2026-11-28T02:59:00.000Z"],
        "u": ["2026-11-28T03:01:00.000Z"],
    }
    assert url.isascii()
    assert not set(url) & set("<>\"' ")


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("PERDURE_TEMPORAL_UI", "javascript:alert(1)", "http or https"),
        ("PERDURE_TEMPORAL_UI", "temporal.example.com", "http or https"),
        ("PERDURE_TEMPORAL_UI", "https://u:p@temporal.example.com", "password"),
        ("PERDURE_TEMPORAL_UI", "https://temporal.example.com/?x=1", "query"),
        ("PERDURE_LOG_URL", "ftp://logs/{run}", "http or https"),
        ("PERDURE_LOG_URL", "https://{run}.example.com/", "http or https"),
        ("PERDURE_LOG_URL", "https://logs.example.com/{secret}", "{secret}"),
        ("PERDURE_LOG_URL", "https://logs.example.com/{run.__class__}", "placeholder"),
        ("PERDURE_LOG_URL", "https://logs.example.com/{run!r}", "placeholder"),
        ("PERDURE_LOG_URL", "https://logs.example.com/{run:>9}", "placeholder"),
        ("PERDURE_LOG_URL", "https://logs.example.com/{run", "PERDURE_LOG_URL"),
    ],
)
async def test_a_wrong_setting_is_an_error_at_the_start(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, name: str, value: str, text: str
) -> None:
    monkeypatch.setenv(name, value)
    client = await engine.client()
    with pytest.raises(RuntimeSetupError, match=re.escape(text)):
        async with console(client):
            pass
