"""``ScriptedProvider``: the public fake of the ``Provider`` port, which replies from a script; also faults and named
points."""

from __future__ import annotations

import asyncio
import inspect
import itertools
import json
import os
import re
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

from ..errors import BadRequestError, ProviderError
from ..ports import test_seams
from ..ports.model import Completed, ModelRequest, StreamEvent, TextDelta, ThinkingDelta, ToolCallDelta
from ..ports.test_seams import POINTS, Point
from ..types.interface import FINISH_TOOL
from ..types.messages import Part, TextPart, ThinkingPart, ToolCallPart, ToolResultPart, Usage

# ---
# Faults: replies that fail, hang or are cut off, and workers that die at a named point.


@dataclass(frozen=True, slots=True)
class Fault:
    """A scripted reply that is never complete. Made by :func:`fail`, :func:`hang` and :func:`cut`."""

    reply: Any = None
    """The reply of which the first ``after`` bytes are streamed; all of it without ``after``."""
    after: int | None = None
    error: Exception | None = None
    hangs: bool = False

    async def trigger(self) -> None:
        """Raise the error, hang, or return, which ends the stream without a complete reply."""
        if self.error is not None:
            raise self.error
        if self.hangs:
            await asyncio.Event().wait()


def fail(error: Exception, reply: Any = None, *, after: int | None = None) -> Fault:
    """Make the call end with ``error``, after the first ``after`` bytes of ``reply``.

    The engine retries a retryable ``ProviderError``, and the next attempt gets the next reply of the script.
    """
    return Fault(reply, after, error)


def hang(reply: Any = None, *, after: int | None = None) -> Fault:
    """Make the model hang after the first ``after`` bytes of ``reply``, until the call is cancelled."""
    return Fault(reply, after, hangs=True)


def cut(reply: Any, *, after: int) -> Fault:
    """Break the connection after ``after`` bytes of ``reply`` (texts and arguments, in UTF-8): the stream just ends.

    The engine discards the reply and retries, which gets the next reply of the script.
    """
    return Fault(reply, after)


class PointListener(AbstractContextManager["PointListener"]):
    """Calls ``fn`` when a named point is reached, until the end of the block, or for good without one."""

    def __init__(self, point: Point, fn: Callable[[], object]) -> None:
        if point not in POINTS:
            raise ValueError(f"unknown point {point!r}; the points are {', '.join(POINTS)}")
        self._point = point
        self._fn = fn
        test_seams.listeners[point] = (*test_seams.listeners.get(point, ()), fn)

    def remove(self) -> None:
        """Stop listening."""
        others = tuple(fn for fn in test_seams.listeners.get(self._point, ()) if fn is not self._fn)
        if others:
            test_seams.listeners[self._point] = others
        else:
            test_seams.listeners.pop(self._point, None)

    def __exit__(self, *_: object) -> None:
        self.remove()


def at(point: Point, fn: Callable[[], object]) -> PointListener:
    """Call ``fn`` each time a worker of this process reaches ``point`` (see ``perdure.ports.test_seams``).

    Its exceptions are raised at that point: ``at("tool.acted", fn)`` with an ``fn`` that raises ``StoreError``
    simulates a store that fails between the act and its record. Active until ``remove()``, or until the end of a
    ``with`` block.
    """
    return PointListener(point, fn)


def kill_at(point: Point, *, count: int = 1, once: Path | str | None = None) -> PointListener:
    """SIGKILL this process when it reaches ``point`` for the ``count``-th time: no handler, no ``finally``, no drain.

    ``once`` names a file that is made right before: a process that finds it there lives, so that a restarted worker
    continues. Of several processes only the first to make it dies. For the file that starts a worker:

        kill_at("tool.acted", once="/tmp/killed")
    """
    times = itertools.count(1)

    def die() -> None:
        if next(times) != count:
            return
        with suppress(FileExistsError):
            if once is not None:
                Path(once).touch(0o644, exist_ok=False)
            os.kill(os.getpid(), signal.SIGKILL)

    return PointListener(point, die)


PlainReply = str | ToolCallPart | Sequence["str | ToolCallPart"] | Completed | Exception | Fault
"""Text, a call, several of both, a complete reply, an error that the call ends with, or a :class:`Fault`."""
Reply = PlainReply | Callable[[ModelRequest], "PlainReply | Awaitable[PlainReply]"]
"""One of them, or a function of the request that returns one."""
Replies = Iterable[Reply] | Iterable[object] | Callable[[ModelRequest], PlainReply | Awaitable[PlainReply]]
"""A reply for each request, or a function for all of them. Type checkers take a list of texts and calls in a variable
for a list of objects: anything else is refused when the script is made."""

_WORD_PATTERN = re.compile(r"\S+\s*|\s+")


def call(name: str, /, **arguments: Any) -> ToolCallPart:
    """Build a call of tool ``name``; the provider gives it an id."""
    return ToolCallPart(id="", name=name, arguments=arguments)


def finish(**fields: Any) -> ToolCallPart:
    """Build the answer of an agent with an output type: ``finish(city="Oslo")``; for a type that is not an object
    ``finish(value=[1, 2])``, for text ``finish(content="…")``."""
    return call(FINISH_TOOL, **fields)


class ScriptError(BadRequestError):
    """The script does not match the requests to the model: replies are missing, or left over."""


