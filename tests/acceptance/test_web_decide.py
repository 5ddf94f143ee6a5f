"""The page of a link to a decision: reading decides nothing, the button does, once, for who may."""

from __future__ import annotations

from html import unescape
from typing import Any
from urllib.parse import quote

import httpx
import pytest

from perdure import Agent, tool
from perdure.testing import ScriptedProvider, call
from tests.support.engine import Engine
from tests.support.wait import eventually
from tests.support.web import make_caller, serve

NOTE = '<script>alert(1)</script>\u202e\u0007 & "more"'
BOB, EVE = make_caller("bob", "approver", tenants=("acme",)), make_caller("eve", "viewer", tenants=("acme",))
OTHER = make_caller("other", "admin", tenants=("other",))


@pytest.mark.server
async def test_a_person_decides_by_the_page_of_a_link(engine: Engine) -> None:
    paid: list[str] = []

    @tool(needs_approval=True)
    def pay(note: str) -> str:
        paid.append(note)
        return "paid"

    provider = ScriptedProvider([call("pay", note=NOTE), "done"])
    async with (
        engine.served(Agent("payer", provider, tools=[pay])) as client,
        serve(client, BOB, EVE, OTHER) as service,
        httpx.AsyncClient(base_url=service.url, timeout=30) as http,
    ):
        run = await client.start("payer", "Pay", mode="session", tenant="acme")

        async def find_wait() -> Any:
            return next(iter((await run.status()).approvals), None)

        wait = await eventually(find_wait)
        path = f"/decide/{quote(run.id, safe='')}/{wait.call_id}"

        async def get(name: str, hash: str = wait.hash) -> httpx.Response:
            return await http.get(path, params={"hash": hash}, headers={"authorization": f"Bearer {name}"})

        async def press(name: str, **changes: str) -> httpx.Response:
            fields = {"hash": wait.hash, "decision": "approve", "comment": "fine"} | changes
            return await http.post(path, data=fields, headers={"authorization": f"Bearer {name}"})

        assert (await http.get(path, headers={"accept": "text/html"})).status_code == 401
        assert (await get("other")).status_code == 404
        assert (await press("other")).status_code == 404
        page = await get("bob")
        assert page.status_code == 200
        assert "script-src" not in page.headers["content-security-policy"]
        assert "default-src 'none'" in page.headers["content-security-policy"]
        assert "<script" not in page.text
        assert "\u202e" not in page.text
        assert "[U+202E]" in page.text
        assert "<script>alert(1)</script>" in unescape(page.text)
        assert '<form method="post">' in page.text, "it is sent to where the page is from"
        assert "<form" not in (await get("eve")).text
        assert (await get("bob", "0" * 32)).status_code == 409
        assert (await press("eve")).status_code == 403
        assert (await press("bob", hash="0" * 32)).status_code == 400
        assert (await press("bob", decision="explode")).status_code == 400
        as_json = await http.post(path, json={"decision": "approve"}, headers={"authorization": "Bearer bob"})
        assert as_json.status_code == 415
        evil = {"authorization": "Bearer bob", "origin": "https://evil.example"}
        crossed = await http.post(path, data={"hash": wait.hash, "decision": "approve"}, headers=evil)
        assert crossed.status_code == 403
        assert paid == []
        decided = await press("bob")
        assert decided.status_code == 200, decided.text
        assert "approved by bob" in decided.text
        assert (await press("bob")).status_code == 200, "the same decision again"
        late = await press("ada", decision="deny")
        assert late.status_code == 409
        assert "bob" in late.text
        await eventually(lambda: paid == [NOTE])
        assert "approved by bob" in (await get("eve")).text
        rows = await (await client.store()).list_audit(subject=run.id)
        assert {(row.by, row.verb, bool(row.refused)) for row in rows} >= {
            ("bob", "approve", False),
            ("eve", "approve", True),
            ("ada", "deny", True),
        }
