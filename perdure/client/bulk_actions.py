"""Bulk actions: resume or cancel all runs that match a filter. A workflow acts on them, so that no client has to wait.

A preview counts what would be done. A confirmation chooses the runs, with the permissions that the caller has then, and
records them in the store; a worker acts on each (``worker/bulk_actions.py``). See docs/decisions/074-bulk-actions.md.
"""

from __future__ import annotations

import asyncio
import json
import time
import uuid
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any, get_args

from temporalio.common import WorkflowIDReusePolicy
from temporalio.exceptions import WorkflowAlreadyStartedError
from temporalio.service import RPCError, RPCStatusCode

from ..errors import BulkActionNotFoundError, InvalidInputError, StoreError, TranscriptUnavailableError
from ..ports.bulk_actions import OUTCOMES, BulkOutcome, BulkRow, BulkRunRow, BulkState, BulkVerb
from ..ports.store import Store
from ..temporal.errors import translate_service_error
from ..types.interface import BULK_WORKFLOW_TYPE
from ..types.messages import NAME_CHARS, RUN_ID_CHARS, clean_text
from ..types.run_states import ENDED_STATES
from .audit import audit_steering, find_actor
from .handles import ClientHandle
from .pages import MAX_PAGE, check_page_limit, decode_cursor, encode_cursor
from .run_pages import RunFilters, Visible, list_run_page, list_runs_by_id
from .run_states import RunSummary

MAX_BULK_RUNS = 10_000
"""Most runs of one bulk action; of more that match, the newest."""
MAX_BULK_IDS = 500
"""Most ids that a filter names."""
PER_SECOND, CONCURRENCY = 5.0, 10
"""Defaults: runs that are resumed at once call the same provider, which may have come back a moment ago."""
LEAST_PER_SECOND, MOST_PER_SECOND, MOST_CONCURRENCY = 0.1, 100.0, 50
KEEP_BULKS = timedelta(days=30)
"""How long a bulk action is kept behind its end."""
SAMPLE_RUNS = 20
"""Runs of a preview, for each outcome."""
_PREVIEW_SECONDS = 15.0
"""Longest time of a preview; then its counts are of the runs that were found so far."""
_POLL_SECONDS = 0.5
_BULK_ID_PREFIX = "perdure-bulk/"
_RESUMABLE = ("failed", "cancelled", "terminated", "timed_out", "paused")

MayAct = Callable[[RunSummary], Awaitable[bool]]
"""Says whether who asks may act on a run."""


@dataclass(frozen=True, slots=True)
class BulkFilter:
    """Which runs a bulk action is for: those of ``filters``, or with ``ids`` those of them that have such an id."""

    filters: RunFilters = field(default_factory=RunFilters)
    ids: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """Return what it names, as plain JSON."""
        given = {name: value for name, value in self.filters.as_dict().items() if value is not None and name != "roots"}
        given |= {} if self.filters.roots else {"children": True}
        return given | ({"ids": list(self.ids)} if self.ids else {})

    @property
    def is_empty(self) -> bool:
        """Whether it names nothing, which is every run."""
        return not set(self.as_dict()) - {"children"}


@dataclass(frozen=True, slots=True)
class BulkPreview:
    """What a bulk action would do."""

    verb: BulkVerb
    counts: Mapping[BulkOutcome, int]
    """Runs that match: ``pending`` would be acted on; ``skipped`` have nothing to resume or cancel, and ``refused``
    need a permission."""
    runs: tuple[BulkRunRow, ...]
    """Some of each; ``detail`` is why it is skipped or refused."""
    is_complete: bool
    """Whether all that match were counted."""
    as_of: datetime
    """When it was made. A bulk action with it leaves out runs that started later."""


@dataclass(frozen=True, slots=True)
class BulkAction:
    """A bulk action and how far it is."""

    id: str
    verb: BulkVerb
    filter: Mapping[str, Any]
    state: BulkState
    total: int
    counts: Mapping[BulkOutcome, int]
    by: str
    per_second: float
    concurrency: int
    created_at: str
    ended_at: str | None
    stopped_by: str | None
    tenant: str | None = None
    auth: str = ""
    """How it is known who confirmed it."""
    problem: str | None = None
    """Why it stands still, if it does."""

    @property
    def is_over(self) -> bool:
        """Whether nothing more is done."""
        return self.state != "running"


@dataclass(frozen=True, slots=True)
class BulkRunPage:
    """A page of the runs of a bulk action. ``cursor`` begins the next page; None at the end."""

    runs: tuple[BulkRunRow, ...]
    cursor: str | None


