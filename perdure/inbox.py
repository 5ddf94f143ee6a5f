"""What waits for people, over all runs: to be looked at, approved, denied and answered."""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import random
import uuid
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from temporalio.client import WorkflowQueryFailedError, WorkflowUpdateFailedError
from temporalio.client import WorkflowUpdateRPCTimeoutOrCancelledError as NoAnswer
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError

from .answering import answer
from .decided import decision_of
from .errors import (
    ApprovalDecidedError,
    ApprovalExpiredError,
    InvalidInputError,
    PerdureError,
    RunClosedError,
    RunNotFoundError,
    from_type,
)
from .listed import MAY_WAIT, listed, of_agent
from .loop import repeats
from .reading import NO_ANSWER
from .runs import agent_of
from .translate import closed_error, unreachable
from .types.approval import ApprovalDecision, DecidedApproval, PendingApproval, StandingApproval, WaitsFor
from .types.interface import WORKFLOW, Status

if TYPE_CHECKING:
    from temporalio.client import WorkflowExecution

    from .client import Client
    from .run import Run

logger = logging.getLogger("perdure.client")

_AT_ONCE = 5
"""Runs that are asked at once what waits in them. More are no quicker where the worker has to load them."""
_ENDED = "AcceptedUpdateCompletedWorkflow"


@dataclass(frozen=True, slots=True)
class PendingCall:
    """A call that waits for somebody's approval or answer, and the way to give it."""

    run: Run
    agent: str
    call_id: str
    tool: str
    arguments: dict[str, Any] | None
    """None where they are too large for history: ``run.transcript()`` has them."""
    since: datetime | None
    expires: datetime | None
    """When the wait ends by itself, and the call is denied or, if its tool says so, approved."""
    hash: str
    """Names the call with these arguments, or what it asks: what is decided or answered holds for no other."""
    kind: WaitsFor = "approval"
    """``question``: its tool asks something. ``callback``: a client is to run it, and answers with the result."""
    question: str | None = None
    """What its tool asks."""
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
        return await self._decide("approve", by=by, comment=comment, arguments=arguments, always=always)

    async def deny(self, *, by: str | None = None, comment: str | None = None) -> DecidedApproval:
        """See ``Run.deny``."""
        return await self._decide("deny", by=by, comment=comment)

    async def answer(self, value: Any = None, *, error: str | None = None, by: str | None = None) -> DecidedApproval:
        """See ``Run.answer``."""
        since = self.since.isoformat() if self.since else None
        return await answer(self.run, self.call_id, value, error=error, by=by, digest=self.hash, since=since)

    async def _decide(self, decision: str, **said: Any) -> DecidedApproval:
        since = self.since.isoformat() if self.since else None
        return await decide(self.run, self.call_id, decision, digest=self.hash, since=since, **said)


async def decide(
    run: Run,
    call_id: str | None,
    decision: str,
    *,
    by: str | None,
    comment: str | None,
    arguments: Mapping[str, Any] | None = None,
    always: bool = False,
    digest: str | None = None,
    since: str | None = None,
) -> DecidedApproval:
    """Decide on a call of ``run``; without an id, on the only one that waits. Errors as of ``Run.approve``.

    ``digest`` and ``since`` are those of what was looked at.
    """
    if call_id is None:
        only = _only(run, await run.status())
        call_id, digest, since = only.call_id, only.hash, only.since
    try:
        said = ApprovalDecision.model_validate(
            {
                "call_id": call_id,
                "decision": decision,
                "by": by or run.client.actor,
                "comment": comment,
                "arguments": None if arguments is None else dict(arguments),
                "always": always,
                "hash": digest,
            }
        )
    except ValueError as error:
        raise InvalidInputError(f"the decision does not fit: {error}") from None
    return DecidedApproval.model_validate(await _sent(run, said, since))


async def _sent(run: Run, said: ApprovalDecision, since: str | None) -> Any:
    payload = said.model_dump(mode="json", exclude_none=True, exclude_defaults=True)
    try:
        return await run.handle.execute_update("decide_approval", payload, id=_update_id(payload, since))
    except WorkflowUpdateFailedError as error:
        cause = error.cause
        kind = cause.type if isinstance(cause, ApplicationError) else None
        if kind == _ENDED:
            return await _too_late(run, said)
        raise from_type(kind, getattr(cause, "message", str(cause))) from None
    except NoAnswer as error:
        if (task := asyncio.current_task()) is not None and task.cancelling():  # which the SDK takes for no answer
            raise asyncio.CancelledError from error
        raise unreachable(run.client.temporal, "no answer to a decision; it can be sent again") from error
    except RPCError as error:
        why = run.translated(error)
        if not isinstance(why, RunClosedError):
            raise why from None
        return await _too_late(run, said)


def _update_id(payload: dict[str, Any], since: str | None) -> str:
    """The same for whoever sends the same decision on the same wait again: Temporal then knows the update.

    A model may give two calls one id. So where it is not known since when the call waits, each is another update, and
    the run itself tells who repeats himself, as it does behind continue-as-new.
    """
    if since is None:
        return uuid.uuid4().hex
    return hashlib.sha256(json.dumps([payload, since], sort_keys=True).encode()).hexdigest()[:32]


