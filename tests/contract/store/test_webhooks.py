"""What every store promises about webhooks: subscriptions, the log of deliveries, and the outbox rows of events."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from perdure.ports.outbox import WriteOptions
from perdure.ports.store import Store
from perdure.ports.webhooks import WEBHOOK_TARGET, DeliveryRow, WebhookRow
from perdure.types.events import (
    ApprovalDecided,
    ApprovalRequested,
    ModelCompleted,
    ModelDelta,
    QuestionAsked,
    RunEvent,
    TurnEvent,
)
from tests.contract.store.test_surfaces import T1, T2, T3, batch, requested

WEBHOOK = WebhookRow(
    "w1", "https://h.example/x", "run.* turn.*", None, "acme", None, True, None, None, "[]", "k1", "ann", T1, T1
)
DELIVERY = DeliveryRow(
    *("d1", "w1", "msg_1", "run.completed", "c", 2**40, "c/1", "https://h.example/x", 1, "failed", 500, "no", "oops"),
    *(12, T2, T1),
)


async def take(store: Store) -> list[tuple[str, str]]:
    rows = await store.take_outbox("me", target=WEBHOOK_TARGET, lease_seconds=60, limit=100)
    return [(row.context_id, row.type) for row in rows]


async def test_a_subscription_is_kept_changed_and_deleted(store: Store):
    assert await store.create_webhook(WEBHOOK)
    assert not await store.create_webhook(replace(WEBHOOK, url="https://other.example")), "the id is taken"
    assert await store.get_webhook("w1") == WEBHOOK
    changed = replace(WEBHOOK, url="https://i.example", enabled=False, disabled_reason="a test", updated_at=T2)
    assert await store.update_webhook(changed, T1)
    assert not await store.update_webhook(replace(changed, url="https://lost.example"), T1), "it was changed since"
    assert await store.get_webhook("w1") == changed
    await store.record_delivery(DELIVERY)
    assert await store.delete_webhook("w1")
    assert not await store.delete_webhook("w1")
    assert (await store.get_webhook("w1"), await store.list_deliveries("w1")) == (None, [])


async def test_subscriptions_are_listed_in_pages(store: Store):
    rows = [replace(WEBHOOK, id=f"w{n}", created_at=T2 if n < 3 else T1, enabled=n != 2) for n in range(5)]
    for row in rows:
        await store.create_webhook(row)
    assert [row.id for row in await store.list_webhooks()] == ["w3", "w4", "w0", "w1", "w2"]
    assert [row.id for row in await store.list_webhooks(after=(T1, "w4"), limit=2)] == ["w0", "w1"]
    assert [row.id for row in await store.list_webhooks(enabled=False)] == ["w2"]
    assert [row.id for row in await store.list_webhooks(enabled=True, after=(T2, "w0"))] == ["w1"]


async def test_of_many_who_disable_one_does(store: Store):
    await store.create_webhook(WEBHOOK)
    done = await asyncio.gather(*(store.disable_webhook("w1", f"reason {n}", T2) for n in range(5)))
    row = await store.get_webhook("w1")
    assert (sorted(done), row and row.enabled) == ([False] * 4 + [True], False)
    assert row
    assert (row.disabled_reason, row.updated_at) == (f"reason {done.index(True)}", T2)
    assert not await store.disable_webhook("unknown", "x", T2)


async def test_failures_count_from_the_first_after_a_success(store: Store):
    await store.create_webhook(WEBHOOK)
    assert [await store.note_webhook_failure("w1", at) for at in (T1, T2)] == [T1, T1]
    await store.note_webhook_success("w1")
    assert await store.note_webhook_failure("w1", T3) == T3
    row = await store.get_webhook("w1")
    assert row == replace(WEBHOOK, failing_since=T3), "nothing else has changed"
    assert await store.note_webhook_failure("unknown", T1) is None
    await store.note_webhook_success("unknown")


async def test_the_log_is_listed_newest_first_and_does_not_grow_for_ever(store: Store):
    rows = [replace(DELIVERY, id=f"d{n}", created_at=at) for n, at in enumerate((T1, T2, T2, T3))]
    for row in [*rows, replace(DELIVERY, id="other", webhook_id="w2")]:
        await store.record_delivery(row)
        await store.record_delivery(row)
    assert await store.get_delivery("d1") == rows[1]
    assert await store.get_delivery("none") is None
    assert await store.list_deliveries("w1") == rows[::-1]
    assert [row.id for row in await store.list_deliveries("w1", after=(T2, "d2"), limit=1)] == ["d1"]
    assert [await store.delete_old_deliveries(T3, limit=3), await store.delete_old_deliveries(T3)] == [3, 1]
    assert await store.list_deliveries("w1") == [rows[3]]


async def test_what_became_of_each_message(store: Store):
    """The last attempt of a message says so; one before it that was to be repeated does not."""
    done = replace(DELIVERY, outcome="succeeded", next_at=None)
    rows = [
        replace(DELIVERY, id="a1", message_id="a"),
        replace(done, id="a2", message_id="a", created_at=T2),
        replace(DELIVERY, id="b1", message_id="b", created_at=T2),
        replace(DELIVERY, id="c1", message_id="c", outcome="gone", next_at=None, created_at=T2),
        replace(done, id="d1", message_id="d", created_at=T3),
        replace(DELIVERY, id="d2", message_id="d", outcome="stopped", next_at=None, created_at=T3),
    ]
    for row in [*rows, replace(done, id="z", message_id="z", webhook_id="w2")]:
        await store.record_delivery(row)

    async def ids(**filters: object) -> list[str]:
        return [row.id for row in await store.list_deliveries("w1", **filters)]  # type: ignore[arg-type]

    assert await ids(latest=True) == ["d2", "c1", "b1", "a2"]
    assert await ids(latest=True, state="delivered") == ["a2"]
    assert await ids(latest=True, state="retrying") == ["b1"]
    assert await ids(latest=True, state="failed") == ["d2", "c1"]
    assert await ids(state="delivered") == ["d1", "a2"]
    assert await ids(message_id="a") == ["a2", "a1"]
    assert await ids(latest=True, after=(T2, "c1"), limit=1) == ["b1"]
    assert [row.state for row in rows] == ["retrying", "delivered", "retrying", "failed", "delivered", "failed"]


async def test_events_get_rows_only_while_a_subscription_is_enabled(store: Store):
    await store.append(batch(RunEvent(state="started")))
    assert (await take(store), await store.find_outbox_targets([WEBHOOK_TARGET])) == ([], set())
    await store.create_webhook(WEBHOOK)
    await store.append(batch(RunEvent(state="idle")))
    assert await store.find_outbox_targets([WEBHOOK_TARGET, "mail"]) == {WEBHOOK_TARGET}
    assert await take(store) == [("c", "run")]
    await store.disable_webhook("w1", "a test", T2)
    await store.append(batch(RunEvent(state="completed")))
    assert await take(store) == []


async def test_events_of_other_types_get_none(store: Store):
    await store.create_webhook(WEBHOOK)
    await store.append(batch(ModelDelta(text="a"), ModelCompleted(text="a"), requested(), TurnEvent(state="started")))
    await store.append(batch(QuestionAsked(call_id="q", name="ask"), of="c/1"))
    await store.append(batch(ApprovalDecided(call_id="a", name="refund", decision="denied")))
    taken = [("c", "approval.requested"), ("c", "turn"), ("c/1", "question.asked"), ("c", "approval.decided")]
    assert await take(store) == taken


async def test_other_targets_are_as_before(store: Store):
    store.write_options = WriteOptions(outbox={"mail": ["run"], "all": ["*"]})
    await store.append(batch(RunEvent(state="started"), ApprovalRequested(call_id="a", name="refund")))
    assert [len(await store.take_outbox("me", target=name, lease_seconds=9)) for name in ("mail", "all")] == [1, 2]
    assert await take(store) == []


async def test_sealed_secrets_are_counted_under_their_key(store: Store):
    await store.create_webhook(WEBHOOK)
    await store.create_webhook(replace(WEBHOOK, id="w2", key_id=None))
    assert (await store.count_keys())["k1"] == {"webhooks": 1}
