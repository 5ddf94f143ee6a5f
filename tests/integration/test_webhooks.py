"""Webhooks on a real server: events reach endpoints once, whatever dies, and endpoints that fail are disabled."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import pytest
from temporalio import activity
from temporalio.client import WorkflowExecutionStatus
from temporalio.exceptions import ApplicationError

from perdure import Agent, Client, Run, tool
from perdure.client.webhook_subscriptions import build_delivery_id
from perdure.errors import InvalidInputError, ProviderServerError, StoreError, WebhookNotFoundError
from perdure.ports.failures import HELD_UP_ATTEMPTS
from perdure.ports.store import EventBatch, NewEvent, Store
from perdure.ports.times import timestamp
from perdure.ports.webhooks import WEBHOOK_TARGET, WebhookRow
from perdure.store.sqlite import SqliteStore
from perdure.testing import MemoryStore, ScriptedProvider, call
from perdure.types.approvals import WaitingCall
from perdure.types.events import RunEvent
from perdure.types.run_ids import build_run_id
from perdure.worker import webhook_delivery as deliveries
from perdure.worker.webhook_delivery import RunEndRecorder, WebhookActivity, WebhookDispatcher
from tests.support.engine import Engine
from tests.support.wait import eventually
from tests.support.webhooks import Endpoint, serve_endpoint, status

pytestmark = pytest.mark.server


@tool(needs_approval=True)
def refund(amount: int) -> str:
    """Refund."""
    return f"refunded {amount}"


def an_agent(*replies: Any, name: str = "support") -> Agent:
    return Agent(name, ScriptedProvider(list(replies) or ["Hello."]), tools=[refund])


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Loopback is allowed, and neither retries nor looks at the outbox are waited for."""
    monkeypatch.setenv("PERDURE_WEBHOOK_ALLOW", "127.0.0.1")
    monkeypatch.setattr(deliveries, "POLL_SECONDS", 0.05)
    monkeypatch.setattr(deliveries, "RETRY_SECONDS", (0.01,) * 9)


@pytest.fixture
async def endpoint() -> AsyncIterator[Endpoint]:
    async with serve_endpoint() as endpoint:
        yield endpoint


async def read_log(client: Client, name: str) -> list[tuple[str, int, str]]:
    """Type, attempt and outcome of each attempt, the oldest first."""
    page = await client.webhooks.deliveries(name)
    return [(row.type, row.attempt, row.outcome) for row in reversed(page.deliveries)]


async def test_an_approval_reaches_its_endpoint(engine: Engine, endpoint: Endpoint, monkeypatch) -> None:
    monkeypatch.setenv("PERDURE_PUBLIC_URL", "https://perdure.example/")
    secret = "planted-secret-3141"
    async with engine.served(an_agent([call("refund", amount=3)], "Done.")) as client:
        webhook = await client.webhooks.create(endpoint.url)
        context = {"card": secret}
        run = await client.start(
            "support", "Go.", id=f"order 7 {engine.task_queue}", context=context, tenant="acme", user="ana"
        )
        await eventually(lambda: "approval.requested" in endpoint.types)
        [asked] = [one for one in endpoint.requests if one.json["type"] == "approval.requested"]
        data = asked.json["data"]
        assert (data["run_id"], data["agent"], data["tenant"], data["user"]) == (
            run.id,
            "support",
            "acme",
            "ana",
        )
        assert (data["tool"], data["arguments"]) == ("refund", {"amount": 3})
        assert data["decision_url"] == (
            f"https://perdure.example/decide/%40acme%2Forder%207%20{engine.task_queue}/{data['call_id']}?hash={data['hash']}"
        )
        await run.approve(data["call_id"], hash=data["hash"])
        await run.result()
        await eventually(lambda: "run.completed" in endpoint.types)
        assert {"run.started", "turn.started", "approval.decided", "turn.completed"} <= set(endpoint.types)
        assert [one.json["data"]["tenant"] for one in endpoint.requests] == ["acme"] * len(endpoint.requests)
        assert all(one.is_signed(str(webhook.secret)) for one in endpoint.requests)
        assert len({one.id for one in endpoint.requests}) == len(endpoint.requests), "each event once"
        assert secret.encode() not in b"".join(one.body for one in endpoint.requests)
        first = endpoint.requests[0].headers
        assert (first["content-type"], first["user-agent"][:8]) == ("application/json", "perdure/")
        listed = [one.id for one in await client.list(limit=1000)]
        assert run.id in listed
        assert not [one for one in listed if one.startswith("perdure-webhook/")], "deliveries are no runs"
        assert not await (await client.store()).find_outbox_targets([WEBHOOK_TARGET])
        assert (await client.webhooks.get(webhook.id)).secret is None


