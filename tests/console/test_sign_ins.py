"""Sign-ins at MCP servers from the console, by forms and links alone."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from urllib.parse import quote, urlsplit

import pytest

from perdure import Agent, Client
from perdure.client.run import Run
from perdure.mcp import MCPServer, OAuth
from perdure.testing import ScriptedProvider, call
from tests.console.test_access import wait_for_waits
from tests.support.checks import results
from tests.support.chromium import PICTURES, chromium
from tests.support.engine import Engine
from tests.support.oauth import OAuthServer, agree, serve_oauth
from tests.support.pages import Browser, Html, console
from tests.support.web import make_caller

BOB = make_caller("bob", "sender")
EVE = make_caller("eve", "operator")


@pytest.fixture
def guarded() -> Iterator[OAuthServer]:
    with serve_oauth() as server:
        yield server


@pytest.fixture(autouse=True)
def _key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PERDURE_ENCRYPTION_KEYS", "k1:" + "A" * 43 + "=")


def host(guarded: OAuthServer, **options: Any) -> Agent:
    server = MCPServer.http(guarded.url, auth=OAuth(scopes=["mail"], **options), name="crm")
    return Agent("host", ScriptedProvider([call("connect_crm"), call("act"), "Done."]), toolsets=[server])


async def started(client: Client, **options: Any) -> tuple[Run[Any], str]:
    """A run whose call waits, and the path of the call's page."""
    run = await client.start("host", "Go.", **options)
    await wait_for_waits(client, 1)
    [pending] = (await run.status()).approvals
    return run, f"/inbox/{quote(run.id, safe='')}/{quote(pending.call_id, safe='')}"


def find_link(page: Html) -> str:
    """The address of the authorization server."""
    [link] = [one for one in page.list_links() if "/as/authorize?" in one]
    return link


async def begin(browser: Browser, path: str) -> str:
    page = await browser.open(path)
    [form] = [one for one in page.forms if one.action.endswith("/sign-in")]
    page = await browser.send(form, ("decision", "sign-in"))
    assert browser.response.status_code == 200, page.text
    return find_link(page)


async def come_back(browser: Browser, answer: dict[str, str]) -> Html:
    await browser.http.get("/")  # the browser's own address does not matter
    return await browser.open(f"/mcp/callback?{'&'.join(f'{name}={quote(text)}' for name, text in answer.items())}")


async def test_a_person_signs_in_and_the_run_goes_on(engine: Engine, guarded: OAuthServer) -> None:
    async with engine.served(host(guarded)) as client, console(client, BOB, EVE) as opened:
        run, path = await started(client, tenant="acme")
        browser = opened.browse()
        page = await browser.open("/inbox")
        assert "Sign in…" in page.text
        assert f"Sign in to {guarded.url}" in page.text
        bob = opened.browse("bob")
        page = await bob.open(path)
        assert "Who may operate runs may sign in for all of them." in page.text
        assert not [one for one in page.forms if one.action.endswith("/sign-in")]

        for place in (f"/chat/host/{quote(run.id, safe='')}", f"/runs/{quote(run.id, safe='')}"):
            page = await browser.open(place)
            assert [link for link in page.list_links() if path in link], place
            assert "Sign in…" in page.text
            assert not [one for one in page.forms if ("decision", "answer") in one.buttons]

        url = await begin(browser, path)
        assert urlsplit(url).netloc == f"127.0.0.1:{guarded.port}"
        assert f"Continue to 127.0.0.1:{guarded.port}" in browser.page.text
        answer = await agree(url)
        page = await come_back(opened.browse("eve"), answer)
        assert "another person has begun this sign-in" in page.text
        answer = await agree(await begin(browser, path))
        page = await come_back(browser, answer)
        assert browser.response.status_code == 200, page.text
        assert "Answered" in page.text
        assert results((await run.result()).messages)[-1] == "act 1 as ana"
        page = await come_back(browser, answer)
        assert "it was used, or it has expired" in page.text
        [grant] = await client.grants.list()
        assert (grant.tenant, grant.user, grant.signed_in_by) == ("acme", "", "ada")
        assert not [word for word in ("access-", "refresh-") if word in page.text]


