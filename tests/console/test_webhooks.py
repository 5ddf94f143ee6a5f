"""Webhooks: endpoints, what became of each message, and sending one again."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from perdure import Agent, Client
from perdure.client.webhook_subscriptions import Webhook
from perdure.console.webhooks import shorten_url
from perdure.ports.times import add_seconds, format_utc_now, timestamp
from perdure.ports.webhooks import DeliveryRow
from perdure.testing import ScriptedProvider
from perdure.worker import webhook_delivery as deliveries
from tests.console.test_hostile import TEXT, check_page
from tests.support.engine import Engine
from tests.support.pages import Console, console
from tests.support.wait import eventually
from tests.support.web import make_caller
from tests.support.webhooks import Endpoint, serve_endpoint

SECRET = "whsec_" + "A" * 32
NOW = format_utc_now()


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PERDURE_WEBHOOK_ALLOW", "127.0.0.1")
    monkeypatch.setattr(deliveries, "POLL_SECONDS", 0.05)


@asynccontextmanager
async def subscribed(engine: Engine, url: str = "https://127.0.0.1/hook?key=s3cret") -> AsyncIterator[
    tuple[Client, Console, Webhook]
]:  # fmt: skip
    acme = make_caller("acme", "admin", tenants=("acme",))
    async with (
        engine.served(Agent("talker", ScriptedProvider(lambda _: "hi"))) as client,
        console(client, make_caller("olga"), acme) as opened,
    ):
        webhook = await client.webhooks.create(url, events=["run.*", "turn.*"], secret=SECRET, by="ann")
        yield client, opened, webhook


def attempt(webhook: Webhook, number: int, **fields: object) -> DeliveryRow:
    row = DeliveryRow(
        *(f"d{number}", webhook.id, f"msg_{number}", "run.completed", f"run-{number}", 7, f"run-{number}"),
        *(webhook.url, 1, "succeeded", 200, None, "ok", 12, None, add_seconds(NOW, number)),
    )
    return replace(row, **fields)  # type: ignore[arg-type]


async def test_endpoints_and_what_became_of_their_messages(engine: Engine) -> None:
    async with subscribed(engine) as (client, opened, webhook):
        store = await client.store()
        failed = {"outcome": "failed", "status": 500, "error": "status 500", "answer": "<b>oops</b>"}
        rows = [
            attempt(webhook, 1),
            attempt(webhook, 2, **failed, next_at=add_seconds(NOW, 600)),
            attempt(webhook, 3, **failed),
            attempt(webhook, 4, **failed, message_id="msg_1", next_at=add_seconds(NOW, 600), created_at=NOW),
        ]
        for row in rows:
            await store.record_delivery(row)
        await store.note_webhook_failure(webhook.id, NOW)
        browser = opened.browse()
        page = await browser.open("/webhooks")
        text = page.squeeze()
        assert "https://127.0.0.1/hook?…" in text
        assert "failing since" in text
        assert "failed run.completed" in text
        page = await browser.open(f"/webhooks/{webhook.id}")
        text = page.squeeze()
        assert "Every delivery has failed since" in text
        states = re.findall(r"delivered |retrying |failed ", text.partition("Next attempt")[2])
        assert states == ["failed ", "retrying ", "delivered "], "an attempt before the last one is none of its own"
        for state, runs in (("delivered", ["run-1"]), ("retrying", ["run-2"]), ("failed", ["run-3"])):
            page = await browser.open(f"/webhooks/{webhook.id}?state={state}")
            assert [link for link in page.list_links() if "/runs/" in link] == [f"/console/runs/{run}" for run in runs]
        page = await browser.open(f"/webhooks/{webhook.id}/msg_1")
        assert "2 attempts" in page.squeeze()
        assert "<b>oops</b>" in page.text, "what it answered is text"
        for path in ("/webhooks", f"/webhooks/{webhook.id}", f"/webhooks/{webhook.id}/msg_1"):
            await browser.open(path)
            html = browser.response.text
            assert browser.response.status_code == 200
            assert "s3cret" not in html
            assert SECRET not in html
            assert "A" * 20 not in html
        for path in ("/webhooks/wh_0", f"/webhooks/{webhook.id}/msg_0", "/webhooks/wh_0/msg_1"):
            await browser.open(path)
            assert browser.response.status_code == 404
        for query in ("state=lost", "after=x"):
            await browser.open(f"/webhooks/{webhook.id}?{query}")
            assert browser.response.status_code == 400


async def test_an_attempt_that_no_worker_makes_says_so(engine: Engine) -> None:
    async with subscribed(engine) as (client, opened, webhook):
        store, browser = await client.store(), opened.browse()
        late = timestamp(datetime.now(UTC) - timedelta(minutes=13))
        await store.record_delivery(replace(attempt(webhook, 1, error="refused"), outcome="failed", next_at=late))
        for path in (f"/webhooks/{webhook.id}", f"/webhooks/{webhook.id}/{attempt(webhook, 1).message_id}"):
            page = await browser.open(path)
            assert "was due 13 min ago : no worker has made it" in page.squeeze(), path


async def test_many_messages_come_in_pages(engine: Engine) -> None:
    async with subscribed(engine) as (client, opened, webhook):
        store = await client.store()
        for number in range(1, 131):
            await store.record_delivery(attempt(webhook, number, error=None if number % 2 else "gone"))
        browser = opened.browse()
        page, seen = await browser.open(f"/webhooks/{webhook.id}?state=delivered"), list[str]()
        while True:
            seen += [link.rpartition("/")[2] for link in page.list_links() if "/runs/run-" in link]
            more = [link for link in page.list_links() if "after=" in link]
            if not more:
                break
            page = await browser.open(more[0].removeprefix("/console"))
        assert seen == [f"run-{number}" for number in range(130, 0, -1)]


@pytest.mark.server
async def test_a_message_is_sent_again_after_a_second_look(engine: Engine) -> None:
    async with serve_endpoint() as endpoint, subscribed(engine, endpoint.url) as (client, opened, webhook):
        run = await client.start("talker", "Hi")
        await run.result()

        async def is_delivered() -> bool:
            page = await client.webhooks.deliveries(webhook.id)
            return any(row.type == "run.completed" and row.outcome == "succeeded" for row in page.deliveries)

        await eventually(is_delivered)
        browser = opened.browse()
        page = await browser.open(f"/webhooks/{webhook.id}")
        [link] = [
            given["href"] for tag, given in page.tags if tag == "a" and f"/{webhook.id}/msg_" in given.get("href", "")
        ][:1]
        page = await browser.open(link.removeprefix("/console"))
        before = list_ids(endpoint)
        form = page.find_form(to=link.rpartition("/")[2])
        page = await browser.send(form)
        assert "It is being sent again" in page.text
        message_id = link.rpartition("/")[2]
        await eventually(lambda: list_ids(endpoint).count(message_id) == before.count(message_id) + 1)
        page = await browser.open(f"/webhooks/{webhook.id}")
        await browser.send(page.find_form(to="/test"))
        assert "is on its way" in browser.page.text
        await eventually(lambda: "ping" in endpoint.types)
        verbs = {row.verb: row.by for row in await (await client.store()).list_audit(subject=webhook.id)}
        assert (verbs["webhook.resend"], verbs["webhook.test"]) == ("ada", "ada")


def list_ids(endpoint: Endpoint) -> list[str]:
    return [request.headers["webhook-id"] for request in endpoint.requests]


async def test_a_disabled_endpoint_says_why_and_is_sent_nothing(engine: Engine) -> None:
    async with subscribed(engine) as (client, opened, webhook):
        store = await client.store()
        await store.record_delivery(attempt(webhook, 1))
        await store.disable_webhook(webhook.id, "it answered 410", NOW)
        browser = opened.browse()
        page = await browser.open(f"/webhooks/{webhook.id}")
        assert "Disabled: it answered 410" in page.squeeze()
        assert "disabled it answered 410" in (await browser.open("/webhooks")).squeeze()
        await browser.send(page.find_form(to="/test"))
        assert browser.response.status_code == 400
        page = await browser.open(f"/webhooks/{webhook.id}/msg_1")
        assert not [form for form in page.forms if form.action.endswith("msg_1")]


async def test_who_sees_them(engine: Engine) -> None:
    async with subscribed(engine) as (client, opened, webhook):
        own = await client.webhooks.create("https://127.0.0.1/own", tenant="acme")
        page = await opened.browse("acme").open("/webhooks")
        assert "/own" in page.text
        assert webhook.id not in page.text
        for name, status in (("acme", 404), ("olga", 404)):
            browser = opened.browse(name)
            await browser.open(f"/webhooks/{webhook.id}")
            assert browser.response.status_code == status
        browser = opened.browse("olga")
        await browser.open("/webhooks")
        assert browser.response.status_code == 403
        page = await browser.open("/costs")
        assert "/console/webhooks" not in page.list_links(), "no link to what is refused"
        browser = opened.browse("acme")
        page = await browser.open(f"/webhooks/{own.id}")
        form = replace(page.find_form(to="/test"), action=f"/console/webhooks/{webhook.id}/test")
        await browser.send(form)
        assert browser.response.status_code == 404


async def test_what_others_wrote_is_text(engine: Engine) -> None:
    async with subscribed(engine) as (client, opened, webhook):
        texts = dict.fromkeys(("type", "context_id", "stream", "error", "answer"), TEXT)
        await (await client.store()).record_delivery(attempt(webhook, 1, outcome="failed", **texts))
        browser = opened.browse()
        for path in ("/webhooks", f"/webhooks/{webhook.id}", f"/webhooks/{webhook.id}/msg_1"):
            page = await browser.open(path)
            assert browser.response.status_code == 200
            check_page(page, browser.response.text)
            assert "⟨U+202E⟩" in page.text


def test_addresses_are_shown_without_what_may_be_secret() -> None:
    assert shorten_url("https://user:pass@h.example:8443/a/b?token=1#x") == "https://h.example:8443/a/b?…"
    assert shorten_url("https://h.example/a") == "https://h.example/a"
