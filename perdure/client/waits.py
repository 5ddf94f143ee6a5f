"""Repairs the store's list of waits: rows of runs that ended without a worker, and calls that wait without a row.

Rows are written and removed with the events of a run (``perdure.ports.surfaces``). No worker runs when a run is
terminated or times out; no event is written when one is reset by Temporal's own tools, or its store is restored.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import RunNotFoundError
from ..ports import Store, WaitRow, timestamp
from ..ports.store import format_utc_now
from .follow import record_run_end
from .handles import ClientHandle
from .inbox import PendingCall, list_pending_calls

_PAGE_ROWS = 500


@dataclass(frozen=True, slots=True)
class WaitRepairs:
    """What :func:`reconcile_waits` has changed: numbers of rows."""

    removed: int
    added: int


async def reconcile_waits(client: ClientHandle) -> WaitRepairs:
    """Compare the store's waits with the runs: record the end of runs that have ended, which removes their rows, and
    add rows of calls that wait without one.

    One request to Temporal for each run with rows, and what ``Client.approvals`` costs. May run at any time and more
    than once at a time: a row that it adds of a call that is decided meanwhile goes with the run's next step. Raises
    ``StoreError``, ``ServerUnreachableError``, ``TranscriptUnavailableError`` without a store.
    """
    store = await client.store()
    rows = await _read_all_waits(store)
    before = len(rows)
    for context_id in dict.fromkeys(row.context_id for row in rows):
        try:
            await record_run_end(client.run(context_id), store)
        except RunNotFoundError:  # Temporal has deleted it
            for row in [row for row in rows if row.context_id == context_id]:
                await store.remove_wait(context_id, row.call_id, row.hash)
    rows = await _read_all_waits(store)
    removed = max(before - len(rows), 0)
    known = {(row.context_id, row.call_id) for row in rows}
    missing = [call for call in await list_pending_calls(client) if (call.run_id, call.call_id) not in known]
    for call in missing:
        await store.put_wait(await _build_row(store, call))
    return WaitRepairs(removed, len(missing))


async def _read_all_waits(store: Store) -> list[WaitRow]:
    rows: list[WaitRow] = []
    while page := await store.list_waits(after=rows[-1].get_cursor() if rows else None, limit=_PAGE_ROWS):
        rows += page
    return rows


async def _build_row(store: Store, call: PendingCall) -> WaitRow:
    run = await store.get_run(call.run_id)
    root = run.root if run is not None and run.root is not None else call.run_id
    since = format_utc_now() if call.since is None else timestamp(call.since)
    expires_at = None if call.expires is None else timestamp(call.expires)
    return WaitRow(call.run_id, call.call_id, root, call.kind, call.agent, call.tool, call.hash, since, expires_at)
