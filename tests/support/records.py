"""Samples of what operators look at: an audit trail, a month of model calls, endpoints of webhooks."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta

from perdure import Client
from perdure.ports.audit import AuditRow
from perdure.ports.store import Commit, EventBatch, NewEvent, Outcome, RunRow
from perdure.ports.times import timestamp
from perdure.ports.usage import UsageRow
from perdure.ports.webhooks import DeliveryRow, WebhookRow
from perdure.store.sqlite import SqliteStore
from perdure.types.events import ErrorEvent, RunEvent
from perdure.types.run_ids import build_run_id

_TRAIL = [
    ("ana", "token:5f0c", "203.0.113.7", "approve", "support-1041", "call_4", None, None),
    ("ben", "proxy", "198.51.100.23", "deny", "privacy-1041", "call_1", "the customer has an open invoice", None),
    ("web", "token:77ab", "10.1.0.12", "send", "tailor-1041", None, "message m-9a31", None),
    ("jo", "os-user", "workstation-3/4711", "schedule.pause", "nightly-report", None, "month's end", None),
    ("ana", "token:5f0c", "203.0.113.7", "resume", "support-1041", None, '{"cost_usd": 5}', None),
    ("eve", "token:01d9", "192.0.2.99", "cancel", "mailer-1041", None, None, "ForbiddenError: 'eve' may not"),
    ("jo", "os-user", "workstation-3/4711", "webhook.create", "wh_0123456789abcdef01234567", None,
     "https://hooks.example.com/perdure", None),
    ("jo", "os-user", "workstation-3/4711", "token.create", "token:5f0c", None, "ana, approver, tenants acme", None),
]  # fmt: skip
_MODELS = [
    ("support", "anthropic", "claude-sonnet-4-5", 0.021, 3.4),
    ("support", "openai", "gpt-5-mini", 0.004, 1.9),
    ("researcher", "openai", "gpt-5", 0.034, 7.2),
    ("mailer", "ollama", "qwen3:14b", None, 5.1),
]


async def record_samples(client: Client) -> dict[str, str]:
    """Record samples in the store of ``client``; returns pages that show them, by name."""
    await _record_usage(client)
    await _record_outage(client)
    store, now = await client.store(), datetime.now(UTC)
    for number, row in enumerate(_TRAIL * 3):
        by, auth, origin, verb, subject, call_id, detail, refused = row
        at = timestamp(now - timedelta(minutes=11 * number + 1))
        await store.record_audit(
            AuditRow(f"{number:032}", at, by, auth, origin, subject, verb, call_id, detail, refused)
        )
    names = [f"wh_{number}123456789abcdef01234567" for number in range(3)]
    for number, (name, url, tenant, enabled) in enumerate(
        [
            (names[0], "https://hooks.example.com/perdure", None, True),
            (names[1], "https://crm.acme.example/events?key=1", "acme", True),
            (names[2], "https://old.example.net/a/rather/long/path/of/an/endpoint", "acme", False),
        ]
    ):
        await store.create_webhook(
            WebhookRow(
                *(name, url, "approval.* run.completed run.failed", None, tenant, None, enabled),
                *(None if enabled else "it answered 410 (gone)", None, "[]", None, "jo"),
                *(timestamp(now - timedelta(days=9 - number)), timestamp(now - timedelta(days=9 - number))),
            )
        )
    await store.note_webhook_failure(names[1], timestamp(now - timedelta(hours=7)))
    answers = [(503, None, "<h1>Service Unavailable</h1>"), (None, "ConnectionRefusedError: connection refused", None)]
    for number in range(24):
        name = names[number % 2]
        is_failed = name == names[1] and number < 12
        outcome = "failed" if is_failed else "succeeded"
        message = f"msg_{number:032x}"
        at, next_at = now - timedelta(minutes=23 * number + 2), timestamp(now + timedelta(minutes=17 + number))
        for attempt in (2, 1) if is_failed else (1,):
            await store.record_delivery(
                DeliveryRow(
                    *(f"dl_{number}_{attempt}", name, message, "approval.requested" if number % 3 else "run.completed"),
                    *("support-1041", number, "support-1041", "https://h.example/", attempt, outcome),
                    *(answers[number // 2 % 2] if is_failed else (204, None, None)),
                    *(1830 if is_failed else 142, next_at if is_failed and number != 5 else None),
                    timestamp(at - timedelta(minutes=2 - attempt)),
                )
            )
    failing = f"msg_{1:032x}"
    return {
        "webhooks": "/webhooks",
        "webhook": f"/webhooks/{names[1]}",
        "delivery": f"/webhooks/{names[1]}/{failing}",
        "audit": "/audit",
        "audit-empty": "/audit?by=nobody",
        "costs": "/costs",
        "costs-hours": "/costs?time=24h",
        "costs-tenants": "/costs?group=tenant&time=90d",
        "costs-runs": "/costs/runs?agent=support",
        "costs-empty": "/costs?agent=nobody",
    }


async def _record_outage(client: Client) -> None:
    """Failed attempts of the last hours, and a call that holds its run up."""
    store, now = await client.store(), datetime.now(UTC)
    run_id = build_run_id("researcher-1000", "acme")
    for hours, source, status, error_type, count in (
        *((7, "openai:gpt-5", 503, "ProviderServerError", 4), (6, "openai:gpt-5", 503, "ProviderServerError", 19)),
        *((6, "openai:gpt-5-mini", 401, "AuthenticationError", 2), (0, "openai:gpt-5", 429, "RateLimitError", 3)),
    ):
        at, waits = timestamp(now - timedelta(hours=hours)), None if status == 401 else 3600.0
        error = ErrorEvent(
            at=at, activity="perdure.model", retry_in=waits, source=source, status=status, error_type=error_type,
            error="Please try again later.",
        )  # fmt: skip
        events = [NewEvent(error, key=f"{at}/{source}/{number}") for number in range(count)]
        events.append(NewEvent(RunEvent(at=at, state="held_up", failing_call="perdure.model")))
        await store.append(EventBatch(run_id, events, agent="researcher", tenant="acme"))


async def _record_usage(client: Client) -> None:
    """A month of calls, fewer at weekends, with a day of outage and a model without a price."""
    dice, clock = random.Random(7), [""]
    store = SqliteStore(str(client.store_url), now=lambda: clock[0])
    await store.open()
    today = datetime.now(UTC).replace(hour=0, minute=0)
    for days in range(30):
        day = today - timedelta(days=days)
        clock[0] = timestamp(day)
        for number in range(3 if day.weekday() > 4 else 12):
            agent, provider, model, cost, seconds = dice.choice(_MODELS)
            tenant = dice.choice(["acme", "acme", "globex", "initech", None])
            run = build_run_id(f"{agent}-{1000 + 7 * days + number}", tenant)
            size = dice.randint(2_000, 24_000)
            status = "failed" if (days == 6 and number % 3 == 0) or dice.random() < 0.02 else "completed"
            usage = UsageRow(
                *(run, agent, "call", provider, model, status, 1, size, size // 14, size // 3),
                cost_usd=None if cost is None else cost * size / 4_000,
                milliseconds=int(1000 * seconds * dice.uniform(0.5, 2.0)),
                tenant=tenant,
            )
            outcome = Outcome(f"sample/{days}/{number}", "model", b"{}")
            row = RunRow(run, agent, "s", None, "completed", tenant=tenant)
            await store.commit(Commit(outcome=outcome, usage=usage, run=row))
    await store.close()
