"""The agents that workers have recorded, by httpx."""

from __future__ import annotations

import json
from typing import Any, Literal

import pytest
from pydantic import BaseModel, Field

from perdure import Agent, Approval, Limits, allow, ask, deny, hook, tool
from perdure.agent.definition import build_agent_row
from perdure.console.agents import build_agent_view, build_schema, compare_definitions, describe_approval
from perdure.ports.store import AgentRow
from perdure.testing import ScriptedProvider
from perdure.worker.engine import record_agents
from tests.console.test_hostile import TEXT, check_page
from tests.support.engine import Engine
from tests.support.pages import Html, console
from tests.support.web import make_caller

MINE = make_caller("acme", "operator", tenants=("acme",))
ONE_AGENT = make_caller("one", "viewer", agents=("plain",))


class Address(BaseModel):
    """Where to."""

    street: str = Field(description="With the number")
    country: Literal["PT", "DE"] = "PT"


class Verdict(BaseModel):
    """What became of it."""

    refunded: bool
    notes: list[str] = []


@tool(needs_approval=Approval(expires="2h", separate=True), timeout=30)
def refund(order_id: str, amount: float, to: Address | None = None) -> str:
    """Refund an order.

    Only after a look at the photo.
    """
    return "ok"


@tool(task_queue="gpu")
def draw(what: str) -> str:
    """Draw."""
    return "ok"


@hook("before_tool_call")
def check_budget(name: str) -> None:
    """Check."""


def build_agents(instructions: str = "You help.") -> list[Agent[Any, Any]]:
    desk = Agent(
        "desk",
        ScriptedProvider(["hi"]),
        description="Helps customers",
        instructions=instructions,
        tools=[refund, draw],
        subagents=[Agent("scout", ScriptedProvider(["hi"]))],
        output=Verdict,
        approvals=[deny("draw", what="*secret*"), ask("draw", Approval(expires="1h")), allow("draw")],
        hooks=[check_budget],
        limits=Limits(cost_usd=2.5, turn=Limits(wall_time="10m")),
        max_iterations=7,
    )
    return [desk, Agent("plain", ScriptedProvider(["hi"]))]


def says(page: Html, text: str) -> bool:
    """Whether a page shows a text; blanks count for nothing, as cells stand apart without them."""
    return "".join(text.split()) in "".join(page.text.split())


async def test_agents_and_the_page_of_one(engine: Engine) -> None:
    agents = build_agents()
    async with engine.served(*agents) as client, console(client, MINE, ONE_AGENT) as opened:
        await record_agents(await client.store(create=True), agents)
        run = await client.start("desk", None, mode="session")
        browser = opened.browse()
        page = await browser.open("/agents")
        check_page(page, browser.response.text)
        assert says(page, "3 that workers have recorded")
        assert says(page, "desk Helps customers")
        page = await browser.open("/agents/desk")
        check_page(page, browser.response.text)
        for expected in (
            "A person who did not ask for it approves each call. It waits for 2 h, and is denied then.",
            "Only after a look at the photo.",
            "to.street",
            "With the number",
            '"PT" or "DE" by default "PT"',
            "Task queue gpu",
            "Timeout 30 s",
            'Deny draw where what is "*secret*"',
            "Ask a person about draw A person approves each call. It waits for 1 h, and is denied then.",
            "Allow draw",
            "You help.",
            "Iterations per turn 7",
            "Cost per run $2.50",
            "Time at work per turn 10 min",
            "before_tool_call: check_budget",
            "yes or no",
            "list of text",
            "1 open run",
            engine.task_queue,
        ):
            assert says(page, expected), expected
        links = {given.get("href") for _, given in page.tags}
        assert {"/console/chat/desk", "/console/runs?agent=desk", "/console/schedules?agent=desk"} <= links
        assert f"/console/workers?queue={engine.task_queue}" in links
        await run.close()
        page = await browser.open("/agents/nobody")
        assert browser.response.status_code == 404


async def test_what_differs_between_two_versions(engine: Engine) -> None:
    async with engine.served(*build_agents()) as client, console(client) as opened:
        store = await client.store(create=True)
        await record_agents(store, build_agents())
        first = (await store.list_agents("desk"))[0]
        await record_agents(store, build_agents("You help, and you are brief."))
        browser = opened.browse()
        page = await browser.open("/agents/desk")
        links = [given["href"] for _, given in page.tags if "against=" in given.get("href", "")]
        assert links == [next(link for link in links if first.hash[:12] in link)]
        changed = await browser.open(links[0].removeprefix("/console"))
        check_page(changed, browser.response.text)
        assert says(changed, "changed instructions")
        assert says(changed, "was: −You help.")
        assert says(changed, "becomes: +You help, and you are brief.")
        older = await browser.open(f"/agents/desk?version={first.hash[:12]}")
        assert "An older definition" in older.text
        assert "brief" not in older.text
        for version in ("x", first.hash[:3], "0" * 64):
            await browser.open(f"/agents/desk?version={version}")
            assert browser.response.status_code == 404
        same = await browser.open(f"/agents/desk?version={first.hash}&against={first.hash}")
        assert "They do not differ." in same.text


