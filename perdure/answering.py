"""Answers to what tools ask of people, and to calls that a client runs: on their way to the run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from .decided import past_of
from .errors import ApprovalDecidedError, ApprovalExpiredError, InvalidInputError, RunClosedError
from .loop import repeats_answer
from .told import waiting
from .types.approval import DecidedApproval, PendingApproval
from .types.interface import Status
from .types.plain import as_plain
from .types.question import CallAnswer
from .updates import updated
from .uploading import SENT_BYTES, uploaded

if TYPE_CHECKING:
    from .run import Run


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
        only = _only(run, await waiting(run, approval=False))
        call_id, digest, since = only.call_id, only.hash, only.since
    raw: dict[str, Any] = {"call_id": call_id, "by": by or run.client.actor, "hash": digest}
    raw |= await _said(run, value) if error is None else {"error": error}
    try:
        said = CallAnswer.model_validate(raw)
    except ValidationError as wrong:
        first = wrong.errors(include_url=False)[0]
        raise InvalidInputError(f"{'.'.join(map(str, first['loc'])) or 'the answer'}: {first['msg']}") from None
    return await _sent(run, said, since)


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


async def _sent(run: Run, said: CallAnswer, since: str | None) -> DecidedApproval:
    payload = said.model_dump(mode="json", exclude_none=True)
    if said.error is None and said.blob is None:
        payload["value"] = said.value  # null is an answer too
    try:
        unheard = "it did not say that it has the answer; send it again"
        raw = await updated(run, "answer_call", payload, unheard=unheard, since=since)
    except RunClosedError as closed:
        return await _too_late(run, said, closed)
    return DecidedApproval.model_validate(raw)


async def _too_late(run: Run, said: CallAnswer, closed: RunClosedError) -> DecidedApproval:
    """What the same answer came to before; else raises who was quicker, where that can still be told."""
    past = await past_of(run, said.call_id)
    if past is None or past.state == "approved":
        raise closed
    if repeats_answer(said, past):
        return past
    if past.state == "expired":
        raise ApprovalExpiredError(f"the time to answer call {said.call_id!r} is over")
    raise ApprovalDecidedError(f"call {said.call_id!r} is already {past}")


def _only(run: Run, status: Status) -> PendingApproval:
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
