"""Draws the pictures of the documentation: docs/pictures/*.svg, one file each for a light and a dark screen.

A text that does not fit into its box is an error. `make pictures` runs this, and scripts/record_demo.py.

Usage: pictures.py [--check]    `--check` writes nothing, and fails if a file is not what this draws.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from html import escape
from pathlib import Path

FOLDER = Path(__file__).resolve().parent.parent / "docs" / "pictures"
WIDTH = 760
SIZE, SMALL = 13.0, 11.5
"""Of a box's first line, and of all other text."""
MARGIN = 24

# Colours on a light and on a dark screen.
PALETTE = {
    "page": ("#ffffff", "#0d1117"),
    "line": ("#d0d7de", "#30363d"),
    "text": ("#1f2328", "#e6edf3"),
    "muted": ("#59636e", "#9198a1"),
    "box": ("#f6f8fa", "#161b22"),
    "accent": ("#0f766e", "#2dd4bf"),
    "accent-box": ("#e6f4f1", "#0f2b28"),
    "wait": ("#9a6700", "#e3b341"),
    "wait-box": ("#fff6dd", "#2b230f"),
    "bad": ("#b42318", "#ff7b72"),
    "bad-box": ("#fdecea", "#3a1614"),
    "blue": ("#0550ae", "#79c0ff"),
}
SANS = 'system-ui, -apple-system, "Segoe UI", Helvetica, Arial, sans-serif'
MONO = "ui-monospace, SFMono-Regular, Menlo, Consolas, monospace"

NARROW, WIDE = "iljtfrI.,:;'|!()[]/ ", "mwMW@%—…"


def style_sheet(extra: str = "") -> str:
    """The colours as variables, and the classes of all pictures."""
    light, dark = (";".join(f"--{name}:{pair[n]}" for name, pair in PALETTE.items()) for n in (0, 1))
    kinds = "".join(
        f".{name}{{fill:var(--{name}-box);stroke:var(--{name})}}.{name}-text{{fill:var(--{name})}}"
        f".{name}-line{{stroke:var(--{name})}}"
        for name in ("accent", "wait", "bad")
    )
    return (
        f"<style>:root{{{light}}}@media (prefers-color-scheme:dark){{:root{{{dark}}}}}"
        f"text{{font-family:{SANS};font-size:{SMALL}px;fill:var(--text)}}"
        f".first{{font-size:{SIZE}px;font-weight:600}}.muted-text{{fill:var(--muted)}}.middle{{text-anchor:middle}}"
        f".end{{text-anchor:end}}.code{{font-family:{MONO}}}"
        ".page{fill:var(--page);stroke:var(--line)}.plain{fill:var(--box);stroke:var(--line)}"
        ".group{fill:none;stroke:var(--line);stroke-dasharray:4 4}.dashed{stroke-dasharray:4 4}"
        ".halo{paint-order:stroke;stroke:var(--page);stroke-width:5px;stroke-linejoin:round}"
        f"{kinds}path{{fill:none;stroke:var(--muted);stroke-width:1.5}}"
        ".head{fill:var(--muted);stroke:none}.accent-head{fill:var(--accent)}.wait-head{fill:var(--wait)}"
        f".bad-head{{fill:var(--bad)}}{extra}</style>"
    )


def text_width(text: str, size: float, *, code: bool = False) -> float:
    """Pixels that a text takes at most, in the widest of the usual fonts."""
    if code:
        return len(text) * size * 0.61
    ems = sum(0.38 if c in NARROW else 0.95 if c in WIDE else 0.72 if c.isupper() else 0.61 for c in text)
    return ems * size


