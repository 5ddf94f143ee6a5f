"""Forks a conversation into another run that continues from a point of it, and compares two transcripts.

A fork shares all messages before that point.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from temporalio import exceptions as temporal
from temporalio.service import RPCError, RPCStatusCode

from ..encryption import AuthMapping, seal_auth
from ..errors import InvalidInputError, RunExistsError
from ..loop.lifecycle import parse_start
from ..loop.turns import merge_overrides
from ..ports import Commit, Store
from ..store import Chain
from ..store.transcripts import ForkPoint, find_fork_point
from ..temporal_service import start_run_workflow
from ..types.interface import Override
from ..types.messages import Message, MessageInput, clean_text

if TYPE_CHECKING:
    from .run import Run


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
    one, other = tuple(left), tuple(right)
    shared = 0
    while shared < min(len(one), len(other)) and _has_same_content(one[shared], other[shared]):
        shared += 1
    return Difference(one[:shared], one[shared:], other[shared:])


def _has_same_content(one: Message, other: Message) -> bool:
    return (one.role, one.parts) == (other.role, other.parts)


MEMO_FORK = "forked_from"
"""Memo of a fork: the run, the iteration after which it branches off, and its author."""
_INHERITED_START_FIELDS = ("agent", "mode", "context", "override", "idle_timeout", "max_history_events")
"""Fields that a fork takes from the run's start. The auth context is not among them: the caller of the fork gives
it."""


async def start_fork(
    run: Run,
    message: MessageInput | None,
    *,
    at: int | None,
    id: str | None,
    model: str | tuple[str, ...] | None,
    results: Mapping[str, str] | None,
    override: Override | Mapping[str, Any] | None,
    auth: tuple[AuthMapping | None, str | None],
    by: str | None,
) -> Run:
    """See :meth:`perdure.Run.fork`; ``auth`` is ``auth_context`` and ``auth_ref``."""
    client = run.client
    _check_fork_arguments(at, results)
    store = await client.store()
    (start, task_queue), head = await asyncio.gather(_read_fork_start(run, store), _find_fork_head(run, store))
    if head is None and at != 0:
        raise InvalidInputError(f"run {run.id!r} has said nothing yet", hint="Fork it after its first reply; or at=0.")
    found = await find_fork_point(store, head, at, results)
    given = await client.build_user_message(message, uuid.uuid4().hex, by=by) if message is not None else None
    if given is not None:
        start["message"] = given.model_dump(mode="json", exclude_none=True)
    elif not found.is_answered:
        start["message"] = {"content": None, "by": by or client.actor}
    changes = merge_overrides(start.get("override") or {}, _build_fork_override(model, override))
    start |= {"override": changes or None, "history": await _write_fork_head(store, found), "store_id": store.store_id}
    name = id or f"{start['agent']}-{uuid.uuid4().hex[:12]}"
    start |= seal_auth(client.temporal, name, *auth)
    parse_start(start)
    memo = {MEMO_FORK: {"run": run.id, "at": found.iteration, "by": by or client.actor}}
    return await _start_fork_workflow(
        run, name, {key: value for key, value in start.items() if value is not None}, task_queue, memo
    )


async def _start_fork_workflow(run: Run, id: str, start: dict[str, Any], task_queue: str, memo: dict[str, Any]) -> Run:
    client = run.client
    try:
        await start_run_workflow(client.temporal, id, start, task_queue=task_queue, memo=memo)
    except temporal.WorkflowAlreadyStartedError:
        raise RunExistsError(f"there is a run {id!r} already", hint="Give the fork another id.") from None
    return client.run(id)


def _check_fork_arguments(at: int | None, results: Mapping[str, str] | None) -> None:
    if at is not None and (not isinstance(at, int) or isinstance(at, bool)):
        raise InvalidInputError(f"at: {at!r:.100} is no iteration", hint="A number, as `perdure show ID` has them.")
    if results is not None and not isinstance(results, Mapping):
        raise InvalidInputError(f"results: {results!r:.100} are no texts by call id", hint='{"call_1": "20 euros"}')
    for call, text in (results or {}).items():
        if not isinstance(text, str) or text != clean_text(text):
            raise InvalidInputError(f"results: that of {call!r:.100} is no text", hint="Give JSON as json.dumps(…).")


def _build_fork_override(
    model: str | tuple[str, ...] | None, override: Override | Mapping[str, Any] | None
) -> dict[str, Any]:
    """Build the fork's override of the agent, as plain JSON."""
    if isinstance(override, Override):
        override = override.model_dump(mode="json", exclude_unset=True)
    return {**(override or {}), **({"model": model} if model is not None else {})}


async def _find_fork_head(run: Run, store: Store) -> str | None:
    """Return the current head of the conversation; for one without messages of its own, the head that it was started
    on."""
    row = await store.get_run(run.id)
    if row is not None:
        return row.head
    status = await run.status()
    run.check_store(status.store_id, store.store_id, store.place)
    return status.head


async def _read_fork_start(run: Run, store: Store) -> tuple[dict[str, Any], str]:
    """Read the start input of the run, reduced to the fields that a fork inherits, and its task queue.

    For a run that Temporal no longer has, the agent comes from the store. Raises ``RunNotFoundError``.
    """
    client = run.client.temporal
    try:
        async for event in client.get_workflow_handle(run.id).fetch_history_events(page_size=1):
            begun = event.workflow_execution_started_event_attributes
            (raw,) = await client.data_converter.decode(begun.input.payloads) or [None]
            state = raw.get("state") if isinstance(raw, dict) else None
            if isinstance(state, dict):  # it had continued as new
                raw = {**state, "override": state.get("overrides")}
            if isinstance(raw, dict) and isinstance(raw.get("agent"), str):
                return {
                    name: raw[name] for name in _INHERITED_START_FIELDS if raw.get(name) is not None
                }, begun.task_queue.name
            break
    except RPCError as error:
        row = await store.get_run(run.id) if error.status == RPCStatusCode.NOT_FOUND else None
        if row is None:
            raise run.translate_rpc_error(error) from error
        return {"agent": row.agent}, run.client.task_queue
    raise InvalidInputError(f"run {run.id!r} was not started as a conversation", hint="Fork another one.")


async def _write_fork_head(store: Store, found: ForkPoint) -> str | None:
    """Write and return the head that the fork begins at: at most one new node, whatever the length of the
    conversation."""
    if not found.extra_messages:
        return found.base_head
    node, blobs = Chain(store).extend(found.base_head, found.extra_messages)
    await store.commit(Commit(nodes=[node], blobs=blobs))
    return node.hash
