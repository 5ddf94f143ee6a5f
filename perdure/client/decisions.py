"""Sends decisions and answers for pending calls to the run, and reads past decisions from its events.

Decisions and answers share :func:`_resolve`: find the pending call, send the update, and retry while the workflow does
not have the pending call yet; for a closed run, the events say who decided first.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import uuid
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from temporalio.client import WorkflowUpdateFailedError
from temporalio.client import WorkflowUpdateRPCTimeoutOrCancelledError as NoAnswer
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError

from ..errors import InvalidInputError, PerdureError, RunClosedError, build_error
from ..loop.approvals import build_late_error, find_repeated, read_answer, read_decision
from ..loop.questions import as_text, hash_answer
from ..temporal_service import ACCEPTED_UPDATE_ENDED, build_closed_error, build_unreachable_error
from ..types.approvals import ApprovalDecision, DecidedApproval, PendingApproval, StandingApproval, hash_arguments
from ..types.events import ApprovalDecided, ApprovalRequested, Event, QuestionAnswered, QuestionAsked, ToolCompleted
from ..types.interface import Status
from ..types.plain_json import to_plain_json
from ..types.tool_calls import CallAnswer
from .follow import NotHeardYet, follow_run, is_unheard, until_heard
from .messages import MAX_INLINE_BYTES, upload_content

if TYPE_CHECKING:
    from .run import Run


async def decide_pending_call(
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
    """Decide on a call of ``run``; without an id, on the only pending one. Errors as of ``Run.approve``.

    ``digest`` and ``since`` are those of the reviewed call. An approval without ``digest`` applies to the call that
    waits under the id at this moment.
    """
    if arguments is not None and not isinstance(arguments, Mapping):
        raise InvalidInputError(
            f"arguments must be an object of names and values, not {arguments!r:.100}",
            hint='For instance {"amount": 3}.',
        )
    facts = {
        "decision": decision,
        "by": by or run.client.actor,
        "comment": comment,
        "arguments": None if arguments is None else dict(arguments),
        "always": always or None,
    }
    return await _resolve(run, {name: fact for name, fact in facts.items() if fact is not None}, call_id, digest, since)


async def answer_pending_call(
    run: Run,
    call_id: str | None,
    value: Any,
    *,
    error: str | None = None,
    by: str | None = None,
    digest: str | None = None,
    since: str | None = None,
) -> DecidedApproval:
    """Answer a call of ``run``; without an id, the only one that waits for an answer. Errors as of ``Run.answer``.

    ``digest`` and ``since`` are those of the reviewed question. A long text goes into the store.
    """
    facts: dict[str, Any] = {"by": by or run.client.actor}
    if error is not None:
        if value is not None:
            raise InvalidInputError("an answer has either a value or an error", hint="Leave one of the two out.")
        return await _resolve(run, facts | {"error": error}, call_id, digest, since)
    try:
        plain = to_plain_json(value)
    except ValueError as wrong:
        raise InvalidInputError(f"the answer cannot be written as JSON: {wrong}", hint="Give plain values.") from None
    if isinstance(plain, str) and len(plain.encode(errors="replace")) > MAX_INLINE_BYTES:
        ref, store_id = await upload_content(run.client, plain)
        facts |= {"blob": to_plain_json(ref), "store_id": store_id}
    else:
        facts["value"] = plain
    return await _resolve(run, facts, call_id, digest, since)


async def revoke_approval(run: Run, tool: str, by: str | None) -> list[StandingApproval]:
    """See ``Run.revoke``."""
    payload = {"tool": tool, "by": by or run.client.actor}
    raw = await _send_update_once(run, "revoke_approval", payload, "no answer; status says what stands")
    return [StandingApproval.model_validate(one) for one in raw["revoked"]]


async def _resolve(
    run: Run, facts: dict[str, Any], call_id: str | None, digest: str | None, since: str | None
) -> DecidedApproval:
    """Send the decision or answer in ``facts``. Raises the error that the run refuses it with, ``RunNotFoundError``;
    ``RunClosedError`` if the run has closed and no event says who decided first."""
    approval = "decision" in facts
    update = "decide_approval" if approval else "answer_call"
    looks = call_id is None or (digest is None and facts.get("decision") == "approve")

    async def attempt() -> DecidedApproval:
        found = (call_id, digest, since)
        if looks:
            found = await _find_wait(run, call_id, digest, approval=approval)
        payload = facts | {"call_id": found[0]} | ({"hash": found[1]} if found[1] is not None else {})
        said: ApprovalDecision | CallAnswer
        said = read_decision(payload, "Nothing was decided.") if approval else read_answer(payload, None)
        try:
            raw = await _send_update_once(run, update, payload, f"no answer to {update}; send it again", found[2])
        except RunClosedError as closed:
            return await _find_past(run, said, closed)
        except InvalidInputError as refused:
            if looks and said.hash is None and (await _find_wait(run, call_id, None, approval=approval))[1] is not None:
                raise NotHeardYet(refused) from None  # it began to wait in between
            raise
        return DecidedApproval.model_validate(raw)

    return await until_heard(attempt)


async def _find_wait(
    run: Run, call_id: str | None, digest: str | None, *, approval: bool
) -> tuple[str, str | None, str | None]:
    """Return id, hash and start of the wait of call ``call_id``, or of the only pending one.

    For a named call that is not pending, the hash is that of its last decision, or None: the run then raises the error.
    """
    status = await run.status()
    waits = [one for one in status.approvals if (one.kind == "approval") == approval and call_id in (None, one.call_id)]
    if call_id is not None and not waits:
        past = next((one for one in reversed(status.decided) if one.call_id == call_id), None)
        return call_id, past.hash or None if past is not None else None, None
    if len(waits) != 1 and call_id is None:
        refusal = _build_choice_error(run, status, waits, approval=approval)
        if not waits and await is_unheard(run, status, approval=approval):
            raise NotHeardYet(refusal)
        raise refusal
    if digest not in (None, waits[0].hash):
        raise InvalidInputError(
            f"what waits in run {run.id!r} is not what was looked at: {waits[0].call_id} ({waits[0].name})",
            hint="Look at what waits now, and decide on that.",
        )
    return waits[0].call_id, waits[0].hash, waits[0].since


def _build_choice_error(
    run: Run, status: Status, waits: Sequence[PendingApproval], *, approval: bool
) -> InvalidInputError:
    """Build the error for not exactly one pending call."""
    wanted, other = ("approval", "an answer") if approval else ("an answer", "approval")
    if waits:
        ids = ", ".join(f"{one.call_id} ({one.name})" for one in waits)
        return InvalidInputError(
            f"{len(waits)} calls of run {run.id!r} wait for {wanted}", hint=f"Name one of them: {ids}"
        )
    past = next((one for one in reversed(status.decided) if approval or one.state == "answered"), None)
    if status.approvals:
        hint = f"{status.approvals[0].name} waits for {other}."
    elif past is not None:
        hint = f"The last one, {past.call_id} ({past.name}), was {past}."
    elif status.state in ("completed", "failed", "cancelled"):
        hint = "The run has ended. Name the call to hear what became of it."
    else:
        hint = "Nothing was asked yet, or it was long ago."
    return InvalidInputError(f"no call of run {run.id!r} waits for {wanted}", hint=hint)


async def _send_update_once(
    run: Run, name: str, payload: Mapping[str, Any], unheard: str, since: str | None = None
) -> Any:
    """Send update ``name`` to ``run`` and return its result; ``unheard`` is the hint for a missing answer.

    With ``since`` (the start of the wait), a repeated request has the id of the update that Temporal already has.
    Without it, each request is another update, and the run itself detects a repeated decision, as it does after
    continue-as-new.
    """
    update_id = uuid.uuid4().hex
    if since is not None:
        update_id = hashlib.sha256(json.dumps([payload, since], sort_keys=True).encode()).hexdigest()[:32]
    try:
        return await run.handle.execute_update(name, payload, id=update_id)
    except WorkflowUpdateFailedError as error:
        cause = error.cause
        kind = cause.type if isinstance(cause, ApplicationError) else None
        if kind == ACCEPTED_UPDATE_ENDED:
            raise build_closed_error(run.id) from None
        raise build_error(kind, getattr(cause, "message", str(cause))) from None
    except NoAnswer as error:
        if (
            task := asyncio.current_task()
        ) is not None and task.cancelling():  # the SDK reports a cancellation as a missing answer
            raise asyncio.CancelledError from error
        raise build_unreachable_error(run.client.temporal, unheard) from error
    except RPCError as error:
        raise run.translate_rpc_error(error) from None


# ---
# Past decisions and answers of a run from its events, also after Temporal's retention.


async def _find_past(run: Run, said: ApprovalDecision | CallAnswer, closed: RunClosedError) -> DecidedApproval:
    """Find the recorded decision or answer that ``said`` repeats. Raises the error that names who decided first;
    without such events ``closed``, as for a client without the store."""
    try:
        decided = await _read_decided(run, said.call_id)
    except PerdureError:
        raise closed from None
    same = [said]
    if isinstance(said, CallAnswer) and said.error is None and said.blob is None:
        same.append(said.model_copy(update={"value": as_text(said.value)}))  # events have a callback's value as text
    past = next((past for one in same if (past := find_repeated(decided, one)) is not None), None)
    if past is None:
        raise build_late_error(decided, said) or closed
    return past


async def _read_decided(run: Run, call_id: str) -> list[DecidedApproval]:
    """Read the decisions on a call from the events, each with the hash of the decided call or answered question."""
    found: list[DecidedApproval] = []
    requested, until = "", None
    async with aclosing(follow_run(run, wait=False, children=False)) as events:
        async for event in events:
            if getattr(event, "call_id", None) != call_id:
                continue
            if (past := extract_decision(event)) is not None:
                found.append(past.model_copy(update={"hash": _hash_of(event, requested)}))
                until = None
            elif isinstance(event, ApprovalRequested):
                requested = event.hash
            elif isinstance(event, QuestionAsked) and event.expires_in is not None and event.at:
                until = datetime.fromisoformat(event.at) + timedelta(seconds=event.expires_in)
            elif isinstance(event, ToolCompleted) and until and event.at and until <= datetime.fromisoformat(event.at):
                found.append(DecidedApproval(call_id=call_id, name=event.name, state="expired", at=until.isoformat()))
    return found


def _hash_of(event: Event, requested: str) -> str:
    """Compute ``DecidedApproval.hash``; ``requested`` is the hash in the event that requested the approval."""
    if isinstance(event, ApprovalDecided):
        return requested if event.arguments is None else hash_arguments(event.call_id, event.name, event.arguments)
    if isinstance(event, QuestionAnswered):
        said = {"value": event.value, "error": event.error}
    elif isinstance(event, ToolCompleted) and event.is_error:
        said = {"error": event.content}
    else:
        blob = getattr(event, "blob", None)
        said = {"blob": blob} if blob is not None else {"value": getattr(event, "content", None)}
    return hash_answer(CallAnswer.model_construct(**said))


async def list_decisions(run: Run, known: Sequence[DecidedApproval] = ()) -> list[DecidedApproval]:
    """List the decisions of ``run`` in their order, ``known`` last: the run's own list may be ahead of its events.

    Raises as :func:`perdure.client.follow.follow_run`.
    """
    async with aclosing(follow_run(run, wait=False, children=False)) as events:
        told = [one async for event in events if (one := extract_decision(event)) is not None]
    return merge_decisions(told, known)


def merge_decisions(told: Sequence[DecidedApproval], known: Sequence[DecidedApproval]) -> list[DecidedApproval]:
    """Merge the decisions of events (``told``) and of a run (``known``), each once: a run has its last ones, without a
    gap."""
    last = Counter(map(_build_decision_key, known))  # a model may reuse an id
    before = []
    for one in reversed(told):
        if last[_build_decision_key(one)] > 0:
            last[_build_decision_key(one)] -= 1
        else:
            before.append(one)
    return [*reversed(before), *known]


def _build_decision_key(one: DecidedApproval) -> tuple[str, str, str | None]:
    return one.call_id, one.state, one.by


def extract_decision(event: Event) -> DecidedApproval | None:
    """Return the decision or answer in ``event``; None for any other event."""
    if isinstance(event, ApprovalDecided):
        return DecidedApproval(
            call_id=event.call_id,
            name=event.name,
            state=event.decision,
            at=event.decided_at,
            changed=event.arguments is not None,
            **event.model_dump(include={"by", "comment", "always", "standing"}),
        )
    if isinstance(event, QuestionAnswered):
        said: dict[str, Any] = {"by": event.by, "at": event.answered_at, "comment": event.error}
    elif isinstance(event, ToolCompleted) and event.answered_by:  # an answered callback
        said = {"by": event.answered_by, "at": event.at, "comment": event.content if event.is_error else None}
    else:
        return None
    return DecidedApproval(call_id=event.call_id, name=event.name, state="answered", **said)
