"""Sends decisions and answers for pending calls to the run, and reads past decisions from its events.

Decisions and answers share :func:`_resolve`: find the pending call, send the update, and retry while the workflow does
not have the pending call yet; for a closed run, the events say who decided first.
"""

from __future__ import annotations

import hashlib
import json
import logging
import uuid
from collections import Counter
from collections.abc import AsyncIterable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from .. import events
from ..errors import InvalidInputError, PerdureError, RunClosedError
from ..loop.payload_limits import DECISIONS_BYTES, MAX_PAST_DECISIONS, select_latest_rows
from ..loop.requests import as_text, build_late_error, find_repeated, hash_answer, read_answer, read_decision
from ..temporal.errors import build_unreachable_error
from ..types.approvals import ApprovalDecision, DecidedApproval, StandingApproval, WaitingCall, hash_arguments
from ..types.interface import Status
from ..types.plain_json import to_plain_json
from ..types.run_states import ENDED_STATES
from ..types.tool_calls import CallAnswer
from .audit import SteeringAudit, audit_steering, write_despite_failure
from .event_reader import EventReader
from .follow import WorkflowBehind, follow_run, is_workflow_behind, retry_while_behind
from .handles import RunHandle
from .message_content import MAX_INLINE_BYTES, upload_content
from .progress import retry_while_not_ready

logger = logging.getLogger("perdure.client")

_READY_SECONDS = 20.0
"""Seconds for which a decision is sent again to a run that takes none for the moment."""


class WaitRef(NamedTuple):
    """Names the pending call that a decision or an answer is for."""

    call_id: str | None
    """None for the only pending one."""
    hash: str | None = None
    """That of the reviewed call or question. An approval without it applies to the call that waits at this moment."""
    since: str | None = None
    """When the reviewed wait began: ISO 8601, UTC."""


WAIT_ID_SEPARATOR = "|"


@dataclass(frozen=True, slots=True)
class RunWait:
    """A call that waits for a person or a client, and its run: the one that is asked for, or a subagent's."""

    run_id: str
    call: WaitingCall

    @property
    def id(self) -> str:
        """Names the run, the call and its arguments, so that nothing has to be kept between two requests."""
        return WAIT_ID_SEPARATOR.join((self.run_id, self.call.call_id, self.call.hash))

    def is_same(self, other: RunWait) -> bool:
        """Whether both are one wait: a call may ask again, and a model may use an id again."""
        ours, theirs = self.call, other.call
        if (self.run_id, ours.call_id, ours.hash) != (other.run_id, theirs.call_id, theirs.hash):
            return False
        return None in (ours.since, theirs.since) or ours.since == theirs.since

    def is_in(self, waits: Sequence[RunWait]) -> bool:
        """Whether it is one of ``waits``."""
        return any(map(self.is_same, waits))


async def decide_pending_call(
    run: RunHandle,
    wait: WaitRef,
    decision: str,
    *,
    by: str | None,
    comment: str | None,
    arguments: Mapping[str, Any] | None = None,
    always: bool = False,
) -> DecidedApproval:
    """Decide on a call of ``run``. Errors as of ``Run.approve``."""
    if arguments is not None and not isinstance(arguments, Mapping):
        flaw = f"arguments must be an object of names and values, not {arguments!r:.100}"
        raise InvalidInputError(flaw, hint='For instance {"amount": 3}.')
    fields = {
        "decision": decision,
        "by": by or run.client.actor,
        "comment": comment,
        "arguments": None if arguments is None else dict(arguments),
        "always": always or None,
    }
    fields = {name: value for name, value in fields.items() if value is not None}
    return await _resolve(run, wait, fields)


async def answer_pending_call(
    run: RunHandle, wait: WaitRef, value: Any, *, error: str | None = None, by: str | None = None
) -> DecidedApproval:
    """Answer a call of ``run``. Errors as of ``Run.answer``. A long text goes into the store."""
    fields: dict[str, Any] = {"by": by or run.client.actor}
    if error is not None:
        if value is not None:
            raise InvalidInputError("an answer has either a value or an error", hint="Leave one of the two out.")
        return await _resolve(run, wait, fields | {"error": error})
    try:
        plain = to_plain_json(value)
    except ValueError as flaw:
        raise InvalidInputError(f"the answer cannot be written as JSON: {flaw}", hint="Give plain values.") from None
    if isinstance(plain, str) and len(plain.encode(errors="replace")) > MAX_INLINE_BYTES:
        ref, store_id = await upload_content(run.client, plain)
        fields |= {"blob": to_plain_json(ref), "store_id": store_id}
    else:
        fields["value"] = plain
    return await _resolve(run, wait, fields)


