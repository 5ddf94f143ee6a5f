"""Forks a conversation into another run that continues from a point of it, and compares two transcripts.

A fork shares all messages before that point.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from temporalio.exceptions import WorkflowAlreadyStartedError

from .._config import get_shared_task_queue
from .._encryption import AuthMapping, seal_auth
from ..errors import InvalidInputError, RunExistsError, RunNotFoundError
from ..loop.requests import merge_caller_overrides, merge_overrides, parse_start
from ..store import Chain
from ..store.transcripts import ForkPoint, find_fork_point
from ..temporal.start import start_run_workflow
from ..types.interface import LABELS
from ..types.messages import Message, MessageInput, clean_text
from .audit import acts_for_caller, audit_steering
from .handles import RunHandle
from .message_content import AnyOverride, build_user_message, split_override
from .messages import decode_start
from .run_ids import claim_run_id

if TYPE_CHECKING:
    from ..ports.store import RunRow, Store

MEMO_FORK = "forked_from"
"""Memo of a fork: the run, the iteration after which it branches off, and its author."""
_INHERITED_START_FIELDS = (
    *("agent", "mode", "context", "override", "caller_request", "idle_timeout", "max_history_events"),
    *LABELS,
)
"""Fields that a fork takes from the run's start. The auth context is not among them: the caller of the fork gives
it."""


# ---
# Differences between two transcripts.


@dataclass(frozen=True)
class Difference:
    """Two conversations side by side."""

    shared: tuple[Message, ...]
    """Messages at the beginning of both."""
    left: tuple[Message, ...]
    """The first one's messages after the shared ones."""
    right: tuple[Message, ...]
    """The second one's messages after the shared ones."""

    @property
    def same(self) -> bool:
        """Whether the two do not differ."""
        return not self.left and not self.right

    @property
    def iteration(self) -> int:
        """The last iteration in both, as ``perdure show`` numbers them; 0 before the first."""
        return sum(message.role == "assistant" for message in self.shared)


def compare_transcripts(left: Iterable[Message], right: Iterable[Message]) -> Difference:
    """Compare roles and contents; ids, senders, tokens and prices do not count."""
    left, right = tuple(left), tuple(right)
    shared = 0
    for message, other in zip(left, right, strict=False):
        if (message.role, message.parts) != (other.role, other.parts):
            break
        shared += 1
    return Difference(left[:shared], left[shared:], right[shared:])


async def start_fork(
    run: RunHandle,
    message: MessageInput | None,
    *,
    at: int | None,
    id: str | None,
    model: str | tuple[str, ...] | None,
    results: Mapping[str, str] | None,
    override: AnyOverride | None,
    context: Any,
    auth: tuple[AuthMapping | None, str | None],
    by: str | None,
) -> str:
    """See :meth:`perdure.Run.fork`; ``auth`` is ``auth_context`` and ``auth_ref``."""
    client = run.client
    by = by or client.actor
    _check_fork_arguments(at, results)
    store = await client.store()
    (start, task_queue), head = await asyncio.gather(_read_fork_start(run, store), run.read_head(store))
    if head is None and at != 0:
        raise InvalidInputError(f"run {run.id!r} has no reply yet", hint="Fork it after its first reply; or at=0.")
    point = await find_fork_point(store, head, at, results, given_by=clean_text(by or ""))
    if message is not None:
        user_message = await build_user_message(client, message, id=uuid.uuid4().hex, by=by)
        start["message"] = user_message.model_dump(mode="json", exclude_none=True)
    elif not point.is_answered:
        start["message"] = {"content": None, "by": by, **({"caller_request": {}} if acts_for_caller() else {})}
    given = split_override(override)
    changes = {**(given["override"] or {}), **({"model": model} if model is not None else {})}
    before, asked = ((one or {}).get("override") for one in (start.get("caller_request"), given["caller_request"]))
    start |= {
        "override": merge_overrides(start.get("override") or {}, changes) or None,
        "caller_request": {**(given["caller_request"] or {}), "override": merge_caller_overrides(before, asked)}
        if before or given["caller_request"] is not None
        else None,
        "history": await _write_fork_head(store, point),
        "store_id": store.store_id,
    }
    if context is not None:
        from ..tools.context_type import validate_plain_context

        start["context"] = {**(start.get("context") or {}), **validate_plain_context(start["agent"], context)}
    if any(start.get(name) is not None for name in ("override", "context", "history")):
        start["by"] = by
    parse_start(start)
    fork_id = await claim_run_id(client, id, start)
    start |= seal_auth(client.temporal, fork_id, *auth)
    start = {name: value for name, value in start.items() if value is not None}
    memo = {MEMO_FORK: {"run": run.id, "at": point.iteration, "by": by}}
    async with audit_steering(client, "fork", run.id, by=by, detail=f"{fork_id}, after iteration {point.iteration}"):
        try:
            await start_run_workflow(client.temporal, fork_id, start, task_queue=task_queue, memo=memo)
        except WorkflowAlreadyStartedError:
            raise RunExistsError(f"there is a run {fork_id!r} already", hint="Give the fork another id.") from None
    return fork_id


