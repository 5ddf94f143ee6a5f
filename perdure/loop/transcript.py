"""Transcripts: unique ids of tool calls, sanitised parts, open calls, and checks of conversations edited by authors."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from ..types.messages import Message, OpaquePart, Part, TextPart, ThinkingPart, ToolCallPart, ToolResultPart, clean_text
from ..types.outcome_unknown import RUN_ENDED
from ..types.plain_json import find_json_flaw, parse_json
from ..types.transcript import map_pieces

_PORTABLE_CALL_ID = re.compile(r"[a-zA-Z0-9_-]{1,40}")
"""Ids that every wire format accepts unchanged."""

SUMMARY_ID = "perdure:summary"
"""Message id of a summary."""


@dataclass(slots=True)
class _StreamedCallId:
    """A call of which a piece was streamed: its id, and the provider's id as far as known."""

    id: str
    provider_id: str


class CallIds:
    """The ids of one reply's calls: the provider's, or generated if an earlier call of the conversation has that id.

    An approval names a call by its id, and some servers repeat theirs (``call_1`` in each reply), leave them out, or
    put a signature there. A conversation that was rewritten may lack the ids of earlier calls: then all are generated.
    """

    def __init__(self, messages: Sequence[Message], scope: str, op: int, *, edited: bool = False) -> None:
        """``messages`` are the conversation so far. ``edited``: messages were removed from it before this call."""
        self._messages = messages
        self._taken: list[frozenset[str]] = []
        """The ids of earlier calls, of each piece of the conversation."""
        self._created: set[str] = set()
        self._rewritten = edited
        self._seed = f"{scope}/{op}"
        self._created_count = 0
        self._streamed: dict[int, _StreamedCallId] = {}
        self._final: set[str] = set()

    def get_streamed_id(self, index: int, provider_id: str) -> str:
        """Return the id of the call at ``index`` of the stream: the same for all of its pieces."""
        call = self._streamed.get(index)
        if call is None:
            call = self._streamed[index] = _StreamedCallId(self._create_id(provider_id), provider_id)
        call.provider_id = provider_id or call.provider_id
        return call.id

    def discard_streamed(self) -> None:
        """Forget the streamed calls: another model is called."""
        self._streamed.clear()

    def assign_reply_ids(self, parts: Iterable[Part], origin: str) -> list[Part]:
        """Return the ``parts`` of the whole reply with the final ids of its calls.

        ``origin`` is the provider that a kept provider id may be sent back to.
        """
        assigned, provider_ids = list[Part](), {""}
        for part in parts:
            if isinstance(part, ToolCallPart):
                call_id = self._take_streamed_id(part.id) or self._create_id(part.id)
                self._final.add(call_id)
                update: dict[str, Any] = {"id": call_id}
                # Two calls of one reply cannot be sent back under one id: their results would be ambiguous.
                if call_id != part.id and part.id not in provider_ids:
                    update |= {"provider_id": clean_text(part.id), "provider": part.provider or origin or None}
                provider_ids.add(part.id)
                part = part.model_copy(update=update)
            assigned.append(part)
        return assigned

    def assign_hook_ids(self, parts: Iterable[Part]) -> list[Part]:
        """Return the ``parts`` of a reply that a hook has changed, with ids for the calls that it added."""
        unused, assigned = set(self._final), list[Part]()
        for part in parts:
            if isinstance(part, ToolCallPart):
                if part.id not in unused:
                    part = part.model_copy(update={"id": self._create_id(part.id), "provider_id": None})
                unused.discard(part.id)
                self._final.add(part.id)
            assigned.append(part)
        return assigned

    def _take_streamed_id(self, provider_id: str) -> str | None:
        """Take the id under which the call with this provider's id was streamed; None if it was not."""
        index = next((index for index, call in self._streamed.items() if call.provider_id == provider_id), None)
        return None if index is None else self._streamed.pop(index).id

    def _read_taken_ids(self) -> None:
        """Read the ids of earlier calls. Done on demand, as the conversation may be long."""
        for call_ids, rewritten in map_pieces(self._messages, "call ids", _read_call_ids):
            self._taken.append(call_ids)
            self._rewritten = self._rewritten or rewritten
        self._messages = ()

    def _create_id(self, provider_id: str) -> str:
        if self._messages:
            self._read_taken_ids()
        call_id = provider_id
        is_taken = call_id in self._created or any(call_id in taken for taken in self._taken)
        if self._rewritten or is_taken or not _PORTABLE_CALL_ID.fullmatch(call_id):
            self._created_count += 1
            call_id = f"call_{hashlib.sha256(f'{self._seed}/{self._created_count}'.encode()).hexdigest()[:24]}"
        self._created.add(call_id)
        return call_id


