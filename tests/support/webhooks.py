"""An endpoint of webhooks on loopback, which verifies signatures by its own reading of Standard Webhooks."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Received:
    """A request."""

    target: str
    headers: dict[str, str]
    body: bytes

    @property
    def id(self) -> str:
        return self.headers["webhook-id"]

    @property
    def json(self) -> dict[str, Any]:
        return dict(json.loads(self.body))

    def is_signed(self, secret: str) -> bool:
        """Whether one of the signatures is by ``secret``: HMAC-SHA256 of id, timestamp and body, with dots between."""
        key = base64.b64decode(secret.split("_", 1)[1])
        content = b".".join([self.id.encode(), self.headers["webhook-timestamp"].encode(), self.body])
        expected = base64.b64encode(hmac.new(key, content, hashlib.sha256).digest()).decode()
        return f"v1,{expected}" in self.headers["webhook-signature"].split(" ")


@dataclass
class Endpoint:
    """``answer`` gives the raw answer to a request; by default 204."""

    url: str = ""
    requests: list[Received] = field(default_factory=list)
    answer: Callable[[Received], bytes] = lambda _: b"HTTP/1.1 204 No Content\r\n\r\n"

    @property
    def types(self) -> list[str]:
        return [one.json["type"] for one in self.requests]


def status(code: int, body: str = "", **headers: str) -> Callable[[Received], bytes]:
    """An answer of that status."""
    lines = [f"HTTP/1.1 {code} X", f"content-length: {len(body.encode())}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return lambda _: "\r\n".join([*lines, "", body]).encode()


@asynccontextmanager
async def serve_endpoint() -> AsyncIterator[Endpoint]:
    """Serve an endpoint for the length of the block."""
    endpoint = Endpoint()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
            pairs = (line.split(": ", 1) for line in head[1:] if line)
            headers = {name.lower(): value for name, value in pairs}
            body = await reader.readexactly(int(headers["content-length"]))
            request = Received(head[0].split(" ")[1], headers, body)
            endpoint.requests.append(request)
            writer.write(endpoint.answer(request))
            await writer.drain()
        finally:
            writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    endpoint.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/hook"
    async with server:
        yield endpoint
