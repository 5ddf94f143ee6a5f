"""Records that people look through: the audit trail, and what model calls have used.

An :class:`~.auth.Authorizer` is asked about the subject of each row of the trail. Sums have no rows to ask about: they
are those of the tenants, agents and sessions of the caller, if it may ``read`` a resource of the kind ``usage``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from typing import Any, Literal, cast

from pydantic import BaseModel, Field

from ..client.pages import decode_cursor, encode_cursor
from ..errors import InvalidInputError, WebhookNotFoundError
from ..ports.audit import AuditRow
from ..ports.failures import FailedAttempts, FailureFilter, FailureKey
from ..ports.times import timestamp
from ..ports.usage import TIME_KEYS, UsageFilter, UsageKey, UsageSum
from ..types.messages import NAME_CHARS, RUN_ID_CHARS, clean_text
from .auth import Resource, Verb, get_list_scope
from .lists import Instant, PageQuery
from .operations import Call, Input, Operation

TAG = "records"
MAX_SUMS = 400
"""Most sums of one answer: the days of a year."""
USAGE_DAYS = 30
"""Days that sums of usage are of, where no time is given."""
_MAX_READS = 10
"""Reads for one page of the audit trail: one of which most rows are left out ends before it is full."""


# ---
# The audit trail.


SubjectKind = Literal["session", "schedule", "webhook", "token"]


class AuditQuery(PageQuery):
    """Which requests."""

    by: str | None = Field(default=None, min_length=1, max_length=500)
    """Who asked for it."""
    verb: str | None = Field(default=None, min_length=1, max_length=100)
    """``approve``, or with ``*`` at the end what verbs begin with: ``schedule.*``."""
    subject: str | None = Field(default=None, min_length=1, max_length=RUN_ID_CHARS)
    """Id of the session, schedule or webhook."""
    tenant: str | None = Field(default=None, min_length=1, max_length=NAME_CHARS)
    """The tenant of the subject."""
    since: Instant | None = None
    """At this time or later; without an offset it is UTC."""
    until: Instant | None = None
    """Before this time."""
    refused: bool = False
    """Only requests that were refused."""


class AuditEntry(BaseModel):
    """A request that steers something, as :class:`perdure.ports.audit.AuditRow`."""

    id: str
    at: str
    """ISO 8601, UTC."""
    by: str
    auth: str
    """How that is known: ``token:<id>``, ``proxy``, ``dev``, ``os-user``, ``given``."""
    origin: str
    """Address of the caller, or host and process."""
    kind: SubjectKind
    """What the subject is."""
    subject: str
    verb: str
    call_id: str | None = None
    agent: str | None = None
    tenant: str | None = None
    user: str | None = None
    """Agent, tenant and user of the subject, where they are known."""
    detail: str | None = None
    refused: str | None = None
    """The error that it was refused with."""
    count: int = 1
    """How many requests of the caller were refused so that day: all but the error are of the first, the error of the
    last."""
    last_at: str | None = None
    """When the last of them was refused."""


class AuditList(BaseModel):
    """A page of requests, the newest first. ``cursor`` begins the next page, and is missing at the end; a page may have
    fewer rows than ``limit`` before the end."""

    data: list[AuditEntry]
    cursor: str | None = None


async def _read_subject(call: Call, shown: str) -> str:
    """Return the subject of audit rows that the caller names: the id of a webhook has no tenant in it."""
    with suppress(WebhookNotFoundError):
        return (await call.client.webhooks.get(shown)).id
    return call.caller.read_id(shown)


async def list_audit(call: Call) -> AuditList:
    """List who has steered sessions, schedules, webhooks and tokens, the newest first."""
    query = cast(AuditQuery, call.query)
    filters: dict[str, Any] = {
        "subject": None if query.subject is None else await _read_subject(call, query.subject),
        "by": query.by,
        "verb": query.verb,
        "since": _format(query.since),
        "until": _format(query.until),
        "refused": query.refused,
    }
    checked = {name: value for name, value in filters.items() if isinstance(value, str)}
    _check_texts(checked | {"tenant": query.tenant or ""})
    names = filters | {"tenant": query.tenant}
    after = None if query.cursor is None else decode_cursor("audit", names, query.cursor, 2)
    tenants = _list_tenants(call, query.tenant)
    store, entries = await call.client.store(), list[AuditEntry]()
    for _ in range(_MAX_READS):
        rows = await store.list_audit(
            **filters,
            tenants=tenants,
            after=None if after is None else (after[0], after[1]),
            limit=query.limit + 1,
        )
        for row in rows:
            entry = await _build_visible_entry(call, row)
            if len(entries) == query.limit:  # and there is another row
                return AuditList(data=entries, cursor=encode_cursor("audit", names, cast(Sequence[str], after)))
            entries += [entry] if entry is not None else []
            after = [row.at, row.id]
        if len(rows) <= query.limit:
            return AuditList(data=entries)
    return AuditList(data=entries, cursor=encode_cursor("audit", names, cast(Sequence[str], after)))


def _check_texts(texts: Mapping[str, str]) -> None:
    for name, text in texts.items():
        if clean_text(text) != text:
            raise InvalidInputError(f"{name}: {text!r:.60} has characters that no text of the store has")


def _list_tenants(call: Call, tenant: str | None) -> Sequence[str] | None:
    """Return the tenants whose rows the store need list: ``tenant`` is the one that is asked for."""
    own = get_list_scope(call.caller).tenants
    if tenant is None:
        return own
    return [tenant] if own is None or tenant in own else []


async def _build_visible_entry(call: Call, row: AuditRow) -> AuditEntry | None:
    """Build the entry of a row; None for one about what the caller may not see. The labels are those that the row was
    written with: the id may stand for another run by now."""
    kind = find_kind(row.verb)
    resource = Resource(kind, row.subject, row.agent, row.tenant, row.user)
    verb: Verb = "operate" if kind in ("session", "schedule") else "admin"
    return AuditEntry(**asdict(row), kind=kind) if await call.may(verb, resource) else None


def find_kind(verb: str) -> SubjectKind:
    """Return what the subject of an audit row with ``verb`` is. A refused request has the name of its operation."""
    if verb.startswith("token."):
        return "token"
    if "webhook" in verb or verb.endswith(("_delivery", "_deliveries")):
        return "webhook"
    return "schedule" if "schedule" in verb else "session"


# ---
# Usage.


class UsageQuery(Input):
    """Which model calls, and what they are summed by."""

    group: UsageKey = "day"
    """``hour`` or ``day`` (of UTC), ``agent``, ``model``, ``tenant`` or ``run`` (with its subagents)."""
    agent: str | None = Field(default=None, min_length=1, max_length=NAME_CHARS)
    model: str | None = Field(default=None, min_length=1, max_length=2 * NAME_CHARS)
    """Provider and model: ``openai:gpt-5``."""
    tenant: str | None = Field(default=None, max_length=NAME_CHARS)
    """Empty for calls without a tenant."""
    since: Instant | None = None
    """Recorded at this time or later; without an offset it is UTC. By default 30 days ago."""
    until: Instant | None = None
    """Recorded before this time."""
    limit: int = Field(default=100, ge=1, le=MAX_SUMS)


class UsageTotals(BaseModel):
    """Sums of model calls, as :class:`perdure.ports.usage.UsageSum`."""

    key: str | None = None
    """Missing for calls without a tenant, and in ``total``."""
    calls: int
    errors: int
    """Answers that did not fit the output type, replies that ended their run, and calls that a provider's error has
    ended, as a wrong key: these are not among ``calls``."""
    unanswered_calls: int = 0
    """Calls that a provider's error has ended."""
    failed_attempts: int | None = None
    """Requests that providers failed, also those that were tried again with success. Missing by ``run``, and for a
    caller who may see some sessions alone: they are counted by the hour."""
    input_tokens: int
    cached_tokens: int
    """Part of the input."""
    output_tokens: int
    cost_usd: float | None = None
    """Of the calls whose price is known; missing if there are none."""
    unpriced_calls: int
    """Calls whose price is unknown."""
    milliseconds: int
    """Of all calls, one after the other: from the first request to the last reply of each."""