async def revoke_approval(run: RunHandle, tool: str, by: str | None) -> list[StandingApproval]:
    """See ``Run.revoke``."""
    payload = {"tool": tool, "by": by or run.client.actor}
    async with audit_steering(run.client, "revoke", run.id, by=by, detail=tool):
        result = await _send_update_once(
            run, "revoke_approval", payload, "no answer; status has the standing approvals"
        )
    return [StandingApproval.model_validate(revoked) for revoked in result["revoked"]]


async def _resolve(run: RunHandle, wait: WaitRef, fields: dict[str, Any]) -> DecidedApproval:
    """Send the decision or answer in ``fields``. Raises the error that the run refuses it with, ``RunNotFoundError``;
    ``RunClosedError`` if the run has closed and no event says who decided first."""
    approval = "decision" in fields
    update, sent = ("decide_approval", "decision") if approval else ("answer_call", "answer")
    needs_lookup = wait.call_id is None or (wait.hash is None and fields.get("decision") == "approve")
    verb = str(fields.get("decision", "answer"))

    async def attempt(audit: SteeringAudit) -> DecidedApproval:
        found = await _find_wait(run, wait, approval=approval) if needs_lookup else wait
        payload = fields | {"call_id": found.call_id} | ({"hash": found.hash} if found.hash is not None else {})
        decision: ApprovalDecision | CallAnswer
        decision = read_decision(payload, "Nothing was decided.") if approval else read_answer(payload, None)
        await audit.record(found.call_id)
        try:
            result = await _send_update_once(
                run, update, payload, f"no reply to the {sent}; send it again", found.since
            )
        except RunClosedError as closed:
            return await _find_past(run, decision, closed)
        except InvalidInputError as refused:
            unhashed = needs_lookup and decision.hash is None
            if unhashed and (await _find_wait(run, WaitRef(wait.call_id), approval=approval)).hash is not None:
                raise WorkflowBehind(refused) from None  # it began to wait in between
            raise
        decided = DecidedApproval.model_validate(result)
        await _remove_wait(run, decided, decision.hash)
        return decided

    detail = "with other arguments" if fields.get("arguments") else "always" if fields.get("always") else None
    async with audit_steering(run.client, verb, run.id, by=fields.get("by"), detail=detail, at_once=False) as audit:
        return await retry_while_behind(lambda: attempt(audit))


async def _remove_wait(run: RunHandle, decided: DecidedApproval, hash: str | None) -> None:
    """Remove the wait that has ended from the store's inbox: its event may come much later. Only the wait of that hash:
    a call that asks again waits anew."""
    decided_hash = hash
    if hash is None and decided.state in ("approved", "denied") and not decided.changed:
        decided_hash = decided.hash
    if decided_hash is not None:
        await write_despite_failure(
            run.client,
            lambda store: store.remove_wait(run.id, decided.call_id, decided_hash),
            f"the end of the wait of call {decided.call_id}",
        )


async def _find_wait(run: RunHandle, wanted: WaitRef, *, approval: bool) -> WaitRef:
    """Find the wait of call ``wanted.call_id``, or the only pending one.

    For a named call that is not pending, the hash is that of its last decision, or None: the run then raises the error.
    """
    status = await run.status()
    waits = [wait for wait in status.approvals if (wait.kind == "approval") == approval]
    if wanted.call_id is not None:
        waits = [wait for wait in waits if wait.call_id == wanted.call_id]
        if not waits:
            last_hash = next((past.hash for past in reversed(status.decided) if past.call_id == wanted.call_id), "")
            return WaitRef(wanted.call_id, last_hash or None)
    elif len(waits) != 1:
        refusal = _build_choice_error(run, status, waits, approval=approval)
        if not waits and await is_workflow_behind(run, status, approval=approval):
            raise WorkflowBehind(refusal)
        raise refusal
    wait = waits[0]
    if wanted.hash not in (None, wait.hash):
        raise InvalidInputError(
            f"the pending call of run {run.id!r} has changed: it is {wait.call_id} ({wait.tool}) now",
            hint="Read the pending calls again and decide on that one.",
        )
    return WaitRef(wait.call_id, wait.hash, wait.since)


