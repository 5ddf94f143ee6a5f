"""Delivers webhooks: a worker takes events from the outbox, starts a workflow for each subscription, and runs the
attempts as activities. docs/decisions/041-webhooks.md."""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import random
import ssl
import time
import uuid
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime, timedelta
from typing import Any

from temporalio import activity
from temporalio.client import Client as TemporalClient
from temporalio.client import WorkflowExecution
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError

from .. import _config as config
from .._webhook_wire import (
    PING,
    REQUEST_SECONDS,
    AllowList,
    Answer,
    EndpointForbiddenError,
    Resolve,
    WebhookTask,
    build_event_body,
    build_ping_body,
    build_webhook_headers,
    find_addresses,
    get_webhook_type,
    matches_types,
    parse_webhook_url,
    post_webhook,
    resolve_host,
)
from ..calls.heartbeat import Heartbeat, get_attempt_values
from ..client.client import Client
from ..client.deferred_decisions import DecisionSender
from ..client.follow import record_run_end
from ..client.pages import gather_bounded
from ..client.visibility import RUNS_QUERY, list_executions
from ..client.webhook_subscriptions import build_delivery_id, build_message_id, label_task, open_secrets, start_delivery
from ..errors import InvalidInputError, RunNotFoundError, ServerUnreachableError, StoreError, StoreMismatchError
from ..ports.outbox import OutboxRow
from ..ports.store import Store
from ..ports.test_seams import reach_point
from ..ports.times import add_seconds, timestamp
from ..ports.webhooks import WEBHOOK_TARGET, DeliveryRow, WebhookRow
from ..types.events import Event, RunEvent, TurnEvent, decode_event
from ..types.interface import LABELS
from ..types.messages import clean_text
from ..workflows.webhook import WEBHOOK_ACTIVITY

logger = logging.getLogger("perdure.worker.webhook_delivery")

MINUTE, HOUR = 60.0, 3600.0
RETRY_SECONDS: tuple[float, ...] = (
    *(5, 5 * MINUTE, 30 * MINUTE, 2 * HOUR, 5 * HOUR, 10 * HOUR, 14 * HOUR, 20 * HOUR, 24 * HOUR),
)
"""Seconds before each attempt but the first: Standard Webhooks' schedule."""
STORE_RETRY_SECONDS = 5.0, 15.0
"""Least and most seconds until an attempt that did not get as far as the endpoint is made again."""
_FAILURES_KEY = "failed_deliveries"
"""Name of the count of failed deliveries in the heartbeats, which Temporal keeps for the next attempt."""
DISABLE_AFTER = timedelta(days=5)
"""A subscription all of whose deliveries have failed for this time is disabled."""
_ERROR_CHARS = 300


async def read_event(store: Store, stream: str, seq: int, context_id: str) -> Event | None:
    """Read the event of that number; None if it was deleted, or is of a newer perdure."""
    for row in await store.read_events(stream, after=seq - 1, limit=1):
        if row.seq == seq:
            return decode_event(row.child or context_id, seq, row.task_id, row.type, row.body, row.spans, row.path)
    return None


# ---
# An attempt: the activity.


