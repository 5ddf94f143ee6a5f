"""The audit trail: in the console, as a download, and over HTTP; who sees what of it."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict, replace
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote

import pytest

from perdure import Agent, Client
from perdure.console import audit as audit_page
from perdure.console.audit import defuse_cell
from perdure.ports.audit import AuditRow
from perdure.ports.store import Commit, RunRow
from perdure.testing import ScriptedProvider
from tests.console.test_access import pay_service
from tests.console.test_hostile import HOSTILE, TEXT, check_page
from tests.support.engine import Engine
from tests.support.pages import Browser, Console, Html, console
from tests.support.web import make_caller

ROW = AuditRow("a0", "2026-11-20T10:00:00.000001+00:00", "zoe", "token:1", "10.0.0.7", "run-1", "approve")


@asynccontextmanager
async def trail(engine: Engine, *rows: AuditRow, **tenants: str | None) -> AsyncIterator[tuple[Client, Console]]:
    """A console over a store with these rows, and with runs of these tenants (``run_1="acme"``)."""
    callers = [
        make_caller("eve", "viewer"),
        make_caller("olga"),
        make_caller("acme", tenants=("acme",)),
        make_caller("zoo", "admin", tenants=("zoo",)),
        make_caller("one", sessions=("run-1",)),
    ]
    async with (
        engine.served(Agent("a", ScriptedProvider(["hi"]))) as client,
        console(client, *callers) as opened,
    ):
        store = await client.store()
        for name, tenant in tenants.items():
            run = RunRow(name.replace("_", "-"), "support", "s", None, "running", tenant=tenant, user="ann")
            await store.commit(Commit(run=run))
        for row in rows:
            await store.record_audit(row)
        yield client, opened


def list_subjects(page: Html) -> list[str]:
    return [part for part in page.parts if part in ("run-1", "run-2", "run-3", "daily")]


def count_rows(page: Html) -> int:
    return sum(given.get("class") == "at-utc" for tag, given in page.tags if tag == "td")


async def test_a_decision_is_there_with_who_what_when_and_from_where(engine: Engine) -> None:
    async with pay_service(engine) as (opened, run, _):
        name = quote(run.id, safe="")
        [wait] = (await opened.client.list_waits()).waits
        browser = opened.browse()
        page = await browser.open(f"/inbox/{name}/{wait.call_id}")
        await browser.send(page.find_form(decision="approve", hash=wait.hash), ("decision", "approve"))
        page = await browser.open("/audit")
        for text in ("ada", "approve", "token:ada", "127.0.0.1", run.id):
            assert text in page.text
        links = [given.get("href") for tag, given in page.tags if tag == "a"]
        assert f"/console/runs/{name}" in links
        assert f"/console/inbox/{name}/{wait.call_id}" in links
        [row] = [row for row in await (await opened.client.store()).list_audit() if row.verb == "approve"]
        times = [given["datetime"] for tag, given in page.tags if tag == "time"]
        assert f"{row.at[:23]}+00:00" in times
        [today] = [link for link in links if link and f"from={row.at[:10]}&to={row.at[:10]}" in link]
        assert run.id in (await browser.open(today.removeprefix("/console"))).text


async def test_the_address_is_the_filter(engine: Engine) -> None:
    rows = [
        ROW,
        replace(ROW, id="a1", at="2026-11-21T00:00:00.000000+00:00", by="bob", subject="run-2", verb="deny"),
        replace(ROW, id="a2", at="2026-11-21T23:59:59.999999+00:00", subject="daily", verb="schedule.pause"),
        replace(ROW, id="a3", at="2026-11-22T10:00:00.000000+00:00", subject="run-3", refused="RunClosedError: gone"),
    ]
    async with trail(engine, *rows, run_1="acme", run_2="zoo") as (_, opened):
        browser = opened.browse()
        for query, subjects in (
            ("", ["run-3", "daily", "run-2", "run-1"]),
            ("?by=bob", ["run-2"]),
            ("?verb=schedule.*", ["daily"]),
            ("?verb=approve", ["run-3", "run-1"]),
            ("?subject=run-1", ["run-1"]),
            ("?tenant=zoo", ["run-2"]),
            ("?from=2026-11-21&to=2026-11-21", ["daily", "run-2"]),
            ("?refused=1", ["run-3"]),
            ("?by=%20&verb=", ["run-3", "daily", "run-2", "run-1"]),
            ("?by=bob&verb=approve", []),
        ):
            page = await browser.open(f"/audit{query}")
            assert list_subjects(page) == subjects, query
        page = await browser.open("/audit?by=bob&from=2026-11-21&refused=1")
        assert {("by", "bob"), ("from", "2026-11-21"), ("refused", "1")} <= set(page.find_form(to="/audit").fields)
        for query in ("?from=yesterday", "?to=9999-12-31", f"?by={'x' * 501}", "?cursor=x"):
            await browser.open(f"/audit{query}")
            assert browser.response.status_code == 400, query


async def test_many_requests_come_in_pages_each_once(engine: Engine) -> None:
    rows = [replace(ROW, id=f"a{n:03}", subject=f"run-{n}", by="bob" if n % 2 else "zoe") for n in range(260)]
    async with trail(engine, *rows) as (_, opened):
        browser = opened.browse()
        page, seen = await browser.open("/audit?by=bob"), list[str]()
        while True:
            seen += [given["href"].rpartition("/")[2] for _, given in page.tags if given.get("class") == "subject"]
            more = [given["href"] for _, given in page.tags if "cursor=" in given.get("href", "")]
            if not more:
                break
            page = await browser.open(more[0].removeprefix("/console"))
        assert seen == [f"run-{n}" for n in range(259, 0, -2)]


async def test_who_sees_what(engine: Engine) -> None:
    """A tenant's operator sees what concerns its runs; an operator no tokens; a viewer none of it."""
    rows = [
        ROW,
        replace(ROW, id="a1", subject="run-2"),
        replace(ROW, id="a2", subject="run-3"),
        replace(ROW, id="a3", subject="token:5", verb="token.create"),
        replace(ROW, id="a4", subject="wh_1", verb="webhook.create"),
        replace(ROW, id="a5", subject="gone", verb="delete"),
        replace(ROW, id="a6", subject="daily", verb="schedule.pause"),
    ]
    async with trail(engine, *rows, run_1="acme", run_2="zoo", run_3=None) as (_, opened):
        seen = {}
        for name in ("ada", "olga", "acme", "zoo", "one", "eve"):
            browser = opened.browse(name)
            page = await browser.open("/audit")
            assert browser.response.status_code == (403 if name == "eve" else 200)
            seen[name] = count_rows(page)
            nav = (await browser.open("/costs")).list_links()
            assert ("/console/audit" in nav) == (name != "eve"), "no link to what is refused"
            assert "run-2" not in page.text or name in ("ada", "olga", "zoo")
            lines = (await browser.http.get("/console/audit.jsonl")).text.splitlines()
            assert name == "eve" or len(lines) == seen[name]
        assert seen == {"ada": 7, "olga": 5, "acme": 1, "zoo": 1, "one": 1, "eve": 0}
        refused = [row for row in await (await opened.client.store()).list_audit() if row.by == "eve"]
        assert {(row.verb, row.subject) for row in refused} == {("list_audit", "audit")}


