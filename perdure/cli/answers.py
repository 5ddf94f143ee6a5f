"""Waiting for an answer, and saying so when there is nobody who could give it."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

import typer

from ..errors import NoWorkerError, PerdureError, RunNotFoundError
from ..printing import print_line, print_text
from .failure import report
from .options import Output, print_json

if TYPE_CHECKING:
    from ..run import Run
    from ..types.interface import Response

T = TypeVar("T")

_QUIET = 5.0
"""Seconds without an answer after which the run is asked; it is given as long again (``Run.status``)."""


async def delivered(run: Run, sending: Coroutine[Any, Any, T]) -> T:
    """What ``sending`` comes to, which a worker has to take.

    Raises ``NoWorkerError`` when nobody takes it for 10 s and nobody answers for the run either.
    """
    task = asyncio.ensure_future(sending)
    try:
        while not task.done():
            await asyncio.wait({task}, timeout=_QUIET)
            if not task.done() and await _unserved(run) and not task.done():
                queue = (await run.handle.describe()).task_queue
                raise NoWorkerError(
                    f"no worker has polled task queue {queue!r} for {2 * _QUIET:g} s",
                    hint=f"Conversation {run.id!r} waits for one: perdure worker FILE --task-queue {queue}",
                )
        return task.result()
    finally:
        task.cancel()


async def _unserved(run: Run) -> bool:
    try:
        status = await run.status()
    except RunNotFoundError:  # the server has not got it yet
        return False
    return status.state == "running" and status.doing == "nothing"


async def answer(run: Run, result: Coroutine[Any, Any, Response]) -> Response:
    """The answer that ``result`` waits for. Raises ``NoWorkerError`` for a run that nobody takes up.

    Ends the command with 1 when the run or turn failed, whatever its error would mean elsewhere.
    """
    answering = asyncio.ensure_future(result)
    begun = asyncio.ensure_future(run.begun())
    try:
        await asyncio.wait({answering, begun}, return_when=asyncio.FIRST_COMPLETED)
        if not answering.done():
            await begun
        try:
            return await answering
        except PerdureError as error:
            if isinstance(error, RunNotFoundError):
                raise
            report(error)
            print_line(f"run {run.id}; `perdure show {run.id}` has its conversation", error=True)
            raise typer.Exit(1) from error
    finally:
        for task in (answering, begun):
            task.cancel()


def print_answer(response: Response, output: Output) -> None:
    """The answer alone, on stdout."""
    if output is Output.TEXT:
        print_text(text_of(response))
    else:
        print_json(response.model_dump(mode="json"), output=output)


def text_of(response: Response) -> str:
    """The answer; what stands in for one that only the store has is said on stderr."""
    if response.blob is not None and not response.content:
        print_line(
            f"the answer has {response.blob.size:,} bytes and is in the run's store: name it with PERDURE_STORE_URL",
            error=True,
        )
    return response.content