class WebhookActivity:
    """Delivers one event to one subscription. ``now`` and ``resolve`` are replaced in tests."""

    def __init__(
        self,
        store: Store,
        *,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        resolve: Resolve = resolve_host,
    ) -> None:
        self._store = store
        self._now = now
        self._resolve = resolve

    @activity.defn(name=WEBHOOK_ACTIVITY)
    async def deliver(self, raw: dict[str, Any]) -> dict[str, Any]:
        """Make an attempt. Fails with the delay until the next one, or for good after the last."""
        async with Heartbeat():
            try:
                return await self._deliver(WebhookTask.model_validate(raw))
            except StoreError as error:  # nothing was sent: this is no attempt of the delivery
                raise ApplicationError(
                    f"{type(error).__name__}: {error.message}",
                    type=type(error).__name__,
                    next_retry_delay=timedelta(seconds=random.uniform(*STORE_RETRY_SECONDS)),  # noqa: S311  # no secret
                ) from None

    async def _deliver(self, task: WebhookTask) -> dict[str, Any]:
        # Temporal counts its own attempts, and among them those that were lost to the store or with a worker.
        attempt = get_attempt_values().get(_FAILURES_KEY, 0) + 1
        webhook = await self._store.get_webhook(task.webhook_id)
        if webhook is None:
            return {"outcome": "stopped", "error": "the subscription was deleted"}
        started_at, started = self._now(), time.monotonic()
        answer, error, is_final = await self._attempt(webhook, task, started_at)
        reach_point("webhook.answered")
        outcome = self._judge(answer)
        if error is not None and answer is None and not webhook.enabled:
            outcome = "stopped"
        delay = None
        if outcome == "failed" and attempt <= len(RETRY_SECONDS) and not is_final:
            delay = max(RETRY_SECONDS[attempt - 1], (answer.retry_after if answer else None) or 0.0)
        row = DeliveryRow(
            id=uuid.uuid4().hex,
            webhook_id=webhook.id,
            message_id=task.message_id,
            type=task.type,
            stream=task.stream,
            seq=task.seq,
            context_id=task.context_id,
            url=webhook.url,
            attempt=attempt,
            outcome=outcome,
            status=answer.status if answer else None,
            error=error and clean_text(error)[:_ERROR_CHARS],
            answer=answer.text if answer else None,
            milliseconds=int((time.monotonic() - started) * 1000),
            next_at=None if delay is None else add_seconds(timestamp(self._now()), delay),
            created_at=timestamp(started_at),
        )
        if outcome == "failed":
            get_attempt_values().set(_FAILURES_KEY, attempt)
        is_disabled = await self._record(webhook, row)
        if outcome != "failed" or is_disabled:
            return {"outcome": outcome, "status": row.status, "error": row.error}
        raise ApplicationError(
            row.error or "failed",
            type="WebhookFailed",
            non_retryable=delay is None,
            next_retry_delay=None if delay is None else timedelta(seconds=delay),
        )

    async def _attempt(
        self, webhook: WebhookRow, task: WebhookTask, now: datetime
    ) -> tuple[Answer | None, str | None, bool]:
        """Send the request, and return the answer, or why there is none or it is not a success, and whether that stays
        so: the event was deleted, or the endpoint is one that this webhook may not reach."""
        if not webhook.enabled:
            return None, f"the subscription is disabled: {webhook.disabled_reason}", False
        try:
            body = await self._build_body(task)
            if body is None:
                return None, _DELETED, True
            headers = build_webhook_headers(open_secrets(webhook, timestamp(now)), task.message_id, now, body)
            async with asyncio.timeout(REQUEST_SECONDS):
                endpoint = parse_webhook_url(webhook.url)
                addresses = await find_addresses(endpoint, AllowList.parse(webhook.allowed), self._resolve)
                answer = await post_webhook(endpoint, addresses, headers, body)
        except InvalidInputError as error:
            return None, error.message, isinstance(error, EndpointForbiddenError)
        except TimeoutError:
            return None, f"the endpoint did not answer within {REQUEST_SECONDS:g} s", False
        except ssl.SSLError as error:
            return None, f"TLS: {error.reason or error}", False
        except (OSError, ValueError) as error:
            return None, f"{type(error).__name__}: {error}", False
        return answer, None if 200 <= answer.status < 300 else f"the endpoint answered {answer.status}", False

    async def _build_body(self, task: WebhookTask) -> bytes | None:
        if task.type == PING:
            return build_ping_body(task)
        event = await read_event(self._store, task.stream, task.seq, task.context_id)
        return None if event is None else build_event_body(event, task, config.get_public_url())

    @staticmethod
    def _judge(answer: Answer | None) -> str:
        if answer is None:
            return "failed"
        return "succeeded" if 200 <= answer.status < 300 else "gone" if answer.status == 410 else "failed"

    async def _record(self, webhook: WebhookRow, row: DeliveryRow) -> bool:
        """Record the attempt; true if the subscription is disabled for it. A store that fails changes no outcome: the
        endpoint has the event."""
        now = timestamp(self._now())
        try:
            await self._store.record_delivery(row)
            if row.outcome == "succeeded":
                await self._store.note_webhook_success(webhook.id)
            elif row.outcome == "gone":
                return await self._disable(webhook, "the endpoint answered 410 Gone", now)
            elif row.outcome == "failed" and row.error != _DELETED:
                since = await self._store.note_webhook_failure(webhook.id, now)
                if since is not None and add_seconds(since, DISABLE_AFTER.total_seconds()) <= now:
                    reason = f"every delivery has failed since {since[:19].replace('T', ' ')} UTC; last: {row.error}"
                    return await self._disable(webhook, reason, now)
        except StoreError as error:
            logger.warning("attempt %d of %s is not in the log: %s", row.attempt, row.message_id, error.message)
        return False

    async def _disable(self, webhook: WebhookRow, reason: str, now: str) -> bool:
        if await self._store.disable_webhook(webhook.id, reason, now):
            logger.warning("webhook %s to %s is disabled: %s", webhook.id, webhook.url.partition("?")[0], reason)
        return True


