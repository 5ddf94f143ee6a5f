"""What commands print: results as text or JSON, tables, conversations, and errors with their exit codes."""

from __future__ import annotations

import json
import os
import shutil
import sys
import textwrap
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from .._terminal import escape_line, print_json, print_line, print_text, style_text, truncate_text
from ..errors import (
    AgentNotFoundError,
    ApprovalForbiddenError,
    BulkActionNotFoundError,
    DefinitionError,
    InvalidInputError,
    MissingExtraError,
    PerdureError,
    RunNotFoundError,
    RuntimeSetupError,
    ScheduleNotFoundError,
    StoreError,
    WebhookNotFoundError,
    end_sentence,
)

if TYPE_CHECKING:
    from ..types.interface import HeldUp, Response
    from ..types.limits import LimitUse
    from ..types.messages import FilePart, Message, ToolResultPart


OutputFormat = Literal["text", "json", "jsonl"]
Row = tuple[str, ...]
"""A cell of text for each column of a table."""


@dataclass(frozen=True)
class OutputOptions:
    """``-o`` and ``--json``."""

    output: Annotated[OutputFormat, typer.Option("--output", "-o", help="Output format.")] = "text"
    as_json: Annotated[bool, typer.Option("--json", help="The same as -o json.")] = False

    @property
    def format(self) -> OutputFormat:
        """The format that both options name together."""
        return "json" if self.as_json else self.output

    def print_result(self, value: Any, text: str | Iterable[str]) -> None:
        """Print ``value`` as JSON, or ``text``, one line or several."""
        if self.format != "text":
            self.print_json(value)
            return
        for line in (text,) if isinstance(text, str) else text:
            print_line(line)

    def print_json(self, value: Any) -> None:
        """Print ``value`` as JSON; with ``jsonl``, each item of a list on a line of its own."""
        print_json(value, lines=self.format == "jsonl")

    def print_answer(self, response: Response) -> None:
        """Print the answer on stdout."""
        if self.format == "text":
            print_text(get_answer_text(response))
        else:
            self.print_json(response.model_dump(mode="json"))

    def print_list(
        self, items: Sequence[Any], headings: Row, format_row: Callable[[Any], Row], *, quiet: bool, empty: str
    ) -> None:
        """Print dataclasses with an ``id`` as a table, or with ``quiet`` only their ids."""
        ids = [item.id for item in items]
        if quiet:
            self.print_result(ids, ids)
        elif items or self.format != "text":
            rows = [headings, *(tuple(map(escape_line, format_row(item))) for item in items)]
            widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
            lines = ("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)
            self.print_result([_convert_to_plain(item) for item in items], lines)
        else:
            print_line(empty, error=True)


def _convert_to_plain(item: Any) -> dict[str, Any]:
    """The fields of a dataclass, without those that are not in its ``repr``: they are for perdure alone."""
    shown = {field.name for field in fields(item) if field.repr}
    return {name: value for name, value in asdict(item).items() if name in shown}


def get_answer_text(response: Response) -> str:
    """The answer. Prints a note on stderr if only the store has it."""
    if response.blob is not None and not response.content:
        size = f"{response.blob.size:,} bytes"
        print_line(f"the answer has {size} and is in the run's store: name it with PERDURE_STORE_URL", error=True)
    return response.content


# ---
# Amounts, rounded for people. JSON has them exactly.


def format_duration(seconds: float) -> str:
    """A length of time in its largest unit: ``40 s``, ``3 min``, ``5 h``, ``12 d``."""
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= size * (2 if unit == "d" else 1):
            return f"{seconds / size:.0f} {unit}"
    return f"{max(seconds, 0):.0f} s"


def format_held_up(held_up: HeldUp, run_id: str) -> str:
    """What holds the run ``run_id`` up: ``71 attempts of openai:gpt-5 in 33 min, last: ProviderServerError 500; next in
    12 s``, and whose call it is if it is a subagent's."""
    now = datetime.now(UTC)
    source = held_up.source or {"perdure.model": "a model call", "perdure.compact": "a summary"}.get(held_up.call, "")
    source = source or held_up.call
    where = "" if held_up.context_id == run_id else f" in subagent {held_up.context_id}"
    since = "" if held_up.since is None else f" in {_format_age(held_up.since, now)}"
    last = f"{held_up.error_type} {held_up.status}" if held_up.status is not None else held_up.error_type
    text = f"{held_up.attempts:,} attempts of {source}{where}{since}, last: {last}"
    if held_up.next_at is None:
        return text
    seconds = (datetime.fromisoformat(held_up.next_at) - now).total_seconds()
    return f"{text}; next in {format_duration(seconds)}" if seconds > 0 else f"{text}; next is due"


def _format_age(at: str, now: datetime) -> str:
    return format_duration((now - datetime.fromisoformat(at)).total_seconds())


def format_cost(cost_usd: float) -> str:
    """Dollars with two decimals, below one dollar with up to four: ``$12.30``, ``$0.50``, ``$0.0021``, ``<$0.0001``."""
    if 0 < cost_usd < 0.0001:
        return "<$0.0001"
    if cost_usd >= 0.99995:
        return f"${cost_usd:,.2f}"
    cents, rest = f"{cost_usd:.4f}"[:-2], f"{cost_usd:.4f}"[-2:]
    return f"${cents}{rest.rstrip('0')}"


def format_limit_use(use: LimitUse) -> str:
    """A limit and how much of it is used: ``str(use)``, but with money as :func:`format_cost` has it."""
    if use.name != "cost_usd":
        return str(use)
    return f"the {use.scope} has used {format_cost(use.used)} of {format_cost(use.allowed)} ({use.name})"


# ---
# A conversation: numbered iterations, calls with their arguments, results shortened.

_MARGIN = 8
_MAX_COLUMNS = 110
_RESULT_LINES = 3
_SYSTEM_LINES = 2
_ARGUMENT_CHARS = 60
_WRAPPED_CHARS = 10_000


def format_conversation(
    messages: Sequence[Message], *, full: bool = False, since: int = 0, call_ids: bool = False
) -> Iterator[str]:
    """The lines of a conversation, whose iterations are numbered from ``since`` on. ``full`` shortens nothing."""
    from ..types.messages import iter_file_parts

    iteration = since
    withheld: set[str] = set()
    results = {part.call_id: part for message in messages for part in message.tool_results}
    for message in messages:
        if message.role == "assistant":
            iteration += 1
            for part in message.withheld:
                if part.key not in withheld:
                    note = f"(withheld from here on: {escape_line(part.what)}: {escape_line(part.reason)})"
                    yield from _format_block("", _wrap_text(note), "yellow")
            withheld = {part.key for part in message.withheld}
            yield from _format_reply(message, iteration, results, full=full, call_ids=call_ids)
        elif message.role == "system":
            lines = _wrap_excerpt(message.text, None if full else _SYSTEM_LINES)
            yield from _format_block("system", lines, "dim")
        elif message.role == "user":
            lines = [*_wrap_text(message.text), *(format_file(part) for part in iter_file_parts([message]))]
            yield from _format_block("user", lines, "cyan")


def _format_reply(
    message: Message, iteration: int, results: Mapping[str, ToolResultPart], *, full: bool, call_ids: bool
) -> Iterator[str]:
    from ..types.interface import FINISH_TOOL

    blank = " " * _MARGIN
    label = style_text(f"[{iteration}]".ljust(_MARGIN), "bold")
    for line in _wrap_text(message.text.strip()):
        yield f"{label}{line}".rstrip()
        label = blank
    for call in message.tool_calls:
        result = results.get(call.id)
        if call.name == FINISH_TOOL and call.malformed is None and not (result and result.is_error):
            yield f"{label}{style_text('=', 'blue')} {format_arguments(call.arguments, full=full)}"
            label = blank
            continue
        arguments = format_arguments(call.arguments, full=full)
        if call.malformed is not None:
            arguments = call.malformed if full else truncate_text(call.malformed, _ARGUMENT_CHARS)
        call_id = style_text(f"  {call.id}", "dim") if call_ids else ""
        yield f"{label}{style_text(f'→ {call.name}', 'blue')}({arguments}){call_id}"
        label = blank
        if result is None:
            yield f"{label}{style_text('… no result yet', 'yellow')}"
        else:
            yield from _format_result_part(result, full=full)
    if message.finish_reason == "length":
        yield f"{label}{style_text('(cut by the output limit)', 'yellow')}"
    elif label != blank:
        yield f"{label}{style_text('(an empty reply)', 'dim')}"


def _format_result_part(result: ToolResultPart, *, full: bool) -> Iterator[str]:
    files = [format_file(part) for part in result.files]
    text = result.content or ("" if files else "(nothing)")
    lines = [*_wrap_excerpt(text, None if full else _RESULT_LINES, indent=2), *files]
    mark, style = ("✗", "red") if result.is_error else ("←", "dim")
    given = "" if result.given_by is None else f"given by {escape_line(result.given_by) or 'a client'}: "
    yield from _format_block(f"{' ' * _MARGIN}{mark} {given}", lines, style, indent=_MARGIN + 2)


def format_file(part: FilePart) -> str:
    """A file in a line: ``[image cat.png, image/png, 12 KB]``."""
    facts = [f"{'image' if part.is_image else 'file'} {part.name or part.url or ''}".rstrip(), part.media_type]
    if part.blob is not None:
        facts.append(format_byte_size(part.blob.size))
    return f"[{escape_line(', '.join(facts))}]"


def format_byte_size(size: int) -> str:
    """A number of bytes: ``812 B``, ``12 KB``, ``3.4 MB``."""
    if size < 1024:
        return f"{size} B"
    return f"{size / 1024:.0f} KB" if size < 1024 * 1024 else f"{size / 1024 / 1024:.1f} MB"


def format_arguments(arguments: Mapping[str, Any], *, full: bool = False) -> str:
    """A call's arguments, long ones shortened unless ``full``."""
    texts = {name: json.dumps(value, ensure_ascii=False) for name, value in arguments.items()}
    return ", ".join(f"{name}={text if full else truncate_text(text, _ARGUMENT_CHARS)}" for name, text in texts.items())


def format_call(name: str, arguments: Mapping[str, Any] | str | None, *, full: bool = False) -> str:
    """``tool(name=value)`` in one line. ``arguments`` may be malformed text, or None where they are too large."""
    if isinstance(arguments, Mapping):
        arguments = format_arguments(arguments, full=full)
    return f"{escape_line(name)}({escape_line('…' if arguments is None else arguments)})"


def find_own_summary(summary: str, tool: str) -> str:
    """The summary of a waiting call, for the terminal; "" if it says no more than the call itself does."""
    from ..types.summaries import drop_isolates, is_own_summary  # here: most commands show no call

    return escape_line(drop_isolates(summary)) if is_own_summary(summary, tool) else ""


def _format_block(label: str, lines: Sequence[str], style: str, *, indent: int = _MARGIN) -> Iterator[str]:
    for number, line in enumerate(lines):
        start = " " * indent if number else style_text(label.ljust(indent), style)
        yield f"{start}{style_text(line, style)}".rstrip()


def _wrap_excerpt(text: str, most: int | None, indent: int = 0) -> list[str]:
    """The first ``most`` lines, and the length of the whole text if there are more."""
    if most is None:
        return _wrap_text(text, indent)
    # Only the part that can be shown is wrapped: a result may have megabytes.
    chars = most * _MAX_COLUMNS * 2
    lines = _wrap_text(text[:chars].strip(), indent)
    if len(lines) <= most and len(text) <= chars:
        return lines
    return [*lines[:most], f"… {len(text):,} characters in all"]


def _wrap_text(text: str, indent: int = 0) -> list[str]:
    terminal_columns = shutil.get_terminal_size((100, 24)).columns
    columns = max(min(terminal_columns, _MAX_COLUMNS) - _MARGIN - indent, 30)
    wrapper = textwrap.TextWrapper(columns, replace_whitespace=False, break_on_hyphens=False)
    pieces = (piece for line in text.splitlines() for piece in _split_long_line(line))
    return [line for piece in pieces for line in wrapper.wrap(escape_line(piece)) or [""]]


def _split_long_line(line: str) -> Iterator[str]:
    """Pieces of at most ``_WRAPPED_CHARS`` characters, between words if possible: wrapping takes quadratic time."""
    start = 0
    while len(line) - start > _WRAPPED_CHARS:
        end = line.rfind(" ", start + 1, start + _WRAPPED_CHARS) + 1 or start + _WRAPPED_CHARS
        yield line[start:end]
        start = end
    yield line[start:]


# ---
# How a command fails: one message on stderr, and an exit code that a script can use.
#
# 0 done · 1 the run or command failed · 2 usage · 3 not found · 4 no server or worker · 6 an extra is not installed
# · 130 interrupted

INTERRUPTED = 130
"""Exit code after Ctrl-C, as shells give it: 128 and the number of SIGINT."""

_EXIT_CODES = (
    ((StoreError,), 1),
    ((InvalidInputError, DefinitionError), 2),
    ((RunNotFoundError, AgentNotFoundError, ScheduleNotFoundError), 3),
    ((WebhookNotFoundError, BulkActionNotFoundError), 3),
    ((MissingExtraError,), 6),
    ((RuntimeSetupError,), 4),
    ((ApprovalForbiddenError,), 5),
)


def get_exit_code(error: PerdureError) -> int:
    """The exit code for ``error``."""
    return next((code for kinds, code in _EXIT_CODES if isinstance(error, kinds)), 1)


def print_error(error: PerdureError) -> int:
    """Print ``error`` and its hint on stderr, and return its exit code."""
    for label, text, style in (("error", error.message, "red"), ("hint", error.hint, "dim")):
        if text is not None:
            text = end_sentence(translate_hint(text))  # a run's refusal of an update has its hint in the message
            # Further lines are indented: a text from outside in the message cannot pass for a line of perdure's.
            lines = f"{label}: {text}".replace("\n", "\n  ")
            print_text(style_text(lines, style, stream=sys.stderr), error=True)
    return get_exit_code(error)


def print_unexpected_error(error: BaseException) -> int:
    """Print an error that is a fault of perdure in one line, write its traceback to a file, and return the exit code.

    Without a place for the file the traceback is printed.
    """
    import tempfile

    lines = "".join(traceback.format_exception(error))
    try:
        descriptor, path = tempfile.mkstemp(prefix="perdure-", suffix=".txt")
        os.close(descriptor)
        Path(path).write_text(lines, errors="backslashreplace")
    except OSError:
        print_text(lines.rstrip(), error=True)
        return 1
    text = f"unexpected {type(error).__name__}: {error}"
    return print_error(PerdureError(text, hint=f"This is a fault of perdure; its traceback is in {path}."))


# ---
# Hints of errors name the arguments of Python functions; a command has options.

_OPTION_WORDS = (
    ('or attach to it with if_exists="attach".', "or wait for the one that exists: perdure wait ID"),
    ('if_exists="replace"', "--replace"),
    ("Give the client store_url=… or set", "Give --store-url or set"),
    ("give this client store_url=….", "give --store-url."),
    ("PERDURE_STORE_URL (or store_url=…)", "PERDURE_STORE_URL (or --store-url)"),
    (" The result without its messages is Temporal's: await run.handle.result()", ""),
    (" Or send File.at(url).", ""),
    ("Start another one with history=….", "Start another one: perdure run."),
    ("or at=0.", "or --at 0."),
    ("Say who you are: by.", "Say who you are: --by."),
    ("Another person must approve it.",
     "Another person must approve it, who names themselves: perdure approve ID CALL --by NAME"),
    ("(TEMPORAL_NAMESPACE)", "(--namespace, TEMPORAL_NAMESPACE)"),
    ('cron="0 7 * * 1-5" with timezone="Europe/Lisbon", or every="1h"',
     '--cron "0 7 * * 1-5" with --timezone Europe/Lisbon, or --every 1h'),
    ("client.send(…, id=…); for that run's answer: client.run(id).result().",
     "perdure send ID MESSAGE; for that run's answer: perdure wait ID"),
    ('answer_call {"call_id", "value"}; or with "error", why there is none.',
     "perdure answer ID CALL VALUE; or with --error, why there is none."),
    ("Approve or deny it: decide_approval.", "Approve or deny it: perdure approve ID CALL, or perdure deny ID CALL"),
    ("To answer that, send its `hash`, as `status` shows it.", "To answer that: perdure answer ID CALL VALUE"),
    ("Read `status` again", "Read `perdure approvals` again"),
    ("Send it again as soon as `status` shows the call among `approvals`.",
     "Try again as soon as `perdure approvals` shows the call."),
    ("Send the call's `hash` as `status` shows it, together with its arguments.",
     "Give it as --hash; `perdure approvals -o json` has it."),
    ('Send {"tool": "<name>", "by": "<name>"}.', "`perdure show ID` has the standing approvals."),
)  # fmt: skip


def translate_hint(hint: str) -> str:
    """``hint``, or an error's text with one, in the words of the command line."""
    for argument, option in _OPTION_WORDS:
        hint = hint.replace(argument, option)
    return hint
