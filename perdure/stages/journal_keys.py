"""Journal keys, which identify a call across all its attempts, and the parsing of recorded outcomes."""

from __future__ import annotations

import hashlib
import json
from contextlib import suppress
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from ..errors import TranscriptCorruptedError
from ..types.client_tools import ClientTools
from ..types.messages import BlobRef, Data
from ..types.schema_version import check_schema_version
from ..types.wire import ModelInput, ToolInput

_encode_canonical_json = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=True).encode


def build_model_key(task: ModelInput) -> str:
    """Return the key of a model call: its scope and number, and the content of the request.

    The approver and the time of a decision are left out: after a Temporal reset the same decision has another time.
    """
    digest = {
        "agent": task.agent,
        "purpose": task.purpose,
        "head": task.head,
        "new": [{"kind": item.kind, **_dump_without_defaults(item, "decided")} for item in task.new],
        "overrides": task.overrides,
        "closing": _dump_without_defaults(task.closing) if task.closing else None,
        **({} if task.caller_overrides is None else {"caller_overrides": task.caller_overrides}),
        **({} if task.tighter is None else {"tighter": task.tighter}),
        **({} if task.pinned is None else {"pinned": task.pinned.hash}),
        **({} if task.client_tools is None else {"client_tools": _dump_client_tools(task.client_tools)}),
        **({"branches": [_dump_without_defaults(outcome) for outcome in task.branches]} if task.branches else {}),
        **({} if task.auth_context is None else {"auth_context": task.auth_context}),
        **({} if task.auth_ref is None else {"auth_ref": task.auth_ref}),
    }
    return _hash_journal_key(task.scope, task.op, "model", digest)


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
