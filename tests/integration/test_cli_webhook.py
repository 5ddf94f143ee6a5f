"""``perdure webhook``, in this process on a real server."""

from __future__ import annotations

import pytest

from perdure import Agent
from perdure.testing import ScriptedProvider
from perdure.worker import webhook_delivery as deliveries
from tests.support.commands import Commands
from tests.support.engine import Engine
from tests.support.wait import eventually
from tests.support.webhooks import serve_endpoint

pytestmark = pytest.mark.server


async def test_a_webhook_from_its_making_to_its_end(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PERDURE_WEBHOOK_ALLOW", "127.0.0.0/8")
    monkeypatch.setattr(deliveries, "POLL_SECONDS", 0.05)
    cli = Commands(engine, monkeypatch)
    async with serve_endpoint() as endpoint, engine.served(Agent("support", ScriptedProvider(["Hi."]))) as client:
        refused = await cli("webhook", "create", "https://user@example.com/")
        assert (refused.code, "no user and password" in refused.err) == (2, True)
        made = await cli("webhook", "create", endpoint.url, "--event", "approval.*", "--event", "run.failed")
        name, secret = made.out.split()
        assert (made.code, secret[:6]) == (0, "whsec_")
        assert (await cli("webhook", "list", "-q")).out == f"{name}\n"
        assert [line.split() for line in (await cli("webhook", "list")).out.splitlines()] == [
            ["ID", "URL", "EVENTS", "STATE"],
            [name, endpoint.url, "approval.*", "run.failed", "enabled"],
        ]
        assert (await cli("webhook", "test", name)).code == 0
        await eventually(lambda: len(endpoint.requests) == 1)
        assert endpoint.requests[0].is_signed(secret)

        async def logged() -> str:
            rows = (await client.webhooks.deliveries(name)).deliveries
            return rows[0].id if rows else ""

        delivery = await eventually(logged)
        listed = (await cli("webhook", "deliveries", name)).out.splitlines()
        assert (listed[1].split()[0], listed[1].split()[-1]) == (delivery, "succeeded")
        again = await cli("webhook", "resend", delivery, "--json")
        assert again.json == {"message_id": endpoint.requests[0].id}
        new = (await cli("webhook", "rotate", name, "--keep", "0")).out.strip()
        assert new != secret
        assert (await cli("webhook", "disable", name)).out == f"{name} is disabled\n"
        shown = (await cli("webhook", "show", name)).out
        assert "state     disabled: disabled by " in shown
        assert new not in shown
        assert "secret" not in (await cli("webhook", "show", name, "--json")).json
        assert (await cli("webhook", "enable", name)).code == 0
        assert (await cli("webhook", "delete", name)).out == f"{name} is deleted\n"
        gone = await cli("webhook", "show", name)
        assert (gone.code, f"there is no webhook '{name}'" in gone.err) == (3, True)
