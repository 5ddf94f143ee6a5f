"""``perdure schedule create``."""

from __future__ import annotations

import asyncio
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from ..printing import print_line
from .connection import connected
from .options import (
    AgentArgument,
    AttachOption,
    ByOption,
    ContextOption,
    IdleOption,
    InputOption,
    MessageArgument,
    Output,
    OutputOptions,
    QueueOption,
    StoreOptions,
    asked,
    json_object,
    print_json,
)
from .schedule_lines import due, plain

if TYPE_CHECKING:
    from ..schedule import ScheduleStatus

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
ZoneOption = Annotated[str | None, typer.Option(help="Of --cron: Europe/Lisbon; UTC without.", show_default=False)]
OverlapOption = Annotated[OverlapChoice, typer.Option(help="When one is due and the last is not over.")]
AuthOption = Annotated[str | None, typer.Option(help="On whose behalf: what the worker resolves.", show_default=False)]


def create(
    agent: AgentArgument,
    id: Annotated[str, typer.Option(help="Id of the schedule; its runs have the time appended.")],
    message: MessageArgument = None,
    input: InputOption = None,
    attach: AttachOption = None,
    cron: CronOption = None,
    every: Annotated[str | None, typer.Option(help="How often: 90s, 15m, 1h, 1d.", show_default=False)] = None,
    timezone: ZoneOption = None,
    overlap: OverlapOption = OverlapChoice.SKIP,
    paused: Annotated[bool, typer.Option("--paused", help="It begins nothing until it is resumed.")] = False,
    note: NoteOption = None,
    replace: Annotated[bool, typer.Option("--replace", help="In the place of a schedule of this id.")] = False,
    session: Annotated[bool, typer.Option("--session", help="Each run waits for more messages.")] = False,
    idle_timeout: IdleOption = None,
    context: ContextOption = None,
    auth_ref: AuthOption = None,
    by: ByOption = None,
    task_queue: QueueOption = None,
    *,
    server: StoreOptions,
    output: OutputOptions,
) -> None:
    """Begin a run at certain times; prints when first."""
    said = asked(message, input, attach)

    async def go() -> ScheduleStatus:
        async with connected(server, task_queue=task_queue, actor=by) as client:
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
                context=json_object(context),
                auth_ref=auth_ref,
            )
            return await made.describe()

    status = asyncio.run(go())
    if output is not Output.TEXT:
        print_json(plain(status), output=output)
    else:
        print_line(f"{status.id}  {due(status)}")
