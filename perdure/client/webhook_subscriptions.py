"""``client.webhooks``: subscriptions of endpoints to events, their secrets, the log of deliveries.

Also starts deliveries, for workers too: one workflow for each subscription and event, under an id that both determine.
"""

from __future__ import annotations

import base64
import hashlib
import json
import logging
import uuid
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any

from temporalio.client import Client as TemporalClient
from temporalio.common import WorkflowIDReusePolicy
from temporalio.exceptions import WorkflowAlreadyStartedError
from temporalio.service import RPCError, RPCStatusCode

from .. import _config as config
from .._encryption import KeyRing
from .._webhook_wire import (
    PING,
    WEBHOOK_TYPES,
    AllowList,
    Resolve,
    WebhookTask,
    check_secret,
    find_addresses,
    generate_secret,
    matches_types,
    parse_webhook_url,
    resolve_host,
)
from ..errors import (
    AuthContextError,
    InvalidInputError,
    PerdureError,
    RunExistsError,
    StoreError,
    TranscriptUnavailableError,
    WebhookNotFoundError,
)
from ..ports.store import Store
from ..ports.times import add_seconds, format_utc_now
from ..ports.webhooks import DeliveryRow, DeliveryState, RowCursor, WebhookRow
from ..temporal.errors import translate_rpc_error
from ..types.interface import WEBHOOK_WORKFLOW_TYPE
from ..types.limits import parse_seconds
from ..types.messages import NAME_CHARS, RUN_ID_CHARS, clean_text
from ..types.run_ids import RUN_ID_BYTES
from .audit import audit_steering
from .handles import ClientHandle

logger = logging.getLogger("perdure.client")

# ---
# Secrets as stored.


MAX_SECRETS = 5
"""Most secrets that sign at once."""


@dataclass(frozen=True, slots=True)
class _Secret:
    secret: str = field(repr=False)
    until: str | None = None
    """Time after which it does not sign; None for the current one."""


def open_secrets(row: WebhookRow, now: str) -> list[str]:
    """Return the secrets that sign at ``now``, the current one first.

    Raises ``InvalidInputError`` if they are sealed with a key that this process does not have.
    """
    return [one.secret for one in _open_all(row) if one.until is None or one.until > now]


def _open_all(row: WebhookRow) -> list[_Secret]:
    text = row.secrets
    if row.key_id is not None:
        try:
            text = KeyRing.from_environment().open(text, [_get_subject(row.id)]).decode()
        except AuthContextError:
            raise InvalidInputError(
                f"the secrets of webhook {row.id} are sealed with key {row.key_id!r:.70}, which this process lacks",
                hint="Give all workers and clients the same PERDURE_ENCRYPTION_KEYS.",
            ) from None
    return [_Secret(*pair) for pair in json.loads(text)]


def _seal(id: str, all_secrets: Sequence[_Secret]) -> dict[str, str | None]:
    """Return the columns of the secrets: sealed where the process has a key, otherwise in plain."""
    text = json.dumps([(one.secret, one.until) for one in all_secrets])
    key = KeyRing.from_environment().find_given_key()
    return {
        "secrets": text if key is None else key.seal(text.encode(), _get_subject(id)),
        "key_id": None if key is None else key.id,
    }


def _get_subject(id: str) -> str:
    return f"webhook/{id}"


# ---
# Starts of deliveries.


def build_message_id(webhook_id: str, stream: str, seq: int) -> str:
    """Build the ``webhook-id`` of an event. It depends on nothing else, so deliveries of one event share it."""
    return f"msg_{hashlib.sha256(f'{webhook_id}/{stream}/{seq}'.encode()).hexdigest()[:32]}"


def build_delivery_id(webhook_id: str, stream: str, seq: int) -> str:
    """Build the id of the workflow that delivers an event."""
    name = f"perdure-webhook/{webhook_id}/{stream}/{seq}"
    if len(name.encode()) > RUN_ID_BYTES:
        name = f"perdure-webhook/{webhook_id}/{hashlib.sha256(stream.encode()).hexdigest()}/{seq}"
    return name


