"""Lists the pending calls of all runs, and approves, denies and answers them."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from pydantic import TypeAdapter

from ..errors import NoWorkerError, PerdureError, RunClosedError, RunNotFoundError
from ..types.approvals import DecidedApproval, PendingApproval, PendingKind
from ..types.interface import PENDING_ATTRIBUTE, WAITING_MEMO, WORKFLOW_TYPE, Status
from .decisions import answer_pending_call, decide_pending_call
from .visibility import (
    MAY_WAIT_FILTER,
    attribute_of,
    build_agent_filter,
    build_closed_status,
    find_agent_name,
    list_executions,
)

if TYPE_CHECKING:
    from temporalio.client import WorkflowExecution

    from .client import Client
    from .run import Run


# ---
# Pending calls from a run's memo in Temporal, without a request to a worker.


logger = logging.getLogger("perdure.client")

_PENDING_ADAPTER = TypeAdapter(tuple[PendingApproval, ...])


async def read_pending_memo(seen: WorkflowExecution) -> tuple[PendingApproval, ...] | None:
    """Return the pending calls of the run ``seen``; None if only the run itself has them.

    That is a run without the attribute of their number, or whose memo does not have them: the list is too long for it,
    or the run has just continued as new. Number and list are written together.
    """
    pending = attribute_of(seen, PENDING_ATTRIBUTE)
    if not isinstance(pending, int):
        return None
    if pending == 0:
        return ()
    try:
        found = _PENDING_ADAPTER.validate_python((await seen.memo()).get(WAITING_MEMO) or ())
    except Exception as error:  # an unavailable or different codec, or a memo written by another program
        logger.warning("what waits in run %s cannot be read from its memo: %s", seen.id, error)
        return None
    return found if len(found) == pending else None


_MAX_CONCURRENT_STATUS_READS = 5
"""Runs that are asked for their status concurrently. More are not faster where the worker has to load them."""


@dataclass(frozen=True, slots=True)
class PendingCall:
    """A call that waits for an approval or an answer, with the methods to give it."""

    run: Run
    agent: str
    call_id: str
    tool: str
    arguments: dict[str, Any] | None
    """None where they are too large for history; ``run.transcript()`` has them."""
    since: datetime | None
    expires: datetime | None
    """When the wait expires, and the call is denied or, if its tool says so, approved."""
    hash: str
    """Identifies the call with these arguments, or its question: a decision or an answer with this hash applies to no
    other."""
    kind: PendingKind = "approval"
    """``question``: its tool asks a question. ``callback``: a client runs the call, and answers with the result."""
    question: str | None = None
    """The question of its tool."""
    form: dict[str, Any] | None = None
    """JSON Schema of the answer; None takes anything."""

    @property
    def run_id(self) -> str:
        """Id of the conversation."""
        return self.run.id

    async def approve(
        self,
        *,
        by: str | None = None,
        comment: str | None = None,
        arguments: Mapping[str, Any] | None = None,
        always: bool = False,
    ) -> DecidedApproval:
        """See ``Run.approve``."""
        return await self._send_decision_for_call("approve", by=by, comment=comment, arguments=arguments, always=always)

    async def deny(self, *, by: str | None = None, comment: str | None = None) -> DecidedApproval:
        """See ``Run.deny``."""
        return await self._send_decision_for_call("deny", by=by, comment=comment)

    async def answer(self, value: Any = None, *, error: str | None = None, by: str | None = None) -> DecidedApproval:
        """See ``Run.answer``."""
        return await answer_pending_call(self.run, self.call_id, value, error=error, by=by, **self._looked_at())

    async def _send_decision_for_call(self, decision: str, **said: Any) -> DecidedApproval:
        return await decide_pending_call(self.run, self.call_id, decision, **self._looked_at(), **said)

    def _looked_at(self) -> dict[str, Any]:
        return {"digest": self.hash, "since": self.since.isoformat() if self.since else None}


async def list_pending_calls(client: Client, *, agent: str | None = None, limit: int = 1000) -> list[PendingCall]:
    """See ``Client.approvals``."""
    asking = asyncio.Semaphore(_MAX_CONCURRENT_STATUS_READS)

    async def ask(seen: WorkflowExecution) -> list[PendingCall] | None:
        async with asking:
            return await _read_pending_calls(client, seen, agent)

    open_runs = f"WorkflowType = '{WORKFLOW_TYPE}' AND ExecutionStatus = 'Running'"
    narrower = (MAY_WAIT_FILTER, *(() if agent is None else (build_agent_filter(agent),)))
    runs = [seen async for seen in list_executions(client, open_runs, *narrower)]
    random.shuffle(runs)  # so that concurrent clients do not ask the same run at the same moment
    found = await asyncio.gather(*map(ask, runs))
    silent = [seen for seen, some in zip(runs, found, strict=True) if some is None]
    if silent and len(silent) < len(runs):  # there is a worker
        found += (again := await asyncio.gather(*map(ask, silent)))
        silent = [seen for seen, some in zip(silent, again, strict=True) if some is None]
    for seen in silent:
        logger.warning("run %s does not say what waits in it: no worker has answered", seen.id)
    waiting = [one for some in found for one in some or ()]
    waiting.sort(key=lambda one: (one.since.timestamp() if one.since else 0.0, one.run_id, one.call_id))
    return waiting[:limit]


async def list_pending_calls_of_run(run: Run) -> list[PendingCall]:
    """List the pending calls of ``run`` and of its subagents."""
    status = await run.status()
    waiting = [_build_inbox_call(run, status.agent, one) for one in status.approvals]
    below = [call.context_id for call in status.calls if call.context_id is not None]
    below += [one.context_id for one in status.background if one.state == "running"]
    for child in dict.fromkeys(below):
        with suppress(RunNotFoundError):  # the child run has not started yet
            waiting += await list_pending_calls_of_run(run.client.run(child))
    return waiting


async def _read_pending_calls(client: Client, seen: WorkflowExecution, agent: str | None) -> list[PendingCall] | None:
    """Read the pending calls of a run; None if no worker has answered."""
    name = await find_agent_name(client, seen)
    if agent is not None and name not in ("", agent):
        return []
    run = client.run(seen.id)
    try:
        now = await run.describe()  # the listing may be a moment old
        if build_closed_status(now) is not None:
            return []
        name = name or await find_agent_name(client, now)
        if name and (known := await read_pending_memo(now)) is not None:
            return [_build_inbox_call(run, name, one) for one in known if agent in (None, name)]
        status = Status.model_validate(await run.ask_workflow("status"))
    except NoWorkerError:
        return None
    except RunClosedError:
        return []
    except PerdureError as error:
        logger.warning("run %s cannot say what waits in it: %s", seen.id, error)
        return []
    if agent is not None and status.agent != agent:
        return []
    return [_build_inbox_call(run, status.agent, one) for one in status.approvals]


def _build_inbox_call(run: Run, agent: str, one: PendingApproval) -> PendingCall:
    return PendingCall(
        run=run,
        agent=agent,
        tool=one.name,
        since=_parse_optional_time(one.since),
        expires=_parse_optional_time(one.expires),
        **one.model_dump(include={"call_id", "arguments", "hash", "kind", "question", "form"}),
    )


def _parse_optional_time(text: str | None) -> datetime | None:
    return None if text is None else datetime.fromisoformat(text)


__all__ = ["PendingCall", "list_pending_calls", "list_pending_calls_of_run"]
