"""``perdure run``: start a run, follow it, print its answer."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..errors import InvalidInputError, PerdureError
from ..terminal import escape_line, print_line
from .connection import ConnectionOptions, open_client
from .options import (
    AgentArgument,
    AttachOption,
    ContextOption,
    FileOption,
    InputOption,
    MessageArgument,
    OutputFormat,
    OutputOptions,
    RunArgument,
    StoreOptions,
    TaskQueueOption,
    parse_json_object,
    print_json,
    read_run_input,
)
from .output import INTERRUPTED, print_answer, wait_for_answer
from .show import format_activity

if TYPE_CHECKING:
    from ..client.run import Run
    from ..types.events import Event
    from ..types.interface import Response
    from ..types.messages import Content


# ---
# What a run is at, on stderr: a live line on a terminal, a line for each change elsewhere.


STATUS_POLL_SECONDS = 0.5
"""Seconds between two looks: each is a query that a worker answers."""


@asynccontextmanager
async def show_activity(run: Run, *, announce: bool = True) -> AsyncIterator[None]:
    """Show what ``run`` is at for the length of the block. ``announce``: its id too, where there is no live line."""
    with _open_activity_display(run.id, announce=announce) as show:
        looking = asyncio.ensure_future(_poll_activity(run, show))
        try:
            yield
        finally:
            looking.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await looking


async def _poll_activity(run: Run, show: Callable[[str], None]) -> None:
    shown = ""
    while True:
        with contextlib.suppress(PerdureError):  # the run's own end says what there is to say
            status = await run.status()
            now = format_activity(status)
            if now and now != shown:
                show(now)
                shown = now
        await asyncio.sleep(STATUS_POLL_SECONDS)


@contextmanager
def _open_activity_display(id: str, *, announce: bool) -> Iterator[Callable[[str], None]]:
    if not sys.stderr.isatty():
        if announce:
            print_line(f"run {id}", error=True)
        yield lambda text: print_line(f"  {text}", error=True)
        return
    from rich.console import Console
    from rich.markup import escape

    console = Console(stderr=True, highlight=False)
    label = f"[bold]{escape(escape_line(id))}[/]"
    with console.status(label) as live:
        yield lambda text: live.update(f"{label}  {escape(escape_line(text))}")


EventCallback = Callable[["Event"], None]


@dataclass(frozen=True)
class RunRequest:
    """What to run, where."""

    agent: str
    message: Content | dict[str, Any]
    id: str | None
    context: dict[str, Any] | None
    file: str | None
    task_queue: str | None
    server: ConnectionOptions


def run(
    agent: AgentArgument,
    message: MessageArgument = None,
    input: InputOption = None,
    file: FileOption = None,
    attach: AttachOption = None,
    detach: Annotated[bool, typer.Option("--detach", "-d", help="Print the id and leave.")] = False,
    follow: Annotated[bool, typer.Option("--follow", help="Show replies as they are written, and every call.")] = False,
    id: Annotated[str | None, typer.Option(help="Id of the run; made up without.", show_default=False)] = None,
    context: ContextOption = None,
    task_queue: TaskQueueOption = None,
    *,
    server: StoreOptions,
    output: OutputOptions,
) -> None:
    """Start a run and print its answer; what it is at is shown on stderr. Ctrl-C leaves the run running.

    With --follow the replies are printed as they are written, and what else happens on stderr; with -o jsonl as well,
    all that happens is printed, an event a line.
    """
    if detach and follow:
        raise InvalidInputError("-d leaves at once, --follow stays", hint="perdure events ID -f follows a run later.")
    if detach and file:
        raise InvalidInputError(
            "-d leaves at once, and with it the worker that --file brings",
            hint="Serve the file in a process of its own: perdure dev FILE, or perdure worker FILE.",
        )
    said = read_run_input(message, input, attach)
    order = RunRequest(agent, said, id, parse_json_object(context), file, task_queue, server)
    watch = _build_event_callback(output) if follow else None
    if detach:
        _print_id(asyncio.run(_start_detached(order)), output)
        return
    started: list[str] = []
    try:
        response = asyncio.run(_start_and_wait(order, started, watch))
    except KeyboardInterrupt:
        if started:
            for line in _format_detach_hint(started[0], order):
                print_line(line, error=True)
        raise typer.Exit(INTERRUPTED) from None
    if not follow or output is OutputFormat.JSON:
        print_answer(response, output)


async def _start_detached(order: RunRequest) -> str:
    async with open_client(order.server, start_server=True, task_queue=order.task_queue) as client:
        return (await client.start(order.agent, order.message, id=order.id, context=order.context)).id


async def _start_and_wait(order: RunRequest, started: list[str], watch: EventCallback | None) -> Response:
    """Start the run, show how it gets on, return its answer. ``started`` is given its id, ``watch`` what happens."""
    from .worker import open_client_for_agent

    async with open_client_for_agent(order.server, order.agent, file=order.file, task_queue=order.task_queue) as (
        client,
        agent,
    ):
        if watch is not None:
            await client.store()  # without one nothing can be followed: said before anything is begun
        run = await client.start(agent, order.message, id=order.id, context=order.context)
        started.append(run.id)
        if watch is None:
            async with show_activity(run):
                return await wait_for_answer(run, run.result())
        print_line(f"run {run.id}", error=True)
        return await wait_for_answer(run, _watch_until_result(run, watch))


async def _watch_until_result(run: Run, watch: EventCallback) -> Response:
    async for event in run.events():
        watch(event)
    return await run.result()


def _build_event_callback(output: OutputFormat) -> EventCallback:
    """What is done with each event."""
    from .events import EventPrinter
    from .output import can_colour_stdout

    if output is OutputFormat.JSONL:
        return lambda event: print_json(event.model_dump(mode="json", exclude_none=True), output=output)
    text = sys.stderr if output is OutputFormat.JSON else sys.stdout
    return EventPrinter(text, sys.stderr, colour=can_colour_stdout(), brief=True).print_event


def _print_id(id: str, output: OutputFormat) -> None:
    if output is OutputFormat.TEXT:
        print_line(id)
    else:
        print_json({"id": id}, output=output)


def _format_detach_hint(id: str, order: RunRequest) -> list[str]:
    said = [f"run {id} goes on", f"  perdure show {id}", f"  perdure cancel {id}"]
    if order.file is not None:
        said[0] = f"run {id} waits for a worker"
        said.insert(1, f"  perdure dev {order.file}")
    return said


# ---
# ``perdure wait``: the answer of a run, or of a turn of a conversation.


def wait(
    id: RunArgument,
    turn: Annotated[
        str | None, typer.Option(metavar="TASK", help="Id of the turn; the last one without.", show_default=False)
    ] = None,
    *,
    server: StoreOptions,
    output: OutputOptions,
) -> None:
    """Wait for the answer of a run, or of a session's turn, and print it; what it is at is shown on stderr."""

    async def go() -> Response:
        from .connection import find_run

        async with open_client(server) as client:
            run = await find_run(client, id)
            async with show_activity(run):
                return await wait_for_answer(run, _wait_for_turn_or_run(run, turn))

    try:
        response = asyncio.run(go())
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None
    print_answer(response, output)


async def _wait_for_turn_or_run(run: Run, task_id: str | None) -> Response:
    """A session has an answer for each turn, a run only one."""
    if task_id is None and (await run.status()).mode != "session":
        return await run.result()
    return await run.turn(task_id).result()
