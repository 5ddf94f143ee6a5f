"""OpenAI's chat completions, and every endpoint that speaks them, through the official SDK."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..errors import MalformedReplyError, ProviderError, TruncatedStreamError
from ..ports import Completed, ModelRequest, StreamEvent, TextDelta, ThinkingDelta, ToolCallDelta
from ..types.messages import FinishReason, Part, TextPart, ThinkingPart, ToolCallPart, Usage, clean_text
from .encoding import StreamedText, clean_json_value, parse_arguments
from .endpoint import Endpoint, is_host_of
from .errors import build_stream_error, mark_refused_content
from .json_values import read_array, read_count, read_object, read_string
from .openai_chat_request import RESERVED_OPTIONS, THINKING_FIELDS, encode_request, encode_settings
from .openai_sdk import create_client, post_request, read_stream, translate_error
from .settings import check_canonical_settings, check_provider_options

if TYPE_CHECKING:
    from openai import AsyncOpenAI


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
        """Its arguments are a JSON object, so that nothing more can belong to them."""
        try:
            return self.arguments.rstrip().endswith("}") and isinstance(json.loads(self.arguments), dict)
        except (ValueError, RecursionError):
            return False


class ToolCallSlots:
    """The calls of one reply."""

    def __init__(self) -> None:
        self._slots: list[ToolCallSlot] = []

    def __len__(self) -> int:
        return len(self._slots)

    def add(self, entry: Mapping[str, Any]) -> tuple[ToolCallSlot, str]:
        """Take one piece; the call that it belongs to, and the piece of arguments it adds."""
        function = entry.get("function")
        function = function if isinstance(function, dict) else entry
        call_id = clean_text(entry["id"]) if isinstance(entry.get("id"), str) else ""
        name = clean_text(function["name"]) if isinstance(function.get("name"), str) else ""
        arguments = _read_arguments_piece(function.get("arguments"))
        index = entry.get("index") if isinstance(entry.get("index"), int) else None
        slot = self._find_slot(index, call_id, name)
        slot.id = slot.id or call_id
        if name != slot.name and not slot.arguments:
            slot.name += name  # the first piece, or a name that itself comes in pieces
        slot.arguments += arguments
        if entry.get("extra_content") is not None:
            slot.extra = entry["extra_content"]
        return slot, arguments

    def _find_slot(self, index: int | None, id: str, name: str) -> ToolCallSlot:
        if index is None:
            # Without an index a known id says which call; else the piece goes on with the last one.
            candidates = [slot for slot in self._slots if id and slot.id == id] or self._slots[-1:]
        else:
            candidates = [slot for slot in self._slots if slot.wire_index == index]
        if candidates and not _starts_new_call(candidates[-1], id, name):
            return candidates[-1]
        slot = ToolCallSlot(index=len(self._slots), wire_index=index)
        self._slots.append(slot)
        return slot

    def build_parts(self, origin: str = "", *, cut: bool = False) -> list[ToolCallPart]:
        """The calls, whole, in order.

        ``cut``: the reply was ended before it was complete, and calls that are not are left out: nobody asked for them.
        """
        parts = [_build_slot_part(slot, origin) for slot in self._slots]
        if not cut:
            return parts
        begun = self._slots[-1].index if self._slots and not self._slots[-1].arguments.strip() else -1
        return [
            part for slot, part in zip(self._slots, parts, strict=True) if slot.index != begun and not part.malformed
        ]


def _starts_new_call(last: ToolCallSlot, id: str, name: str) -> bool:
    """Whether a piece with ``id`` and ``name`` begins a call after ``last`` instead of going on with it."""
    if not name:
        # Ids alone do not tell: some servers make up a new one for every piece.
        return bool(id and last.id and id != last.id and last.is_complete)
    if id and last.id == id:
        return False
    if last.arguments:
        return last.is_complete
    return bool(id and last.id)


def _read_arguments_piece(value: object) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _build_slot_part(slot: ToolCallSlot, origin: str) -> ToolCallPart:
    text = clean_text(slot.arguments)
    arguments = parse_arguments(text)
    opaque = None if slot.extra is None else {"extra_content": clean_json_value(slot.extra)}
    return ToolCallPart(
        id=slot.id,
        name=slot.name,
        arguments=arguments or {},
        malformed=text if arguments is None else None,
        provider=origin if opaque else None,
        opaque=opaque,
    )


# ---
# What a model thought, as servers that speak chat completions stream it. OpenAI itself shows none.


_APPENDED_DETAIL_KEYS = ("text", "summary", "data")


class StreamedThinking:
    """The thinking of one reply, under assembly."""

    def __init__(self) -> None:
        self._text = StreamedText()
        self._field: str | None = None
        self._details: list[dict[str, Any]] = []

    def add(self, delta: Mapping[str, Any]) -> str:
        """Take what ``delta`` has of it; the text that can be shown."""
        if details := delta.get("reasoning_details"):
            for detail in read_array(details):
                if isinstance(detail, Mapping):
                    self._add_detail(dict(detail))
        for field in THINKING_FIELDS:
            if (piece := delta.get(field)) and isinstance(piece, str):
                self._field = field
                return self._text.add(piece)
        content = delta.get("content")
        return self._add_content_pieces(content) if isinstance(content, list) else ""

    def _add_content_pieces(self, content: list[Any]) -> str:
        """Mistral has it among the pieces of the content."""
        pieces = [piece for piece in content if isinstance(piece, Mapping) and "thinking" in piece]
        inner = [text for piece in pieces for text in read_array(piece["thinking"]) if isinstance(text, Mapping)]
        return self._text.add("".join(text["text"] for text in inner if isinstance(text.get("text"), str)))

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
        """All of it; ``opaque`` says how it goes back to ``origin``."""
        text = self._text.join_text()
        if not text and not self._details:
            return None
        opaque: dict[str, Any] | None = None
        if self._details:
            opaque = {"reasoning_details": clean_json_value(self._details)}
        elif self._field:
            opaque = {"field": self._field}
        return ThinkingPart(text=text, provider=origin if opaque else None, opaque=opaque)


# ---
# A streamed chat completion, put together: chunks in, events out, ``Completed`` at the end.
#
# Tolerant of what servers that call themselves compatible send; strict where a guess would lose something.


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


class ChatReply:
    """One reply under assembly. ``endpoint`` names the API in errors, ``origin`` what only it understands."""

    def __init__(self, endpoint: str, origin: str) -> None:
        self._endpoint = endpoint
        self._origin = origin
        self._text = StreamedText()
        self._refusal = StreamedText()
        self._annotations: list[Any] = []
        self._thinking = StreamedThinking()
        self._calls = ToolCallSlots()
        self._reason: str | None = None
        self._usage = Usage()
        self._model = ""

    def feed(self, chunk: object) -> Iterator[StreamEvent]:
        """Take one chunk. Raises ``MalformedReplyError``, or the error that the chunk carries."""
        if not isinstance(chunk, dict):
            raise MalformedReplyError(f"{self._endpoint} sent a chunk that is no JSON object: {str(chunk)[:200]!r}")
        if chunk.get("object") == "error" or chunk.get("error"):
            raise build_stream_error(chunk.get("error") or chunk, "", self._endpoint)
        if isinstance(model := chunk.get("model"), str) and model:
            self._model = model
        if isinstance(usage := chunk.get("usage"), dict):
            self._usage = read_usage(usage)
        for choice in read_array(chunk.get("choices")):
            if isinstance(choice, dict) and not choice.get("index"):
                yield from self._feed_choice(choice)

    def _feed_choice(self, choice: Mapping[str, Any]) -> Iterator[StreamEvent]:
        delta = choice.get("delta") or choice.get("message") or {}
        if not isinstance(delta, dict):
            raise MalformedReplyError(f"{self._endpoint} sent a delta that is no JSON object: {str(delta)[:200]!r}")
        if thought := self._thinking.add(delta):
            yield ThinkingDelta(thought)
        if (refusal := read_string(delta.get("refusal"))) and (shown := self._refusal.add(refusal)):
            yield TextDelta(shown)
        if annotations := delta.get("annotations"):
            self._annotations.extend(read_array(annotations))
        yield from self._feed_content(delta.get("content"))
        for entry in read_array(delta.get("tool_calls")):
            if not isinstance(entry, dict):
                raise MalformedReplyError(f"{self._endpoint} sent a tool call that is no JSON object")
            yield self._feed_call(entry)
        if isinstance(reason := choice.get("finish_reason"), str) and reason:
            self._reason = reason

    def _feed_content(self, content: object) -> Iterator[StreamEvent]:
        """Text, or a list of typed pieces, as some servers send it."""
        for piece in read_array(content) if isinstance(content, list) else [content]:
            text = read_string(piece) or (read_string(piece.get("text")) if isinstance(piece, dict) else "")
            if text and (shown := self._text.add(text)):
                yield TextDelta(shown)

    def _feed_call(self, entry: Mapping[str, Any]) -> ToolCallDelta:
        slot, arguments = self._calls.add(entry)
        return ToolCallDelta(index=slot.index, id=slot.id, name=slot.name, arguments=clean_text(arguments))

    def complete(self) -> Completed:
        """The whole reply. Raises ``TruncatedStreamError`` when the stream never said why it ended."""
        if self._reason is None:
            raise TruncatedStreamError(f"{self._endpoint} ended the stream before the reply was complete")
        reason = self._resolve_finish_reason()
        parts: list[Part] = []
        if thinking := self._thinking.build_part(self._origin):
            parts.append(thinking)
        if text := self._text.join_text():
            parts.append(self._build_text_part(text, {"annotations": self._annotations} if self._annotations else None))
        if refusal := self._refusal.join_text():
            parts.append(self._build_text_part(refusal, {"refusal": True}))
        parts.extend(self._calls.build_parts(self._origin, cut=reason in _CHAT_CUT_REASONS))
        return Completed(tuple(parts), reason, self._usage, self._model, origin=self._origin)

    def _build_text_part(self, text: str, opaque: dict[str, Any] | None) -> TextPart:
        return TextPart(text=text, provider=self._origin if opaque else None, opaque=clean_json_value(opaque))

    def _resolve_finish_reason(self) -> FinishReason:
        reason = _CHAT_FINISH_REASONS.get(self._reason or "", "other")
        if reason == "stop" and self._refusal.join_text():
            return "refusal"
        return "tool_calls" if reason in ("stop", "other") and self._calls else reason


def read_usage(usage: Mapping[str, Any]) -> Usage:
    """Usage as the API counts it; what is missing is 0."""
    read = read_object(usage, "prompt_tokens_details")
    written = read_object(usage, "completion_tokens_details")
    return Usage(
        input_tokens=read_count(usage, "prompt_tokens"),
        output_tokens=read_count(usage, "completion_tokens"),
        cached_tokens=read_count(read, "cached_tokens") or read_count(usage, "prompt_cache_hit_tokens"),
        reasoning_tokens=read_count(written, "reasoning_tokens"),
        cache_write_tokens=read_count(read, "cache_write_tokens"),
    )


_MAX_COMPLETION_TOKENS_HOSTS = ("openai.com", "openai.azure.com")
"""Where newer models refuse ``max_tokens``."""


def check_settings(settings: Mapping[str, Any], provider_options: Mapping[str, Any]) -> None:
    """Whether chat completions have these ``settings``, and ``provider_options`` do not meet them.

    Needs no SDK, so an agent is checked where it is defined. Raises ``SettingsError``.
    """
    given = check_canonical_settings("openai", settings)
    taken = dict.fromkeys(RESERVED_OPTIONS, "perdure")
    for wire in ("max_tokens", "max_completion_tokens"):
        taken |= {key: f"settings[{key!r}]" for key in encode_settings(given, max_tokens_name=wire)}
    if "max_tokens" in given:
        taken["max_completion_tokens"] = "settings['max_tokens']"
    check_provider_options("openai", provider_options, taken)


class OpenAIChat(Endpoint["AsyncOpenAI"]):
    """The ``openai`` provider.

    ``base_url`` is any compatible endpoint; without one ``OPENAI_BASE_URL`` or OpenAI itself. The key is
    ``api_key``, or read from the variable ``api_key_env`` (``OPENAI_API_KEY``) with each call. ``timeout`` is how many
    seconds the API may be silent. ``max_tokens_name`` is the wire name of the setting ``max_tokens``: by default
    ``max_completion_tokens`` at OpenAI and Azure, whose newer models refuse the old name, and ``max_tokens``
    elsewhere, because most compatible servers know no other. ``headers`` are sent with every request.

    An instance may be used from several event loops; each gets an SDK client of its own with its first call.
    """

    format = extra = "openai"
    key_envs = ("OPENAI_API_KEY",)
    base_url_env = "OPENAI_BASE_URL"
    official_url = "https://api.openai.com/v1"
    official_hosts = ("openai.com",)

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

    def check_settings(self, settings: Mapping[str, Any], provider_options: Mapping[str, Any]) -> None:
        """See :func:`check_settings`."""
        check_settings(settings, provider_options)

    async def stream(self, request: ModelRequest) -> AsyncIterator[StreamEvent]:
        """Call the model once. Raises ``ProviderError``; ``AuthenticationError`` also where no key is set."""
        key, host, begun = self._read_key(), self.host, False
        body: bytes | None = None
        try:
            client, origin = await self._get_client(key), self.origin
            reply = ChatReply(host, origin)
            body = encode_request(request, origin=origin, max_tokens_name=self._resolve_max_tokens_name(host))
            async with await post_request(client, "/chat/completions", body) as stream:
                begun = True
                async for chunk in read_stream(stream, host):
                    for event in reply.feed(chunk):
                        yield event
            yield reply.complete()
        except Exception as error:
            raise mark_refused_content(self._build_provider_error(error, request, key, begun), body) from None

    def _translate_error(self, error: Exception, begun: bool) -> ProviderError:
        return translate_error(error, begun=begun, endpoint=self.host, key_name=self.key_name)

    def _resolve_max_tokens_name(self, host: str) -> str:
        return self._max_tokens_name or (
            "max_completion_tokens" if is_host_of(host, _MAX_COMPLETION_TOKENS_HOSTS) else "max_tokens"
        )

    def _create_client(self, key: str) -> AsyncOpenAI:
        return create_client(key, self.base_url, self._timeout, self._headers)
