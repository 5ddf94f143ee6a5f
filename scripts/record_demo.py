"""Records `perdure demo` as an animated SVG: docs/pictures/demo.svg, made from a real run in a terminal of its own.

The file has each line at the time at which the demo printed it, with pauses cut to two seconds; a reader who wants no
motion sees all lines. Left out are the path of this checkout, the spinner of a first start, and the conversation that
the demo prints at its end, because it is long.

Usage: python -m scripts.record_demo [RECORDING]    RECORDING: a JSON file, drawn if it is there, else written.
"""

from __future__ import annotations

import itertools
import json
import os
import pty
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from html import escape
from pathlib import Path

from rich.console import Console
from rich.style import Style
from rich.text import Text

from .pictures import FOLDER, MONO, PALETTE, SMALL, WIDTH

ROOT = Path(__file__).resolve().parent.parent
COLUMNS = 102
LINE_HEIGHT = 17.0
TOP = 44.0
LONGEST_PAUSE = 2.0
HOLD = 8.0
"""Seconds that the last line stays before the recording begins again."""

COLOURS = {1: "bad", 2: "accent", 3: "wait", 4: "blue", 6: "blue"}
"""Of the palette, by the number of the terminal's colour."""
_PROGRESS = re.compile(r"\x1b\[\?25[lh]|\x1b\[\d*[AK]")
_PATH = re.compile(re.escape(f"{ROOT}") + r"(?=/|\b)")


@dataclass(frozen=True)
class Line:
    """A line of the terminal, with its escape sequences for colours."""

    at: float
    """Seconds after the first line."""
    text: str


def record() -> list[Line]:
    """Run the demo in a pseudo-terminal. Raises ``SystemExit`` if it fails."""
    environment = {**os.environ, "COLUMNS": str(COLUMNS), "TERM": "xterm-256color", "PYTHONPATH": str(ROOT)}
    descriptor, terminal = pty.openpty()
    command = [sys.executable, "-m", "perdure", "demo", "--model", "demo"]
    demo = subprocess.Popen(command, stdin=terminal, stdout=terminal, stderr=terminal, env=environment)
    os.close(terminal)
    lines, rest = list[Line](), b""
    while True:
        try:
            piece = os.read(descriptor, 65536)
        except OSError:  # Linux says so when the other end has closed
            piece = b""
        if not piece:
            break
        *whole, rest = (rest + piece).split(b"\n")
        lines += [Line(time.monotonic(), line.decode()) for line in whole]
    if demo.wait() != 0:
        sys.exit("the demo failed:\n" + "\n".join(line.text for line in lines))
    return [*clean(lines)]


def clean(lines: list[Line]) -> Iterator[Line]:
    """The lines to show, after the command; each pause is at most ``LONGEST_PAUSE``."""
    begin = next(number for number, line in enumerate(lines) if "An agent, its worker" in line.text)
    at, before, shown = 0.8, lines[begin].at, True
    yield Line(0.0, "\x1b[2m$\x1b[0m \x1b[1mperdure demo\x1b[0m")
    for line in lines[begin:]:
        at, before = at + min(line.at - before, LONGEST_PAUSE), line.at
        text = _PATH.sub("~/perdure", _PROGRESS.sub("", line.text.rstrip("\r")).rpartition("\r")[2])
        shown = "What was shown" in text or (shown and "The conversation" not in text)
        if shown:
            yield Line(round(at, 2), text)


def wrap(lines: list[Line]) -> list[tuple[float, Text]]:
    """The rows of the picture: a line that is longer than the terminal goes on in the next row."""
    console = Console(width=COLUMNS)
    rows = list[tuple[float, Text]]()
    for line in lines:
        first, *more = Text.from_ansi(line.text).wrap(console, COLUMNS - 4) or [Text()]
        rows.append((line.at, first))
        for text in more:
            text.pad_left(4)
            rows.append((line.at, text))
    return rows


