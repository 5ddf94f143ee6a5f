"""What an API's errors leave behind on a real server: no secrets anywhere, and a wait that ends."""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from perdure import Agent, Limits
from perdure.errors import AuthenticationError
from perdure.providers import OpenAIChat
from perdure.types.events import ErrorEvent
from tests.integration.test_auth_context import history
from tests.servers.model_server import OpenAIServer, error
from tests.support.engine import Engine
from tests.support.wait import eventually

pytestmark = pytest.mark.server

KEY, TENANT = "no-vendors-form-0123456789", "t3nant-of-ours"


async def test_a_configured_header_that_an_api_echoes_stands_nowhere(
    engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    """Row 14: a secret in ``headers=``, echoed by an API's 401, stood in history."""
    caplog.set_level(logging.DEBUG, logger="perdure")
    async with OpenAIServer() as api:
        api.rule = lambda _: error(401, f"Tenant {api.headers[-1]['x-tenant']} and {api.headers[-1]['authorization']}?")
        provider = OpenAIChat(api.base_url, KEY, headers={"X-Tenant": TENANT})
        async with engine.served(Agent("a", provider)) as client:
            run = await client.start("a", "Hi.")
            with pytest.raises(AuthenticationError, match=r"Tenant \[redacted\] and Bearer \[redacted\]\?"):
                await run.result()
            status, events = await run.status(), [event async for event in run.events(wait=False)]
            everything = json.dumps([status.model_dump(mode="json"), *(one.model_dump(mode="json") for one in events)])
            everything += await history(run) + caplog.text
        await provider.aclose()
    assert AuthenticationError.__name__ in everything
    assert "Tenant [redacted] and Bearer [redacted]?" in everything
    assert TENANT not in everything
    assert KEY not in everything
    assert TENANT.encode() not in b"".join(path.read_bytes() for path in engine.folder.glob("store.db*"))


async def test_an_absurd_retry_after_ends_within_an_hour_and_is_said(engine: Engine) -> None:
    """Rows 15 and 28: 1e9 parked a run until 2058, and no status said so."""
    async with OpenAIServer() as api:
        api.rule = lambda _: error(429, "Slow down.", code="rate_limit_exceeded", retry_after="1e9")
        provider = OpenAIChat(api.base_url, KEY)
        begun = datetime.now(UTC)
        async with engine.served(Agent("a", provider), Agent("b", provider, limits=Limits(retry_wait="1m"))) as client:
            for agent, longest in (("a", timedelta(hours=1)), ("b", timedelta(minutes=1))):
                run = await client.start(agent, "Hi.")

                async def said(run: Any = run) -> str | None:
                    reason = (await run.status()).reason or ""
                    return reason if "next attempt at" in reason else None

                reason = await eventually(said, what="the time of the next attempt")
                assert "the provider asks to wait 31.7 years, and retry_wait allows" in reason
                due = datetime.strptime(reason.split("next attempt at ")[1], "%Y-%m-%d %H:%M:%S UTC)").replace(
                    tzinfo=UTC
                )
                assert begun + longest - timedelta(seconds=1) < due < datetime.now(UTC) + longest
                [failed] = [event async for event in run.events(wait=False) if isinstance(event, ErrorEvent)]
                assert (failed.retry_in, failed.final) == (longest.total_seconds(), False)
                assert "asks to wait 31.7 years" in failed.error
                await run.cancel()
        await provider.aclose()
