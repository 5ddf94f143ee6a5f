"""Branches of a step on their way to the loop and back: forked conversations become nodes, long texts become blobs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ..ports import Blob, Chain, Commit, Fork, ModelCall, ModelReply, Node
from ..types.branch import BranchAsked, BranchOutcome
from ..types.wire import INLINE_BYTES


async def resolved(chain: Chain, outcomes: Sequence[BranchOutcome]) -> list[BranchOutcome]:
    """``outcomes`` with the answers that stand in blobs. Raises ``TranscriptCorruptedError``."""
    return [await _whole(chain, one) for one in outcomes]


async def _whole(chain: Chain, outcome: BranchOutcome) -> BranchOutcome:
    if outcome.blob is None:
        return outcome
    return outcome.model_copy(update={"content": await chain.resolve_blob(outcome.blob), "blob": None})


def forked(chain: Chain, store_id: str, call: ModelCall, reply: ModelReply, sent: Sequence[Blob]) -> ModelReply:
    """``reply`` whose step waits for branches: each gets the end of its conversation, the run keeps its own.

    ``sent``: the files of messages that are new since the head.
    """
    nodes: dict[str, Node] = {}
    blobs = [*sent, *call.blobs]

    def head(fork: Fork | None) -> str | None:
        if fork is None or not fork.messages:
            return fork.head if fork is not None else None
        node, more = chain.extend(fork.head, fork.messages)
        if node.hash not in nodes:
            chain.remember(node, fork.messages)
            nodes[node.hash] = node
            blobs.extend(more)
        return node.hash

    asked = tuple(
        _fit(one, blobs).model_copy(update={"head": head(fork)})
        for one, fork in zip(reply.output.branches, reply.forks, strict=True)
    )
    output = reply.output.model_copy(update={"branches": asked, "head": call.head, "store_id": store_id})
    return replace(reply, output=output, commit=Commit(list(nodes.values()), blobs))


def _fit(asked: BranchAsked, blobs: list[Blob]) -> BranchAsked:
    """A long message stays out of history."""
    if asked.message is None or len(asked.message.encode()) <= INLINE_BYTES:
        return asked
    blobs.append(Blob.of(asked.message))
    return asked.model_copy(update={"message": None, "blob": blobs[-1].ref})