async def test_an_outage_and_its_end_reach_the_endpoint(engine: Engine, endpoint: Endpoint) -> None:
    asked, over = 0, asyncio.Event()

    async def answer(_: Any) -> str:
        nonlocal asked
        asked += 1
        if asked <= HELD_UP_ATTEMPTS:
            raise ProviderServerError("it is down", status=503)
        await over.wait()
        return "Back."

    async with engine.served(Agent("support", ScriptedProvider(answer))) as client:
        await client.webhooks.create(endpoint.url, events=["run.held_up", "run.recovered"])
        run = await client.start("support", "Go.", id=f"ill-{engine.task_queue}")
        await eventually(lambda: "run.held_up" in endpoint.types, deadline=60)
        over.set()
        assert (await run.result()).content == "Back."
        await eventually(lambda: "run.recovered" in endpoint.types)
        assert endpoint.types == ["run.held_up", "run.recovered"]
        data = endpoint.requests[0].json["data"]
        assert (data["run_id"], data["agent"], data["error_type"]) == (run.id, "support", "ProviderServerError")
        assert (data["error"], data["failing_call"]) == ("it is down", "perdure.model")
        assert data["reason"].endswith("have failed in a row")


async def test_a_subscription_chooses(engine: Engine, endpoint: Endpoint) -> None:
    agents = [an_agent("Hi.", "Hi.", "Hi.", name=name) for name in ("support", "sales")]
    async with engine.served(*agents) as client:
        one, two, three = (f"{name}-{engine.task_queue}" for name in ("one", "two", "three"))
        one, three = build_run_id(one, "acme"), build_run_id(three, "zoo")
        wanted = {"agent": "sales"}, {"tenant": "acme"}, {"session": three}
        hooks = [
            await client.webhooks.create(f"{endpoint.url}/{n}", events=["run.completed"], **filters)
            for n, filters in enumerate(wanted)
        ]
        last = await client.webhooks.create(f"{endpoint.url}/all", events=["run.completed"])
        for agent, name, tenant in (("support", one, "acme"), ("sales", two, None), ("support", three, "zoo")):
            await (await client.start(agent, "Go.", id=name, tenant=tenant)).result()
        await eventually(lambda: len(endpoint.requests) == 6)
        got = {(got.target.rpartition("/")[2], got.json["data"]["run_id"]) for got in endpoint.requests}
        assert got == {("0", two), ("1", one), ("2", three), *(("all", name) for name in (one, two, three))}
        page = await client.webhooks.list(limit=3)
        rest = await client.webhooks.list(limit=3, after=page.cursor)
        assert [hook.id for hook in (*page.webhooks, *rest.webhooks)] == [*(hook.id for hook in hooks), last.id]
        assert rest.cursor is None


