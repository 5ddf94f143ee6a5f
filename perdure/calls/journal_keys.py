"""Journal keys, which identify a call across all its attempts, and the parsing of recorded outcomes."""

from __future__ import annotations

import hashlib
import json
from contextlib import suppress
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from ..errors import StoreError, TranscriptCorruptedError
from ..ports.store import Journal, OutcomeKind
from ..types.client_tools import ClientTools
from ..types.messages import BlobRef, Data
from ..types.schema_version import check_schema_version
from ..types.wire import CloseInput, CompactInput, ModelInput, RemindInput, RequestFacts, ToolInput

_encode_canonical_json = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=True).encode


StepInput = ModelInput | CompactInput | CloseInput | RemindInput


def build_step_key(task: StepInput) -> str:
    """Return the key of a step's call: its scope, number and kind, and the content of the request.

    The approver and the time of a decision are left out: after a Temporal reset the same decision has another time.
    """
    digest: dict[str, Any] = {
        "agent": task.agent,
        "head": task.head,
        **({} if task.auth_context is None else {"auth_context": task.auth_context}),
        **({} if task.auth_ref is None else {"auth_ref": task.auth_ref}),
    }
    if isinstance(task, ModelInput | CloseInput):
        digest["new"] = [{"kind": item.kind, **_dump_without_defaults(item, "decided")} for item in task.new]
    match task:
        case ModelInput():
            digest |= {
                **_dump_request(task),
                **({"forced": True} if task.is_forced else {}),
                **({} if task.window_halvings is None else {"window_halvings": task.window_halvings}),
                **(
                    {"branches": [_dump_without_defaults(outcome) for outcome in task.branches]}
                    if task.branches
                    else {}
                ),
            }
        case CompactInput():
            digest |= {**_dump_request(task), **({} if task.rewrites is None else {"rewrites": task.rewrites})}
        case CloseInput():
            digest["closing"] = _dump_without_defaults(task.closing) if task.closing else None
    return _hash_journal_key(task.scope, task.op, get_outcome_kind(task), digest)


def _dump_request(task: RequestFacts) -> dict[str, Any]:
    return {
        "overrides": task.overrides,
        **({} if task.caller_overrides is None else {"caller_overrides": task.caller_overrides}),
        **({} if task.pinned is None else {"pinned": task.pinned.hash}),
        **({} if task.client_tools is None else {"client_tools": _dump_client_tools(task.client_tools)}),
    }


def get_outcome_kind(task: StepInput) -> OutcomeKind:
    """Return ``Outcome.kind`` of a step's call."""
    return _KINDS[type(task)]


_KINDS: dict[type[StepInput], OutcomeKind] = {
    ModelInput: "model",
    CompactInput: "compact",
    CloseInput: "close",
    RemindInput: "remind",
}


def build_tool_key(task: ToolInput) -> str:
    """Return the key of a tool call: its scope and number, the call, its arguments, and its answers so far.

    Arguments too large for history are in the node of ``head``, whose hash covers them.
    """
    digest = {
        "call_id": task.call_id,
        "name": task.name,
        "arguments": task.arguments if task.arguments is not None else task.head,
        **(
            {"answers": [_dump_without_defaults(answer, "by", "at") for answer in task.answers]} if task.answers else {}
        ),
        **({} if task.side is None else {"side": {"kind": task.side.kind, **_dump_without_defaults(task.side)}}),
    }
    return _hash_journal_key(task.scope, task.op, "tool", digest)


def build_first_run_key(task: ToolInput) -> str:
    """Return the key of the call's first run: the same for all its runs, whatever answers came in between, and for the
    activities before and after an external call."""
    return build_tool_key(task.model_copy(update={"answers": (), "side": None}) if task.answers or task.side else task)


def _dump_client_tools(tools: ClientTools) -> Any:
    return tools.hash if isinstance(tools, BlobRef) else [_dump_without_defaults(tool) for tool in tools]


def _dump_without_defaults(data: Data, *without: str) -> dict[str, Any]:
    """Dump ``data`` without defaults: a field added by a later version must not change the keys of calls that do not
    use it."""
    return data.model_dump(exclude_defaults=True, exclude=set(without))


def _hash_journal_key(scope: str, op: int, kind: str, digest: dict[str, Any]) -> str:
    return hashlib.sha256(_encode_canonical_json([scope, op, kind, digest]).encode()).hexdigest()


# ---
# The outcome of a step's call, and the mark of one that is given up: an attempt that was only taken for lost must not
# record its reply any more, whose calls it would then begin.


class GivenUp(Data):
    """In the place of an outcome: the run has gone on without it."""

    given_up: str
    """When the activity that gave it up was scheduled (``Attempt.asked_at``)."""


def encode_given_up(asked_at: str) -> bytes:
    """Encode the mark of a call that is given up by an activity scheduled at ``asked_at``."""
    return GivenUp(given_up=asked_at).model_dump_json().encode()


def read_given_up(body: bytes) -> str | None:
    """Return when the call was given up; None for an outcome."""
    return GivenUp.model_validate_json(body).given_up if body.startswith(b'{"given_up":') else None


async def find_step_outcome(journal: Journal, task: StepInput, asked_at: str) -> tuple[str, bytes | None]:
    """Find the recorded outcome of a step's call; also returns the key under which it is recorded, or is to be.

    A call that is made again although it was given up, as after a Temporal reset, has another key. Raises
    ``StoreError`` for a call that was scheduled, at ``asked_at``, before it was given up.
    """
    key = build_step_key(task)
    while True:
        body = (await journal.find_outcomes([key])).get(key)
        given_up = None if body is None else read_given_up(body)
        if given_up is None:
            return key, body
        if asked_at < given_up:
            raise build_given_up_error(given_up)
        key = hashlib.sha256(f"{key}/again".encode()).hexdigest()


def build_given_up_error(at: str) -> StoreError:
    """Build the error of an attempt whose call was given up."""
    return StoreError(
        f"this call was given up at {at}: its run has gone on without it",
        hint="Where the run waits for it, because Temporal was restored from a backup, interrupt the run.",
    )


# ---
# Parsing of recorded outcomes.


OutputT = TypeVar("OutputT", bound=BaseModel)


def parse_outcome(kind: type[OutputT], body: bytes, key: str) -> OutputT:
    """Parse the outcome of journal entry ``key``. Raises ``TranscriptCorruptedError``, on which the run waits, and
    ``NewerStateError``, on which a worker of the newer perdure takes the call."""
    if b'"schema_version"' in body:  # of a newer version: this one's outcomes have none
        with suppress(json.JSONDecodeError):
            check_schema_version(json.loads(body), f"the outcome in journal entry {key}")
    try:
        return kind.model_validate_json(body)
    except ValidationError:
        raise TranscriptCorruptedError(
            f"the outcome in journal entry {key} was altered, or a newer perdure wrote it: it cannot be read",
            hint="Restore the entry from a backup, or run workers of the newer version; then resume the run.",
        ) from None