async def revoke(run: Run, tool: str, by: str | None) -> list[StandingApproval]:
    """See ``Run.revoke``."""
    payload = {"tool": tool, "by": by or run.client.actor}
    try:
        raw = await run.handle.execute_update("revoke_approval", payload)
    except WorkflowUpdateFailedError as error:
        cause = error.cause
        kind = cause.type if isinstance(cause, ApplicationError) else None
        raise closed_error(run.id) if kind == _ENDED else from_type(kind, getattr(cause, "message", "")) from None
    except NoAnswer as error:
        raise unreachable(run.client.temporal, "no answer; status says what stands") from error
    except RPCError as error:
        raise run.translated(error) from None
    return [StandingApproval.model_validate(one) for one in raw["revoked"]]


async def approvals(client: Client, *, agent: str | None = None, limit: int = 1000) -> list[PendingCall]:
    """See ``Client.approvals``."""
    asking = asyncio.Semaphore(_AT_ONCE)

    async def ask(seen: WorkflowExecution) -> list[PendingCall] | None:
        async with asking:
            return await _of_run(client, seen, agent)

    open_runs = f"WorkflowType = '{WORKFLOW}' AND ExecutionStatus = 'Running'"
    narrower = (MAY_WAIT, *(() if agent is None else (of_agent(agent),)))
    runs = [seen async for seen in listed(client, open_runs, *narrower)]
    random.shuffle(runs)  # so that several who look at once do not ask for the same one at the same moment
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


async def pending_of(run: Run) -> list[PendingCall]:
    """What waits in ``run`` and in its subagents."""
    status = await run.status()
    waiting = [_call(run, status.agent, one) for one in status.approvals]
    below = [call.context_id for call in status.calls if call.context_id is not None]
    below += [one.context_id for one in status.background if one.state == "running"]
    for child in dict.fromkeys(below):
        with suppress(RunNotFoundError):  # it has not begun yet
            waiting += await pending_of(run.client.run(child))
    return waiting


async def _of_run(client: Client, seen: WorkflowExecution, agent: str | None) -> list[PendingCall] | None:
    """None where nobody has answered."""
    name = await agent_of(client, seen)
    if agent is not None and name not in ("", agent):
        return []
    run = client.run(seen.id)
    try:
        status = Status.model_validate(await run.query("status"))
    except (RPCError, WorkflowQueryFailedError, PerdureError) as error:
        if isinstance(error, RPCError) and error.status in NO_ANSWER:
            return None
        logger.warning("run %s cannot say what waits in it: %s", seen.id, error)
        return []
    if agent is not None and status.agent != agent:
        return []
    return [_call(run, status.agent, one) for one in status.approvals]


def _call(run: Run, agent: str, one: PendingApproval) -> PendingCall:
    return PendingCall(
        run=run,
        agent=agent,
        call_id=one.call_id,
        tool=one.name,
        arguments=one.arguments,
        since=_moment(one.since),
        expires=_moment(one.expires),
        hash=one.hash,
        kind=one.kind,
        question=one.question,
        form=one.form,
    )


def _moment(text: str | None) -> datetime | None:
    return None if text is None else datetime.fromisoformat(text)


def _only(run: Run, status: Status) -> PendingApproval:
    waiting = [one for one in status.approvals if one.kind == "approval"]
    if len(waiting) == 1:
        return waiting[0]
    if not waiting:
        hint = f"There waits {status.approvals[0].name} for an answer." if status.approvals else _last(status)
        raise InvalidInputError(f"no call of run {run.id!r} waits for approval", hint=hint)
    ids = ", ".join(f"{one.call_id} ({one.name})" for one in waiting)
    raise InvalidInputError(f"{len(waiting)} calls of run {run.id!r} wait", hint=f"Name one of them: {ids}")


def _last(status: Status) -> str:
    if not status.decided:
        return "Nothing was asked yet, or it was long ago."
    past = status.decided[-1]
    return f"The last one, {past.call_id} ({past.name}), was {past}."


async def _too_late(run: Run, said: ApprovalDecision) -> DecidedApproval:
    """The run has ended. What the same decision came to before; else raises who had decided, where its workflow can
    still say so."""
    call_id = said.call_id
    past = await decision_of(run, call_id)
    if past is None:  # nobody sent it to the last execution: it ran out, or continued as new
        try:
            status = Status.model_validate(await run.query("status"))
        except (RPCError, WorkflowQueryFailedError, PerdureError):
            raise closed_error(run.id) from None
        past = next((one for one in reversed(status.decided) if one.call_id == call_id), None)
    if past is None:
        raise closed_error(run.id)
    if repeats(said, past):
        return past
    if past.state == "expired":
        raise ApprovalExpiredError(f"the approval of call {call_id!r} has {past}")
    raise ApprovalDecidedError(f"call {call_id!r} is already decided: {past}")


__all__ = ["PendingCall", "approvals", "decide", "pending_of", "revoke"]
