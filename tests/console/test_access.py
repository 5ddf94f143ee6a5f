"""Who gets into the console, and which forms it takes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import quote

import httpx
import pytest

from perdure import Agent, Client, tool
from perdure.client.run import Run
from perdure.testing import ScriptedProvider, call
from perdure.web.auth import Caller
from tests.support.engine import Engine
from tests.support.pages import Browser, Console, Html, console
from tests.support.wait import eventually
from tests.support.web import make_caller


async def log_in(browser: Browser, token: str, path: str = "/inbox") -> Html:
    page = await browser.open(path)
    assert str(browser.response.url.path) == "/console/login"
    return await browser.send(page.find_form(token=""), token=token)


async def test_a_login_with_a_token_until_the_logout(engine: Engine) -> None:
    async with engine.served(Agent("a", ScriptedProvider(["hi"]))) as client, console(client, tokens=True) as opened:
        new = await client.tokens.create("ana", role="approver")
        browser = opened.browse(None)
        page = await log_in(browser, new.token, "/runs?agent=a")
        assert browser.response.url.path == "/console/runs", "it goes on with the page that was asked for"
        assert browser.response.url.query == b"agent=a"
        assert "ana" in page.text
        [cookie] = [cookie for cookie in browser.http.cookies.jar if cookie.name == "perdure_login"]
        set_cookie = browser.response.history[0].headers["set-cookie"]
        assert all(part in set_cookie.lower() for part in ("httponly", "samesite=lax", "path=/console"))
        assert new.token.rpartition("_")[2] not in str(cookie.value)
        assert "pdr_" not in str(cookie.value)
        await browser.send(page.find_form(to="/logout"))
        assert browser.response.url.path == "/console/login"
        stolen = await browser.http.get("/console/inbox", headers={"cookie": f"perdure_login={cookie.value}"})
        assert stolen.url.path == "/console/login", "after a logout the cookie is of no use"
        as_token = f"pdr_{str(cookie.value).replace('.', '_')}"
        refused = await browser.http.get("/v1/approvals", headers={"authorization": f"Bearer {as_token}"})
        assert refused.status_code == 401, "a cookie is no token"


async def test_a_revoked_token_ends_its_logins(engine: Engine) -> None:
    async with engine.served(Agent("a", ScriptedProvider(["hi"]))) as client, console(client, tokens=True) as opened:
        new = await client.tokens.create("ana", role="viewer")
        browser = opened.browse(None)
        await log_in(browser, new.token)
        assert browser.response.url.path == "/console/inbox"
        await client.tokens.revoke(new.info.id)
        await browser.open("/inbox")
        assert browser.response.url.path == "/console/login"


async def test_wrong_tokens_are_refused_and_then_slowed_down(engine: Engine) -> None:
    async with engine.served(Agent("a", ScriptedProvider(["hi"]))) as client, console(client, tokens=True) as opened:
        browser = opened.browse(None)
        page = await log_in(browser, "pdr_0123456789abcdef_" + "0" * 64)
        assert browser.response.status_code == 401
        assert "That is not a token of this server." in page.text
        assert not [cookie for cookie in browser.http.cookies.jar if cookie.name == "perdure_login"]
        for _ in range(30):
            page = await browser.send(page.find_form(token=""), token="nonsense")
        assert browser.response.status_code == 429


@pytest.mark.parametrize("target", ["https://evil.example/", "//evil.example/", "/\\evil.example", "javascript:1"])
async def test_a_login_leads_nowhere_else(engine: Engine, target: str) -> None:
    async with engine.served(Agent("a", ScriptedProvider(["hi"]))) as client, console(client, tokens=True) as opened:
        new = await client.tokens.create("ana", role="viewer")
        browser = opened.browse(None)
        page = await browser.open(f"/login?next={target}")
        await browser.send(page.find_form(token=""), token=new.token)
        assert browser.response.url.host == "127.0.0.1"
        assert browser.response.url.path == "/console/inbox"


async def test_pages_have_strict_headers_and_nothing_inline(engine: Engine) -> None:
    async with pay_service(engine) as (opened, run, _):
        browser = opened.browse()
        for path in (
            "/inbox",
            "/runs",
            f"/runs/{quote(run.id, safe='')}",
            "/audit",
            "/costs",
            "/webhooks",
            "/nothing",
            "/login",
        ):
            page = await browser.open(path)
            headers = browser.response.headers
            policy = headers["content-security-policy"]
            assert "default-src 'none'" in policy
            assert "unsafe" not in policy
            assert "frame-ancestors 'none'" in policy
            assert (headers["x-frame-options"], headers["x-content-type-options"]) == ("DENY", "nosniff")
            assert headers["referrer-policy"] == "same-origin"
            for tag, given in page.tags:
                assert tag != "style", path
                assert tag != "script" or given.get("src", "").startswith("/console/assets/"), path
                assert not [name for name in given if name.startswith("on") or name == "style"], (path, tag, given)


async def test_assets_are_small_and_kept_by_browsers(engine: Engine) -> None:
    async with pay_service(engine) as (opened, run, _):
        browser = opened.browse()
        urls: set[str] = set()
        for path in ("/inbox", f"/runs/{quote(run.id, safe='')}"):
            page = await browser.open(path)
            urls |= {given.get("src") or given.get("href", "") for _, given in page.tags if "/assets/" in str(given)}
        sizes = 0
        for url in urls:
            response = await browser.http.get(url)
            assert response.status_code == 200, url
            assert "immutable" in response.headers["cache-control"]
            assert response.headers["x-content-type-options"] == "nosniff"
            sizes += len(response.content)
        assert 5_000 < sizes < 100_000


@pytest.mark.parametrize(
    "change",
    [
        {"form_token": "0" * 64},
        {"form_token": ""},
        {"origin": "https://evil.example"},
        {"origin": "null"},
        {"content-type": "text/plain"},
        {"cookie": ""},
    ],
    ids=["another token", "no token", "another origin", "no origin", "another type", "without the cookie"],
)
async def test_a_forged_form_decides_nothing(engine: Engine, change: dict[str, str]) -> None:
    async with pay_service(engine) as (opened, run, paid):
        browser = opened.browse()
        page = await browser.open("/inbox")
        form = page.forms[-1]
        fields = dict(form.fields) | {"decision": "approve"} | {k: v for k, v in change.items() if k == "form_token"}
        headers = {"origin": opened.service.url} | {k: v for k, v in change.items() if k != "form_token"}
        if "cookie" in headers:
            browser.http.cookies.clear()
            del headers["cookie"]
        content = str(httpx.QueryParams(fields))
        headers.setdefault("content-type", "application/x-www-form-urlencoded")
        answer = await browser.http.post("/console/inbox", content=content, headers=headers)
        assert answer.status_code in (403, 415)
        assert [pending.tool for pending in (await run.status()).approvals] == ["pay"]
        assert paid == []


async def test_roles_and_tenants_are_those_of_the_api(engine: Engine) -> None:
    viewer, other = make_caller("eve", "viewer"), make_caller("other", "operator", tenants=("other",))
    async with pay_service(engine, viewer, other) as (opened, run, paid):
        reader, stranger, ada = opened.browse("eve"), opened.browse("other"), opened.browse()
        page = await reader.open("/inbox")
        assert "not decide on it" in page.text
        assert not [form for form in page.forms if ("decision", "approve") in form.buttons and not form.id]
        form = (await ada.open("/inbox")).forms[-1]
        token = dict(page.forms[1].fields)["form_token"]
        forged = [(name, token if name == "form_token" else value) for name, value in form.fields]
        form.fields = forged
        await reader.send(form, ("decision", "approve"))
        assert "may not decide" in reader.page.text
        name = quote(run.id, safe="")
        for path in (f"/runs/{name}", f"/inbox/{name}/x", f"/runs/{name}/live", f"/runs/{name}/export/events"):
            await stranger.open(path)
            assert stranger.response.status_code == 404, path
        await ada.open(f"/runs/{name}")
        assert ada.response.status_code == 200
        nothing = await stranger.open("/inbox")
        assert "Nothing waits" in nothing.text
        assert run.id not in (await stranger.open("/runs")).text
        assert paid == []
        audit = await (await opened.client.store()).list_audit(subject=run.id)
        assert [(row.by, row.verb, bool(row.refused)) for row in audit if row.by == "eve"] == [("eve", "approve", True)]


async def test_below_another_path(engine: Engine) -> None:
    async with pay_service(engine) as (opened, _, _):
        opened.service.server.config.root_path = "/perdure"
        async with httpx.AsyncClient(base_url=opened.service.url, follow_redirects=False) as http:
            headers = {"authorization": "Bearer ada"}
            page = Html((await http.get("/console/inbox", headers=headers)).text)
            links = {given["href"] for tag, given in page.tags if tag == "a" and given.get("href", "").startswith("/")}
            assert links
            assert all(link.startswith("/perdure/console/") for link in links)
            assert all(form.action.startswith("/perdure/console/") for form in page.forms)
            gone = await http.get("/console/", headers=headers)
            assert gone.headers["location"] == "/perdure/console/overview"
            moved = await http.get("/console/inbox")
            assert moved.headers["location"] == "/perdure/console/login?next=%2Finbox"


@asynccontextmanager
async def pay_service(engine: Engine, *callers: Caller) -> AsyncIterator[tuple[Console, Run[Any], list[int]]]:
    """A run whose call waits for approval."""
    paid: list[int] = []

    @tool(needs_approval=True)
    def pay(amount: int) -> str:
        paid.append(amount)
        return "paid"

    def answer(request: Any) -> Any:
        return "done" if request.messages[-1].role == "tool" else call("pay", amount=3)

    agent = Agent("payer", ScriptedProvider(answer), tools=[pay])
    async with engine.served(agent) as client, console(client, *callers) as opened:
        run = await client.start("payer", "Pay", mode="session", tenant="acme")
        await wait_for_waits(client)
        yield opened, run, paid


async def wait_for_waits(client: Client, count: int = 1) -> None:
    async def is_listed() -> bool:
        return len((await client.list_waits()).waits) == count

    await eventually(is_listed)
