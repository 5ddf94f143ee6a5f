"""The paid stage: a reply is kept before code of the author's sees it, so that code which fails does not cost it.

Not where a hook may change the reply (``after_llm_call``): it may be there to take a secret out, and what it has not
seen yet is stored nowhere.

It stands right behind the hooks. The outcome of a call is what they have made of the reply, and is recorded when they
are done (:mod:`.journal`); until then the reply is kept in the store's memory, in a namespace of the conversation. An
attempt, or a run gone on with (``resume``), that asks the same again is given it and runs the hooks alone. What is
kept is deleted in the transaction that records the outcome.
"""

from __future__ import annotations

import hashlib
import json
import logging
from dataclasses import asdict
from typing import Any, Protocol

from pydantic import ValidationError

from ..agent import Agent
from ..errors import StoreError
from ..hooks import Event, HookSet
from ..ports import Commit, MemoryWrite, ModelCall, ModelReply, ModelRequest, NextModel, NextTool, ToolCall
from ..types.messages import Data, Message
from ..types.wire import ModelOutput, ToolOutput
from .keys import model_key

logger = logging.getLogger("perdure.worker")

CHANGES: Event = "after_llm_call"
"""Hooks that may change a reply before it is stored."""
BEHIND: tuple[Event, ...] = ("before_subagent", "on_approval", "on_finish")
"""The others that run when a reply is there."""
LAST = 20
"""Messages of a conversation that, with their number, say which request it is: all of a long one would take a while."""


class Kept(Protocol):
    """What the stage asks of a store."""

    async def recall_all(self, namespace: str, prefix: str = "", *, limit: int = 1000) -> dict[str, bytes]:
        """Values by their keys."""
        ...

    async def commit(self, commit: Commit) -> bytes | None:
        """Write everything in one transaction."""
        ...


class Paid(Data):
    """A reply that no outcome has yet."""

    call: str
    """Journal key of the call that paid for it."""
    request: str
    """What was asked (:func:`request_key`)."""
    message: Message


def namespace(run_id: str) -> str:
    """Of the replies of a conversation that are kept."""
    return f"paid:{run_id}"


class PaidStage:
    """Keeps replies while hooks and output validators look at them; see the module for what it does not keep."""

    def __init__(self, store: Kept, worker: HookSet | None = None) -> None:
        self._store = store
        self._worker = HookSet() if worker is None else worker

    async def model(self, call: ModelCall, next: NextModel) -> ModelReply:
        """Around the bare call. Raises ``StoreError`` before it, not behind it."""
        agent: Agent = call.agent
        if not self._is_seen(agent):
            return await next(call)
        assert call.request is not None, "the iteration stage makes it"
        place, key, asked = namespace(call.input.context_id), model_key(call.input), request_key(agent, call.request)
        kept = await self._store.recall_all(place)
        call.writes += [MemoryWrite(place, at, None) for at in kept]
        summing = call.input.purpose == "compact"  # one call of the run asks several times
        for one in filter(None, map(_read, kept.values())):
            if one.request == asked or (one.call == key and not summing):
                call.asking(agent.model)
                return ModelReply(ModelOutput(), one.message)
        reply = await next(call)
        if reply.message is not None:
            paid = Paid(call=key, request=asked, message=reply.message)
            at = f"{key[:32]}:{asked[:16]}"
            await self._keep(MemoryWrite(place, at, paid.model_dump_json(exclude_none=True).encode()))
            call.writes.append(MemoryWrite(place, at, None))
        return reply

    async def tool(self, call: ToolCall, next: NextTool) -> ToolOutput:
        """Nothing to do: what a tool came to is shown to hooks as it is recorded."""
        return await next(call)

    def _is_seen(self, agent: Agent) -> bool:
        """Whether code of the author's looks at replies, and may fail, or be slow; and none may change them."""
        sets = [some for some in (self._worker, agent.hooks) if some]
        if any(some.on(CHANGES) for some in sets):
            return False
        return bool(agent.output_validators) or any(some.on(event) for some in sets for event in BEHIND)

    async def _keep(self, write: MemoryWrite) -> None:
        """A store that is down now may be there when the hooks are done, and the outcome is what counts."""
        try:
            await self._store.commit(Commit(memory=(write,)))
        except StoreError as error:
            logger.warning("a reply is not kept before its hooks run: %s", error)


def _read(body: bytes) -> Paid | None:
    """What is kept; None where another version of perdure wrote it, in a way that this one does not know."""
    try:
        return Paid.model_validate_json(body)
    except ValidationError:
        return None


def request_key(agent: Agent, request: ModelRequest) -> str:
    """What the model is asked, and which one."""
    said = request.messages
    asked: dict[str, Any] = {
        "models": [str(one) for one in agent.chain],
        "system": request.system,
        "tools": [asdict(one) for one in request.tools],
        "choice": request.tool_choice,
        "settings": request.settings,
        "options": request.provider_options,
        "messages": [len(said), *(one.model_dump(mode="json", exclude_defaults=True) for one in said[-LAST:])],
    }
    text = json.dumps(asked, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()
