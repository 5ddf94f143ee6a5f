"""Finds the point of a transcript at which a fork begins, and loads a conversation with all replaced messages."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from itertools import takewhile
from typing import TYPE_CHECKING, Any

from pydantic_core import from_json

from ..errors import InvalidInputError
from ..loop.transcript import SUMMARY_ID
from ..types.messages import Message, ToolResultPart, encode_canonical, parse_messages
from ..types.outcome_unknown import FORKED
from .chain import Chain, decode_node

if TYPE_CHECKING:
    from ..ports.store import Node, Transcripts


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
class _GivenResult:
    """A text in the place of a tool's result, and who gave it."""

    text: str
    by: str

    def build_part(self, call_id: str, name: str) -> ToolResultPart:
        return ToolResultPart(call_id=call_id, name=name, content=self.text, given_by=self.by)


@dataclass(frozen=True, slots=True)
class _RawMessage:
    """A message that is not decoded: of thousands of messages that are scanned, only a few are needed as objects."""

    node: Node
    index: int
    """Its index in the node."""
    raw: Mapping[str, Any]

    @property
    def role(self) -> str:
        return str(self.raw["role"])

    @property
    def call_ids(self) -> list[str]:
        return [part["id"] for part in self.raw.get("parts", ()) if part["type"] == "tool_call"]

    @property
    def result_ids(self) -> list[str]:
        return [part["call_id"] for part in self.raw.get("parts", ()) if part["type"] == "tool_result"]


async def find_fork_point(
    transcripts: Transcripts,
    head: str | None,
    at: int | None = None,
    results: Mapping[str, str] | None = None,
    *,
    given_by: str = "",
) -> ForkPoint:
    """Find the point of the conversation that ends in ``head`` after its iteration ``at``, including the results of
    that iteration's calls.

    Without ``at`` its end; with ``results`` (texts by call id, of ``given_by``) the iteration of their calls. Raises
    ``InvalidInputError`` for an unknown iteration or call, ``TranscriptCorruptedError``.
    """
    results = results or {}
    nodes = await transcripts.read_nodes(head) if head is not None else []
    messages = [_RawMessage(node, index, raw) for node in nodes for index, raw in enumerate(from_json(node.body))]
    replies = [index for index, message in enumerate(messages) if message.role == "assistant"]
    if at is None and results:
        at = _find_call_iteration(messages, replies, next(iter(results)))
    if at is not None and not 0 <= at <= len(replies):
        raise InvalidInputError(
            f"there is no iteration {at}: the conversation has {len(replies)}",
            hint="`perdure show ID` numbers them; 0 is before the first.",
        )
    if at == 0 or not messages:
        return ForkPoint(None, (), 0, is_answered=True)
    new_results = {call_id: _GivenResult(text, given_by) for call_id, text in results.items()}
    return _build_fork_point(messages, replies, at, new_results)


def _build_fork_point(
    messages: Sequence[_RawMessage], replies: Sequence[int], at: int | None, new_results: Mapping[str, _GivenResult]
) -> ForkPoint:
    iteration = len(replies) if at is None else at
    reply = replies[iteration - 1] if iteration else -1
    call_ids = messages[reply].call_ids if iteration else []
    if unknown_ids := new_results.keys() - set(call_ids):
        raise _build_missing_call_error(min(unknown_ids), iteration)
    end, later_results = (len(messages), []) if at is None else _find_reply_results(messages, reply)
    changed = (index for index in range(reply + 1, end) if new_results.keys() & set(messages[index].result_ids))
    unchanged_end = min(changed, default=end)
    shared_end = unchanged_end  # messages of whole nodes are shared: the base is the node that ends there
    while 0 < shared_end < len(messages) and messages[shared_end].node is messages[shared_end - 1].node:
        shared_end -= 1
    decode = cache(decode_node)
    extra: list[Message] = []
    for raw_message in [*messages[shared_end:end], *later_results]:
        message = decode(raw_message.node)[raw_message.index]
        extra.append(_replace_results(message, new_results) if raw_message.role == "tool" else message)
    result_ids = {call_id for message in [*messages[reply + 1 : end], *later_results] for call_id in message.result_ids}
    if missing_ids := [call_id for call_id in call_ids if call_id not in result_ids]:
        reply_message = decode(messages[reply].node)[messages[reply].index]
        extra.append(_build_missing_results(reply_message, missing_ids, new_results))
    base_head = messages[shared_end - 1].node.hash if shared_end else None
    is_answered = end == reply + 1 and not later_results and not call_ids
    return ForkPoint(base_head, tuple(extra), iteration, is_answered)


def _find_reply_results(messages: Sequence[_RawMessage], reply: int) -> tuple[int, list[_RawMessage]]:
    """Return the end of the results right after a reply, and the results that follow a new system prompt."""
    end = reply + 1
    while end < len(messages) and messages[end].role == "tool":
        end += 1
    following = takewhile(lambda message: message.role in ("tool", "system"), messages[end:])
    return end, [message for message in following if message.role == "tool"]