async def test_a_user_of_that_name_of_another_tenant_does_not_finish_a_sign_in(
    engine: Engine, guarded: OAuthServer
) -> None:
    """They were sent the link, and agreed: what they have at the server is not for the runs of the one who sent it."""
    async with engine.served(host(guarded, per_user=True)) as client, console(client, tokens=True) as opened:
        ours, theirs = [
            (await client.tokens.create("weber", role="sender", tenants=[tenant])).token for tenant in ("acme", "bolt")
        ]
        run, _ = await started(client, user="weber", tenant="acme")
        [pending] = (await run.status()).approvals
        shown = quote(run.id.removeprefix("~acme~"), safe="")
        answer = await agree(await begin(opened.browse(ours), f"/inbox/{shown}/{quote(pending.call_id, safe='')}"))
        page = await come_back(opened.browse(theirs), answer)
        assert "another person has begun this sign-in" in page.text
        assert await client.grants.list() == []


async def test_a_user_signs_in_for_themselves_only(engine: Engine, guarded: OAuthServer) -> None:
    weber = make_caller("weber", "sender")
    async with engine.served(host(guarded, per_user=True)) as client, console(client, weber) as opened:
        run, path = await started(client, user="weber")
        ada = opened.browse()
        page = await ada.open(path)
        assert "Only user weber may sign in here." in page.text
        assert not [one for one in page.forms if one.action.endswith("/sign-in")]
        user = opened.browse("weber")
        await come_back(user, await agree(await begin(user, path)))
        assert results((await run.result()).messages)[-1] == "act 1 as ana"
        [grant] = await client.grants.list()
        assert (grant.user, grant.signed_in_by) == ("weber", "weber")


async def test_a_form_of_another_site_or_of_another_call_begins_nothing(engine: Engine, guarded: OAuthServer) -> None:
    async with engine.served(host(guarded)) as client, console(client, BOB) as opened:
        _, path = await started(client)
        browser = opened.browse()
        page = await browser.open(path)
        [form] = [one for one in page.forms if one.action.endswith("/sign-in")]
        forged = await browser.http.post(
            form.action, data=dict(form.fields), headers={"origin": "https://evil.example"}
        )
        assert forged.status_code == 403
        await browser.open(path)
        await browser.send(form, ("decision", "sign-in"), hash="another")
        assert browser.response.status_code == 400
        await browser.open(path)
        await browser.send(form, ("decision", "sign-in"), form_token="x" * 64)
        assert browser.response.status_code == 403
        bob = opened.browse("bob")
        page = await bob.open(path)
        token = next(dict(one.fields)["form_token"] for one in page.forms if "form_token" in dict(one.fields))
        await bob.send(form, ("decision", "sign-in"), form_token=token)
        assert bob.response.status_code == 403
        assert guarded.asked == []


async def test_an_authorization_server_that_refuses_is_shown_as_text(engine: Engine, guarded: OAuthServer) -> None:
    guarded.agrees = False
    async with engine.served(host(guarded)) as client, console(client) as opened:
        run, path = await started(client)
        browser = opened.browse()
        page = await come_back(browser, await agree(await begin(browser, path)))
        assert browser.response.status_code == 502
        assert "has refused: access_denied: <b>no</b>" in page.text, "text, not markup"
        guarded.issuer_in_metadata = "https://evil.example"
        page = await browser.open(path)
        [form] = [one for one in page.forms if one.action.endswith("/sign-in")]
        page = await browser.send(form, ("decision", "sign-in"))
        assert "issuer mismatch" in page.text
        page = await browser.open(path)
        [refuse] = [one for one in page.forms if "hash" in dict(one.fields) and not one.action.endswith("/sign-in")]
        await browser.send(refuse, ("decision", "refuse"), comment="I have no account")
        assert "did not sign in: I have no account" in results((await run.result()).messages)[0]


@pytest.mark.slow
async def test_in_a_real_browser(engine: Engine, guarded: OAuthServer) -> None:
    """Policies and cookies let the browser leave and come back; the authorization server learns no address of ours."""
    async with engine.served(host(guarded)) as client, console(client) as opened:
        run, path = await started(client, tenant="acme")
        async with chromium(opened.service.url, "sign-ins in a browser") as browser:
            window = await browser.open("/inbox")
            page = window.page
            await page.get_by_role("link", name="Sign in…").click()
            await page.get_by_role("button", name="Sign in…").click()
            PICTURES.mkdir(parents=True, exist_ok=True)
            await page.screenshot(path=PICTURES / "sign-in.png", full_page=True)
            await page.get_by_role("link", name=f"Continue to 127.0.0.1:{guarded.port}").click()
            await page.get_by_text("Answered").first.wait_for()
            assert urlsplit(page.url).path == f"/console{path}"
            assert urlsplit(page.url).query == "", "the code stays in no address"
            assert window.complaints == []
        assert results((await run.result()).messages)[-1] == "act 1 as ana"
    assert [one for one in guarded.referrers if one] == []
