"""A TCP proxy that loses the answer to a request (the server has it, and the client sees its connection break), or is
gone for a while."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress


class CutProxy:
    """Passes bytes on in both directions. While ``cuts`` is above 0, the next answer on any connection breaks it, and
    counts down."""

    def __init__(self, port: int) -> None:
        self.target = port
        self.port = 0
        self.cuts = 0
        self._pipes: set[asyncio.Task[None]] = set()
        self._writers: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None

    async def up(self) -> None:
        """Accept connections, on the same port as before."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def down(self) -> None:
        """Refuse new connections and break those there are, as a server that was killed."""
        if self._server is not None:
            self._server.close()
        for pipe in set(self._pipes):
            pipe.cancel()
        await asyncio.gather(*self._pipes, return_exceptions=True)
        for writer in self._writers:
            writer.transport.abort()
            with suppress(OSError):
                await writer.wait_closed()
        self._writers.clear()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            server_reader, server_writer = await asyncio.open_connection("127.0.0.1", self.target)
        except OSError:
            writer.close()
            return
        self._writers |= {writer, server_writer}
        for source, sink, is_answer in ((reader, server_writer, False), (server_reader, writer, True)):
            pipe = asyncio.create_task(self._pass_on(source, sink, writer, is_answer=is_answer))
            self._pipes.add(pipe)
            pipe.add_done_callback(self._pipes.discard)

    async def _pass_on(
        self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, client: asyncio.StreamWriter, *, is_answer: bool
    ) -> None:
        with suppress(OSError):
            while data := await source.read(65536):
                if is_answer and self.cuts:
                    self.cuts -= 1
                    client.transport.abort()
                    break
                sink.write(data)
                await sink.drain()
        sink.close()


@asynccontextmanager
async def run_cut_proxy(port: int) -> AsyncIterator[CutProxy]:
    """A proxy of the server on that port of this machine."""
    proxy = CutProxy(port)
    await proxy.up()
    try:
        yield proxy
    finally:
        await proxy.down()
