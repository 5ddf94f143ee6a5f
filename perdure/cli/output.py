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
from ..terminal import escape_line, print_line, print_text, style_text
from .options import OutputFormat, print_json

if TYPE_CHECKING:
    from ..client.run import Run
    from ..types.interface import Response
    from ..types.messages import FilePart, Message, ToolResultPart


_MARGIN = 8
_MAX_COLUMNS = 110
_RESULT_LINES = 3
_SYSTEM_LINES = 2
_ARGUMENT_CHARS = 60


def can_colour_stdout() -> bool:
    """Whether stdout takes colours."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR")


def get_text_width() -> int:
    """Columns to write in: the terminal's, but no more than is good to read."""
    return min(shutil.get_terminal_size((100, 24)).columns, _MAX_COLUMNS)


def format_conversation(
    messages: Sequence[Message], *, full: bool = False, colour: bool = False, since: int = 0
) -> Iterator[str]:
    """The lines of a conversation, from its iteration ``since`` on. ``full``: nothing is shortened."""
    from ..types.messages import iter_file_parts

    iteration = since
    withheld: set[str] = set()
    results: dict[str, ToolResultPart] = {part.call_id: part for message in messages for part in message.tool_results}
    for message in messages:
        if message.role == "assistant":
            iteration += 1
            label = style_text(f"[{iteration}]".ljust(_MARGIN), "bold", on=colour)
            for one in message.withheld:
                if one.key not in withheld:
                    said = f"(withheld from here on: {escape_line(one.what)}: {escape_line(one.reason)})"
                    yield from _format_block(" " * _MARGIN, _wrap_text(said), "yellow", colour=colour)
            withheld = {one.key for one in message.withheld}
            yield from _format_reply(message, label, results, full=full, colour=colour)
        elif message.role == "system":
            lines = _wrap_excerpt(message.text, None if full else _SYSTEM_LINES)
            yield from _format_block(style_text("system".ljust(_MARGIN), "dim", on=colour), lines, "dim", colour=colour)
        elif message.role == "user":
            label = style_text("user".ljust(_MARGIN), "cyan", on=colour)
            lines = [*_wrap_text(message.text), *(format_file(part) for part in iter_file_parts([message]))]
            yield from _format_block(label, lines, "cyan", colour=colour)


def _format_reply(
    message: Message, label: str, results: Mapping[str, ToolResultPart], *, full: bool, colour: bool
) -> Iterator[str]:
    lines = _wrap_text(message.text.strip())
    if lines:
        yield from _format_block(label, lines, None, colour=colour)
        label = " " * _MARGIN
    for call in message.tool_calls:
        said = call.malformed if call.malformed is not None else format_arguments(call.arguments, full=full)
        yield f"{label}{style_text('→', 'blue', on=colour)} {style_text(call.name, 'blue', on=colour)}({said})"
        label = " " * _MARGIN
        result = results.get(call.id)
        if result is None:
            yield f"{label}{style_text('… no result yet', 'yellow', on=colour)}"
        else:
            yield from _format_result_part(result, full=full, colour=colour)
    if not lines and not message.tool_calls:
        yield f"{label}{style_text('(an empty reply)', 'dim', on=colour)}"


def _format_result_part(result: ToolResultPart, *, full: bool, colour: bool) -> Iterator[str]:
    files = [format_file(part) for part in result.files]
    text = result.content or ("" if files else "(nothing)")
    lines = [*_wrap_excerpt(text, None if full else _RESULT_LINES, indent=2), *files]
    style = "red" if result.is_error else "dim"
    by = f"{escape_line(result.answered_by)}: " if result.answered_by else ""
    mark = style_text(f"{'✗' if result.is_error else '←'} {by}", style, on=colour)
    yield from _format_block(" " * _MARGIN + mark, lines, style, colour=colour, indent=_MARGIN + 2)


def format_file(part: FilePart) -> str:
    """A file in a line: ``[image cat.png, image/png, 12 KB]``."""
    said = [f"{'image' if part.is_image else 'file'} {part.name or part.url or ''}".rstrip(), part.media_type]
    if part.blob is not None:
        said.append(_format_byte_size(part.blob.size))
    return f"[{escape_line(', '.join(said))}]"


def _format_byte_size(size: int) -> str:
    if size < 1024:
        return f"{size} B"
    return f"{size / 1024:.0f} KB" if size < 1024 * 1024 else f"{size / 1024 / 1024:.1f} MB"


def format_arguments(given: Mapping[str, Any], *, full: bool = False) -> str:
    """A call's arguments, long ones shortened."""
    shown = []
    for name, value in given.items():
        text = json.dumps(value, ensure_ascii=False)
        shown.append(f"{name}={text if full or len(text) <= _ARGUMENT_CHARS else text[:_ARGUMENT_CHARS] + '…'}")
    return ", ".join(shown)