async def start_delivery(temporal: TemporalClient, task_queue: str, id: str, task: WebhookTask) -> None:
    """Start the workflow ``id``; nothing if it was started before. A run of another kind that has this id is no
    delivery: then the workflow gets another one. Raises a ``PerdureError``."""
    for name in (id, f"perdure-webhook/{task.message_id}/{hashlib.sha256(id.encode()).hexdigest()}"):
        try:
            await temporal.start_workflow(
                WEBHOOK_WORKFLOW_TYPE,
                task.model_dump(mode="json", exclude_defaults=True),
                id=name,
                task_queue=task_queue,
                id_reuse_policy=WorkflowIDReusePolicy.REJECT_DUPLICATE,
            )
            return
        except WorkflowAlreadyStartedError:
            if await _is_delivery(temporal, name):
                return
            logger.warning("run %r is no delivery of a webhook, and has the id of one", name)
        except RPCError as error:
            raise translate_rpc_error(temporal, name, error) from error
    raise RunExistsError(f"the event is not delivered: {id!r} is a run of another kind", hint="Delete that run.")


async def _is_delivery(temporal: TemporalClient, id: str) -> bool:
    """Whether the workflow delivers to a webhook; also if Temporal has forgotten it meanwhile."""
    try:
        description = await temporal.get_workflow_handle(id).describe()
    except RPCError as error:
        if error.status is RPCStatusCode.NOT_FOUND:
            return True
        raise translate_rpc_error(temporal, id, error) from error
    return description.workflow_type == WEBHOOK_WORKFLOW_TYPE


# ---
# What users see.


@dataclass(frozen=True, slots=True)
class Webhook:
    """A subscription. Times are ISO 8601, UTC."""

    id: str
    url: str
    events: tuple[str, ...]
    """Patterns of types: ``("approval.*", "run.completed")``."""
    agent: str | None
    """Only events of runs of this agent."""
    tenant: str | None
    """Only events of runs of this tenant."""
    session: str | None
    """Only events of this run, and of the subagents below it."""
    enabled: bool
    disabled_reason: str | None
    """Why it is disabled."""
    failing_since: str | None
    """Since when every delivery has failed; None if the last one succeeded."""
    created_by: str
    created_at: str
    updated_at: str
    allowed: tuple[str, ...] = ()
    """Hosts and networks that the endpoint is in and that workers may reach for it, although they are not public."""
    secret: str | None = field(default=None, repr=False)
    """The new secret, in the results of ``create`` and ``rotate_secret`` only."""


@dataclass(frozen=True, slots=True)
class WebhookPage:
    """Subscriptions, the oldest first."""

    webhooks: tuple[Webhook, ...]
    cursor: str | None
    """``after`` of the next page; None for the last one."""


@dataclass(frozen=True, slots=True)
class DeliveryPage:
    """Attempts, the newest first."""

    deliveries: tuple[DeliveryRow, ...]
    cursor: str | None


DEFAULT_EVENTS = ("approval.*", "question.*", "run.*", "turn.*")


