"""A conversation as a person wants to read it: numbered iterations, calls with their arguments, results shortened."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import sys
import textwrap
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import typer

from ..errors import (
    DefinitionError,
    InvalidInputError,
    NoWorkerError,
    PerdureError,
    RunNotFoundError,
    RuntimeSetupError,
    ScheduleNotFoundError,
)
from ..terminal import print_line, print_text, printable, styled
from .options import Output, print_json

if TYPE_CHECKING:
    from ..client.run import Run
    from ..types.interface import Response
    from ..types.messages import FilePart, Message, ToolResultPart


_MARGIN = 8
_WIDEST = 110
_RESULT_LINES = 3
_SYSTEM_LINES = 2
_ARGUMENT = 60


def colours() -> bool:
    """Whether stdout takes colours."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR")


def width() -> int:
    """Columns to write in: the terminal's, but no more than is good to read."""
    return min(shutil.get_terminal_size((100, 24)).columns, _WIDEST)


def conversation(
    messages: Sequence[Message], *, full: bool = False, colour: bool = False, since: int = 0
) -> Iterator[str]:
    """The lines of a conversation, from its iteration ``since`` on. ``full``: nothing is shortened."""
    from ..types.messages import file_parts

    iteration = since
    withheld: set[str] = set()
    results: dict[str, ToolResultPart] = {part.call_id: part for message in messages for part in message.tool_results}
    for message in messages:
        if message.role == "assistant":
            iteration += 1
            label = styled(f"[{iteration}]".ljust(_MARGIN), "bold", on=colour)
            for one in message.withheld:
                if one.key not in withheld:
                    said = f"(withheld from here on: {printable(one.what)}: {printable(one.reason)})"
                    yield from _block(" " * _MARGIN, _wrapped(said), "yellow", colour=colour)
            withheld = {one.key for one in message.withheld}
            yield from _assistant(message, label, results, full=full, colour=colour)
        elif message.role == "system":
            lines = _cut(message.text, None if full else _SYSTEM_LINES)
            yield from _block(styled("system".ljust(_MARGIN), "dim", on=colour), lines, "dim", colour=colour)
        elif message.role == "user":
            label = styled("user".ljust(_MARGIN), "cyan", on=colour)
            lines = [*_wrapped(message.text), *(shown_file(part) for part in file_parts([message]))]
            yield from _block(label, lines, "cyan", colour=colour)


def _assistant(
    message: Message, label: str, results: Mapping[str, ToolResultPart], *, full: bool, colour: bool
) -> Iterator[str]:
    lines = _wrapped(message.text.strip())
    if lines:
        yield from _block(label, lines, None, colour=colour)
        label = " " * _MARGIN
    for call in message.tool_calls:
        said = call.malformed if call.malformed is not None else arguments(call.arguments, full=full)
        yield f"{label}{styled('→', 'blue', on=colour)} {styled(call.name, 'blue', on=colour)}({said})"
        label = " " * _MARGIN
        result = results.get(call.id)
        if result is None:
            yield f"{label}{styled('… no result yet', 'yellow', on=colour)}"
        else:
            yield from _result(result, full=full, colour=colour)
    if not lines and not message.tool_calls:
        yield f"{label}{styled('(an empty reply)', 'dim', on=colour)}"


def _result(result: ToolResultPart, *, full: bool, colour: bool) -> Iterator[str]:
    files = [shown_file(part) for part in result.files]
    text = result.content or ("" if files else "(nothing)")
    lines = [*_cut(text, None if full else _RESULT_LINES, indent=2), *files]
    style = "red" if result.is_error else "dim"
    by = f"{printable(result.answered_by)}: " if result.answered_by else ""
    mark = styled(f"{'✗' if result.is_error else '←'} {by}", style, on=colour)
    yield from _block(" " * _MARGIN + mark, lines, style, colour=colour, indent=_MARGIN + 2)


def shown_file(part: FilePart) -> str:
    """A file in a line: ``[image cat.png, image/png, 12 KB]``."""
    said = [f"{'image' if part.is_image else 'file'} {part.name or part.url or ''}".rstrip(), part.media_type]
    if part.blob is not None:
        said.append(_bytes(part.blob.size))
    return f"[{printable(', '.join(said))}]"


def _bytes(size: int) -> str:
    if size < 1024:
        return f"{size} B"
    return f"{size / 1024:.0f} KB" if size < 1024 * 1024 else f"{size / 1024 / 1024:.1f} MB"


def arguments(given: Mapping[str, Any], *, full: bool = False) -> str:
    """A call's arguments, long ones shortened."""
    shown = []
    for name, value in given.items():
        text = json.dumps(value, ensure_ascii=False)
        shown.append(f"{name}={text if full or len(text) <= _ARGUMENT else text[:_ARGUMENT] + '…'}")
    return ", ".join(shown)


def _block(
    label: str, lines: Sequence[str], style: str | None, *, colour: bool, indent: int = _MARGIN
) -> Iterator[str]:
    for number, line in enumerate(lines):
        start = label if number == 0 else " " * indent
        yield f"{start}{styled(line, style, on=colour) if style else line}".rstrip()


def _cut(text: str, most: int | None, indent: int = 0) -> list[str]:
    """The first lines, and how much was left out."""
    if most is None:
        return _wrapped(text, indent)
    # What cannot be shown need not be wrapped: a result may have megabytes.
    lines = _wrapped(text[: most * _WIDEST * 2].strip(), indent)
    if len(lines) <= most and len(text) <= most * _WIDEST * 2:
        return lines
    return [*lines[:most], f"… {len(text):,} characters in all"]


def _wrapped(text: str, indent: int = 0) -> list[str]:
    columns = max(width() - _MARGIN - indent, 30)
    lines: list[str] = []
    for line in text.splitlines():
        lines += textwrap.wrap(printable(line), columns, replace_whitespace=False, break_on_hyphens=False) or [""]
    return lines


# ---
# How a command fails: one clear message on stderr, and an exit code that a script can use.
#
# 0 done · 1 the run or command failed · 2 usage · 3 not found · 4 no server or worker · 130 interrupted


INTERRUPTED = 130
"""Exit code after Ctrl-C, as shells give it: 128 and the number of SIGINT."""

_CODES: tuple[tuple[type[PerdureError], int], ...] = (
    (RunNotFoundError, 3),
    (ScheduleNotFoundError, 3),
    (RuntimeSetupError, 4),
    (InvalidInputError, 2),
    (DefinitionError, 2),
)


def exit_code(error: PerdureError) -> int:
    """The exit code that stands for ``error``."""
    return next((code for kind, code in _CODES if isinstance(error, kind)), 1)


def report(error: PerdureError) -> int:
    """Print ``error`` and the way out on stderr; its exit code."""
    print_text(styled(_indented(f"error: {error.message}"), "red", on=_colours()), error=True)
    if error.hint:
        print_text(styled(_indented(f"hint: {error.hint}"), "dim", on=_colours()), error=True)
    return exit_code(error)


def _indented(text: str) -> str:
    """Further lines of ``text`` behind the first: a text from outside in it cannot pass for a line of ours."""
    return text.replace("\n", "\n  ")


def _colours() -> bool:
    return sys.stderr.isatty() and not os.environ.get("NO_COLOR")


# ---
# Waiting for an answer, and saying so when there is nobody who could give it.


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
