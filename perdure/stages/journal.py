"""The journal stage, which records each call's outcome once, and the reply cache stage.

A model call: its outcome is looked up before, and recorded after, in one transaction with the transcript's node.
A tool call: its intent is recorded first, so that a retry can tell "never begun" (run it), "done" (return it) and
"begun, outcome unknown" apart; in the last case only an idempotent tool runs again.

The author's writes into memory are part of the transaction, so they happen as often as the outcome: once.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any, Protocol

from pydantic import ValidationError

from ..agent.agent import Agent
from ..errors import MemoryChangedError, StoreError
from ..hooks import HookEvent, HookSet
from ..ports import (
    Blob,
    Claim,
    Commit,
    Journal,
    MemoryWrite,
    ModelCall,
    ModelReply,
    ModelRequest,
    NextModel,
    NextTool,
    Outcome,
    ToolCall,
)
from ..ports.test_seams import reach_point
from ..types.messages import Data, Message
from ..types.wire import INLINE_BYTES, ModelOutput, ToolOutput
from .event_builders import build_tool_end_events, build_tool_start_events
from .event_stream import build_event_batch
from .journal_keys import build_model_key, parse_outcome

CANCELLED_COMMIT_TIMEOUT = 10.0
"""Seconds for which a cancelled activity still tries to record its outcome."""


class JournalStage:
    """Looks outcomes up and records them.

    ``waiting`` is called with the reason when a write has to wait for the store, and with "" when it is done.
    """

    def __init__(self, journal: Journal, waiting: Callable[[str], None] = lambda _: None) -> None:
        self._journal = journal
        self._report_waiting = waiting

    async def model(self, call: ModelCall, next: NextModel) -> ModelReply:
        """Return the recorded outcome, or run ``next`` and record its outcome."""
        key = build_model_key(call.input)
        recorded = (await self._journal.find_outcomes([key])).get(key)
        if recorded is not None:
            return ModelReply(parse_outcome(ModelOutput, recorded, key), message=None)
        paid = call.input.purpose not in ("close", "remind")
        if paid:
            reach_point("model.begun")
        reply = await next(call)
        if paid:
            reach_point("model.answered")
        body = reply.output.model_dump_json(exclude_none=True).encode()
        parse_outcome(ModelOutput, body, key)  # an outcome that could not be read back is not recorded
        outcome = Outcome(key, "model", body)
        first = await self._commit_despite_cancel(
            replace(reply.commit, outcome=outcome, memory=tuple(call.memory_writes))
        )
        if paid:
            reach_point("model.recorded")
        if first != body:  # another attempt recorded its outcome first, and that counts
            reply.output = parse_outcome(ModelOutput, first, key)
        return reply

    async def tool(self, call: ToolCall, next: NextTool) -> ToolOutput:
        """Return the recorded outcome, or run ``next``, if the call may run, and record its outcome."""
        begins = build_event_batch(call, build_tool_start_events(call))
        again = call.input.idempotent or call.input.side is not None  # only hooks run, which may run again
        claim = await self._journal.claim(call.key, call.owner, again=again, events=begins)
        if claim.outcome is not None:
            return parse_outcome(ToolOutput, claim.outcome, call.key)
        while True:
            try:
                return await self._run_and_record(call, claim, next)
            except MemoryChangedError:  # nothing is recorded: it has read values that were changed since
                call.memory_writes.clear()
                call.hook_writes[:] = call.before_hook_writes or ()
                call.blobs.clear()
                call.error = None

    async def _run_and_record(self, call: ToolCall, claim: Claim, next: NextTool) -> ToolOutput:
        """Run the call and record its outcome. Raises ``MemoryChangedError`` where it has to run once more."""
        output = _build_unknown_outcome(call, claim) or await _run_claimed_tool(call, next)
        output, blobs = _move_large_content_to_blob(output)
        body = output.model_dump_json(exclude_none=True).encode()
        parse_outcome(ToolOutput, body, call.key)  # an outcome that could not be read back is not recorded
        # A failed tool writes nothing into memory; the writes of another are recorded once, with its outcome.
        # A tool that asks a question runs again from its start, and so do the hooks around it.
        memory = (
            () if output.status == "asking" else (*call.hook_writes, *(() if output.is_error else call.memory_writes))
        )
        outcome = Outcome(call.key, "tool", body)
        events = build_event_batch(call, [*call.pending_events, *build_tool_end_events(call, output)])
        first = await self._commit_despite_cancel(
            Commit(blobs=[*blobs, *call.blobs], outcome=outcome, memory=memory, events=events)
        )
        reach_point("tool.recorded")
        return output if first == body else parse_outcome(ToolOutput, first, call.key)

    async def _commit_despite_cancel(self, commit: Commit) -> bytes:
        """Write ``commit``, also if the activity is cancelled meanwhile. Return the recorded outcome.

        Raises ``StoreError`` if, after a cancellation, it is not written within ``CANCELLED_COMMIT_TIMEOUT`` seconds.
        """
        try:
            return await self._commit_with_retry(commit)
        except asyncio.CancelledError:
            # It may be written, or about to be: a second commit returns the outcome that is recorded.
            try:
                return await asyncio.wait_for(self._commit_with_retry(commit), CANCELLED_COMMIT_TIMEOUT)
            except TimeoutError:
                raise StoreError(
                    f"cancelled, and the store did not take the outcome within {CANCELLED_COMMIT_TIMEOUT:g} s"
                ) from None

    async def _commit_with_retry(self, commit: Commit) -> bytes:
        """Write ``commit`` as soon as the store takes it. Return the recorded outcome.

        Failing the attempt instead would lose a paid reply, or the outcome of an effect that cannot be undone.
        """
        delay, waited = 0.2, False
        while True:
            try:
                first = await self._journal.commit(commit)
            except StoreError as error:
                if not error.retryable:
                    raise
                waited = True
                self._report_waiting(f"{type(error).__name__}: {error}")
                await asyncio.sleep(delay)
                delay = min(delay * 2, 5.0)
            else:
                if waited:
                    self._report_waiting("")
                assert first is not None, "a commit with an outcome returns the recorded one"
                return first


async def _run_claimed_tool(call: ToolCall, next: NextTool) -> ToolOutput:
    reach_point("tool.claimed")
    output = await next(call)
    reach_point("tool.acted")
    return output


def _build_unknown_outcome(call: ToolCall, claim: Claim) -> ToolOutput | None:
    """Build the result of a call that began, has no recorded outcome, and may not run again; None if it may run."""
    name, retries = call.input.name, call.input.retries
    if claim.state == "begun":
        text = (
            f"OutcomeUnknown: {name} was started, and its worker was lost before it reported back. "
            "It may have happened or not, and it was not run again. Check before you repeat it."
        )
    elif retries is not None and claim.starts > retries + 1:
        text = (
            f"OutcomeUnknown: {name} was started {retries + 1} times and its worker was lost each time; "
            "it is not run again. It may have happened or not."
        )
    else:
        return None
    return ToolOutput(key=call.key, content=text, is_error=True, status="unknown")


def _move_large_content_to_blob(output: ToolOutput) -> tuple[ToolOutput, list[Blob]]:
    """Replace a content above ``INLINE_BYTES`` by a reference; return the output and the blob to write."""
    if output.content is None or len(output.content) * 4 <= INLINE_BYTES:
        return output, []
    blob = Blob.from_content(output.content)
    if len(blob.body) <= INLINE_BYTES:
        return output, []
    return output.model_copy(update={"content": None, "blob": blob.ref}), [blob]


# ---
# The reply cache stage: keeps a reply before the author's code sees it, so that it is not lost if that code fails.
#
# It keeps no reply that a hook may change (``after_llm_call``): the hook may be there to remove a secret, so nothing
# is stored before it has run.
#
# The stage is right inside the hooks. The outcome of a call is the reply as the hooks have changed it, and is recorded
# when they are done (the journal stage); until then the reply is kept in the store's memory, in a namespace of the
# conversation. An attempt, or a resumed run (``resume``), that makes the same request again gets this reply and runs
# only the hooks. The kept reply is deleted in the transaction that records the outcome.


logger = logging.getLogger("perdure.worker")

REPLY_CHANGING_HOOK: HookEvent = "after_llm_call"
"""Hooks that may change a reply before it is stored."""
REPLY_READING_HOOKS: tuple[HookEvent, ...] = ("before_subagent", "on_approval", "on_finish")
"""Other hooks that run after a reply."""
HASHED_MESSAGES = 20
"""Number of last messages that, with the total count, identify a request: hashing a long conversation would be slow."""


class ReplyCacheStore(Protocol):
    """The store as the reply cache stage uses it."""

    async def recall_all(self, namespace: str, prefix: str = "", *, limit: int = 1000) -> dict[str, bytes]:
        """Return the values of a namespace by their keys."""
        ...

    async def commit(self, commit: Commit) -> bytes | None:
        """Write everything in one transaction."""
        ...


class CachedReply(Data):
    """A reply that no outcome has yet."""

    call: str
    """Journal key of the call that paid for it."""
    request: str
    """What was asked (:func:`hash_request`)."""
    message: Message


def build_reply_namespace(run_id: str) -> str:
    """Return the memory namespace of the kept replies of a conversation."""
    return f"paid:{run_id}"


class ReplyCacheStage:
    """Keeps replies while hooks and output validators run; see above for what it does not keep."""

    def __init__(self, store: ReplyCacheStore, worker: HookSet | None = None) -> None:
        self._store = store
        self._worker_hooks = HookSet() if worker is None else worker

    async def model(self, call: ModelCall, next: NextModel) -> ModelReply:
        """Around the bare call. Raises ``StoreError`` before it, not after it."""
        agent: Agent = call.agent
        if not self._can_cache_reply(agent):
            return await next(call)
        assert call.request is not None, "the iteration stage makes it"
        place, key, asked = (
            build_reply_namespace(call.input.context_id),
            build_model_key(call.input),
            hash_request(agent, call.request),
        )
        kept = await self._store.recall_all(place)
        call.memory_writes += [MemoryWrite(place, at, None) for at in kept]
        summing = call.input.purpose == "compact"  # one call of the run asks several times
        for one in filter(None, map(_parse_cached_reply, kept.values())):
            if one.request == asked or (one.call == key and not summing):
                call.report_model(agent.model)
                return ModelReply(ModelOutput(), one.message)
        reply = await next(call)
        if reply.message is not None:
            paid = CachedReply(call=key, request=asked, message=reply.message)
            at = f"{key[:32]}:{asked[:16]}"
            await self._save_reply(MemoryWrite(place, at, paid.model_dump_json(exclude_none=True).encode()))
            call.memory_writes.append(MemoryWrite(place, at, None))
        return reply

    async def tool(self, call: ToolCall, next: NextTool) -> ToolOutput:
        """Nothing to do: a tool call has its own journal entry."""
        return await next(call)

    def _can_cache_reply(self, agent: Agent) -> bool:
        """Whether the author's code reads replies, and may fail or be slow, and no hook may change them."""
        sets = [some for some in (self._worker_hooks, agent.hooks) if some]
        if any(some.on(REPLY_CHANGING_HOOK) for some in sets):
            return False
        return bool(agent.output_validators) or any(some.on(event) for some in sets for event in REPLY_READING_HOOKS)

    async def _save_reply(self, write: MemoryWrite) -> None:
        """Write the reply. A ``StoreError`` is only logged: the store may be back when the outcome is recorded."""
        try:
            await self._store.commit(Commit(memory=(write,)))
        except StoreError as error:
            logger.warning("a reply is not kept before its hooks run: %s", error)


def _parse_cached_reply(body: bytes) -> CachedReply | None:
    """Parse a kept reply; None where another version of perdure wrote it in a format that this one does not know."""
    try:
        return CachedReply.model_validate_json(body)
    except ValidationError:
        return None


def hash_request(agent: Agent, request: ModelRequest) -> str:
    """Return the SHA-256 of a request and the agent's models (hex). Of long conversations it takes only the message
    count and the last ``HASHED_MESSAGES`` messages."""
    said = request.messages
    asked: dict[str, Any] = {
        "models": [str(one) for one in agent.chain],
        "system": request.system,
        "tools": [asdict(one) for one in request.tools],
        "choice": request.tool_choice,
        "settings": request.settings,
        "options": request.provider_options,
        "messages": [
            len(said),
            *(one.model_dump(mode="json", exclude_defaults=True) for one in said[-HASHED_MESSAGES:]),
        ],
    }
    text = json.dumps(asked, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()