class Webhooks:
    """``client.webhooks``: subscriptions of endpoints to events. Needs the store.

    Methods raise ``WebhookNotFoundError`` for an unknown id, ``InvalidInputError``, ``StoreError``, and
    ``TranscriptUnavailableError`` for a client without a store. Each change leaves a row in the audit trail; ``by`` is
    who asks for it, by default the client's ``actor``.
    """

    def __init__(self, client: ClientHandle, *, resolve: Resolve = resolve_host) -> None:
        """``resolve`` replaces the resolver of the operating system."""
        self._client = client
        self._resolve = resolve

    async def create(
        self,
        url: str,
        *,
        events: Iterable[str] = DEFAULT_EVENTS,
        agent: str | None = None,
        tenant: str | None = None,
        session: str | None = None,
        secret: str | None = None,
        by: str | None = None,
    ) -> Webhook:
        """Subscribe ``url`` to the events whose types match ``events``, from now on.

        ``agent``, ``tenant`` and ``session`` (a run with its subagents) restrict it. ``secret`` is generated by
        default, and is in the result; later results do not have it. The URL is https, and its host has public addresses
        only, unless ``PERDURE_WEBHOOK_ALLOW`` of this process names it: that is kept with the subscription, for all
        workers.
        """
        patterns = _check_events(events)
        for name, value, most in (
            ("agent", agent, NAME_CHARS),
            ("tenant", tenant, NAME_CHARS),
            ("session", session, RUN_ID_CHARS),
        ):
            _check_filter(name, value, most)
        secret = generate_secret() if secret is None else check_secret(secret)
        name, now = f"wh_{uuid.uuid4().hex[:24]}", format_utc_now()
        created_by = clean_text(by or self._client.actor)[:NAME_CHARS]
        async with self._audit("create", name, by, _describe_url(url), {"agent": agent, "tenant": tenant}):
            allowed = await self._check_url(url)
            row = WebhookRow(
                *(name, url, " ".join(patterns), agent, tenant, session, True, None, None),
                **_seal(name, [_Secret(secret)]),  # type: ignore[arg-type]  # two columns
                created_by=created_by,
                created_at=now,
                updated_at=now,
                allowed=allowed,
            )
            await (await self._open_store(create=True)).create_webhook(row)
        return _build_webhook(row, secret)

    async def list(
        self,
        *,
        after: str | None = None,
        limit: int = 100,
        visible: Callable[[Webhook], Awaitable[bool]] | None = None,
    ) -> WebhookPage:
        """List subscriptions, the oldest first; ``after`` is the ``cursor`` of the page before. Lists only those for
        which ``visible`` returns true: no cursor names another one."""
        store, place = await self._open_store(), _decode_cursor(after)
        found: list[WebhookRow] = []
        while rows := await store.list_webhooks(after=place, limit=_check_limit(limit)):
            place = rows[-1].created_at, rows[-1].id
            for row in rows:
                if len(found) < limit and (visible is None or await visible(_build_webhook(row))):
                    found.append(row)
            if len(found) == limit or len(rows) < limit:
                break
        return WebhookPage(tuple(map(_build_webhook, found)), _encode_cursor(found, limit))

    async def get(self, id: str) -> Webhook:
        """Return one subscription."""
        return _build_webhook(await self._read(id))

    async def update(
        self,
        id: str,
        *,
        url: str | None = None,
        events: Iterable[str] | None = None,
        enabled: bool | None = None,
        by: str | None = None,
    ) -> Webhook:
        """Change what is given. A disabled subscription gets no events, also not later, and its pending deliveries
        stop; an enabled one gets those from then on, and starts as one that never failed."""
        patterns = None if events is None else _check_events(events)
        if enabled is not None and not isinstance(enabled, bool):
            raise InvalidInputError(f"enabled is True or False, not {enabled!r:.100}")
        verb = "update" if enabled is None else "enable" if enabled else "disable"
        async with self._audit(verb, id, by, None if url is None else _describe_url(url)):
            allowed = "" if url is None else await self._check_url(url)

            def change(row: WebhookRow) -> WebhookRow:
                if url is not None:
                    row = replace(row, url=url, allowed=allowed, failing_since=None)
                if patterns is not None:
                    row = replace(row, events=" ".join(patterns))
                if enabled:
                    row = replace(row, enabled=True, disabled_reason=None, failing_since=None)
                elif enabled is not None:
                    reason = f"disabled by {by or self._client.actor}"
                    row = replace(row, enabled=False, disabled_reason=clean_text(reason)[:NAME_CHARS])
                return row

            return _build_webhook(await self._change(id, change))

    async def rotate_secret(
        self, id: str, *, keep: float | str | timedelta = "24h", secret: str | None = None, by: str | None = None
    ) -> Webhook:
        """Give the subscription a new secret, which is in the result. For the time ``keep`` requests are also signed
        with the secrets before, so that receivers can change theirs."""
        try:
            seconds = 0.0 if keep == 0 else parse_seconds(keep)
        except ValueError as error:
            raise InvalidInputError(f"keep: {error}") from None
        secret = generate_secret() if secret is None else check_secret(secret)
        try:
            until = add_seconds(format_utc_now(), seconds)
        except OverflowError:
            raise InvalidInputError(f"keep is a time like 24h, not {keep!r:.100}") from None

        def change(row: WebhookRow) -> WebhookRow:
            now = format_utc_now()
            kept = [one for one in _open_all(row) if one.until is None or one.until > now]
            old = [_Secret(one.secret, min(one.until or until, until)) for one in kept] if seconds else []
            return replace(row, **_seal(row.id, [_Secret(secret), *old][:MAX_SECRETS]))  # type: ignore[arg-type]  # two columns

        async with self._audit("rotate", id, by):
            return _build_webhook(await self._change(id, change), secret)

    async def delete(self, id: str, *, by: str | None = None) -> None:
        """Delete the subscription and its log. Pending deliveries stop."""
        async with self._audit("delete", id, by):
            if not await (await self._open_store()).delete_webhook(_check_id(id)):
                raise _build_missing_error(id)

    async def deliveries(
        self,
        id: str,
        *,
        message_id: str | None = None,
        latest: bool = False,
        state: DeliveryState | None = None,
        after: str | None = None,
        limit: int = 100,
    ) -> DeliveryPage:
        """List the attempts of the last 30 days to deliver to the subscription, the newest first; with ``latest`` only
        the last one of each message (``webhook-id``), which says what became of it."""
        store = await self._open_store()
        await self._read(id)
        _check_filter("message_id", message_id, NAME_CHARS)
        rows = await store.list_deliveries(
            id,
            message_id=message_id,
            latest=latest,
            state=state,
            after=_decode_cursor(after),
            limit=_check_limit(limit),
        )
        return DeliveryPage(tuple(rows), _encode_cursor(rows, limit))

    async def get_delivery(self, delivery_id: str) -> DeliveryRow:
        """Return one attempt."""
        row = await (await self._open_store()).get_delivery(_check_id(delivery_id))
        if row is None:
            raise WebhookNotFoundError(f"there is no delivery {delivery_id!r:.100}", hint="They are kept for 30 days.")
        return row

    async def send_again(self, delivery_id: str, *, by: str | None = None) -> str:
        """Send the event of that attempt once more, with the retries of a new one and under the same ``webhook-id``,
        which is returned. Raises ``InvalidInputError`` for a disabled subscription."""
        delivery = await self.get_delivery(delivery_id)
        async with self._audit("resend", delivery.webhook_id, by, delivery.message_id):
            await self._check_enabled(delivery.webhook_id)
            task = WebhookTask(
                webhook_id=delivery.webhook_id,
                message_id=delivery.message_id,
                type=delivery.type,
                at=delivery.created_at if delivery.type == PING else "",
                stream=delivery.stream,
                seq=delivery.seq,
                context_id=delivery.context_id,
            )
            if delivery.type != PING:
                task = await label_task(await self._open_store(), task)
            name = build_delivery_id(delivery.webhook_id, delivery.stream or PING, delivery.seq)
            await self._start(f"{name}/{uuid.uuid4().hex[:8]}", task)
        return delivery.message_id

    async def test(self, id: str, *, by: str | None = None) -> str:
        """Send an event of the type ``ping``, and return its ``webhook-id``; the log shows what came of it."""
        async with self._audit("test", id, by):
            await self._check_enabled(id)
            name = uuid.uuid4().hex
            task = WebhookTask(webhook_id=id, message_id=f"msg_{name}", type=PING, at=format_utc_now())
            await self._start(f"perdure-webhook/{id}/{PING}/{name}", task)
        return task.message_id

    async def _start(self, id: str, task: WebhookTask) -> None:
        await start_delivery(self._client.temporal, self._client.task_queue, id, task)

    async def _check_enabled(self, id: str) -> None:
        row = await self._read(id)
        if not row.enabled:
            raise InvalidInputError(
                f"webhook {id} is disabled: {row.disabled_reason}", hint="Enable it first: perdure webhook enable."
            )

    async def _check_url(self, url: str) -> str:
        """Return what the endpoint is allowed by: ``WebhookRow.allowed``. Raises ``InvalidInputError``."""
        endpoint, allow = parse_webhook_url(url), AllowList.parse(config.get_webhook_allow())
        return allow.find_allowance(endpoint, await find_addresses(endpoint, allow, self._resolve))

    async def _change(self, id: str, change: Any) -> WebhookRow:
        """Apply ``change`` to the row, again if it was changed meanwhile."""
        store = await self._open_store()
        while True:
            row = await self._read(id)
            changed: WebhookRow = replace(
                change(row), updated_at=max(format_utc_now(), add_seconds(row.updated_at, 1e-6))
            )
            if await store.update_webhook(changed, row.updated_at):
                return changed

    async def _read(self, id: str) -> WebhookRow:
        row = await (await self._open_store()).get_webhook(_check_id(id))
        if row is None:
            raise _build_missing_error(id)
        return row

    async def _open_store(self, *, create: bool = False) -> Store:
        if self._client.store_url is None:
            raise TranscriptUnavailableError(
                "this client has no store, which keeps webhooks", hint="Set PERDURE_STORE_URL, as for the workers."
            )
        store = await self._client.store(create=create)
        if not store.store_id:
            raise StoreError(f"there is no store at {store.place} yet", hint="Start a worker: it creates the store.")
        return store

    @asynccontextmanager
    async def _audit(
        self,
        verb: str,
        id: str,
        by: str | None,
        detail: str | None = None,
        labels: Mapping[str, str | None] | None = None,
    ) -> AsyncGenerator[None]:
        subject = str(id)[:RUN_ID_CHARS]
        known = labels
        if known is None:
            with suppress(PerdureError):
                webhook = await self.get(id)
                known = {"agent": webhook.agent, "tenant": webhook.tenant}
        async with audit_steering(self._client, f"webhook.{verb}", subject, by=by, detail=detail, labels=known):
            yield


