"""A model that says what a test tells it to: the shipped fake of the ``Provider`` port."""

from __future__ import annotations

import inspect
import itertools
import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from typing import Any

from ..errors import BadRequestError, ProviderError
from ..ports import Completed, ModelRequest, StreamEvent, TextDelta, ThinkingDelta, ToolCallDelta
from ..types.messages import Part, TextPart, ThinkingPart, ToolCallPart, ToolResultPart, Usage

PlainReply = str | ToolCallPart | Sequence["str | ToolCallPart"] | Completed | Exception
"""Text, a call, several of both, a whole reply, or an error that the call ends with."""
Reply = PlainReply | Callable[[ModelRequest], "PlainReply | Awaitable[PlainReply]"]
"""One of them, or a function of the request that returns one."""

_PIECES = re.compile(r"\S+\s*|\s+")


def call(name: str, /, **arguments: Any) -> ToolCallPart:
    """A call of tool ``name``; the provider gives it an id."""
    return ToolCallPart(id="", name=name, arguments=arguments)


class ScriptedProvider:
    """Answers each request with the next of ``replies``; one callable in place of the list answers them all.

    ``requests`` keeps what was asked. Text streams word by word; usage counts words. A request after the last
    reply raises ``BadRequestError``. An exception that is no ``ProviderError`` is raised as it is.

        provider = ScriptedProvider([call("add", a=1, b=2), lambda request: f"It is {request.messages[-1]…}"])
        register_provider("scripted", provider)
    """

    def __init__(self, replies: Iterable[Reply] | Callable[[ModelRequest], PlainReply | Awaitable[PlainReply]]) -> None:
        self._replies = itertools.repeat(replies) if callable(replies) else iter(list(replies))
        self._ids = itertools.count(1)
        self.requests: list[ModelRequest] = []

    async def stream(self, request: ModelRequest) -> AsyncIterator[StreamEvent]:
        """The next reply, streamed."""
        self.requests.append(request)
        reply = next(self._replies, None)
        if reply is None:
            raise BadRequestError(f"The script has {len(self.requests) - 1} replies; this is one request more.")
        if callable(reply):
            answer = reply(request)
            reply = await answer if inspect.isawaitable(answer) else answer
        if isinstance(reply, Exception):
            raise reply
        completed = self._complete(reply, request)
        for event in _deltas(completed.parts):
            yield event
        yield completed

    def _complete(self, reply: PlainReply, request: ModelRequest) -> Completed:
        if isinstance(reply, Completed):
            return reply
        if isinstance(reply, Exception):
            raise ProviderError(f"A scripted exception cannot be part of a reply: {reply!r}")
        pieces = [reply] if isinstance(reply, str | ToolCallPart) else list(reply)
        parts = tuple(self._part(piece) for piece in pieces)
        calls = any(isinstance(part, ToolCallPart) for part in parts)
        usage = Usage(input_tokens=_words(request), output_tokens=max(1, sum(map(_weight, parts))))
        return Completed(parts, "tool_calls" if calls else "stop", usage, request.model)

    def _part(self, piece: str | ToolCallPart) -> Part:
        if isinstance(piece, str):
            return TextPart(text=piece)
        return piece if piece.id else piece.model_copy(update={"id": f"call_{next(self._ids)}"})


def _deltas(parts: Iterable[Part]) -> Iterable[StreamEvent]:
    index = 0
    for part in parts:
        if isinstance(part, TextPart):
            yield from (TextDelta(piece) for piece in _PIECES.findall(part.text))
        elif isinstance(part, ThinkingPart):
            yield ThinkingDelta(part.text)
        elif isinstance(part, ToolCallPart):
            # Arguments are raw JSON on the wire, malformed or not.
            raw = part.malformed if part.malformed is not None else _json(part.arguments)
            yield ToolCallDelta(index, part.id, part.name, raw)
            index += 1


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def _weight(part: Part) -> int:
    if isinstance(part, ToolCallPart):
        return 1 + len(_json(part.arguments).split())
    return len((part.content if isinstance(part, ToolResultPart) else part.text).split())


def _words(request: ModelRequest) -> int:
    return sum(_weight(part) for message in request.messages for part in message.parts)
