"""Approvals in Slack: a webhook of perdure becomes a message with buttons, and a click of an approver decides the call.

perdure webhook create https://HOST/perdure --event approval.requested     # its secret: PERDURE_WEBHOOK_SECRET
uvicorn --app-dir examples 53_slack_approvals:app                          # Slack: Interactivity → https://HOST/slack
"""

import base64
import binascii
import hashlib
import hmac
import json
import os
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import parse_qs

import httpx2
from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from perdure import Client
from perdure.errors import PerdureError

SLACK_API = os.environ.get("SLACK_API", "https://slack.com/api")
MAX_AGE = 300  # seconds


def is_signed(key: bytes, sent_at: str, signed: bytes, signatures: list[str], encode: Any) -> bool:
    """Whether one of ``signatures`` is the key's, and not an old one that was sent again."""
    expected = encode(hmac.digest(key, signed, hashlib.sha256))
    is_recent = sent_at.isdigit() and abs(time.time() - int(sent_at)) < MAX_AGE
    return is_recent and any(hmac.compare_digest(one.encode(), expected) for one in signatures)


def is_from_perdure(headers: Any, body: bytes) -> bool:
    key = base64.b64decode(os.environ["PERDURE_WEBHOOK_SECRET"].removeprefix("whsec_"))
    sent_at = headers.get("webhook-timestamp", "")
    signatures = [one.removeprefix("v1,") for one in headers.get("webhook-signature", "").split(" ")]
    signed = f"{headers.get('webhook-id')}.{sent_at}.".encode() + body
    return is_signed(key, sent_at, signed, signatures, base64.b64encode)


def is_from_slack(headers: Any, body: bytes) -> bool:
    key, sent_at = os.environ["SLACK_SIGNING_SECRET"].encode(), headers.get("x-slack-request-timestamp", "")
    signatures = [headers.get("x-slack-signature", "").removeprefix("v0=")]
    return is_signed(key, sent_at, f"v0:{sent_at}:".encode() + body, signatures, binascii.hexlify)


async def ask_in_slack(request: Request) -> Response:
    """perdure's webhook. An error of Slack's is answered with 502: perdure tries again."""
    body = await request.body()
    if not is_from_perdure(request.headers, body):
        return Response(status_code=401)
    event = json.loads(body)
    if event["type"] != "approval.requested":
        return Response(status_code=204)
    call = event["data"]
    value = json.dumps({"run": call["run_id"], "call": call["call_id"], "hash": call["hash"]})
    buttons = [
        {"type": "button", "action_id": name, "text": {"type": "plain_text", "text": name.title()}, "value": value}
        for name in ("approve", "deny")
    ]
    arguments = json.dumps(call["arguments"], ensure_ascii=False)[:2000] if call.get("arguments") else "(long)"
    text = f"{call['agent']} asks for approval: {call['summary'] or call['tool']}\n{arguments}"
    blocks = [
        {"type": "section", "text": {"type": "plain_text", "text": text}},
        {"type": "actions", "elements": buttons},
    ]
    message = {"channel": os.environ["SLACK_CHANNEL"], "text": text, "blocks": blocks}
    token = {"authorization": f"Bearer {os.environ['SLACK_TOKEN']}"}
    async with httpx2.AsyncClient(timeout=10) as http:
        answer = await http.post(f"{SLACK_API}/chat.postMessage", json=message, headers=token)
    return Response(status_code=204 if answer.is_success and answer.json().get("ok") else 502)


async def take_click(request: Request) -> Response:
    """A click in Slack, answered within 3 s: the decision follows. Lost with the process, it is clicked again."""
    body = await request.body()
    if not is_from_slack(request.headers, body):
        return Response(status_code=401)
    click = json.loads(parse_qs(body.decode())["payload"][0])
    return Response(background=BackgroundTask(decide, request.app.state.client, click))


async def decide(client: Client, click: dict[str, Any]) -> None:
    user, action = click["user"]["id"], click["actions"][0]
    call = json.loads(action["value"])
    if user not in os.environ["SLACK_APPROVERS"].split(","):  # the button shows itself to everyone in the channel
        return await reply(click, {"text": f"<@{user}> may not decide this.", "replace_original": False})
    run = client.run(call["run"])
    try:
        act = run.approve if action["action_id"] == "approve" else run.deny
        await act(call["call"], hash=call["hash"], by=f"slack:{user}")
    except PerdureError as error:  # decided meanwhile, expired, or the arguments have changed
        return await reply(click, {"text": f"Not decided: {error.message}", "replace_original": True})
    return await reply(click, {"text": f"{action['action_id']} by <@{user}>", "replace_original": True})


async def reply(click: dict[str, Any], message: dict[str, Any]) -> None:
    async with httpx2.AsyncClient(timeout=10) as http:
        await http.post(click["response_url"], json=message)


@asynccontextmanager
async def lifespan(app: Starlette) -> AsyncGenerator[None]:
    app.state.client = await Client.connect()
    yield
    await app.state.client.close()


routes = [Route("/perdure", ask_in_slack, methods=["POST"]), Route("/slack", take_click, methods=["POST"])]
app = Starlette(routes=routes, lifespan=lifespan)
