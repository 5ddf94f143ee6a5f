"""Answers to what tools ask of people, and to calls that a client runs: on their way to the run."""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError
from pydantic_core import PydanticSerializationError, to_jsonable_python
from temporalio.client import WorkflowQueryFailedError, WorkflowUpdateFailedError
from temporalio.client import WorkflowUpdateRPCTimeoutOrCancelledError as NoAnswer
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError

from .errors import ApprovalDecidedError, InvalidInputError, PerdureError, RunClosedError, from_type
from .loop import repeats_answer
from .translate import closed_error, unreachable
from .types.approval import DecidedApproval, PendingApproval
from .types.interface import Status
from .types.question import CallAnswer
from .uploading import SENT_BYTES, uploaded

if TYPE_CHECKING:
    from .run import Run

_ENDED = "AcceptedUpdateCompletedWorkflow"


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
        only = _only(run, await run.status())
        call_id, digest, since = only.call_id, only.hash, only.since
    raw: dict[str, Any] = {"call_id": call_id, "by": by or run.client.actor, "hash": digest}
    raw |= await _said(run, value) if error is None else {"error": error}
    try:
        said = CallAnswer.model_validate(raw)
    except ValidationError as wrong:
        first = wrong.errors(include_url=False)[0]
        raise InvalidInputError(f"{'.'.join(map(str, first['loc'])) or 'the answer'}: {first['msg']}") from None
    return DecidedApproval.model_validate(await _sent(run, said, since))


async def _said(run: Run, value: Any) -> dict[str, Any]:
    """Plain JSON; a long text goes by way of the store."""
    try:
        plain = to_jsonable_python(value, by_alias=True)
        json.dumps(plain, allow_nan=False)
    except (PydanticSerializationError, ValueError, TypeError, RecursionError) as error:
        raise InvalidInputError(f"the answer cannot be written as JSON: {error}", hint="Give plain values.") from None
    if isinstance(plain, str) and len(plain.encode(errors="replace")) > SENT_BYTES:
        ref, store_id = await uploaded(run.client, plain)
        return {"blob": ref, "store_id": store_id}
    return {"value": plain}


async def _sent(run: Run, said: CallAnswer, since: str | None) -> Any:
    payload = said.model_dump(mode="json", exclude_none=True)
    if said.error is None and said.blob is None:
        payload["value"] = said.value  # null is an answer too
    try:
        return await run.handle.execute_update("answer_call", payload, id=_update_id(payload, since))
    except WorkflowUpdateFailedError as error:
        cause = error.cause
        kind = cause.type if isinstance(cause, ApplicationError) else None
        if kind == _ENDED:
            return await _too_late(run, said)
        raise from_type(kind, getattr(cause, "message", str(cause))) from None
    except NoAnswer as error:
        raise unreachable(run.client.temporal, "it did not say that it has the answer; send it again") from error
    except RPCError as error:
        why = run.translated(error)
        if not isinstance(why, RunClosedError):
            raise why from None
        return await _too_late(run, said)


def _update_id(payload: Mapping[str, Any], since: str | None) -> str:
    """The same for whoever sends the same answer to the same question again: Temporal then knows the update."""
    if since is None:
        return uuid.uuid4().hex
    return hashlib.sha256(json.dumps([payload, since], sort_keys=True).encode()).hexdigest()[:32]


async def _too_late(run: Run, said: CallAnswer) -> Any:
    """The run has ended: what its workflow says of the same answer, or who was quicker."""
    try:
        status = Status.model_validate(await run.query("status"))
    except (RPCError, WorkflowQueryFailedError, PerdureError):
        raise closed_error(run.id) from None
    past = next((one for one in reversed(status.decided) if one.call_id == said.call_id), None)
    if past is None or past.state == "approved":
        raise closed_error(run.id)
    if repeats_answer(said, past):
        return past
    if past.state == "expired":
        raise from_type("ApprovalExpiredError", f"the time to answer call {said.call_id!r} is over")
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
