"""What pages say in words: refusals, why a name is believed, last errors, a week's figures, agents that are missing."""

from __future__ import annotations

import pytest

from perdure import Agent
from perdure.ports.audit import AuditRow
from perdure.ports.store import Commit, Outcome
from perdure.ports.times import format_utc_now
from perdure.ports.usage import UsageRow
from perdure.testing import ScriptedProvider
from perdure.worker.engine import record_agents
from tests.console.test_webhooks import attempt, subscribed
from tests.console.test_webhooks import quick as quick
from tests.support.engine import Engine
from tests.support.pages import console
from tests.support.wait import eventually
from tests.support.web import make_caller


async def test_a_refusal_names_the_role_that_it_needs(engine: Engine) -> None:
    async with (
        engine.served(Agent("a", ScriptedProvider(["hi"]))) as client,
        console(client, make_caller("eve", "viewer")) as opened,
    ):
        browser = opened.browse("eve")
        for path, words, role in (
            ("/audit", "pause, resume, cancel and change runs and schedules, or see the audit trail", "operator"),
            ("/webhooks", "manage tokens, webhooks", "admin"),
        ):
            text = (await browser.open(path)).squeeze()
            assert browser.response.status_code == 403
            assert f"'eve' may not {words}" in text
            assert f"It comes with the role {role}" in text


async def test_the_last_error_stands_in_the_list_of_webhooks(engine: Engine) -> None:
    async with subscribed(engine) as (client, opened, webhook):
        store = await client.store()
        await store.record_delivery(attempt(webhook, 1, outcome="failed", status=None, error="connection refused"))
        assert "connection refused" in (await opened.browse().open("/webhooks")).squeeze()


async def test_a_token_has_a_short_id_and_its_words_a_legend(engine: Engine) -> None:
    async with engine.served(Agent("a", ScriptedProvider(["hi"]))) as client, console(client) as opened:
        row = AuditRow(
            *("1" * 32, format_utc_now(), "ana", "token:0123456789abcdef", "::1", "r1", "approve", "c1", None, None)
        )
        await (await client.store(create=True)).record_audit(row)
        page = await opened.browse().open("/audit")
        assert "token:01234567…" in page.squeeze()
        assert "token:0123456789abcdef" not in page.text
        assert any(given.get("title") == "token:0123456789abcdef" for _, given in page.tags)
        for word in ("given", "os-user", "proxy"):
            assert word in page.parts, "the legend says what it means"


async def test_an_agent_has_the_figures_of_seven_days(engine: Engine) -> None:
    agent = Agent("payer", ScriptedProvider(["hi"]), description="Pays")
    async with engine.served(agent) as client, console(client) as opened:
        store = await client.store(create=True)
        await record_agents(store, [agent])
        for number in range(4):
            call = UsageRow(
                *("r1", "payer", "model", "openai", "gpt-5", "completed" if number else "failed", 1),
                cost_usd=0.5,
                milliseconds=2000,
                created_at=format_utc_now(),
                key=f"k{number}",
            )
            await store.commit(Commit(outcome=Outcome(f"o{number}", "model", b"{}"), usage=call))
        browser = opened.browse()
        assert "75.0 % 4 calls, $2.00" in (await browser.open("/agents")).squeeze()
        text = (await browser.open("/agents/payer")).squeeze()
        assert "Without error 75.0 %" in text
        assert "Time of a call 2.0 s" in text


@pytest.mark.server
async def test_a_schedule_of_an_agent_that_no_worker_has_says_so(engine: Engine) -> None:
    agent = Agent("echo", ScriptedProvider(["hi"]))
    async with engine.served(agent) as client, console(client) as opened:
        await record_agents(await client.store(create=True), [agent])
        made = [
            await client.schedule(name, "Go", id=f"{engine.task_queue}-{name}", cron="0 7 * * *", paused=True)
            for name in ("echo", "nobody")
        ]
        try:
            browser = opened.browse()

            async def is_listed() -> str | None:
                text = (await browser.open("/schedules")).squeeze()
                return text if all(schedule.id in text for schedule in made) else None

            text = await eventually(is_listed)
            assert text.count("no worker has this agent") == 1
            assert "nobody no worker has this agent" in text
        finally:
            for schedule in made:
                await schedule.delete()