async def test_an_endpoint_that_fails_is_asked_again(engine: Engine, endpoint: Endpoint) -> None:
    answers = iter([status(500, "oops\x1b[31m"), status(302, location="http://10.0.0.1/"), status(200, "ok")])
    endpoint.answer = lambda request: next(answers)(request)
    async with engine.served(an_agent()) as client:
        webhook = await client.webhooks.create(endpoint.url)
        message_id = await client.webhooks.test(webhook.id)
        await eventually(lambda: len(endpoint.requests) == 3)

        async def log() -> bool:
            return await read_log(client, webhook.id) == [
                ("ping", 1, "failed"),
                ("ping", 2, "failed"),
                ("ping", 3, "succeeded"),
            ]

        await eventually(log)
        assert {one.id for one in endpoint.requests} == {message_id}
        rows = (await client.webhooks.deliveries(webhook.id)).deliveries
        assert [(row.status, row.answer) for row in rows] == [(200, "ok"), (302, ""), (500, "oops\x1b[31m")]
        assert [row.next_at is None for row in rows] == [True, False, False]

        async def recovered() -> bool:
            return (await client.webhooks.get(webhook.id)).failing_since is None

        await eventually(recovered)


async def test_an_outage_of_the_store_uses_up_no_attempt(engine: Engine, endpoint: Endpoint, monkeypatch) -> None:
    """The second failure of the endpoint waits as the second, however often the store failed before it."""
    answers = iter([status(500), status(500), status(200)])
    endpoint.answer = lambda request: next(answers)(request)
    monkeypatch.setattr(deliveries, "STORE_RETRY_SECONDS", (0.01, 0.02))
    get_webhook, outages = SqliteStore.get_webhook, 0

    async def fail_in_an_outage(store: SqliteStore, name: str) -> Any:
        nonlocal outages
        if activity.in_activity() and len(endpoint.requests) in (1, 2) and outages < 4 * len(endpoint.requests):
            outages += 1
            raise StoreError("the store is away")
        return await get_webhook(store, name)

    monkeypatch.setattr(SqliteStore, "get_webhook", fail_in_an_outage)
    async with engine.served(an_agent()) as client:
        webhook = await client.webhooks.create(endpoint.url)
        await client.webhooks.test(webhook.id)

        async def log() -> bool:
            return await read_log(client, webhook.id) == [
                ("ping", 1, "failed"),
                ("ping", 2, "failed"),
                ("ping", 3, "succeeded"),
            ]

        await eventually(log)
    assert outages == 8


async def test_the_last_attempt_fails_the_delivery(engine: Engine, endpoint: Endpoint, monkeypatch) -> None:
    monkeypatch.setattr(deliveries, "RETRY_SECONDS", (0.01, 0.01))
    endpoint.answer = status(500)
    async with engine.served(an_agent()) as client:
        webhook = await client.webhooks.create(endpoint.url, events=["run.completed"])
        run = await client.start("support", "Go.")
        await run.result()
        page = await eventually(lambda: _full(client, webhook.id, 3))
        assert [row.next_at is None for row in page] == [True, False, False]
        name = build_delivery_id(webhook.id, run.id, page[0].seq)

        async def failed() -> bool:
            described = await client.temporal.get_workflow_handle(name).describe()
            return described.status == WorkflowExecutionStatus.FAILED

        await eventually(failed)
        assert len(endpoint.requests) == 3
        endpoint.answer = status(204)
        again = await client.webhooks.send_again(page[0].id)
        await eventually(lambda: len(endpoint.requests) == 4)
        assert again == page[0].message_id == endpoint.requests[3].id
        assert endpoint.requests[3].body == endpoint.requests[0].body


async def _full(client: Client, name: str, count: int) -> Any:
    page = await client.webhooks.deliveries(name)
    return page.deliveries if len(page.deliveries) >= count else ()


