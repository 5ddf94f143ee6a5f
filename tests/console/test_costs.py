"""Costs: plots and tables of what model calls have used, the runs behind them, and the sums over HTTP."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from perdure import Agent
from perdure.console.charts import Column, build_plot, round_up
from perdure.ports.store import Commit, EventBatch, NewEvent, Outcome, RunRow, Store
from perdure.ports.times import timestamp
from perdure.ports.usage import UsageRow
from perdure.store.sqlite import SqliteStore
from perdure.testing import ScriptedProvider
from perdure.types.events import ErrorEvent
from tests.console.test_hostile import TEXT, check_page
from tests.support.engine import Engine
from tests.support.pages import Console, console
from tests.support.web import make_caller


def find_noon(days_ago: int) -> datetime:
    """Noon of a day: looked up by each test, as the day may change while tests run."""
    return datetime.now(UTC).replace(hour=12) - timedelta(days=days_ago)


def count_back(days: int) -> str:
    return find_noon(days).date().isoformat()


def usage(context_id: str, agent: str = "support", model: str = "gpt-5", **fields: Any) -> UsageRow:
    return UsageRow(context_id, agent, "call", "openai", model, **{"status": "completed", **fields})


async def pay(engine: Engine, days_ago: int, *rows: UsageRow) -> None:
    """Record calls that were made so many days ago."""
    await pay_at(engine, find_noon(days_ago), *rows)


async def pay_at(engine: Engine, when: datetime, *rows: UsageRow) -> None:
    at = timestamp(when)
    store: Store = SqliteStore(str(engine.store_url), now=lambda: at)
    await store.open()
    for number, row in enumerate(rows):
        key = f"{at}/{number}/{row.context_id}/{row.agent}/{row.model}"
        run = RunRow(row.root or row.context_id, row.agent, "s", None, "running", tenant=row.tenant)
        await store.commit(Commit(outcome=Outcome(key, "model", b"{}"), usage=row, run=run))
    await store.close()


@asynccontextmanager
async def paid(engine: Engine) -> AsyncIterator[Console]:
    """Calls of three days: of two tenants and none, with and without a price."""
    callers = [
        make_caller("eve", "viewer"),
        make_caller("acme", "viewer", tenants=("acme",)),
        make_caller("one", "viewer", sessions=("run-2",)),
        make_caller("writer", "viewer", agents=("writer",)),
        make_caller("mute", "viewer", tenants=()),
    ]
    async with engine.served(Agent("a", ScriptedProvider(["hi"]))) as client, console(client, *callers) as opened:
        first = {"cost_usd": 1.5, "input_tokens": 1000, "cached_tokens": 400, "output_tokens": 50, "milliseconds": 2000}
        await pay(
            engine, 0,
            usage("run-1", tenant="acme", **first),
            usage("run-1/x", "writer", tenant="acme", root="run-1", cost_usd=0.5, milliseconds=4000, status="failed"),
            usage("run-2", tenant="zoo", cost_usd=0.25, output_tokens=7),
        )  # fmt: skip
        await pay(engine, 2, usage("run-3", "writer", "local", input_tokens=60))
        await pay(engine, 40, usage("run-4", tenant="acme", cost_usd=9.0))
        yield opened


async def test_what_was_paid_by_day_and_agent(engine: Engine) -> None:
    async with paid(engine) as opened:
        browser = opened.browse("eve")
        page = await browser.open("/costs")
        text = page.squeeze()
        assert "Cost $2.25 and 1 call of unknown price" in text
        assert "Tokens 1,117 1,060 in, of them 400 cached; 57 out" in text
        assert "Model calls 4" in text
        assert "Time of a call 1.5 s on average" in text
        assert "Errors 25.0 % 1 request" in text
        assert "support $1.75" in text
        assert "writer $0.5000 + 1 unpriced" in text
        heights = [float(given["height"]) for tag, given in page.tags if tag == "rect" and given["class"] == "cost"]
        assert heights.count(100.0) == 0, "the axis ends above the highest bar"
        assert max(height for height in heights if height > 4) == pytest.approx(90.0), "$2.25 of $2.50"
        assert [given for tag, given in page.tags if tag == "rect" and given["class"] == "unknown"], "not a cost of 0"
        days = (count_back(0), count_back(2))
        for day in days:
            links = [link for link in page.list_links() if link == f"/console/costs/runs?from={day}&to={day}"]
            assert len(links) == 5, "a bar of each plot, and the row of the table"
        assert not [link for link in page.list_links() if count_back(1) in link], "a day without calls leads nowhere"


async def test_the_address_is_the_filter(engine: Engine) -> None:
    async with paid(engine) as opened:
        browser = opened.browse("eve")
        for query, found in (
            ("?group=model", ["openai:gpt-5 $2.25", "openai:local unknown"]),
            ("?group=tenant", ["acme $2.00", "zoo $0.2500", "without a tenant unknown"]),
            ("?time=90d", ["Cost $11.25"]),
            (f"?from={count_back(0)}&to={count_back(0)}", ["Cost $2.25 "]),
            ("?agent=writer", ["Cost $0.5000", "By agent"]),
            ("?model=openai:local", ["Cost unknown"]),
            ("?tenant=zoo", ["Cost $0.2500"]),
            ("?no_tenant=1", ["Model calls 1", "Without a tenant"]),
            (f"?from={count_back(45)}&to={count_back(35)}", ["Cost $9.00"]),
            (f"?time=&from=&to={count_back(1)}", ["Cost unknown"]),
            (f"?from={count_back(1)}&to={count_back(1)}", ["No model calls"]),
        ):
            page = await browser.open(f"/costs{query}")
            assert browser.response.status_code == 200
            for text in found:
                assert text in page.squeeze(), query


@asynccontextmanager
async def failing(engine: Engine, last: datetime) -> AsyncIterator[Console]:
    """Calls and failed attempts of the hour of ``last`` and of the hour before it, and a call of 30 hours before."""
    agent = Agent("a", ScriptedProvider(["hi"]))
    async with engine.served(agent) as client, console(client, make_caller("eve", "viewer")) as opened:
        await pay_at(engine, last, usage("run-1", cost_usd=1.5, milliseconds=2000))
        await pay_at(engine, last - timedelta(hours=30), usage("run-2", cost_usd=7.0))
        cause: dict[str, Any] = {"source": "openai:gpt-5", "status": 529, "error_type": "ProviderOverloadedError"}
        for hours, count in ((0, 1), (1, 3), (30, 5)):
            at = timestamp(last - timedelta(hours=hours))
            errors = [ErrorEvent(at=at, activity="perdure.model", retry_in=2.0, error="busy", **cause)] * count
            events = [NewEvent(error, key=f"{hours}/{number}") for number, error in enumerate(errors)]
            await (await client.store()).append(EventBatch("run-1", events, agent="support"))
        yield opened


async def test_the_last_hours_with_their_failed_attempts(engine: Engine) -> None:
    last = datetime.now(UTC) - timedelta(hours=5)  # an hour may end while the test runs
    hour, before = (timestamp(last - timedelta(hours=number))[:13] for number in (0, 1))
    async with failing(engine, last) as opened:
        browser = opened.browse("eve")
        page = await browser.open("/costs?time=24h")
        text = page.squeeze()
        assert "in hours of UTC" in text
        assert "Cost $1.50 Tokens" in text, "not those of 30 hours ago"
        assert "Errors 80.0 % 4 requests" in text
        assert "openai:gpt-5 529 ProviderOverloadedError 4 –" in text
        assert f"{last:%d %b %Y, %H:00} $1.50" in text
        assert f"{last - timedelta(hours=1):%d %b %Y, %H:00} $0 0 0 – 100.0 %" in text, "an hour without an answer"
        assert not [given for tag, given in page.tags if tag == "rect" and given["class"] == "unknown"], "0 is known"
        for key in (hour, before):
            links = [link for link in page.list_links() if link == f"/console/costs/runs?time={key}"]
            assert len(links) == 5, "a bar of each plot, and the row of the table"
        page = await browser.open(f"/costs/runs?time={hour}")
        assert "run-1 $1.50" in page.squeeze()
        assert f"{last:%d %b %Y, %H:00} (UTC)" in page.squeeze()
        [link] = [link for link in page.list_links() if link.startswith("/console/costs?")]
        page = await browser.open(link.removeprefix("/console"))
        assert "Errors 50.0 % 1 request" in page.squeeze(), "the costs of one hour"


async def test_sums_by_hour_over_http(engine: Engine) -> None:
    last = datetime.now(UTC) - timedelta(hours=5)
    async with failing(engine, last) as opened:
        answer = await opened.browse("eve").http.get(f"/v1/usage?group=hour&since={count_back(7)}")
        listed = answer.json()
        keys = [timestamp(last - timedelta(hours=number))[:13] for number in (0, 1, 30)]
        assert [(one["key"], one["calls"], one["failed_attempts"]) for one in listed["data"]] == [
            *[(keys[0], 1, 1), (keys[1], 0, 3), (keys[2], 1, 5)]
        ]
        assert (listed["group"], listed["count"], listed["total"]["failed_attempts"]) == ("hour", 3, 9)


async def test_behind_each_bar_are_its_runs(engine: Engine) -> None:
    async with paid(engine) as opened:
        browser = opened.browse("eve")
        page = await browser.open("/costs?group=tenant")
        [link] = [link for link in page.list_links() if "tenant=acme" in link and "/costs/runs" in link]
        page = await browser.open(link.removeprefix("/console"))
        assert "run-1 $2.00" in page.squeeze(), "with its subagents"
        assert "run-2" not in page.text
        assert "/console/runs/run-1" in page.list_links()
        [link] = [link for link in page.list_links() if link.startswith("/console/runs?")]
        assert "tenant=acme" in link
        assert f"started={count_back(29)}" in link
        await browser.open(link.removeprefix("/console"))
        assert browser.response.status_code == 200
        page = await browser.open("/costs?no_tenant=1")
        [link] = [link for link in page.list_links() if "agent=writer" in link and "/costs/runs" in link]
        assert "no_tenant=1" in link
        page = await browser.open(link.removeprefix("/console"))
        assert "run-3 unknown" in page.squeeze()
        page = await browser.open("/costs/runs?tenant=acme&time=90d")
        assert "$11.00 : 2 runs with 3 model calls, $5.50 a run on average" in page.squeeze()
        page = await browser.open("/costs/runs?time=90d")
        assert "on average" not in page.text, "the price of a call is unknown"
        page = await browser.open("/costs/runs?tenant=nobody")
        assert "No runs" in page.text


async def test_what_has_no_room_is_summed_up(engine: Engine) -> None:
    async with paid(engine) as opened:
        await pay(engine, 1, *(usage(f"many-{n}", f"agent-{n:02}", cost_usd=100.0) for n in range(25)))
        browser = opened.browse("eve")
        page = await browser.open("/costs")
        assert "7 others $502.25 + 1 unpriced" in page.squeeze()
        await pay(engine, 1, *(usage(f"more-{n}", cost_usd=100.0) for n in range(60)))
        page = await browser.open("/costs/runs")
        assert page.squeeze().count("$100.00") == 50
        assert "$8,502.25 and 1 call of unknown price: 88 runs" in page.squeeze()
        assert "38 others" in page.squeeze()


async def test_who_sees_what(engine: Engine) -> None:
    async with paid(engine) as opened:
        for name, cost in (("acme", "$2.00"), ("one", "$0.2500"), ("writer", "$0.5000")):
            page = await opened.browse(name).open("/costs")
            assert f"Cost {cost}" in page.squeeze(), name
        page = await opened.browse("acme").open("/costs?tenant=zoo")
        assert "No model calls" in page.text
        page = await opened.browse("mute").open("/costs")
        assert "No model calls" in page.text


async def test_what_no_address_is(engine: Engine) -> None:
    async with paid(engine) as opened:
        browser = opened.browse("eve")
        for query in (
            *(
                "time=0d",
                "time=367d",
                "time=x",
                "time=73h",
                "time=24H",
                "time=9999-12-31T23",
                "from=x",
                "from=2026-01-02&to=2026-01-01",
                "to=9999-12-31",
            ),
            *(
                "from=2020-01-01&to=2026-01-01",
                "time=2026-02-30T00",
                "to=0001-01-01",
                f"agent={'x' * 2000}",
                "tenant=%00",
            ),
        ):
            for path in ("/costs", "/costs/runs"):
                await browser.open(f"{path}?{query}")
                assert browser.response.status_code == 400, query
        await browser.open("/costs?group=run")
        assert browser.response.status_code == 400


async def test_names_of_others_are_text(engine: Engine) -> None:
    async with paid(engine) as opened:
        await pay(engine, 0, UsageRow(TEXT[:400], TEXT, "call", TEXT, TEXT, "completed", tenant=TEXT, cost_usd=99.0))
        browser = opened.browse("eve")
        for path in ("?group=agent", "?group=model", "?group=tenant", "/runs", "?agent=%22%3E%3Cscript%3E"):
            page = await browser.open(f"/costs{path}")
            assert browser.response.status_code == 200
            check_page(page, browser.response.text)
            assert "script" in path or "⟨U+202E⟩" in page.text or path == "/runs"


async def test_sums_over_http(engine: Engine) -> None:
    async with paid(engine) as opened:
        http = opened.browse("eve").http
        by_day = (await http.get("/v1/usage")).json()
        assert [row["key"] for row in by_day["data"]] == [count_back(0), count_back(2)]
        assert (by_day["group"], by_day["count"], by_day["total"]["calls"]) == ("day", 2, 4)
        assert by_day["data"][0] == {
            "key": count_back(0),
            "calls": 3,
            "errors": 1,
            "unanswered_calls": 0,
            "failed_attempts": 0,
            "input_tokens": 1000,
            "cached_tokens": 400,
            "output_tokens": 57,
            "cost_usd": 2.25,
            "unpriced_calls": 0,
            "milliseconds": 6000,
        }
        assert "cost_usd" not in by_day["data"][1], "unknown is not 0"
        by_run = (await http.get(f"/v1/usage?group=run&since={count_back(60)}&until={count_back(1)}")).json()
        assert [row["key"] for row in by_run["data"]] == ["run-4", "run-3"]
        own = (await opened.browse("acme").http.get("/v1/usage?group=tenant")).json()
        assert ([row["key"] for row in own["data"]], own["total"]["calls"]) == (["acme"], 2)
        for query in ("since=0.5", "group=user", "limit=401", "until=0001-01-01T00:00:00%2B14:00", "agent=%00"):
            assert (await http.get(f"/v1/usage?{query}")).status_code == 400, query


def test_axes_end_with_round_numbers() -> None:
    assert [round_up(value) for value in (0, 0.0021, 1, 2.3, 26, 99, 1001)] == [1, 0.0025, 1, 2.5, 50, 100, 2000]


def test_little_is_more_than_nothing_and_parts_stand_on_each_other() -> None:
    columns = [Column("a", "/x", [4e6, 0.001]), Column("b", "", [0.0, 0.0]), Column("c", "/y", [None, 5.0])]
    plot = build_plot("n", columns, ["low", "high"], str)
    [low, high] = plot.bars[0].parts
    assert (low.y, low.height, high.y, high.height) == (20.0, 80.0, 19.0, 1.0)
    assert plot.bars[1].parts == []
    assert [part.tone for part in plot.bars[2].parts] == ["unknown", "high"]
    assert plot.width == 30
