"""Views: what of a conversation a model is sent. They follow from the transcript alone, and change at steps.

A :class:`ConversationView` reads a conversation message by message. What it leaves out or cuts at a message depends
only on the messages up to there, so every worker comes to the same view, and the views of two calls begin alike but
where a step lies between them: that is what a provider's cache lives on.

What is sent stays valid for every wire format: calls keep their results, it begins with a user's message, and a
thinking block that is cut is sent no more as its provider's own.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ..types.compaction import CompactionSettings, Window
from ..types.messages import FilePart, Message, OpaquePart, Part, TextPart, ThinkingPart, ToolCallPart, ToolResultPart
from ..types.state import CompactionState, RunState
from ..types.wire import ModelOutput

# ---
# When a conversation is compacted: before the next model call, where a reply or a refused call says it is long.


MAX_SUMMARIES = 3
"""Compactions before one model call; each keeps fewer of the last messages than the one before."""
MAX_WINDOW_HALVINGS = 6
"""How often a window is halved."""
SUMMARY_ID = "perdure:summary"
"""Message id of a summary."""


@dataclass(frozen=True, slots=True)
class CompactConversation:
    """Have the conversation up to the head written anew."""

    tighter: int = 0
    """How often that was done since the last reply."""


def find_due_compaction(state: RunState) -> CompactConversation | None:
    """The compaction that comes before the next model call, if one does."""
    found = state.compaction
    return CompactConversation(found.done) if found is not None and found.due else None


def update_compaction_after_reply(state: RunState, output: ModelOutput) -> None:
    """The model has answered: what it was asked fits, and may be about to fit no more."""
    if state.compaction is not None or output.compact:
        tighter = state.compaction.tighter if state.compaction else 0
        state.compaction = CompactionState(due=bool(output.compact), tighter=tighter)


def apply_compaction(state: RunState, output: ModelOutput) -> None:
    """The conversation was written anew, or nothing could be left out."""
    found = state.compaction or CompactionState()
    update = {"due": False, "done": found.done + 1, "behind": _get_preceding_head(state)}
    state.compaction = found.model_copy(update=update)
    state.op += 1
    state.head, state.store_id = output.head, output.store_id
    state.pinned = output.pinned or state.pinned
    state.usage += output.usage
    if output.cost_usd is not None:
        state.cost_usd = (state.cost_usd or 0.0) + output.cost_usd


def try_shorten_conversation(state: RunState, ways: Sequence[str]) -> bool:
    """A model refused the conversation as too long. Whether it is made shorter, by one of ``ways``, and asked again."""
    found = state.compaction or CompactionState()
    if "summarise" in ways and found.done < MAX_SUMMARIES:
        update: dict[str, object] = {"due": True}
    elif "window" in ways and found.tighter < MAX_WINDOW_HALVINGS:
        update = {"tighter": found.tighter + 1}
    else:
        return False
    state.op += 1
    state.compaction = found.model_copy(update={"behind": _get_preceding_head(state), **update})
    return True


def describe_shortening(state: RunState) -> str:
    """What was done about a conversation that is too long all the same; empty where nothing was."""
    found = state.compaction
    done = []
    if found is not None and found.done:
        done.append(f"it was summed up {_format_times(found.done)}")
    if found is not None and found.tighter:
        done.append(f"its window was halved {_format_times(found.tighter)}")
    return " (" + " and ".join(done) + ")" if done else ""


def find_tail_start(messages: Sequence[Message], keep: int) -> int:
    """Where the ``keep`` last messages begin: a call stays with its results, also with those that are still to come."""
    begin = max(0, len(messages) - keep)
    if begin == len(messages) and messages and messages[-1].tool_calls:
        begin -= 1
    while begin and begin < len(messages) and messages[begin].role == "tool":
        begin -= 1
    return begin


def _get_preceding_head(state: RunState) -> str:
    """What the next call's messages come behind, for whoever follows: where the conversation ended before it was
    written anew. Empty where only the store knows (a conversation that is opened again)."""
    found = state.compaction
    return found.behind if found is not None and found.behind is not None else state.head or ""


def _format_times(count: int) -> str:
    return {1: "once", 2: "twice"}.get(count, f"{count} times")


# ---
# Messages made shorter: what is cut is marked, and nothing that is cut claims to be what its provider gave.


CLEARED_RESULT_NOTE = "[An old result, left out to save space: {size}.]"
_SHORT_RESULT_CHARS = 80  # characters of a result that a note would not make shorter


def truncate_message(message: Message, keep: int) -> Message:
    """A reply with its thinking and tool-call inputs cut to ``keep`` characters; itself where none is longer.

    A provider's signature covers what was cut. So such a reply goes out as anybody's: its texts and calls stay, and
    nothing that only its provider understands.
    """
    parts = [_truncate_part(part, keep) for part in message.parts]
    if all(new is old for new, old in zip(parts, message.parts, strict=True)):
        return message
    if any(_is_provider_bound(part) for part in message.parts):
        parts = [_strip_provider_data(part) for part in parts if not isinstance(part, OpaquePart)]
    return message.model_copy(update={"parts": tuple(parts)})


def clear_tool_results(message: Message) -> Message:
    """A message of tool results with a note in the place of each that is not short already, and without files."""
    parts = tuple(_clear_result_part(part) if isinstance(part, ToolResultPart) else part for part in message.parts)
    if all(new is old for new, old in zip(parts, message.parts, strict=True)):
        return message
    return message.model_copy(update={"parts": parts})


def truncate_text(text: str, keep: int) -> str:
    """The first ``keep`` characters, with a mark that says how many are gone; ``text`` where that is no shorter."""
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
    update: dict[str, Any] = {}
    if part.malformed is not None and (raw := truncate_text(part.malformed, keep)) is not part.malformed:
        update["malformed"] = raw
    if (arguments := _truncate_arguments(part.arguments, keep)) is not part.arguments:
        update["arguments"] = arguments
    return part.model_copy(update=update) if update else part


def _truncate_arguments(arguments: dict[str, Any], keep: int) -> dict[str, Any]:
    """Each argument cut for itself, so that the call still reads as one; where there are many, all as one text."""
    whole = _dump_unescaped_json(arguments)
    if len(whole) <= keep:
        return arguments
    short = {name: _truncate_argument(value, keep) for name, value in arguments.items()}
    if len(_dump_unescaped_json(short)) > 4 * keep + 200:
        short = {"cut": truncate_text(whole, keep)}
    return short if len(_dump_unescaped_json(short)) < len(whole) else arguments


def _truncate_argument(value: Any, keep: int) -> Any:
    if isinstance(value, str):
        return truncate_text(value, keep)
    text = _dump_unescaped_json(value)
    return value if len(text) <= keep else truncate_text(text, keep)


def _dump_unescaped_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _is_provider_bound(part: Part) -> bool:
    """Whether its provider checks it against what stands beside it, or only its provider understands it.

    The field in which a model's thinking came (chat completions) is no such thing.
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
# How many tokens something has, about: for what no provider has counted yet.