def _read_call_ids(messages: Sequence[Message]) -> tuple[frozenset[str], bool]:
    """Return the ids of the calls in ``messages``, and whether these replace others."""
    replies = [message.parts for message in messages if message.role == "assistant"]
    call_ids = frozenset([part.id for parts in replies for part in parts if isinstance(part, ToolCallPart)])
    others = [message.replaces for message in messages if message.role != "assistant"]
    return call_ids, any(others)


def sanitize_parts(parts: Iterable[Part]) -> tuple[Part, ...]:
    """Return ``parts`` in a form that can be stored and read back: text without lone surrogates, and plain JSON.

    Nothing that a provider sends may fail here: the reply is paid for. Arguments that are not plain JSON make a
    malformed call; provider data that is not plain JSON is dropped.
    """
    return tuple(sound for part in parts if (sound := _sanitize_part(part)) is not None)


def _sanitize_part(part: Part) -> Part | None:
    if isinstance(part, OpaquePart):
        return None if find_json_flaw(part.data) else part
    update: dict[str, Any] = {}
    if isinstance(part, ToolCallPart):
        if flaw := find_json_flaw(part.arguments):
            update |= {
                "arguments": {},
                "malformed": part.malformed or _dump_malformed_arguments(part.arguments) or flaw,
            }
        if (named := (clean_text(part.id), clean_text(part.name))) != (part.id, part.name):
            update |= {"id": named[0], "name": named[1]}
        if part.provider_id is not None and (sound := clean_text(part.provider_id)) != part.provider_id:
            update["provider_id"] = sound
    elif isinstance(part, TextPart | ThinkingPart) and (sound := clean_text(part.text)) is not part.text:
        update["text"] = sound
    opaque = part.opaque if isinstance(part, TextPart | ThinkingPart | ToolCallPart) else None
    if opaque is not None and find_json_flaw(opaque):
        update |= {"provider": None, "opaque": None}
    return part.model_copy(update=update) if update else part


def _dump_malformed_arguments(arguments: dict[str, Any]) -> str:
    """Dump ``arguments`` that are not plain JSON as text; empty if they cannot be dumped."""
    try:
        text = json.dumps(arguments, ensure_ascii=False)
        return text if clean_text(text) is text else json.dumps(arguments)  # which shows a lone surrogate as it is
    except (TypeError, ValueError, RecursionError):
        return ""


def build_unknown_tool_text(name: str, known: Sequence[str]) -> str:
    """Build the error text for a call of an unknown tool."""
    there_is = f"there is: {', '.join(known)}" if known else "there are no tools"
    return f"tool not found: {name} ({there_is})"


def build_malformed_arguments_text(part: ToolCallPart) -> str:
    """Build the error text for arguments that are not a JSON object."""
    raw = part.malformed or ""
    shown = raw if len(raw) <= 500 else raw[:500] + "…"
    try:
        note = "" if isinstance(parse_json(raw), dict) else " (this is another JSON value)"
    except ValueError as error:
        note = f" ({error})"
    return f"ArgumentsError: the arguments of {part.name} must be one JSON object{note}, they were: {shown}"


def list_open_calls(messages: Sequence[Message]) -> list[ToolCallPart]:
    """List the calls of a transcript that have no result, in order. Providers refuse a transcript that has any."""
    waiting: dict[str, ToolCallPart] = {}
    for message in messages:
        for part in message.parts:
            if isinstance(part, ToolCallPart):
                waiting[part.id] = part
            elif isinstance(part, ToolResultPart):
                waiting.pop(part.call_id, None)
    return list(waiting.values())


