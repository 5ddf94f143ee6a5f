"""The journal stage: an effect that was paid for is never paid for again.

A model call: the outcome is looked up before, and recorded after, in one transaction with the transcript's node.
A tool call: the intent is recorded first, so that a retry can tell "never begun" (run it), "done" (return it) and
"begun, outcome unknown" apart; the last is run again only for an idempotent tool.

What the author's code wrote into memory is part of the transaction, so it happens as often as the outcome: once.
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
"""Seconds that a cancelled activity still tries to record what it has paid for."""


class JournalStage:
    """Looks outcomes up and records them.

    ``waiting`` is told why a record has to wait for the store, and "" when it is there.
    """

    def __init__(self, journal: Journal, waiting: Callable[[str], None] = lambda _: None) -> None:
        self._journal = journal
        self._report_waiting = waiting

    async def model(self, call: ModelCall, next: NextModel) -> ModelReply:
        """The recorded outcome, or that of ``next``, recorded."""
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
        parse_outcome(ModelOutput, body, key)  # what could not be read back later is not recorded
        outcome = Outcome(key, "model", body)
        first = await self._commit_despite_cancel(
            replace(reply.commit, outcome=outcome, memory=tuple(call.memory_writes))
        )
        if paid:
            reach_point("model.recorded")
        if first != body:  # another attempt was quicker; what it said is what counts
            reply.output = parse_outcome(ModelOutput, first, key)
        return reply

    async def tool(self, call: ToolCall, next: NextTool) -> ToolOutput:
        """The recorded outcome, or that of ``next`` if it may act, recorded."""
        begins = build_event_batch(call, build_tool_start_events(call))
        again = call.input.idempotent or call.input.side is not None  # hooks alone, which may run again
        claim = await self._journal.claim(call.key, call.owner, again=again, events=begins)
        if claim.outcome is not None:
            return parse_outcome(ToolOutput, claim.outcome, call.key)
        while True:
            try:
                return await self._run_and_record(call, claim, next)
            except MemoryChangedError:  # nothing is recorded of it: it has read what is there no more
                call.memory_writes.clear()
                call.hook_writes[:] = call.before_hook_writes or ()
                call.blobs.clear()
                call.error = None

    async def _run_and_record(self, call: ToolCall, claim: Claim, next: NextTool) -> ToolOutput:
        """Run it, and record what it came to. Raises ``MemoryChangedError`` where it has to run once more."""
        output = _build_unknown_outcome(call, claim) or await _run_claimed_tool(call, next)
        output, blobs = _move_large_content_to_blob(output)
        body = output.model_dump_json(exclude_none=True).encode()
        parse_outcome(ToolOutput, body, call.key)  # what could not be read back later is not recorded
        # A tool that failed has done nothing as far as memory goes; one that wrote has written once, with its outcome.
        # One that asks runs again from its start, and so do the hooks around it.
        memory = (
            () if output.status == "asking" else (*call.hook_writes, *(() if output.is_error else call.memory_writes))
        )
        outcome = Outcome(call.key, "tool", body)
        events = build_event_batch(call, [*call.pending_events, *build_tool_end_events(call, output)])
        first = await self._commit_despite_cancel(
            Commit(read_blobs=[*blobs, *call.blobs], outcome=outcome, memory=memory, events=events)
        )
        reach_point("tool.recorded")
        return output if first == body else parse_outcome(ToolOutput, first, call.key)

    async def _commit_despite_cancel(self, commit: Commit) -> bytes:
        """Write ``commit``, whatever comes: a cancelled activity sees it written first."""
        try:
            return await self._commit_with_retry(commit)
        except asyncio.CancelledError:
            # It may be written, or about to be: asked again, the store says what is recorded.
            try:
                return await asyncio.wait_for(self._commit_with_retry(commit), CANCELLED_COMMIT_TIMEOUT)
            except TimeoutError:
                raise StoreError(
                    f"cancelled, and the store did not take the outcome within {CANCELLED_COMMIT_TIMEOUT:g} s"
                ) from None

    async def _commit_with_retry(self, commit: Commit) -> bytes:
        """Write ``commit`` as soon as the store takes it.

        Failing the attempt instead would throw away a paid reply, or the outcome of an act that cannot be undone.
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
    """What the model is told of a call that began, whose end nobody saw, and that may not run (once more)."""
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
    """Results above the threshold go to the store whole, and to history by reference."""
    if output.content is None or len(output.content) * 4 <= INLINE_BYTES:
        return output, []
    blob = Blob.from_content(output.content)
    if len(blob.body) <= INLINE_BYTES:
        return output, []
    return output.model_copy(update={"content": None, "blob": blob.ref}), [blob]


# ---
# The paid stage: a reply is kept before code of the author's sees it, so that code which fails does not cost it.
#
# Not where a hook may change the reply (``after_llm_call``): it may be there to take a secret out, and what it has
# not
# seen yet is stored nowhere.
#
# It stands right behind the hooks. The outcome of a call is what they have made of the reply, and is recorded when
# they
# are done (:mod:`.journal`); until then the reply is kept in the store's memory, in a namespace of the conversation.
# An
# attempt, or a run gone on with (``resume``), that asks the same again is given it and runs the hooks alone. What is
# kept is deleted in the transaction that records the outcome.


logger = logging.getLogger("perdure.worker")

REPLY_CHANGING_HOOK: HookEvent = "after_llm_call"
"""Hooks that may change a reply before it is stored."""
REPLY_READING_HOOKS: tuple[HookEvent, ...] = ("before_subagent", "on_approval", "on_finish")
"""The others that run when a reply is there."""
HASHED_MESSAGES = 20
"""Messages of a conversation that, with their number, say which request it is: all of a long one would take a while."""


class ReplyCacheStore(Protocol):
    """What the stage asks of a store."""

    async def recall_all(self, namespace: str, prefix: str = "", *, limit: int = 1000) -> dict[str, bytes]:
        """Values by their keys."""
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
    """Of the replies of a conversation that are kept."""
    return f"paid:{run_id}"


class ReplyCacheStage:
    """Keeps replies while hooks and output validators look at them; see the module for what it does not keep."""

    def __init__(self, store: ReplyCacheStore, worker: HookSet | None = None) -> None:
        self._store = store
        self._worker_hooks = HookSet() if worker is None else worker

    async def model(self, call: ModelCall, next: NextModel) -> ModelReply:
        """Around the bare call. Raises ``StoreError`` before it, not behind it."""
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
        """Nothing to do: what a tool came to is shown to hooks as it is recorded."""
        return await next(call)

    def _can_cache_reply(self, agent: Agent) -> bool:
        """Whether code of the author's looks at replies, and may fail, or be slow; and none may change them."""
        sets = [some for some in (self._worker_hooks, agent.hooks) if some]
        if any(some.on(REPLY_CHANGING_HOOK) for some in sets):
            return False
        return bool(agent.output_validators) or any(some.on(event) for some in sets for event in REPLY_READING_HOOKS)

    async def _save_reply(self, write: MemoryWrite) -> None:
        """A store that is down now may be there when the hooks are done, and the outcome is what counts."""
        try:
            await self._store.commit(Commit(memory=(write,)))
        except StoreError as error:
            logger.warning("a reply is not kept before its hooks run: %s", error)


def _parse_cached_reply(body: bytes) -> CachedReply | None:
    """What is kept; None where another version of perdure wrote it, in a way that this one does not know."""
    try:
        return CachedReply.model_validate_json(body)
    except ValidationError:
        return None


def hash_request(agent: Agent, request: ModelRequest) -> str:
    """What the model is asked, and which one."""
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
