"""``perdure schedule``: runs that begin at certain times."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict
from datetime import datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..terminal import escape_line, print_line
from .connection import ConnectionOptions, open_client
from .options import (
    AgentArgument,
    AttachOption,
    ByOption,
    Commands,
    ContextOption,
    IdleOption,
    InputOption,
    MessageArgument,
    OutputFormat,
    OutputOptions,
    ServerOptions,
    StoreOptions,
    TaskQueueOption,
    parse_json_object,
    print_json,
    read_run_input,
)

if TYPE_CHECKING:
    from ..client.client import Client
    from ..client.schedules import Schedule, ScheduleStatus


# ---
# A schedule as it is printed.


def serialize_schedule(status: ScheduleStatus) -> dict[str, Any]:
    """As JSON."""

    def values(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: values(one) for name, one in value.items()}
        if isinstance(value, tuple | list):
            return [values(one) for one in value]
        return value.isoformat() if isinstance(value, datetime) else value

    found: dict[str, Any] = values(asdict(status))
    return found


def build_schedule_facts(status: ScheduleStatus) -> list[tuple[str, str]]:
    """A line each: what it is called, and what it is."""
    found = [
        ("id", status.id),
        ("agent", status.agent),
        ("says", _format_schedule_message(status.start)),
        ("when", _format_schedule_times(status)),
    ]
    found += [("overlap", status.overlap), ("next", format_next_time(status))]
    found += [("note", status.note)] if status.note else []
    found += [("begun", f"{status.begun}, {len(status.running)} of them not over; {status.skipped} skipped")]
    return found + [("run", one.id) for one in reversed(status.recent)]


def _format_schedule_message(start: dict[str, Any]) -> str:
    """What its runs are asked, in a line."""
    message = start.get("message")
    if not isinstance(message, dict):
        return str(message or "")
    content = message.get("content") if message.get("input") is None else message["input"]
    text = " ".join((content if isinstance(content, str) else str(content)).split())
    return text if len(text) <= 200 else text[:200] + "…"


def _format_schedule_times(status: ScheduleStatus) -> str:
    return "; ".join(status.when) + (f" ({status.timezone})" if status.timezone else "")


def format_next_time(status: ScheduleStatus) -> str:
    """When it is due next."""
    if status.paused:
        return "paused"
    return f"{status.next[0]:%Y-%m-%d %H:%M:%S} UTC" if status.next else "never"


def print_schedule_table(found: Sequence[ScheduleStatus]) -> None:
    """A line each, under headings."""
    told = [
        tuple(map(escape_line, (one.id, one.agent, _format_schedule_times(one), format_next_time(one))))
        for one in found
    ]
    rows = [("ID", "AGENT", "WHEN", "NEXT"), *told]
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    for row in rows:
        print_line("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


# ---
# ``perdure schedule create``.


NoteOption = Annotated[str | None, typer.Option("--note", "-m", help="Why.", show_default=False)]


class OverlapChoice(StrEnum):
    """What becomes of a run that is due while the last one is not over."""

    SKIP = "skip"
    BUFFER_ONE = "buffer_one"
    BUFFER_ALL = "buffer_all"
    CANCEL_OTHER = "cancel_other"
    TERMINATE_OTHER = "terminate_other"
    ALLOW_ALL = "allow_all"


CronOption = Annotated[
    list[str] | None, typer.Option(help='A cron expression, "0 7 * * 1-5"; again for more.', show_default=False)
]
TimezoneOption = Annotated[str | None, typer.Option(help="Of --cron: Europe/Lisbon; UTC without.", show_default=False)]
OverlapOption = Annotated[OverlapChoice, typer.Option(help="When one is due and the last is not over.")]
AuthRefOption = Annotated[
    str | None, typer.Option(help="On whose behalf: what the worker resolves.", show_default=False)
]


def create(
    agent: AgentArgument,
    id: Annotated[str, typer.Option(help="Id of the schedule; its runs have the time appended.")],
    message: MessageArgument = None,
    input: InputOption = None,
    attach: AttachOption = None,
    cron: CronOption = None,
    every: Annotated[str | None, typer.Option(help="How often: 90s, 15m, 1h, 1d.", show_default=False)] = None,
    timezone: TimezoneOption = None,
    overlap: OverlapOption = OverlapChoice.SKIP,
    paused: Annotated[bool, typer.Option("--paused", help="It begins nothing until it is resumed.")] = False,
    note: NoteOption = None,
    replace: Annotated[bool, typer.Option("--replace", help="In the place of a schedule of this id.")] = False,
    session: Annotated[bool, typer.Option("--session", help="Each run waits for more messages.")] = False,
    idle_timeout: IdleOption = None,
    context: ContextOption = None,
    auth_ref: AuthRefOption = None,
    by: ByOption = None,
    task_queue: TaskQueueOption = None,
    *,
    server: StoreOptions,
    output: OutputOptions,
) -> None:
    """Begin a run at certain times; prints when first."""
    said = read_run_input(message, input, attach)

    async def go() -> ScheduleStatus:
        async with open_client(server, task_queue=task_queue, actor=by) as client:
            made = await client.schedule(
                agent,
                said,
                id=id,
                cron=cron,
                every=every,
                timezone=timezone,
                overlap=overlap.value,
                paused=paused,
                note=note,
                if_exists="replace" if replace else "error",
                mode="session" if session else "run",
                idle_timeout=idle_timeout,
                context=parse_json_object(context),
                auth_ref=auth_ref,
            )
            return await made.describe()

    status = asyncio.run(go())
    if output is not OutputFormat.TEXT:
        print_json(serialize_schedule(status), output=output)
    else:
        print_line(f"{status.id}  {format_next_time(status)}")


app = Commands(help="Runs that begin at certain times.", no_args_is_help=True)
app.command()(create)

ScheduleArgument = Annotated[
    str, typer.Argument(metavar="ID", help="Id of the schedule, or as much of it as is unique.")
]
_SCHEDULE_IDS_SHOWN = 3


@app.command("list")
def list_schedules(
    agent: Annotated[str | None, typer.Option(help="Only those of this agent.", show_default=False)] = None,
    limit: Annotated[int, typer.Option(min=1, help="At most so many.")] = 100,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Only the ids, one on a line.")] = False,
    *,
    server: ServerOptions,
    output: OutputOptions,
) -> None:
    """List schedules, by their ids."""

    async def go() -> list[ScheduleStatus]:
        async with open_client(server) as client:
            return await client.schedules(agent=agent, limit=limit)

    found = asyncio.run(go())
    if output is not OutputFormat.TEXT:
        print_json([one.id if quiet else serialize_schedule(one) for one in found], output=output)
    elif quiet:
        for one in found:
            print_line(one.id)
    elif found:
        print_schedule_table(found)
    else:
        print_line("no schedules", error=True)


@app.command()
def show(id: ScheduleArgument, *, server: ServerOptions, output: OutputOptions) -> None:
    """Show what a schedule starts, when it is due, and the last runs that it has begun."""
    status = _act_on_schedule(server, id, lambda schedule: schedule.describe())
    if output is not OutputFormat.TEXT:
        print_json(serialize_schedule(status), output=output)
        return
    for name, said in build_schedule_facts(status):
        print_line(f"{name:<9} {said}")


@app.command()
def pause(
    id: ScheduleArgument,
    note: NoteOption = None,
    by: ByOption = None,
    *,
    server: ServerOptions,
    output: OutputOptions,
) -> None:
    """Let a schedule begin nothing until it is resumed. Its runs go on."""
    _act_and_print(server, id, "paused", lambda schedule: schedule.pause(note=note), output, by=by)


@app.command()
def resume(
    id: ScheduleArgument,
    note: NoteOption = None,
    by: ByOption = None,
    *,
    server: ServerOptions,
    output: OutputOptions,
) -> None:
    """Let a paused schedule go on. What was due meanwhile is not made up for."""
    _act_and_print(server, id, "resumed", lambda schedule: schedule.resume(note=note), output, by=by)


@app.command()
def trigger(
    id: ScheduleArgument,
    overlap: Annotated[
        OverlapChoice | None, typer.Option(help="This time; else as the schedule says.", show_default=False)
    ] = None,
    *,
    server: ServerOptions,
    output: OutputOptions,
) -> None:
    """Begin a run of a schedule now, also of a paused one."""
    policy: Any = overlap.value if overlap else None
    _act_and_print(server, id, "triggered", lambda schedule: schedule.trigger(overlap=policy), output)


@app.command()
def delete(id: ScheduleArgument, *, server: ServerOptions, output: OutputOptions) -> None:
    """Take a schedule away. Runs that it has begun go on."""
    _act_and_print(server, id, "deleted", lambda schedule: schedule.delete(), output)


def _act_on_schedule(
    server: ConnectionOptions, id: str, act: Callable[[Schedule], Awaitable[Any]], *, by: str | None = None
) -> Any:
    """What ``act`` does with the schedule that ``id`` means."""

    async def go() -> Any:
        async with open_client(server, actor=by) as client:
            return await act(await _find_schedule(client, id))

    return asyncio.run(go())


def _act_and_print(
    server: ConnectionOptions,
    id: str,
    verb: str,
    act: Callable[[Schedule], Awaitable[Any]],
    output: OutputFormat,
    *,
    by: str | None = None,
) -> None:
    """Do it, and say so."""

    async def named(schedule: Schedule) -> str:
        await act(schedule)
        return schedule.id

    name = _act_on_schedule(server, id, named, by=by)
    if output is OutputFormat.TEXT:
        print_line(f"{name} is {verb}")
    else:
        print_json({"id": name, verb: True}, output=output)


async def _find_schedule(client: Client, prefix: str) -> Schedule:
    """The schedule whose id is ``prefix``, or the only one whose id begins so.

    Raises ``ScheduleNotFoundError``; ``InvalidInputError`` when there are several, which it names.
    """
    from ..client.schedules import list_schedule_ids
    from ..errors import InvalidInputError, ScheduleNotFoundError

    try:
        await client.get_schedule(prefix).describe()
    except ScheduleNotFoundError:
        ids = await list_schedule_ids(client.temporal, prefix)
        if not ids or not prefix:
            raise
        if len(ids) > 1:
            shown = ", ".join(ids[:_SCHEDULE_IDS_SHOWN]) + (", …" if len(ids) > _SCHEDULE_IDS_SHOWN else "")
            raise InvalidInputError(
                f"{len(ids)} schedules begin with {prefix!r}", hint=f"Give more of the id: {shown}"
            ) from None
        return client.get_schedule(ids[0])
    return client.get_schedule(prefix)
