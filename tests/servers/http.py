"""As much HTTP/1.1 as a fake API needs: keep-alive, bodies by length, chunked answers, cut connections."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus


class GoneError(Exception):
    """The client hung up, or we did."""


@dataclass(slots=True)
class Request:
    """A request; header names are in lower case."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes


class Answer:
    """The way back: ``send`` for a whole answer, or ``start``, ``write`` … ``finish`` for a stream."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def send(self, status: int, body: bytes, headers: Mapping[str, str] | None = None) -> None:
        """A whole answer."""
        self._writer.write(_head(status, {"content-length": str(len(body)), **(headers or {})}) + body)
        await self._drain()

    async def json(self, status: int, value: object, headers: Mapping[str, str] | None = None) -> None:
        """A whole answer in JSON."""
        await self.send(status, json.dumps(value).encode(), {"content-type": "application/json", **(headers or {})})

    def start(self, status: int, headers: Mapping[str, str]) -> None:
        """The head of a chunked answer."""
        self._writer.write(_head(status, {"transfer-encoding": "chunked", **headers}))

    async def write(self, data: bytes) -> None:
        """One chunk, on the wire at once."""
        if data:
            self._writer.write(b"%x\r\n%b\r\n" % (len(data), data))
            await self._drain()

    async def finish(self) -> None:
        """The end of a chunked answer."""
        self._writer.write(b"0\r\n\r\n")
        await self._drain()

    def abort(self) -> None:
        """Reset the connection, whatever was sent."""
        self._writer.transport.abort()
        raise GoneError

    async def wait(self, event: asyncio.Event) -> None:
        """Wait for ``event``; raises ``GoneError`` as soon as the client hangs up."""
        released = asyncio.ensure_future(event.wait())
        hung_up = asyncio.ensure_future(self._reader.read(1))
        try:
            await asyncio.wait((released, hung_up), return_when=asyncio.FIRST_COMPLETED)
            if not released.done():
                raise GoneError
        finally:
            for task in (released, hung_up):
                task.cancel()
            await asyncio.gather(released, hung_up, return_exceptions=True)

    async def _drain(self) -> None:
        if self._writer.is_closing() or self._reader.at_eof():
            raise GoneError
        await self._writer.drain()


def _head(status: int, headers: Mapping[str, str]) -> bytes:
    try:
        phrase = HTTPStatus(status).phrase
    except ValueError:
        phrase = "Unknown"
    lines = [f"HTTP/1.1 {status} {phrase}", *(f"{name}: {value}" for name, value in headers.items())]
    return "\r\n".join((*lines, "", "")).encode()


Handler = Callable[[Request, Answer], Awaitable[None]]


class HttpServer:
    """Serves ``handler`` on loopback while it is entered; ``port`` 0 takes a free one."""

    def __init__(self, handler: Handler, port: int = 0) -> None:
        self._handler = handler
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()
        self.port = port

    async def __aenter__(self) -> HttpServer:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", self.port, limit=1 << 20, backlog=1024)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *exc: object) -> None:
        assert self._server is not None
        self._server.close()
        for task in self._connections:
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)
        await self._server.wait_closed()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            with contextlib.suppress(GoneError, ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
                while (request := await _read(reader)) is not None:
                    await self._handler(request, Answer(reader, writer))
        finally:
            self._connections.discard(task)
            writer.close()
            with contextlib.suppress(ConnectionError, asyncio.CancelledError):
                await writer.wait_closed()


async def _read(reader: asyncio.StreamReader) -> Request | None:
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError:
        return None  # the client closed an idle connection
    first, *lines = head.decode("latin-1").split("\r\n")
    method, path, _ = first.split(" ", 2)
    headers = {
        name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines if line)
    }
    body = await reader.readexactly(int(headers.get("content-length", 0)))
    return Request(method, path, headers, body)