async def test_gone_disables_and_pending_deliveries_stop(engine: Engine, endpoint: Endpoint, caplog) -> None:
    endpoint.answer = status(410)
    async with engine.served(an_agent("A.", "B.")) as client:
        webhook = await client.webhooks.create(endpoint.url)
        await client.webhooks.test(webhook.id)

        async def disabled() -> bool:
            return not (await client.webhooks.get(webhook.id)).enabled

        await eventually(disabled)
        assert (await client.webhooks.get(webhook.id)).disabled_reason == "the endpoint answered 410 Gone"
        assert "is disabled: the endpoint answered 410 Gone" in caplog.text
        await (await client.start("support", "Go.")).result()
        assert not await (await client.store()).find_outbox_targets([WEBHOOK_TARGET])
        with pytest.raises(InvalidInputError, match="410 Gone"):
            await client.webhooks.test(webhook.id)
        endpoint.answer = status(204)
        enabled = await client.webhooks.update(webhook.id, enabled=True)
        assert (enabled.enabled, enabled.disabled_reason) == (True, None)
        last = await client.start("support", "Go.")
        await last.result()
        await eventually(lambda: "run.completed" in endpoint.types)
        assert {one.json["data"].get("run_id", "") for one in endpoint.requests[1:]} == {last.id}


async def test_rotation_signs_with_both(engine: Engine, endpoint: Endpoint, monkeypatch) -> None:
    monkeypatch.setenv("PERDURE_ENCRYPTION_KEYS", "k1:" + "A" * 43 + "=")
    async with engine.served(an_agent()) as client:
        first = await client.webhooks.create(endpoint.url)
        second = await client.webhooks.rotate_secret(first.id)
        row = await (await client.store()).get_webhook(first.id)
        assert row
        assert (row.key_id, str(first.secret) in row.secrets) == ("k1", False)
        third = await client.webhooks.rotate_secret(first.id, keep=0)
        assert len({first.secret, second.secret, third.secret}) == 3
        await client.webhooks.test(first.id)
        await eventually(lambda: len(endpoint.requests) == 1)
        fourth = await client.webhooks.rotate_secret(first.id, keep="1h")
        await client.webhooks.test(first.id)
        await eventually(lambda: len(endpoint.requests) == 2)
        signed = [
            [request.is_signed(str(one.secret)) for one in (first, second, third, fourth)]
            for request in endpoint.requests
        ]
        assert signed == [[False, False, True, False], [False, False, True, True]]
        assert "whsec_" not in repr(fourth)


@pytest.mark.parametrize(
    "point",
    [
        "webhook.taken",
        "webhook.started",
        pytest.param("webhook.answered", marks=pytest.mark.slow),  # an attempt counts as lost after 5 s
    ],
)
async def test_a_killed_worker_loses_no_event(engine: Engine, endpoint: Endpoint, point: str) -> None:
    client = await engine.client()
    await client.store(create=True)
    env = {"PERDURE_WEBHOOK_ALLOW": "127.0.0.1", "TEST_WEBHOOK_LEASE": "0.2", "TEST_KILL_POINT": point}
    lost = await engine.process("webhooks", **env)
    webhook = await client.webhooks.create(endpoint.url, events=["approval.requested"])
    run = await client.start("support", "Go.")
    await lost.gone()
    await engine.process("webhooks", **env)
    await eventually(lambda: len(endpoint.requests) >= (2 if point == "webhook.answered" else 1), deadline=150)
    store = await client.store()

    async def empty() -> bool:
        return not await store.find_outbox_targets([WEBHOOK_TARGET])

    await eventually(empty)
    assert len({one.id for one in endpoint.requests}) == 1
    assert len({one.body for one in endpoint.requests}) == 1
    await eventually(lambda: _full(client, webhook.id, 1))
    pending = await eventually(partial(_find_pending, run))
    await run.approve(pending.call_id, hash=pending.hash)
    await run.result()


async def _find_pending(run: Run) -> WaitingCall | None:
    return next(iter((await run.status()).approvals), None)


