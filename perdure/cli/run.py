"""``perdure run``: start a run, follow it, print its answer."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..errors import InvalidInputError, PerdureError
from .connection import Server, connected
from .options import (
    AddressOption,
    JsonOption,
    NamespaceOption,
    Output,
    OutputOption,
    ProfileOption,
    QueueOption,
    StoreOption,
    chosen,
    print_json,
)

if TYPE_CHECKING:
    from ..client import Client
    from ..run import Run
    from ..types.wire import Response


@dataclass(frozen=True)
class Order:
    """What to run, where."""

    agent: str
    message: str
    id: str | None
    context: dict[str, Any] | None
    file: str | None
    task_queue: str | None
    server: Server


def run(
    agent: Annotated[str, typer.Argument(help="Name of the agent.")],
    message: Annotated[str, typer.Argument(help="What to say to it; - reads standard input.")],
    file: Annotated[
        str | None, typer.Option("--file", "-f", help="Serve the agents of this file too, here.", show_default=False)
    ] = None,
    detach: Annotated[bool, typer.Option("--detach", "-d", help="Print the id and leave.")] = False,
    id: Annotated[str | None, typer.Option(help="Id of the run; made up without.", show_default=False)] = None,
    context: Annotated[str | None, typer.Option(help="The author's data: a JSON object.", show_default=False)] = None,
    task_queue: QueueOption = None,
    address: AddressOption = None,
    namespace: NamespaceOption = None,
    profile: ProfileOption = None,
    store_url: StoreOption = None,
    output: OutputOption = Output.TEXT,
    as_json: JsonOption = False,
) -> None:
    """Start a run and print its answer; what it is at is shown on stderr. Ctrl-C leaves the run running."""
    if detach and file:
        raise InvalidInputError(
            "-d leaves at once, and with it the worker that --file brings",
            hint="Serve the file in a process of its own: perdure dev FILE, or perdure worker FILE.",
        )
    text = sys.stdin.read() if message == "-" else message
    server = Server(address, namespace, profile, store_url)
    order = Order(agent, text, id, _context(context), file, task_queue, server)
    output = chosen(output, as_json)
    if detach:
        _print_id(asyncio.run(_start(order)), output)
        return
    started: list[str] = []
    try:
        response = asyncio.run(_follow(order, started))
    except KeyboardInterrupt:
        if started:
            sys.stderr.write(_farewell(started[0], order))
        raise typer.Exit(130) from None
    if output is Output.TEXT:
        print(response.content)
    else:
        print_json(response.model_dump(mode="json"), output=output)


async def _start(order: Order) -> str:
    async with connected(order.server, start_server=True, task_queue=order.task_queue) as client:
        return (await client.start(order.agent, order.message, id=order.id, context=order.context)).id


async def _follow(order: Order, started: list[str]) -> Response:
    """Start the run, show how it gets on, return its answer. ``started`` is given its id."""
    from .progress import follow

    async with _served(order) as client:
        run = await client.start(order.agent, order.message, id=order.id, context=order.context)
        started.append(run.id)
        async with follow(run):
            return await _answer(run)


async def _answer(run: Run) -> Response:
    """The answer. Ends the command with 1 when the run failed, whatever its error would mean elsewhere."""
    from .failure import report

    result = asyncio.ensure_future(run.result())
    begun = asyncio.ensure_future(run.begun())
    try:
        await asyncio.wait({result, begun}, return_when=asyncio.FIRST_COMPLETED)
        if not result.done():
            await begun
        try:
            return await result
        except PerdureError as error:
            report(error)
            sys.stderr.write(f"run {run.id}; `perdure show {run.id}` has its conversation\n")
            raise typer.Exit(1) from error
    finally:
        for task in (result, begun):
            task.cancel()


@asynccontextmanager
async def _served(order: Order) -> AsyncIterator[Client]:
    """A client; with ``--file`` also a worker in this process, on the file's own queue."""
    if order.file is None:
        async with connected(order.server, start_server=True, task_queue=order.task_queue) as client:
            yield client
        return
    from pathlib import Path

    from ..runtime import DRAIN, entry_queue
    from ..worker import Worker
    from .load import load
    from .worker import log_to_stderr

    log_to_stderr()
    loaded = load(order.file)
    loaded.agent(order.agent)
    queue = order.task_queue or os.environ.get("PERDURE_TASK_QUEUE") or entry_queue(Path(order.file))
    async with (
        connected(order.server, start_server=True, task_queue=queue) as client,
        Worker(client, loaded.agents, drain=DRAIN),
    ):
        yield client


def _context(text: str | None) -> dict[str, Any] | None:
    if text is None:
        return None
    try:
        value = json.loads(text)
    except ValueError as error:
        raise InvalidInputError(f"--context is not JSON: {error}", hint="""For instance: '{"user": "7"}'""") from None
    if not isinstance(value, dict):
        raise InvalidInputError("--context must be a JSON object", hint="""For instance: '{"user": "7"}'""")
    return value


def _print_id(id: str, output: Output) -> None:
    if output is Output.TEXT:
        print(id)
    else:
        print_json({"id": id}, output=output)


def _farewell(id: str, order: Order) -> str:
    said = [f"run {id} goes on", f"  perdure show {id}", f"  perdure cancel {id}"]
    if order.file is not None:
        said[0] = f"run {id} waits for a worker"
        said.insert(1, f"  perdure dev {order.file}")
    return "\n".join(said) + "\n"
