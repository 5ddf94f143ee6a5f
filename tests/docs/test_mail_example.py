"""examples/54_mail_approvals.py with a mail server on loopback: from the webhook by the mail's link to the decision."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from email import message_from_bytes, policy
from email.message import EmailMessage
from types import ModuleType
from typing import Any, cast

import httpx
import pytest
from aiosmtpd.smtp import SMTP

from perdure import Agent, tool
from perdure._webhook_wire import WebhookTask, build_event_body, build_webhook_headers, generate_secret
from perdure.testing import ScriptedProvider, call
from perdure.types.events import ApprovalRequested
from perdure.web.app import WebOptions, create_app
from perdure.web.auth import AuthenticatorChain, BearerTokens
from tests.support.engine import Engine
from tests.support.examples import EXAMPLES, example
from tests.support.wait import eventually

PUBLIC = "http://localhost"
SECRET = generate_secret()


@tool(needs_approval=True)
def refund(amount: int, note: str) -> str:
    """Refund."""
    return f"refunded {amount}"


class Mailbox:
    """Takes mail; ``answer`` is what the server says to it."""

    def __init__(self) -> None:
        self.mails: list[EmailMessage] = []
        self.answer = "250 OK"

    async def handle_DATA(self, server: Any, session: Any, envelope: Any) -> str:  # noqa: N802  # the name of aiosmtpd
        if self.answer.startswith("250"):
            self.mails.append(cast(EmailMessage, message_from_bytes(envelope.content, policy=policy.default)))
        return self.answer


@pytest.fixture
async def mailbox(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Mailbox]:
    mailbox = Mailbox()
    server = await asyncio.get_running_loop().create_server(lambda: SMTP(mailbox), "127.0.0.1", 0)
    async with server:
        settings = {"SMTP_HOST": "127.0.0.1", "SMTP_PORT": str(server.sockets[0].getsockname()[1])}
        settings |= {"MAIL_FROM": "perdure@example.com", "MAIL_TO": "ana@example.com, bo@example.com"}
        for name, value in {**settings, "PERDURE_WEBHOOK_SECRET": SECRET}.items():
            monkeypatch.setenv(name, value)
        yield mailbox


async def post(module: ModuleType, body: bytes, headers: dict[str, str]) -> int:
    async with httpx.AsyncClient(transport=httpx.ASGITransport(module.app), base_url="http://here") as http:
        return (await http.post("/perdure", content=body, headers=headers)).status_code


@asynccontextmanager
async def asking(engine: Engine, note: str) -> AsyncIterator[tuple[Any, Any, bytes]]:
    """A client, a run that waits for approval, and the body of the webhook that says so."""
    replies = [call("refund", amount=3, note=note), "Done."]
    async with engine.served(Agent("support", ScriptedProvider(replies), tools=[refund])) as client:
        run = await client.start("support", "Go.", id="order #7?")

        async def find_pending() -> Any:
            return (await run.status()).approvals

        [waiting] = await eventually(find_pending)
        event = ApprovalRequested(
            context_id=run.id,
            call_id=waiting.call_id,
            name="refund",
            arguments=waiting.arguments,
            summary=waiting.summary,
            hash=waiting.hash,
        )
        task = WebhookTask(webhook_id="w", message_id="msg_1", type=event.type, agent="support")
        yield client, run, build_event_body(event, task, PUBLIC)


async def test_the_link_of_a_mail_leads_to_the_decision(engine: Engine, mailbox: Mailbox) -> None:
    module = example(str(EXAMPLES / "54_mail_approvals.py"))
    async with asking(engine, "as agreed: http://evil.example/\r\nBcc: mallory@example.com") as (client, run, body):
        headers = build_webhook_headers([SECRET], "msg_1", datetime.now(UTC), body)
        old = build_webhook_headers([SECRET], "msg_1", datetime(2020, 1, 1, tzinfo=UTC), body)
        for forged in (headers | {"webhook-id": "msg_2"}, old):
            assert await post(module, body, forged) == 401
        mailbox.answer = "451 try later"
        assert await post(module, body, headers) == 502
        mailbox.answer = "250 OK"
        assert [await post(module, body, headers) for _ in range(2)] == [204, 204]
        mail, again = mailbox.mails
        assert mail["message-id"] == again["message-id"] == "<msg_1@example.com>"
        assert (mail["to"], mail["bcc"]) == ("ana@example.com, bo@example.com", None)
        assert mail["subject"].startswith("support asks for approval: refund: amount 3")
        assert mail["subject"].isprintable()
        text = mail.get_content()
        found = re.search(rf"Decide here: ({PUBLIC}\S+)", text)
        assert found is not None, text
        link = found[1]
        token = (await client.tokens.create("ana", role="approver")).token
        app = create_app(client, authenticator=AuthenticatorChain([BearerTokens(client)]), options=WebOptions(dev=True))
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url=PUBLIC) as http:
            assert (await http.get(link)).status_code == 401
            http.auth = ("", token)
            page = await http.get(link)
            assert (page.status_code, "Approve refund?" in page.text) == (200, True)
            assert (await run.status()).approvals, "opening the link decides nothing"
            assert (await http.get(link[:-4] + "0000")).status_code == 409, "the link is for these arguments"
            fields = dict(re.findall(r'name="(\w+)" value="([^"]*)"', page.text.partition("<button")[0]))
            assert '<form method="post">' in page.text, "it is sent to where the page is from"
            decided = await http.post(link, data={**fields, "decision": "approve", "comment": "ok"})
            assert (decided.status_code, "approved" in decided.text) == (200, True), decided.text
        assert (await run.result()).content == "Done."
        [by] = [event.by async for event in run.events() if event.type == "approval.decided"]
        assert by == "ana"