@dataclass(frozen=True, slots=True)
class BulkActionPage:
    """A page of bulk actions, the newest first."""

    actions: tuple[BulkAction, ...]
    cursor: str | None


class BulkActions:
    """Resumes or cancels all runs that match. Needs the store."""

    def __init__(self, client: ClientHandle) -> None:
        self._client = client

    async def preview(
        self, verb: BulkVerb, filter: BulkFilter, *, visible: Visible | None = None, may_act: MayAct | None = None
    ) -> BulkPreview:
        """Count what :meth:`start` would do, and change nothing. Stops after 15 s; ``is_complete`` says so.

        Raises ``InvalidInputError`` for a verb or a filter that :meth:`start` refuses.
        """
        check_bulk(verb, filter)
        await self._open_store()
        counts: Counter[BulkOutcome] = Counter()
        sample: list[BulkRunRow] = []
        as_of, is_complete, ends_at = datetime.now(UTC), True, time.monotonic() + _PREVIEW_SECONDS
        async for row in self._choose(verb, _limit_start(filter, as_of), visible, may_act):
            if sum(counts.values()) >= MAX_BULK_RUNS or time.monotonic() > ends_at:
                is_complete = False
                break
            counts[row.outcome] += 1
            if counts[row.outcome] <= SAMPLE_RUNS:
                sample.append(row)
        return BulkPreview(verb, dict(counts), tuple(sample), is_complete, as_of)

    async def start(
        self,
        verb: BulkVerb,
        filter: BulkFilter,
        *,
        as_of: datetime | None = None,
        per_second: float = PER_SECOND,
        concurrency: int = CONCURRENCY,
        id: str | None = None,
        by: str | None = None,
        visible: Visible | None = None,
        may_act: MayAct | None = None,
    ) -> BulkAction:
        """Choose the runs that match, and start to resume or cancel them (``verb``): ``per_second`` at most, so many at
        a time. A worker of the task queue does it, whatever becomes of this client.

        ``as_of``: leave out runs that started after this time. ``id``: a bulk action of that id is started once.
        ``visible`` and ``may_act`` decide on each run, once, now: others are left out, or ``refused``. Raises
        ``InvalidInputError`` for a filter that names nothing, and if there is no run to act on.
        """
        check_bulk(verb, filter)
        _check_rate(per_second, concurrency)
        store, bulk_id = await self._open_store(), id or uuid.uuid4().hex
        if await store.get_bulk(bulk_id) is not None:
            await self._start_workflow(bulk_id)
            return await self.get(bulk_id)
        chosen: list[BulkRunRow] = []
        async for row in self._choose(verb, _limit_start(filter, as_of or datetime.now(UTC)), visible, may_act):
            if len(chosen) >= MAX_BULK_RUNS:
                break
            chosen.append(replace(row, position=len(chosen)))
        actor, auth, origin = find_actor(self._client, by)
        names, filters = json.dumps(filter.as_dict(), ensure_ascii=False), filter.filters
        pending = sum(row.outcome == "pending" for row in chosen)
        labels = {"agent": filters.agent, **filters.labels}
        detail = f"{pending:,} of {len(chosen):,} runs: {names}"
        async with audit_steering(self._client, f"bulk.{verb}", bulk_id, by=actor, detail=detail, labels=labels):
            if not pending:
                raise InvalidInputError(
                    f"there is no run to {verb} among the {len(chosen):,} that match",
                    hint="A preview says why: `--dry-run`.",
                )
            row_of_bulk = BulkRow(
                *(bulk_id, verb, names, filters.tenant, filters.user, actor, auth, origin),
                *(len(chosen), float(per_second), concurrency),
            )
            await store.create_bulk(row_of_bulk, chosen)
            await self._start_workflow(bulk_id)
        return await self.get(bulk_id)

    async def get(self, id: str) -> BulkAction:
        """Return a bulk action and how far it is. Raises ``BulkActionNotFoundError`` for an unknown one."""
        store = await self._open_store()
        row = await store.get_bulk(id) if _is_id(id) else None
        if row is None:
            raise build_unknown_bulk_error(id)
        action = _build_action(row, (await store.count_bulk_runs([id]))[id])
        return action if action.is_over else replace(action, problem=await self._find_problem(id))

    async def list(
        self, *, limit: int = 50, cursor: str | None = None, visible: Callable[[BulkAction], bool] | None = None
    ) -> BulkActionPage:
        """List bulk actions, the newest first. They are kept for 30 days behind their end."""
        check_page_limit(limit)
        store = await self._open_store()
        after = None if cursor is None else decode_cursor("bulks", {}, cursor, 2)
        rows = await store.list_bulks(after=None if after is None else (after[0], after[1]), limit=limit)
        counts = await store.count_bulk_runs([row.id for row in rows])
        actions = [_build_action(row, counts[row.id]) for row in rows]
        next_cursor = encode_cursor("bulks", {}, (rows[-1].created_at, rows[-1].id)) if len(rows) == limit else None
        return BulkActionPage(tuple(one for one in actions if visible is None or visible(one)), next_cursor)

    async def runs(
        self, id: str, *, outcome: BulkOutcome | None = None, limit: int = 50, cursor: str | None = None
    ) -> BulkRunPage:
        """List what became of the runs of a bulk action, in the order in which they are acted on."""
        check_page_limit(limit)
        if outcome is not None and outcome not in OUTCOMES:
            raise InvalidInputError(f"outcome: {outcome!r:.40} is none of {', '.join(OUTCOMES)}")
        action = await self.get(id)
        filters = {"id": id, "outcome": outcome}
        try:
            after = -1 if cursor is None else int(decode_cursor("bulk-runs", filters, cursor, 1)[0])
        except ValueError:
            raise InvalidInputError("cursor: it is damaged", hint="Begin again without a cursor.") from None
        rows = await (await self._open_store()).list_bulk_runs(
            action.id, outcome=outcome, after=min(max(after, -1), MAX_BULK_RUNS), limit=limit
        )
        next_cursor = encode_cursor("bulk-runs", filters, (str(rows[-1].position),)) if len(rows) == limit else None
        return BulkRunPage(tuple(rows), next_cursor)

    async def stop(self, id: str, *, by: str | None = None) -> BulkAction:
        """Stop a bulk action: runs that are pending are left as they are. Nothing for one that is over."""
        action = await self.get(id)
        labels = {"tenant": action.tenant}
        async with audit_steering(self._client, "bulk.stop", action.id, by=by, labels=labels):
            await (await self._open_store()).end_bulk(action.id, "stopped", by or self._client.actor)
        return await self.get(action.id)

    async def wait(self, id: str, *, seconds: float | None = None) -> BulkAction:
        """Wait until a bulk action is over; with ``seconds`` no longer than that."""
        ends_at = None if seconds is None else time.monotonic() + seconds
        while True:
            action = await self.get(id)
            if action.is_over or (ends_at is not None and time.monotonic() >= ends_at):
                return action
            await asyncio.sleep(_POLL_SECONDS)

    async def _choose(
        self, verb: BulkVerb, filter: BulkFilter, visible: Visible | None, may_act: MayAct | None
    ) -> AsyncGenerator[BulkRunRow]:
        async for run in self._list(filter, visible):
            row = BulkRunRow(run.id, 0, run.execution or "", run.agent, run.tenant, run.user)
            if (reason := find_obstacle(verb, run)) is not None:
                yield replace(row, outcome="skipped", detail=reason)
            elif may_act is not None and not await may_act(run):
                yield replace(row, outcome="refused", detail=f"{verb} needs the permission to operate the run")
            else:
                yield row

    async def _list(self, filter: BulkFilter, visible: Visible | None) -> AsyncGenerator[RunSummary]:
        """Yield the runs that match, each once."""
        if filter.ids:
            for run in await list_runs_by_id(self._client, filter.ids, filter.filters):
                if visible is None or await visible(run):
                    yield run
            return
        seen: set[str] = set()
        cursor: str | None = None
        while True:
            page = await list_run_page(self._client, filter.filters, limit=MAX_PAGE, cursor=cursor, visible=visible)
            for run in page.runs:
                if run.id not in seen:
                    seen.add(run.id)
                    yield run
            if (cursor := page.cursor) is None:
                return

    async def _start_workflow(self, id: str) -> None:
        temporal = self._client.temporal
        try:
            await temporal.start_workflow(
                BULK_WORKFLOW_TYPE,
                {"id": id},
                id=f"{_BULK_ID_PREFIX}{id}",
                task_queue=self._client.task_queue,
                id_reuse_policy=WorkflowIDReusePolicy.REJECT_DUPLICATE,
            )
        except WorkflowAlreadyStartedError:
            return
        except RPCError as error:
            raise translate_service_error(temporal, error) from error

    async def _find_problem(self, id: str) -> str | None:
        """Say why a bulk action that is not over stands still; None if nothing is wrong, or that is not known."""
        try:
            execution = await self._client.temporal.get_workflow_handle(f"{_BULK_ID_PREFIX}{id}").describe()
        except RPCError as error:
            if error.status is not RPCStatusCode.NOT_FOUND:
                return None
            return "its workflow was not started, or is gone"
        if execution.close_time is not None:
            current = await (await self._open_store()).get_bulk(id)
            is_over = current is None or current.state != "running"
            return None if is_over else "its workflow has ended before it was done"
        for pending in execution.raw_description.pending_activities:
            if pending.attempt > 1 and pending.HasField("last_failure"):
                return f"attempt {pending.attempt}: {clean_text(pending.last_failure.message)[:300]}"
        if execution.history_length <= 2:  # started, and its first task scheduled
            return f"no worker of task queue {execution.task_queue} has taken it yet"
        return None

    async def _open_store(self) -> Store:
        if self._client.store_url is None:
            raise TranscriptUnavailableError(
                "this client has no store, which keeps bulk actions", hint="Set PERDURE_STORE_URL, as for the workers."
            )
        store = await self._client.store()
        if not store.store_id:
            raise StoreError(f"there is no store at {store.place} yet", hint="Start a worker: it creates the store.")
        return store


