"""OpenAI's Responses API, and every endpoint that speaks it, through the official SDK."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..errors import MalformedReplyError, ProviderError, SettingsError, TruncatedStreamError
from ..ports import Completed, ModelRequest, StreamEvent, TextDelta, ThinkingDelta, ToolCallDelta
from ..types.messages import FinishReason, OpaquePart, Part, TextPart, ToolCallPart, Usage, clean_text
from .encoding import StreamedText
from .endpoint import Endpoint
from .errors import build_stream_error, mark_refused_content
from .json_values import read_count, read_object
from .openai_responses_request import ENCRYPTED_REASONING, RESERVED_OPTIONS, encode_request, encode_settings, read_item
from .openai_sdk import create_client, post_request, read_stream, translate_error
from .settings import check_canonical_settings, check_provider_options

if TYPE_CHECKING:
    from openai import AsyncOpenAI, AsyncStream


# ---
# A streamed response, put together: events in, deltas out, ``Completed`` at the end.
#
# The event that ends the response has all of it, and that counts; what came before is for those who watch.


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


class ResponsesReply:
    """One reply under assembly. ``endpoint`` names the API in errors; ``origin`` and ``model`` mark what is opaque."""

    def __init__(self, endpoint: str, *, origin: str, model: str) -> None:
        self._endpoint = endpoint
        self._origin = origin
        self._model = model
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
        if not isinstance(event, Mapping):
            raise MalformedReplyError(f"{self._endpoint} sent an event that is no JSON object: {str(event)[:200]!r}")
        if event.get("object") == "response":  # an answer that is no stream
            event = {"type": f"response.{event.get('status')}", "response": event}
        kind = event.get("type")
        if kind == "error" or (event.get("error") and not kind):
            raise build_stream_error(event.get("error") or {**event, "type": None}, "", self._endpoint)
        index = read_count(event, "output_index")
        match kind:
            case "response.output_text.delta" | "response.refusal.delta":
                if shown := self._text.add(_read_event_string(event, "delta")):
                    yield TextDelta(shown)
            case "response.reasoning_summary_text.delta":
                yield from self._feed_thinking(event, (index, read_count(event, "summary_index")))
            case "response.reasoning_text.delta":
                yield from self._feed_thinking(event, (index, -1))
            case "response.output_item.added":
                yield from self._feed_item(index, event.get("item"))
            case "response.function_call_arguments.delta":
                yield self._feed_arguments(index, _read_event_string(event, "delta"))
            case "response.function_call_arguments.done":
                if index not in self._calls or not self._calls[index].has_arguments:
                    yield self._feed_arguments(index, _read_event_string(event, "arguments"))
            case "response.output_item.done":
                if isinstance(item := event.get("item"), Mapping):
                    self._finished_items[index] = item
            case str() if kind.removeprefix("response.") in _FINAL_STATUSES:
                self._finish(event.get("response"))
            case _:
                pass  # beginnings, annotations, progress of built-in tools, and what the API will think of next

    def _feed_thinking(self, event: Mapping[str, Any], at: tuple[int, int]) -> Iterator[StreamEvent]:
        piece = _read_event_string(event, "delta")
        if self._thinking_position not in (None, at):
            piece = "\n\n" + piece  # the next part of a summary is a paragraph of its own
        self._thinking_position = at
        if shown := self._thinking.add(piece):
            yield ThinkingDelta(shown)

    def _feed_item(self, index: int, item: object) -> Iterator[StreamEvent]:
        if isinstance(item, Mapping) and item.get("type") == "function_call":
            call = _StreamedCall(
                len(self._calls),
                clean_text(_read_event_string(item, "call_id")),
                clean_text(_read_event_string(item, "name")),
            )
            self._calls[index] = call
            yield ToolCallDelta(call.index, call.id, call.name, "")

    def _feed_arguments(self, index: int, piece: str) -> ToolCallDelta:
        call = self._calls.setdefault(index, _StreamedCall(len(self._calls), "", ""))
        call.has_arguments = True
        return ToolCallDelta(call.index, call.id, call.name, clean_text(piece))

    def _finish(self, response: object) -> None:
        if not isinstance(response, Mapping):
            raise MalformedReplyError(f"{self._endpoint} ended the reply without saying how")
        if response.get("status") in ("failed", "cancelled") or response.get("error"):
            said = f"the response is {response.get('status')}"
            raise build_stream_error(response.get("error") or {"message": said}, said, self._endpoint)
        self._response = response

    def complete(self) -> Completed:
        """The whole reply. Raises ``TruncatedStreamError`` when the stream never said that it was the end."""
        if self._response is None:
            raise TruncatedStreamError(f"{self._endpoint} ended the stream before the reply was complete")
        usage = self._response.get("usage")
        parts = self._build_parts(self._response)
        return Completed(
            tuple(parts),
            self._resolve_finish_reason(self._response, parts),
            read_usage(usage) if isinstance(usage, Mapping) else Usage(),
            _read_event_string(self._response, "model"),
            origin=self._origin,
        )

    def _build_parts(self, response: Mapping[str, Any]) -> list[Part]:
        output = response.get("output")
        # Some servers leave the output of the last event empty: then the items as they were said to be done.
        items = (
            output
            if isinstance(output, list) and output
            else [self._finished_items[index] for index in sorted(self._finished_items)]
        )
        parts: list[Part] = []
        for item in items:
            if not isinstance(item, Mapping):
                raise MalformedReplyError(f"{self._endpoint} sent an item that is no JSON object: {str(item)[:200]!r}")
            read = read_item(item, origin=self._origin, model=self._model)
            if response.get("status") != "completed":
                read = [part for part in read if not _is_unfinished(part, item)]
            parts.extend(read)
        return parts

    def _resolve_finish_reason(self, response: Mapping[str, Any], parts: list[Part]) -> FinishReason:
        if response.get("status") != "completed":
            details = response.get("incomplete_details")
            reason = details.get("reason") if isinstance(details, Mapping) else None
            return _INCOMPLETE_FINISH_REASONS.get(str(reason), "other")
        if any(isinstance(part, ToolCallPart) for part in parts):
            return "tool_calls"
        refused = any(isinstance(part, TextPart) and (part.opaque or {}).get("refusal") for part in parts)
        return "refusal" if refused else "stop"


def _is_unfinished(part: Part, item: Mapping[str, Any]) -> bool:
    """Whether it is a call, or the work of a built-in tool, that the reply's early end left unfinished.

    A call that runs without having been finished would do something else than was meant; the API does not take back
    the rest. Text stays: it is what there is.
    """
    if isinstance(part, ToolCallPart):
        return part.malformed is not None or item.get("status") not in (None, "completed")
    return isinstance(part, OpaquePart) and item.get("status") not in (None, "completed", "failed")


def read_usage(usage: Mapping[str, Any]) -> Usage:
    """Usage as the API counts it; what is missing is 0."""
    read, written = read_object(usage, "input_tokens_details"), read_object(usage, "output_tokens_details")
    return Usage(
        input_tokens=read_count(usage, "input_tokens"),
        output_tokens=read_count(usage, "output_tokens"),
        cached_tokens=read_count(read, "cached_tokens"),
        reasoning_tokens=read_count(written, "reasoning_tokens"),
        cache_write_tokens=read_count(read, "cache_write_tokens"),
    )


def _read_event_string(values: Mapping[str, Any], key: str) -> str:
    value = values.get(key)
    return value if isinstance(value, str) else ""


MIN_OUTPUT_TOKENS = 16
"""The API refuses a smaller ``max_output_tokens``."""

_CALLER_TOOLS = {
    "function": "a tool of the agent (Agent(tools=[…]))",
    "custom": "a tool of the agent (Agent(tools=[…]))",
    "namespace": "a tool of the agent (Agent(tools=[…]))",
    "computer": "run by the caller",
    "computer_use_preview": "run by the caller",
    "local_shell": "run by the caller",
    "apply_patch": "run by the caller",
}
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
"""Seconds for the end of the stream behind the end of the reply. With it the connection can be used again."""


def check_settings(settings: Mapping[str, Any], provider_options: Mapping[str, Any]) -> None:
    """Whether the Responses API has these ``settings``, and ``provider_options`` do not meet them.

    ``provider_options["tools"]`` are built-in tools that the API runs itself (``{"type": "web_search"}``), beside those
    of the agent; ``["include"]`` is added to ours, and ``["reasoning"]`` (``{"summary": "auto"}``) to
    ``reasoning_effort``. Needs no SDK, so an agent is checked where it is defined. Raises ``SettingsError``.
    """
    given = check_canonical_settings("openai-responses", settings)
    if given.get("max_tokens", MIN_OUTPUT_TOKENS) < MIN_OUTPUT_TOKENS:
        raise SettingsError(f"Setting 'max_tokens' for provider 'openai-responses' is at least {MIN_OUTPUT_TOKENS}.")
    taken = dict(RESERVED_OPTIONS) | {
        key: f"settings[{key!r}]" for key in encode_settings(given) if key not in _MERGED_OPTIONS
    }
    if "max_tokens" in given:
        taken["max_output_tokens"] = "settings['max_tokens']"
    check_provider_options("openai-responses", provider_options, taken)
    _check_merged_options(given, provider_options)


def _check_merged_options(given: Mapping[str, Any], options: Mapping[str, Any]) -> None:
    about = "for provider 'openai-responses'"
    for key, shape in _MERGED_OPTIONS.items():
        if not isinstance(options.get(key, shape()), shape):
            raise SettingsError(f"provider_options[{key!r}] {about} is a {shape.__name__}, not {options[key]!r}.")
    if "reasoning_effort" in given and "effort" in options.get("reasoning", {}):
        raise SettingsError(
            f"provider_options['reasoning']['effort'] {about} collides: settings['reasoning_effort'] sets it."
        )
    for tool in options.get("tools", ()):
        kind = tool.get("type") if isinstance(tool, Mapping) else None
        if not isinstance(kind, str):
            raise SettingsError(f"provider_options['tools'] {about} has objects with a type, not {tool!r}.")
        if kind in _CALLER_TOOLS:
            raise SettingsError(
                f"provider_options['tools'] {about}: {kind!r} is {_CALLER_TOOLS[kind]}.",
                hint="What the API runs itself is given here, for instance {'type': 'web_search'}.",
            )


class OpenAIResponses(Endpoint["AsyncOpenAI"]):
    """The ``openai-responses`` provider.

    ``base_url`` is any compatible endpoint; without one ``OPENAI_BASE_URL`` or OpenAI itself. The key is
    ``api_key``, or read from the variable ``api_key_env`` (``OPENAI_API_KEY``) with each call. ``timeout`` is how many
    seconds the API may be silent. ``headers`` are sent with every request.

    The API stores nothing: reasoning comes encrypted, is kept in the transcript, and goes back to the model that it is
    of. An instance may be used from several event loops; each gets an SDK client of its own with its first call.
    """

    format = "openai-responses"
    extra = "openai"
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
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(base_url, api_key, api_key_env, timeout=timeout, headers=headers)
        self._plain_models: set[str] = set()

    def check_settings(self, settings: Mapping[str, Any], provider_options: Mapping[str, Any]) -> None:
        """See :func:`check_settings`."""
        check_settings(settings, provider_options)

    async def stream(self, request: ModelRequest) -> AsyncIterator[StreamEvent]:
        """Call the model once. Raises ``ProviderError``; ``AuthenticationError`` also where no key is set."""
        key, host, begun = self._read_key(), self.host, False
        bodies: list[bytes] = []
        try:
            client = await self._get_client(key)
            reply = ResponsesReply(host, origin=self.origin, model=request.model)
            async with await self._post_request(client, request, bodies) as stream:
                begun = True
                events = read_stream(stream, host)
                async for event in events:
                    for delta in reply.feed(event):
                        yield delta
                    if reply.is_ended:
                        break
                # The reply is whole and paid for: whatever becomes of the connection now does not matter.
                with contextlib.suppress(Exception):
                    async with asyncio.timeout(_STREAM_END_TIMEOUT):
                        async for _ in events:
                            pass
            yield reply.complete()
        except Exception as error:
            found = self._build_provider_error(error, request, key, begun)
            raise mark_refused_content(found, bodies[-1] if bodies else None) from None

    def _translate_error(self, error: Exception, begun: bool) -> ProviderError:
        return translate_error(error, begun=begun, endpoint=self.host, key_name=self.key_name)

    async def _post_request(
        self, client: AsyncOpenAI, request: ModelRequest, bodies: list[bytes]
    ) -> AsyncStream[object]:
        """Ask, and ask once more without what the API refuses before anything is paid for.

        Models that do not reason refuse to be asked for encrypted reasoning, and only they know who they are: they are
        asked without it from then on. Reasoning that cannot be decrypted any more (another organisation's key, a fault
        on their side) would end the conversation for good: it goes on without. ``bodies`` gets what was sent.
        """
        from openai import BadRequestError  # imported by the client before

        origin, encrypted = self.origin, request.model not in self._plain_models
        insists = ENCRYPTED_REASONING in request.provider_options.get("include", ())
        while True:
            try:
                bodies.append(encode_request(request, origin=origin, encrypted=encrypted))
                return await post_request(client, "/responses", bodies[-1])
            except BadRequestError as error:
                if encrypted and not insists and _ENCRYPTION_UNSUPPORTED_TEXT.search(str(error)):
                    self._plain_models.add(request.model)
                    encrypted = False
                elif origin and _ENCRYPTION_INVALID_TEXT.search(str(error)):
                    origin = ""  # nobody's: everything opaque is foreign to it
                else:
                    raise

    def _create_client(self, key: str) -> AsyncOpenAI:
        return create_client(key, self.base_url, self._timeout, self._headers)
