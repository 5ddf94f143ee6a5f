"""Repairs the store's lists of waits and of failing calls: rows of runs that ended without a worker, and calls that
wait without a row.

Rows are written and removed with the events of a run (``perdure.ports.waits``, ``perdure.ports.failures``). No worker
runs when a run is terminated or times out; no event is written when one is reset by Temporal's own tools, or its store
is restored.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import NoWorkerError, RunNotFoundError, StoreMismatchError
from ..ports.failures import FailingCall
from ..ports.store import Store
from ..ports.times import format_utc_now, timestamp
from ..ports.waits import WaitRow
from .follow import record_run_end
from .handles import ClientHandle
from .inbox import PendingCall, list_pending_calls

_PAGE_ROWS = 500


@dataclass(frozen=True, slots=True)
class WaitRepairs:
    """What :func:`reconcile_waits` has changed: numbers of rows."""

    removed: int
    """Of waits, and of failing calls."""
    added: int


async def reconcile_waits(client: ClientHandle) -> WaitRepairs:
    """Compare the store's waits and failing calls with the runs: record the end of runs that have ended, which removes
    their rows, and add rows of calls that wait without one, but for runs that are kept in another store.

    One request to Temporal for each run with rows, and what ``Client.approvals`` costs. May run at any time and more
    than once at a time: a row that it adds of a call that is decided meanwhile goes with the run's next step. Raises
    ``StoreError``, ``ServerUnreachableError``, ``TranscriptUnavailableError`` without a store.
    """
    store = await client.store()
    removed_failures = await _remove_ended_failures(client, store)
    rows = await _read_all_waits(store)
    before = len(rows)
    for context_id in dict.fromkeys(row.context_id for row in rows):
        try:
            await record_run_end(client.run(context_id), store)
        except (RunNotFoundError, StoreMismatchError):  # Temporal has deleted it; the id is another run's now
            for row in [row for row in rows if row.context_id == context_id]:
                await store.remove_wait(context_id, row.call_id, row.hash)
    rows = await _read_all_waits(store)
    removed = max(before - len(rows), 0)
    known = {(row.context_id, row.call_id) for row in rows}
    added = 0
    for call in await list_pending_calls(client):
        if (call.run_id, call.call_id) not in known and (wait := await _build_row(store, call)) is not None:
            await store.put_wait(wait)
            added += 1
    return WaitRepairs(removed + removed_failures, added)


async def _remove_ended_failures(client: ClientHandle, store: Store) -> int:
    """Remove the failing calls of runs that have ended, and return their number."""
    before = await _read_all_failures(store)
    for context_id in dict.fromkeys(call.context_id for call in before):
        try:
            await record_run_end(client.run(context_id), store)
        except (RunNotFoundError, StoreMismatchError):  # Temporal has deleted it; the id is another run's now
            await store.remove_failing_calls(context_id)
    left = {(call.context_id, call.call) for call in await _read_all_failures(store)}
    return sum((call.context_id, call.call) not in left for call in before)


async def _read_all_failures(store: Store) -> list[FailingCall]:
    calls: list[FailingCall] = []
    while page := await store.list_failing_calls(
        held_up=False, after=calls[-1].get_cursor() if calls else None, limit=_PAGE_ROWS
    ):
        calls += page
    return calls


async def _read_all_waits(store: Store) -> list[WaitRow]:
    rows: list[WaitRow] = []
    while page := await store.list_waits(after=rows[-1].get_cursor() if rows else None, limit=_PAGE_ROWS):
        rows += page
    return rows


async def _build_row(store: Store, call: PendingCall) -> WaitRow | None:
    """Build the row of a call; None if its run is not known to be kept in this store."""
    run = await store.get_run(call.run_id)
    if run is None:  # it is in another store, or in a newer one than this backup
        try:
            call.run.check_store((await call.run.status(decided=False)).store_id, store)
        except (NoWorkerError, RunNotFoundError, StoreMismatchError):
            return None
    root = run.root if run is not None and run.root is not None else call.run_id
    since = format_utc_now() if call.since is None else timestamp(call.since)
    expires_at = None if call.expires is None else timestamp(call.expires)
    return WaitRow(
        *(call.run_id, call.call_id, root, call.kind, call.agent, call.tool, call.hash, since, expires_at),
        summary=call.summary,
    )