async def label_task(store: Store, task: WebhookTask) -> WebhookTask:
    """Add the agent, tenant and user of the run as the store knows them; a subagent's are also those of its root."""
    row = await store.get_run(task.context_id)
    root = await store.get_run(task.stream) if row is None or row.tenant is None else None
    return task.model_copy(
        update={
            "agent": task.agent or (row.agent if row else None),
            "tenant": task.tenant or (row.tenant if row else None) or (root.tenant if root else None),
            "user": task.user or (row.user if row else None) or (root.user if root else None),
        }
    )


def _build_webhook(row: WebhookRow, secret: str | None = None) -> Webhook:
    return Webhook(
        *(row.id, row.url, tuple(row.events.split()), row.agent, row.tenant, row.session, row.enabled),
        *(row.disabled_reason, row.failing_since, row.created_by, row.created_at, row.updated_at),
        allowed=tuple(filter(None, row.allowed.split(","))),
        secret=secret,
    )


def _build_missing_error(id: str) -> WebhookNotFoundError:
    return WebhookNotFoundError(f"there is no webhook {id!r:.100}", hint="`perdure webhook list` shows them.")


def _check_id(id: object) -> str:
    if not isinstance(id, str) or not 0 < len(id) <= NAME_CHARS or id != clean_text(id):
        raise WebhookNotFoundError(f"{id!r:.100} is not an id of a webhook or delivery")
    return id