_DELETED = "the event was deleted from the store"

# ---
# From the outbox to workflows.


POLL_SECONDS = 1.0
"""Seconds between two looks at the outbox."""
LEASE_SECONDS = 15.0
"""Seconds after which another worker takes the events of one that was lost. A worker that is slower starts no delivery
twice: the second start is refused."""
BATCH = 100
KEEP_LOG = timedelta(days=30)
"""How long attempts stay in the log."""
_CLEAN_SECONDS = 3600.0
_PARALLEL_STARTS = 10
_END_TYPES = ("run.completed", "run.failed", "run.cancelled", "run.terminated", "run.timed_out")
_ENDED_STATUSES = ("completed", "failed", "cancelled")
_END_CHECKS, _END_CHECK_SECONDS = 50, 0.1
"""Looks at a run that is about to end, and the seconds between two."""
_WEBHOOK_PAGE = 500


async def _read_webhooks(store: Store) -> list[WebhookRow]:
    """Read the enabled subscriptions."""
    found: list[WebhookRow] = []
    while page := await store.list_webhooks(
        enabled=True, after=(found[-1].created_at, found[-1].id) if found else None, limit=_WEBHOOK_PAGE
    ):
        found += page
    return found


def _want_ends(webhooks: Sequence[WebhookRow]) -> bool:
    """Whether one of the subscriptions wants an event that a run may end with."""
    return any(matches_types(one.events.split(), name) for one in webhooks for name in _END_TYPES)