class Picture:
    """An SVG with a frame, whose shapes are added one after the other; ``str(picture)`` is the file."""

    def __init__(self, title: str, description: str, height: int) -> None:
        self._title, self._description, self._height = title, description, height
        self._shapes: list[str] = []

    def __str__(self) -> str:
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {self._height}" width="{WIDTH}" '
            f'height="{self._height}" role="img" aria-labelledby="title desc">\n'
            f'<title id="title">{escape(self._title)}</title>\n<desc id="desc">{escape(self._description)}</desc>\n'
            f"{style_sheet()}\n"
            f'<rect class="page" x="0.5" y="0.5" width="{WIDTH - 1}" height="{self._height - 1}" rx="8"/>\n'
            + "\n".join(self._shapes)
            + "\n</svg>\n"
        )

    def text(self, x: float, y: float, text: str, style: str = "", *, within: float | None = None) -> None:
        """A line of text whose baseline is ``y``. ``within`` is the width that it has; by default up to the margin."""
        size = SIZE if "first" in style else SMALL
        width = text_width(text, size, code="code" in style)
        if within is None:
            within = 2 * min(x, WIDTH - x) if "middle" in style else x if "end" in style else WIDTH - x
            within -= 8
        if width > within:
            raise ValueError(f"{text!r} takes {width:.0f} px of {within:.0f}")
        self._shapes.append(f'<text x="{x:g}" y="{y:g}"{_class(style)}>{escape(text)}</text>')

    def box(
        self, x: float, y: float, width: float, height: float, lines: Sequence[str], kind: str = "plain", code: str = ""
    ) -> None:
        """A box with its lines in the middle, the first one in bold. ``code``: a line that is set as code."""
        self._shapes.append(f'<rect class="{kind}" x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="6"/>')
        step = 16.0
        top = y + height / 2 - step * (len(lines) - 1) / 2 + SIZE * 0.35
        for number, line in enumerate(lines):
            style = ("first " if number == 0 else "muted-text ") + ("code " if line == code else "") + "middle"
            self.text(x + width / 2, top + number * step, line, style, within=width - 12)

    def group(self, x: float, y: float, width: float, height: float, title: str) -> None:
        """A dashed frame with its title above."""
        self._shapes.append(f'<rect class="group" x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="8"/>')
        self.text(x + width / 2, y - 8, title, "first middle accent-text", within=width)

    def arrow(self, points: Sequence[tuple[float, float]], style: str = "", *, both: bool = False) -> None:
        """An arrow along ``points``; each leg is horizontal or vertical, or the only one."""
        colour = next((name for name in ("accent", "wait", "bad") if name in style), "")
        steps = " ".join(f"{'L' if n else 'M'}{x:g} {y:g}" for n, (x, y) in enumerate(points))
        words = [f"{colour}-line"] if colour else []
        words += ["dashed"] if "dashed" in style else []
        self._shapes.append(f'<path d="{steps}"{_class(" ".join(words))}/>')
        self._head(points[-2], points[-1], colour)
        if both:
            self._head(points[1], points[0], colour)

    def line(self, start: tuple[float, float], end: tuple[float, float], style: str = "") -> None:
        """A line without a head."""
        self._shapes.append(f'<path d="M{start[0]:g} {start[1]:g} L{end[0]:g} {end[1]:g}"{_class(style)}/>')

    def dot(self, x: float, y: float, kind: str) -> None:
        """A mark on a line of time."""
        self._shapes.append(f'<circle class="{kind}" cx="{x:g}" cy="{y:g}" r="5" stroke-width="1.5"/>')

    def _head(self, before: tuple[float, float], tip: tuple[float, float], colour: str) -> None:
        (x, y), dx, dy = tip, tip[0] - before[0], tip[1] - before[1]
        length = (dx * dx + dy * dy) ** 0.5
        ux, uy = dx / length, dy / length
        base = (x - 8 * ux, y - 8 * uy)
        corners = [(x, y), (base[0] - 4 * uy, base[1] + 4 * ux), (base[0] + 4 * uy, base[1] - 4 * ux)]
        path = " ".join(f"{'L' if n else 'M'}{cx:.1f} {cy:.1f}" for n, (cx, cy) in enumerate(corners))
        self._shapes.append(f'<path class="head{f" {colour}-head" if colour else ""}" d="{path} Z"/>')


def _class(style: str) -> str:
    return f' class="{style.strip()}"' if style.strip() else ""


# ---
# The pictures.


