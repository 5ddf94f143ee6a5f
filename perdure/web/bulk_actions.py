"""Bulk actions over HTTP: resume or cancel all sessions that match, each with the caller's permissions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, cast

from pydantic import BaseModel, Field, JsonValue

from ..client.bulk_actions import (
    CONCURRENCY,
    LEAST_PER_SECOND,
    MAX_BULK_IDS,
    MOST_CONCURRENCY,
    MOST_PER_SECOND,
    PER_SECOND,
    BulkAction,
    BulkFilter,
    build_unknown_bulk_error,
)
from ..client.run_states import RunSummary
from ..errors import InvalidInputError
from ..ports.bulk_actions import BulkOutcome, BulkRunRow, BulkState, BulkVerb
from ..types.messages import RUN_ID_CHARS
from .auth import Resource, get_list_scope
from .lists import Instant, PageQuery, RunsQuery, build_run_filters
from .operations import Call, Empty, Input, Operation

TAG = "bulk-actions"


class BulkFilterBody(RunsQuery):
    """Which sessions: at least one field besides ``children``."""

    ids: tuple[Annotated[str, Field(min_length=1, max_length=RUN_ID_CHARS)], ...] = Field((), max_length=MAX_BULK_IDS)
    """Only these, of those that the other fields have."""


class BulkQuestion(Input):
    """A bulk action that is only counted."""

    verb: BulkVerb
    filter: BulkFilterBody


class NewBulkAction(BulkQuestion):
    """A bulk action that is done."""

    as_of: Instant | None = None
    """``as_of`` of the preview: sessions that started later are left out. By default this moment."""
    per_second: float = Field(PER_SECOND, ge=LEAST_PER_SECOND, le=MOST_PER_SECOND)
    """Most sessions that are acted on in a second, at even intervals."""
    concurrency: int = Field(CONCURRENCY, ge=1, le=MOST_CONCURRENCY)
    """Most sessions that are acted on at a time."""


class BulkRunAnswer(BaseModel):
    """A session of a bulk action."""

    session: str
    agent: str
    tenant: str | None = None
    user: str | None = None
    outcome: BulkOutcome
    """``acted``; ``skipped``, for there was nothing to do; ``refused``, for want of a permission; ``failed``, with an
    error. ``pending`` until then, and of a stopped bulk action for good."""
    detail: str | None = None
    """Why it was skipped, refused or failed."""
    done_at: str | None = None


class BulkPreviewAnswer(BaseModel):
    """What a bulk action would do."""

    verb: BulkVerb
    counts: dict[BulkOutcome, int]
    """Sessions that match: ``pending`` would be acted on."""
    data: list[BulkRunAnswer]
    """Some of each."""
    is_complete: bool
    """Whether all that match were counted: a preview stops after 15 s, and after 10,000 sessions."""
    as_of: str


class BulkActionAnswer(BaseModel):
    """A bulk action and how far it is."""

    id: str
    verb: BulkVerb
    filter: dict[str, JsonValue]
    state: BulkState
    """``stopped``: its pending sessions are left as they are."""
    total: int
    counts: dict[BulkOutcome, int]
    by: str
    per_second: float
    concurrency: int
    created_at: str
    ended_at: str | None = None
    stopped_by: str | None = None
    problem: str | None = None
    """Why it stands still, if it does."""


class BulkActionList(BaseModel):
    """A page of bulk actions, the newest first. ``cursor`` is missing at the end."""

    data: list[BulkActionAnswer]
    cursor: str | None = None


class BulkRunsQuery(PageQuery):
    """Which sessions of a bulk action."""

    outcome: BulkOutcome | None = None


class BulkRunList(BaseModel):
    """A page of the sessions of a bulk action, in the order in which they are acted on. ``cursor`` is missing at the
    end; a page may have fewer rows than ``limit`` before that."""

    data: list[BulkRunAnswer]
    cursor: str | None = None


def build_bulk_filter(call: Call, body: BulkFilterBody) -> BulkFilter:
    """Build the filter of a caller: one of a single tenant has the runs of that tenant."""
    filters = build_run_filters(body, body.tenant or call.caller.tenant)
    return BulkFilter(filters, tuple(dict.fromkeys(map(call.caller.read_id, body.ids))))


def check_filter(body: BulkFilterBody) -> None:
    """Raise ``InvalidInputError`` for a filter that names nothing: the tenant of a caller does not count."""
    if not body.model_dump(exclude_defaults=True, exclude={"children"}):
        raise InvalidInputError(
            "filter: it names nothing, which would be every session",
            hint="Name at least one of agent, status, tenant, user, started_from, error, search and ids.",
        )


def build_access(call: Call) -> dict[str, Any]:
    """Build what decides on each run: whether the caller may see it, and whether it may operate it."""

    async def visible(run: RunSummary) -> bool:
        return await call.may("read", _build_resource(run))

    async def may_act(run: RunSummary) -> bool:
        return await call.may("operate", _build_resource(run))

    return {"visible": visible, "may_act": may_act}


def _build_resource(run: RunSummary) -> Resource:
    return Resource("session", run.id, run.agent, run.tenant, run.user)


async def preview_bulk_action(call: Call) -> BulkPreviewAnswer:
    """Count the sessions that a bulk action would act on, and change nothing."""
    body = cast(BulkQuestion, call.body)
    check_filter(body.filter)
    preview = await call.client.bulk_actions.preview(
        body.verb, build_bulk_filter(call, body.filter), **build_access(call)
    )
    return BulkPreviewAnswer(
        verb=preview.verb,
        counts=dict(preview.counts),
        data=[_show_run(run) for run in preview.runs],
        is_complete=preview.is_complete,
        as_of=preview.as_of.isoformat(),
    )


async def create_bulk_action(call: Call) -> BulkActionAnswer:
    """Resume or cancel all sessions that match, in the background; of more than 10,000 the newest."""
    answer = await start_bulk_action(call)
    call.headers["Location"] = call.link("get_bulk_action", bulk=answer.id)
    return answer


async def start_bulk_action(call: Call) -> BulkActionAnswer:
    """Start the bulk action of the body."""
    body = cast(NewBulkAction, call.body)
    check_filter(body.filter)
    action = await call.client.bulk_actions.start(
        body.verb,
        build_bulk_filter(call, body.filter),
        as_of=body.as_of,
        per_second=body.per_second,
        concurrency=body.concurrency,
        id=call.derive_id("bulk"),
        by=call.by,
        **build_access(call),
    )
    return show_action(call, action)


async def list_bulk_actions(call: Call) -> BulkActionList:
    """List bulk actions of the last 30 days, the newest first: one's own, and those of the tenants that one may see."""
    query = cast(PageQuery, call.query)
    page = await call.client.bulk_actions.list(
        limit=query.limit, cursor=query.cursor, visible=lambda action: may_see(call, action)
    )
    return BulkActionList(data=[show_action(call, action) for action in page.actions], cursor=page.cursor)


