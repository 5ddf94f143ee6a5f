"""The reply cache stage: keeps a reply before the author's code sees it, so that it is not lost if that code fails.

It keeps no reply that a hook may change (``after_llm_call``): the hook may be there to remove a secret, so nothing
is stored before it has run.

The stage is right inside the hooks. The outcome of a call is the reply as the hooks have changed it, and is recorded
when they are done (the journal stage); until then the reply is kept in the store's memory, in a namespace of the
conversation. An attempt, or a resumed run (``resume``), that makes the same request again gets this reply and runs
only the hooks. The kept reply is deleted in the transaction that records the outcome.
"""

from __future__ import annotations

import hashlib
import json
import logging
from typing import Any, Protocol

from pydantic import ValidationError

from ..agent.spec import AgentSpec
from ..errors import StoreError
from ..hooks import HookEvent, HookSet, list_hook_events
from ..ports.model import ModelRequest
from ..ports.store import Commit, MemoryWrite
from ..types.messages import Data, Message, Usage
from .call import NextRequest, PaidRequest, RequestCall
from .journal_keys import build_step_key

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
    provider: str = ""
    """The provider that answered, and in how many seconds, for the table of usage."""
    seconds: float = 0.0


def build_reply_namespace(run_id: str) -> str:
    """Return the memory namespace of the kept replies of a conversation."""
    return f"paid:{run_id}"


class ReplyCacheStage:
    """Keeps replies while hooks and output validators run."""

    def __init__(self, store: ReplyCacheStore, worker: HookSet | None = None) -> None:
        self._store = store
        self._worker_hooks = worker

    async def request(self, call: RequestCall, next: NextRequest) -> Message:
        """Around the bare call. Raises ``StoreError`` before it, not after it."""
        agent = call.agent
        if not self._can_cache_reply(agent):
            return await next(call)
        place = build_reply_namespace(call.input.context_id)
        key, request_hash = build_step_key(call.input), hash_request(agent, call.request)
        values = await self._store.recall_all(place)
        call.recording.memory_writes += [MemoryWrite(place, name, None) for name in values]
        for cached in filter(None, map(_parse_cached_reply, values.values())):
            # Of a model call it is the reply, also if its prompt has changed; a compaction may ask several times.
            if cached.request == request_hash or (cached.call == key and not call.is_summary):
                call.feed.report_model(agent.model)
                call.recording.paid.append(_build_paid_request(cached))
                return cached.message
        reply = await next(call)
        new = CachedReply(call=key, request=request_hash, message=reply)
        if call.recording.paid:
            last = call.recording.paid[-1]
            new = new.model_copy(update={"provider": last.provider, "seconds": last.seconds})
        name = f"{key[:32]}:{request_hash[:16]}"
        await self._save_reply(MemoryWrite(place, name, new.model_dump_json(exclude_none=True).encode()))
        call.recording.memory_writes.append(MemoryWrite(place, name, None))
        return reply

    def _can_cache_reply(self, agent: AgentSpec) -> bool:
        """Whether the author's code reads replies, and may fail or be slow, and no hook may change them."""
        events = list_hook_events(self._worker_hooks, agent.hooks)
        if REPLY_CHANGING_HOOK in events:
            return False
        return bool(agent.output_validators) or not events.isdisjoint(REPLY_READING_HOOKS)

    async def _save_reply(self, write: MemoryWrite) -> None:
        """Write the reply. A ``StoreError`` is only logged: the store may be back when the outcome is recorded."""
        try:
            await self._store.commit(Commit(memory=(write,)))
        except StoreError as error:
            logger.warning("a reply is not kept before its hooks run: %s", error)


def _build_paid_request(cached: CachedReply) -> PaidRequest:
    """Build the request that an earlier attempt has paid for, and has recorded no usage of."""
    message = cached.message
    usage = message.usage or Usage()
    return PaidRequest(cached.provider, message.model or "", usage, message.cost_usd, cached.seconds)


def _parse_cached_reply(body: bytes) -> CachedReply | None:
    """Parse a kept reply; None where another version of perdure wrote it in a format that this one does not know."""
    try:
        return CachedReply.model_validate_json(body)
    except ValidationError:
        return None


def hash_request(agent: AgentSpec, request: ModelRequest) -> str:
    """Return the SHA-256 of a request and the agent's models (hex). Of long conversations it takes only the message
    count and the last ``HASHED_MESSAGES`` messages."""
    messages = request.messages
    parts: dict[str, Any] = {
        "models": [str(one) for one in agent.chain],
        "system": request.system,
        # Not what a provider has made of them meanwhile.
        "tools": [
            {"name": one.name, "description": one.description, "parameters": one.parameters} for one in request.tools
        ],
        "choice": request.tool_choice,
        "settings": request.settings,
        "options": request.provider_options,
        "messages": [
            len(messages),
            *(one.model_dump(mode="json", exclude_defaults=True) for one in messages[-HASHED_MESSAGES:]),
        ],
    }
    text = json.dumps(parts, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()