class UsageList(BaseModel):
    """Sums in the order of cost, the most first; hours and days the newest first."""

    group: UsageKey
    since: str
    """ISO 8601, UTC."""
    until: str | None = None
    data: list[UsageTotals]
    total: UsageTotals
    """Of all calls, also those of keys that ``data`` has no room for."""
    count: int
    """Number of keys."""
    failures: list[FailureTotals] = []
    """What failed, the most first, up to 50 causes."""


class FailureTotals(BaseModel):
    """Failed attempts with one cause, in whole hours of the time."""

    source: str
    """Provider and model: ``openai:gpt-5``."""
    status: int | None = None
    """HTTP status of the answer; missing without one."""
    error_type: str
    attempts: int
    ended: int
    """Those of them that were not tried again."""


_FAILURE_KEYS: Mapping[UsageKey, FailureKey] = {
    "hour": "hour",
    "day": "day",
    "agent": "agent",
    "model": "total",
    "tenant": "tenant",
}
_FAILURE_ROWS, _MAX_CAUSES = 10_000, 50


async def _add_failures(call: Call, query: UsageQuery, wanted: UsageFilter, listed: UsageList) -> UsageList:
    """Add the failed attempts of the time to ``listed``, also those of keys without an answered call."""
    if query.group not in _FAILURE_KEYS or wanted.sessions is not None:
        return listed
    chosen = FailureFilter(
        *(wanted.since, wanted.until, wanted.agent, wanted.model, wanted.tenant), wanted.tenants, wanted.agents
    )
    store = await call.client.store()
    rows = await store.sum_failed_attempts(_FAILURE_KEYS[query.group], chosen, limit=_FAILURE_ROWS)
    rows = [row for row in rows if row.source and row.kind in ("model", "compact")]
    by_key: dict[str | None, list[FailedAttempts]] = {}
    causes: dict[tuple[str, int | None, str], list[FailedAttempts]] = {}
    for row in rows:
        by_key.setdefault(row.source if query.group == "model" else row.key, []).append(row)
        causes.setdefault((row.source, row.status, row.error_type), []).append(row)
    known = {one.key for one in listed.data}
    missing = [key for key in by_key if key not in known]
    none = UsageTotals(
        calls=0, errors=0, input_tokens=0, cached_tokens=0, output_tokens=0, unpriced_calls=0, milliseconds=0
    )
    more = [none.model_copy(update={"key": key}) for key in missing]
    data = [_count_failures(one, by_key.get(one.key, ())) for one in (*listed.data, *more)]
    if query.group in TIME_KEYS:
        data.sort(key=lambda one: one.key or "", reverse=True)
    failures = [
        FailureTotals(
            source=source, status=status, error_type=error_type,
            attempts=sum(row.attempts for row in alike), ended=sum(row.ended for row in alike),
        )
        for (source, status, error_type), alike in causes.items()
    ]  # fmt: skip
    failures.sort(key=lambda one: -one.attempts)
    is_whole = listed.count <= len(listed.data)
    return listed.model_copy(
        update={
            "data": data[: query.limit],
            "total": _count_failures(listed.total, rows),
            "count": listed.count + (len(missing) if is_whole else 0),
            "failures": failures[:_MAX_CAUSES],
        }
    )


