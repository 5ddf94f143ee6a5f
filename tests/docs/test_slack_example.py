"""examples/53_slack_approvals.py with a Slack on loopback: signatures, who may decide, and the decision in the run."""

from __future__ import annotations

import hashlib
import hmac
import json
import time
from datetime import UTC, datetime
from types import ModuleType
from typing import Any
from urllib.parse import urlencode

import httpx
import pytest

from perdure import Agent, tool
from perdure._webhook_wire import WebhookTask, build_event_body, build_webhook_headers, generate_secret
from perdure.testing import call, scripted
from perdure.types.events import ApprovalRequested
from tests.support.examples import EXAMPLES, example
from tests.support.wait import eventually
from tests.support.webhooks import Endpoint, serve_endpoint, status


@tool(needs_approval=True)
def refund(amount: int) -> str:
    """Refund."""
    return f"refunded {amount}"


async def click(module: ModuleType, slack: Endpoint, message: dict[str, Any], user: str, *, key: str = "sign") -> int:
    """A click on the first button of a message."""
    action = message["blocks"][1]["elements"][0]
    payload = {"type": "block_actions", "user": {"id": user}, "actions": [action], "response_url": f"{slack.url}/reply"}
    body, now = urlencode({"payload": json.dumps(payload)}), str(int(time.time()))
    digest = hmac.new(key.encode(), f"v0:{now}:{body}".encode(), hashlib.sha256).hexdigest()
    headers = {"x-slack-request-timestamp": now, "x-slack-signature": f"v0={digest}"}
    return await post(module, "/slack", body.encode(), headers)


async def post(module: ModuleType, path: str, body: bytes, headers: dict[str, str]) -> int:
    async with httpx.AsyncClient(transport=httpx.ASGITransport(module.app), base_url="http://here") as http:
        return (await http.post(path, content=body, headers=headers)).status_code


async def test_an_approval_in_slack(monkeypatch: pytest.MonkeyPatch) -> None:
    secret = generate_secret()
    settings = {"PERDURE_WEBHOOK_SECRET": secret, "SLACK_SIGNING_SECRET": "sign", "SLACK_TOKEN": "xoxb-1"}
    for name, value in {**settings, "SLACK_CHANNEL": "C1", "SLACK_APPROVERS": "U1,U2"}.items():
        monkeypatch.setenv(name, value)
    agent = Agent("support", "openai:gpt-5", tools=[refund])
    async with serve_endpoint() as slack, scripted(agent, [[call("refund", amount=3)], "Done."]) as kit:
        slack.answer = status(200, '{"ok": true}', content_type="application/json")
        module = example(str(EXAMPLES / "53_slack_approvals.py"))
        module.SLACK_API, module.app.state.client = slack.url, kit.client
        run = await kit.client.start(agent, "Go.")

        async def pending() -> Any:
            return (await run.status()).approvals

        [waiting] = await eventually(pending)
        event = ApprovalRequested(
            context_id=run.id,
            call_id=waiting.call_id,
            name="refund",
            arguments={"amount": 3},
            summary=waiting.summary,
            hash=waiting.hash,
        )
        task = WebhookTask(webhook_id="w", message_id="msg_1", type=event.type, agent="support")
        body = build_event_body(event, task, None)
        headers = build_webhook_headers([secret], "msg_1", datetime.now(UTC), body)
        assert await post(module, "/perdure", body + b" ", headers) == 401
        old = build_webhook_headers([secret], "msg_1", datetime(2020, 1, 1, tzinfo=UTC), body)
        assert await post(module, "/perdure", body, old) == 401
        assert slack.requests == []
        assert await post(module, "/perdure", body, headers) == 204
        [posted] = slack.requests
        assert (posted.target, posted.headers["authorization"]) == ("/hook/chat.postMessage", "Bearer xoxb-1")
        assert waiting.summary in posted.json["text"]
        assert waiting.summary.startswith("refund: ")

        assert await click(module, slack, posted.json, "U1", key="forged") == 401
        assert await click(module, slack, posted.json, "U9") == 200
        assert slack.requests[-1].json == {"text": "<@U9> may not decide this.", "replace_original": False}
        assert (await run.status()).approvals, "it still waits"
        assert await click(module, slack, posted.json, "U1") == 200
        assert slack.requests[-1].json == {"text": "approve by <@U1>", "replace_original": True}
        assert await click(module, slack, posted.json, "U2") == 200
        assert slack.requests[-1].json["text"].startswith("Not decided: ")
        assert (await run.result()).content == "Done."
        [decided] = [one.by async for one in run.events() if one.type == "approval.decided"]
        assert decided == "slack:U1"

        slack.answer = status(500)
        assert await post(module, "/perdure", body, headers) == 502
