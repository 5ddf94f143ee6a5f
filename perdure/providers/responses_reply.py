"""A streamed response, put together: events in, deltas out, ``Completed`` at the end.

The event that ends the response has all of it, and that counts; what came before is for those who watch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ..errors import MalformedReplyError, TruncatedStreamError
from ..ports import Completed, StreamEvent, TextDelta, ThinkingDelta, ToolCallDelta
from ..types.messages import FinishReason, OpaquePart, Part, TextPart, ToolCallPart, Usage, clean
from .classify import in_stream
from .encoding import Text
from .plain import count, mapping
from .responses_items import read_item

_INCOMPLETE: dict[str, FinishReason] = {"max_output_tokens": "length", "content_filter": "content_filter"}
_ENDS = ("completed", "incomplete", "failed", "cancelled")


@dataclass(slots=True)
class _Call:
    index: int
    id: str
    name: str
    begun: bool = False
    """Some of its arguments were streamed."""


class ResponsesReply:
    """One reply under assembly. ``endpoint`` names the API in errors; ``origin`` and ``model`` mark what is opaque."""

    def __init__(self, endpoint: str, *, origin: str, model: str) -> None:
        self._endpoint = endpoint
        self._origin = origin
        self._model = model
        self._text = Text()
        self._thinking = Text()
        self._thought_at: tuple[int, int] | None = None
        self._calls: dict[int, _Call] = {}
        self._done: dict[int, Mapping[str, Any]] = {}
        self._response: Mapping[str, Any] | None = None

    @property
    def ended(self) -> bool:
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
            raise in_stream(event.get("error") or {**event, "type": None}, "", self._endpoint)
        index = count(event, "output_index")
        match kind:
            case "response.output_text.delta" | "response.refusal.delta":
                if shown := self._text.add(_string(event, "delta")):
                    yield TextDelta(shown)
            case "response.reasoning_summary_text.delta":
                yield from self._think(event, (index, count(event, "summary_index")))
            case "response.reasoning_text.delta":
                yield from self._think(event, (index, -1))
            case "response.output_item.added":
                yield from self._added(index, event.get("item"))
            case "response.function_call_arguments.delta":
                yield self._argue(index, _string(event, "delta"))
            case "response.function_call_arguments.done":
                if index not in self._calls or not self._calls[index].begun:
                    yield self._argue(index, _string(event, "arguments"))
            case "response.output_item.done":
                if isinstance(item := event.get("item"), Mapping):
                    self._done[index] = item
            case str() if kind.removeprefix("response.") in _ENDS:
                self._end(event.get("response"))
            case _:
                pass  # beginnings, annotations, progress of built-in tools, and what the API will think of next

    def _think(self, event: Mapping[str, Any], at: tuple[int, int]) -> Iterator[StreamEvent]:
        piece = _string(event, "delta")
        if self._thought_at not in (None, at):
            piece = "\n\n" + piece  # the next part of a summary is a paragraph of its own
        self._thought_at = at
        if shown := self._thinking.add(piece):
            yield ThinkingDelta(shown)

    def _added(self, index: int, item: object) -> Iterator[StreamEvent]:
        if isinstance(item, Mapping) and item.get("type") == "function_call":
            call = _Call(len(self._calls), clean(_string(item, "call_id")), clean(_string(item, "name")))
            self._calls[index] = call
            yield ToolCallDelta(call.index, call.id, call.name, "")

    def _argue(self, index: int, piece: str) -> ToolCallDelta:
        call = self._calls.setdefault(index, _Call(len(self._calls), "", ""))
        call.begun = True
        return ToolCallDelta(call.index, call.id, call.name, clean(piece))

    def _end(self, response: object) -> None:
        if not isinstance(response, Mapping):
            raise MalformedReplyError(f"{self._endpoint} ended the reply without saying how")
        if response.get("status") in ("failed", "cancelled") or response.get("error"):
            said = f"the response is {response.get('status')}"
            raise in_stream(response.get("error") or {"message": said}, said, self._endpoint)
        self._response = response

    def complete(self) -> Completed:
        """The whole reply. Raises ``TruncatedStreamError`` when the stream never said that it was the end."""
        if self._response is None:
            raise TruncatedStreamError(f"{self._endpoint} ended the stream before the reply was complete")
        usage = self._response.get("usage")
        parts = self._parts(self._response)
        return Completed(
            tuple(parts),
            self._finish_reason(self._response, parts),
            read_usage(usage) if isinstance(usage, Mapping) else Usage(),
            _string(self._response, "model"),
            origin=self._origin,
        )

    def _parts(self, response: Mapping[str, Any]) -> list[Part]:
        output = response.get("output")
        # Some servers leave the output of the last event empty: then the items as they were said to be done.
        items = output if isinstance(output, list) and output else [self._done[index] for index in sorted(self._done)]
        parts: list[Part] = []
        for item in items:
            if not isinstance(item, Mapping):
                raise MalformedReplyError(f"{self._endpoint} sent an item that is no JSON object: {str(item)[:200]!r}")
            read = read_item(item, origin=self._origin, model=self._model)
            if response.get("status") != "completed":
                read = [part for part in read if not _broken_off(part, item)]
            parts.extend(read)
        return parts

    def _finish_reason(self, response: Mapping[str, Any], parts: list[Part]) -> FinishReason:
        if response.get("status") != "completed":
            details = response.get("incomplete_details")
            reason = details.get("reason") if isinstance(details, Mapping) else None
            return _INCOMPLETE.get(str(reason), "other")
        if any(isinstance(part, ToolCallPart) for part in parts):
            return "tool_calls"
        refused = any(isinstance(part, TextPart) and (part.opaque or {}).get("refusal") for part in parts)
        return "refusal" if refused else "stop"


def _broken_off(part: Part, item: Mapping[str, Any]) -> bool:
    """Whether it is a call, or the work of a built-in tool, that the reply's early end left unfinished.

    A call that runs without having been finished would do something else than was meant; the API does not take back
    the rest. Text stays: it is what there is.
    """
    if isinstance(part, ToolCallPart):
        return part.malformed is not None or item.get("status") not in (None, "completed")
    return isinstance(part, OpaquePart) and item.get("status") not in (None, "completed", "failed")


def read_usage(usage: Mapping[str, Any]) -> Usage:
    """Usage as the API counts it; what is missing is 0."""
    read, written = mapping(usage, "input_tokens_details"), mapping(usage, "output_tokens_details")
    return Usage(
        input_tokens=count(usage, "input_tokens"),
        output_tokens=count(usage, "output_tokens"),
        cached_tokens=count(read, "cached_tokens"),
        reasoning_tokens=count(written, "reasoning_tokens"),
        cache_write_tokens=count(read, "cache_write_tokens"),
    )


def _string(values: Mapping[str, Any], key: str) -> str:
    value = values.get(key)
    return value if isinstance(value, str) else ""
