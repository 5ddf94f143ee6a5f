"""As much HTTP/1.1 as the demo model needs, on loopback."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass

HOST = "127.0.0.1"
_LARGEST = 64 * 1024 * 1024
"""Bytes of a request's body."""


@dataclass(frozen=True, slots=True)
class Request:
    """A request; ``path`` without its query."""

    method: str
    path: str
    body: bytes


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole JSON answer, or the events of a stream."""

    status: int = 200
    json: object = None
    events: AsyncGenerator[bytes, None] | None = None


Handler = Callable[[Request], Awaitable[Answer]]


class HttpServer:
    """Serves ``handler`` while it is entered; port 0 takes a free one, which ``port`` then is."""

    def __init__(self, handler: Handler, port: int = 0) -> None:
        self.port = port
        self._handler = handler
        self._connections: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> HttpServer:
        self._server = await asyncio.start_server(self._connected, HOST, self.port)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *exc: object) -> None:
        assert self._server is not None
        self._server.close()
        for connection in self._connections:
            connection.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)
        await self._server.wait_closed()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            while (request := await _read(reader)) is not None:
                await _write(writer, await self._handler(request))
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, ValueError):
            pass  # whoever hung up or speaks no HTTP gets no answer
        except asyncio.CancelledError:
            pass  # the server closes; asyncio would log a cancelled connection as an error
        finally:
            self._connections.discard(task)
            writer.close()
            with contextlib.suppress(ConnectionError, asyncio.CancelledError):
                await writer.wait_closed()


async def _read(reader: asyncio.StreamReader) -> Request | None:
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError:
        return None
    first, *lines = head.decode("latin-1").split("\r\n")
    method, target, _ = first.split(" ", 2)
    length = 0
    for line in lines:
        name, _, value = line.partition(":")
        if name.strip().lower() == "content-length":
            length = int(value)
    if not 0 <= length <= _LARGEST:
        raise ValueError("body too large")
    return Request(method, target.partition("?")[0], await reader.readexactly(length))


async def _write(writer: asyncio.StreamWriter, answer: Answer) -> None:
    if answer.events is None:
        body = json.dumps(answer.json).encode()
        head = f"HTTP/1.1 {answer.status} -\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
        writer.write(head.encode() + body)
        await writer.drain()
        return
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
    async with contextlib.aclosing(answer.events) as events:
        async for event in events:
            writer.write(b"%x\r\n%b\r\n" % (len(event), event))
            await writer.drain()
    writer.write(b"0\r\n\r\n")
    await writer.drain()