def draw_architecture() -> Picture:
    picture = Picture(
        "The parts of perdure",
        "Clients start and steer runs through Temporal, where each run is a workflow. Workers carry out its model "
        "calls and tool calls as activities, and record each reply and outcome in the store before Temporal hears of "
        "it. Clients read transcripts and events from the store.",
        372,
    )
    left, middle, right = (24.0, 176.0), (284.0, 192.0), (560.0, 176.0)
    picture.group(left[0], 44, left[1], 200, "Clients")
    for n, lines in enumerate((("Your program", "Client, Agent.call()"), ("perdure", "the command line"))):
        picture.box(left[0] + 12, 58 + n * 60, left[1] - 24, 50, lines)
    picture.box(left[0] + 12, 178, left[1] - 24, 50, ("Temporal client", "in any language"))
    picture.group(middle[0], 44, middle[1], 200, "Temporal")
    picture.box(
        middle[0] + 12,
        58,
        middle[1] - 24,
        110,
        ("AgentWorkflow", "one for each run", "decides what is next", "waits, for months"),
        "accent",
    )
    picture.box(middle[0] + 12, 178, middle[1] - 24, 50, ("History", "hashes and short values"))
    picture.group(right[0], 44, right[1], 200, "Workers")
    for n, lines in enumerate(
        (("Model calls", "streamed, retried"), ("Tools and hooks", "plain Python"), ("Journal", "each effect once"))
    ):
        picture.box(right[0] + 12, 58 + n * 60, right[1] - 24, 50, lines, "accent" if n == 2 else "plain")
    picture.box(
        left[0],
        300,
        middle[0] + middle[1] - left[0],
        50,
        ("Store", "transcripts, journal, memory, events, files"),
        "accent",
    )
    picture.box(right[0], 300, right[1], 50, ("The world", "models, MCP, your APIs"))

    picture.arrow([(200, 108), (284, 108)])
    picture.text(242, 92, "start,", "muted-text middle", within=80)
    picture.text(242, 126, "steer", "muted-text middle", within=80)
    picture.arrow([(476, 108), (560, 108)], both=True)
    picture.text(518, 92, "activities", "muted-text middle", within=80)
    picture.text(518, 126, "results", "muted-text middle", within=80)
    picture.arrow([(112, 244), (112, 300)], both=True)
    picture.text(122, 276, "read, follow, fork", "muted-text", within=150)
    picture.arrow([(590, 244), (590, 272), (430, 272), (430, 300)], "accent")
    picture.text(424, 276, "first recorded here", "end accent-text", within=150)
    picture.arrow([(660, 244), (660, 300)], both=True)
    picture.text(670, 276, "calls", "muted-text", within=80)
    return picture


def draw_crash() -> Picture:
    picture = Picture(
        "What happens when a worker is killed",
        "A run is open in Temporal all the time. Worker 1 makes a model call and runs a tool, both are recorded in the "
        "store, and it is killed in the middle of its next model call. Seconds later worker 2 makes that call again, "
        "which is the only one that is repeated, and the run goes on to its answer.",
        296,
    )
    lanes = {"Run": 42, "Worker 1": 102, "Worker 2": 162, "Store": 222}
    for name, y in lanes.items():
        picture.text(MARGIN, y + 4, name, "first", within=80)
        picture.line((112, y), (736, y), "dashed")
    picture.box(112, 24, 624, 36, ("open, in Temporal: no process has to be alive for it",), "accent")

    def bar(lane: str, start: float, end: float, text: str, kind: str = "plain") -> None:
        picture.box(start, lanes[lane] - 18, end - start, 36, (text,), kind)

    picture.line((378, 66), (378, 242), "bad-line dashed")
    picture.line((474, 126), (474, 242), "wait-line dashed")
    bar("Worker 1", 120, 210, "model call")
    bar("Worker 1", 218, 278, "tool")
    bar("Worker 1", 286, 378, "model call", "bad")
    picture.text(390, lanes["Worker 1"] + 4, "✗ kill -9", "first bad-text halo", within=100)
    bar("Worker 2", 474, 564, "model call", "wait")
    bar("Worker 2", 572, 632, "tool")
    bar("Worker 2", 640, 730, "model call")
    picture.arrow([(380, 194), (472, 194)], "wait", both=True)
    picture.text(426, 186, "seconds", "middle wait-text", within=90)
    recorded = {
        "reply 1": (210, 1),
        "outcome 1": (278, 1),
        "reply 2": (564, 2),
        "outcome 2": (632, 2),
        "answer": (730, 2),
    }
    for text, (x, worker) in recorded.items():
        picture.line((x, lanes[f"Worker {worker}"] + 18), (x, 217), "accent-line")
        picture.dot(x, lanes["Store"], "accent")
        picture.text(x + 5, 244, text, "end accent-text halo", within=90)
    picture.text(
        WIDTH / 2,
        276,
        "What is recorded is not paid for again. Only the call that was cut short is made once more.",
        "middle muted-text",
    )
    return picture


