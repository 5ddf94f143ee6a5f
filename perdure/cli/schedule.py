"""``perdure schedule``: runs that begin at certain times."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..printing import print_line
from .connection import Server, connected
from .depends import Commands
from .options import ByOption, Output, OutputOptions, ServerOptions, print_json
from .schedule_create import NoteOption, OverlapChoice, create
from .schedule_lines import facts, plain, table

if TYPE_CHECKING:
    from ..client import Client
    from ..schedule import Schedule, ScheduleStatus

app = Commands(help="Runs that begin at certain times.", no_args_is_help=True)
app.command()(create)

ScheduleArgument = Annotated[
    str, typer.Argument(metavar="ID", help="Id of the schedule, or as much of it as is unique.")
]
_SHOWN = 3


@app.command("list")
def list_(
    agent: Annotated[str | None, typer.Option(help="Only those of this agent.", show_default=False)] = None,
    limit: Annotated[int, typer.Option(min=1, help="At most so many.")] = 100,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Only the ids, one on a line.")] = False,
    *,
    server: ServerOptions,
    output: OutputOptions,
) -> None:
    """List schedules, by their ids."""

    async def go() -> list[ScheduleStatus]:
        async with connected(server) as client:
            return await client.schedules(agent=agent, limit=limit)

    found = asyncio.run(go())
    if output is not Output.TEXT:
        print_json([one.id if quiet else plain(one) for one in found], output=output)
    elif quiet:
        for one in found:
            print_line(one.id)
    elif found:
        table(found)
    else:
        print_line("no schedules", error=True)


@app.command()
def show(id: ScheduleArgument, *, server: ServerOptions, output: OutputOptions) -> None:
    """Show what a schedule starts, when it is due, and the last runs that it has begun."""
    status = _on(server, id, lambda schedule: schedule.describe())
    if output is not Output.TEXT:
        print_json(plain(status), output=output)
        return
    for name, said in facts(status):
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
    _did(server, id, "paused", lambda schedule: schedule.pause(note=note), output, by=by)


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
    _did(server, id, "resumed", lambda schedule: schedule.resume(note=note), output, by=by)


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
    _did(server, id, "triggered", lambda schedule: schedule.trigger(overlap=policy), output)


@app.command()
def delete(id: ScheduleArgument, *, server: ServerOptions, output: OutputOptions) -> None:
    """Take a schedule away. Runs that it has begun go on."""
    _did(server, id, "deleted", lambda schedule: schedule.delete(), output)


def _on(server: Server, id: str, act: Callable[[Schedule], Awaitable[Any]], *, by: str | None = None) -> Any:
    """What ``act`` does with the schedule that ``id`` means."""

    async def go() -> Any:
        async with connected(server, actor=by) as client:
            return await act(await _find(client, id))

    return asyncio.run(go())


def _did(
    server: Server,
    id: str,
    verb: str,
    act: Callable[[Schedule], Awaitable[Any]],
    output: Output,
    *,
    by: str | None = None,
) -> None:
    """Do it, and say so."""

    async def named(schedule: Schedule) -> str:
        await act(schedule)
        return schedule.id

    name = _on(server, id, named, by=by)
    if output is Output.TEXT:
        print_line(f"{name} is {verb}")
    else:
        print_json({"id": name, verb: True}, output=output)


async def _find(client: Client, prefix: str) -> Schedule:
    """The schedule whose id is ``prefix``, or the only one whose id begins so.

    Raises ``ScheduleNotFoundError``; ``InvalidInputError`` when there are several, which it names.
    """
    from ..errors import InvalidInputError, ScheduleNotFoundError
    from ..scheduling import schedule_ids

    try:
        await client.get_schedule(prefix).describe()
    except ScheduleNotFoundError:
        ids = await schedule_ids(client.temporal, prefix)
        if not ids or not prefix:
            raise
        if len(ids) > 1:
            shown = ", ".join(ids[:_SHOWN]) + (", …" if len(ids) > _SHOWN else "")
            raise InvalidInputError(
                f"{len(ids)} schedules begin with {prefix!r}", hint=f"Give more of the id: {shown}"
            ) from None
        return client.get_schedule(ids[0])
    return client.get_schedule(prefix)