BYTES_PER_TOKEN = 4
"""Of text in UTF-8 to a token."""
_OVERHEAD_TOKENS = 4  # tokens of what stands around a message, or a part
_FILE_TOKENS = 1600  # tokens of a picture, about as much as the APIs count for one of full size


def estimate_message_tokens(message: Message) -> int:
    """An estimate: a token for four bytes of text."""
    return _OVERHEAD_TOKENS + sum(map(_estimate_part_tokens, message.parts))


def estimate_tokens(messages: Iterable[Message]) -> int:
    """Of all of them."""
    return sum(map(estimate_message_tokens, messages))


def _estimate_part_tokens(part: Part) -> int:
    if isinstance(part, TextPart | ThinkingPart):
        return _count_utf8_bytes(part.text) // BYTES_PER_TOKEN
    if isinstance(part, ToolCallPart):
        return (
            _OVERHEAD_TOKENS
            + (_count_utf8_bytes(part.malformed or json.dumps(part.arguments, ensure_ascii=False))) // BYTES_PER_TOKEN
        )
    if isinstance(part, ToolResultPart):
        return _OVERHEAD_TOKENS + _count_utf8_bytes(part.content) // BYTES_PER_TOKEN + _FILE_TOKENS * len(part.files)
    return _FILE_TOKENS if isinstance(part, FilePart) else 0


def _count_utf8_bytes(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode(errors="replace"))


WINDOW_NOTE_ID = "perdure:left-out"
"""Message id of the note that stands for what a window leaves out."""