def find_obstacle(verb: BulkVerb, run: RunSummary) -> str | None:
    """Return why there is nothing to do with a run; None if there is."""
    if not run.execution:
        return "Temporal does not have it any more"
    if verb == "resume":
        if run.status in _RESUMABLE:
            return None
        return "it has completed" if run.status == "completed" else f"it is {_show(run.status)}"
    return f"it has ended: {_show(run.status)}" if run.status in ENDED_STATES else None


def _show(state: str) -> str:
    return state.replace("_", " ")


def check_bulk(verb: object, filter: BulkFilter) -> None:
    """Raise ``InvalidInputError`` for a verb that there is not, or a filter that names nothing."""
    if verb not in get_args(BulkVerb):
        raise InvalidInputError(f"a bulk action is to resume or to cancel, not {verb!r:.40}")
    if filter.is_empty:
        raise InvalidInputError(
            f"the filter names nothing, so this would {verb} every run",
            hint="Name at least one of agent, status, tenant, user, started, error, search and ids.",
        )
    if len(filter.ids) > MAX_BULK_IDS:
        raise InvalidInputError(f"ids: there may be {MAX_BULK_IDS}, not {len(filter.ids):,}")
    for name in filter.ids:
        if not isinstance(name, str) or not 0 < len(name) <= RUN_ID_CHARS or name != clean_text(name):
            raise InvalidInputError(f"ids: {name!r:.60} is not the id of a run")


