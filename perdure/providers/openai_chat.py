"""OpenAI's chat completions, and every endpoint that speaks them, through the official SDK."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from ..ports import Completed, ModelRequest, StreamEvent, TextDelta, ThinkingDelta, ToolCallDelta
from ..types.messages import FinishReason, Part, TextPart, ThinkingPart, ToolCallPart, Usage, clean_text
from .encoding import build_tool_call, clean_json_value, keep_opaque
from .endpoint import is_host_of
from .errors import build_stream_error
from .openai_chat_request import RESERVED_OPTIONS, THINKING_FIELDS, encode_request
from .reply import StreamedReply, StreamedText, read_array, read_object, read_string
from .sdk import OpenAIEndpoint, read_openai_usage
from .settings import check_all_settings

# ---
# The tool calls of a streamed chat completion: which piece belongs to which call.
#
# OpenAI sends an index with every piece, id and name with the first, and arguments as pieces of JSON text.
# Others leave out the index or the id, give every call the index 0, repeat the name, or send the arguments as
# an object.


@dataclass(slots=True)
class ToolCallSlot:
    """A call under assembly."""

    index: int
    """Its place in the reply."""
    wire_index: int | None
    id: str = ""
    name: str = ""
    arguments: str = ""
    extra: Any = None
    """What the server keeps with the call, and wants back."""

    @property
    def is_complete(self) -> bool:
        """Its arguments are a JSON object, to which nothing more can belong."""
        try:
            return self.arguments.rstrip().endswith("}") and isinstance(json.loads(self.arguments), dict)
        except (ValueError, RecursionError):
            return False

    def build_part(self, origin: str) -> ToolCallPart:
        """The call."""
        extra = None if self.extra is None else {"extra_content": clean_json_value(self.extra)}
        return build_tool_call(self.id, self.name, clean_text(self.arguments), keep_opaque(origin, extra))


class ToolCallSlots:
    """The calls of one reply."""

    def __init__(self) -> None:
        self._slots: list[ToolCallSlot] = []

    def __len__(self) -> int:
        return len(self._slots)

    def add(self, entry: Mapping[str, Any]) -> tuple[ToolCallSlot, str]:
        """Take one piece; the call that it belongs to, and the piece of arguments that it adds."""
        function = read_object(entry.get("function")) or entry
        call_id, name = clean_text(read_string(entry.get("id"))), clean_text(read_string(function.get("name")))
        arguments = function.get("arguments")
        if not isinstance(arguments, str):
            arguments = "" if arguments is None else json.dumps(arguments, ensure_ascii=False)
        index = entry.get("index")
        slot = self._find_slot(index if isinstance(index, int) else None, call_id, name)
        slot.id = slot.id or call_id
        if name != slot.name and not slot.arguments:
            slot.name += name  # the first piece, or a name that itself comes in pieces
        slot.arguments += arguments
        if entry.get("extra_content") is not None:
            slot.extra = entry["extra_content"]
        return slot, arguments

    def _find_slot(self, index: int | None, id: str, name: str) -> ToolCallSlot:
        if index is None:
            # Without an index, a known id says which call; else the piece belongs to the last one.
            candidates = [slot for slot in self._slots if id and slot.id == id] or self._slots[-1:]
        else:
            candidates = [slot for slot in self._slots if slot.wire_index == index]
        if candidates and not _starts_new_call(candidates[-1], id, name):
            return candidates[-1]
        slot = ToolCallSlot(index=len(self._slots), wire_index=index)
        self._slots.append(slot)
        return slot

    def build_parts(self, origin: str = "", *, cut: bool = False) -> list[ToolCallPart]:
        """The calls, in order. ``cut``: the reply ended early; calls that are not complete are omitted."""
        parts = [slot.build_part(origin) for slot in self._slots]
        if not cut:
            return parts
        if self._slots and not self._slots[-1].arguments.strip():
            parts.pop()  # the reply ended before the call's arguments
        return [part for part in parts if not part.malformed]


def _starts_new_call(last: ToolCallSlot, id: str, name: str) -> bool:
    """Whether a piece with ``id`` and ``name`` begins a call after ``last`` instead of continuing it."""
    if not name:
        # A new id is not enough: some servers send another one with every piece.
        return bool(id and last.id and id != last.id and last.is_complete)
    if id and last.id == id:
        return False
    if last.arguments:
        return last.is_complete
    return bool(id and last.id)


# ---
# A model's thinking, as compatible servers stream it. OpenAI itself shows none.


_APPENDED_DETAIL_KEYS = ("text", "summary", "data")


class StreamedThinking:
    """The thinking of one reply, under assembly."""

    def __init__(self) -> None:
        self._text = StreamedText()
        self._field: str | None = None
        self._details: list[dict[str, Any]] = []

    def add(self, delta: Mapping[str, Any]) -> str:
        """Take the thinking in ``delta``; the text to show."""
        for detail in read_array(delta.get("reasoning_details")):
            if isinstance(detail, Mapping):
                self._add_detail(dict(detail))
        for field in THINKING_FIELDS:
            if piece := read_string(delta.get(field)):
                self._field = field
                return self._text.add(piece)
        # Mistral has it among the pieces of the content.
        pieces = [piece for piece in read_array(delta.get("content")) if isinstance(piece, Mapping)]
        inner = [entry for piece in pieces for entry in read_array(piece.get("thinking"))]
        text = "".join(read_string(entry.get("text")) for entry in inner if isinstance(entry, Mapping))
        return self._text.add(text) if text else ""

    def _add_detail(self, detail: dict[str, Any]) -> None:
        """OpenRouter's form: blocks with signatures or encrypted text, in pieces that have the block's index."""
        last = self._details[-1] if self._details else {}
        if not last or any(last.get(key) != detail.get(key) for key in ("type", "index")):
            self._details.append(detail)
            return
        for key, value in detail.items():
            if key in _APPENDED_DETAIL_KEYS and isinstance(value, str) and isinstance(last.get(key), str):
                last[key] += value
            elif value is not None:
                last[key] = value

    def build_part(self, origin: str) -> ThinkingPart | None:
        """The thinking; ``opaque`` says how it is sent back to ``origin``."""
        text = self._text.join_text()
        if not text and not self._details:
            return None
        opaque = {"field": self._field} if self._field else None
        if self._details:
            opaque = {"reasoning_details": clean_json_value(self._details)}
        return ThinkingPart(text=text, **keep_opaque(origin, opaque))


# ---
# A streamed chat completion: chunks in, events out, ``Completed`` at the end.
#
# Tolerant of what compatible servers send; strict where a guess would lose something.


_CHAT_FINISH_REASONS: dict[str, FinishReason] = {
    "stop": "stop",
    "length": "length",
    "max_tokens": "length",
    "tool_calls": "tool_calls",
    "function_call": "tool_calls",
    "content_filter": "content_filter",
    "refusal": "refusal",
}

_CHAT_CUT_REASONS = ("length", "content_filter", "refusal")
"""The reply may have ended in the middle of a call."""


class ChatReply(StreamedReply):
    """One reply under assembly."""

    def __init__(self, endpoint: str, origin: str, key_name: str = "the key") -> None:
        super().__init__(endpoint, origin, key_name)
        self._text = StreamedText()
        self._refusal = StreamedText()
        self._annotations: list[Any] = []
        self._thinking = StreamedThinking()
        self._calls = ToolCallSlots()
        self._reason = ""
        self._usage = Usage()

    def feed(self, chunk: object) -> Iterator[StreamEvent]:
        """Take one chunk. Raises ``MalformedReplyError``, or the error that the chunk carries."""
        chunk = self._require_object(chunk, "a chunk")
        if chunk.get("object") == "error" or chunk.get("error"):
            raise build_stream_error(chunk.get("error") or chunk, "", self._endpoint, key_name=self._key_name)
        self._model = read_string(chunk.get("model")) or self._model
        if isinstance(usage := chunk.get("usage"), dict):
            self._usage = read_openai_usage(usage, "prompt", "completion")
        for choice in read_array(chunk.get("choices")):
            if isinstance(choice, dict) and not choice.get("index"):
                yield from self._feed_choice(choice)

    def _feed_choice(self, choice: Mapping[str, Any]) -> Iterator[StreamEvent]:
        delta = self._require_object(choice.get("delta") or choice.get("message") or {}, "a delta")
        content = delta.get("content")
        if content and isinstance(content, str) and len(delta) == 1:  # text and nothing else, as most pieces
            if shown := self._text.add(content):
                yield TextDelta(shown)
        else:
            yield from self._feed_delta(delta)
        self._reason = read_string(choice.get("finish_reason")) or self._reason

    def _feed_delta(self, delta: Mapping[str, Any]) -> Iterator[StreamEvent]:
        """Text, thinking, a refusal and pieces of calls, or some of them."""
        if thinking := self._thinking.add(delta):
            yield ThinkingDelta(thinking)
        if (refusal := read_string(delta.get("refusal"))) and (shown := self._refusal.add(refusal)):
            yield TextDelta(shown)
        self._annotations.extend(read_array(delta.get("annotations")))
        yield from self._feed_content(delta.get("content"))
        for entry in read_array(delta.get("tool_calls")):
            slot, arguments = self._calls.add(self._require_object(entry, "a tool call"))
            yield ToolCallDelta(slot.index, slot.id, slot.name, clean_text(arguments))

    def _feed_content(self, content: object) -> Iterator[StreamEvent]:
        """Text, or a list of typed pieces, as some servers send it."""
        for piece in read_array(content) if isinstance(content, list) else [content]:
            text = read_string(piece) or (read_string(piece.get("text")) if isinstance(piece, dict) else "")
            if text and (shown := self._text.add(text)):
                yield TextDelta(shown)

    def complete(self) -> Completed:
        """The whole reply. Raises ``TruncatedStreamError`` if the stream ended without a finish reason."""
        if not self._reason:
            raise self._build_truncated_error()
        refusal = self._refusal.join_text()
        reason = _CHAT_FINISH_REASONS.get(self._reason, "other")
        if reason == "stop" and refusal:
            reason = "refusal"
        elif reason in ("stop", "other") and self._calls:
            reason = "tool_calls"
        parts: list[Part] = []
        if thinking := self._thinking.build_part(self._origin):
            parts.append(thinking)
        if text := self._text.join_text():
            cited = {"annotations": clean_json_value(self._annotations)} if self._annotations else None
            parts.append(TextPart(text=text, **keep_opaque(self._origin, cited)))
        if refusal:
            parts.append(TextPart(text=refusal, **keep_opaque(self._origin, {"refusal": True})))
        parts.extend(self._calls.build_parts(self._origin, cut=reason in _CHAT_CUT_REASONS))
        return Completed(tuple(parts), reason, self._usage, self._model, origin=self._origin)


_MAX_COMPLETION_TOKENS_HOSTS = ("openai.com", "openai.azure.com")
"""Where newer models refuse ``max_tokens``."""


class OpenAIChat(OpenAIEndpoint):
    """The ``openai`` provider.

    ``base_url`` is any compatible endpoint; by default ``OPENAI_BASE_URL`` or OpenAI itself. The key is ``api_key``, or
    read from the variable ``api_key_env`` (``OPENAI_API_KEY``) with each call. ``timeout`` is how many seconds the API
    may be silent. ``max_tokens_name`` is the wire name of the setting ``max_tokens``: by default
    ``max_completion_tokens`` at OpenAI and Azure, whose newer models refuse the old name, and ``max_tokens`` elsewhere,
    because most compatible servers know only that. ``headers`` are sent with every request.

    An instance may be used from several event loops; each gets an SDK client of its own with its first call.
    """

    format = "openai"

    def __init__(
        self,
        base_url: str | None = None,
        api_key: str | None = None,
        api_key_env: str | None = None,
        *,
        timeout: float = 600.0,
        max_tokens_name: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(base_url, api_key, api_key_env, timeout=timeout, headers=headers)
        self._max_tokens_name = max_tokens_name

    @staticmethod
    def check_settings(settings: Mapping[str, Any], provider_options: Mapping[str, Any]) -> None:
        """Check the settings and options of an agent. Raises ``SettingsError``."""
        wire_names = {"max_tokens": ("max_tokens", "max_completion_tokens")}
        check_all_settings("openai", settings, provider_options, wire_names, RESERVED_OPTIONS)

    async def stream(self, request: ModelRequest) -> AsyncIterator[StreamEvent]:
        """Call the model once. Raises ``ProviderError``; ``AuthenticationError`` also if no key is set."""
        async with self._open_call(request) as call:
            reply = ChatReply(self.host, self.origin, self.key_name)
            name = self._resolve_max_tokens_name(self.host)
            call.body = encode_request(request, origin=self.origin, max_tokens_name=name)
            async with aclosing(await self._post_request(call, "/chat/completions")) as response:
                call.reply_started = True
                async for chunk in self._read_stream(response):
                    for event in reply.feed(chunk):
                        yield event
            yield self.translate_tools(request.model, request.tools).restore(reply.complete())

    def _resolve_max_tokens_name(self, host: str) -> str:
        is_known = is_host_of(host, _MAX_COMPLETION_TOKENS_HOSTS)
        return self._max_tokens_name or ("max_completion_tokens" if is_known else "max_tokens")