@dataclass(slots=True)
class _AgeThreshold:
    """How many replies from the front are old: ``after`` have followed them, in steps of ``every``."""

    after: int
    every: int

    def count_old_replies(self, replies: int) -> int:
        return max(0, (replies - self.after) // self.every * self.every)


class ConversationView:
    """Reads a conversation (without system prompts) and keeps the view of it.

    ``tighter``: how often the window was halved, because a model refused what it let through.
    """

    def __init__(self, ways: CompactionSettings, tighter: int = 0) -> None:
        cut, clear = ways.truncate, ways.clear_results
        self._cut = _AgeThreshold(cut.after, cut.every or cut.after) if cut else None
        self._clear = _AgeThreshold(clear.after, clear.every or clear.after) if clear else None
        self._keep = cut.keep if cut else 0
        self._window = _ConversationWindow(ways.window, tighter) if ways.window else None
        self.all_messages: list[Message] = []
        """What it has read."""
        self._sent: list[Message] = []
        self._replies: list[int] = []
        """Where they stand."""
        self._cut_to = self._cleared_to = 0

    def add_messages(self, messages: Iterable[Message]) -> None:
        """Read on."""
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
        """One that reads on for itself."""
        other = copy.copy(self)
        other.all_messages, other._sent, other._replies = (
            self.all_messages.copy(),
            self._sent.copy(),
            self._replies.copy(),
        )
        other._window = self._window.copy() if self._window is not None else None
        return other

    def build_sent_messages(self) -> list[Message]:
        """What a model is sent now."""
        return self._sent.copy() if self._window is None else self._window.select_messages(self._sent)

    @property
    def can_tighten(self) -> bool:
        """Whether a narrower window would leave out more."""
        return self._window is not None and self._window.can_slide

    def _shorten_old_messages(self) -> None:
        """A reply more: what has become old by it."""
        count = len(self._replies)
        if self._cut is not None and (old := self._cut.count_old_replies(count)):
            end = self._replies[old - 1] + 1
            for place in range(self._cut_to, end):
                if self.all_messages[place].role == "assistant":
                    self._replace_sent(place, truncate_message(self._sent[place], self._keep))
            self._cut_to = max(self._cut_to, end)
        if self._clear is not None and (old := self._clear.count_old_replies(count)):
            end = self._replies[old]  # the results of a reply stand before the next one
            for place in range(self._cleared_to, end):
                if self.all_messages[place].role == "tool":
                    self._replace_sent(place, clear_tool_results(self._sent[place]))
            self._cleared_to = max(self._cleared_to, end)

    def _replace_sent(self, place: int, message: Message) -> None:
        if message is not self._sent[place]:
            self._sent[place] = message
            if self._window is not None:
                self._window.replace_message(place, message)


class _ConversationWindow:
    """The window: from which message on a conversation is sent, besides the first user's."""

    def __init__(self, window: Window, tighter: int) -> None:
        self._most_messages = None if window.messages is None else max(2, window.messages >> tighter)
        self._most_tokens = None if window.tokens is None else max(50, window.tokens >> tighter)
        self._tighter = tighter
        self._roles: list[str] = []
        self._tokens: list[int] = []
        """An estimate for each message, as it is sent."""
        self._first: int | None = None
        """The first user's message."""
        self._start = 0
        self._size = 0.0
        """Tokens that a call would have now: what the last one had, and an estimate of what is new."""
        self._kept = 0
        """The estimate for what is sent."""
        self._ratio = 1.0
        """By how much the last call had more tokens than estimated."""

    def copy(self) -> _ConversationWindow:
        """One that slides for itself."""
        other = copy.copy(self)
        other._roles, other._tokens = self._roles.copy(), self._tokens.copy()
        return other

    @property
    def can_slide(self) -> bool:
        """Whether there is anything left to leave out."""
        return any(True for _ in self._iter_starts())

    def add_message(self, message: Message) -> None:
        """A message more."""
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
        had = usage.input_tokens + usage.output_tokens
        if self._tighter and had > self._most_tokens:
            return  # it was given more than this window lets through
        self._size = had
        self._ratio = min(3.0, max(0.5, had / self._kept))

    def replace_message(self, place: int, message: Message) -> None:
        """The message at ``place`` is sent in another form."""
        if self._most_tokens is None:
            return
        less = self._tokens[place] - estimate_message_tokens(message)
        self._tokens[place] -= less
        if place >= self._start or place == self._first:
            self._kept -= less
            self._size = max(0.0, self._size - less)

    def slide_start(self) -> None:
        """Leave out what is too much, and more, so that the next time is far off."""
        most = self._most_messages
        if most is not None and self._count_messages_from(self._start) > most:
            self._set_start(next((p for p in self._iter_starts() if self._count_messages_from(p) <= most // 2), None))
        if self._most_tokens is not None and self._size > self._most_tokens:
            self._set_start(self._find_half_start(self._most_tokens))

    def _find_half_start(self, most_tokens: int) -> int | None:
        """The first beginning from which there are half of ``most_tokens``."""
        kept, seen = self._kept, self._start
        for place in self._iter_starts():
            kept -= sum(self._tokens[p] for p in range(seen, place) if p != self._first)
            seen = place
            if kept * self._ratio <= most_tokens / 2:
                return place
        return None

    def select_messages(self, sent: Sequence[Message]) -> list[Message]:
        """What is in the window, of ``sent``."""
        start, first = self._start, self._first
        if start == 0:
            return list(sent)
        left_out = start - (first is not None and first < start)
        head = [sent[first]] if first is not None and first < start else []
        return [*head, *([_build_window_note(left_out)] if left_out else []), *sent[start:]]

    def _set_start(self, place: int | None) -> None:
        """Begin at ``place``; where nothing is short enough, at the last place that there is."""
        last = next((p for p in range(len(self._roles) - 1, self._start, -1) if self._can_start_at(p)), self._start)
        self._start = last if place is None else place
        if self._most_tokens is not None:
            apart = self._tokens[self._first] if self._first is not None and self._first < self._start else 0
            self._kept = apart + sum(self._tokens[self._start :])
            self._size = self._kept * self._ratio

    def _iter_starts(self) -> Iterator[int]:
        return (place for place in range(self._start + 1, len(self._roles)) if self._can_start_at(place))

    def _can_start_at(self, place: int) -> bool:
        """A result stays with its call."""
        return self._roles[place] != "tool"

    def _count_messages_from(self, start: int) -> int:
        apart = self._first is not None and self._first < start
        return len(self._roles) - start + apart


def _build_window_note(count: int) -> Message:
    noun = "message was" if count == 1 else "messages were"
    text = f"[{count:,} earlier {noun} left out here to save space.]"
    return Message.user(text, id=WINDOW_NOTE_ID)
