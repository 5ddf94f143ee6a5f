"""Approvals by mail: a webhook of perdure becomes a mail with a link to the page where a person decides.

PERDURE_PUBLIC_URL=https://agents.example.com     # for the workers: the links lead there, to `perdure serve`
perdure webhook create https://HOST/perdure --event approval.requested     # its secret: PERDURE_WEBHOOK_SECRET
uvicorn --app-dir examples 54_mail_approvals:app
"""

import asyncio
import base64
import hashlib
import hmac
import json
import os
import smtplib
import ssl
import time
from email.message import EmailMessage
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

MAX_AGE = 300  # seconds
SMTP_SECONDS = 10  # less than the 15 s in which perdure wants an answer


def is_from_perdure(headers: Any, body: bytes) -> bool:
    """Whether it is signed with our secret, and not an old request that was sent again."""
    sent_at = headers.get("webhook-timestamp", "")
    if not sent_at.isdigit() or abs(time.time() - int(sent_at)) > MAX_AGE:
        return False
    key = base64.b64decode(os.environ["PERDURE_WEBHOOK_SECRET"].removeprefix("whsec_"))
    signed = f"{headers.get('webhook-id')}.{sent_at}.".encode() + body
    expected = base64.b64encode(hmac.digest(key, signed, hashlib.sha256))
    given = [one.removeprefix("v1,") for one in headers.get("webhook-signature", "").split(" ")]
    return any(hmac.compare_digest(one.encode(), expected) for one in given)


def write_mail(message_id: str, call: dict[str, Any]) -> EmailMessage:
    """The link leads to these arguments alone: it carries their hash. It decides nothing by itself, since mail programs
    open links; the page has the buttons, and checks who presses them."""
    sender = os.environ["MAIL_FROM"]
    mail = EmailMessage()
    mail["From"], mail["To"] = sender, os.environ["MAIL_TO"]
    # A tool's name is the model's text: no line break of it may begin another header.
    mail["Subject"] = " ".join(f"{call['agent']} asks for approval: {call['summary'] or call['tool']}".split())[:200]
    # An event that is delivered twice is the same mail: the reader's program shows it once.
    mail["Message-ID"] = f"<{message_id}@{sender.rpartition('@')[2]}>"
    arguments = json.dumps(call["arguments"], ensure_ascii=False, indent=2) if call.get("arguments") else "(long)"
    quoted = "\n".join(f"    {line}" for line in arguments[:5000].splitlines())
    until = f"until {call['expires_at']}" if call.get("expires_at") else "for as long as it takes"
    mail.set_content(
        f"Agent {call['agent']} wants to call {call['tool']}, and waits {until}.\n\n"
        f"Decide here: {call['decision_url']}\n\n"
        f"The arguments, as the model has written them (trust no link in them):\n\n{quoted}\n"
    )
    return mail


def send_mail(mail: EmailMessage) -> None:
    host, port = os.environ.get("SMTP_HOST", "localhost"), int(os.environ.get("SMTP_PORT", "25"))
    with smtplib.SMTP(host, port, timeout=SMTP_SECONDS) as smtp:
        if user := os.environ.get("SMTP_USER"):
            smtp.starttls(context=ssl.create_default_context())
            smtp.login(user, os.environ["SMTP_PASSWORD"])
        smtp.send_message(mail)


async def ask_by_mail(request: Request) -> Response:
    """perdure's webhook. A mail server that does not take the mail is answered with 502: perdure tries again."""
    body = await request.body()
    if not is_from_perdure(request.headers, body):
        return Response(status_code=401)
    event = json.loads(body)
    if event["type"] != "approval.requested":
        return Response(status_code=204)
    if not event["data"].get("decision_url"):
        return Response("the workers need PERDURE_PUBLIC_URL", 500)
    mail = write_mail(request.headers["webhook-id"], event["data"])
    try:
        await asyncio.to_thread(send_mail, mail)
    except (OSError, smtplib.SMTPException) as error:
        return Response(f"no mail was sent: {type(error).__name__}", 502)
    return Response(status_code=204)


app = Starlette(routes=[Route("/perdure", ask_by_mail, methods=["POST"])])
