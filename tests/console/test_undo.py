"""Decisions of the console that can be taken back: by forms alone, by several replicas, and without a worker."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import quote

import pytest

from perdure import Agent, Client, tool
from perdure.client import progress
from perdure.client.deferred_decisions import DecisionSender
from perdure.client.run import Run
from perdure.testing import ScriptedProvider, at, call
from tests.console.test_access import wait_for_waits
from tests.console.test_inbox import list_calls, row_form
from tests.support.engine import Engine
from tests.support.pages import Browser, Console, HtmlForm, console
from tests.support.wait import eventually
from tests.support.web import make_caller

BOB, EVE = make_caller("bob", "approver"), make_caller("eve", "viewer")


def build_payer(paid: list[float]) -> Agent[Any, Any]:
    @tool(needs_approval=True)
    def pay(amount: float, note: str = "") -> str:
        """Pay."""
        paid.append(amount)
        return "paid"

    def answer(request: Any) -> Any:
        return "done" if request.messages[-1].role == "tool" else call("pay", amount=300.0, note="order 556")

    return Agent("payer", ScriptedProvider(answer), tools=[pay])


@asynccontextmanager
async def desk(engine: Engine, paid: list[float], seconds: float) -> AsyncIterator[tuple[Client, Console]]:
    async with (
        engine.served(build_payer(paid)) as client,
        console(client, BOB, EVE, undo_seconds=seconds) as opened,
    ):
        yield client, opened


async def start(client: Client) -> Run[Any]:
    before = len((await client.list_waits()).waits)
    run = await client.start("payer", "Go", mode="session", tenant="acme", user="weber")
    await wait_for_waits(client, before + 1)
    return run


def find_undo(browser: Browser) -> HtmlForm:
    return next(form for form in browser.page.forms if form.action.endswith("/back"))


async def test_a_decision_is_sent_when_it_is_due(engine: Engine) -> None:
    paid: list[float] = []
    async with desk(engine, paid, 0.3) as (client, at_console):
        run = await start(client)
        browser = at_console.browse("bob")
        await browser.open("/inbox")
        page = await browser.send(row_form(browser, run), ("decision", "approve"), comment="fine")
        assert "Approving pay, by you" in page.squeeze()
        assert paid == [], "nothing has begun"
        await eventually(lambda: paid == [300.0])
        [decided] = (await run.status()).decided
        assert (decided.by, decided.comment) == ("bob", "fine")
        store = await client.store()
        [deferred] = await store.list_decisions([run.id])
        assert (deferred.tenant, deferred.user, deferred.agent, deferred.by) == ("acme", "weber", "payer", "bob")
        rows = await store.list_audit(subject=run.id)
        assert ("bob", "approve", "token:bob") in [(row.by, row.verb, row.auth) for row in rows]
        page = await browser.open(f"/inbox/{quote(run.id, safe='')}/{deferred.call_id}/outcome?hash={deferred.hash}")
        assert "Approved by you" in page.squeeze()


async def test_a_decision_is_taken_back_by_one_of_two(engine: Engine) -> None:
    paid: list[float] = []
    async with desk(engine, paid, 600) as (client, at_console):
        run = await start(client)
        [(_, call_id, shown)] = await list_calls(run)
        ada, bob, eve = (at_console.browse(name) for name in ("ada", "bob", "eve"))
        await ada.open("/inbox")
        await ada.send(row_form(ada, run), ("decision", "approve"))
        await bob.open("/inbox")
        assert "Approving pay, by ada" in bob.page.squeeze(), "others see it, and the form is gone"
        assert not [form for form in bob.page.forms if ("decision", "approve") in form.buttons if form.id != "bulk"]
        await ada.open(f"/inbox/{quote(run.id, safe='')}/{call_id}?hash={shown}")
        forms = [find_undo(ada), find_undo(bob)]
        await eve.open("/inbox")
        await eve.send(HtmlForm(forms[0].action, "post", fields=[*eve.page.forms[0].fields]), decision_id="x")
        assert eve.response.status_code == 403
        pages = await asyncio.gather(ada.send(forms[0]), bob.send(forms[1]))
        told = [page.squeeze() for page in pages]
        assert sum("Taken back: Nothing was decided." in text for text in told) == 1
        assert sum("Somebody else was first" in text for text in told) == 1
        assert paid == []
        assert [one.call_id for one in (await run.status()).approvals] == [call_id], "it can be decided again"
        verbs = [row.verb for row in await (await client.store()).list_audit(subject=run.id)]
        assert "take_back" in verbs
        assert "approve" not in verbs
        await bob.open("/inbox")
        assert "Approving" not in bob.page.squeeze()
        await bob.send(row_form(bob, run), ("decision", "deny"), comment="no")
        assert "Denying pay, by you" in bob.page.squeeze()


async def test_of_two_decisions_the_first_stands(engine: Engine) -> None:
    paid: list[float] = []
    async with desk(engine, paid, 600) as (client, at_console):
        run = await start(client)
        ada, bob = at_console.browse(), at_console.browse("bob")
        for browser in (ada, bob):
            await browser.open("/inbox")
        forms = [row_form(ada, run), row_form(bob, run)]
        pages = await asyncio.gather(
            ada.send(forms[0], ("decision", "approve")), bob.send(forms[1], ("decision", "deny"), comment="no")
        )
        text = " ".join(page.squeeze() for page in pages)
        assert text.count("was first") == 1
        [row] = await (await client.store()).list_decisions([run.id])
        assert f"{row.by} was first" in text


async def test_what_was_sent_cannot_be_taken_back(engine: Engine) -> None:
    paid: list[float] = []
    async with desk(engine, paid, 0.2) as (client, at_console):
        run = await start(client)
        browser = at_console.browse()
        await browser.open("/inbox")
        await browser.send(row_form(browser, run), ("decision", "approve"))
        undo = find_undo(browser)
        await eventually(lambda: paid == [300.0])
        await eventually(lambda: browser_sees(browser, undo, "Too late to take it back"))


async def browser_sees(browser: Browser, form: HtmlForm, text: str) -> bool:
    return text in (await browser.send(form)).squeeze()


@pytest.mark.parametrize("point", ["decision.taken", "decision.sent"])
async def test_a_sender_that_is_lost_neither_loses_nor_doubles(
    engine: Engine, point: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("perdure.client.deferred_decisions._LEASE_SECONDS", 0.2)
    paid: list[float] = []
    async with desk(engine, paid, 600) as (client, at_console):
        run = await start(client)
        browser = at_console.browse()
        await browser.open("/inbox")
        await browser.send(row_form(browser, run), ("decision", "approve"), comment="once")
        store = await client.store()
        [row] = await store.list_decisions([run.id])
        assert await store.take_back_decision(run.id, row.call_id, row.id)
        await store.defer_decision(row, 0)

        class Lost(BaseException):
            pass

        def lose() -> None:
            raise Lost

        with at(point, lose), pytest.raises((Lost, BaseExceptionGroup)):
            await DecisionSender(client).send_due()
        other = DecisionSender(client)
        await eventually(lambda: sends(other, store))
        await eventually(lambda: paid == [300.0])
        await run.turn().result()
        assert paid == [300.0]
        assert [(one.by, one.state, one.comment) for one in (await run.status()).decided] == [
            ("ada", "approved", "once")
        ]


async def sends(sender: DecisionSender, store: Any) -> bool:
    await sender.send_due()
    return not await store.has_open_decisions()


@pytest.mark.server
async def test_without_a_worker_a_decision_waits_visibly_and_is_sent_when_one_comes(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "UNANSWERED_SECONDS", 0.5)
    monkeypatch.setattr(progress, "MAX_POLLER_AGE", progress.timedelta(seconds=0.1))
    paid: list[float] = []
    async with engine.served(build_payer(paid)) as client:
        run = await start(client)
    client = await engine.client()
    async with console(client, undo_seconds=0.1) as at_console:
        browser = at_console.browse()
        await browser.open("/inbox")
        await browser.send(row_form(browser, run), ("decision", "approve"))
        assert "Approving pay, by you" in browser.page.squeeze()
        [row] = await (await client.store()).list_decisions([run.id])
        address = f"/inbox/{quote(run.id, safe='')}/{row.call_id}/outcome?hash={row.hash}"

        async def is_said() -> bool:
            return "no worker has polled task queue" in (await browser.open(address)).squeeze()

        await eventually(is_said)
        assert find_undo(browser), "nothing was sent, so it can still be taken back"
        monkeypatch.undo()
        async with engine.served(build_payer(paid)):
            await eventually(lambda: paid == [300.0])
        assert "Approved by you" in (await browser.open(address)).squeeze()
