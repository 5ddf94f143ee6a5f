"""A web service under test: the application behind a real uvicorn on loopback, in this process."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx
import uvicorn
from starlette.requests import HTTPConnection

from perdure import Client
from perdure.web.app import WebOptions, create_app
from perdure.web.auth import ROLES, Caller, Role
from perdure.web.problems import UnauthorizedError
from tests.support.wait import eventually

ADA = Caller("ada", "token:ada", ROLES["admin"])


def make_caller(name: str, role: Role = "operator", **limits: Any) -> Caller:
    return Caller(name, f"token:{name}", ROLES[role], **limits)


class NamedCallers:
    """``Authorization: Bearer <name>`` for the callers that it was given."""

    def __init__(self, *callers: Caller) -> None:
        self.callers = {caller.name: caller for caller in callers}

    async def authenticate(self, connection: HTTPConnection) -> Caller | None:
        given = connection.headers.get("authorization")
        if given is None:
            return None
        caller = self.callers.get(given.removeprefix("Bearer "))
        if caller is None:
            raise UnauthorizedError("the token is unknown")
        return caller


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:  # those of the test process are its own
        yield


@dataclass
class Service:
    """A running replica."""

    url: str
    server: uvicorn.Server

    def connect(self, name: str = "ada", **headers: str) -> httpx.AsyncClient:
        """An HTTP client of that caller."""
        return httpx.AsyncClient(
            base_url=f"{self.url}/v1", headers={"Authorization": f"Bearer {name}", **headers}, timeout=30
        )

    async def kill(self) -> None:
        """Close every connection at once, as a lost machine does."""
        self.server.force_exit = True
        self.server.should_exit = True
        for connection in list(self.server.server_state.connections):
            with contextlib.suppress(Exception):
                connection.transport.abort()


@asynccontextmanager
async def serve(client: Client, *callers: Caller, app: Any = None) -> AsyncIterator[Service]:
    """Serve the application, or ``app``, until the end of the block."""
    app = app or create_app(client, authenticator=NamedCallers(ADA, *callers), options=WebOptions(dev=True))
    # With its protocol named, asyncio turns Nagle's algorithm off, as for a port that uvicorn opens: 40 ms a request.
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP) as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
        options = {"proxy_headers": False, "timeout_graceful_shutdown": 1}  # as `perdure serve`
        config = uvicorn.Config(app, lifespan="off", log_level="warning", **options)
        server = _Server(config)
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        try:
            await eventually(lambda: server.started)
            yield Service(f"http://127.0.0.1:{port}", server)
        finally:
            server.should_exit = True
            await serving


async def read_frames(response: httpx.Response) -> AsyncIterator[tuple[int | None, Any]]:
    """Yield the number and the JSON of each frame of Server-Sent Events."""
    seq: int | None = None
    async for line in response.aiter_lines():
        if line.startswith("id: "):
            seq = int(line[4:])
        elif line.startswith("data: "):
            yield seq, json.loads(line[6:])
            seq = None
