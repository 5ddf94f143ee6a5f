"""OpenAI's chat completions, and every endpoint that speaks them, through the official SDK."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import aclosing
from typing import Any

from ..errors import SettingsError
from ..ports.model import Completed, ModelRequest, StreamEvent, TextDelta, ThinkingDelta, ToolCallDelta
from ..types.messages import Part, TextPart, ThinkingPart, ToolCallPart, Usage, clean_text
from .dialects import Dialect, DoneUse, ForcedTool, MaxTokensName, ThinkingUse, find_signer
from .encoding import bind_opaque, clean_json_value, keep_opaque
from .errors import build_stream_error
from .finish_reasons import read_ending, require_reply
from .openai_chat_request import RESERVED_OPTIONS, TAGGED_FIELD, THINKING_FIELDS, encode_request
from .reply import StreamedReply, StreamedText, ThinkTags, read_array, read_string
from .sdk import OpenAIEndpoint, read_openai_usage
from .settings import check_all_settings
from .tool_call_stream import ToolCallSlots

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
        """Add the reasoning of ``delta`` to the reply. Return the part of it to stream."""
        for detail in read_array(delta.get("reasoning_details")):
            if isinstance(detail, Mapping):
                self._add_detail(dict(detail))
        for field in (*THINKING_FIELDS, TAGGED_FIELD):
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


class ChatReply(StreamedReply):
    """One reply under assembly."""

    def __init__(
        self,
        endpoint: str,
        origin: str,
        key_name: str = "the key",
        *,
        signer: str | None = None,
        dialect: Dialect | None = None,
    ) -> None:
        """``signer``: of the model that was asked (``dialects.find_signer``)."""
        super().__init__(endpoint, origin, key_name)
        self._signer = signer
        self._dialect = dialect or Dialect()
        self._is_done = False
        self._tags = ThinkTags() if self._dialect.think_tags else None
        self._text = StreamedText()
        self._refusal = StreamedText()
        self._annotations: list[Any] = []
        self._thinking = StreamedThinking()
        self._calls = ToolCallSlots()
        self._reason = self._native_reason = ""
        self._usage = Usage()

    def mark_done(self) -> None:
        """The server has said that its stream is complete: ``[DONE]``, or a body that is not a stream."""
        self._is_done = True

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
        if error := choice.get("error"):
            raise build_stream_error(error, "", self._endpoint, key_name=self._key_name)
        delta = self._require_object(choice.get("delta") or choice.get("message") or {}, "a delta")
        content = delta.get("content")
        if content and isinstance(content, str) and len(delta) == 1:  # text and nothing else, as most pieces
            yield from self._feed_text(content)
        else:
            yield from self._feed_delta(delta)
        self._reason = read_string(choice.get("finish_reason")) or self._reason
        self._native_reason = read_string(choice.get("native_finish_reason")) or self._native_reason

    def _feed_delta(self, delta: Mapping[str, Any]) -> Iterator[StreamEvent]:
        """Text, thinking, a refusal and pieces of calls, or some of them."""
        if thinking := self._thinking.add(delta):
            yield ThinkingDelta(thinking)
        if (refusal := read_string(delta.get("refusal"))) and (shown := self._refusal.add(refusal)):
            yield TextDelta(shown)
        self._annotations.extend(read_array(delta.get("annotations")))
        yield from self._feed_content(delta.get("content"))
        self._calls.begin_chunk()
        for entry in _list_call_entries(delta):
            if (added := self._calls.add(self._require_object(entry, "a tool call"))) is not None:
                slot, arguments = added
                yield ToolCallDelta(slot.index, slot.id, slot.name, clean_text(arguments))

    def _feed_content(self, content: object) -> Iterator[StreamEvent]:
        """Text, or a list of typed pieces, as some servers send it."""
        for piece in read_array(content) if isinstance(content, list) else [content]:
            text = read_string(piece) or (read_string(piece.get("text")) if isinstance(piece, dict) else "")
            yield from self._feed_text(text)

    def _feed_text(self, text: str) -> Iterator[StreamEvent]:
        """Add text of the content, which may begin with thinking in tags. Yield the events to stream."""
        thinking, text = self._tags.add(text) if self._tags is not None else ("", text)
        if thinking and (shown := self._thinking.add({TAGGED_FIELD: thinking})):
            yield ThinkingDelta(shown)
        if text and (shown := self._text.add(text)):
            yield TextDelta(shown)

    def flush(self) -> Iterator[StreamEvent]:
        """The stream has ended: what was held back of the text."""
        thinking, text = self._tags.flush() if self._tags is not None else ("", "")
        if thinking:
            yield ThinkingDelta(self._thinking.add({TAGGED_FIELD: thinking}))
        if text:
            yield TextDelta(self._text.add(text))

    def _is_ended_by_done(self) -> bool:
        """Whether the reply is whole without a finish reason."""
        ends = self._dialect.done_ends_reply
        is_end = ends is True or (ends == "with_usage" and self._usage != Usage())
        return self._is_done and is_end and bool(self._text.join_text() or self._calls)

    def complete(self) -> Completed:
        """The whole reply. Raises ``TruncatedStreamError`` if the stream ended without a finish reason, and what
        :func:`require_reply` raises."""
        for _ in self.flush():
            pass  # a caller that needs no events
        reason = self._reason or ("stop" if self._is_ended_by_done() else "")
        if not reason:
            raise self._build_truncated_error()
        ending = read_ending(reason, self._native_reason)
        finish = require_reply(ending, self._endpoint, reason, native=self._native_reason)
        refusal = self._refusal.join_text()
        calls = self._calls.build_parts(self._origin, cut=ending.kind in ("cut", "refused"))
        is_cut = any(call.malformed is not None for call in calls)
        if not self._reason and is_cut:
            raise self._build_truncated_error()
        if ending.kind == "refused":  # what was filtered is not asked for again
            calls = [call for call in calls if call.malformed is None]
        if finish == "stop" and refusal:
            finish = "refusal"
        elif finish == "stop" and calls:
            finish = "tool_calls"
        parts: list[Part] = []
        if thinking := self._thinking.build_part(self._origin):
            parts.append(thinking)
        if text := self._text.join_text():
            cited = {"annotations": clean_json_value(self._annotations)} if self._annotations else None
            parts.append(TextPart(text=text, **keep_opaque(self._origin, cited)))
        if refusal:
            parts.append(TextPart(text=refusal, **keep_opaque(self._origin, {"refusal": True})))
        parts.extend(calls)
        if self._signer is not None:
            parts = [bind_opaque(part, self._signer) if _is_signed(part) else part for part in parts]
        return Completed(tuple(parts), finish, self._usage, self._model, origin=self._origin)


def _list_call_entries(delta: Mapping[str, Any]) -> list[Any]:
    """The pieces of calls in ``delta``: a list, the one call of servers that send no list, or ``function_call``, which
    the API had before."""
    calls, former = delta.get("tool_calls"), delta.get("function_call")
    entries = [calls] if isinstance(calls, dict) else read_array(calls)
    return [*entries, {"function": former}] if isinstance(former, dict) else entries


def _is_signed(part: Part) -> bool:
    """Whether the vendor behind an aggregator signed the part, or encrypted it, for models of its own."""
    opaque = part.opaque if isinstance(part, ThinkingPart | ToolCallPart) else None
    return opaque is not None and ("reasoning_details" in opaque or "extra_content" in opaque)


class OpenAIChat(OpenAIEndpoint):
    """The ``openai`` provider.

    ``base_url`` is any compatible endpoint; by default ``OPENAI_BASE_URL`` or OpenAI itself. The key is ``api_key``, or
    read from the variable ``api_key_env`` (``OPENAI_API_KEY``) with each call. ``timeout`` is how many seconds the API
    may be silent. ``headers`` are sent with every request.

    ``dialect`` says how the server differs from others: the name of a known one (``"vllm"``), or a ``Dialect``; by
    default it is that of the host of ``base_url``. The parameters after it each replace one field of the dialect, see
    :class:`perdure.providers.dialects.Dialect`.

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
        headers: Mapping[str, str] | None = None,
        dialect: str | Dialect | None = None,
        max_tokens_name: MaxTokensName | None = None,
        streaming: bool | None = None,
        stream_usage: bool | None = None,
        forced_tool: ForcedTool | None = None,
        short_call_ids: bool | None = None,
        strict_roles: bool | None = None,
        thinking: ThinkingUse | None = None,
        call_signatures: bool | None = None,
        think_tags: bool | None = None,
        done_ends_reply: DoneUse | None = None,
    ) -> None:
        super().__init__(base_url, api_key, api_key_env, timeout=timeout, headers=headers)
        self._set_dialect(
            dialect,
            max_tokens_name=max_tokens_name,
            streaming=streaming,
            stream_usage=stream_usage,
            forced_tool=forced_tool,
            short_call_ids=short_call_ids,
            strict_roles=strict_roles,
            thinking=thinking,
            call_signatures=call_signatures,
            think_tags=think_tags,
            done_ends_reply=done_ends_reply,
        )

    @staticmethod
    def check_settings(settings: Mapping[str, Any], provider_options: Mapping[str, Any]) -> None:
        """Check the settings and options of an agent. Raises ``SettingsError``.

        ``provider_options["stream_options"]`` may be None: the request then does not ask for the usage.
        """
        wire_names = {"max_tokens": ("max_tokens", "max_completion_tokens")}
        if provider_options.get("stream_options") is not None:
            problem = "provider_options['stream_options'] for provider 'openai' collides: perdure sets it."
            raise SettingsError(problem, hint="None leaves it out; the usage is then what the server sends unasked.")
        options = {name: value for name, value in provider_options.items() if name != "stream_options"}
        check_all_settings("openai", settings, options, wire_names, RESERVED_OPTIONS)

    async def stream(self, request: ModelRequest) -> AsyncIterator[StreamEvent]:
        """Call the model once. Raises ``ProviderError``; ``AuthenticationError`` also if no key is set.

        A request that the server refuses for a part that can be left out or written otherwise is sent again so.
        """
        async with self._open_call(request) as call:
            origin = self.origin

            async def send(dialect: Dialect) -> Any:
                call.body = encode_request(request, origin=origin, dialect=dialect)
                return await self._post_request(call, "/chat/completions")

            response, dialect = await self._post_conceding(call, request, send)
            signer = find_signer(request.model)
            reply = ChatReply(self.host, origin, self.key_name, signer=signer, dialect=dialect)
            async with aclosing(response):
                call.begin_reply(response.headers.items())
                async for chunk in self._read_stream(response, reply.mark_done):
                    for event in reply.feed(chunk):
                        yield event
            for event in reply.flush():
                yield event
            completed = call.finish(reply.complete())
            yield self.translate_tools(request.model, request.tools).restore(completed)