def _check_rate(per_second: object, concurrency: object) -> None:
    is_number = isinstance(per_second, int | float) and not isinstance(per_second, bool)
    if not is_number or not LEAST_PER_SECOND <= per_second <= MOST_PER_SECOND:  # type: ignore[operator]  # a number
        raise InvalidInputError(
            f"per_second must be a number from {LEAST_PER_SECOND:g} to {MOST_PER_SECOND:g}, not {per_second!r:.40}"
        )
    if not isinstance(concurrency, int) or isinstance(concurrency, bool) or not 1 <= concurrency <= MOST_CONCURRENCY:
        raise InvalidInputError(f"concurrency must be a number from 1 to {MOST_CONCURRENCY}, not {concurrency!r:.40}")


def _limit_start(filter: BulkFilter, as_of: datetime) -> BulkFilter:
    """Return the filter without runs that start later: no one has seen them."""
    before = filter.filters.started_before
    return replace(filter, filters=replace(filter.filters, started_before=min(before or as_of, as_of)))


def _is_id(id: object) -> bool:
    return isinstance(id, str) and 0 < len(id) <= NAME_CHARS and id == clean_text(id)


def build_unknown_bulk_error(id: object) -> BulkActionNotFoundError:
    """Build the error for a bulk action that does not exist, or is none of the caller's: the same for both."""
    return BulkActionNotFoundError(f"there is no bulk action {id!r:.100}", hint="They are kept for 30 days.")


def _build_action(row: BulkRow, counts: Mapping[BulkOutcome, int]) -> BulkAction:
    return BulkAction(
        *(row.id, row.verb, json.loads(row.filter), row.state, row.total, counts, row.by, row.per_second),
        *(row.concurrency, row.created_at, row.ended_at, row.stopped_by, row.tenant, row.auth),
    )
