"""The inbox and the page of one call, by forms alone."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import quote

import pytest

from perdure import Agent, Approval, Client, ToolContext, tool
from perdure.client.run import Run
from perdure.console import inbox
from perdure.console.access import Form
from perdure.console.forms import build_answer_fields, build_fields, find_changes, read_fields
from perdure.errors import InvalidInputError
from perdure.testing import ScriptedProvider, call
from perdure.types.approvals import WaitingCall
from perdure.web.auth import Caller
from perdure.worker.engine import record_agents
from tests.console.test_access import wait_for_waits
from tests.support.engine import Engine
from tests.support.pages import Browser, Console, HtmlForm, console
from tests.support.wait import eventually
from tests.support.web import make_caller

BOB = make_caller("bob", "approver")


@dataclass
class Desk:
    console: Console
    client: Client
    paid: list[Any]

    async def start(self, agent: str, count: int = 1, **options: Any) -> list[Run[Any]]:
        before = len((await self.client.list_waits()).waits)
        runs = [await self.client.start(agent, "Go", mode="session", **options) for _ in range(count)]
        await wait_for_waits(self.client, before + count)
        return runs


@asynccontextmanager
async def desk(engine: Engine, *callers: Caller) -> AsyncIterator[Desk]:
    paid: list[Any] = []

    @tool(needs_approval=Approval(expires="1h"))
    def pay(amount: float, note: str = "", urgent: bool = False, size: Literal["S", "M"] = "S") -> str:
        """Pay."""
        paid.append((amount, note, urgent, size))
        return "paid"

    @tool(needs_approval=Approval(separate=True))
    def drop(table: str) -> str:
        """Drop a table."""
        paid.append(table)
        return "dropped"

    @tool
    async def consult(ctx: ToolContext) -> str:
        """Ask."""
        paid.append(await ctx.ask("How many?", int))
        return "asked"

    def script(*replies: Any) -> ScriptedProvider:
        def answer(request: Any) -> Any:
            return "done" if request.messages[-1].role == "tool" else list(replies)

        return ScriptedProvider(answer)

    agents = [
        Agent("payer", script(call("pay", amount=3, note="first\nsecond")), tools=[pay]),
        Agent("dropper", script(call("drop", table="users")), tools=[drop]),
        Agent("asker", script(call("consult")), tools=[consult]),
        Agent("long", script(call("pay", amount=1, note="line\n" * 40)), tools=[pay]),
        Agent("huge", script(call("pay", amount=1, note="x" * 20_000)), tools=[pay]),
        Agent("vast", script(call("pay", amount=1, note="x" * 600_000)), tools=[pay]),
    ]
    async with engine.served(*agents) as client, console(client, BOB, *callers) as opened:
        await record_agents(await client.store(create=True), agents)  # as a worker does when it starts
        yield Desk(opened, client, paid)


def row_form(browser: Browser, run: Run[Any]) -> HtmlForm:
    return next(form for form in browser.page.forms if run.id in dict(form.fields).get("item", ""))


async def test_a_row_has_what_a_decision_needs(engine: Engine) -> None:
    async with desk(engine) as at:
        [run] = await at.start("payer", tenant="acme", user="weber")
        browser = at.console.browse()
        page = await browser.open("/inbox")
        for text in ("pay", "user weber · tenant acme", "amount", "3", "first\nsecond", "denied in 59 min", run.id):
            assert text in page.text
        [wait] = (await at.client.list_waits()).waits
        assert json.loads(dict(row_form(browser, run).fields)["item"]) == [run.id, wait.call_id, wait.hash]
        assert "(1) Inbox" in page.text
        assert wait.hash[:8] not in page.text, "noise for a reader"


async def test_approve_and_deny_by_forms(engine: Engine) -> None:
    async with desk(engine) as at:
        first, second = await at.start("payer", 2)
        browser = at.console.browse("bob")
        await browser.open("/inbox")
        page = await browser.send(row_form(browser, first), ("decision", "approve"))
        assert "Approved by you" in page.text
        page = await browser.send(row_form(browser, second), ("decision", "deny"), comment="too much")
        assert "Denied by you" in page.text
        assert "too much" in page.text
        await eventually(lambda: at.paid == [(3, "first\nsecond", False, "S")])
        [decided] = (await second.status()).decided
        assert (decided.by, decided.state, decided.comment) == ("bob", "denied", "too much")
        rows = await (await at.client.store()).list_audit(subject=first.id)
        assert ("bob", "approve", "token:bob") in [(row.by, row.verb, row.auth) for row in rows]


async def test_a_row_that_another_has_decided_says_so(engine: Engine) -> None:
    async with desk(engine) as at:
        [run] = await at.start("payer")
        ada, bob = at.console.browse(), at.console.browse("bob")
        await ada.open("/inbox")
        form = row_form(ada, run)
        await bob.open("/inbox")
        await bob.send(row_form(bob, run), ("decision", "deny"), comment="no")
        page = await ada.send(form, ("decision", "approve"))
        assert "Decided already" in page.text
        assert "bob" in page.text
        assert at.paid == []
        changes = json.loads((await ada.http.get("/console/inbox/changes")).text)
        assert changes == {"keys": [], "is_whole": True, "count": 0}


async def test_an_outcome_in_place_for_the_script(engine: Engine) -> None:
    async with desk(engine) as at:
        [run] = await at.start("payer")
        browser = at.console.browse()
        page = await browser.open("/inbox")
        [row] = [given for tag, given in page.tags if tag == "li" and given.get("class") == "row"]
        waiting = (await browser.http.get(row["data-outcome"])).text
        assert 'data-over=""' in waiting
        await run.approve(by="zoe")
        gone = (await browser.http.get(row["data-outcome"])).text
        assert 'data-over="1"' in gone
        assert "Approved by zoe" in gone
        assert "<html" not in gone


async def test_a_row_names_the_arguments_that_take_their_defaults(engine: Engine) -> None:
    async with desk(engine) as at:
        await at.start("payer")
        await at.start("dropper")
        page = await at.console.browse().open("/inbox")
        assert 'Not given, so by default: size = "S", urgent = false' in page.text
        assert page.text.count("by default") == 1, "a call without such arguments says nothing"


async def test_other_calls_of_a_user_are_named(engine: Engine) -> None:
    async with desk(engine) as at:
        [first] = await at.start("payer", tenant="acme", user="weber")
        [second] = await at.start("dropper", tenant="acme", user="weber")
        await at.start("payer", tenant="other", user="weber")
        browser = at.console.browse()
        page = await browser.open("/inbox")
        assert page.text.count("1 other waiting call of user weber") == 2, "another tenant's user is another person"
        [(_, call_id, _)] = await list_calls(first)
        page = await browser.open(f"/inbox/{quote(first.id, safe='')}/{call_id}")
        assert "Other waiting call of user weber" in page.text
        [(_, other_id, _)] = await list_calls(second)
        links = [given["href"].partition("?")[0] for tag, given in page.tags if tag == "a" and "href" in given]
        assert f"/console/inbox/{quote(second.id, safe='')}/{other_id}" in links


async def test_what_waits_in_runs_that_are_to_be_cancelled_is_named(engine: Engine) -> None:
    async with desk(engine) as at:
        [run] = await at.start("payer", user="weber")
        browser = at.console.browse()
        page = await browser.open("/runs")
        [bulk] = [form for form in page.forms if form.id == "bulk"]
        page = await browser.send(bulk, ("action", "cancel"), item=[run.id])
        rows = " ".join(page.text.partition("Waiting calls")[2].split())
        expected = ("waiting", run.id, "payer", "weber", "pay ", "Cancel 1 run", "Keep it")
        assert [text for text in expected if text not in rows] == []


async def test_a_filter_that_nothing_matches_says_how_much_waits(engine: Engine) -> None:
    async with desk(engine) as at:
        await at.start("payer", 2)
        await at.start("dropper")
        browser = at.console.browse()
        page = await browser.open("/inbox?agent=nobody")
        for text in ("0 of 3 match", "No waiting call matches agent “nobody”", "Show all 3"):
            assert text in page.text
        assert "Nothing waits" not in page.text
        assert "1 of 3 matches" in (await browser.open("/inbox?agent=dropper")).text
        assert "2 of 3 match" in (await browser.open("/inbox?order=expiry")).text, (
            "those without a deadline are left out"
        )


async def test_what_becomes_of_a_call_at_its_deadline(engine: Engine) -> None:
    async with desk(engine) as at:
        [payer], [dropper], [asker] = [await at.start(agent) for agent in ("payer", "dropper", "asker")]
        browser = at.console.browse()
        page = await browser.open("/inbox")
        assert page.text.count("no deadline") == 2
        for run, text in ((payer, "denied in 59 min"), (dropper, "no deadline"), (asker, "no deadline")):
            [(_, call_id, _)] = await list_calls(run)
            assert text in (await browser.open(f"/inbox/{run.id}/{call_id}")).text
            assert text in (await browser.open(f"/runs/{run.id}")).text


async def test_who_may_approve_is_said_in_words(engine: Engine) -> None:
    async with desk(engine) as at:
        [own] = await at.start("dropper", by="ada")
        [other] = await at.start("dropper", by="zoe")
        [plain] = await at.start("payer", by="ada")
        browser = at.console.browse()
        for run, says, hides in (
            (own, "the people who wrote in this turn. You started this conversation", "a call of your own"),
            (other, "may not come from those who asked for this call", "You started"),
            (plain, "You started this conversation: you decide on a call of your own", "may not come from"),
        ):
            [(_, call_id, _)] = await list_calls(run)
            page = await browser.open(f"/inbox/{run.id}/{call_id}")
            assert says in page.text
            assert hides not in page.text
            may_change = any("arg.amount" in dict(form.fields) for form in page.forms)
            assert may_change == (run is plain), "who changes the arguments is one of those who asked"


async def test_what_led_to_a_call_in_its_row(engine: Engine) -> None:
    async with desk(engine) as at:
        [run] = await at.start("payer")
        browser = at.console.browse()
        page = await browser.open("/inbox")
        [link] = [given["data-context"] for _, given in page.tags if "data-context" in given]
        context = await browser.http.get(link)
        assert "<p>Go</p>" in context.text
        assert "<html" not in context.text
        assert run.id in context.text


async def test_many_at_once_are_those_that_were_ticked(engine: Engine) -> None:
    async with desk(engine) as at:
        _, second, third = await at.start("payer", 3)
        [dropper], [huge] = await at.start("dropper"), await at.start("huge")
        browser = at.console.browse()
        page = await browser.open("/inbox")
        boxes = [value for _, value in page.find_boxes("bulk")]
        assert len(boxes) == 3, "not what another person than who asked approves, nor what is not shown whole"
        [bulk] = [form for form in page.forms if form.id == "bulk"]
        page = await browser.send(bulk, ("decision", "deny"), item=boxes[:1])
        assert browser.response.status_code == 400
        assert "give a reason" in page.text
        await third.deny(by="zoe")
        forged = [json.dumps([run.id, call_id, shown]) for run, call_id, shown in await list_calls(dropper, huge)]
        page = await browser.send(bulk, ("decision", "approve"), item=[boxes[0], boxes[2], *forged])
        assert "4 decisions" in page.text
        assert "may not approve it" in page.text
        assert "not shown whole" in page.text
        assert "Denied by zoe" in page.text
        await eventually(lambda: len(at.paid) == 1)
        page = await browser.open("/inbox?agent=huge")
        [bulk] = [form for form in page.forms if form.id == "bulk"]
        unknown = json.dumps(["nothing", "call_1", "0"])
        page = await browser.send(bulk, ("decision", "approve"), item=[boxes[1], unknown])
        assert "It still waits" in page.text, "a call that the page does not list is not decided with others"
        assert "There is no such call" in page.text
        assert [pending.tool for pending in (await second.status()).approvals] == ["pay"]
        assert [pending.tool for pending in (await dropper.status()).approvals] == ["drop"]


async def list_calls(*runs: Run[Any]) -> list[tuple[Run[Any], str, str]]:
    """The calls that each of the runs waits with: the store has them a moment before the workflow."""

    async def list_approvals(run: Run[Any]) -> tuple[WaitingCall, ...]:
        return (await run.status()).approvals

    pending = [(run, await eventually(lambda run=run: list_approvals(run))) for run in runs]
    return [(run, one.call_id, one.hash) for run, waiting in pending for one in waiting]


async def test_arguments_are_changed_by_their_form_with_a_difference_first(engine: Engine) -> None:
    async with desk(engine) as at:
        [run] = await at.start("payer")
        browser = at.console.browse()
        page = await browser.open("/inbox")
        [href] = {given["href"] for tag, given in page.tags if tag == "a" and "data-open" in given}
        page = await browser.open(href.removeprefix("/console"))
        assert "urgent" in page.text.partition("As JSON")[0], "an argument that the call does not give"
        assert "not given, by default false" in page.text
        review = next(form for form in page.forms if "arg.amount" in dict(form.fields))
        assert dict(review.fields)["arg.note"] == "first\nsecond"
        same = await browser.send(review)
        assert "nothing was changed" in same.text
        bad = await browser.send(review, **{"arg.amount": "many"})
        assert "amount: it is not a number" in bad.text
        assert (
            dict(next(form for form in bad.forms if "arg.amount" in dict(form.fields)).fields)["arg.amount"] == "many"
        )
        page = await browser.send(review, **{"arg.amount": "2.5", "arg.note": "first\r\nthird", "arg.urgent": "true"})
        assert at.paid == [], "a look at the difference decides nothing"
        signs = [given.get("class") for tag, given in page.tags if tag == "tr"]
        assert {"old", "new", "same"} <= set(signs)
        for text in ("payer", run.id, "denied in", "Approve pay with these changes?"):
            assert text in page.text, "the page of the changes has what the page of the call has"
        unchanged = await browser.send(review, **{"arg.urgent": "true"})
        assert "first\nsecond" in unchanged.text, "what stays as it is, too"
        assert 'Not given, so by default: size = "S"' in unchanged.text
        assert unchanged.text.count("changed") - unchanged.text.count("unchanged") == 1
        page = await browser.send(page.find_form(decision="change"), ("decision", "change"), comment="less")
        assert "with changed arguments" in page.text
        await eventually(lambda: at.paid == [(2.5, "first\nthird", True, "S")])
        [decided] = (await run.status()).decided
        assert decided.changed


async def test_a_hash_that_is_out_of_date_decides_nothing(engine: Engine) -> None:
    async with desk(engine) as at:
        [run] = await at.start("payer")
        [(_, call_id, _)] = await list_calls(run)
        browser = at.console.browse()
        page = await browser.open(f"/inbox/{run.id}/{call_id}?hash={'0' * 32}")
        assert "has changed since" in page.text
        form = next(form for form in page.forms if ("decision", "approve") in form.buttons)
        await browser.send(form, ("decision", "approve"), hash="0" * 32)
        assert browser.response.status_code == 400
        assert at.paid == []
        assert (await run.status()).approvals


async def test_approve_for_the_rest_of_the_conversation(engine: Engine) -> None:
    async with desk(engine) as at:
        [run] = await at.start("payer")
        [(_, call_id, _)] = await list_calls(run)
        browser = at.console.browse()
        page = await browser.open(f"/inbox/{run.id}/{call_id}")
        form = next(form for form in page.forms if ("decision", "always") in form.buttons)
        page = await browser.send(form, ("decision", "always"))
        assert "Approved by you" in page.text
        await (await run.send("Again")).result()
        assert len(at.paid) == 2
        assert [one.tool for one in (await run.status()).standing] == ["pay"]


async def test_questions_are_answered_in_the_row_and_on_their_page(engine: Engine) -> None:
    async with desk(engine) as at:
        first, second = await at.start("asker", 2)
        browser = at.console.browse()
        page = await browser.open("/inbox")
        assert "How many?" in page.text
        page = await browser.send(row_form(browser, first), ("decision", "answer"), **{"arg.answer": "many"})
        assert browser.response.status_code == 400
        assert "not a number" in page.text
        page = await browser.open("/inbox")
        page = await browser.send(row_form(browser, first), ("decision", "answer"), **{"arg.answer": "7"})
        assert "Answered by you" in page.text
        [(_, call_id, _)] = await list_calls(second)
        page = await browser.open(f"/inbox/{second.id}/{call_id}")
        form = next(form for form in page.forms if ("decision", "answer") in form.buttons)
        await browser.send(form, ("decision", "answer"), **{"arg.answer": "8"})
        await eventually(lambda: sorted(at.paid) == [7, 8])


async def test_a_question_without_an_answer_is_refused_in_its_row(engine: Engine) -> None:
    async with desk(engine) as at:
        [run] = await at.start("asker")
        browser = at.console.browse()
        page = await browser.open("/inbox")
        refuse = next(form for form in page.forms if ("decision", "refuse") in form.buttons)
        page = await browser.send(refuse, ("decision", "refuse"), comment=" ")
        assert browser.response.status_code == 400
        assert "say why" in page.text
        page = await browser.send(refuse, ("decision", "refuse"), comment="nobody knows")
        assert browser.response.status_code == 200
        await run.turn().result()
        assert at.paid == []
        assert "nobody knows" in str(await run.transcript())


async def test_a_choice_of_few_is_shown_whole(engine: Engine) -> None:
    @tool
    async def choose(ctx: ToolContext) -> str:
        """Ask."""
        return f"chosen: {await ctx.ask('Which size?', Literal['S', 'M', 'L'])}"

    def answer(request: Any) -> Any:
        return "done" if request.messages[-1].role == "tool" else call("choose")

    async with (
        engine.served(Agent("tailor", ScriptedProvider(answer), tools=[choose])) as client,
        console(client) as at,
    ):
        run = await client.start("tailor", "Go", mode="session")
        await wait_for_waits(client)
        browser = at.browse()
        page = await browser.open("/inbox")
        radios = [given["value"] for tag, given in page.tags if given.get("type") == "radio"]
        assert radios == ['"S"', '"M"', '"L"']
        assert not [given for _, given in page.tags if given.get("type") == "radio" and "checked" in given]
        form = page.find_form(decision="answer")
        await browser.send(form, ("decision", "answer"))
        assert browser.response.status_code == 400, "none is chosen for the reader"
        await browser.send(form, ("decision", "answer"), **{"arg.answer": '"M"'})
        await run.turn().result()
        assert "chosen: M" in str(await run.transcript())


async def test_long_arguments_are_in_their_row_and_large_ones_on_the_page_of_the_call(engine: Engine) -> None:
    async with desk(engine) as at:
        [long], [huge] = await at.start("long"), await at.start("huge")
        browser = at.console.browse()
        page = await browser.open("/inbox")
        assert page.text.count("line\n" * 40) == 1, "in its row, unfolded on demand"
        assert "too large for a list" in page.text
        assert row_form(browser, long).buttons[:1] == [("decision", "approve")]
        assert ("decision", "approve") not in row_form(browser, huge).buttons
        [(_, call_id, _)] = await list_calls(huge)
        page = await browser.open(f"/inbox/{huge.id}/{call_id}")
        assert "x" * 20_000 in page.text
        await browser.send(
            next(form for form in page.forms if ("decision", "approve") in form.buttons), ("decision", "approve")
        )
        await eventually(lambda: [note for _, note, *_ in at.paid] == ["x" * 20_000])


async def test_what_is_too_large_to_be_shown_is_not_approved(engine: Engine) -> None:
    async with desk(engine) as at:
        [vast] = await at.start("vast")
        [(_, call_id, _)] = await list_calls(vast)
        browser = at.console.browse()
        page = await browser.open(f"/inbox/{vast.id}/{call_id}")
        assert "cannot be approved here" in page.text
        assert len(browser.response.text) < 100_000
        buttons = [button for form in page.forms for button in form.buttons]
        assert ("decision", "approve") not in buttons
        assert ("decision", "always") not in buttons
        await browser.send(page.find_form(hash=(await vast.status()).approvals[0].hash), ("decision", "deny"))
        assert "Denied by you" in browser.page.text


async def test_the_inbox_in_pages_filtered_and_in_the_order_of_expiry(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inbox, "ROWS", 25)
    async with desk(engine) as at:
        await asyncio.gather(*(at.client.start("payer", "Go", mode="session") for _ in range(27)))
        await wait_for_waits(at.client, 27)
        await at.start("dropper")
        browser = at.console.browse()
        page = await browser.open("/inbox")
        [href] = [given["href"] for tag, given in page.tags if tag == "a" and "cursor=" in given.get("href", "")]
        first = {given["data-key"] for tag, given in page.tags if given.get("class") == "row"}
        page = await browser.open(href.removeprefix("/console"))
        second = {given["data-key"] for tag, given in page.tags if given.get("class") == "row"}
        assert (len(first), len(second), len(first & second)) == (25, 3, 0)
        page = await browser.open("/inbox?agent=dropper")
        assert len([given for _, given in page.tags if given.get("class") == "row"]) == 1
        page = await browser.open("/inbox?order=expiry&kind=approval")
        assert "dropper" not in page.text
        await browser.open("/inbox?kind=nonsense")
        assert browser.response.status_code == 400


# ---
# Forms.


SCHEMA = {
    "type": "object",
    "properties": {
        "text": {"type": "string", "description": "Some text"},
        "count": {"type": "integer"},
        "maybe": {"anyOf": [{"type": "string"}, {"type": "null"}]},
        "flag": {"type": "boolean"},
        "size": {"enum": ["S", "M", 3]},
        "deep": {"$ref": "#/$defs/Deep"},
    },
    "required": ["text"],
    "$defs": {"Deep": {"type": "object"}},
}
VALUES: dict[str, Any] = {"text": "a\u202eb", "count": 1.0, "flag": True, "size": 3, "deep": {"x": [1]}, "more": None}


def test_a_form_that_is_sent_back_as_it_was_changes_nothing() -> None:
    fields = build_fields(SCHEMA, VALUES)
    assert {known.name: known.kind for known in fields} == {
        "text": "json",
        "count": "number",
        "maybe": "text",
        "flag": "choice",
        "size": "choice",
        "deep": "json",
        "more": "json",
    }
    sent = Form([(f"arg.{known.name}", known.text.replace("\n", "\r\n")) for known in fields])
    assert read_fields(sent, fields, VALUES) == VALUES
    assert repr(read_fields(sent, fields, VALUES)) == repr(VALUES), "1.0 stays 1.0"
    assert "\u202e" not in next(known.text for known in fields if known.name == "text")


@pytest.mark.parametrize(
    ("name", "typed", "expected"),
    [
        ("count", "12", 12),
        ("count", "1e3", 1000.0),
        ("maybe", "x", "x"),
        ("flag", "false", False),
        ("size", '"M"', "M"),
        ("deep", '{"y": null}', {"y": None}),
        ("text", '"plain"', "plain"),
    ],
)
def test_what_is_typed_is_parsed_by_its_type(name: str, typed: str, expected: Any) -> None:
    fields = build_fields(SCHEMA, VALUES)
    sent = Form([(f"arg.{known.name}", typed if known.name == name else known.text) for known in fields])
    assert read_fields(sent, fields, VALUES)[name] == expected


@pytest.mark.parametrize(
    ("name", "typed"),
    [
        ("count", "true"),
        ("count", "NaN"),
        ("size", '"XL"'),
        ("deep", '{"a": 1, "a": 2}'),
        ("deep", "[" * 200),
        ("text", ""),
    ],
)
def test_what_does_not_fit_is_an_error_that_names_its_field(name: str, typed: str) -> None:
    fields = build_fields(SCHEMA, VALUES)
    sent = Form([(f"arg.{known.name}", typed if known.name == name else known.text) for known in fields])
    with pytest.raises(InvalidInputError, match=f"^{name}: "):
        read_fields(sent, fields, VALUES)


@pytest.mark.parametrize("schema", [None, {}, {"type": "integer"}, {"enum": ["a"]}, {"$ref": "#"}, {"properties": 3}])
def test_any_schema_makes_a_form_for_an_answer(schema: Any) -> None:
    assert [known.name for known in build_answer_fields(schema)] == ["answer"]


def test_changes_are_lines() -> None:
    [change] = find_changes({"a": "x\ny", "b": 1, "c": [1]}, {"a": "x\nz", "b": 1, "c": [1]})
    assert (change.name, list(change.lines)) == ("a", [(" ", "x"), ("-", "y"), ("+", "z")])
    assert [change.name for change in find_changes({"a": 1}, {"b": True})] == ["a", "b"]
    assert find_changes({"a": 1}, {"a": 1}) == []
    assert [change.name for change in find_changes({"a": 1}, {"a": True})] == ["a"], "true is not 1"
