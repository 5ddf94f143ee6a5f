"""``perdure run`` and ``perdure wait``: start a run, show its activity, wait for its answer and print it."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from .._terminal import escape_line, print_line
from ..errors import (
    InvalidInputError,
    NoWorkerError,
    PerdureError,
    RunNotFoundError,
    RunStuckError,
    ServerUnreachableError,
)
from .connection import StoreOptions, call_run, watch_for_outages
from .events import EventPrinter
from .options import (
    AgentArgument,
    AttachOption,
    ContextOption,
    FileOption,
    InputOption,
    MessageArgument,
    RunArgument,
    TaskQueueOption,
    TenantOption,
    UserOption,
    parse_json_object,
    read_run_input,
)
from .output import OutputOptions, print_error
from .show import format_activity

if TYPE_CHECKING:
    from ..agent.spec import AgentSpec
    from ..client.client import Client
    from ..client.run import Run
    from ..temporal.outages import ServerWatch
    from ..types.interface import Response, Status

T = TypeVar("T")

# ---
# The activity of a run on stderr: a live line on a terminal, a line for each change elsewhere.

NEXT_ATTEMPT = " (next attempt at "
"""How a reason says when the next attempt is: see ``client/progress.py``."""
STATUS_POLL_SECONDS = 0.5
"""Seconds between two reads of the status: each is a query that a worker answers."""


@asynccontextmanager
async def show_activity(
    run: Run, *, announce: bool = True, unattended: bool = False
) -> AsyncIterator[asyncio.Task[None]]:
    """Show the activity of ``run`` for the length of the block. ``announce`` prints its id if there is no live line.

    Yields the task that reads its status; ``unattended``: the task raises ``RunStuckError`` when the run has paused at
    a failure, which only an operator can mend.
    """
    from ..client.tasks import background_task

    with _open_activity_display(run.id, announce=announce) as show:
        async with background_task(_poll_activity(run, show, unattended=unattended)) as polling:
            yield polling


def _build_activity_key(status: Status, activity: str) -> object:
    """What has to change for a line of its own: not the time until the next attempt."""
    if status.held_up:
        return [(held_up.context_id, held_up.call, held_up.attempts) for held_up in status.held_up]
    return activity.partition(NEXT_ATTEMPT)[0]


async def _poll_activity(run: Run, show: Callable[[str, object], None], *, unattended: bool) -> None:
    failure = None
    while True:
        with contextlib.suppress(PerdureError):  # waiting for the run's end reports it
            status = await run.status()
            if activity := format_activity(status):
                show(activity, _build_activity_key(status, activity))
            if unattended and status.state == "paused" and status.pause is None and status.at_limit is None:
                failure = status.reason
        if failure is not None:
            hint = f"perdure resume {run.id} goes on when the cause is gone."
            raise RunStuckError(f"run {run.id!r} is paused: {failure}", hint=hint)
        await asyncio.sleep(STATUS_POLL_SECONDS)


@contextmanager
def _open_activity_display(id: str, *, announce: bool) -> Iterator[Callable[[str, object], None]]:
    """Yield what shows a text, on a terminal in place of the one before, elsewhere as a line if its key is new."""
    if not sys.stderr.isatty():
        if announce:
            print_line(f"run {id}", error=True)
        shown: object = None

        def print_new(text: str, key: object) -> None:
            nonlocal shown
            if key != shown:
                print_line(f"  {text}", error=True)
            shown = key

        yield print_new
        return
    from rich.console import Console
    from rich.markup import escape

    console = Console(stderr=True, highlight=False)
    label = f"[bold]{escape(escape_line(id))}[/]"
    with console.status(label) as live:
        yield lambda text, _: live.update(f"{label}  {escape(escape_line(text))}")


# ---
# Waiting, and the error if no worker is there.

_UNSERVED_SECONDS = 5.0
"""Seconds without an answer after which the run's status is read, which takes as long again without a worker."""


