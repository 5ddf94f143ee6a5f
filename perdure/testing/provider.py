"""A model that says what a test tells it to: the shipped fake of the ``Provider`` port."""

from __future__ import annotations

import inspect
import itertools
import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from ..errors import BadRequestError, ProviderError
from ..ports import Completed, ModelRequest, StreamEvent, TextDelta, ThinkingDelta, ToolCallDelta
from ..types.interface import FINISH_TOOL
from ..types.messages import Part, TextPart, ThinkingPart, ToolCallPart, ToolResultPart, Usage
from .faults import Fault

PlainReply = str | ToolCallPart | Sequence["str | ToolCallPart"] | Completed | Exception | Fault
"""Text, a call, several of both, a whole reply, an error that the call ends with, or a fault (see ``faults``)."""
Reply = PlainReply | Callable[[ModelRequest], "PlainReply | Awaitable[PlainReply]"]
"""One of them, or a function of the request that returns one."""

_PIECES = re.compile(r"\S+\s*|\s+")


def call(name: str, /, **arguments: Any) -> ToolCallPart:
    """A call of tool ``name``; the provider gives it an id."""
    return ToolCallPart(id="", name=name, arguments=arguments)


def finish(**fields: Any) -> ToolCallPart:
    """The answer of an agent whose output is a type: ``finish(city="Oslo")``; of one that is no object
    ``finish(value=[1, 2])``, of text ``finish(content="…")``."""
    return call(FINISH_TOOL, **fields)


class ScriptError(BadRequestError):
    """The script and what the model was asked do not go together: replies are missing, or left over."""


class ScriptedProvider:
    """Answers each request with the next of ``replies``; one callable in place of the list answers them all.

    ``requests`` keeps what was asked. Text streams word by word; usage counts words. A request after the last
    reply raises ``ScriptError``. An exception that is no ``ProviderError`` is raised as it is.

        provider = ScriptedProvider([call("add", a=1, b=2), lambda request: f"It is {request.messages[-1]…}"])
        register_provider("scripted", provider)
    """

    def __init__(self, replies: Iterable[Reply] | Callable[[ModelRequest], PlainReply | Awaitable[PlainReply]]) -> None:
        if isinstance(replies, str | ToolCallPart):  # a text would be a reply per letter
            raise TypeError(f"the replies are a list, or one function for all of them: [{replies!r}]")
        listed: list[Reply] | None = None if callable(replies) else list(replies)
        self._count = None if listed is None else len(listed)
        self._replies: Iterator[Reply] = itertools.repeat(replies) if callable(replies) else iter(listed or ())
        self._ids = itertools.count(1)
        self.requests: list[ModelRequest] = []

    async def stream(self, request: ModelRequest) -> AsyncIterator[StreamEvent]:
        """The next reply, streamed."""
        self.requests.append(request)
        reply = next(self._replies, None)
        if reply is None:
            raise ScriptError(self.unfit() or "The script has no reply for this request.")
        if callable(reply):
            answer = reply(request)
            reply = await answer if inspect.isawaitable(answer) else answer
        if isinstance(reply, Exception):
            raise reply
        fault = reply if isinstance(reply, Fault) else None
        completed = None if fault and fault.reply is None else self._complete(fault.reply if fault else reply, request)
        events = _deltas(completed.parts) if completed else ()
        for event in events if fault is None or fault.after is None else _first(fault.after, events):
            yield event
        if fault is not None:
            await fault.happens()
        elif completed is not None:
            yield completed

    def unfit(self) -> str | None:
        """What does not go together so far: how many replies were not asked for, or are missing."""
        if self._count is None or len(self.requests) == self._count:
            return None
        asked, has = len(self.requests), f"The script has {_plural(self._count, 'reply', 'replies')}"
        if asked < self._count:
            return f"{has}; {self._count - asked} of them {_was(self._count - asked)} not asked for."
        said = self.requests[-1].messages[-1].text or self.requests[-1].messages[-1].parts
        return f"{has}, and the model was asked {asked} times; the last time it was told: {said!s:.200}"

    def _complete(self, reply: Any, request: ModelRequest) -> Completed:
        if isinstance(reply, Completed):
            return reply
        if isinstance(reply, Exception | Fault):
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


def _plural(count: int, one: str, many: str) -> str:
    return f"{count} {one if count == 1 else many}"


def _was(count: int) -> str:
    return "was" if count == 1 else "were"


def _first(size: int, events: Iterable[StreamEvent]) -> Iterator[StreamEvent]:
    """The events up to ``size`` bytes of UTF-8 in texts and arguments."""
    for event in events:
        name = "arguments" if isinstance(event, ToolCallDelta) else "text"
        body = getattr(event, name).encode()
        if len(body) > size:
            if size > 0:
                yield replace(event, **{name: body[:size].decode(errors="ignore")})
            return
        size -= len(body)
        yield event


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
    if isinstance(part, ToolResultPart):
        return len(part.content.split()) + len(part.files)
    if isinstance(part, TextPart | ThinkingPart):
        return len(part.text.split())
    return 1


def _words(request: ModelRequest) -> int:
    return sum(_weight(part) for message in request.messages for part in message.parts)