def _find_call_iteration(messages: Sequence[_RawMessage], replies: Sequence[int], call_id: str) -> int:
    """Return the last iteration that has the call; some models reuse ids."""
    for iteration in range(len(replies), 0, -1):
        if call_id in messages[replies[iteration - 1]].call_ids:
            return iteration
    raise _build_missing_call_error(call_id, None)


def _build_missing_call_error(call_id: str, iteration: int | None) -> InvalidInputError:
    place = "in the conversation" if iteration is None else f"in iteration {iteration}"
    return InvalidInputError(
        f"results: there is no call {call_id!r:.100} {place}",
        hint="`perdure show ID -o json` has the ids; all results are of one iteration's calls.",
    )


def _replace_results(message: Message, new_results: Mapping[str, _GivenResult]) -> Message:
    """Return ``message`` with the new results instead of its own."""
    if not any(part.call_id in new_results for part in message.tool_results):
        return message
    parts = tuple(
        new_results[part.call_id].build_part(part.call_id, part.name)
        if isinstance(part, ToolResultPart) and part.call_id in new_results
        else part
        for part in message.parts
    )
    return message.model_copy(update={"parts": parts})


def _build_missing_results(
    reply: Message, missing_ids: Sequence[str], new_results: Mapping[str, _GivenResult]
) -> Message:
    """Build a result for every call without one: no provider accepts a transcript with an open call."""
    parts = [
        new_results[call.id].build_part(call.id, call.name)
        if call.id in new_results
        else ToolResultPart(call_id=call.id, name=call.name, content=FORKED, is_error=True)
        for call in reply.tool_calls
        if call.id in missing_ids
    ]
    return Message(role="tool", parts=tuple(parts))


# ---
# A conversation with all its messages: those that summaries and edits replaced are still in the store.


async def load_stored(transcripts: Transcripts, head: str | None) -> list[Message]:
    """Load the conversation up to ``head`` as it is stored: large texts are references. Raises ``StoreError``,
    ``TranscriptCorruptedError``."""
    nodes = await transcripts.read_nodes(head) if head is not None else []
    return await asyncio.to_thread(lambda: [message for node in nodes for message in decode_node(node)])


async def load_full_conversation(transcripts: Transcripts, head: str | None, *, texts: bool = True) -> list[Message]:
    """Load the conversation up to ``head`` with all replaced messages. A summary is placed before the messages that it
    kept. Without ``texts``, large texts are references.

    Raises ``StoreError``, and ``TranscriptCorruptedError`` for a missing or altered node or blob.
    """
    load = Chain(transcripts).load if texts else partial(load_stored, transcripts)
    forms: list[tuple[Sequence[Message], int]] = []
    """The conversation's forms, the current one first, each with the number of messages in its first node."""
    while head is not None:
        messages: Sequence[Message] = await load(head)
        replaced = next((message.replaces for message in messages[:2] if message.replaces is not None), None)
        root_count = 0
        if replaced is not None and not replaced.kept:
            root_count = len(parse_messages((await transcripts.read_nodes(head))[0].body))
        forms.append((messages, root_count))
        head = replaced.head if replaced is not None else None
    conversation: list[Message] = []
    for messages, root_count in reversed(forms):
        conversation = _merge_conversation_form(conversation, messages, root_count)
    return conversation


def _merge_conversation_form(
    conversation: list[Message], messages: Sequence[Message], root_count: int
) -> list[Message]:
    """Return ``conversation`` with the new messages of its next form."""
    for index, marker in enumerate(messages[:2]):
        if marker.replaces is None:
            continue
        if kept := marker.replaces.kept:
            new = messages[index + 1 + marker.replaces.repeated + kept :]
            return [*conversation[:-kept], marker, *conversation[-kept:], *new]
        if marker.id != SUMMARY_ID:  # an ordinary message that an edit has marked
            marker = _clear_replaces(marker)
        edited = [*messages[:index], marker, *messages[index + 1 : root_count]]
        return [*conversation, *_select_new_messages(edited, conversation), *messages[root_count:]]
    return [*conversation, *messages]


def _select_new_messages(edited: Sequence[Message], conversation: Sequence[Message]) -> list[Message]:
    """Return those of ``edited`` that are not in ``conversation``, counting repeated messages."""
    known = Counter(encode_canonical([_clear_replaces(message)]) for message in conversation)
    new_messages = []
    for message in edited:
        canonical = encode_canonical([_clear_replaces(message)])
        if known[canonical]:
            known[canonical] -= 1
        else:
            new_messages.append(message)
    return new_messages


def _clear_replaces(message: Message) -> Message:
    return message.model_copy(update={"replaces": None}) if message.replaces is not None else message
