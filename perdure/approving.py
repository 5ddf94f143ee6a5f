"""Decisions on calls that wait for approval: on their way to the run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from .decided import past_of
from .errors import ApprovalDecidedError, ApprovalExpiredError, InvalidInputError, RunClosedError
from .loop import repeats
from .told import waiting
from .types.approval import ApprovalDecision, DecidedApproval, PendingApproval, StandingApproval
from .types.interface import Status
from .types.plain import as_plain
from .updates import updated

if TYPE_CHECKING:
    from .run import Run


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
        only = _only(run, await waiting(run, approval=True))
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
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"])) or "the decision"
        raise InvalidInputError(f"{where}: {first['msg']}", hint="Nothing was decided.") from None
    if decision == "approve" and digest is None:
        return await _as_it_waits(run, said)
    return await _sent(run, said, since)


async def _as_it_waits(run: Run, said: ApprovalDecision) -> DecidedApproval:
    """Send the approval of a call with the hash of what waits under its id now.

    Where nothing does, the run says why; it never takes an approval without a hash.
    """
    digest, since = await _waits_under(run, said.call_id)
    try:
        return await _sent(run, said.model_copy(update={"hash": digest}), since)
    except InvalidInputError:
        if digest is not None:
            raise
        digest, since = await _waits_under(run, said.call_id)
        if digest is None:
            raise
    return await _sent(run, said.model_copy(update={"hash": digest}), since)  # it has come to wait in between


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


async def _sent(run: Run, said: ApprovalDecision, since: str | None) -> DecidedApproval:
    payload = said.model_dump(mode="json", exclude_none=True, exclude_defaults=True, exclude={"arguments"})
    if said.arguments is not None:
        payload["arguments"] = _plain(said.arguments)
    try:
        unheard = "no answer to a decision; it can be sent again"
        raw = await updated(run, "decide_approval", payload, unheard=unheard, since=since)
    except RunClosedError as closed:
        return await _too_late(run, said, closed)
    return DecidedApproval.model_validate(raw)


async def _too_late(run: Run, said: ApprovalDecision, closed: RunClosedError) -> DecidedApproval:
    """What the same decision came to before; else raises who had decided, where that can still be told."""
    past = await past_of(run, said.call_id)
    if past is None:
        raise closed
    if repeats(said, past):
        return past
    if past.state == "expired":
        raise ApprovalExpiredError(f"the approval of call {said.call_id!r} has {past}")
    raise ApprovalDecidedError(f"call {said.call_id!r} is already decided: {past}")


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
    if status.state in ("completed", "failed", "cancelled"):
        return "The run has ended. Name the call to hear what became of it."
    if not status.decided:
        return "Nothing was asked yet, or it was long ago."
    past = status.decided[-1]
    return f"The last one, {past.call_id} ({past.name}), was {past}."
