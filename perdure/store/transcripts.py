"""Finds the point of a transcript at which a fork begins, and loads a conversation with all replaced messages."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic_core import from_json

from ..errors import InvalidInputError
from ..loop.compaction import SUMMARY_ID
from ..ports import Node, Transcripts
from ..types.messages import Message, Replaced, ToolResultPart, encode_canonical, parse_messages
from .chain import Chain, decode_node

UNFINISHED_RESULT = "Forked: this call had not finished when the conversation was forked. It may have happened or not."


@dataclass(frozen=True, slots=True)
class ForkPoint:
    """``extra_messages`` after ``base_head`` are the conversation up to the point: messages of a node that the point is
    inside of, results that were replaced, and one for every call without a result."""

    base_head: str | None
    extra_messages: tuple[Message, ...]
    iteration: int
    is_answered: bool
    """It ends with a reply, so the model need not be called."""


@dataclass(frozen=True, slots=True)
class _RawMessage:
    """A message that is not decoded: of thousands of messages that are scanned, only a few are needed as objects."""

    node_index: int
    message_index: int
    raw: Mapping[str, Any]

    @property
    def role(self) -> str:
        return str(self.raw["role"])

    def list_part_ids(self, type: str, name: str) -> list[str]:
        """Return the ids of its tool calls, or of the calls that it has the results of."""
        return [part[name] for part in self.raw.get("parts", ()) if part["type"] == type]

    @property
    def call_ids(self) -> list[str]:
        return self.list_part_ids("tool_call", "id")

    @property
    def result_ids(self) -> list[str]:
        return self.list_part_ids("tool_result", "call_id")


async def find_fork_point(
    transcripts: Transcripts, head: str | None, at: int | None = None, results: Mapping[str, str] | None = None
) -> ForkPoint:
    """Find the point of the conversation that ends in ``head`` after its iteration ``at``, including the results of
    that iteration's calls.

    Without ``at`` its end; with ``results`` (texts by call id) the iteration of their calls. Raises
    ``InvalidInputError`` for an unknown iteration or call, ``TranscriptCorruptedError``.
    """
    nodes = await transcripts.read_nodes(head) if head is not None else []
    said = [
        _RawMessage(node, place, raw) for node, one in enumerate(nodes) for place, raw in enumerate(from_json(one.body))
    ]
    replies = [index for index, one in enumerate(said) if one.role == "assistant"]
    if at is None and results:
        at = _find_call_iteration(said, replies, results)
    if at is not None and not 0 <= at <= len(replies):
        raise InvalidInputError(
            f"there is no iteration {at}: the conversation has {len(replies)}",
            hint="`perdure show ID` numbers them; 0 is before the first.",
        )
    if at == 0 or not said:
        return ForkPoint(None, (), 0, is_answered=True)
    return _build_fork_point(nodes, said, replies, at, dict(results or {}))


def _build_fork_point(
    nodes: Sequence[Node], said: list[_RawMessage], replies: list[int], at: int | None, given: dict[str, str]
) -> ForkPoint:
    iteration = len(replies) if at is None else at
    reply = replies[iteration - 1] if iteration else -1
    end, later = (len(said), []) if at is None else _find_reply_results(said, reply)
    known = {call for one in [*said[reply + 1 : end], *later] for call in one.result_ids}
    asked = said[reply].call_ids if iteration else []
    if strangers := given.keys() - set(asked):
        raise _build_missing_call_error(min(strangers), iteration)
    edited = [index for index in range(reply + 1, end) if given.keys() & set(said[index].result_ids)]
    whole = min(edited, default=end)
    """The messages before it are unchanged: nodes that end there are shared."""
    last = [
        index
        for index, one in enumerate(said)
        if index + 1 == len(said) or said[index + 1].node_index != one.node_index
    ]
    shared = max((index for index in last if index < whole), default=-1)
    decoded: dict[int, list[Message]] = {}
    extra: list[Message] = []
    for one in [*said[shared + 1 : end], *later]:
        if one.node_index not in decoded:
            decoded[one.node_index] = decode_node(nodes[one.node_index])
        extra.append(_replace_results(decoded[one.node_index][one.message_index], given if one.role == "tool" else {}))
    if missing := [call for call in asked if call not in known]:
        extra.append(
            _build_missing_results(
                decode_node(nodes[said[reply].node_index])[said[reply].message_index], missing, given
            )
        )
    answered = end - 1 == reply and not later and not asked
    return ForkPoint(nodes[said[shared].node_index].hash if shared >= 0 else None, tuple(extra), iteration, answered)


def _find_reply_results(said: Sequence[_RawMessage], reply: int) -> tuple[int, list[_RawMessage]]:
    """Return the end of the results right after a reply, and the results that follow a new system prompt."""
    end = reply + 1
    while end < len(said) and said[end].role == "tool":
        end += 1
    later: list[_RawMessage] = []
    for one in said[end:]:
        if one.role not in ("tool", "system"):
            break
        later += [one] if one.role == "tool" else []
    return end, later


def _find_call_iteration(said: Sequence[_RawMessage], replies: Sequence[int], results: Mapping[str, str]) -> int:
    """Return the last iteration that has the call; some models reuse ids."""
    first = next(iter(results))
    for iteration in range(len(replies), 0, -1):
        if first in said[replies[iteration - 1]].call_ids:
            return iteration
    raise _build_missing_call_error(first, None)


def _build_missing_call_error(call: str, iteration: int | None) -> InvalidInputError:
    where = "in the conversation" if iteration is None else f"in iteration {iteration}"
    return InvalidInputError(
        f"results: there is no call {call!r:.100} {where}",
        hint="`perdure show ID -o json` has the ids; all results are of one iteration's calls.",
    )


def _replace_results(message: Message, given: Mapping[str, str]) -> Message:
    """Return ``message`` with the given results instead of its own."""
    if not any(part.call_id in given for part in message.tool_results):
        return message
    parts = tuple(
        ToolResultPart(call_id=part.call_id, name=part.name, content=given[part.call_id])
        if isinstance(part, ToolResultPart) and part.call_id in given
        else part
        for part in message.parts
    )
    return message.model_copy(update={"parts": parts})


def _build_missing_results(reply: Message, missing: Sequence[str], given: Mapping[str, str]) -> Message:
    """Build a result for every call without one: no provider accepts a transcript with an open call."""
    return Message(
        role="tool",
        parts=tuple(
            ToolResultPart(
                call_id=call.id,
                name=call.name,
                content=given.get(call.id, UNFINISHED_RESULT),
                is_error=call.id not in given,
            )
            for call in reply.tool_calls
            if call.id in missing
        ),
    )


# ---
# A conversation with all its messages: those that summaries and edits replaced are still in the store.


async def load_full_conversation(transcripts: Transcripts, head: str | None) -> list[Message]:
    """Load the conversation up to ``head`` with all replaced messages. A summary is placed before the messages that it
    kept.

    Raises ``StoreError``, and ``TranscriptCorruptedError`` for a missing or altered node or blob.
    """
    chain = Chain(transcripts)
    forms: list[tuple[list[Message], int]] = []
    """The conversation's forms, the current one first, each with the number of messages in its first node."""
    replaced: Replaced | None = None
    while head is not None:
        messages = await chain.load(head)
        found = [message.replaces for message in messages[:2] if message.replaces is not None]
        replaced = found[0] if found else None
        root = 0
        if replaced is not None and not replaced.kept:
            root = len(parse_messages((await transcripts.read_nodes(head))[0].body))
        forms.append((messages, root))
        head = replaced.head if replaced is not None else None
    said: list[Message] = []
    for messages, root in reversed(forms):
        said = _merge_conversation_form(said, messages, root)
    return said


