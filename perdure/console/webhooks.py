"""Webhooks: the endpoints that are subscribed to events, what became of each message, and sending one again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, get_args
from urllib.parse import quote, urlsplit

from starlette.responses import Response

from ..client.pages import gather_bounded
from ..ports.webhooks import DeliveryState
from ..web.auth import Resource
from ..web.operations import Call, Empty, validate
from ..web.problems import NotFoundError
from ..web.webhooks import (
    DeliveriesQuery,
    Delivery,
    DeliveryList,
    PageQuery,
    WebhookAnswer,
    get_webhook,
    list_deliveries,
    list_webhooks,
    resend_delivery,
    test_webhook,
)
from .inbox import count_pending
from .pages import Page, PageRoute

ROWS = 50
_ATTEMPTS = 100
"""Most attempts of a message that are shown: each time it is sent has ten."""
STATES = get_args(DeliveryState)
TONES: Mapping[str, str] = {"delivered": "good", "retrying": "warn", "failed": "bad"}


@dataclass(frozen=True)
class Endpoint:
    """A subscription in the list."""

    webhook: WebhookAnswer
    last: Delivery | None
    """The attempt that was made last."""

    @property
    def address(self) -> str:
        """Where it is, without a query, which may have a secret."""
        return shorten_url(self.webhook.url)


def shorten_url(url: str) -> str:
    """Return ``url`` without what may be a secret of its receiver: user, password, query."""
    parts = urlsplit(url)
    more = "?…" if parts.query else ""
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}{more}"


async def show_webhooks(page: Page) -> Response:
    """Show the subscriptions that the visitor may see, the oldest first."""
    await page.call.authorize("admin", "list_webhooks", Resource("webhook"))
    given = page.request.query_params.get("after")
    query = validate(PageQuery, {"limit": ROWS} | ({"after": given} if given else {}), "the address")
    listed = await list_webhooks(replace(page.call, query=query))
    endpoints = await gather_bounded(lambda webhook: _read_endpoint(page.call, webhook), listed.data)
    count = await count_pending(page)
    return page.render("webhooks.html", endpoints=endpoints, cursor=listed.cursor, tones=TONES, count=count)


async def _read_endpoint(call: Call, webhook: WebhookAnswer) -> Endpoint:
    listed = await _list_deliveries(call, webhook.id, limit=1)
    return Endpoint(webhook, listed.data[0] if listed.data else None)


async def _list_deliveries(call: Call, webhook: str, **fields: Any) -> DeliveryList:
    query = validate(DeliveriesQuery, fields, "the address")
    return await list_deliveries(replace(call, params={"webhook": webhook}, query=query))


async def show_webhook(page: Page) -> Response:
    """Show a subscription and what became of its messages, the newest first."""
    webhook = await get_webhook(page.call)
    given = page.request.query_params
    fields = {name: given[name] for name in ("state", "after") if given.get(name)}
    listed = await _list_deliveries(page.call, webhook.id, latest=True, limit=ROWS, **fields)
    return page.render(
        "webhook.html",
        webhook=webhook,
        address=shorten_url(webhook.url),
        deliveries=listed.data,
        cursor=listed.cursor,
        state=fields.get("state"),
        states=STATES,
        tones=TONES,
        count=await count_pending(page),
        has_sent="sent" in given,
    )


async def test_endpoint(page: Page) -> Response:
    """Send a ``ping``."""
    await test_webhook(replace(page.call, body=Empty()))
    return page.redirect(f"/webhooks/{quote(page.call.params['webhook'], safe='')}", sent="1")


async def show_delivery(page: Page) -> Response:
    """Show the attempts of a message, and ask whether it is to be sent again."""
    webhook, message_id = await get_webhook(page.call), page.call.params["message"]
    listed = await _list_deliveries(page.call, webhook.id, message_id=message_id, limit=_ATTEMPTS)
    if not listed.data:
        raise NotFoundError("there is no such message")
    return page.render(
        "delivery.html",
        webhook=webhook,
        address=shorten_url(webhook.url),
        attempts=listed.data,
        last=listed.data[0],
        tones=TONES,
        count=await count_pending(page),
        has_sent="sent" in page.request.query_params,
    )


async def send_again(page: Page) -> Response:
    """Send the message of an attempt again."""
    params = {"webhook": page.call.params["webhook"], "delivery": page.form.get("delivery")}
    sent = await resend_delivery(replace(page.call, params=params, body=Empty()))
    return page.redirect(f"/webhooks/{quote(params['webhook'], safe='')}/{quote(sent.message_id, safe='')}", sent="1")


_ONE = "/webhooks/{webhook:segment}"
PAGES = (
    PageRoute("GET", "/webhooks", show_webhooks, "webhooks"),
    PageRoute("GET", _ONE, show_webhook, "webhook"),
    PageRoute("POST", f"{_ONE}/test", test_endpoint, "test_endpoint"),
    PageRoute("GET", f"{_ONE}/{{message:segment}}", show_delivery, "delivery"),
    PageRoute("POST", f"{_ONE}/{{message:segment}}", send_again, "send_again"),
)
