"""``perdure events``: what happened in a run, and with ``-f`` what happens, until it has ended."""

from __future__ import annotations

import asyncio
import sys
from typing import Annotated

import typer

from .connection import connected
from .options import Output, OutputOptions, RunArgument, StoreOptions, print_json


def events(
    id: RunArgument,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on until the run, or the turn, has ended.")
    ] = False,
    after: Annotated[int, typer.Option(min=0, help="Only those behind this number.")] = 0,
    turn: Annotated[
        str | None, typer.Option(metavar="TASK", help="Only those of this turn.", show_default=False)
    ] = None,
    children: Annotated[
        bool, typer.Option("--children/--no-children", help="With those of the subagents that it called.")
    ] = True,
    *,
    server: StoreOptions,
    output: OutputOptions,
) -> None:
    """Print what happened in a run. A follower that was cut off goes on with --after and the last number it saw."""

    async def go() -> None:
        from .conversation import colours
        from .event_lines import EventLines
        from .find import find_run

        lines = EventLines(colour=colours())
        listed = []
        async with connected(server) as client:
            run = await find_run(client, id)
            found = run.turn(turn) if turn is not None else run
            async for event in found.events(after, wait=follow, children=children):
                if output is Output.TEXT:
                    lines.show(event)
                elif output is Output.JSONL:
                    print_json(event.model_dump(mode="json", exclude_none=True), output=output)
                    sys.stdout.flush()
                else:
                    listed.append(event.model_dump(mode="json", exclude_none=True))
        lines.end_line()
        if output is Output.JSON:
            print_json(listed, output=output)

    try:
        asyncio.run(go())
    except KeyboardInterrupt:
        raise typer.Exit(130) from None