def _check_events(events: object) -> list[str]:
    patterns = [events] if isinstance(events, str) else list(events) if isinstance(events, Iterable) else [events]
    if not 0 < len(patterns) <= len(WEBHOOK_TYPES):
        raise InvalidInputError("a webhook has 1 to 30 patterns of types", hint='For instance events=("approval.*",).')
    for pattern in patterns:
        if (
            not isinstance(pattern, str)
            or " " in pattern
            or not any(matches_types([pattern], t) for t in WEBHOOK_TYPES)
        ):
            raise InvalidInputError(
                f"no event for webhooks has a type like {pattern!r:.100}",
                hint=f"Types: {', '.join(WEBHOOK_TYPES)}; * stands for any characters.",
            )
    return list(dict.fromkeys(patterns))


def _check_filter(name: str, value: object, most: int) -> None:
    if value is None:
        return
    if not isinstance(value, str) or not 0 < len(value) <= most or value != clean_text(value):
        raise InvalidInputError(f"{name} is a text of 1 to {most:,} characters, not {value!r:.100}")


def _describe_url(url: object) -> str:
    """For the audit trail: without the query, which may have a token."""
    return str(url)[:500].partition("?")[0]


def _check_limit(limit: object) -> int:
    if not isinstance(limit, int) or isinstance(limit, bool) or not 0 < limit <= 1000:
        raise InvalidInputError(f"limit is a number from 1 to 1,000, not {limit!r:.100}")
    return limit


def _encode_cursor(rows: Sequence[WebhookRow] | Sequence[DeliveryRow], limit: int) -> str | None:
    if len(rows) < limit:
        return None
    return base64.urlsafe_b64encode(json.dumps([rows[-1].created_at, rows[-1].id]).encode()).decode()


def _decode_cursor(text: str | None) -> RowCursor | None:
    if text is None:
        return None
    try:
        at, name = json.loads(base64.urlsafe_b64decode(text))
    except (ValueError, TypeError, RecursionError):
        at = name = None
    if not isinstance(at, str) or not isinstance(name, str) or clean_text(at + name) != at + name:
        raise InvalidInputError(f"after is the cursor of a page, not {text!r:.100}")
    return at, name