@pytest.mark.slow
async def test_many_events_at_once(engine: Engine, endpoint: Endpoint) -> None:
    async with engine.served(an_agent()) as client:
        await client.webhooks.create(endpoint.url, events=["run.idle"])
        store = await client.store()
        names = [f"c{n}" for n in range(150)]
        for name in names:
            await store.append(EventBatch(name, [NewEvent(RunEvent(state="idle", at="2026-01-01T00:00:00Z"))]))
        await eventually(lambda: len(endpoint.requests) >= len(names), deadline=120)
        assert sorted(one.json["data"]["run_id"] for one in endpoint.requests) == sorted(names)
        assert len({one.id for one in endpoint.requests}) == len(names)


async def test_two_dispatchers_start_one_delivery(engine: Engine, endpoint: Endpoint) -> None:
    """The first is lost between start and delete, as far as the second can see."""
    async with engine.served(an_agent(), webhooks=False) as client:
        await client.webhooks.create(endpoint.url, events=["run.idle"])
        store = await client.store()
        await store.append(EventBatch("c", [NewEvent(RunEvent(state="idle"))]))
        first, second = (
            WebhookDispatcher(store, client.temporal, engine.task_queue, lease_seconds=0) for _ in range(2)
        )
        kept = store.delete_outbox
        store.delete_outbox = _delete_nothing  # type: ignore[method-assign]  # the process dies there
        assert await first.dispatch() == 1
        await eventually(lambda: len(endpoint.requests) == 1)
        store.delete_outbox = kept  # type: ignore[method-assign]
        assert await second.dispatch() == 1
        assert await second.dispatch() == 0
        await client.webhooks.create(endpoint.url, events=["run.failed"])
        await store.append(EventBatch("d", [NewEvent(RunEvent(state="idle"))]))
        assert await second.dispatch() == 1
        await eventually(lambda: len(endpoint.requests) == 2)
        assert [one.json["data"]["run_id"] for one in endpoint.requests] == ["c", "d"]


async def _delete_nothing(*_: Any) -> int:
    return 0


async def test_changes_and_refusals(engine: Engine, endpoint: Endpoint) -> None:
    client = await engine.client()
    await client.store(create=True)
    with pytest.raises(InvalidInputError, match="not public"):
        await client.webhooks.create("https://169.254.169.254/latest")
    for events in (["nothing"], [], [None], ["model.delta"], 3, ["run.*"] * 99):
        with pytest.raises(InvalidInputError):
            await client.webhooks.create(endpoint.url, events=events)  # type: ignore[arg-type]
    for wrong in ({"agent": ""}, {"tenant": "x" * 999}, {"session": "\0"}, {"secret": "x"}):
        with pytest.raises(InvalidInputError):
            await client.webhooks.create(endpoint.url, **wrong)
    webhook = await client.webhooks.create(endpoint.url, by="ana")
    changed = await client.webhooks.update(webhook.id, events=["run.failed"], enabled=False, by="bo")
    assert (changed.events, changed.enabled, changed.disabled_reason) == (("run.failed",), False, "disabled by bo")
    await asyncio.gather(*(client.webhooks.update(webhook.id, url=f"{endpoint.url}/{n}") for n in range(5)))
    await client.webhooks.delete(webhook.id)
    for act in (client.webhooks.get, client.webhooks.delete, client.webhooks.deliveries, client.webhooks.test):
        with pytest.raises(WebhookNotFoundError):
            await act(webhook.id)
    with pytest.raises(WebhookNotFoundError):
        await client.webhooks.send_again("none")
    with pytest.raises(InvalidInputError, match="cursor"):
        await client.webhooks.list(after="!")
    rows = await (await client.store()).list_audit(subject=webhook.id)
    verbs = [(row.verb, row.by) for row in reversed(rows)]
    assert verbs[:2] == [("webhook.create", "ana"), ("webhook.disable", "bo")]
    assert ("webhook.delete", "tests") in verbs


# --- the activity alone