async def wait_for_delivery(run: Run, sending: Coroutine[Any, Any, T], message_id: str | None = None) -> T:
    """Wait until a worker has accepted ``sending``, and return its result.

    Raises ``NoWorkerError`` when no worker accepts it or answers a status query within 10 s.
    """
    task = asyncio.ensure_future(sending)
    try:
        while not task.done():
            await asyncio.wait({task}, timeout=_UNSERVED_SECONDS)
            if not task.done() and await _is_unserved(run) and not task.done():
                queue = (await run.handle.describe()).task_queue
                hint = f"Conversation {run.id!r} waits for one: perdure worker FILE --task-queue {queue}"
                if message_id is not None:
                    hint += "\nWhether the message will be delivered is not known. "
                    hint += f"Sent again with --message-id {message_id} it counts once."
                seconds = 2 * _UNSERVED_SECONDS
                raise NoWorkerError(f"no worker has polled task queue {queue!r} for {seconds:g} s", hint=hint)
        return task.result()
    finally:
        task.cancel()


async def _is_unserved(run: Run) -> bool:
    try:
        status = await run.status()
    except RunNotFoundError:  # the server has not got it yet
        return False
    return status.state in ("running", "held_up") and status.doing == "nothing"


async def wait_while_served(run: Run, ending: Coroutine[Any, Any, T]) -> T:
    """The result of ``ending``, which comes when the run has closed.

    Raises ``NoWorkerError`` if no worker takes a task of the run for 10 s; ``RunStuckError`` if the task fails.
    """
    from ..client.tasks import background_task, wait_beside

    async with background_task(_watch_workflow_task(run)) as watching:
        return await wait_beside(ending, watching)


async def _watch_workflow_task(run: Run) -> None:
    """Return when the run has closed; raise the reason why it cannot."""
    from temporalio.api.enums.v1 import PendingWorkflowTaskState

    from ..client.visibility import build_closed_status
    from ..temporal.workflow_tasks import find_failing_task

    loop = asyncio.get_running_loop()
    since, scheduled = loop.time(), None
    while True:
        described = await run.describe()
        if build_closed_status(described) is not None:
            return
        if (failing := await find_failing_task(run.client.temporal, described)) is not None:
            hint = f"{failing.way_out} To end it without a worker: perdure terminate {run.id}"
            raise RunStuckError(f"run {run.id!r} cannot end: {failing}", hint=hint)
        task = described.raw_description.pending_workflow_task
        is_waiting = task.state == PendingWorkflowTaskState.PENDING_WORKFLOW_TASK_STATE_SCHEDULED
        if not is_waiting or task.scheduled_time != scheduled:
            since, scheduled = loop.time(), task.scheduled_time
        elif loop.time() - since >= 2 * _UNSERVED_SECONDS:
            queue, seconds = described.task_queue, 2 * _UNSERVED_SECONDS
            hint = f"The run ends as soon as a worker serves it: perdure worker FILE --task-queue {queue}"
            hint += f"\nTo end it without one: perdure terminate {run.id}"
            raise NoWorkerError(f"no worker of task queue {queue!r} has answered for {seconds:g} s", hint=hint)
        await asyncio.sleep(STATUS_POLL_SECONDS)


async def wait_for_answer(run: Run, read: Callable[[], Coroutine[Any, Any, Response]]) -> Response:
    """The answer that ``read`` waits for; it is called again after an outage of the server, which is said on stderr.
    Raises ``NoWorkerError`` for a run that no worker takes up.

    Ends the command with exit code 1 if the run or turn failed, whatever its error would mean elsewhere.
    """
    async with watch_for_outages(run.client) as server:
        return await _wait_for_begun_answer(run, server, read)


async def _wait_for_begun_answer(
    run: Run, server: ServerWatch, read: Callable[[], Coroutine[Any, Any, Response]]
) -> Response:
    answering = asyncio.ensure_future(server.retry(read))
    begun = asyncio.ensure_future(server.retry(run.begun))
    try:
        await asyncio.wait({answering, begun}, return_when=asyncio.FIRST_COMPLETED)
        if not answering.done():
            await begun
        try:
            return await answering
        except (RunNotFoundError, ServerUnreachableError):
            raise
        except PerdureError as error:
            print_error(error)
            print_line(f"run {run.id}; `perdure show {run.id}` has its conversation", error=True)
            raise typer.Exit(1) from error
    finally:
        for task in (answering, begun):
            task.cancel()


