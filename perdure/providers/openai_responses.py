"""OpenAI's Responses API, and every endpoint that speaks it, through the official SDK."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import aclosing
from functools import cached_property
from typing import Any

from ..errors import MalformedReplyError, ProviderError, SettingsError
from ..ports.model import Completed, ModelRequest, StreamEvent, TextDelta, ThinkingDelta, ToolCallDelta
from ..types.messages import OpaquePart, Part, TextPart, ToolCallPart, clean_text
from .dialects import Dialect
from .endpoint import EndpointCall
from .errors import build_stream_error
from .finish_reasons import Ending, read_ending, require_reply
from .openai_responses_request import ENCRYPTED_REASONING, RESERVED_OPTIONS, encode_request, read_item
from .reply import StreamedReply, StreamedText, read_array, read_count, read_object, read_string
from .sdk import OpenAIEndpoint, drain_stream, read_openai_usage
from .settings import check_all_settings
from .tool_call_stream import ToolCallSlots, drop_repeated_calls, read_argument_text

# ---
# A streamed response: events in, deltas out, ``Completed`` at the end.
#
# The last event has the whole response, and that counts. Some servers leave items out of it: those are taken from the
# events before.


_FINAL_STATUSES = ("completed", "incomplete", "failed", "cancelled")


class ResponsesReply(StreamedReply):
    """One reply under assembly. ``origin`` and ``model``, the requested name, mark opaque data."""

    def __init__(self, endpoint: str, origin: str, key_name: str = "the key", *, model: str) -> None:
        super().__init__(endpoint, origin, key_name)
        self._requested_model = model
        self._text = StreamedText()
        self._thinking = StreamedText()
        self._thinking_position: tuple[int, int] | None = None
        self._calls = ToolCallSlots()
        self._call_ids: dict[str, str] = {}  # by the ids of their items
        self._texts: dict[int, StreamedText] = {}
        self._finished_items: list[tuple[int, Mapping[str, Any]]] = []
        self._response: Mapping[str, Any] | None = None
        self._status = ""

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
                if kind == "response.output_text.delta":
                    self._texts.setdefault(index, StreamedText()).add(delta)
                if shown := self._text.add(delta):
                    yield TextDelta(shown)
            case "response.reasoning_summary_text.delta":
                yield from self._feed_thinking(delta, (index, read_count(event, "summary_index")))
            case "response.reasoning_text.delta":
                yield from self._feed_thinking(delta, (index, -1))
            case "response.output_item.added":
                item = read_object(event.get("item"))
                if item.get("type") == "function_call":
                    self._call_ids[read_string(item.get("id"))] = read_string(item.get("call_id"))
                    yield from self._feed_call(event, item.get("arguments"), read_string(item.get("name")), item)
            case "response.function_call_arguments.delta":
                yield from self._feed_call(event, delta)
            case "response.function_call_arguments.done":
                yield from self._feed_call(event, event.get("arguments"), is_whole=True)
            case "response.output_item.done":
                if isinstance(finished := event.get("item"), dict):
                    self._finished_items.append((index, finished))
            case str() if kind.removeprefix("response.") in _FINAL_STATUSES:
                self._status = kind.removeprefix("response.")
                self._finish(event.get("response"))
            case "response.done":  # of gateways: the status is that of the response
                self._status = read_string(read_object(event.get("response")).get("status")) or "completed"
                self._finish(event.get("response"))
            case _:
                pass  # beginnings, annotations, progress of built-in tools, and future events

    def _feed_thinking(self, piece: str, position: tuple[int, int]) -> Iterator[StreamEvent]:
        if self._thinking_position not in (None, position):
            piece = "\n\n" + piece  # the next part of a summary is a paragraph of its own
        self._thinking_position = position
        if shown := self._thinking.add(piece):
            yield ThinkingDelta(shown)

    def _feed_call(
        self,
        event: Mapping[str, Any],
        arguments: object,
        name: str = "",
        item: Mapping[str, Any] | None = None,
        *,
        is_whole: bool = False,
    ) -> Iterator[ToolCallDelta]:
        """A piece of a call, or with ``item`` its beginning. ``is_whole``: they are all its arguments."""
        item_id = read_string((item or {}).get("id")) or read_string(event.get("item_id"))
        call_id = self._call_ids.get(item_id, "")
        piece = {"index": event.get("output_index"), "id": call_id, "name": name, "arguments": arguments}
        self._calls.begin_chunk()
        if (added := self._calls.add(piece, is_whole=is_whole)) is not None:
            slot, text = added
            yield ToolCallDelta(slot.index, slot.id, slot.name, clean_text(text))

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
        status = read_string(response.get("status")) or self._status
        details = read_object(response.get("incomplete_details"))
        word = read_string(details.get("reason")) or status if status == "incomplete" else status
        ending = read_ending(word)
        reason = require_reply(ending, self._endpoint, word)
        parts: list[Part] = []
        for item in self._collect_items(response.get("output")):
            item = self._require_object(item, "an item")
            for part in read_item(item, origin=self._origin, model=self._requested_model):
                parts += [part] if ending.kind == "complete" else _read_unfinished(part, item, ending)
        parts = drop_repeated_calls(parts)
        if ending.kind == "complete":
            if any(isinstance(part, ToolCallPart) for part in parts):
                reason = "tool_calls"
            elif any(isinstance(part, TextPart) and (part.opaque or {}).get("refusal") for part in parts):
                reason = "refusal"
        usage = read_openai_usage(read_object(response.get("usage")), "input", "output")
        return Completed(tuple(parts), reason, usage, read_string(response.get("model")), origin=self._origin)

    def _collect_items(self, output: object) -> list[Any]:
        """The items of the last event, and those that were streamed and are missing there."""
        items = list(read_array(output))
        streamed = self._list_streamed_items()
        # Some servers give items other ids in their last event: what is of its kind there is not missing.
        present = [item for item in items if isinstance(item, dict)]
        for is_same in (_is_same_item, _is_same_call, _is_same_kind):
            missing: list[tuple[int, Mapping[str, Any]]] = []
            for index, item in streamed:
                found = next((each for each in present if is_same(item, each)), None)
                if found is None:
                    missing.append((index, item))
                    continue
                present = [each for each in present if each is not found]
                if _lacks_content(found):
                    place = next(place for place, each in enumerate(items) if each is found)
                    items[place] = {**found, **item}
            streamed = missing
        for index, item in sorted(streamed, key=lambda each: each[0]):
            items.insert(index, item)
        return items

    def _list_streamed_items(self) -> list[tuple[int, Mapping[str, Any]]]:
        """The items as they were streamed, with their places: those that the server called done, and the others."""
        streamed = [*self._finished_items]
        for slot in self._calls:
            item = {"type": "function_call", "call_id": slot.id, "name": slot.name}
            item["arguments"] = clean_text(slot.arguments.text)
            item["status"] = "completed" if slot.is_closed else "incomplete"
            finished = [each for _, each in self._finished_items]
            if not any(_is_same_item(item, each) or _is_same_call(item, each) for each in finished):
                streamed.append((slot.wire_index or 0, item))
        places = [place for place, each in self._finished_items if each.get("type") == "message"]
        for place, text in self._texts.items():
            if place not in places:
                content = [{"type": "output_text", "text": text.join_text()}]
                streamed.append((place, {"type": "message", "role": "assistant", "content": content}))
        return streamed


def _is_same_item(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    keys = [key for key in ("id", "call_id") if one.get(key) and other.get(key)]
    return one.get("type") == other.get("type") and any(one[key] == other[key] for key in keys)


def _is_same_call(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    texts = [read_argument_text(each.get("arguments")) for each in (one, other)]
    return _is_same_kind(one, other) and "name" in one and texts[0] == texts[1]


def _is_same_kind(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    return one.get("type") == other.get("type") and one.get("name") == other.get("name")


def _lacks_content(item: Mapping[str, Any]) -> bool:
    """Whether it is a call without arguments, or a message without content: they may have been streamed."""
    key = {"function_call": "arguments", "message": "content"}.get(str(item.get("type")))
    return key is not None and not item.get(key)


def _read_unfinished(part: Part, item: Mapping[str, Any], ending: Ending) -> list[Part]:
    """``part`` of a reply that ended early, if it is to be kept.

    An unfinished call would do something else than was meant: it is marked if the output limit cut it, and the model
    hears of it. The API does not take back unfinished items of its own tools. Text stays.
    """
    if isinstance(part, ToolCallPart):
        if part.malformed is None and item.get("status") in (None, "completed"):
            return [part]
        raw = part.malformed if part.malformed is not None else clean_text(read_argument_text(item.get("arguments")))
        return [part.model_copy(update={"arguments": {}, "malformed": raw})] if ending.kind == "cut" else []
    is_unfinished = isinstance(part, OpaquePart) and item.get("status") not in (None, "completed", "failed")
    return [] if is_unfinished else [part]


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
                call.begin_reply(response.headers.items())
                events = self._read_stream(response)
                async for event in events:
                    for delta in reply.feed(event):
                        yield delta
                    if reply.is_ended:
                        await drain_stream(events, _STREAM_END_TIMEOUT)
                        break
            completed = call.finish(reply.complete())
            yield self.translate_tools(request.model, request.tools).restore(completed)

    async def _request_reply(self, call: EndpointCall[Any], request: ModelRequest) -> Any:
        """Send the request, and once more without what the API refuses before anything is paid for.

        Models that do not reason refuse to be asked for encrypted reasoning, and only they know who they are: they are
        asked without it from then on. Reasoning that cannot be decrypted any more (another organisation's key, a fault
        of the API) would end the conversation for good: it continues without.
        """
        origin, encrypted = self.origin, request.model not in self._plain_models
        insists = ENCRYPTED_REASONING in request.provider_options.get("include", ())

        async def send(dialect: Dialect) -> Any:
            call.body = encode_request(request, origin=origin, encrypted=encrypted, dialect=dialect)
            return await self._post_request(call, "/responses")

        while True:
            try:
                response, _ = await self._post_conceding(call, request, send)
                return response
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