async def test_who_sees_which_agents(engine: Engine) -> None:
    agents = build_agents()
    async with engine.served(*agents) as client, console(client, MINE, ONE_AGENT) as opened:
        await record_agents(await client.store(create=True), agents)
        await client.start("desk", None, mode="session", tenant="other")
        page = await opened.browse("one").open("/agents")
        assert "desk" not in page.text
        assert "/console/agents/plain" in {given.get("href") for _, given in page.tags}
        browser = opened.browse("one")
        await browser.open("/agents/desk")
        assert browser.response.status_code == 404
        browser = opened.browse("acme")
        page = await browser.open("/agents/desk")
        assert "open run" not in page.text, "figures over all tenants are none of one tenant's"
        assert engine.task_queue not in page.text
        assert "/console/workers" not in {given.get("href") for _, given in page.tags}
        page = await browser.open("/agents")
        assert "/console/runs?agent=desk&status=open" not in {given.get("href") for _, given in page.tags}


async def test_pages_of_agents(engine: Engine) -> None:
    async with engine.served(*build_agents()) as client, console(client) as opened:
        store = await client.store(create=True)
        body = json.dumps({"name": "x", "models": ["m"]}).encode()
        await store.record_agents([AgentRow(f"{number:064x}", f"a{number:03}", body) for number in range(60)])
        browser = opened.browse()
        page = await browser.open("/agents")
        assert "a049" in page.text
        assert "a050" not in page.text
        [more] = [given["href"] for _, given in page.tags if "after=" in given.get("href", "")]
        page = await browser.open(more.removeprefix("/console"))
        assert "a050" in page.text
        assert "a049" not in page.text
        page = await browser.open("/agents?after=zzz")
        assert "No more agents" in page.text


ODD: list[bytes] = [
    b"null",
    b"[1]",
    b"not json",
    b"[" * 100_000,
    b'{"tools": 5, "models": {"a": 1}, "instructions": "x", "limits": [], "approvals": {"a": 1}, "hooks": 7}',
    b'{"tools": [null, 1, {"name": {"a": 1}, "parameters": {"properties": [1], "required": "x"}, "retries": []}]}',
    b'{"tools": [{"name": "t", "parameters": {"properties": {"a": 1, "b": {"enum": [], "type": 5}}}, "agents": 1}]}',
    b'{"tools": [{"parameters": {"properties": {"a": {}}, "required": [{}, "b"]}, "needs_approval": 3, "hooks": {}}]}',
    b'{"tools": [{"name": "t", "needs_approval": {"expires": "never", "on_expiry": 4, "remind": [1]}}], "finish": {}}',
    b'{"approvals": [{"action": 1, "tool": null, "arguments": {"a": {"b": [1]}}, "terms": "x"}], "on_limit": []}',
    b'{"input": {"$ref": "#/a/b", "properties": {"a": {"$ref": "#"}}}, "output": {"anyOf": [1, {"type": ["a", 1]}]}}',
    b'{"limits": {"cost_usd": "x", "turn": {"wall_time": [], "tokens": true}}, "max_iterations": null, "left_out": 1}',
]


async def test_definitions_of_other_versions_are_shown_as_far_as_they_are_understood(engine: Engine) -> None:
    async with engine.served(*build_agents()) as client, console(client) as opened:
        store = await client.store(create=True)
        rows = [AgentRow(f"{number:064x}", f"odd{number}", body) for number, body in enumerate(ODD)]
        await store.record_agents(rows)
        browser = opened.browse()
        for path in ("/agents", *(f"/agents/{row.name}" for row in rows), "/workers"):
            page = await browser.open(path)
            assert browser.response.status_code == 200, (path, page.text)
            check_page(page, browser.response.text)
    for first in ODD[4:]:
        for second in ODD[4:]:
            compare_definitions(json.loads(first), json.loads(second))