def run(
    agent: AgentArgument,
    message: MessageArgument = None,
    input: InputOption = None,
    file: FileOption = None,
    attach: AttachOption = None,
    detach: Annotated[bool, typer.Option("--detach", "-d", help="Print the id and exit.")] = False,
    follow: Annotated[
        bool, typer.Option("--follow", help="Print replies as they are written, and every call.")
    ] = False,
    id: Annotated[str | None, typer.Option(help="Id of the run; generated by default.")] = None,
    context: ContextOption = None,
    tenant: TenantOption = None,
    user: UserOption = None,
    task_queue: TaskQueueOption = None,
    *,
    server: StoreOptions,
    output: OutputOptions,
) -> None:
    """Start a run and print its answer; its activity is shown on stderr. Ctrl-C leaves the run running.

    With --follow the replies are printed as they are written, and other events on stderr; with -o jsonl as well, every
    event is printed, one a line.
    """
    if detach and follow:
        raise InvalidInputError("-d exits at once, --follow does not", hint="perdure events ID -f follows a run later.")
    if detach and file:
        hint = "Serve the file in a process of its own: perdure dev FILE, or perdure worker FILE."
        raise InvalidInputError("-d exits at once, and with it the worker of --file", hint=hint)
    content, context_value = read_run_input(message, input, attach), parse_json_object(context)
    run_id: str | None = None

    async def start_and_wait() -> Response | None:
        from .worker import open_client_for_agent

        nonlocal run_id
        async with open_client_for_agent(server, agent, file=file, task_queue=task_queue) as (client, target):
            if follow:
                await client.store()  # events need one: raised before the run is started
            run = await _start_known(client, target, content, id=id, context=context_value, tenant=tenant, user=user)
            run_id = run.id
            if detach:
                return None
            if follow:
                print_line(f"run {run.id}", error=True)
                return await wait_for_answer(run, _build_printing_read(run, output))
            async with show_activity(run):
                return await wait_for_answer(run, run.result)

    try:
        response = asyncio.run(start_and_wait())
    except KeyboardInterrupt:
        if run_id is not None:
            _print_next_commands(run_id, file)
        raise
    if response is None:
        output.print_result({"id": run_id}, str(run_id))
    elif not follow or output.format == "json":
        output.print_answer(response)


async def _start_known(client: Client, agent: str | AgentSpec, content: Any, **options: Any) -> Run:
    """Start a run. Raises ``AgentNotFoundError`` for the name of an agent that no worker has recorded."""
    from ..client.agents import refuse_unknown_agent

    if isinstance(agent, str):
        await refuse_unknown_agent(client, agent)
    return await client.start(agent, content, **options)


def _print_next_commands(run_id: str, file: str | None) -> None:
    print_line(f"run {run_id} goes on" if file is None else f"run {run_id} waits for a worker", error=True)
    commands = [] if file is None else [f"dev {file}"]
    for command in (*commands, f"show {run_id}", f"cancel {run_id}"):
        print_line(f"  perdure {command}", error=True)


def _build_printing_read(run: Run, output: OutputOptions) -> Callable[[], Coroutine[Any, Any, Response]]:
    """Build what prints the events of the run, called again those that it has not printed, and returns the answer."""
    text = sys.stderr if output.format == "json" else sys.stdout
    printer = EventPrinter(text, sys.stderr, brief=True)
    printed = 0

    async def print_until_result() -> Response:
        nonlocal printed
        async for event in run.events(printed):
            if output.format == "jsonl":
                output.print_json(event.model_dump(mode="json", exclude_none=True))
            else:
                printer.print_event(event)
            printed = max(event.seq, printed)
        return await run.result()

    return print_until_result


def wait(
    id: RunArgument,
    turn: Annotated[str | None, typer.Option(metavar="TASK", help="Id of the turn; by default the last one.")] = None,
    *,
    server: StoreOptions,
    output: OutputOptions,
) -> None:
    """Wait for the answer of a run, or of a session's turn, and print it; its activity is shown on stderr."""

    async def wait_and_show(run: Run) -> Response:
        async with show_activity(run):
            return await wait_for_answer(run, lambda: _wait_for_turn_or_run(run, turn))

    output.print_answer(call_run(server, id, wait_and_show))


async def _wait_for_turn_or_run(run: Run, task_id: str | None) -> Response:
    """A session has an answer for each turn, a run only one."""
    if task_id is None and (await run.status()).mode != "session":
        return await run.result()
    return await run.turn(task_id).result()