def draw_approval() -> Picture:
    picture = Picture(
        "The life of an approval",
        "The model asks for a call. Rules allow it, deny it, or ask for approval. A call that needs approval waits in "
        "the inbox, without a worker, with reminders, for months if need be. A named person decides once. Approved, "
        "also with other arguments, the tool runs; denied or expired, the model is told. The run goes on in each case.",
        318,
    )
    picture.box(24, 98, 136, 64, ("Model", "asks for a call:", "refund(77, 12.5)"), code="refund(77, 12.5)")
    picture.box(198, 98, 116, 64, ("Rules", "allow, ask, deny"))
    picture.box(358, 80, 164, 100, ("Waits", "in the inbox", "on no worker", "for months, if need be"), "wait")
    picture.box(572, 24, 164, 56, ("Denied", "the model is told why"), "bad")
    picture.box(572, 102, 164, 56, ("Expired", "on_expiry decides"), "bad")
    picture.box(572, 180, 164, 56, ("Approved", "by ana, bound to its hash"), "accent")
    picture.box(358, 248, 164, 46, ("Tool runs", "in seconds"), "accent")
    picture.box(24, 248, 136, 46, ("Run goes on", "in each case"))

    picture.arrow([(160, 130), (198, 130)])
    picture.arrow([(314, 130), (358, 130)], "wait")
    picture.text(335, 122, "ask", "middle wait-text", within=40)
    picture.arrow([(256, 162), (256, 214), (396, 214), (396, 248)], "accent")
    picture.text(264, 206, "allow", "accent-text", within=80)
    picture.arrow([(522, 112), (547, 112), (547, 66), (572, 66)], "bad")
    picture.arrow([(522, 130), (572, 130)], "bad")
    picture.arrow([(522, 148), (547, 148), (547, 208), (572, 208)], "accent")
    picture.arrow([(654, 236), (654, 271), (522, 271)], "accent")
    picture.arrow([(358, 271), (160, 271)])
    picture.text(259, 263, "result", "middle muted-text", within=100)
    picture.arrow([(256, 98), (256, 52), (572, 52)], "bad")
    picture.text(264, 44, "deny", "bad-text", within=80)
    picture.arrow([(416, 180), (416, 208), (464, 208), (464, 180)], "wait")
    picture.text(440, 224, "reminders", "middle wait-text", within=120)
    return picture


def draw_tree() -> Picture:
    picture = Picture(
        "A tree of subagents",
        "A desk agent with a budget of two dollars calls three researchers at once and one of them calls a reader. "
        "Each is a run of its own with a part of the budget that is left. Cancelling the desk cancels all; the events "
        "of all form one stream.",
        324,
    )
    picture.box(280, 40, 200, 62, ("desk", "id moby", "limit: $2.00 for the tree"), "accent", code="id moby")
    children = (
        (72.0, "moby/1", "plain", "answered"),
        (292.0, "moby/2", "plain", "calls a tool"),
        (512.0, "moby/3", "wait", "waits for approval"),
    )
    for x, name, kind, state in children:
        picture.box(x, 148, 176, 62, ("researcher", name, state), kind, code=name)
        picture.arrow([(380, 102), (380, 124), (x + 88, 124), (x + 88, 148)])
    picture.box(292, 244, 176, 62, ("reader", "moby/2/1", "asks its model"), code="moby/2/1")
    picture.arrow([(380, 210), (380, 244)])
    picture.text(24, 58, "In parallel or in background:", within=240)
    picture.text(24, 74, "each is a child workflow with", "muted-text", within=240)
    picture.text(24, 90, "a conversation of its own.", "muted-text", within=240)
    picture.text(512, 58, "Budget: a child has its part", within=240)
    picture.text(512, 74, "of what is left, and what it", "muted-text", within=240)
    picture.text(512, 90, "uses counts for the tree.", "muted-text", within=240)
    picture.text(24, 262, "Cancelled from the top:", within=250)
    picture.text(24, 278, "the first cancel stops", "muted-text", within=250)
    picture.text(24, 294, "the tool of the last.", "muted-text", within=250)
    picture.text(512, 262, "Followed from the top:", within=240)
    picture.text(512, 278, "one stream of events,", "muted-text", within=240)
    picture.text(512, 294, "each with its path.", "muted-text", within=240)
    return picture