def _merge_conversation_form(said: list[Message], messages: list[Message], root: int) -> list[Message]:
    """Add to ``said`` the new messages of the form ``messages``."""
    place = next((place for place, message in enumerate(messages[:2]) if message.replaces is not None), None)
    if place is None:
        return [*said, *messages]
    marker = messages[place]
    kept = marker.replaces.kept if marker.replaces is not None else 0
    if kept:
        return [*said[:-kept], marker, *said[-kept:], *messages[place + 1 + kept :]]
    if marker.id != SUMMARY_ID:  # an ordinary message that an edit has marked
        marker = _clear_replaces(marker)
    edited = [*messages[:place], marker, *messages[place + 1 : root]]
    return [*said, *_select_new_messages(edited, said), *messages[root:]]


def _select_new_messages(edited: Sequence[Message], said: Sequence[Message]) -> list[Message]:
    """Return those of ``edited`` that are not among ``said``, counting repeated messages."""
    known = Counter(encode_canonical([_clear_replaces(message)]) for message in said)
    new = []
    for message in edited:
        name = encode_canonical([_clear_replaces(message)])
        if known[name]:
            known[name] -= 1
        else:
            new.append(message)
    return new


def _clear_replaces(message: Message) -> Message:
    return message.model_copy(update={"replaces": None}) if message.replaces is not None else message
