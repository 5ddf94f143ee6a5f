"""The compaction stage: a model is sent a view of the conversation, and a conversation that got long is written anew.

It stands inside the iteration, which makes the request, and outside the hooks, which see what is sent. What it decides
is in the outcome: whether the loop is to have the conversation compacted, and by which ways a refused call may be made
shorter. What a rewrite comes to is recorded like any reply, under the journal.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ..agent import Agent
from ..errors import ContextLengthError
from ..loop.compacting import last
from ..loop.tokens import BYTES as BYTES_OF_TOKEN
from ..loop.tokens import tokens_of, tokens_of_all
from ..loop.views import Fold
from ..ports import Cache, ModelCall, ModelReply, NextModel, NextTool, ToolCall
from ..types.compaction import Compactions, Summarise
from ..types.messages import Message, Replaced
from ..types.wire import Compacted, ModelOutput, ToolOutput
from .summary import Summing, summary_message

logger = logging.getLogger("perdure.worker")


class CompactionStage:
    """Does what ``Agent(compaction=…)`` says; nothing for an agent without."""

    def __init__(self, cache: Cache[_Kept]) -> None:
        """``cache`` keeps the views of conversations; of others they are made anew, with the same outcome."""
        self._folds = Folds(cache)

    async def model(self, call: ModelCall, next: NextModel) -> ModelReply:
        """Around a model call."""
        agent: Agent = call.agent
        ways = agent.compaction
        if ways is None:
            return ModelReply(ModelOutput(), None) if call.input.purpose == "compact" else await next(call)
        if call.input.purpose == "compact":
            return await self._rewritten(call, next, ways)
        fold = self._view(call, ways)
        try:
            reply = await next(call)
        except ContextLengthError as error:
            error.ways = _left(call, ways, fold)
            raise
        if ways.summarise is not None and reply.message is not None:
            reply.due = _is_due(call, ways.summarise, reply.message)
        return reply

    async def tool(self, call: ToolCall, next: NextTool) -> ToolOutput:
        """Nothing to do."""
        return await next(call)

    def _view(self, call: ModelCall, ways: Compactions) -> Fold | None:
        """Put the view into the request."""
        request = call.request
        assert request is not None, "the iteration stage makes it"
        if not ways.has_view:
            return None
        recorded = len(_spoken(call.prefix))
        fold = self._folds.of(call.input.context_id, ways, call.input.tighter or 0, request.messages[:recorded])
        fold.feed(request.messages[recorded:])
        call.request = replace(request, messages=fold.view())
        return fold

    async def _rewritten(self, call: ModelCall, next: NextModel, ways: Compactions) -> ModelReply:
        said, asked = _spoken(call.prefix), ways.summarise
        if asked is None:  # the agent's code has changed since it was decided
            return ModelReply(ModelOutput(), None)
        begin = _kept_from(said, asked.keep_last >> 2 * (call.input.tighter or 0))
        old, kept = said[:begin], said[begin:]
        if not _worth(old):
            return ModelReply(ModelOutput(), None)
        self._view(call, ways)
        assert call.request is not None, "the iteration stage makes it"
        sent = list(call.request.messages)
        summing = Summing(call, next, asked)
        text = await summing.of(old, sent[: -len(kept)] if kept else sent)
        output = ModelOutput(usage=summing.usage, cost_usd=summing.cost_usd, model=summing.model)
        if not text:
            logger.warning("run %s is not compacted: the model gave no summary", call.input.context_id)
            return ModelReply(output, None)
        assert call.head is not None, "messages stand in a node"
        replaced = Replaced(head=call.head, messages=len(call.prefix), kept=len(kept))
        summary = summary_message(text, output, replaced)
        system = [message for message in call.prefix if message.role == "system"][-1:]
        rewritten = [*system, summary, *kept]
        compacted = Compacted(
            replaces=call.head,
            messages_before=len(call.prefix),
            messages_after=len(rewritten),
            **_tokens(said, rewritten),
        )
        return ModelReply(output.model_copy(update={"compacted": compacted}), None, rewritten=rewritten)


@dataclass(slots=True)
class _Kept:
    """The fold of a run."""

    ways: Compactions
    tighter: int
    fold: Fold
    bytes: int = 0
    """Of what it has read, about."""

    def fits(self, ways: Compactions, tighter: int, recorded: Sequence[Message]) -> bool:
        """Whether it has read the beginning of ``recorded``, and reads it in this way."""
        if (self.ways, self.tighter) != (ways, tighter) or len(self.fold.read) > len(recorded):
            return False
        return all(a is b for a, b in zip(self.fold.read, recorded, strict=False))


class Folds:
    """The folds of recorded conversations, by run: the next call reads on where the last one stopped.

    A fold is used only where it has read the very messages that it is asked about, so what comes out never depends on
    what is kept.
    """

    def __init__(self, cache: Cache[_Kept]) -> None:
        self._cache = cache

    def of(self, run: str, ways: Compactions, tighter: int, recorded: Sequence[Message]) -> Fold:
        """A fold that has read ``recorded``, to read on with."""
        kept = self._cache.get(run)
        if kept is None or not kept.fits(ways, tighter, recorded):
            kept = _Kept(ways, tighter, Fold(ways, tighter))
        new = recorded[len(kept.fold.read) :]
        kept.fold.feed(new)
        kept.bytes += sum(map(bytes_of, new))
        self._cache.put(run, kept, kept.bytes)
        return kept.fold.copy()


def bytes_of(message: Message) -> int:
    """About what it takes in memory."""
    return 500 + BYTES_OF_TOKEN * tokens_of(message)


def _spoken(messages: Sequence[Message]) -> list[Message]:
    """Without system prompts: these are given apart."""
    return [message for message in messages if message.role != "system"]


def _worth(old: Sequence[Message]) -> bool:
    """Whether there is anything in it that is not a summary already."""
    return any(message.replaces is None for message in old)


def _kept_from(said: Sequence[Message], keep: int) -> int:
    """Where the ``keep`` last messages begin; fewer, where they are all that there is and yet too much."""
    while not _worth(said[: (begin := last(said, keep))]) and keep:
        keep >>= 2
    return begin


def _left(call: ModelCall, ways: Compactions, fold: Fold | None) -> tuple[str, ...]:
    """By which ways the call may be made shorter."""
    said, left = _spoken(call.prefix), []
    if ways.summarise is not None and _worth(said[: last(said, 0)]):
        left.append("summarise")
    if fold is not None and fold.can_tighten:
        left.append("window")
    return tuple(left)


def _is_due(call: ModelCall, asked: Summarise, reply: Message) -> bool:
    """Whether the next call may be too long, and a summary would make it much shorter."""
    usage = reply.usage
    if usage is not None and usage.input_tokens:
        tokens = usage.input_tokens + usage.output_tokens
    else:
        assert call.request is not None, "it was asked"
        tokens = tokens_of_all(call.request.messages) + tokens_of(reply)
    if tokens < asked.at:
        return False
    said = [*_spoken(call.prefix), *_spoken(call.fresh), reply]
    old = said[: last(said, asked.keep_last)]
    return _worth(old) and tokens_of_all(old) >= asked.at // 4


def _tokens(said: Sequence[Message], rewritten: Sequence[Message]) -> dict[str, int]:
    """Of the conversation as its last reply was counted, else an estimate; and what that makes of the new one."""
    before, after = tokens_of_all(said), tokens_of_all(rewritten)
    usage = next((message.usage for message in reversed(said) if message.usage is not None), None)
    if usage is not None and usage.input_tokens:
        before, after = usage.total_tokens, after * usage.total_tokens // before
    return {"tokens_before": before, "tokens_after": after}
