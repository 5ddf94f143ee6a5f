"""The summary of a call that waits: the same line in status, lists, events, HTTP and the command line."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

from perdure import Agent, Approval, ToolContext, callback_tool, tool
from perdure.cli.approvals import _format_pending_call
from perdure.cli.chat.requests import PendingRequests
from perdure.client.decisions import RunWait
from perdure.client.inbox import list_pending_calls_of_run
from perdure.ports.toolset import ListedTool, Toolset
from perdure.testing import ScriptedProvider, call
from perdure.tools.approvals import ask
from perdure.types.approvals import WaitingCall
from tests.console.test_access import wait_for_waits
from tests.support.engine import Engine
from tests.support.pages import console

HOSTILE = "INV-1\n\u202e: 5.00\u2069"


class Customer(BaseModel):
    name: str
    level: int = 1


@tool(needs_approval=Approval(separate=True), summary="Pay {invoice_id}: {amount} {currency} for {customer.name}")
def pay(invoice_id: str, amount: float, customer: Customer, currency: str = "EUR") -> str:
    """Pay an invoice."""
    return "paid"


@tool(needs_approval=True)
def refund(order_id: str, amount: float, note: str | None = None) -> str:
    """Refund an order."""
    return "refunded"


@tool
async def consult(ctx: ToolContext) -> str:
    """Ask."""
    return str(await ctx.ask("How\nmany?", int))


open_page = callback_tool(
    "open_page",
    "Open a page.",
    {"type": "object", "properties": {"path": {"type": "string"}}},
    summary="Open {path} in the browser",
)


class Crm(Toolset):
    name = "crm"

    async def list(self, ctx: Any) -> list[ListedTool]:
        schema = {"type": "object", "properties": {"id": {"type": "string"}, "price": {"type": "number"}}}
        return [ListedTool("merge", "Merge.", schema, summary="Merge {id}")]

    async def call(self, name: str, arguments: Any, ctx: Any) -> str:
        return "merged"


def script(*calls: Any) -> ScriptedProvider:
    return ScriptedProvider(lambda request: "done" if request.messages[-1].role == "tool" else list(calls))


def build_agent() -> Agent[Any, Any]:
    calls = [
        call("pay", invoice_id=HOSTILE, amount="120.5", customer={"name": "ACME GmbH"}),
        call("refund", order_id="A-1", amount=7, note=None),
        call("consult"),
        call("open_page", path="/orders/7"),
        call("crm_merge", id="c-1", price=3),
    ]
    tools = [pay, refund, consult, open_page]
    return Agent("desk", script(*calls), tools=tools, toolsets=[Crm()], approvals=[ask("crm_*")])


Crm.prefix = "crm_"
EXPECTED = {
    "pay": ("Pay “INV-1 ⟨U+202E⟩: 5.00⟨U+2069⟩”: 120.50 EUR for “ACME GmbH”", 120.5),
    "refund": ("refund: order id A-1, amount 7", 7.0),
    "consult": ("consult: How many?", None),
    "open_page": ("Open /orders/7 in the browser", None),
    "crm_merge": ("Merge c-1", 3.0),
}


async def test_one_summary_everywhere(engine: Engine) -> None:
    async with engine.served(build_agent()) as client, console(client) as opened:
        run = await client.start("desk", "Go", mode="session", by="mallory")
        await wait_for_waits(client, len(EXPECTED))
        summaries = {name: summary for name, (summary, _) in EXPECTED.items()}
        assert {wait.tool: wait.summary for wait in (await run.status()).approvals} == summaries
        assert {wait.tool: wait.summary for wait in await list_pending_calls_of_run(run)} == summaries
        listed = (await client.list_waits()).waits
        assert {wait.tool: (wait.summary, wait.amount) for wait in listed} == EXPECTED
        asked = [
            event async for event in run.events(wait=False) if event.type in ("approval.requested", "question.asked")
        ]
        assert {event.name: event.summary for event in asked} == summaries
        rows = (await opened.browse().http.get("/v1/approvals?order=amount")).json()["data"]
        assert [(row["summary"], row["amount"]) for row in rows] == [
            EXPECTED[name] for name in ("pay", "refund", "crm_merge")
        ]
        found = (await opened.browse().http.get("/v1/approvals?text=acme")).json()["data"]
        assert [row["tool"] for row in found] == ["pay"]
        lines = {wait.tool: list(_format_pending_call(wait, [], full=False)) for wait in await client.approvals()}
        assert lines["pay"][0].endswith(f"desk: {summaries['pay']}")
        assert lines["pay"][1].startswith("    pay(")
        assert "refund(" in lines["refund"][0], "a summary that says no more than the call is not printed beside it"


def test_a_question_on_a_terminal_has_the_summary() -> None:
    waiting = WaitingCall(
        call_id="call_1", tool="pay", arguments={"amount": 3}, hash="h", summary="Pay \u2068“\u05d0”\u2069: 3 \x1b[2J"
    )
    requests = PendingRequests("run-1")
    lines = list(requests.update([RunWait("run-1", waiting)], {}))
    assert lines[:2] == ["? Pay “\u05d0”: 3 \\x1b[2J  call_1", "  pay(amount=3)"]
    assert (requests.format_prompt() or "").startswith("approve Pay “\u05d0”: 3 \\x1b[2J (call_1)?")


async def test_a_list_says_which_separate_calls_are_ones_own(engine: Engine) -> None:
    async with engine.served(build_agent()) as client, console(client) as opened:
        for by in ("ada", "mallory"):
            await client.start("desk", "Go", mode="session", by=by, user=by)
        await wait_for_waits(client, 2 * len(EXPECTED))
        rows = (await opened.browse().http.get("/v1/approvals?tool=pay")).json()["data"]
        assert {row["user"]: (row["own"], row["separate"]) for row in rows} == {
            "ada": (True, True),
            "mallory": (False, True),
        }
        others = (await opened.browse().http.get("/v1/approvals?tool=refund")).json()["data"]
        assert [row["own"] for row in others] == [False, False], "a requester may approve these"
