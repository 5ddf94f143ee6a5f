"""Decisions on calls that wait for approval: on their way to the run."""

from __future__ import annotations

import asyncio
import hashlib
import json
import uuid
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError
from temporalio.client import WorkflowUpdateFailedError
from temporalio.client import WorkflowUpdateRPCTimeoutOrCancelledError as NoAnswer
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError

from ..errors import (
    ApprovalDecidedError,
    ApprovalExpiredError,
    InvalidInputError,
    NotWaitingYetError,
    PerdureError,
    RunClosedError,
    from_type,
)
from ..loop import repeats, repeats_answer
from ..temporal_service import closed_error, unreachable
from ..types.approvals import ApprovalDecision, DecidedApproval, PendingApproval, StandingApproval
from ..types.events import ApprovalDecided, Event, QuestionAnswered, ToolCompleted
from ..types.interface import Status
from ..types.plain_json import as_plain
from ..types.tool_calls import CallAnswer
from ..types.validation_errors import describe_validation_error
from .follow import again, delays, follow, waiting
from .messages import SENT_BYTES, uploaded
from .visibility import closed_status

if TYPE_CHECKING:
    from .run import Run


# ---
# What was decided or answered in a run that has ended: by its history first, for which no worker has to load it.


async def past_of(run: Run, call_id: str) -> DecidedApproval | None:
    """The last that was decided on the call, or answered; None where nobody can say."""
    try:
        seen = await run.describe()
    except PerdureError:
        return None
    if (past := await _decision_of(run, seen.run_id, call_id)) is not None or closed_status(seen) is None:
        return past
    # Nobody sent it to the last execution: it ran out, or continued as new.
    raw = await run.query_ended(str(seen.run_id), "status")
    status = Status.model_validate(raw) if raw else None
    return next((one for one in reversed(status.decided if status else ()) if one.call_id == call_id), None)


async def _decision_of(run: Run, run_id: str | None, call_id: str) -> DecidedApproval | None:
    """The last decision on the call that somebody sent to that execution; None where there is none to see."""
    client, found = run.client.temporal, None
    try:
        async for event in client.get_workflow_handle(run.id, run_id=run_id).fetch_history_events():
            if not event.HasField("workflow_execution_update_completed_event_attributes"):
                continue
            outcome = event.workflow_execution_update_completed_event_attributes.outcome
            for raw in await client.data_converter.decode(outcome.success.payloads):
                if isinstance(raw, dict) and raw.get("call_id") == call_id:
                    found = DecidedApproval.model_validate(raw)
    except (RPCError, ValidationError):
        return None
    return found


# ---
# Updates of a run: sent so that Temporal knows them when they come twice, and what becomes of those that fail.


_ENDED = "AcceptedUpdateCompletedWorkflow"


async def updated(run: Run, name: str, payload: Mapping[str, Any], *, unheard: str, since: str | None = None) -> Any:
    """What update ``name`` of ``run`` returns. ``since`` is when the wait began that it is about, where that is known.

    Who is told of a call by an event may be quicker than the run, which hears of it from the activity that told: then
    it is sent again, for a while. Raises what the run refuses it with, ``RunClosedError``, ``RunNotFoundError``;
    ``ServerUnreachableError``, which says ``unheard``, where no answer came.
    """
    left = delays()
    while True:
        try:
            return await _send_update(run, name, payload, unheard, since)
        except NotWaitingYetError:
            if not await again(left):
                raise


async def _send_update(run: Run, name: str, payload: Mapping[str, Any], unheard: str, since: str | None) -> Any:
    try:
        return await run.handle.execute_update(name, payload, id=_id(payload, since))
    except WorkflowUpdateFailedError as error:
        cause = error.cause
        kind = cause.type if isinstance(cause, ApplicationError) else None
        if kind == _ENDED:
            raise closed_error(run.id) from None
        raise from_type(kind, getattr(cause, "message", str(cause))) from None
    except NoAnswer as error:
        if (task := asyncio.current_task()) is not None and task.cancelling():  # which the SDK takes for no answer
            raise asyncio.CancelledError from error
        raise unreachable(run.client.temporal, unheard) from error
    except RPCError as error:
        raise run.translated(error) from None


def _id(payload: Mapping[str, Any], since: str | None) -> str:
    """The same for whoever sends the same on the same wait again: Temporal then knows the update.

    Where it is not known since when the call waits, each is another update, and the run itself tells that a decision is
    repeated, as it does behind continue-as-new.
    """
    if since is None:
        return uuid.uuid4().hex
    return hashlib.sha256(json.dumps([payload, since], sort_keys=True).encode()).hexdigest()[:32]


# ---
# Answers to what tools ask of people, and to calls that a client runs: on their way to the run.