class WebhookDispatcher:
    """Takes events from the outbox, starts a delivery for each subscription that they match, and deletes them then."""

    def __init__(
        self, store: Store, temporal: TemporalClient, task_queue: str, *, lease_seconds: float | None = None
    ) -> None:
        self._store = store
        self._temporal = temporal
        self._client = Client(temporal, task_queue=task_queue)
        self._task_queue = task_queue
        self._lease_seconds = LEASE_SECONDS if lease_seconds is None else lease_seconds
        self._owner = uuid.uuid4().hex
        self._slots = asyncio.Semaphore(_PARALLEL_STARTS)

    async def run(self) -> None:
        """Dispatch until cancelled. Failures are logged once, and tried again."""
        problem, clean_at = "", time.monotonic()
        while True:
            taken = 0
            try:
                taken = await self.dispatch()
                if time.monotonic() >= clean_at:
                    clean_at = time.monotonic() + _CLEAN_SECONDS
                    await self.clean_log()
                problem = ""
            except Exception as error:  # the outbox keeps what was not started
                text = f"{type(error).__name__}: {error}"
                if text != problem:
                    problem = text
                    logger.warning("webhooks are not delivered at the moment: %s", text)
            if taken < BATCH:
                await asyncio.sleep(POLL_SECONDS)

    async def clean_log(self) -> None:
        """Delete old attempts from the log."""
        before = timestamp(datetime.now(UTC) - KEEP_LOG)
        while await self._store.delete_old_deliveries(before) >= 1000:
            pass

    async def dispatch(self) -> int:
        """Start the deliveries of a batch of events, and return how many events it had."""
        if not await self._store.find_outbox_targets([WEBHOOK_TARGET]):
            return 0
        rows = await self._store.take_outbox(
            self._owner, target=WEBHOOK_TARGET, lease_seconds=self._lease_seconds, limit=BATCH
        )
        if not rows:
            return 0
        reach_point("webhook.taken")
        webhooks = await _read_webhooks(self._store)
        results = await asyncio.gather(*(self._start(row, webhooks) for row in rows), return_exceptions=True)
        reach_point("webhook.started")
        done = [row for row, result in zip(rows, results, strict=True) if result is None]
        await self._store.delete_outbox(self._owner, done)
        for failure in filter(None, results):
            raise failure
        return len(rows)

    async def _start(self, row: OutboxRow, webhooks: Sequence[WebhookRow]) -> None:
        """Start the deliveries of an event; its id in Temporal makes a second start one without effect."""
        async with self._slots:
            event = await self._read_event(row)
            if event is None:
                return  # deleted, with its run
            if isinstance(event, TurnEvent) and event.state != "started":
                await self._record_end(row, webhooks)
            name = get_webhook_type(event)
            due = [one for one in webhooks if matches_types(one.events.split(), name) and _is_of_session(one, row)]
            if not due:
                return
            task = WebhookTask(
                webhook_id="", message_id="", type=name, stream=row.stream, seq=row.seq, context_id=row.context_id
            )
            task = await self._label(task, event)
            for webhook in due:
                if webhook.agent not in (None, task.agent) or webhook.tenant not in (None, task.tenant):
                    continue
                message_id = build_message_id(webhook.id, row.stream, row.seq)
                own = task.model_copy(update={"webhook_id": webhook.id, "message_id": message_id})
                workflow_id = build_delivery_id(webhook.id, row.stream, row.seq)
                await start_delivery(self._temporal, self._task_queue, workflow_id, own)

    async def _record_end(self, row: OutboxRow, webhooks: Sequence[WebhookRow]) -> None:
        """Record the end of a run whose last turn has ended, as its first reader does; it has no other event.

        Raises ``StoreError`` if the run has not ended yet: then the row is taken again after its lease.
        """
        if not _want_ends(webhooks):
            return
        run = await self._store.get_run(row.context_id)
        if run is None or run.status not in _ENDED_STATUSES:
            return  # a session, whose end RunEndRecorder finds
        handle = self._client.run(row.context_id)
        with suppress(RunNotFoundError):  # past Temporal's retention, or its store was moved
            for _ in range(_END_CHECKS):
                if (await handle.describe()).close_time is not None:
                    await record_run_end(handle, self._store)
                    return
                await asyncio.sleep(_END_CHECK_SECONDS)
            raise StoreError(f"run {row.context_id} has not ended yet")

    async def _read_event(self, row: OutboxRow) -> Event | None:
        try:
            return await read_event(self._store, row.stream, row.seq, row.context_id)
        except ValueError:  # pydantic's too: altered by hand
            logger.exception("event %d of %s cannot be read, and is not delivered", row.seq, row.stream)
            return None

    async def _label(self, task: WebhookTask, event: Event) -> WebhookTask:
        """Add whose run it is: from the store, which has it from the first reply on, else from Temporal."""
        if isinstance(event, RunEvent) and event.agent:
            task = task.model_copy(update={"agent": event.agent})
        task = await label_task(self._store, task)
        if task.agent is not None and task.tenant is not None:
            return task
        if await self._store.get_run(task.context_id) is not None:
            return task
        try:
            memo = await (await self._temporal.get_workflow_handle(task.context_id).describe()).memo()
        except RPCError:  # it is gone, or Temporal does not answer: then the start fails too
            return task
        found = {name: memo.get(name) for name in ("agent", *LABELS) if isinstance(memo.get(name), str)}
        return task.model_copy(update={name: value for name, value in found.items() if getattr(task, name) is None})


def _is_of_session(webhook: WebhookRow, row: OutboxRow) -> bool:
    """Whether the event is of the run that the subscription is for, or of one below it."""
    session = webhook.session
    return session is None or session in (row.stream, row.context_id) or row.context_id.startswith(f"{session}/")


# ---
# Ends that no worker records: of a session that is closed, of a run that is terminated or times out.


END_SCAN_SECONDS = 10.0
"""Seconds between two looks at the runs that have ended, of all workers together."""
_END_SCAN_BACK = timedelta(days=1)
"""How far back the first look goes, after a time without workers."""
_VISIBILITY_DELAY = timedelta(seconds=30)
"""How long Temporal may take to list a run as closed, and how much clocks may differ: each look goes so far back."""
_LAST_EVENTS = 20


