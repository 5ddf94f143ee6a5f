"""The process that answers HTTP: perdure's application, or a bare Starlette that says as much without doing anything.

python -m benchmarks.web_server ADDRESS STORE_URL TASK_QUEUE [console]

Without arguments it is the bare one. Prints its port, then its CPU seconds for each line of input; ends with its input.
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys
import time
from collections.abc import AsyncIterator

import uvicorn
from sse_starlette import EventSourceResponse
from starlette.applications import Starlette
from starlette.requests import HTTPConnection, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from temporalio.client import Client as TemporalClient

from benchmarks.output import keep_clean
from perdure import Client
from perdure.console import console_routes
from perdure.web.app import WebOptions, create_app
from perdure.web.auth import ROLES, Caller
from perdure.web.limits import WebLimits
from perdure.web.sse import KEEP_ALIVE_SECONDS

_BENCH = Caller("bench", "token:bench", ROLES["admin"])
_LIMITS = WebLimits(requests_per_second=1e6, burst=1_000_000, streams=100_000)


class _Anyone:
    """Every request is the bench's."""

    async def authenticate(self, _: HTTPConnection) -> Caller:
        return _BENCH


def build_bare() -> Starlette:
    """Build the application beside which perdure's is measured: ``/echo?size=N``, ``/silence``, and
    ``/say?pieces=N&every=MS``."""
    return Starlette(
        routes=[Route("/echo", _echo, methods=["GET", "POST"]), Route("/silence", _keep_silent), Route("/say", _say)]
    )


async def _echo(request: Request) -> Response:
    return JSONResponse({"data": "x" * int(request.query_params.get("size", "0"))})


async def _keep_silent(_: Request) -> Response:
    async def frames() -> AsyncIterator[str]:
        await asyncio.Event().wait()
        yield ""

    return EventSourceResponse(frames(), ping=KEEP_ALIVE_SECONDS)


async def _say(request: Request) -> Response:
    pieces, every = (int(request.query_params[name]) for name in ("pieces", "every"))

    async def frames() -> AsyncIterator[bytes]:
        for number in range(pieces):
            await asyncio.sleep(every / 1000)
            yield b'id: %d\ndata: {"type":"delta","text":"%d "}\n\n' % (number, time.monotonic_ns())

    return EventSourceResponse(frames(), ping=KEEP_ALIVE_SECONDS)


async def main(*arguments: str) -> None:
    """Serve until standard input ends."""
    if arguments:
        address, store_url, task_queue, *more = arguments
        client = Client(await TemporalClient.connect(address), store_url=store_url, task_queue=task_queue)
        options = WebOptions(dev=True, limits=_LIMITS)
        pages = console_routes if more else None
        app = create_app(client, authenticator=_Anyone(), options=options, pages=pages)
    else:
        app = build_bare()
    # With the protocol named, or asyncio leaves Nagle's algorithm on for what it accepts.
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.bind(("127.0.0.1", 0))
    listener.listen(2048)
    config = uvicorn.Config(app, lifespan="off", log_level="error", timeout_graceful_shutdown=1)
    serving = asyncio.create_task(uvicorn.Server(config).serve(sockets=[listener]))
    print(listener.getsockname()[1], flush=True)
    await asyncio.to_thread(_answer)
    serving.cancel()


def _answer() -> None:
    for _ in sys.stdin:
        print(time.process_time(), flush=True)


if __name__ == "__main__":
    keep_clean()
    asyncio.run(main(*sys.argv[1:]))
    sys.stdout.flush()
    os._exit(0)  # a Temporal client at the interpreter's exit aborts now and then (FACTS.md)
