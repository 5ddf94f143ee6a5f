"""The delivery of an event to a webhook whose history is stored: an attempt that fails, and one that is taken."""

from __future__ import annotations

from unittest.mock import patch

from perdure import Agent, Run
from perdure.client.webhook_subscriptions import build_delivery_id
from perdure.testing import ScriptedProvider
from perdure.worker import webhook_delivery as deliveries
from tests.replay.scenarios import _end, scenario
from tests.support.engine import Engine
from tests.support.wait import eventually
from tests.support.webhooks import Received, serve_endpoint, status


@scenario
async def webhook_delivered_at_the_second_attempt(engine: Engine) -> Run:
    def answer(_: Received) -> bytes:
        return status(503 if len(endpoint.requests) == 1 else 204)(_)

    retries = patch.object(deliveries, "RETRY_SECONDS", (0.01,) * 9)
    polls = patch.object(deliveries, "POLL_SECONDS", 0.05)
    allowed = patch.dict("os.environ", {"PERDURE_WEBHOOK_ALLOW": "127.0.0.1"})
    agent = Agent("recorded", ScriptedProvider(["Done."]))
    with retries, polls, allowed:
        async with serve_endpoint() as endpoint, engine.served(agent) as client:
            endpoint.answer = answer
            webhook = await client.webhooks.create(endpoint.url, events=["run.completed"])
            run = await client.start(agent, "Go.")
            await _end(run)
            await eventually(lambda: len(endpoint.requests) == 2)
            store = await client.store()
            seq = [row.seq for row in await store.read_events(run.id) if row.type == "run"][-1]
            delivery = client.run(build_delivery_id(webhook.id, run.id, seq))
            await delivery.handle.result()
    return delivery