def _check_reply(index: int, reply: Any) -> Reply:
    """Raises ``TypeError``."""
    if not isinstance(reply, str | ToolCallPart | Sequence | Completed | Exception | Fault) and not callable(reply):
        kinds = "a text, a call(…), a list of these, or a function"
        raise TypeError(f"replies[{index}] is {reply!r:.100}: a reply is {kinds}")
    return cast(Reply, reply)


class ScriptedProvider:
    """Answers each request with the next of ``replies``; one callable in place of the list answers them all.

    ``requests`` keeps what was asked. Text streams word by word; usage counts words. A request after the last
    reply raises ``ScriptError``. An exception that is no ``ProviderError`` is raised as it is.

        provider = ScriptedProvider([call("add", a=1, b=2), lambda request: f"It is {request.messages[-1]…}"])
        register_provider("scripted", provider)
    """

    def __init__(self, replies: Replies) -> None:
        if isinstance(replies, str | ToolCallPart):  # iterating over a text would give a reply per letter
            raise TypeError(f"the replies are a list, or one function for all of them: [{replies!r}]")
        listed = None if callable(replies) else [_check_reply(index, reply) for index, reply in enumerate(replies)]
        self._count = None if listed is None else len(listed)
        self._replies: Iterator[Reply] = itertools.repeat(replies) if callable(replies) else iter(listed or ())
        self._ids = itertools.count(1)
        self.requests: list[ModelRequest] = []

    async def stream(self, request: ModelRequest) -> AsyncIterator[StreamEvent]:
        """Stream the next reply."""
        self.requests.append(request)
        reply = next(self._replies, None)
        if reply is None:
            raise ScriptError(self.describe_mismatch() or "The script has no reply for this request.")
        if callable(reply):
            answer = reply(request)
            reply = await answer if inspect.isawaitable(answer) else answer
        if isinstance(reply, Exception):
            raise reply
        fault = reply if isinstance(reply, Fault) else None
        completed = (
            None if fault and fault.reply is None else self._build_completed(fault.reply if fault else reply, request)
        )
        events = _build_deltas(completed.parts) if completed else ()
        for event in events if fault is None or fault.after is None else _truncate_deltas(fault.after, events):
            yield event
        if fault is not None:
            await fault.trigger()
        elif completed is not None:
            yield completed

    def describe_mismatch(self) -> str | None:
        """Describe the mismatch so far: how many replies were not requested, or are missing; None if there is none."""
        if self._count is None or len(self.requests) == self._count:
            return None
        requested = len(self.requests)
        script = f"The script has {self._count} {'reply' if self._count == 1 else 'replies'}"
        if (unused := self._count - requested) > 0:
            return f"{script}; {unused} of them {'was' if unused == 1 else 'were'} not requested."
        last_message = self.requests[-1].messages[-1]
        text = last_message.text or last_message.parts
        return f"{script}, and the model was called {requested} times; its last message: {text!s:.200}"

    def _build_completed(self, reply: Any, request: ModelRequest) -> Completed:
        if isinstance(reply, Completed):
            return reply
        if isinstance(reply, Exception | Fault):
            raise ProviderError(f"A scripted exception cannot be part of a reply: {reply!r}")
        pieces = [reply] if isinstance(reply, str | ToolCallPart) else list(reply)
        parts = tuple(self._build_part(piece) for piece in pieces)
        has_calls = any(isinstance(part, ToolCallPart) for part in parts)
        input_words = sum(_count_part_words(part) for message in request.messages for part in message.parts)
        usage = Usage(input_tokens=input_words, output_tokens=max(1, sum(map(_count_part_words, parts))))
        return Completed(parts, "tool_calls" if has_calls else "stop", usage, request.model)

    def _build_part(self, piece: str | ToolCallPart) -> Part:
        if isinstance(piece, str):
            return TextPart(text=piece)
        return piece if piece.id else piece.model_copy(update={"id": f"call_{next(self._ids)}"})


def _truncate_deltas(size: int, events: Iterable[StreamEvent]) -> Iterator[StreamEvent]:
    """Yield the events up to ``size`` bytes of UTF-8 in texts and arguments."""
    for event in events:
        name = "arguments" if isinstance(event, ToolCallDelta) else "text"
        body = getattr(event, name).encode()
        if len(body) > size:
            if size > 0:
                yield replace(event, **{name: body[:size].decode(errors="ignore")})
            return
        size -= len(body)
        yield event


def _build_deltas(parts: Iterable[Part]) -> Iterable[StreamEvent]:
    index = 0
    for part in parts:
        if isinstance(part, TextPart):
            yield from (TextDelta(piece) for piece in _WORD_PATTERN.findall(part.text))
        elif isinstance(part, ThinkingPart):
            yield ThinkingDelta(part.text)
        elif isinstance(part, ToolCallPart):
            # Arguments are raw JSON on the wire, malformed or not.
            raw = part.malformed if part.malformed is not None else _dump_arguments(part.arguments)
            yield ToolCallDelta(index, part.id, part.name, raw)
            index += 1


def _dump_arguments(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def _count_part_words(part: Part) -> int:
    if isinstance(part, ToolCallPart):
        return 1 + len(_dump_arguments(part.arguments).split())
    if isinstance(part, ToolResultPart):
        return len(part.content.split()) + len(part.files)
    if isinstance(part, TextPart | ThinkingPart):
        return len(part.text.split())
    return 1