def draw_iteration() -> Picture:
    picture = Picture(
        "One iteration",
        "The workflow decides on a model call. The worker looks into the journal, loads what is new of the transcript, "
        "calls the model, and writes reply, node and run row in one transaction; then the workflow gets head, text and "
        "calls. For each call of a tool the worker claims it in the journal, runs the function and writes its outcome; "
        "then the workflow gets the outcome.",
        424,
    )
    flow, worker, store = (24.0, 150.0), (250.0, 270.0), (606.0, 130.0)
    for (x, width), title in ((flow, "AgentWorkflow"), (worker, "Worker"), (store, "Store")):
        picture.group(x, 44, width, 362, title)

    def steps(top: float, title: str, lines: Sequence[str], written: Sequence[tuple[int, str]]) -> None:
        height = 40 + 24.0 * len(lines)
        picture.box(flow[0] + 12, top, flow[1] - 24, 36, ("decide",), "accent")
        picture.box(flow[0] + 12, top + height - 36, flow[1] - 24, 36, ("apply",), "accent")
        picture.box(worker[0] + 12, top, worker[1] - 24, height, ())
        picture.text(worker[0] + 24, top + 22, title, "first code", within=worker[1] - 48)
        for number, line in enumerate(lines):
            picture.text(worker[0] + 24, top + 46 + 24 * number, line, "muted-text", within=worker[1] - 48)
        picture.arrow([(flow[0] + flow[1] - 12, top + 18), (worker[0] + 12, top + 18)])
        picture.arrow([(worker[0] + 12, top + height - 18), (flow[0] + flow[1] - 12, top + height - 18)])
        for number, text in written:
            y = top + 42 + 24 * number
            style = "" if text == "read" else "accent"
            ends = [(worker[0] + worker[1] - 12, y), (store[0] + 12, y)]
            picture.arrow(ends[::-1] if text == "read" else ends, style)
            picture.text(store[0] + 20, y + 4, text, "accent-text" if style else "muted-text", within=store[1] - 24)

    steps(
        58,
        "perdure.model",
        ("journal: done already?", "transcript: load what is new", "call the model, streamed", "reply, node, run row"),
        ((0, "read"), (1, "read"), (3, "one transaction")),
    )
    picture.text(216, 169, "head, text, calls", "middle muted-text halo", within=130)
    steps(
        222,
        "tool.refund",
        ("journal: claim the call", "check the arguments", "run the function", "outcome"),
        ((0, "write"), (3, "write")),
    )
    picture.text(216, 333, "outcome", "middle muted-text halo", within=120)
    picture.text(worker[0] + worker[1] / 2, 388, "then the next decision", "middle muted-text", within=200)
    return picture


PICTURES: dict[str, Callable[[], Picture]] = {
    "architecture": draw_architecture,
    "crash": draw_crash,
    "approval": draw_approval,
    "tree": draw_tree,
    "iteration": draw_iteration,
}


def main(arguments: list[str]) -> int:
    stale = 0
    for name, draw in PICTURES.items():
        path = FOLDER / f"{name}.svg"
        content = str(draw())
        if path.exists() and path.read_text() == content:
            continue
        if "--check" in arguments:
            print(f"{path}: error: is not what scripts/pictures.py draws: run `make pictures`")
            stale += 1
        else:
            path.write_text(content)
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