def _build_choice_error(
    run: RunHandle, status: Status, waits: Sequence[WaitingCall], *, approval: bool
) -> InvalidInputError:
    """Build the error for not exactly one pending call."""
    wanted, other = ("approval", "an answer") if approval else ("an answer", "approval")
    if waits:
        ids = ", ".join(f"{wait.call_id} ({wait.tool})" for wait in waits)
        return InvalidInputError(
            f"{len(waits)} calls of run {run.id!r} wait for {wanted}", hint=f"Name one of them: {ids}"
        )
    past = next((past for past in reversed(status.decided) if approval or past.state == "answered"), None)
    if status.approvals:
        hint = f"{status.approvals[0].tool} waits for {other}."
    elif past is not None:
        hint = f"The last one, {past.call_id} ({past.tool}), was {past}."
    elif status.state in ENDED_STATES:
        hint = "The run has ended. Name the call to get its decision."
    else:
        hint = "No call has waited yet, or none for a long time."
    return InvalidInputError(f"no call of run {run.id!r} waits for {wanted}", hint=hint)


async def _send_update_once(
    run: RunHandle, name: str, payload: Mapping[str, Any], no_answer: str, since: str | None = None
) -> Any:
    """Send update ``name`` to ``run`` and return its result; ``no_answer`` is the text for a missing answer.

    With ``since`` (the start of the wait), a repeated request has the id of the update that Temporal already has.
    Without it, each request is another update, and the run itself detects a repeated decision, as it does after
    continue-as-new.
    """
    update_id = uuid.uuid4().hex
    if since is not None:
        update_id = hashlib.sha256(json.dumps([payload, since], sort_keys=True).encode()).hexdigest()[:32]

    async def send() -> Any:
        with run.temporal_errors(build_unreachable_error(run.client.temporal, no_answer)):
            return await run.handle.execute_update(name, payload, id=update_id)

    return await retry_while_not_ready(run, send, within=_READY_SECONDS)


# ---
# Past decisions and answers of a run from its events, also after Temporal's retention.


async def _find_past(
    run: RunHandle, decision: ApprovalDecision | CallAnswer, closed: RunClosedError
) -> DecidedApproval:
    """Find the recorded decision or answer that ``decision`` repeats. Raises the error that names who decided first;
    without such events ``closed``, as for a client without the store."""
    try:
        decided = await _read_decided(run, decision.call_id)
    except PerdureError:
        raise closed from None
    past = find_repeated(decided, decision)
    if past is None and isinstance(decision, CallAnswer) and decision.error is None and decision.blob is None:
        as_recorded = decision.model_copy(update={"value": as_text(decision.value)})  # a callback's value, as text
        past = find_repeated(decided, as_recorded)
    if past is None:
        raise build_late_error(decided, decision) or closed
    return past


async def _read_decided(run: RunHandle, call_id: str) -> list[DecidedApproval]:
    """Read the decisions on a call from the events, each with the hash of the decided call or answered question."""
    async with aclosing(follow_run(run, wait=False, children=False)) as log:
        return [past for past in await _collect_decisions(log) if past.call_id == call_id]