async def answer(
    run: Run,
    call_id: str | None,
    value: Any,
    *,
    error: str | None = None,
    by: str | None = None,
    digest: str | None = None,
    since: str | None = None,
) -> DecidedApproval:
    """Answer a call of ``run``; without an id, the only one that waits for it. Errors as of ``Run.answer``.

    ``digest`` and ``since`` are those of what was looked at.
    """
    if error is not None and value is not None:
        raise InvalidInputError("an answer has either a value or an error", hint="Leave one of the two out.")
    if call_id is None:
        only = _only_question(run, await waiting(run, approval=False))
        call_id, digest, since = only.call_id, only.hash, only.since
    raw: dict[str, Any] = {"call_id": call_id, "by": by or run.client.actor, "hash": digest}
    raw |= await _said(run, value) if error is None else {"error": error}
    try:
        said = CallAnswer.model_validate(raw)
    except ValidationError as wrong:
        raise InvalidInputError(describe_validation_error(wrong, "the answer")) from None
    return await _send_answer(run, said, since)


async def _said(run: Run, value: Any) -> dict[str, Any]:
    """Plain JSON; a long text goes by way of the store."""
    try:
        plain = as_plain(value)
    except ValueError as error:
        raise InvalidInputError(f"the answer cannot be written as JSON: {error}", hint="Give plain values.") from None
    if isinstance(plain, str) and len(plain.encode(errors="replace")) > SENT_BYTES:
        ref, store_id = await uploaded(run.client, plain)
        return {"blob": ref, "store_id": store_id}
    return {"value": plain}


async def _send_answer(run: Run, said: CallAnswer, since: str | None) -> DecidedApproval:
    payload = said.model_dump(mode="json", exclude_none=True)
    if said.error is None and said.blob is None:
        payload["value"] = said.value  # null is an answer too
    try:
        unheard = "it did not say that it has the answer; send it again"
        raw = await updated(run, "answer_call", payload, unheard=unheard, since=since)
    except RunClosedError as closed:
        return await _resolve_late_answer(run, said, closed)
    return DecidedApproval.model_validate(raw)


async def _resolve_late_answer(run: Run, said: CallAnswer, closed: RunClosedError) -> DecidedApproval:
    """What the same answer came to before; else raises who was quicker, where that can still be told."""
    past = await past_of(run, said.call_id)
    if past is None or past.state == "approved":
        raise closed
    if repeats_answer(said, past):
        return past
    if past.state == "expired":
        raise ApprovalExpiredError(f"the time to answer call {said.call_id!r} is over")
    raise ApprovalDecidedError(f"call {said.call_id!r} is already {past}")


def _only_question(run: Run, status: Status) -> PendingApproval:
    waiting = [one for one in status.approvals if one.kind != "approval"]
    if len(waiting) == 1:
        return waiting[0]
    if waiting:
        ids = ", ".join(f"{one.call_id} ({one.name})" for one in waiting)
        raise InvalidInputError(
            f"{len(waiting)} calls of run {run.id!r} wait for an answer", hint=f"Name one of them: {ids}"
        )
    if status.approvals:
        hint = f"There waits {status.approvals[0].name} for approval: approve or deny it."
    else:
        last = next((one for one in reversed(status.decided) if one.state == "answered"), None)
        hint = f"The last one, {last.call_id} ({last.name}), was {last}." if last else "None was asked for yet."
    raise InvalidInputError(f"no call of run {run.id!r} waits for an answer", hint=hint)


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
    if arguments is not None and not isinstance(arguments, Mapping):
        raise InvalidInputError(
            f"arguments: {arguments!r:.100} is no object of names and values", hint='For instance {"amount": 3}.'
        )
    if call_id is None:
        only = _only_approval(run, await waiting(run, approval=True))
        if digest not in (None, only.hash):
            raise InvalidInputError(
                f"what waits in run {run.id!r} is not what was looked at: {only.call_id} ({only.name})",
                hint="Look at what waits now, and decide on that.",
            )
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
    except ValidationError as error:
        raise InvalidInputError(describe_validation_error(error, "the decision"), hint="Nothing was decided.") from None
    if decision == "approve" and digest is None:
        return await _as_it_waits(run, said)
    return await _send_decision(run, said, since)


async def _as_it_waits(run: Run, said: ApprovalDecision) -> DecidedApproval:
    """Send the approval of a call with the hash of what waits under its id now.

    Where nothing does, the run says why; it never takes an approval without a hash.
    """
    digest, since = await _waits_under(run, said.call_id)
    try:
        return await _send_decision(run, said.model_copy(update={"hash": digest}), since)
    except InvalidInputError:
        if digest is not None:
            raise
        digest, since = await _waits_under(run, said.call_id)
        if digest is None:
            raise
    return await _send_decision(run, said.model_copy(update={"hash": digest}), since)  # it has come to wait in between


async def _waits_under(run: Run, call_id: str) -> tuple[str | None, str | None]:
    """Hash and beginning of the call that waits for approval under the id, or the hash of what was decided on it."""
    status = await run.status()
    for one in status.approvals:
        if (one.kind, one.call_id) == ("approval", call_id):
            return one.hash, one.since
    past = next((one for one in reversed(status.decided) if one.call_id == call_id), None)
    return past.hash or None if past is not None else None, None