async def test_hostile_definitions(engine: Engine) -> None:
    definition = {
        "description": TEXT,
        "models": [TEXT],
        "instructions": [{"text": TEXT}, {"function": TEXT}],
        "tools": [
            {
                "name": TEXT,
                "description": TEXT,
                "needs_approval": {"function": TEXT},
                "task_queue": TEXT,
                "hooks": [{"event": TEXT, "name": TEXT}],
                "parameters": {
                    "properties": {TEXT: {"type": TEXT, "description": TEXT, "default": TEXT, "enum": [TEXT]}}
                },
            }
        ],
        "approvals": [{"action": TEXT, "tool": TEXT, "arguments": {TEXT: TEXT}}],
        "limits": {TEXT: TEXT},
        "settings": [TEXT],
        "hooks": [{"event": TEXT, "name": TEXT}],
        "input": {"type": "object", "properties": {TEXT: {"type": "string", "description": TEXT}}},
    }
    name = '"><script>alert(1)</script>\u202e'
    async with engine.served(*build_agents()) as client, console(client) as opened:
        store = await client.store(create=True)
        body = json.dumps(definition).encode()
        await store.record_agents([AgentRow("a" * 64, name, body), AgentRow("b" * 64, name, b'{"settings": []}')])
        browser = opened.browse()
        page = await browser.open("/agents")
        check_page(page, browser.response.text)
        links = {given["href"] for _, given in page.tags if given.get("href", "").startswith("/console/agents/")}
        [link] = [link for link in links if "script" in link]
        for path in (
            link,
            f"{link}?version={'a' * 64}",
            f"{link}?version={'b' * 64}&against={'a' * 64}",
            "/console/workers",
        ):
            page = await browser.open(path.removeprefix("/console"))
            assert browser.response.status_code == 200, path
            check_page(page, browser.response.text)


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        (None, ""),
        (True, "A person approves each call. It waits without a limit of time."),
        ({"expires": "45m", "on_expiry": "approve"}, "It waits for 45 min, and is approved then."),
        ({"expires": 604800.0, "remind": 3600}, "for 7 d, and is denied then. It is brought to mind every 1 h."),
        ({"function": "decide"}, "The function decide decides for each call whether a person must approve it."),
    ],
)
def test_terms_in_words(policy: Any, expected: str) -> None:
    assert describe_approval(policy).endswith(expected)
    assert bool(describe_approval(policy)) == bool(expected)


@pytest.mark.parametrize(
    ("rules", "effect", "asks"),
    [
        ([], "", True),
        ([allow("pay*")], "allow", False),
        ([deny("pay", to="x"), allow("*")], "allow", False),
        ([allow("pay", to="x")], "", True),
        ([ask("*", to="x"), allow("pay")], "ask", True),
        ([deny("pay"), ask("pay")], "deny", False),
        ([ask("other")], "", True),
    ],
)
def test_rules_decide_before_the_terms_of_a_tool(rules: list[Any], effect: str, asks: bool) -> None:
    @tool(needs_approval=True)
    def pay(to: str) -> str:
        """Pay."""
        return to

    agent: Agent[Any, Any] = Agent("a", ScriptedProvider(["hi"]), tools=[pay], approvals=rules)
    view = build_agent_view("a", json.loads(build_agent_row(agent, {}).body))
    assert [(one.rule, one.asks) for one in view.tools] == [(effect, asks)]
    assert view.asking == asks


@pytest.mark.parametrize(
    ("schema", "kind"),
    [
        ({"type": "string", "format": "date"}, "text (date)"),
        ({"type": "array", "items": {"type": "integer"}}, "list of whole number"),
        ({"anyOf": [{"type": "number"}, {"type": "null"}]}, "number or none"),
        ({"enum": ["S", "M", 3]}, '"S", "M" or 3'),
        ({"const": 1}, "1"),
        ({"type": "object", "additionalProperties": {"type": "boolean"}}, "names with yes or no"),
        ({"$ref": "#/$defs/A"}, "text"),
        ({"enum": list(range(20))}, "0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, or 8 others"),
        ({}, "anything"),
    ],
)
def test_types_in_words(schema: dict[str, Any], kind: str) -> None:
    whole = build_schema({"properties": {"x": schema}, "$defs": {"A": {"type": "string"}}})
    assert whole.fields[0].kind == kind


def test_a_schema_that_refers_to_itself_ends() -> None:
    node = {
        "type": "object",
        "properties": {"next": {"$ref": "#/$defs/N"}, "all": {"type": "array", "items": {"$ref": "#/$defs/N"}}},
    }
    view = build_agent_view("a", {"input": {"$ref": "#/$defs/N", "$defs": {"N": node}, **node}})
    assert 2 < len(view.schemas["input"].fields) <= 80