async def find_bulk_action(call: Call) -> BulkAction:
    """Return the bulk action of the path. Raises ``BulkActionNotFoundError``, also for one that the caller may not
    see."""
    action = await call.client.bulk_actions.get(call.params["bulk"])
    if not may_see(call, action):
        raise build_unknown_bulk_error(action.id)
    return action


def may_see(call: Call, action: BulkAction) -> bool:
    """Whether the caller may see a bulk action: its own, and those of tenants all of whose runs it may see. The users
    of two tenants may have the same name at a proxy."""
    scope = get_list_scope(call.caller)
    if (action.by, action.auth) == (call.caller.name, call.caller.auth):
        return scope.has_tenant(action.tenant) or (action.tenant is None and call.caller.tenant is None)
    return scope.agents is None and scope.sessions is None and scope.has_tenant(action.tenant)


async def get_bulk_action(call: Call) -> BulkActionAnswer:
    """Get a bulk action: how far it is."""
    return show_action(call, await find_bulk_action(call))


async def list_bulk_action_runs(call: Call) -> BulkRunList:
    """List the sessions of a bulk action, and what became of each."""
    query, action = cast(BulkRunsQuery, call.query), await find_bulk_action(call)
    page = await call.client.bulk_actions.runs(action.id, outcome=query.outcome, limit=query.limit, cursor=query.cursor)
    shown = [run for run in page.runs if await may_read_run(call, run)]
    return BulkRunList(data=[_show_run(run) for run in shown], cursor=page.cursor)


async def may_read_run(call: Call, run: BulkRunRow) -> bool:
    """Whether the caller may see that the run was part of a bulk action."""
    return await call.may("read", Resource("session", run.context_id, run.agent, run.tenant, run.user))


async def stop_bulk_action(call: Call) -> BulkActionAnswer:
    """Stop a bulk action: its pending sessions are left as they are."""
    action = await find_bulk_action(call)
    return show_action(call, await call.client.bulk_actions.stop(action.id, by=call.by))


def show_action(call: Call, action: BulkAction) -> BulkActionAnswer:
    """Build the answer for a bulk action, with the ids as the caller names them."""
    fields = {name: getattr(action, name) for name in BulkActionAnswer.model_fields}
    return BulkActionAnswer(**fields | {"filter": show_filter(call, action.filter), "counts": dict(action.counts)})


def show_filter(call: Call, filter: Mapping[str, Any]) -> dict[str, Any]:
    """Return the filter of a bulk action with the ids as the caller names them."""
    ids = filter.get("ids")
    return dict(filter) if ids is None else {**filter, "ids": [call.caller.show_id(one) for one in ids]}


def _show_run(run: BulkRunRow) -> BulkRunAnswer:
    return BulkRunAnswer(
        session=run.context_id,
        agent=run.agent,
        tenant=run.tenant,
        user=run.user,
        outcome=run.outcome,
        detail=run.detail,
        done_at=run.done_at,
    )


_ONE = "/bulk-actions/{bulk:segment}"

OPERATIONS = [
    replace(operation, tag=TAG)
    for operation in (
        Operation(
            "POST", "/bulk-actions/preview", preview_bulk_action, "operate", body=BulkQuestion,
            answer=BulkPreviewAnswer, can_repeat=False,
        ),
        Operation(
            "POST", "/bulk-actions", create_bulk_action, "operate", body=NewBulkAction, answer=BulkActionAnswer,
            status=202,
        ),
        Operation("GET", "/bulk-actions", list_bulk_actions, "operate", query=PageQuery, answer=BulkActionList),
        Operation("GET", _ONE, get_bulk_action, "operate", answer=BulkActionAnswer),
        Operation(
            "GET", f"{_ONE}/runs", list_bulk_action_runs, "operate", query=BulkRunsQuery, answer=BulkRunList
        ),
        Operation("POST", f"{_ONE}/stop", stop_bulk_action, "operate", body=Empty, answer=BulkActionAnswer),
    )
]  # fmt: skip
