"""Compaction: when to summarise a conversation, and views: the part of it that the model is sent.

A :class:`ConversationView` reads a conversation message by message. What it leaves out or cuts at a message depends
only on the messages up to there, so every worker builds the same view. It changes in steps: between two steps the views
of successive calls have the same beginning, so the provider's prompt cache applies.

What is sent stays valid for every wire format: calls keep their results, the first message is a user's, and a thinking
block that is cut is no longer sent as its provider's own.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from ..types.compaction import BYTES_PER_TOKEN, CompactionSettings, Window
from ..types.interface import FINISH_TOOL
from ..types.messages import FilePart, Message, OpaquePart, Part, TextPart, ThinkingPart, ToolCallPart, ToolResultPart
from ..types.state import CompactionState, RunState
from ..types.wire import CompactOutput, ModelOutput
from .children import apply_labels
from .finish import REMINDER_ID
from .limits import add_usage
from .transcript import SUMMARY_ID

# ---
# When to compact: before the next model call, after a reply or a refused call that reports a long conversation.


MAX_SUMMARIES = 3
"""Compactions before one model call; each keeps fewer of the last messages than the one before."""
MAX_WINDOW_HALVINGS = 6
"""How often a window is halved."""


@dataclass(frozen=True, slots=True)
class CompactConversation:
    """Rewrite the conversation up to the head, shorter."""

    rewrites: int = 0
    """How many times it was rewritten since the last reply."""


def find_due_compaction(state: RunState) -> CompactConversation | None:
    """Return the compaction to do before the next model call; None if none is due."""
    compaction = state.compaction
    return CompactConversation(compaction.summaries) if compaction is not None and compaction.is_due else None


def update_compaction_after_reply(state: RunState, output: ModelOutput) -> None:
    """Reset the compaction state after a reply; ``output.compact`` makes the next compaction due."""
    if state.compaction is not None or output.compact:
        before = state.compaction or CompactionState()
        state.compaction = CompactionState(
            is_due=bool(output.compact), window_halvings=before.window_halvings, warned=before.warned
        )


def apply_compaction(state: RunState, output: CompactOutput) -> None:
    """Apply a compaction: the conversation was rewritten, or nothing could be left out."""
    compaction = state.compaction or CompactionState()
    warned = compaction.warned or (output.compacted is not None and output.compacted.warning is not None)
    update = {
        "is_due": False,
        "summaries": compaction.summaries + 1,
        "refused_head": _get_preceding_head(state),
        "warned": warned,
    }
    state.compaction = compaction.model_copy(update=update)
    state.op += 1
    state.head, state.store_id = output.head, output.store_id
    state.pinned = output.pinned or state.pinned
    apply_labels(state, output)
    add_usage(state, output.usage, output.cost_usd)


def try_shorten_conversation(state: RunState, ways: Sequence[str]) -> bool:
    """Plan a shorter conversation after a model refused it as too long; False if none of ``ways`` is left to try."""
    compaction = state.compaction or CompactionState()
    if "summarise" in ways and compaction.summaries < MAX_SUMMARIES:
        update: dict[str, object] = {"is_due": True}
    elif "window" in ways and compaction.window_halvings < MAX_WINDOW_HALVINGS:
        update = {"window_halvings": compaction.window_halvings + 1}
    else:
        return False
    state.op += 1
    state.compaction = compaction.model_copy(update={"refused_head": _get_preceding_head(state), **update})
    return True


def describe_shortening(state: RunState) -> str:
    """Describe, for an error, what was done to shorten a conversation that is still too long; empty if nothing was."""
    compaction, tried = state.compaction or CompactionState(), []
    if compaction.summaries:
        tried.append(f"it was summed up {_format_times(compaction.summaries)}")
    if compaction.window_halvings:
        tried.append(f"its window was halved {_format_times(compaction.window_halvings)}")
    return " (" + " and ".join(tried) + ")" if tried else ""


def find_turn_task(messages: Sequence[Message], iteration: int) -> range:
    """Return the indexes of the user's messages that began the turn, in which ``iteration`` replies were given so far;
    of a turn that began without a message those of the last one before. Empty if there are none.

    ``messages`` are without system prompts. In a conversation that was summed up in this turn, they follow the summary.
    """
    replies = [index for index, message in enumerate(messages) if message.role == "assistant"]
    if not iteration and messages and _is_answer(messages[-1]):
        return range(0)  # the turn's messages are not recorded yet
    first_reply = len(messages) if not iteration or not replies else replies[max(0, len(replies) - iteration)]
    end = next((index + 1 for index in reversed(range(first_reply)) if _is_of_user(messages[index])), 0)
    begin = end
    while begin and _is_of_user(messages[begin - 1]):
        begin -= 1
    return range(begin, end)


def _is_answer(message: Message) -> bool:
    """Whether ``message`` is the last one of a turn that has its answer: a reply, or the result of ``FINISH_TOOL``."""
    is_finished = any(result.name == FINISH_TOOL and not result.is_error for result in message.tool_results)
    return is_finished or (message.role == "assistant" and not message.tool_calls)


def _is_of_user(message: Message) -> bool:
    return message.role == "user" and message.id not in (SUMMARY_ID, REMINDER_ID)


def _get_preceding_head(state: RunState) -> str:
    """Return the head that the next call's messages come after for a client that follows: where the conversation ended
    before it was rewritten. Empty if only the store has it (a conversation that is opened again)."""
    compaction = state.compaction
    return (
        compaction.refused_head if compaction is not None and compaction.refused_head is not None else state.head or ""
    )


def _format_times(count: int) -> str:
    return {1: "once", 2: "twice"}.get(count, f"{count} times")


# ---
# Shortened messages: cuts are marked, and a part that was cut carries no provider data.


CLEARED_RESULT_NOTE = "[An old result, left out to save space: {size}.]"
_SHORT_RESULT_CHARS = 80  # characters of a result that a note would not make shorter


def truncate_message(message: Message, keep: int) -> Message:
    """Cut the thinking and tool-call inputs of a reply to ``keep`` characters; ``message`` itself if none is longer.

    A provider's signature covers what was cut. So such a reply is sent without its provider's data: only its texts,
    thinking and calls stay.
    """
    parts = [_truncate_part(part, keep) for part in message.parts]
    if all(new is old for new, old in zip(parts, message.parts, strict=True)):
        return message
    if any(_is_provider_bound(part) for part in message.parts):
        parts = [_strip_provider_data(part) for part in parts if not isinstance(part, OpaquePart)]
    return message.model_copy(update={"parts": tuple(parts)})


def clear_tool_results(message: Message) -> Message:
    """Replace each tool result that is not short already by a note, and drop its files."""
    parts = tuple(_clear_result_part(part) if isinstance(part, ToolResultPart) else part for part in message.parts)
    if all(new is old for new, old in zip(parts, message.parts, strict=True)):
        return message
    return message.model_copy(update={"parts": parts})


def truncate_text(text: str, keep: int) -> str:
    """Cut ``text`` to ``keep`` characters and a mark with the number cut; ``text`` itself if that is not shorter."""
    if len(text) <= keep:
        return text
    marked = f"{text[:keep]}… [{len(text) - keep:,} characters cut]"
    return marked if len(marked) < len(text) else text


def _truncate_part(part: Part, keep: int) -> Part:
    if isinstance(part, ThinkingPart):
        text = truncate_text(part.text, keep)
        return part if text is part.text else part.model_copy(update={"text": text})
    if not isinstance(part, ToolCallPart):
        return part
    arguments = _truncate_arguments(part.arguments, keep)
    malformed = None if part.malformed is None else truncate_text(part.malformed, keep)
    if arguments is part.arguments and malformed is part.malformed:
        return part
    return part.model_copy(update={"arguments": arguments, "malformed": malformed})


def _truncate_arguments(arguments: dict[str, Any], keep: int) -> dict[str, Any]:
    """Cut each argument separately, so that the call keeps its form; if there are many, cut all of them as one text."""
    text = _dump_unescaped_json(arguments)
    if len(text) <= keep:
        return arguments
    truncated = {name: _truncate_argument(value, keep) for name, value in arguments.items()}
    if len(_dump_unescaped_json(truncated)) > 4 * keep + 200:
        truncated = {"cut": truncate_text(text, keep)}
    return truncated if len(_dump_unescaped_json(truncated)) < len(text) else arguments


def _truncate_argument(value: Any, keep: int) -> Any:
    if isinstance(value, str):
        return truncate_text(value, keep)
    text = _dump_unescaped_json(value)
    return value if len(text) <= keep else truncate_text(text, keep)


def _dump_unescaped_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _is_provider_bound(part: Part) -> bool:
    """Whether the provider checks the part against its neighbours, or only the provider understands it.

    The name of the field in which thinking came (chat completions) does not count.
    """
    if isinstance(part, OpaquePart):
        return True
    opaque = part.opaque if isinstance(part, TextPart | ThinkingPart | ToolCallPart) else None
    return opaque is not None and opaque.keys() != {"field"}


def _strip_provider_data(part: Part) -> Part:
    if isinstance(part, TextPart | ThinkingPart | ToolCallPart) and part.provider is not None:
        return part.model_copy(update={"provider": None, "opaque": None})
    return part


def _clear_result_part(part: ToolResultPart) -> ToolResultPart:
    if len(part.content) <= _SHORT_RESULT_CHARS and not part.files:
        return part
    size = f"{len(part.content):,} characters"
    if part.files:
        size += f", {len(part.files)} file{'' if len(part.files) == 1 else 's'}"
    return part.model_copy(update={"content": CLEARED_RESULT_NOTE.format(size=size), "files": ()})


# ---
# Token estimates, for messages that no provider has counted yet.


_OVERHEAD_TOKENS = 4  # tokens of the structure around a message or a part
_FILE_TOKENS = 1600  # tokens of a picture, about as much as the APIs count for one of full size


def estimate_message_tokens(message: Message) -> int:
    """Estimate the tokens of a message: one per ``BYTES_PER_TOKEN`` bytes of text, and a fixed number per file."""
    return _OVERHEAD_TOKENS + sum(map(_estimate_part_tokens, message.parts))


def estimate_tokens(messages: Iterable[Message]) -> int:
    """Estimate the tokens of all ``messages``."""
    return sum(map(estimate_message_tokens, messages))


def _estimate_part_tokens(part: Part) -> int:
    if isinstance(part, TextPart | ThinkingPart):
        return _count_utf8_bytes(part.text) // BYTES_PER_TOKEN
    if isinstance(part, ToolCallPart):
        arguments = part.malformed or _dump_unescaped_json(part.arguments)
        return _OVERHEAD_TOKENS + _count_utf8_bytes(arguments) // BYTES_PER_TOKEN
    if isinstance(part, ToolResultPart):
        return _OVERHEAD_TOKENS + _count_utf8_bytes(part.content) // BYTES_PER_TOKEN + _FILE_TOKENS * len(part.files)
    return _FILE_TOKENS if isinstance(part, FilePart) else 0


def _count_utf8_bytes(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode(errors="replace"))


WINDOW_NOTE_ID = "perdure:left-out"
"""Message id of the note that replaces what the window leaves out."""


@dataclass(frozen=True, slots=True)
class _Shortening:
    """Shortens the messages of ``role`` that ``after`` replies have followed, for ``every`` replies at once."""

    role: str
    shorten: Callable[[Message], Message]
    after: int
    every: int

    def count_old_replies(self, replies: int) -> int:
        return max(0, (replies - self.after) // self.every * self.every)


class ConversationView:
    """Reads a conversation (without system prompts) and keeps the view of it.

    ``tighter``: how many times the window was halved, because a model refused the view as too long.
    """

    def __init__(self, ways: CompactionSettings, tighter: int = 0) -> None:
        self._shortenings: list[_Shortening] = []
        if cut := ways.truncate:
            shorten = partial(truncate_message, keep=cut.keep)
            self._shortenings.append(_Shortening("assistant", shorten, cut.after, cut.every or cut.after))
        if clear := ways.clear_results:
            self._shortenings.append(_Shortening("tool", clear_tool_results, clear.after, clear.every or clear.after))
        self._window = _ConversationWindow(ways.window, tighter) if ways.window else None
        self.all_messages: list[Message] = []
        """The messages read so far, unchanged."""
        self._sent: list[Message] = []
        self._replies: list[int] = []
        """Indexes of the replies in ``all_messages``."""

    def add_messages(self, messages: Iterable[Message]) -> None:
        """Read further messages."""
        for message in messages:
            self.all_messages.append(message)
            self._sent.append(message)
            if message.role == "assistant":
                self._replies.append(len(self.all_messages) - 1)
            if self._window is not None:
                self._window.add_message(message)
            if message.role == "assistant":
                self._shorten_old_messages()
            if self._window is not None:
                self._window.slide_start()

    def copy(self) -> ConversationView:
        """Return an independent copy."""
        other = copy.copy(self)
        other.all_messages, other._sent = self.all_messages.copy(), self._sent.copy()
        other._replies = self._replies.copy()
        other._window = self._window.copy() if self._window is not None else None
        return other

    def build_sent_messages(self) -> list[Message]:
        """Return the messages to send to the model now."""
        return self._sent.copy() if self._window is None else self._window.select_messages(self._sent)

    @property
    def can_tighten(self) -> bool:
        """Whether a smaller window would leave out more."""
        return self._window is not None and self._window.can_slide

    def _shorten_old_messages(self) -> None:
        """Shorten the messages that the latest reply has made old: those before the first reply that is not old."""
        replies = len(self._replies)
        for shortening in self._shortenings:
            begin, end = map(shortening.count_old_replies, (replies - 1, replies))
            for index in range(self._replies[begin] if begin else 0, self._replies[end] if end else 0):
                message = self._sent[index]
                if message.role == shortening.role and (shorter := shortening.shorten(message)) is not message:
                    self._sent[index] = shorter
                    if self._window is not None:
                        self._window.replace_message(index, shorter)


class _ConversationWindow:
    """The window: the index from which on a conversation is sent, besides the first user message."""

    def __init__(self, window: Window, tighter: int) -> None:
        self._most_messages = None if window.messages is None else max(2, window.messages >> tighter)
        self._most_tokens = None if window.tokens is None else max(50, window.tokens >> tighter)
        self._tighter = tighter
        self._roles: list[str] = []
        self._tokens: list[int] = []
        """Estimated tokens of each message, as it is sent."""
        self._first: int | None = None
        """Index of the first user message."""
        self._start = 0
        self._size = 0.0
        """Tokens of a call made now: those of the last call, and an estimate for the messages since."""
        self._kept = 0
        """Estimated tokens of the messages sent."""
        self._ratio = 1.0
        """Tokens of the last call, divided by their estimate."""

    def copy(self) -> _ConversationWindow:
        """Return an independent copy."""
        other = copy.copy(self)
        other._roles, other._tokens = self._roles.copy(), self._tokens.copy()
        return other

    @property
    def can_slide(self) -> bool:
        """Whether the window can start at a later message."""
        return any(True for _ in self._iter_starts())

    def add_message(self, message: Message) -> None:
        """Add a message at the end."""
        if self._first is None and message.role == "user":
            self._first = len(self._roles)
        self._roles.append(message.role)
        if self._most_tokens is None:
            return
        tokens = estimate_message_tokens(message)
        self._tokens.append(tokens)
        self._kept += tokens
        self._size += tokens
        usage = message.usage
        if usage is None or not usage.input_tokens:
            return
        used_tokens = usage.input_tokens + usage.output_tokens
        if self._tighter and used_tokens > self._most_tokens:
            return  # that call was made with a larger window
        self._size = used_tokens
        self._ratio = min(3.0, max(0.5, used_tokens / self._kept))

    def replace_message(self, index: int, message: Message) -> None:
        """Update the estimates: the message at index ``index`` is sent as ``message``."""
        if self._most_tokens is None:
            return
        less = self._tokens[index] - estimate_message_tokens(message)
        self._tokens[index] -= less
        if index >= self._start or index == self._first:
            self._kept -= less
            self._size = max(0.0, self._size - less)

    def slide_start(self) -> None:
        """Once the window is full, move its start so that half of it is free and the next move is far off."""
        most = self._most_messages
        if most is not None and self._count_messages_from(self._start) > most:
            self._set_start(next((p for p in self._iter_starts() if self._count_messages_from(p) <= most // 2), None))
        if self._most_tokens is not None and self._size > self._most_tokens:
            self._set_start(self._find_half_start(self._most_tokens))

    def _find_half_start(self, most_tokens: int) -> int | None:
        """Return the first possible start from which on there are at most half of ``most_tokens``; None if none."""
        kept, seen = self._kept, self._start
        for index in self._iter_starts():
            kept -= sum(self._tokens[p] for p in range(seen, index) if p != self._first)
            seen = index
            if kept * self._ratio <= most_tokens / 2:
                return index
        return None

    def select_messages(self, sent: Sequence[Message]) -> list[Message]:
        """Return the messages of ``sent`` in the window, with the first user message and a note of what is left out."""
        start, first = self._start, self._first
        if start == 0:
            return list(sent)
        left_out = start - (first is not None and first < start)
        head = [sent[first]] if first is not None and first < start else []
        return [*head, *([_build_window_note(left_out)] if left_out else []), *sent[start:]]

    def _set_start(self, index: int | None) -> None:
        """Start the window at ``index``; None (no start is short enough) starts it at the last possible message."""
        last = next((p for p in range(len(self._roles) - 1, self._start, -1) if self._can_start_at(p)), self._start)
        self._start = last if index is None else index
        if self._most_tokens is not None:
            apart = self._tokens[self._first] if self._first is not None and self._first < self._start else 0
            self._kept = apart + sum(self._tokens[self._start :])
            self._size = self._kept * self._ratio

    def _iter_starts(self) -> Iterator[int]:
        return (index for index in range(self._start + 1, len(self._roles)) if self._can_start_at(index))

    def _can_start_at(self, index: int) -> bool:
        """Whether the window can start at ``index``: a tool result stays with its call."""
        return self._roles[index] != "tool"

    def _count_messages_from(self, start: int) -> int:
        apart = self._first is not None and self._first < start
        return len(self._roles) - start + apart


def _build_window_note(count: int) -> Message:
    noun = "message was" if count == 1 else "messages were"
    text = f"[{count:,} earlier {noun} left out here to save space.]"
    return Message.user(text, id=WINDOW_NOTE_ID)
