"""The console's list of runs by words and errors, and what is done to all runs that match."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any
from urllib.parse import quote

import pytest

from perdure import Agent
from perdure.testing import ScriptedProvider
from perdure.web.app import WebOptions, create_app
from tests.console.test_runs import read_rows
from tests.integration.test_bulk_actions import Door, failed_runs, name_of, payer
from tests.support.engine import Engine
from tests.support.pages import Browser, console
from tests.support.wait import eventually
from tests.support.web import ADA, NamedCallers, make_caller, serve

pytestmark = pytest.mark.server


async def test_the_list_says_what_was_asked_and_why_it_failed(engine: Engine) -> None:
    door = Door()
    async with failed_runs(engine, door, "inv-1", "inv-2", user="zoe") as client, console(client) as opened:
        browser = opened.browse()
        query = f"?agent={payer(engine)}"
        page = await browser.open(f"/runs{query}")
        assert "Pay inv-1" in page.text
        assert "AuthenticationError" in page.text
        assert "401: the key is wrong" in page.text
        options = {given.get("value") for tag, given in page.tags if tag == "option"}
        assert {payer(engine), "AuthenticationError", "zoe"} <= options
        rows = await read_rows(browser, f"/runs{query}&search={quote('pay INV-2')}")
        assert list(rows) == [name_of(engine, "inv-2")]
        assert await read_rows(browser, "/runs?error=ToolError") == {}
        assert len(await read_rows(browser, f"/runs{query}&error=AuthenticationError")) == 2
        await browser.open(f"/runs?search={'x' * 201}")
        assert browser.response.status_code == 400


async def test_all_that_match_are_resumed_from_the_list(engine: Engine) -> None:
    door = Door()
    viewer = make_caller("eve", "viewer")
    async with (
        failed_runs(engine, door, "inv-1", "inv-2", "inv-3") as client,
        console(client, viewer) as opened,
    ):
        door.is_open = True
        browser = opened.browse()
        await browser.open(f"/runs?agent={payer(engine)}&error=AuthenticationError&started=24h")
        links = [given["href"] for _, given in browser.page.tags if "verb=resume" in given.get("href", "")]
        page = await browser.open(links[0].removeprefix("/console"))
        assert "Resume 3 runs?" in page.text
        assert name_of(engine, "inv-2") in page.text
        for run_id in ("inv-1", "inv-2", "inv-3"):
            assert (await client.run(name_of(engine, run_id)).status()).state == "failed", "nothing is done yet"
        await browser.send(_find_form(browser, "/bulk/new"), per_second="50")
        address = str(browser.response.url.path)
        assert re.fullmatch(r"/console/bulk/[0-9a-f]{32}", address), browser.page.text
        path = address.removeprefix("/console")

        async def is_over() -> bool:
            return "3 of 3" in (await browser.open(path)).text and "completed" in browser.page.text

        await eventually(is_over)
        for run_id in ("inv-1", "inv-2", "inv-3"):
            assert (await client.run(name_of(engine, run_id)).result()).content == "done"
        assert "Resume 3" in (await browser.open("/bulk")).text
        other = opened.browse("eve")
        await other.open(path)
        assert other.response.status_code == 403, "a viewer operates nothing"
        await other.open(f"/bulk/new?verb=resume&agent={payer(engine)}")
        assert other.response.status_code == 403


def _find_form(browser: Browser, action: str) -> Any:
    return next(form for form in browser.page.forms if form.action.endswith(action))


async def test_a_filter_that_names_nothing_is_refused(engine: Engine) -> None:
    async with engine.served(Agent("payer", ScriptedProvider(["done"]))) as client, console(client) as opened:
        browser = opened.browse()
        for query in ("?verb=cancel", "?verb=cancel&children=1", "?agent=x", "?verb=delete&agent=x"):
            await browser.open(f"/bulk/new{query}")
            assert browser.response.status_code == 400, query
        await browser.open("/bulk/unknown")
        assert browser.response.status_code == 404
        page = await browser.open("/bulk/new?verb=cancel&agent=nobody")
        assert "No run to cancel" in page.text


async def test_over_http_with_the_permissions_of_the_caller(engine: Engine) -> None:
    door = Door()
    acme = make_caller("acme", tenants=("acme",))
    reader, narrow = make_caller("reader", "viewer"), make_caller("narrow", tenants=("acme",), agents=("other",))
    callers = NamedCallers(ADA, acme, reader, narrow)
    callers.callers["acme@other"] = replace(acme, tenants=("other",))  # to a proxy, users of two tenants have one name
    async with (
        failed_runs(engine, door, "inv-1", "inv-2") as client,
        serve(client, app=create_app(client, authenticator=callers, options=WebOptions(dev=True))) as service,
        service.connect() as http,
        service.connect("acme") as mine,
        service.connect("reader") as viewer,
        service.connect("narrow") as other,
        service.connect("acme@other") as namesake,
    ):
        door.is_open = True
        own = await client.start(payer(engine), "Pay", id=name_of(engine, "inv-1"), tenant="acme", mode="session")
        await own.turn().result()
        body: dict[str, Any] = {"verb": "cancel", "filter": {"agent": payer(engine)}}
        question = "/bulk-actions/preview"

        async def is_listed() -> bool:
            answer = await mine.post(question, json=body)
            return answer.status_code == 200 and answer.json()["counts"] == {"pending": 1}

        await eventually(is_listed)
        preview = (await mine.post(question, json=body)).json()
        assert [row["session"] for row in preview["data"]] == [name_of(engine, "inv-1")], "as the caller names it"
        assert (await mine.post(question, json={"verb": "cancel", "filter": {"tenant": "other"}})).json()[
            "counts"
        ] == {}
        for wrong in (
            {"verb": "cancel", "filter": {}},
            {"verb": "cancel", "filter": {"children": True}},
            {"verb": "kill", "filter": {"agent": "x"}},
            {"verb": "cancel", "filter": {"agent": "x", "by": "eve"}},
            {"verb": "cancel", "filter": {"ids": ["x"] * 501}},
        ):
            assert (await mine.post(question, json=wrong)).status_code in (400, 422), wrong
            assert (await mine.post("/bulk-actions", json=wrong)).status_code in (400, 422), wrong
        assert (await viewer.post("/bulk-actions", json=body)).status_code == 403
        key = {"Idempotency-Key": "k1"}
        started = await mine.post("/bulk-actions", json=body | {"as_of": preview["as_of"]}, headers=key)
        assert started.status_code == 202, started.text
        again = await mine.post("/bulk-actions", json=body | {"as_of": preview["as_of"]}, headers=key)
        assert again.json()["id"] == started.json()["id"]
        place = f"/bulk-actions/{started.json()['id']}"

        async def is_over() -> bool:
            return bool((await mine.get(place)).json()["state"] == "completed")

        await eventually(is_over)
        runs = (await mine.get(f"{place}/runs", params={"outcome": "acted"})).json()["data"]
        assert [row["session"] for row in runs] == [name_of(engine, "inv-1")]
        assert (await http.get(f"{place}/runs")).json()["data"][0]["session"] == own.id
        assert (await other.get(place)).status_code == 404
        assert (await namesake.get(place)).status_code == 404, "of another tenant"
        assert (await namesake.get("/bulk-actions")).json()["data"] == []
        assert (await other.get("/bulk-actions")).json()["data"] == []
        assert (await viewer.get(place)).status_code == 403
        assert [one["id"] for one in (await mine.get("/bulk-actions")).json()["data"]] == [started.json()["id"]]
        assert (await mine.post(f"{place}/stop", json={})).json()["state"] == "completed"
        row = (await mine.get("/sessions", params={"search": "pay"})).json()["data"][0]
        assert row["first_message"] == "Pay"
        [failed] = (await http.get("/sessions", params={"error": "AuthenticationError", "limit": 1})).json()["data"]
        assert failed["error"] == {"type": "AuthenticationError", "message": failed["error"]["message"]}
        trail = await (await client.store()).list_audit(verb="bulk.*")
        assert {(row.by, row.auth, row.tenant) for row in trail} >= {("acme", "token:acme", "acme")}
        steered = await (await client.store()).list_audit(verb="cancel")
        assert [(row.by, row.auth, row.subject) for row in steered] == [("acme", "token:acme", own.id)]
