"""What is too large for history becomes a blob, or is left out; forked conversations become nodes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from ..ports.store import Blob, Commit, Node, TranscriptChain, add_blob, move_text_to_blob
from ..types.messages import INLINE_BYTES, is_large_text
from ..types.plain_json import measure_json
from ..types.subagents import BranchOutcome, TellCall
from ..types.tool_calls import Call, CallbackCall, RefusedCall, RemoteCall, SubagentCall
from ..types.wire import OUTPUT_BYTES, REMOTE_BYTES, FinalAnswer, ModelInput, ModelOutput
from .call import BranchConversation, ConversationCall, ModelReply


async def resolve_branch_outcomes(chain: TranscriptChain, outcomes: Sequence[BranchOutcome]) -> list[BranchOutcome]:
    """Return ``outcomes`` with the answers loaded from blobs. Raises ``TranscriptCorruptedError``."""
    return [await _resolve_branch_outcome(chain, outcome) for outcome in outcomes]


async def _resolve_branch_outcome(chain: TranscriptChain, outcome: BranchOutcome) -> BranchOutcome:
    if outcome.blob is None:
        return outcome
    return outcome.model_copy(update={"content": await chain.resolve_blob(outcome.blob), "blob": None})


def build_branches_reply(
    chain: TranscriptChain,
    store_id: str,
    call: ConversationCall[ModelInput],
    reply: ModelReply,
    message_blobs: Sequence[Blob],
) -> ModelReply:
    """Complete ``reply``, whose step waits for branches: each branch gets the head of its conversation, and the run
    keeps its own head.

    ``message_blobs``: the files of messages that are new since the head.
    """
    nodes: dict[str, Node] = {}
    blobs = [*message_blobs, *call.recording.blobs]

    def head(fork: BranchConversation | None) -> str | None:
        if fork is None or not fork.messages:
            return fork.head if fork is not None else None
        node, node_blobs = chain.extend(fork.head, fork.messages)
        if node.hash not in nodes:
            chain.remember(node, fork.messages)
            nodes[node.hash] = node
            blobs.extend(node_blobs)
        return node.hash

    branches = tuple(
        move_text_to_blob(branch, "message", blobs, empty=None).model_copy(update={"head": head(fork)})
        for branch, fork in zip(reply.output.branches, reply.branch_conversations, strict=True)
    )
    output = reply.output.model_copy(update={"branches": branches, "head": call.head, "store_id": store_id})
    return replace(reply, output=output, commit=Commit(list(nodes.values()), blobs))


def _move_large_output_to_blobs(output: ModelOutput, blobs: list[Blob], update: dict[str, Any]) -> ModelOutput:
    """Return ``output`` updated with ``update``, and with large text and arguments replaced by references, to keep them
    out of history. Adds their blobs to ``blobs``."""
    output = output.model_copy(update=update | {"calls": tuple(_omit_large_call_arguments(output.calls, blobs))})
    large = is_large_text(output.text)
    if output.finish is not None and (output.limits.protocol == "tool" or not large):
        return _move_answer_and_text_to_blobs(output, output.finish, blobs)
    if not large:
        return output
    ref = add_blob(blobs, output.finish.content if output.finish else output.text)
    finish = output.finish.model_copy(update={"content": ""}) if output.finish else None
    return output.model_copy(update={"text": "", "blob": ref, "finish": finish})


def _move_answer_and_text_to_blobs(output: ModelOutput, finish: FinalAnswer, blobs: list[Blob]) -> ModelOutput:
    """The same where the answer differs from the reply's text, as a hook or a validator may have changed it."""
    output = output.model_copy(update={"finish": move_text_to_blob(finish, "content", blobs)})
    return move_text_to_blob(output, "text", blobs)


def _omit_large_call_arguments(calls: Iterable[Call], blobs: list[Blob]) -> Iterator[Call]:
    """Remove arguments that are too large, each or all together: they are read from the transcript node instead, and a
    subagent's message from a blob. The process that runs a remote or callback tool can read neither: its arguments are
    sent whole, or the call is refused."""
    left = remote_left = OUTPUT_BYTES
    for call in calls:
        size = measure_json(call.arguments)
        if isinstance(disposition := call.disposition, RemoteCall | CallbackCall):
            size += measure_json(disposition.model_dump(mode="json")) if isinstance(disposition, CallbackCall) else 0
            if size > min(REMOTE_BYTES, remote_left):
                kind = "remote" if isinstance(disposition, RemoteCall) else "callback"
                text = f"not run: its arguments have {size:,} bytes; a {kind} tool takes up to {REMOTE_BYTES:,}"
                call = call.model_copy(update={"arguments": None, "disposition": RefusedCall(text=text)})
            else:
                remote_left -= size
        elif size > INLINE_BYTES or size > left:
            call = call.model_copy(update={"arguments": None})
            if isinstance(disposition, SubagentCall | TellCall):
                update = {"message": "", "blob": add_blob(blobs, disposition.message)}
                disposition = disposition.model_copy(update=update)
                call = call.model_copy(update={"disposition": disposition})
        else:
            left -= size
        yield call