def _plain(arguments: dict[str, Any]) -> Any:
    """As they are, and not as pydantic would mend them: somebody approves these. Raises ``InvalidInputError``."""
    try:
        return as_plain(arguments)
    except ValueError as error:
        hint = "Give plain values: finite numbers, texts without lone surrogates."
        raise InvalidInputError(f"the arguments cannot be written as JSON: {error}", hint=hint) from None


async def revoke(run: Run, tool: str, by: str | None) -> list[StandingApproval]:
    """See ``Run.revoke``."""
    payload = {"tool": tool, "by": by or run.client.actor}
    raw = await updated(run, "revoke_approval", payload, unheard="no answer; status says what stands")
    return [StandingApproval.model_validate(one) for one in raw["revoked"]]


async def _send_decision(run: Run, said: ApprovalDecision, since: str | None) -> DecidedApproval:
    payload = said.model_dump(mode="json", exclude_none=True, exclude_defaults=True, exclude={"arguments"})
    if said.arguments is not None:
        payload["arguments"] = _plain(said.arguments)
    try:
        unheard = "no answer to a decision; it can be sent again"
        raw = await updated(run, "decide_approval", payload, unheard=unheard, since=since)
    except RunClosedError as closed:
        return await _resolve_late_decision(run, said, closed)
    return DecidedApproval.model_validate(raw)


async def _resolve_late_decision(run: Run, said: ApprovalDecision, closed: RunClosedError) -> DecidedApproval:
    """What the same decision came to before; else raises who had decided, where that can still be told."""
    past = await past_of(run, said.call_id)
    if past is None:
        raise closed
    if repeats(said, past):
        return past
    if past.state == "expired":
        raise ApprovalExpiredError(f"the approval of call {said.call_id!r} has {past}")
    raise ApprovalDecidedError(f"call {said.call_id!r} is already decided: {past}")


def _only_approval(run: Run, status: Status) -> PendingApproval:
    waiting = [one for one in status.approvals if one.kind == "approval"]
    if len(waiting) == 1:
        return waiting[0]
    if not waiting:
        hint = f"There waits {status.approvals[0].name} for an answer." if status.approvals else _last(status)
        raise InvalidInputError(f"no call of run {run.id!r} waits for approval", hint=hint)
    ids = ", ".join(f"{one.call_id} ({one.name})" for one in waiting)
    raise InvalidInputError(f"{len(waiting)} calls of run {run.id!r} wait", hint=f"Name one of them: {ids}")


def _last(status: Status) -> str:
    if status.state in ("completed", "failed", "cancelled"):
        return "The run has ended. Name the call to hear what became of it."
    if not status.decided:
        return "Nothing was asked yet, or it was long ago."
    past = status.decided[-1]
    return f"The last one, {past.call_id} ({past.name}), was {past}."


# ---
# What people decided and answered in a run, as its events say: for good, also when Temporal has forgotten the run.


async def decisions(run: Run, known: Sequence[DecidedApproval] = ()) -> list[DecidedApproval]:
    """Those of ``run`` in their order, ``known`` last: what the run itself says, which may be more than is told yet.

    Raises as :func:`perdure.client.follow`.
    """
    async with aclosing(follow(run, wait=False, children=False)) as events:
        told = [one async for event in events if (one := decision(event)) is not None]
    return joined(told, known)


def joined(told: Sequence[DecidedApproval], known: Sequence[DecidedApproval]) -> list[DecidedApproval]:
    """What events have ``told`` and a run has ``known``, each once: a run knows its last ones, without a gap."""
    last = Counter(map(_key, known))  # a model may give an id again
    before = []
    for one in reversed(told):
        if last[_key(one)] > 0:
            last[_key(one)] -= 1
        else:
            before.append(one)
    return [*reversed(before), *known]


def _key(one: DecidedApproval) -> tuple[str, str, str | None]:
    return one.call_id, one.state, one.by


def decision(event: Event) -> DecidedApproval | None:
    """What ``event`` says that somebody decided or answered; None for any other."""
    if isinstance(event, ApprovalDecided):
        return DecidedApproval(
            call_id=event.call_id,
            name=event.name,
            state=event.decision,
            by=event.by,
            at=event.decided_at,
            comment=event.comment,
            changed=event.arguments is not None,
            always=event.always,
            standing=event.standing,
        )
    if isinstance(event, QuestionAnswered):
        said: dict[str, Any] = {"by": event.by, "at": event.answered_at, "comment": event.error}
    elif isinstance(event, ToolCompleted) and event.answered_by:  # of a callback
        said = {"by": event.answered_by, "at": event.at, "comment": event.content if event.is_error else None}
    else:
        return None
    return DecidedApproval(call_id=event.call_id, name=event.name, state="answered", **said)
