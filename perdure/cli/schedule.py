"""``perdure schedule``: runs that start at certain times."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

import typer

from .._terminal import truncate_text
from .connection import ActorOptions, ActorStoreOptions, ServerOptions, call_client, require_one_id
from .options import (
    AgentArgument,
    AttachOption,
    Commands,
    ContextOption,
    IdleOption,
    InputOption,
    MessageArgument,
    TaskQueueOption,
    TenantOption,
    UserOption,
    parse_json_object,
    read_run_input,
)
from .output import OutputOptions, Row

if TYPE_CHECKING:
    from ..client.client import Client
    from ..client.schedules import Schedule, ScheduleStatus

T = TypeVar("T")
NoteOption = Annotated[str | None, typer.Option("--note", "-m", help="Why.")]
OverlapChoice = Literal["skip", "buffer_one", "buffer_all", "cancel_other", "terminate_other", "allow_all"]
"""``Overlap`` of the client, whose module this one does not import."""
CronOption = Annotated[list[str] | None, typer.Option(help='A cron expression, "0 7 * * 1-5"; repeatable.')]
TimezoneOption = Annotated[str | None, typer.Option(help="Time zone of --cron: Europe/Lisbon; by default UTC.")]
OverlapOption = Annotated[OverlapChoice, typer.Option(help="When a run is due and the last one has not ended.")]
AuthRefOption = Annotated[str | None, typer.Option(help="On whose behalf the runs act; the worker resolves it.")]


def create(
    agent: AgentArgument,
    id: Annotated[str, typer.Option(help="Id of the schedule; the ids of its runs add the time.")],
    message: MessageArgument = None,
    input: InputOption = None,
    attach: AttachOption = None,
    cron: CronOption = None,
    every: Annotated[str | None, typer.Option(help="How often: 90s, 15m, 1h, 1d.")] = None,
    timezone: TimezoneOption = None,
    overlap: OverlapOption = "skip",
    paused: Annotated[bool, typer.Option("--paused", help="Start no runs until it is resumed.")] = False,
    note: NoteOption = None,
    replace: Annotated[bool, typer.Option("--replace", help="Replace a schedule of this id.")] = False,
    session: Annotated[bool, typer.Option("--session", help="Each run waits for more messages.")] = False,
    idle_timeout: IdleOption = None,
    context: ContextOption = None,
    auth_ref: AuthRefOption = None,
    tenant: TenantOption = None,
    user: UserOption = None,
    task_queue: TaskQueueOption = None,
    *,
    server: ActorStoreOptions,
    output: OutputOptions,
) -> None:
    """Create a schedule of runs, and print when the first is due."""
    content = read_run_input(message, input, attach)

    async def create_schedule(client: Client) -> ScheduleStatus:
        schedule = await client.schedule(
            agent,
            content,
            id=id,
            cron=cron,
            every=every,
            timezone=timezone,
            overlap=overlap,
            paused=paused,
            note=note,
            if_exists="replace" if replace else "error",
            mode="session" if session else "run",
            idle_timeout=idle_timeout,
            context=parse_json_object(context),
            auth_ref=auth_ref,
            tenant=tenant,
            user=user,
        )
        return await schedule.describe()

    status = call_client(server, create_schedule, task_queue=task_queue)
    output.print_result(asdict(status), f"{status.id}  {_format_next_time(status)}")


ScheduleArgument = Annotated[str, typer.Argument(metavar="ID", help="Id of the schedule, or a unique beginning of it.")]


def list_schedules(
    agent: Annotated[str | None, typer.Option(help="Only schedules of this agent.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="At most this many.")] = 100,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Only the ids, one a line.")] = False,
    *,
    server: ServerOptions,
    output: OutputOptions,
) -> None:
    """List schedules, ordered by id."""
    schedules = call_client(server, lambda client: client.schedules(agent=agent, limit=limit))
    output.print_list(schedules, ("ID", "AGENT", "WHEN", "NEXT"), _format_row, quiet=quiet, empty="no schedules")


def _format_row(status: ScheduleStatus) -> Row:
    return status.id, status.agent, _format_schedule_times(status), _format_next_time(status)


def show(id: ScheduleArgument, *, server: ServerOptions, output: OutputOptions) -> None:
    """Show what a schedule starts, when it is due, and the last runs that it started."""
    status = _call_schedule(server, id, lambda schedule: schedule.describe())
    output.print_result(asdict(status), (f"{name:<9} {fact}" for name, fact in _build_schedule_facts(status)))


def pause(id: ScheduleArgument, note: NoteOption = None, *, server: ActorOptions, output: OutputOptions) -> None:
    """Pause a schedule: it starts no runs until it is resumed. Its open runs go on."""
    _act_and_print(server, id, "paused", lambda schedule: schedule.pause(note=note), output)


def resume(id: ScheduleArgument, note: NoteOption = None, *, server: ActorOptions, output: OutputOptions) -> None:
    """Resume a paused schedule. Runs that were due while it was paused are skipped."""
    _act_and_print(server, id, "resumed", lambda schedule: schedule.resume(note=note), output)


def trigger(
    id: ScheduleArgument,
    overlap: Annotated[OverlapChoice | None, typer.Option(help="For this run; else as the schedule says.")] = None,
    *,
    server: ServerOptions,
    output: OutputOptions,
) -> None:
    """Start a run of a schedule now, even if it is paused."""
    _act_and_print(server, id, "triggered", lambda schedule: schedule.trigger(overlap=overlap), output)


def delete(id: ScheduleArgument, *, server: ServerOptions, output: OutputOptions) -> None:
    """Delete a schedule. Its open runs go on."""
    _act_and_print(server, id, "deleted", lambda schedule: schedule.delete(), output)


def _call_schedule(server: ServerOptions, id: str, act: Callable[[Schedule], Awaitable[T]]) -> T:
    """The result of ``act``, which is called with the schedule that ``id`` names."""

    async def find_and_act(client: Client) -> T:
        return await act(await _find_schedule(client, id))

    return call_client(server, find_and_act)


def _act_and_print(
    server: ServerOptions, id: str, state: str, act: Callable[[Schedule], Awaitable[object]], output: OutputOptions
) -> None:
    """Do ``act`` to the schedule, and print that it is ``state``."""

    async def act_on_schedule(schedule: Schedule) -> None:
        await act(schedule)
        output.print_result({"id": schedule.id, state: True}, f"{schedule.id} is {state}")

    _call_schedule(server, id, act_on_schedule)


async def _find_schedule(client: Client, prefix: str) -> Schedule:
    """The schedule whose id is ``prefix``, or the only one whose id begins with it.

    Raises ``ScheduleNotFoundError``; ``InvalidInputError``, which names the candidates, if there are several.
    """
    from ..client.schedules import list_schedule_ids
    from ..errors import ScheduleNotFoundError

    try:
        await client.get_schedule(prefix).describe()
    except ScheduleNotFoundError:
        ids = await list_schedule_ids(client.temporal, prefix)
        if not ids or not prefix:
            raise
        return client.get_schedule(require_one_id(prefix, ids, "schedules"))
    return client.get_schedule(prefix)


def _build_schedule_facts(status: ScheduleStatus) -> Iterator[tuple[str, str]]:
    """The lines of ``perdure schedule show``, as pairs of label and text."""
    yield "id", status.id
    yield "agent", status.agent
    yield "says", _format_schedule_message(status.start)
    yield "when", _format_schedule_times(status)
    yield "overlap", status.overlap
    yield "next", _format_next_time(status)
    if status.note:
        yield "note", status.note
    yield "begun", f"{status.begun}, {len(status.running)} of them not over; {status.skipped} skipped"
    for run in reversed(status.recent):
        yield "run", run.id


def _format_schedule_message(start: dict[str, Any]) -> str:
    """The message of its runs, or their input, in a line."""
    message = start.get("message")
    if not isinstance(message, dict):
        return str(message or "")
    content = message.get("content") if message.get("input") is None else message["input"]
    return truncate_text(" ".join(str(content).split()), 200)


def _format_schedule_times(status: ScheduleStatus) -> str:
    return "; ".join(status.when) + (f" ({status.timezone})" if status.timezone else "")


def _format_next_time(status: ScheduleStatus) -> str:
    if status.paused:
        return "paused"
    return f"{status.next[0]:%Y-%m-%d %H:%M:%S} UTC" if status.next else "never"


app = Commands(help="Runs that start at certain times.", no_args_is_help=True)
app.add(create)
app.add(list_schedules, name="list")
app.add(show, pause, resume, trigger, delete)
