"""Decisions that can be taken back for some seconds: rows of the store, which any process with a sender sends when due.

A decision is bound to its call and the hash of what was reviewed, and the run returns a repeated one as it was taken: a
sender that is killed between sending and recording the answer loses nothing, and the next one doubles nothing. See
docs/decisions/054-decisions-that-can-be-taken-back.md.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from temporalio.service import RPCError

from ..errors import (
    NotWaitingYetError,
    NoWorkerError,
    PerdureError,
    RuntimeSetupError,
    StoreError,
    build_error,
    join_sentences,
)
from ..ports.decisions import DecisionRow
from ..ports.store import Store
from ..ports.test_seams import reach_point
from ..ports.times import timestamp
from ..types.approvals import DecidedApproval
from .audit import audit_caller
from .decisions import WaitRef, decide_pending_call
from .handles import ClientHandle, RunHandle
from .progress import build_no_worker_error, has_poller, refuse_without_worker

logger = logging.getLogger("perdure.client")

UNDO_SECONDS = 5.0
"""How long a decision can be taken back."""
KEEP_ANSWERS = timedelta(days=1)
"""How long a row that has its answer is kept, for the pages that wait for it."""
GIVE_UP = timedelta(hours=1)
"""A decision that no worker has taken by then is dropped: one must not take effect days after it was made."""
_LEASE_SECONDS = 30.0
_RETRY_SECONDS = 2.0
_POLL_SECONDS = 0.5
_CLEAN_SECONDS = 600.0
_BATCH = 20
_WAIT_ERRORS = (NoWorkerError, RuntimeSetupError, StoreError, NotWaitingYetError)
"""Errors after which a decision is sent again: they say nothing of the call."""


@dataclass(frozen=True, slots=True)
class DeferredAnswer:
    """What became of a decision: as the run has taken it, or the error that it was refused with."""

    decided: DecidedApproval | None
    error: PerdureError | None


def build_decision_row(
    call: tuple[str, str, str], owner: Mapping[str, str | None], caller: tuple[str, str, str], fields: Mapping[str, Any]
) -> DecisionRow:
    """Build the row of a new decision on ``call`` (run, call, hash). ``owner`` has the run's ``agent``, ``tenant`` and
    ``user``, and the ``tool``; ``caller`` is who decides, how that is known, and from where; ``fields`` are
    ``decision``, ``comment``, ``arguments`` and ``always``."""
    body = json.dumps({name: value for name, value in fields.items() if value is not None}).encode()
    agent, tool = owner.get("agent") or "", owner.get("tool") or ""
    return DecisionRow(uuid.uuid4().hex, *call, agent, tool, owner.get("tenant"), owner.get("user"), *caller, body)


def read_answer(row: DecisionRow) -> DeferredAnswer | None:
    """Read what became of a decision; None while it has no answer."""
    if row.answer is None:
        return None
    fields = json.loads(row.answer)
    if "decided" in fields:
        return DeferredAnswer(DecidedApproval.model_validate(fields["decided"]), None)
    error = build_error(fields["error"], fields["message"])
    error.hint = fields["hint"]
    return DeferredAnswer(None, error)


class DecisionSender:
    """Sends decisions that are due. Any number of them may run: a row is sent by who takes it."""

    def __init__(self, client: ClientHandle) -> None:
        self._client = client
        self._owner = uuid.uuid4().hex
        self._running: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Send in the background until no decision is open, unless this sender does already."""
        if self._running is None or self._running.done():
            self._running = asyncio.create_task(self._run_until_idle())

    async def _run_until_idle(self) -> None:
        try:
            store = await self._client.store()
            while store.store_id and await store.has_open_decisions():
                if not await self.send_due():
                    await asyncio.sleep(_POLL_SECONDS)
        except (PerdureError, RPCError) as error:  # the next request starts it again
            logger.warning("decisions are not sent at the moment: %s: %s", type(error).__name__, error)

    async def run(self) -> None:
        """Send until cancelled. Failures are logged once, and tried again."""
        problem, clean_at = "", time.monotonic()
        while True:
            try:
                sent = await self.send_due()
                if time.monotonic() >= clean_at:
                    clean_at = time.monotonic() + _CLEAN_SECONDS
                    await delete_old_decisions(await self._client.store())
                problem = ""
            except Exception as error:  # the rows stay
                sent, text = 0, f"{type(error).__name__}: {error}"
                if text != problem:
                    problem = text
                    logger.warning("decisions are not sent at the moment: %s", text)
            if not sent:
                await asyncio.sleep(2 * _POLL_SECONDS)

    async def send_due(self) -> int:
        """Send the decisions that are due now, and return how many there were."""
        store = await self._client.store()
        if not store.store_id or not await store.has_open_decisions():
            return 0
        rows = await store.take_decisions(self._owner, lease_seconds=_LEASE_SECONDS, limit=_BATCH)
        reach_point("decision.taken")
        await asyncio.gather(*(self._send(store, row) for row in rows))
        return len(rows)

    async def _send(self, store: Store, row: DecisionRow) -> None:
        """Send a taken decision, and record the answer, or what it waits for."""
        has_begun = row.attempts > 1  # by an earlier attempt, or by a sender that was lost
        try:
            run = self._client.run(row.context_id)
            if (missing := await _find_missing_worker(run)) is not None:
                raise missing
            has_begun = True
            with audit_caller(row.auth, row.origin):
                decided = await refuse_without_worker(run, _decide(run, row))
            reach_point("decision.sent")
            answer: dict[str, Any] = {"decided": decided.model_dump(mode="json")}
        except _WAIT_ERRORS as error:
            if datetime.now(UTC) - datetime.fromisoformat(row.due_at) < GIVE_UP:
                note = join_sentences(error.message, error.hint)
                await store.postpone_decision(self._owner, row, note, _RETRY_SECONDS, has_begun=has_begun)
                return
            answer = _describe_error(error)
        except PerdureError as error:
            answer = _describe_error(error)
        await store.settle_decision(self._owner, row, json.dumps(answer).encode())


def _describe_error(error: PerdureError) -> dict[str, Any]:
    return {"error": type(error).__name__, "message": error.message, "hint": error.hint}


async def _decide(run: RunHandle, row: DecisionRow) -> DecidedApproval:
    fields = json.loads(row.body)
    return await decide_pending_call(
        run,
        WaitRef(row.call_id, row.hash),
        fields["decision"],
        by=row.by,
        comment=fields.get("comment"),
        arguments=fields.get("arguments"),
        always=fields.get("always", False),
    )


async def _find_missing_worker(run: RunHandle) -> NoWorkerError | None:
    """Return the error for a run that no worker serves, before anything is sent to it: then it can be taken back."""
    described = await run.describe()
    if described.close_time is not None or await has_poller(run.client, described, lately=True):
        return None
    return await build_no_worker_error(run.client, described, (timedelta(minutes=1)).total_seconds())


async def delete_old_decisions(store: Store) -> int:
    """Delete rows that have had their answer for long enough."""
    return await store.delete_settled_decisions(timestamp(datetime.now(UTC) - KEEP_ANSWERS))