def _format_block(
    label: str, lines: Sequence[str], style: str | None, *, colour: bool, indent: int = _MARGIN
) -> Iterator[str]:
    for number, line in enumerate(lines):
        start = label if number == 0 else " " * indent
        yield f"{start}{style_text(line, style, on=colour) if style else line}".rstrip()


def _wrap_excerpt(text: str, most: int | None, indent: int = 0) -> list[str]:
    """The first lines, and how much was left out."""
    if most is None:
        return _wrap_text(text, indent)
    # What cannot be shown need not be wrapped: a result may have megabytes.
    lines = _wrap_text(text[: most * _MAX_COLUMNS * 2].strip(), indent)
    if len(lines) <= most and len(text) <= most * _MAX_COLUMNS * 2:
        return lines
    return [*lines[:most], f"… {len(text):,} characters in all"]


def _wrap_text(text: str, indent: int = 0) -> list[str]:
    columns = max(get_text_width() - _MARGIN - indent, 30)
    lines: list[str] = []
    for line in text.splitlines():
        lines += textwrap.wrap(escape_line(line), columns, replace_whitespace=False, break_on_hyphens=False) or [""]
    return lines


# ---
# How a command fails: one clear message on stderr, and an exit code that a script can use.
#
# 0 done · 1 the run or command failed · 2 usage · 3 not found · 4 no server or worker · 130 interrupted


INTERRUPTED = 130
"""Exit code after Ctrl-C, as shells give it: 128 and the number of SIGINT."""

_EXIT_CODES: tuple[tuple[type[PerdureError], int], ...] = (
    (RunNotFoundError, 3),
    (ScheduleNotFoundError, 3),
    (RuntimeSetupError, 4),
    (InvalidInputError, 2),
    (DefinitionError, 2),
)


def get_exit_code(error: PerdureError) -> int:
    """The exit code that stands for ``error``."""
    return next((code for kind, code in _EXIT_CODES if isinstance(error, kind)), 1)


def print_error(error: PerdureError) -> int:
    """Print ``error`` and the way out on stderr; its exit code."""
    print_text(
        style_text(_indent_continuation_lines(f"error: {error.message}"), "red", on=_can_colour_stderr()), error=True
    )
    if error.hint:
        print_text(
            style_text(_indent_continuation_lines(f"hint: {error.hint}"), "dim", on=_can_colour_stderr()), error=True
        )
    return get_exit_code(error)


def _indent_continuation_lines(text: str) -> str:
    """Further lines of ``text`` behind the first: a text from outside in it cannot pass for a line of ours."""
    return text.replace("\n", "\n  ")


def _can_colour_stderr() -> bool:
    return sys.stderr.isatty() and not os.environ.get("NO_COLOR")


# ---
# Waiting for an answer, and saying so when there is nobody who could give it.


T = TypeVar("T")

_UNSERVED_SECONDS = 5.0
"""Seconds without an answer after which the run is asked; it is given as long again (``Run.status``)."""


async def wait_for_delivery(run: Run, sending: Coroutine[Any, Any, T]) -> T:
    """What ``sending`` comes to, which a worker has to take.

    Raises ``NoWorkerError`` when nobody takes it for 10 s and nobody answers for the run either.
    """
    task = asyncio.ensure_future(sending)
    try:
        while not task.done():
            await asyncio.wait({task}, timeout=_UNSERVED_SECONDS)
            if not task.done() and await _is_unserved(run) and not task.done():
                queue = (await run.handle.describe()).task_queue
                raise NoWorkerError(
                    f"no worker has polled task queue {queue!r} for {2 * _UNSERVED_SECONDS:g} s",
                    hint=f"Conversation {run.id!r} waits for one: perdure worker FILE --task-queue {queue}",
                )
        return task.result()
    finally:
        task.cancel()


async def _is_unserved(run: Run) -> bool:
    try:
        status = await run.status()
    except RunNotFoundError:  # the server has not got it yet
        return False
    return status.state == "running" and status.doing == "nothing"


async def wait_for_answer(run: Run, result: Coroutine[Any, Any, Response]) -> Response:
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
            print_error(error)
            print_line(f"run {run.id}; `perdure show {run.id}` has its conversation", error=True)
            raise typer.Exit(1) from error
    finally:
        for task in (answering, begun):
            task.cancel()


def print_answer(response: Response, output: OutputFormat) -> None:
    """The answer alone, on stdout."""
    if output is OutputFormat.TEXT:
        print_text(get_answer_text(response))
    else:
        print_json(response.model_dump(mode="json"), output=output)


def get_answer_text(response: Response) -> str:
    """The answer; what stands in for one that only the store has is said on stderr."""
    if response.blob is not None and not response.content:
        print_line(
            f"the answer has {response.blob.size:,} bytes and is in the run's store: name it with PERDURE_STORE_URL",
            error=True,
        )
    return response.content