def _check_fork_arguments(at: int | None, results: Mapping[str, str] | None) -> None:
    if at is not None and (not isinstance(at, int) or isinstance(at, bool)):
        hint = "Give a number as `perdure show ID` has them."
        raise InvalidInputError(f"at must be the number of an iteration, not {at!r:.100}", hint=hint)
    if results is not None and not isinstance(results, Mapping):
        hint = 'For instance {"call_1": "20 euros"}.'
        raise InvalidInputError(f"results must be texts by call id, not {results!r:.100}", hint=hint)
    for call_id, text in (results or {}).items():
        if not isinstance(text, str) or text != clean_text(text):
            hint = "Give JSON as json.dumps(…)."
            raise InvalidInputError(f"results: the result of {call_id!r:.100} must be text", hint=hint)


async def _read_fork_start(run: RunHandle, store: Store) -> tuple[dict[str, Any], str]:
    """Read the start input of the run, reduced to the fields that a fork inherits, and its task queue.

    For a run that Temporal no longer has, the agent comes from the store. Raises ``RunNotFoundError``.
    """
    execution = run.client.temporal.get_workflow_handle(run.id)
    try:
        with run.temporal_errors():
            first_event = await anext(execution.fetch_history_events(page_size=1), None)
    except RunNotFoundError:
        row = await store.get_run(run.id)
        if row is None:
            raise
        inherited = {"agent": row.agent, "tenant": row.tenant, "user": row.user}
        return inherited | _inherit_parent({}, row), run.client.task_queue
    raw = {} if first_event is None else await decode_start(run, first_event)
    if first_event is None or not isinstance(raw.get("agent"), str):
        raise InvalidInputError(f"run {run.id!r} was not started as a conversation", hint="Fork another one.")
    start = {name: raw[name] for name in _INHERITED_START_FIELDS if raw.get(name) is not None}
    row = await store.get_run(run.id)
    if row is not None:  # its execution may have found them there, too: a later one of the conversation
        start |= {name: value for name in LABELS if (value := getattr(row, name)) is not None}
    start |= _inherit_parent(raw, row)
    queue = first_event.workflow_execution_started_event_attributes.task_queue.name
    return start, get_shared_task_queue(queue)


def _inherit_parent(raw: Mapping[str, Any], row: RunRow | None) -> dict[str, Any]:
    """Return the ``parent`` of the fork of a subagent: the rules, the requesters and the bounds of the runs above it
    hold for the fork, too. Raises ``InvalidInputError`` where they are not known any more."""
    parent = raw.get("parent")
    if isinstance(parent, Mapping):
        return {"parent": {name: value for name, value in parent.items() if name != "background"}}
    if row is not None and row.root is not None:
        raise InvalidInputError(
            f"run {row.context_id!r:.200} was started by another run, whose rules for it are not known any more",
            hint=f"Fork the run at the top: {row.root!r:.200}.",
        )
    return {}


async def _write_fork_head(store: Store, point: ForkPoint) -> str | None:
    """Write and return the head that the fork begins at: at most one new node, whatever the length of the
    conversation."""
    from ..ports.store import Commit

    if not point.extra_messages:
        return point.base_head
    node, blobs = Chain(store).extend(point.base_head, point.extra_messages)
    await store.commit(Commit(nodes=[node], blobs=blobs))
    return node.hash
