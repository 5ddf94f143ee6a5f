"""``perdure wait``: the answer of a run, or of a turn of a conversation."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated

import typer

from .answers import answer, print_answer
from .connection import connected
from .options import OutputOptions, RunArgument, StoreOptions

if TYPE_CHECKING:
    from ..run import Run
    from ..types.interface import Response


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
        from .find import find_run
        from .progress import follow

        async with connected(server) as client:
            run = await find_run(client, id)
            async with follow(run):
                return await answer(run, _result(run, turn))

    try:
        response = asyncio.run(go())
    except KeyboardInterrupt:
        raise typer.Exit(130) from None
    print_answer(response, output)


async def _result(run: Run, task_id: str | None) -> Response:
    """A session has an answer for each turn, a run only one."""
    if task_id is None and (await run.status()).mode != "session":
        return await run.result()
    return await run.turn(task_id).result()
