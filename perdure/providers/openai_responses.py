"""OpenAI's Responses API, and every endpoint that speaks it, through the official SDK."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from ..errors import MalformedReplyError, ProviderError, SettingsError
from ..ports import Completed, ModelRequest, StreamEvent, TextDelta, ThinkingDelta, ToolCallDelta
from ..types.messages import FinishReason, OpaquePart, Part, TextPart, ToolCallPart, clean_text
from .endpoint import EndpointCall
from .errors import build_stream_error
from .openai_responses_request import ENCRYPTED_REASONING, RESERVED_OPTIONS, encode_request, read_item
from .reply import StreamedReply, StreamedText, read_array, read_count, read_object, read_string
from .sdk import OpenAIEndpoint, drain_stream, read_openai_usage
from .settings import check_all_settings

# ---
# A streamed response: events in, deltas out, ``Completed`` at the end.
#
# The last event has the whole response, and that counts; the events before it only become deltas.


_INCOMPLETE_FINISH_REASONS: dict[str, FinishReason] = {
    "max_output_tokens": "length",
    "content_filter": "content_filter",
}
_FINAL_STATUSES = ("completed", "incomplete", "failed", "cancelled")


@dataclass(slots=True)
class _StreamedCall:
    index: int
    id: str
    name: str
    has_arguments: bool = False
    """Some of its arguments were streamed."""


class ResponsesReply(StreamedReply):
    """One reply under assembly. ``origin`` and ``model``, the requested name, mark opaque data."""

    def __init__(self, endpoint: str, origin: str, key_name: str = "the key", *, model: str) -> None:
        super().__init__(endpoint, origin, key_name)
        self._requested_model = model
        self._text = StreamedText()
        self._thinking = StreamedText()
        self._thinking_position: tuple[int, int] | None = None
        self._calls: dict[int, _StreamedCall] = {}
        self._finished_items: dict[int, Mapping[str, Any]] = {}
        self._response: Mapping[str, Any] | None = None

    @property
    def is_ended(self) -> bool:
        """Whether the response is whole: nothing that may follow belongs to it."""
        return self._response is not None

    def feed(self, event: object) -> Iterator[StreamEvent]:
        """Take one event. Raises ``MalformedReplyError``, or the error that the event carries."""
        event = self._require_object(event, "an event")
        kind = event.get("type")
        if event.get("object") == "response":  # an answer that is not a stream
            kind, event = f"response.{event.get('status')}", {"response": event}
        if kind == "error" or (event.get("error") and not kind):
            body = event.get("error") or {**event, "type": None}
            raise build_stream_error(body, "", self._endpoint, key_name=self._key_name)
        index = read_count(event, "output_index")
        delta = read_string(event.get("delta"))
        match kind:
            case "response.output_text.delta" | "response.refusal.delta":
                if shown := self._text.add(delta):
                    yield TextDelta(shown)
            case "response.reasoning_summary_text.delta":
                yield from self._feed_thinking(delta, (index, read_count(event, "summary_index")))
            case "response.reasoning_text.delta":
                yield from self._feed_thinking(delta, (index, -1))
            case "response.output_item.added":
                item = read_object(event.get("item"))
                if item.get("type") == "function_call":
                    call_id, name = (clean_text(read_string(item.get(key))) for key in ("call_id", "name"))
                    self._calls[index] = _StreamedCall(len(self._calls), call_id, name)
                    yield ToolCallDelta(self._calls[index].index, call_id, name, "")
            case "response.function_call_arguments.delta":
                yield self._feed_arguments(index, delta)
            case "response.function_call_arguments.done":
                if index not in self._calls or not self._calls[index].has_arguments:
                    yield self._feed_arguments(index, read_string(event.get("arguments")))
            case "response.output_item.done":
                if isinstance(finished := event.get("item"), dict):
                    self._finished_items[index] = finished
            case str() if kind.removeprefix("response.") in _FINAL_STATUSES:
                self._finish(event.get("response"))
            case _:
                pass  # beginnings, annotations, progress of built-in tools, and future events

    def _feed_thinking(self, piece: str, position: tuple[int, int]) -> Iterator[StreamEvent]:
        if self._thinking_position not in (None, position):
            piece = "\n\n" + piece  # the next part of a summary is a paragraph of its own
        self._thinking_position = position
        if shown := self._thinking.add(piece):
            yield ThinkingDelta(shown)

    def _feed_arguments(self, index: int, piece: str) -> ToolCallDelta:
        call = self._calls.setdefault(index, _StreamedCall(len(self._calls), "", ""))
        call.has_arguments = True
        return ToolCallDelta(call.index, call.id, call.name, clean_text(piece))

    def _finish(self, response: object) -> None:
        if not isinstance(response, Mapping):
            raise MalformedReplyError(f"{self._endpoint} ended the reply without a response")
        if response.get("status") in ("failed", "cancelled") or response.get("error"):
            text = f"the response is {response.get('status')}"
            body = response.get("error") or {"message": text}
            raise build_stream_error(body, text, self._endpoint, key_name=self._key_name)
        self._response = response

    def complete(self) -> Completed:
        """The whole reply. Raises ``TruncatedStreamError`` if the stream ended without its last event."""
        if self._response is None:
            raise self._build_truncated_error()
        response = self._response
        is_complete = response.get("status") == "completed"
        parts: list[Part] = []
        # Some servers leave the output of the last event empty: then the items as they were streamed.
        for item in read_array(response.get("output")) or [items for _, items in sorted(self._finished_items.items())]:
            item = self._require_object(item, "an item")
            item_parts = read_item(item, origin=self._origin, model=self._requested_model)
            parts += [part for part in item_parts if is_complete or not _is_unfinished(part, item)]
        reason: FinishReason = "stop"
        if not is_complete:
            details = read_object(response.get("incomplete_details"))
            reason = _INCOMPLETE_FINISH_REASONS.get(str(details.get("reason")), "other")
        elif any(isinstance(part, ToolCallPart) for part in parts):
            reason = "tool_calls"
        elif any(isinstance(part, TextPart) and (part.opaque or {}).get("refusal") for part in parts):
            reason = "refusal"
        usage = read_openai_usage(read_object(response.get("usage")), "input", "output")
        return Completed(tuple(parts), reason, usage, read_string(response.get("model")), origin=self._origin)


def _is_unfinished(part: Part, item: Mapping[str, Any]) -> bool:
    """Whether ``part`` is a call, or an item of a built-in tool, that the reply's early end left unfinished.

    An unfinished call would do something else than was meant, and the API does not take back unfinished items. Text
    stays.
    """
    if isinstance(part, ToolCallPart):
        return part.malformed is not None or item.get("status") not in (None, "completed")
    return isinstance(part, OpaquePart) and item.get("status") not in (None, "completed", "failed")


_MIN_OUTPUT_TOKENS = 16
"""The API refuses a smaller ``max_output_tokens``."""

_CALLER_TOOLS = dict.fromkeys(
    ("function", "custom", "namespace"), "a tool of the agent (Agent(tools=[…]))"
) | dict.fromkeys(("computer", "computer_use_preview", "local_shell", "apply_patch"), "run by the caller")
"""Tools whose calls the API expects us to answer."""

_MERGED_OPTIONS = {"include": list, "tools": list, "reasoning": dict}
"""Options that are added to what we send under the same name, and their shape."""

_ENCRYPTION_UNSUPPORTED_TEXT = re.compile(
    r"encrypted[ _]content is not supported|reasoning\.encrypted_content", re.IGNORECASE
)
_ENCRYPTION_INVALID_TEXT = re.compile(
    r"invalid_encrypted_content|encrypted content.{0,200} could not be", re.IGNORECASE | re.DOTALL
)
_STREAM_END_TIMEOUT = 0.5
"""Seconds for the stream to end after its last event; then the connection can be used again."""


def _check_merged_options(given: Mapping[str, Any], options: Mapping[str, Any]) -> None:
    provider = "for provider 'openai-responses'"
    for key, shape in _MERGED_OPTIONS.items():
        if not isinstance(options.get(key, shape()), shape):
            raise SettingsError(
                f"provider_options[{key!r}] {provider} must be a {shape.__name__}, not {options[key]!r}."
            )
    if "reasoning_effort" in given and "effort" in options.get("reasoning", {}):
        raise SettingsError(
            f"provider_options['reasoning']['effort'] {provider} collides: settings['reasoning_effort'] sets it."
        )
    for tool in options.get("tools", ()):
        kind = tool.get("type") if isinstance(tool, Mapping) else None
        if not isinstance(kind, str):
            raise SettingsError(f"provider_options['tools'] {provider} must be objects with a type, not {tool!r}.")
        if kind in _CALLER_TOOLS:
            hint = "Only tools that the API runs itself are given here, for instance {'type': 'web_search'}."
            raise SettingsError(f"provider_options['tools'] {provider}: {kind!r} is {_CALLER_TOOLS[kind]}.", hint=hint)


class OpenAIResponses(OpenAIEndpoint):
    """The ``openai-responses`` provider.

    ``base_url`` is any compatible endpoint; by default ``OPENAI_BASE_URL`` or OpenAI itself. The key is ``api_key``, or
    read from the variable ``api_key_env`` (``OPENAI_API_KEY``) with each call. ``timeout`` is how many seconds the API
    may be silent. ``headers`` are sent with every request.

    The API stores nothing: reasoning comes encrypted, is kept in the transcript, and is sent back to its model. An
    instance may be used from several event loops; each gets an SDK client of its own with its first call.
    """

    format = "openai-responses"

    @cached_property
    def _plain_models(self) -> set[str]:
        """Models that refuse to be asked for encrypted reasoning."""
        return set()

    @staticmethod
    def check_settings(settings: Mapping[str, Any], provider_options: Mapping[str, Any]) -> None:
        """Check the settings and options of an agent. Raises ``SettingsError``.

        ``provider_options["tools"]`` are built-in tools that the API runs itself (``{"type": "web_search"}``), in
        addition to the agent's; ``["include"]`` is added to ours, and ``["reasoning"]`` (``{"summary": "auto"}``) to
        ``reasoning_effort``.
        """
        wire_names = {"max_tokens": ("max_output_tokens",), "reasoning_effort": ()}
        given = check_all_settings("openai-responses", settings, provider_options, wire_names, RESERVED_OPTIONS)
        if given.get("max_tokens", _MIN_OUTPUT_TOKENS) < _MIN_OUTPUT_TOKENS:
            raise SettingsError(
                f"Setting 'max_tokens' for provider 'openai-responses' must be at least {_MIN_OUTPUT_TOKENS}."
            )
        _check_merged_options(given, provider_options)

    async def stream(self, request: ModelRequest) -> AsyncIterator[StreamEvent]:
        """Call the model once. Raises ``ProviderError``; ``AuthenticationError`` also if no key is set."""
        async with self._open_call(request) as call:
            reply = ResponsesReply(self.host, self.origin, self.key_name, model=request.model)
            async with aclosing(await self._request_reply(call, request)) as response:
                call.reply_started = True
                events = self._read_stream(response)
                async for event in events:
                    for delta in reply.feed(event):
                        yield delta
                    if reply.is_ended:
                        await drain_stream(events, _STREAM_END_TIMEOUT)
                        break
            yield self.translate_tools(request.model, request.tools).restore(reply.complete())

    async def _request_reply(self, call: EndpointCall[Any], request: ModelRequest) -> Any:
        """Send the request, and once more without what the API refuses before anything is paid for.

        Models that do not reason refuse to be asked for encrypted reasoning, and only they know who they are: they are
        asked without it from then on. Reasoning that cannot be decrypted any more (another organisation's key, a fault
        of the API) would end the conversation for good: it continues without.
        """
        origin, encrypted = self.origin, request.model not in self._plain_models
        insists = ENCRYPTED_REASONING in request.provider_options.get("include", ())
        while True:
            try:
                call.body = encode_request(request, origin=origin, encrypted=encrypted)
                return await self._post_request(call, "/responses")
            except ProviderError as error:
                if error.status != 400:
                    raise
                if encrypted and not insists and _ENCRYPTION_UNSUPPORTED_TEXT.search(str(error)):
                    self._plain_models.add(request.model)
                    encrypted = False
                elif origin and _ENCRYPTION_INVALID_TEXT.search(str(error)):
                    origin = ""  # a server that gave nothing: all opaque data is foreign to it
                else:
                    raise