def _count_failures(totals: UsageTotals, rows: Sequence[FailedAttempts]) -> UsageTotals:
    ended = sum(row.ended for row in rows)
    return totals.model_copy(
        update={
            "errors": totals.errors + ended,
            "unanswered_calls": ended,
            "failed_attempts": sum(row.attempts for row in rows),
        }
    )


async def sum_usage(call: Call) -> UsageList:
    """Sum tokens, money, time and errors of model calls by hour, day, agent, model, tenant or run."""
    query = cast(UsageQuery, call.query)
    since, until = _read_range(query.since, query.until)
    _check_texts({"agent": query.agent or "", "model": query.model or "", "tenant": query.tenant or ""})
    scope = get_list_scope(call.caller)
    wanted = UsageFilter(
        *(since, until, query.agent, query.model, query.tenant),
        tenants=scope.tenants,
        agents=scope.agents,
        sessions=scope.sessions,
    )
    sums = await (await call.client.store()).sum_usage(query.group, wanted, limit=query.limit)
    listed = UsageList(
        group=query.group,
        since=since,
        until=until or None,
        data=[_build_totals(one) for one in sums.sums],
        total=_build_totals(sums.total),
        count=sums.count,
    )
    return await _add_failures(call, query, wanted, listed)


def _read_range(since: datetime | None, until: datetime | None) -> tuple[str, str]:
    """Return the times of a query for the store; without a beginning the last days before its end."""
    if since is not None:
        return _format(since), _format(until)
    try:
        since = (until or datetime.now(UTC)) - timedelta(days=USAGE_DAYS)
    except OverflowError:
        since = until
    return _format(since), _format(until)


def _format(at: datetime | None) -> str:
    """Format a time for the store, "" for None."""
    return "" if at is None else timestamp(at)


def _build_totals(one: UsageSum) -> UsageTotals:
    fields: dict[str, Any] = {name: getattr(one, name) for name in UsageTotals.model_fields if hasattr(one, name)}
    return UsageTotals(**fields)


OPERATIONS = [
    Operation("GET", "/audit", list_audit, "operate", query=AuditQuery, answer=AuditList, kind="audit", tag=TAG),
    Operation("GET", "/usage", sum_usage, "read", query=UsageQuery, answer=UsageList, kind="usage", tag=TAG),
]