class RunEndRecorder:
    """Records the ends of runs that end without a commit of a worker, so that webhooks for ``run.*`` need no reader.

    Temporal lists the runs that were closed since the last look. One worker looks at a time: a key in the store has
    from when until when all looks so far have covered.
    """

    def __init__(
        self, store: Store, client: Client, *, now: Callable[[], datetime] = lambda: datetime.now(UTC)
    ) -> None:
        self._store = store
        self._client = client
        self._now = now
        self._owner = uuid.uuid4().hex
        place = hashlib.sha256(client.temporal.namespace.encode()).hexdigest()[:16]
        self._key = f"webhook-ends/{place}"
        self._since = self._until = timestamp(now() - _END_SCAN_BACK)
        """What is covered, as far as this worker knows; from "" on: all that subscriptions want."""
        self._seen: set[str] = set()
        """Executions of the last look, which the next one lists again."""

    async def run(self) -> None:
        """Look until cancelled. Failures are logged once, and the same time is looked at again."""
        problem = ""
        while True:
            try:
                await self.scan()
                problem = ""
            except Exception as error:
                text = f"{type(error).__name__}: {error}"
                if text != problem:
                    problem = text
                    logger.warning("the ends of runs are not looked for at the moment: %s", text)
            await asyncio.sleep(END_SCAN_SECONDS)

    async def scan(self) -> None:
        """Look once, unless another worker does or has a moment ago."""
        webhooks = [row for row in await _read_webhooks(self._store) if _want_ends([row])]
        if not webhooks:
            self._since, self._until = "", timestamp(self._now())
            return  # ends before a subscription are not sent
        claim = await self._store.claim_idempotency(
            self._key, "", self._owner, lease_seconds=LEASE_SECONDS, keep_seconds=END_SCAN_SECONDS
        )
        if claim.state == "done":
            since, until = json.loads(claim.answer or b"")
            if since <= self._until <= until:
                self._since, self._until = min(since, self._since), until
        elif claim.state == "new":
            await self._scan(min(row.created_at for row in webhooks))

    async def _scan(self, created_at: str) -> None:
        """Record the ends of the runs that were closed since the last look, and not before the first subscription."""
        covered, began = None, self._now()
        try:
            if created_at >= self._until:
                self._since = ""
            after = max(add_seconds(self._until, -_VISIBILITY_DELAY.total_seconds()), created_at)
            query = f"{RUNS_QUERY} AND ExecutionStatus != 'ContinuedAsNew' AND CloseTime >= '{after}'"
            closed, seen = [], set[str]()
            async for execution in list_executions(self._client, query):
                if execution.close_time is None:
                    continue
                if execution.close_time >= began - 2 * _VISIBILITY_DELAY:
                    seen.add(execution.run_id)
                if execution.run_id not in self._seen:
                    closed.append(execution)
                if len(closed) == BATCH:
                    await gather_bounded(self._record, closed)
                    closed.clear()
            await gather_bounded(self._record, closed)
            self._seen, self._until = seen, timestamp(began)
            covered = json.dumps([self._since, self._until]).encode()
        finally:
            await self._store.complete_idempotency(self._key, self._owner, covered)

    async def _record(self, execution: WorkflowExecution) -> None:
        try:
            if await self._lacks_end(execution.id):
                await record_run_end(self._client.run(execution.id), self._store)
        except (RunNotFoundError, StoreMismatchError):  # deleted meanwhile; of another store
            pass
        except (StoreError, ServerUnreachableError):  # the same time is looked at again
            raise
        except Exception:  # of this run alone: the others have their ends
            logger.exception("the end of run %s cannot be recorded", execution.id)

    async def _lacks_end(self, id: str) -> bool:
        last = await self._store.wait_for_event(id, 0, 0.0)
        if not last:
            return "/" not in id  # a subagent without an event: its first one would say where it belongs
        events = await self._store.read_events(id, after=max(last - _LAST_EVENTS, 0), children=False)
        return not (events and events[-1].type == "run" and json.loads(events[-1].body).get("state") in _END_STATES)


_END_STATES = tuple(name.partition(".")[2] for name in _END_TYPES)


@asynccontextmanager
async def dispatch_webhooks(store: Store, temporal: TemporalClient, task_queue: str) -> AsyncIterator[None]:
    """Dispatch events in the background for the length of the block, and send decisions that are due.

    Not for the private task queue of a call without an id: it has no worker after the call.
    """
    if config.get_shared_task_queue(task_queue) != task_queue:
        yield
        return
    client = Client(temporal, task_queue=task_queue)
    client.share_store(store)
    tasks = [
        asyncio.create_task(DecisionSender(client).run()),
        asyncio.create_task(WebhookDispatcher(store, temporal, task_queue).run()),
        asyncio.create_task(RunEndRecorder(store, Client(temporal, task_queue=task_queue)).run()),
    ]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