async def _collect_decisions(log: AsyncIterable[events.Event]) -> list[DecidedApproval]:
    """Return the decisions and answers in the events ``log``, in their order."""
    decided: list[DecidedApproval] = []
    requested_hashes: dict[str, str] = {}
    expiries: dict[str, datetime] = {}
    async for event in log:
        call_id = getattr(event, "call_id", None)
        if call_id is None:
            continue
        if (past := extract_decision(event)) is not None:
            decided.append(past.model_copy(update={"hash": _hash_of(event, requested_hashes.get(call_id, ""))}))
            expiries.pop(call_id, None)
        elif isinstance(event, events.ApprovalRequested):
            requested_hashes[call_id] = event.hash
        elif isinstance(event, events.QuestionAsked) and event.expires_in is not None and event.at:
            expiries[call_id] = datetime.fromisoformat(event.at) + timedelta(seconds=event.expires_in)
        elif (
            isinstance(event, events.ToolCompleted)
            and event.at
            and (expiry := expiries.get(call_id)) is not None
            and expiry <= datetime.fromisoformat(event.at)
        ):
            decided.append(DecidedApproval(call_id=call_id, tool=event.name, state="expired", at=expiry.isoformat()))
    return decided


async def _read_all_decisions(run: RunHandle) -> list[DecidedApproval]:
    reader = EventReader(run.id, await run.client.store(), 0, children=False, wait=False)
    async with aclosing(reader.read_recorded()) as log:
        return await _collect_decisions(log)


async def read_past_decisions(run: RunHandle, closed: Status, execution_id: str) -> tuple[DecidedApproval, ...]:
    """Read ``status.decided`` of a run that has ended: as many as the run itself kept; () without its events."""
    known, key = run.client.known_ends, f"decided\0{execution_id}"
    if not run.has_store or (past := known.get(key)) is None:
        try:
            decided = await _read_all_decisions(run) if run.has_store else []
        except PerdureError as error:
            logger.debug("the decisions of run %s cannot be read: %s", run.id, error)
            return ()
        decided.sort(key=lambda row: row.at or "")  # an event may come later than that of a later decision
        past = tuple(select_latest_rows(decided[-MAX_PAST_DECISIONS:], DECISIONS_BYTES))
        if closed.state in ("completed", "failed"):  # after another end, an event may still be on its way
            known.put(key, past, sum(len(str(row)) for row in past))
    return tuple(past)


def _hash_of(event: events.Event, requested_hash: str) -> str:
    """Compute ``DecidedApproval.hash``; ``requested_hash`` is that of the event that requested the approval."""
    if isinstance(event, events.ApprovalDecided):
        if event.arguments is None:
            return requested_hash
        return hash_arguments(event.call_id, event.name, event.arguments)
    fields: dict[str, Any]
    if isinstance(event, events.QuestionAnswered):
        fields = {"value": event.value, "error": event.error}
    elif isinstance(event, events.ToolCompleted) and event.is_error:
        fields = {"error": event.content}
    else:
        blob = getattr(event, "blob", None)
        fields = {"blob": blob} if blob is not None else {"value": getattr(event, "content", None)}
    return hash_answer(CallAnswer.model_construct(**fields))


def merge_decisions(recorded: Sequence[DecidedApproval], known: Sequence[DecidedApproval]) -> list[DecidedApproval]:
    """Merge the decisions of events (``recorded``) and of a run (``known``), each once: a run has its last ones,
    without a gap."""

    def build_key(decided: DecidedApproval) -> tuple[str, str, str | None]:
        return decided.call_id, decided.state, decided.by

    remaining = Counter(map(build_key, known))  # a model may reuse an id
    earlier = []
    for decided in reversed(recorded):
        if remaining[build_key(decided)] > 0:
            remaining[build_key(decided)] -= 1
        else:
            earlier.append(decided)
    return [*reversed(earlier), *known]


def extract_decision(event: events.Event) -> DecidedApproval | None:
    """Return the decision or answer in ``event``; None for any other event."""
    if isinstance(event, events.ApprovalDecided):
        return DecidedApproval(
            call_id=event.call_id,
            tool=event.name,
            state=event.decision,
            at=event.decided_at,
            changed=event.arguments is not None,
            **event.model_dump(include={"by", "comment", "always", "standing"}),
        )
    if isinstance(event, events.QuestionAnswered):
        fields: dict[str, Any] = {"by": event.by, "at": event.answered_at, "comment": event.error}
    elif isinstance(event, events.ToolCompleted) and event.answered_by:  # an answered callback
        comment = event.content if event.is_error else None
        fields = {"by": event.answered_by, "at": event.at, "comment": comment}
    else:
        return None
    return DecidedApproval(call_id=event.call_id, tool=event.name, state="answered", **fields)
