"""Events as Server-Sent Events. ``id`` is the number of an event: a follower continues from it, on any replica.

Frames have no name (``event:``): an ``EventSource`` hands all of them to ``onmessage``, and keeps its own ``error``
apart from perdure's event of that type. The JSON has the type.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager
from typing import Any

from sse_starlette import EventSourceResponse
from starlette.types import Receive, Scope, Send

from ..client.follow import follow_run, follow_turn
from ..client.run import Run
from ..client.turn import Turn
from ..errors import PerdureError
from ..types.events import Event
from .auth import Caller
from .problems import WebError

logger = logging.getLogger("perdure.web")

KEEP_ALIVE_SECONDS = 15
"""Between two comments on a stream without events: proxies close what is silent."""
STREAM_SECONDS = 3600.0
"""Longest time of one stream: its follower connects again."""
CHECK_SECONDS = 60.0
"""Between two checks of whether the follower of a stream is still who it was."""
SEND_SECONDS = 60.0
"""How long a follower may take to read what was sent, before its connection is closed. It may continue later."""
SHUTDOWN_SECONDS = 3.0
"""How long a stream may take to end when the server shuts down."""
RECONNECT_MS = 1000
MAX_SEQ = 2**53
HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}


def sse(
    followed: Run[Any] | Turn[Any],
    after: int | str | None = None,
    caller: Caller | None = None,
    *,
    children: bool = True,
    on_close: Callable[[], None] | None = None,
    check: Callable[[], Awaitable[bool]] | None = None,
) -> EventStream:
    """Answer with the events of a run or turn after number ``after``: its ``Last-Event-ID``, as text or None.

    The ids of runs are as ``caller`` names them.

    Texts above 8 KB stay references (``blob``). The stream is read from the store as fast as its follower reads;
    ``on_close`` is called at its end; ``check`` every minute, and the stream ends when it returns false. Raises
    ``WebError`` if ``after`` is not the number of an event.
    """
    seq = parse_seq(after)
    if isinstance(followed, Turn):
        events = follow_turn(followed, seq, children=children, texts=False)
    else:
        events = follow_run(followed, seq, children=children, texts=False)
    return EventStream(_encode_events(events, caller), on_close=on_close, check=check)


def parse_seq(text: int | str | None) -> int:
    """Return the number of an event; 0 for none. Raises ``WebError``."""
    if text is None or text == "":
        return 0
    plain = str(text)
    if plain.isascii() and plain.isdigit() and len(plain) <= 16 and int(plain) <= MAX_SEQ:
        return int(plain)
    raise WebError(
        f"the number of the last event is a whole number, not {plain!r:.100}",
        name="InvalidInputError", hint="Send the `id` of the last event that was received.",
    )  # fmt: skip


def encode_frame(data: bytes | str, seq: int | None = None) -> bytes:
    """Encode a frame: ``data`` without line breaks, as JSON on one line is."""
    text = data.encode() if isinstance(data, str) else data
    return (b"" if seq is None else b"id: %d\n" % seq) + b"data: " + text + b"\n\n"


def encode_event(event: Event, caller: Caller | None = None) -> bytes:
    """Encode an event as JSON; fields with their default value are left out, but for the type. The ids of runs are as
    ``caller`` names them."""
    if caller is not None and caller.tenant is not None:
        names = [name for name in ("context_id", "child_context_id") if getattr(event, name, None)]
        event = event.model_copy(update={name: caller.show_id(getattr(event, name)) for name in names})
    fields = event.model_dump_json(exclude_defaults=True).encode()
    return b'{"type":"%s",%s' % (event.type.encode(), fields[1:])


async def _encode_events(events: AsyncGenerator[Event], caller: Caller | None) -> AsyncGenerator[bytes]:
    yield b"retry: %d\n\n" % RECONNECT_MS
    async with aclosing(events) as opened:
        async for event in opened:
            yield encode_frame(encode_event(event, caller), event.seq)


class EventStream(EventSourceResponse):
    """A stream of frames. It ends with its source; after ``STREAM_SECONDS``; when ``check``, which is called every
    ``CHECK_SECONDS``, returns false; or when the source fails, with a comment that names the error: its follower
    connects again, and proves anew who it is. ``build_break`` builds another last frame, of the error or, where there
    is none, of None."""

    def __init__(
        self,
        frames: AsyncGenerator[bytes],
        *,
        on_close: Callable[[], None] | None = None,
        build_break: Callable[[PerdureError | None], bytes] | None = None,
        check: Callable[[], Awaitable[bool]] | None = None,
    ) -> None:
        limit = StreamLimit()

        async def end_unless_valid() -> None:
            while check is not None:
                await asyncio.sleep(CHECK_SECONDS)
                if not await check():
                    limit.set()
                    return

        super().__init__(
            bounded(frames, limit, build_break or _build_break),
            headers=HEADERS,
            ping=KEEP_ALIVE_SECONDS,
            sep="\n",
            send_timeout=SEND_SECONDS,
            data_sender_callable=end_unless_valid,  # a task for the length of the stream
            shutdown_event=limit,  # type: ignore[arg-type]  # of an event only ``set`` is called
            shutdown_grace_period=SHUTDOWN_SECONDS,
        )
        self._on_close = on_close

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        except TimeoutError:  # the follower has stopped reading: nothing can be said to it
            logger.info("a follower of events was too slow, and its connection was closed")
        finally:
            if self._on_close is not None:
                self._on_close()


async def begin_stream(frames: AsyncGenerator[bytes], seconds: float) -> AsyncGenerator[bytes]:
    """Wait for the first of the frames, at most some seconds, and return all of them: what fails before the first frame
    is raised here, where it still can have a status."""
    first = asyncio.ensure_future(anext(frames))
    try:
        await asyncio.wait([first], timeout=seconds)
        if first.done() and first.exception() is not None:
            first.result()
    except BaseException:
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        await frames.aclose()
        raise
    return _continue_stream(first, frames)


async def _continue_stream(first: asyncio.Future[bytes], frames: AsyncGenerator[bytes]) -> AsyncGenerator[bytes]:
    try:
        yield await first
        async for frame in frames:
            yield frame
    finally:
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        await frames.aclose()


class StreamLimit:
    """The time until which a stream may last: :meth:`set` ends it at once, when the server shuts down."""

    def __init__(self) -> None:
        self._is_over = False
        self._timeout: asyncio.Timeout | None = None

    def set(self) -> None:
        """End the stream."""
        self._is_over = True
        if self._timeout is not None and not self._timeout.expired():
            self._timeout.reschedule(asyncio.get_running_loop().time())

    @asynccontextmanager
    async def hold(self, deadline: float) -> AsyncGenerator[None]:
        """Raise ``TimeoutError`` in the block at ``deadline``, or when the stream is to end."""
        if self._is_over:
            raise TimeoutError
        try:
            async with asyncio.timeout_at(deadline) as self._timeout:
                yield
        finally:
            self._timeout = None


def _build_break(error: PerdureError | None) -> bytes:
    if error is None:
        return b": connect again\n\n"
    return b": the stream ended: %s; connect again\n\n" % type(error).__name__.encode()


async def bounded(
    frames: AsyncGenerator[bytes],
    limit: StreamLimit,
    build_break: Callable[[PerdureError | None], bytes] = _build_break,
) -> AsyncGenerator[bytes]:
    """Yield ``frames`` for ``STREAM_SECONDS`` at most; a failure of theirs ends them, with a comment."""
    deadline = asyncio.get_running_loop().time() + STREAM_SECONDS
    async with aclosing(frames):
        while True:
            try:
                async with limit.hold(deadline):
                    frame = await anext(frames, None)
            except TimeoutError:
                yield build_break(None)
                return
            except PerdureError as error:
                logger.warning("a stream of events ended: %s: %s", type(error).__name__, error)
                yield build_break(error)
                return
            if frame is None:
                return
            yield frame