def build_closing_messages(prefix: Sequence[Message], fresh: Sequence[Message]) -> list[Message]:
    """Build the messages that close the calls at the end of ``prefix`` that ``fresh`` has no results for.

    Only a run that was terminated or timed out leaves any: it could not close its transcript.
    """
    if not prefix or not prefix[-1].tool_calls:
        return []
    closed_ids = {result.call_id for message in fresh for result in message.tool_results}
    missing = [part for part in prefix[-1].tool_calls if part.id not in closed_ids]
    parts = tuple(ToolResultPart(call_id=part.id, name=part.name, content=RUN_ENDED, is_error=True) for part in missing)
    return [Message(role="tool", parts=parts)] if parts else []


# ---
# Conversations that author code has changed: whether they can be sent to a model, and the provider data in them.


def find_conversation_problem(messages: Sequence[Message]) -> str | None:
    """Return why ``messages`` cannot be sent to a model; None if they can be."""
    if not messages:
        return "no message is left"
    if messages[0].role != "user":
        return f"it begins with a message of the {messages[0].role}, and has to begin with a user's"
    if messages[-1].role == "assistant":
        return "it ends with a reply, so there is nothing to answer"
    for index, message in enumerate(messages):
        if message.role == "system":
            return f"message {index} is a system prompt; step.instructions is the place for it"
        before = messages[index - 1].tool_calls if index else ()
        if problem := _find_order_problem(index, message, before):
            return problem
    return None


def _find_order_problem(index: int, message: Message, calls: Sequence[ToolCallPart]) -> str | None:
    """Return why ``message`` cannot follow a message with ``calls``; None if it can."""
    call_ids = [part.id for part in calls]
    result_ids = [part.call_id for part in message.tool_results]
    if sorted(call_ids) != sorted(result_ids):
        missing = [call_id for call_id in call_ids if call_id not in result_ids]
        if missing:
            return f"the call {missing[0]!r} of message {index - 1} has no result right after it"
        return f"message {index} has a result without a call in the message before it, or has one twice"
    allowed = {"tool": ("tool_result",), "user": ("text", "file")}.get(message.role)
    if allowed is not None and any(part.type not in allowed for part in message.parts):
        return f"message {index} is a {message.role}'s and may consist of {' and '.join(allowed)} alone"
    if message.role == "assistant" and result_ids:
        return f"message {index} is a reply with results in it"
    if message.role in ("tool", "user") and not message.parts:
        return f"message {index} is empty"
    return None


def adopt_edited_messages(edited: Sequence[Message], known: Sequence[Message]) -> list[Message]:
    """Return ``edited`` in a form that can be stored and sent. A reply that is not among ``known`` loses its provider
    data, since a provider's signature also covers the neighbouring parts."""
    adopted, start = [], 0
    for message in edited:
        index = next((i for i in range(start, len(known)) if known[i] is message), None)
        start = start if index is None else index + 1  # most edits keep the order
        adopted.append(message if index is not None else _sanitize_edited_message(message, known))
    return adopted


def _sanitize_edited_message(message: Message, known: Sequence[Message]) -> Message:
    parts = sanitize_parts(message.parts)
    if message.role == "assistant" and message not in known:
        parts = tuple(kept for part in parts if (kept := _strip_sealed_data(part)) is not None)
    return message.model_copy(update={"parts": parts})


def _strip_sealed_data(part: Part) -> Part | None:
    if isinstance(part, OpaquePart) or (isinstance(part, ThinkingPart) and part.opaque):
        return None
    update: dict[str, Any] = {"provider": None, "opaque": None}
    if isinstance(part, ToolCallPart) and part.provider_id is not None:
        return part.model_copy(update=update | {"provider_id": None})
    return part.model_copy(update=update) if isinstance(part, TextPart | ToolCallPart) and part.opaque else part


def trim_messages(messages: Sequence[Message], keep: int) -> list[Message]:
    """Return the first user message and the last ``keep`` messages, and the call of a result among them."""
    start = find_tail_start(messages, keep)
    first = next((index for index, message in enumerate(messages) if message.role == "user"), start)
    opening = [messages[first]] if first < start else []
    return [*opening, *messages[start:]]


def find_tail_start(messages: Sequence[Message], keep: int) -> int:
    """Return the index of the first of the last ``keep`` messages, or an earlier one that keeps calls and results
    together; calls at the end, whose results are still to come, are kept too."""
    begin = max(0, len(messages) - keep)
    if begin == len(messages) and messages and messages[-1].tool_calls:
        begin -= 1
    while begin and begin < len(messages) and messages[begin].role == "tool":
        begin -= 1
    return begin