async def run_attempt(store: Store, task: dict[str, Any], **options: Any) -> Any:
    from temporalio.testing import ActivityEnvironment

    return await ActivityEnvironment().run(WebhookActivity(store, **options).deliver, task)


async def test_five_days_of_failures_disable(engine: Engine, endpoint: Endpoint) -> None:
    endpoint.answer = status(500)
    client = await engine.client()
    store = await client.store(create=True)
    webhook = await client.webhooks.create(endpoint.url)
    task = {"webhook_id": webhook.id, "message_id": "msg_1", "type": "ping", "at": "2026-01-01T00:00:00Z"}
    now = datetime.now(UTC)
    for days in (0, 4.9):
        with pytest.raises(Exception, match="the endpoint answered 500"):
            await run_attempt(store, task, now=lambda days=days: now + timedelta(days=days))
    assert (await client.webhooks.get(webhook.id)).enabled
    await run_attempt(store, task, now=lambda: now + timedelta(days=5))
    found = await client.webhooks.get(webhook.id)
    assert (found.enabled, str(found.disabled_reason)[:31]) == (False, "every delivery has failed since")
    assert (await run_attempt(store, task))["outcome"] == "stopped"
    assert len(endpoint.requests) == 3


async def test_what_may_be_reached_is_kept_with_the_endpoint_and_the_same_for_all_workers(
    engine: Engine, endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = await engine.client()
    store = await client.store(create=True)
    monkeypatch.setenv("PERDURE_WEBHOOK_ALLOW", "127.0.0.0/8, elsewhere.example")
    webhook = await client.webhooks.create(endpoint.url)
    assert webhook.allowed == ("127.0.0.0/8",)
    monkeypatch.delenv("PERDURE_WEBHOOK_ALLOW")  # as of another worker
    await run_attempt(store, {"webhook_id": webhook.id, "message_id": "msg_1", "type": "ping"})
    assert len(endpoint.requests) == 1
    with pytest.raises(InvalidInputError, match="not public") as refused:
        await client.webhooks.update(webhook.id, url=f"{endpoint.url}/other")
    assert "PERDURE_WEBHOOK_ALLOW" in str(refused.value.hint)
    assert (await client.webhooks.get(webhook.id)).url == endpoint.url


async def test_an_endpoint_that_may_not_be_reached_fails_once(engine: Engine, endpoint: Endpoint) -> None:
    client = await engine.client()
    store = await client.store(create=True)
    webhook = await client.webhooks.create(endpoint.url)
    row = await store.get_webhook(webhook.id)
    assert row
    assert await store.update_webhook(replace(row, allowed="", updated_at="x"), row.updated_at)
    with pytest.raises(ApplicationError, match="which is not public") as failed:
        await run_attempt(store, {"webhook_id": webhook.id, "message_id": "msg_1", "type": "ping"})
    assert (failed.value.non_retryable, failed.value.next_retry_delay) == (True, None)
    [attempt] = (await client.webhooks.deliveries(webhook.id)).deliveries
    assert (attempt.state, attempt.next_at, endpoint.requests) == ("failed", None, [])


async def test_a_host_that_moves_to_a_private_address_is_not_called(engine: Engine, endpoint: Endpoint) -> None:
    """The name is resolved once for an attempt, and the connection goes to the address that was checked."""
    client = await engine.client()
    store = await client.store(create=True)
    webhook = await client.webhooks.create(endpoint.url)
    row = await store.get_webhook(webhook.id)
    assert row
    port = endpoint.url.split(":")[2].split("/")[0]
    assert row.allowed == "127.0.0.1/32"
    moved = replace(row, url=f"https://rebind.example:{port}/", allowed="", updated_at="x")
    assert await store.update_webhook(moved, row.updated_at)
    asked: list[str] = []

    async def rebinding(host: str, _port: int) -> list[str]:
        asked.append(host)
        return ["93.184.216.34"] if len(asked) > 1 else ["127.0.0.1"]

    task = {"webhook_id": webhook.id, "message_id": "msg_1", "type": "ping"}
    with pytest.raises(Exception, match=r"rebind.example has the address 127\.0\.0\.1, which is not public"):
        await run_attempt(store, task, resolve=rebinding)
    assert (asked, endpoint.requests) == (["rebind.example"], [])
    plain = replace(moved, url=f"http://rebind.example:{port}/x", allowed="rebind.example", updated_at="y")
    assert await store.update_webhook(plain, "x")
    asked.clear()
    await run_attempt(store, task, resolve=rebinding)
    assert asked == ["rebind.example"], "no second look-up, that could have another answer"
    assert endpoint.requests[0].headers["host"] == f"rebind.example:{port}"


async def test_a_deleted_event_ends_its_delivery(engine: Engine, endpoint: Endpoint) -> None:
    client = await engine.client()
    store = await client.store(create=True)
    webhook = await client.webhooks.create(endpoint.url)
    task = {
        "webhook_id": webhook.id,
        "message_id": "m",
        "type": "run.failed",
        "stream": "c",
        "seq": 1,
        "context_id": "c",
    }
    with pytest.raises(Exception, match="the event was deleted"):
        await run_attempt(store, task)
    assert (await client.webhooks.get(webhook.id)).failing_since is None
    assert endpoint.requests == []


async def test_the_end_of_a_session_needs_no_reader(engine: Engine, endpoint: Endpoint, monkeypatch) -> None:
    monkeypatch.setattr(deliveries, "END_SCAN_SECONDS", 0.1)
    async with engine.served(an_agent("Hello.", "Hello.", "Hello.")) as client:
        await client.webhooks.create(endpoint.url, events=["run.*"])
        closed, stopped, silent = [
            await client.start("support", text, id=f"{name}-{engine.task_queue}", mode="session")
            for name, text in (("closed", "Hi."), ("stopped", "Hi."), ("silent", None))
        ]
        for run in (closed, stopped):
            await run.turn().result()
        await closed.close()
        for run in (stopped, silent):
            await run.handle.terminate()

        def ends() -> set[tuple[str, str]]:
            events = [one.json for one in endpoint.requests]
            ended = [event for event in events if event["type"] not in ("run.started", "run.idle")]
            return {(event["data"]["run_id"], event["type"]) for event in ended}

        expected = {(closed.id, "run.completed"), (stopped.id, "run.terminated"), (silent.id, "run.terminated")}
        await eventually(lambda: ends() == expected)
        assert len({one.id for one in endpoint.requests}) == len(endpoint.requests), "each event once"


async def test_one_worker_looks_for_ends_at_a_time(engine: Engine, monkeypatch) -> None:
    asked: list[str] = []

    async def list_none(client: Any, query: str) -> AsyncIterator[Any]:
        asked.append(query)
        for _ in ():
            yield

    monkeypatch.setattr(deliveries, "list_executions", list_none)
    clock = datetime.now(UTC)
    store = MemoryStore(now=lambda: timestamp(clock))
    client = Client(await engine.temporal())
    first, second, third = (RunEndRecorder(store, client, now=lambda: clock) for _ in range(3))
    await first.scan()
    assert asked == [], "nothing is looked for without a webhook"
    at = timestamp(clock)
    await store.create_webhook(
        WebhookRow("wh", "https://x", "run.*", None, None, None, True, None, None, "[]", None, "ada", at, at)
    )
    clock += timedelta(minutes=1)
    for recorder in (first, second, third):
        await recorder.scan()
    assert len(asked) == 1
    clock += timedelta(minutes=1)
    await third.scan()
    assert len(asked) == 2
    begins = [datetime.fromisoformat(query.split("'")[-2]) for query in asked]
    assert begins[1] - begins[0] == timedelta(seconds=30), "it goes on where the first has stopped, and 30 s before"