async def test_what_others_wrote_is_text(engine: Engine) -> None:
    rows = [
        AuditRow(f"a{n}", ROW.at, text, text, text, text, text, call_id=text, detail=text, refused=text)
        for n, text in enumerate([*HOSTILE, TEXT])
    ]
    async with trail(engine, *rows) as (_, opened):
        browser = opened.browse()
        page = await browser.open("/audit")
        assert browser.response.status_code == 200
        check_page(page, browser.response.text)
        assert "⟨U+202E⟩" in page.text
        page = await browser.open('/audit?by=%22%3E%3Cscript%3E&verb=%E2%80%AE&subject="><b>')
        check_page(page, browser.response.text)


FORMULAS = ["=HYPERLINK(1)", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1", "  =1", "＝1", "%0A", "|cmd"]


@pytest.mark.parametrize("text", FORMULAS)
def test_no_cell_is_a_formula(text: str) -> None:
    assert defuse_cell(text).startswith("'")


def test_harmless_cells_stay() -> None:
    assert [defuse_cell(text) for text in ("ada", "a=b", "10.0.0.1", "", None)] == ["ada", "a=b", "10.0.0.1", "", ""]


async def read_file(browser: Browser, path: str) -> str:
    answer = await browser.http.get(f"/console{path}")
    assert answer.status_code == 200
    assert answer.headers["content-disposition"].startswith('attachment; filename="audit-')
    assert answer.headers["x-content-type-options"] == "nosniff"
    return answer.text


async def test_downloads_have_what_the_filter_has(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [replace(ROW, id=f"a{n:03}", by="=1+1" if n % 2 else "zoe", detail='a "b",\nc\u202e') for n in range(450)]
    async with trail(engine, *rows, run_1="acme") as (_, opened):
        browser = opened.browse()
        table = list(csv.DictReader(io.StringIO(await read_file(browser, "/audit.csv"), newline="")))
        assert len(table) == 450, "over several pages"
        assert table[0]["by"] == "'=1+1"
        assert table[0]["detail"] == 'a "b",\nc⟨U+202E⟩'
        assert (table[0]["kind"], table[0]["tenant"], table[0]["origin"]) == ("session", "acme", "10.0.0.7")
        text = await read_file(browser, "/audit.jsonl?by=zoe")
        assert text.isascii()
        lines = [json.loads(line) for line in text.splitlines()]
        assert (len(lines), {line["by"] for line in lines}) == (225, {"zoe"})
        assert lines[0]["detail"] == rows[0].detail
        monkeypatch.setattr(audit_page, "MAX_EXPORT_ROWS", 210)
        table = list(csv.DictReader(io.StringIO(await read_file(browser, "/audit.csv"), newline="")))
        assert len(table) == 211
        assert "There are more requests" in table[-1]["at"], "a file that was cut says so"
        answer = await browser.http.get("/console/audit.csv?from=x")
        assert answer.status_code == 400


async def ask(browser: Browser, path: str) -> Any:
    answer = await browser.http.get(f"/v1{path}")
    return answer.status_code, answer.json()


async def test_over_http(engine: Engine) -> None:
    rows = [replace(ROW, id=f"a{n}", subject=f"run-{1 + n % 2}") for n in range(6)]
    async with trail(engine, *rows, run_1="acme", run_2="zoo") as (_, opened):
        status, first = await ask(opened.browse("acme"), "/audit?limit=2")
        assert status == 200
        assert [entry["id"] for entry in first["data"]] == ["a4", "a2"]
        given = {name: value for name, value in asdict(rows[4]).items() if value is not None}
        labels = {"kind": "session", "agent": "support", "tenant": "acme", "user": "ann"}
        assert first["data"][0] == given | labels
        status, rest = await ask(opened.browse("acme"), f"/audit?limit=2&cursor={first['cursor']}")
        assert ([entry["id"] for entry in rest["data"]], "cursor" in rest) == (["a0"], False)
        status, _ = await ask(opened.browse("acme"), f"/audit?limit=2&verb=deny&cursor={first['cursor']}")
        assert status == 400, "a cursor is one of a filter"
        assert (await ask(opened.browse("acme"), "/audit?tenant=zoo"))[1] == {"data": []}
        status, found = await ask(opened.browse(), "/audit?since=2026-11-20T11:00:00%2B01:00&until=2026-11-20T10:01")
        assert (status, len(found["data"])) == (200, 6), "times have offsets, or are UTC"
        assert (await ask(opened.browse("eve"), "/audit"))[0] == 403
        for query in ("since=0.5", "since=0001-01-01T00:00:00%2B14:00", "by=%00", "limit=201", "verbs=x"):
            assert (await ask(opened.browse(), f"/audit?{query}"))[0] == 400, query


async def test_the_trail_is_read_while_the_runs_of_others_fill_it(engine: Engine) -> None:
    """A page ends after a bounded number of reads; its cursor goes on behind what was looked at."""
    hidden = replace(ROW, verb="webhook.create", tenant="acme")  # the visitor is no admin
    rows = [replace(hidden, id=f"b{n:04}", subject="wh_1") for n in range(40)] + [ROW]
    async with trail(engine, *rows, run_1="acme") as (_, opened):
        browser, pages, path = opened.browse("acme"), list[list[str]](), "/audit?limit=2"
        while True:
            status, listed = await ask(browser, path)
            assert status == 200
            pages.append([entry["id"] for entry in listed["data"]])
            if "cursor" not in listed:
                break
            path = f"/audit?limit=2&cursor={listed['cursor']}"
        assert [ids for ids in pages if ids] == [["a0"]]
        assert len(pages) == 2


async def test_refused_requests_of_a_caller_are_one_row_with_their_number(engine: Engine) -> None:
    async with trail(engine, run_1="acme") as (client, opened):
        store = await client.store()
        async with opened.service.connect("eve") as http:
            while True:
                day = datetime.now(UTC).date()
                for _ in range(60):
                    answer = await http.post("/sessions/run-1/events", json={"type": "cancel"})
                    assert answer.status_code == 403
                for number in range(10):  # names that it thinks up
                    answer = await http.post("/sessions", json={"agent": "a", "id": f"mine-{number}"})
                    assert answer.status_code == 403
                if datetime.now(UTC).date() == day:  # else some are of the next day
                    break
        row, started = sorted([row for row in await store.list_audit() if row.by == "eve"], key=lambda row: -row.count)
        assert (row.subject, row.count % 60, row.count > 0) == ("run-1", 0, True)
        assert row.last_at is not None
        assert row.last_at > row.at
        assert (started.subject, started.count % 10) == ("session", 0)
        async with opened.service.connect("olga") as http:
            listed = (await http.get("/audit", params={"by": "eve", "subject": "run-1"})).json()["data"]
            assert [(entry["count"], entry["last_at"]) for entry in listed] == [(row.count, row.last_at)]
        browser = opened.browse("olga")
        page = await browser.open("/audit?by=eve")
        assert f"refused {row.count} times" in " ".join(page.text.split())
        answer = await browser.http.get("/console/audit.csv?by=eve&subject=run-1")
        [line] = list(csv.DictReader(io.StringIO(answer.text)))
        assert (line["count"], line["last_at"]) == (str(row.count), row.last_at)
