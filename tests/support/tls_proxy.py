"""TLS before servers: before a PostgreSQL server whose binaries have none, and before HTTP, as a reverse proxy."""

from __future__ import annotations

import asyncio
import ssl
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

SSL_REQUEST = b"\x00\x00\x00\x08\x04\xd2\x16\x2f"


def make_certificate(folder: Path, name: str) -> tuple[Path, Path]:
    """A certificate for ``name`` that is its own authority, and its key."""
    certificate, key = folder / f"{name}.crt", folder / f"{name}.key"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", f"/CN={name}"]
    files = ["-addext", f"subjectAltName=DNS:{name}", "-keyout", str(key), "-out", str(certificate)]
    subprocess.run([*command, *files], check=True, capture_output=True)
    return certificate, key


def make_server_context(certificate: Path, key: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    return context


@asynccontextmanager
async def run_https_proxy(
    port: int, certificate: Path, key: Path, headers: dict[str, str | None]
) -> AsyncIterator[int]:
    """The port of a proxy that ends TLS: it sets ``headers`` in the place of the client's (None: leaves them out), and
    passes one request of each connection on to ``port``."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, asyncio.IncompleteReadError):
            first, *lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").rstrip().split("\r\n")
            own = {**headers, "connection": "close"}
            kept = [line for line in lines if line.partition(":")[0].lower() not in own]
            kept += [f"{name}: {value}" for name, value in own.items() if value is not None]
            server_reader, server_writer = await asyncio.open_connection("127.0.0.1", port)
            server_writer.write("\r\n".join([first, *kept, "", ""]).encode("latin-1"))
            sending = asyncio.create_task(pass_on(reader, server_writer))
            await pass_on(server_reader, writer)
            sending.cancel()
            server_writer.close()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=make_server_context(certificate, key))
    async with server:
        yield server.sockets[0].getsockname()[1]


@asynccontextmanager
async def run_tls_proxy(port: int, certificate: Path, key: Path) -> AsyncIterator[int]:
    """The port of a proxy that speaks TLS with clients, and not with the server on ``port``. It takes no others."""
    context = make_server_context(certificate, key)
    tasks: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        with suppress(OSError, asyncio.IncompleteReadError):
            if await reader.readexactly(8) == SSL_REQUEST:
                writer.write(b"S")
                await writer.start_tls(context)
                server_reader, server_writer = await asyncio.open_connection("127.0.0.1", port)
                await asyncio.gather(pass_on(reader, server_writer), pass_on(server_reader, writer))
        writer.close()
        tasks.discard(task)

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def pass_on(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await source.read(65536):
            sink.write(data)
            await sink.drain()
    sink.close()
