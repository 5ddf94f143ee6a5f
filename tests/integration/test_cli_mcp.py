"""``perdure mcp``, in this process: the browser is a client that follows redirects."""

from __future__ import annotations

import queue
import sys
import webbrowser
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from perdure import Agent
from perdure.mcp import MCPServer, OAuth
from perdure.testing import ScriptedProvider, call
from tests.support.checks import results
from tests.support.commands import Commands
from tests.support.engine import Engine
from tests.support.oauth import OAuthServer, agree, serve_oauth
from tests.support.wait import eventually

RETURN = "http://127.0.0.1:9/callback"


@pytest.fixture
def cli(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> Commands:
    monkeypatch.setenv("PERDURE_ENCRYPTION_KEYS", "k1:" + "A" * 43 + "=")
    return Commands(engine, monkeypatch)


@pytest.fixture
def guarded() -> Iterator[OAuthServer]:
    with serve_oauth() as server:
        yield server


@pytest.fixture
def pages(monkeypatch: pytest.MonkeyPatch) -> list[httpx2.Response]:
    """What the browser shows in the end."""
    seen: list[httpx2.Response] = []

    def open_page(url: str, *_: Any) -> bool:
        with httpx2.Client(follow_redirects=True, timeout=60) as browser:
            back = httpx2.URL(url).params["redirect_uri"]
            assert browser.get(back, params={"code": "x", "state": "forged"}).status_code == 400
            assert browser.get(back.replace("/callback", "/")).status_code == 400
            seen.append(browser.get(url))
        return True

    monkeypatch.setattr(webbrowser, "open", open_page)
    return seen


async def test_a_login_from_the_question_to_the_logout(
    engine: Engine, cli: Commands, guarded: OAuthServer, pages: list[httpx2.Response]
) -> None:
    server = MCPServer.http(guarded.url, auth=OAuth(), name="crm")
    agent = Agent("host", ScriptedProvider([call("connect_crm"), call("act"), "Done."]), toolsets=[server])
    async with engine.served(agent) as client:
        run = await client.start("host", "Go.", tenant="acme")
        await eventually(lambda: _is_asked(run), deadline=45, what="the question")
        [listed] = (await cli("approvals", "--json")).json
        assert listed["consent"] == {"server": guarded.url, "scopes": [], "tenant": "acme", "user": ""}

        listed = await cli("approvals")
        assert f"sign in: perdure mcp login {guarded.url} --tenant acme\n" in listed.out

        done = await cli("mcp", "login", guarded.url, "--tenant", "acme", "--scope", "mail", "--by", "ana")
        assert done.code == 0, done.err
        assert done.out == f"signed in to {guarded.url}; 1 waiting call of {run.id}\n"
        assert f"Sign in here: {guarded.issuer}/authorize?" in done.err
        await eventually(lambda: _has_come(pages), what="the page in the browser")
        [page] = pages
        assert f"Signed in to {guarded.url}. You can close this page." in page.text
        assert results((await run.result()).messages)[-1] == "act 1 as ana"

        [grant] = (await cli("mcp", "list", "--json")).json
        facts = {name: grant[name] for name in ("server", "tenant", "user", "scopes", "state", "signed_in_by")}
        assert facts == {
            "server": guarded.url,
            "tenant": "acme",
            "user": "",
            "scopes": ["mail"],
            "state": "valid",
            "signed_in_by": "ana",
        }
        assert guarded.url in (await cli("mcp", "list")).out
        assert (await cli("mcp", "list", "--tenant", "umbrella")).err == "no grants\n"
        missing = await cli("mcp", "logout", guarded.url)
        assert (missing.code, f"there is no grant for {guarded.url}" in missing.err) == (2, True)
        out = await cli("mcp", "logout", guarded.url, "--tenant", "acme")
        assert out.out == f"the grant for {guarded.url} is deleted and revoked\n"
        assert guarded.revoked
        assert (await cli("mcp", "list", "--json")).json == []
        store = await client.store()
        rows = [(row.verb, row.tenant) for row in await store.list_audit(subject=f"mcp:{guarded.url}")]
        assert rows == [("mcp.sign_out", "acme"), ("mcp.grant", "acme"), ("mcp.sign_in", "acme")]


async def _has_come(pages: list[httpx2.Response]) -> bool:
    return bool(pages)


async def _is_asked(run: Any) -> bool:
    return bool((await run.status()).approvals)


class _Typed:
    """A terminal at which somebody pastes one line."""

    def __init__(self) -> None:
        self.lines: queue.Queue[str] = queue.Queue()

    def readline(self) -> str:
        return self.lines.get(timeout=60)


async def test_a_machine_without_a_browser_reads_the_address(
    engine: Engine, cli: Commands, guarded: OAuthServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The address of the page is printed, and that at which the other machine's browser ends is pasted."""
    typed = _Typed()
    async with engine.served(Agent("host", ScriptedProvider([]))) as client:
        for paste, code in (("nothing", 2), ("forged", 2), ("another's", 2), ("", 0)):
            login = await cli.spawn("mcp", "login", guarded.url, "--no-browser")
            monkeypatch.setattr(sys, "stdin", typed)
            answer = await agree((await login.until("Sign in here: ")).removeprefix("Sign in here: "))
            answer |= {"state": "forged"} if paste == "forged" else {}
            if paste == "another's":  # who has sent the person a link to this address
                begun = await client.grants.begin(guarded.url, redirect_uri=RETURN, user="eve", by="eve")
                answer = await agree(begun.url)
            typed.lines.put("hello\n" if paste == "nothing" else f"{RETURN}?{httpx2.QueryParams(answer)}\n")
            assert await login.ended() == code, login.output
            assert len(await client.grants.list()) == (code == 0)


async def test_what_cannot_work_is_said_before_the_browser_opens(
    engine: Engine, cli: Commands, guarded: OAuthServer, pages: list[httpx2.Response], tmp_path: Path
) -> None:
    empty = tmp_path / "secret"
    empty.write_text("\n")
    wrong = {
        "the URL of an MCP server is http(s), not 'mcp.example'": ["mcp.example"],
        "the URL of the MCP server has no host": ["http://[::1/mcp"],
        "or a port that is none": ["http://127.0.0.1:99999/mcp"],
        "the URL of the MCP server has credentials": ["https://me:secret@mcp.example/mcp"],
        f"port {guarded.port} of 127.0.0.1 cannot be used": [guarded.url, "--port", str(guarded.port)],
        f"{empty} is empty": [guarded.url, "--client-id", "x", "--client-secret-file", str(empty)],
        "a client_secret without a client_id": [guarded.url, "--client-secret-file", __file__],
    }
    async with engine.served(Agent("host", ScriptedProvider([]))):
        for said, arguments in wrong.items():
            done = await cli("mcp", "login", *arguments)
            assert done.code == 2, done.err
            assert said in done.err
            assert "me:secret" not in done.err
    assert pages == []


async def test_a_person_who_does_not_agree(
    engine: Engine, cli: Commands, guarded: OAuthServer, pages: list[httpx2.Response]
) -> None:
    guarded.agrees = False
    async with engine.served(Agent("host", ScriptedProvider([]))):
        done = await cli("mcp", "login", guarded.url)
    assert done.code != 0
    assert "the authorization server has refused: access_denied: <b>no</b>" in done.err
    assert "&lt;b&gt;no&lt;/b&gt;" in pages[0].text