def draw(lines: list[Line]) -> str:
    """The SVG. Each line is a group that appears at its time; all begin again when the last one has been seen."""
    rows = wrap(lines)
    length = lines[-1].at + HOLD
    height = TOP + len(rows) * LINE_HEIGHT + 12
    moments = sorted({at for at, _ in rows})
    frames = "".join(
        f"@keyframes t{number}{{0%,{at / length:.2%}{{opacity:0}}{at / length + 0.0001:.2%},100%{{opacity:1}}}}"
        f".t{number}{{animation:t{number} {length:.1f}s infinite}}"
        for number, at in enumerate(moments)
        if at
    )
    body = "\n".join(
        f'<text class="t{moments.index(at)}" x="20" y="{TOP + 14 + number * LINE_HEIGHT:g}">{draw_spans(text)}</text>'
        for number, (at, text) in enumerate(rows)
        if text.plain.strip()
    )
    lights = "".join(
        f'<circle cx="{20 + 16 * n}" cy="20" r="5" fill="var(--{name})"/>\n'
        for n, name in enumerate(("bad", "wait", "accent"))
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:g}" width="{WIDTH}" height="{height:g}" '
        'role="img" aria-labelledby="title desc">\n<title id="title">perdure demo</title>\n'
        '<desc id="desc">A recording of a terminal: the worker of a running agent is killed with kill -9 in the middle '
        "of a model call; a new worker goes on with the run, a message is injected, and the agent answers. Nothing was "
        f"repeated but the call that was cut short.</desc>\n{style_sheet(frames)}\n"
        f'<rect class="page" x="0.5" y="0.5" width="{WIDTH - 1}" height="{height - 1:g}" rx="8"/>\n'
        f"{lights}{body}\n</svg>\n"
    )


def style_sheet(frames: str) -> str:
    """Colours, type and times of the rows."""
    light, dark = (";".join(f"--{name}:{pair[n]}" for name, pair in PALETTE.items()) for n in (0, 1))
    return (
        f"<style>:root{{{light}}}@media (prefers-color-scheme:dark){{:root{{{dark}}}}}"
        f"text{{font-family:{MONO};font-size:{SMALL}px;fill:var(--text);white-space:pre}}"
        ".page{fill:var(--page);stroke:var(--line)}.bold{font-weight:600}"
        + "".join(f".{name}{{fill:var(--{name})}}" for name in ("muted", *sorted({*COLOURS.values()})))
        + f"@media (prefers-reduced-motion:no-preference){{{frames}}}</style>"
    )


def draw_spans(text: Text) -> str:
    """A row in its colours."""
    spans = ""
    for start, end, classes in find_styles(text):
        part = escape(text.plain[start:end])
        spans += f'<tspan class="{classes}">{part}</tspan>' if classes else part
    return spans


def find_styles(text: Text) -> Iterator[tuple[int, int, str]]:
    """The stretches of one style each, and its classes."""
    edges = sorted({0, len(text.plain), *(edge for span in text.spans for edge in (span.start, span.end))})
    for start, end in itertools.pairwise(edges):
        styles = [span.style for span in text.spans if span.start <= start and span.end >= end]
        style = Style.combine([Style.null(), *(each for each in styles if isinstance(each, Style))])
        colour = COLOURS.get(style.color.number or 0) if style.color else None
        names = (colour, "muted" if style.dim else None, "bold" if style.bold else None)
        yield start, end, " ".join(name for name in names if name)


def main(arguments: list[str]) -> None:
    kept = Path(arguments[0]) if arguments else None
    if kept and kept.exists():
        lines = [Line(**line) for line in json.loads(kept.read_text())]
    else:
        lines = record()
        if kept:
            kept.write_text(json.dumps([vars(line) for line in lines], indent=1))
    (FOLDER / "demo.svg").write_text(draw(lines))


if __name__ == "__main__":
    main(sys.argv[1:])
