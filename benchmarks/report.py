"""The figures as tables, and a verdict on each aim."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.actions import MILLION_USD
from benchmarks.contestants import BASE, CONTESTANTS
from benchmarks.measures import RESULT, Figures
from perdure.worker.plugin import MIN_CACHED_RUNS


@dataclass(frozen=True, slots=True)
class Aim:
    """A figure that perdure has set itself, and how it is found in the results."""

    title: str
    measure: str
    read: Callable[[Figures], float]
    aim: float
    at_least: bool = False
    unit: str = ""

    def judge(self, results: Mapping[str, Figures]) -> list[str]:
        """Title, figure and verdict; "not measured" where something of it is missing."""
        bound = f"{'≥' if self.at_least else '≤'} {self.aim:g}{self.unit}"
        try:
            figure = self.read(results[self.measure])
        except KeyError:
            return [self.title, "not measured", bound]
        met = figure >= self.aim if self.at_least else figure <= self.aim
        return [self.title, f"{figure:.2f}{self.unit}", f"{_mark(met)} {bound}"]


def _read(name: str, *keys: str) -> Callable[[Figures], float]:
    """What finds a figure of a contestant."""

    def read(figures: Figures) -> float:
        found: Any = figures[name]
        for key in keys:
            found = found[key]
        return float(found)

    return read


def _read_recovery(name: str) -> Callable[[Figures], float]:
    return lambda figures: float(figures[name]["seconds"] - figures[BASE]["seconds"])


def _read_parked_memory(figures: Figures) -> float:
    """Raises ``KeyError`` for so few runs that the worker has not filled what it keeps of them (``worker/engine.py``)
    when it is looked at first."""
    mine = figures["perdure"]
    if mine["count"] // 5 < 16 * max(mine["cache"], MIN_CACHED_RUNS):
        raise KeyError("kb_per_run")
    return float(mine["kb_per_run"])


def _read_decisions(name: str) -> Callable[[Figures], float]:
    return lambda figures: float(figures[name]["burst_s"] / figures[name]["count"] * 1000)


AIMS = (
    Aim("one run, wall", "single", _read("perdure", "wall_ratio"), 1.05),
    Aim("one run, wall, inline", "single", _read("perdure-inline", "wall_ratio"), 0.6),
    Aim("one run, worker CPU", "single", _read("perdure", "cpu_ratio"), 1.05),
    Aim("one run, worker CPU, inline", "single", _read("perdure-inline", "cpu_ratio"), 0.65),
    Aim("one run, CPU of Temporal's server", "single", _read("perdure", "server_ratio"), 1.02),
    Aim("one run, CPU of Temporal's server, inline", "single", _read("perdure-inline", "server_ratio"), 0.6),
    Aim("many runs, iterations per second", "concurrent", _read("perdure", "rate_ratio"), 0.95, at_least=True),
    Aim("many runs, inline", "concurrent", _read("perdure-inline", "rate_ratio"), 1.35, at_least=True),
    Aim("at 3,000 iterations, worker CPU", "lengths", _read("perdure", "3000", "cpu_ratio"), 1.15),
    Aim("streamed replies, worker CPU", "replies", _read("perdure", "cpu_ratio"), 0.65),
    Aim("SIGKILL to the next call, beyond the floor's", "recovery", _read_recovery("perdure"), 0.3, unit=" s"),
    Aim("billable actions per iteration, calls of 5 s", "actions", _read("perdure", "slow"), 4.5),
    Aim("import, by temporalio.client's, CPU", "starts", _read("perdure", "import", "ratio"), 1.6),
    Aim("perdure list, by a bare list, CPU", "starts", _read("perdure", "list", "ratio"), 2),
    Aim("memory of a worker per parked run", "parked", _read_parked_memory, 1, unit=" KB"),
    Aim("first page of the inbox", "parked", _read("perdure", "page_s"), 2, unit=" s"),
    Aim("1,000 decisions at once", "parked", _read_decisions("perdure"), 30, unit=" s"),
    *(
        Aim(f"console, {page}: server's time", "console", _read("perdure", "pages", page, "p50"), 100, unit=" ms")
        for page in ("inbox", "runs", "run", "run, long", "chat", "chat, long")
    ),
    Aim("byte to event, 1 stream, p95", "events", _read("perdure", "1", "p95"), 30, unit=" ms"),
    Aim("byte to event, 20 streams, p95", "events", _read("perdure", "20", "p95"), 40, unit=" ms"),
    Aim("byte to event, 200 streams, p95", "events", _read("perdure", "200", "p95"), 80, unit=" ms"),
)
"""What the table ends with: ratios are to ``floor2``."""
STREAMING = 1.15
"""Wall time with streaming by that without."""
HOOKS = 1.1
"""Wall time with hooks by that without."""
GROWTH = 2.1
"""Bytes of history at twice the length."""
POSTGRES = 1.15
"""Worker CPU on PostgreSQL by that on SQLite."""
HTTP_MS = 10
"""Milliseconds that HTTP may add to a turn."""
FOUR_WORKERS = 3.6
"""Iterations a second of four workers by those of one."""

_ROWS = (
    ("single", "one run, wall per iteration", "wall_ms", "{:.1f} ms", "wall_ratio"),
    ("single", "one run, worker CPU per iteration", "cpu_ms", "{:.1f} ms", "cpu_ratio"),
    ("single", "one run, CPU of Temporal's server per iteration", "server_ms", "{:.1f} ms", "server_ratio"),
    ("concurrent", "{runs} runs, iterations per second", "iterations_s", "{:.0f}", "rate_ratio"),
    ("concurrent", "{runs} runs, worker CPU per iteration", "cpu_ms", "{:.1f} ms", "cpu_ratio"),
    ("concurrent", "{runs} runs, CPU of Temporal's server per iteration", "server_ms", "{:.1f} ms", "server_ratio"),
    ("recovery", "SIGKILL in a model call to the next", "seconds", "{:.1f} s", None),
)


def tables(results: Mapping[str, Figures], *, runs: int) -> str:
    """Everything that was measured, as text."""
    names = list(dict.fromkeys(name for figures in results.values() for name in figures))
    lines = [["", *names]]
    for measure, title, key, form, ratio in _ROWS:
        if measure in results:
            figures = results[measure]
            cells = [_cell(figures[name], key, form, ratio) for name in names]
            lines.append([title.format(runs=runs), *cells])
    for measure, title in (("single", "one run"), ("concurrent", f"{runs} runs")):
        if any("store_cpu_ratio" in mine for mine in results.get(measure, {}).values()):
            cells = [_compared(results[measure].get(name, {})) for name in names]
            lines.append([f"PostgreSQL / SQLite, {title}: wall, CPU", *cells])
    if "history" in results:
        lines += _history(results["history"], names)
    if "actions" in results:
        lines += _actions(results["actions"], names)
    if "events" in results:
        lines += _events(results["events"], names)
    if "streaming" in results:
        lines += _streaming(results["streaming"], names, runs)
    if "replies" in results:
        form = "{piece_us:.0f} µs ({cpu_ratio:.2f}), {wall_ratio:.2f}"
        cells = [_format_known(form, results["replies"].get(name, {})) for name in names]
        lines.append(["many replies, worker CPU of a piece; wall by the floor's", *cells])
    if "lengths" in results:
        lines += _lengths(results["lengths"], names)
    if "hooks" in results:
        lines += _hooks(results["hooks"], names, runs)
    if "database" in results:
        lines += _database(results["database"], names)
    if "scaling" in results:
        lines += _scaling(results["scaling"], names)
    if "parked" in results:
        lines += _parked(results["parked"], names)
    if "conversations" in results:
        lines += _conversations(results["conversations"], names)
    for mine in results.get("copies", {}).values():
        lines += _copies(mine, names)
    if "starts" in results:
        form = "{cpu_ms:.0f} ms, bare {bare_ms:.0f} ({ratio:.2f})"
        for key, title in (("import", "import of Agent, Client and tool, CPU"), ("list", "perdure list, CPU")):
            cells = [_format_known(form, results["starts"].get(name, {}).get(key, {})) for name in names]
            lines.append([title, *cells])
    if "console" in results:
        lines += _console(results["console"]["perdure"], names)
    if "web" in results:
        lines += _web(results["web"], names)
    settings: Mapping[str, str] = next((mine["settings"] for mine in results.get("database", {}).values()), {})
    about = "".join(f"\n{name}: {value}" for name, value in settings.items())
    judged = [aim.judge(results) for aim in AIMS if aim.measure in results]
    verdicts = "\n\n" + _aligned([["aim", "measured", "verdict"], *judged]) if judged else ""
    return f"{_aligned(lines)}{about}\n\n(ratio to {BASE} in brackets){verdicts}"


def _cell(mine: Mapping[str, Any], key: str, form: str, ratio: str | None) -> str:
    text = form.format(mine[key])
    return text if ratio is None else f"{text} ({mine[ratio]:.2f})"


def _history(figures: Figures, names: Sequence[str]) -> Iterable[list[str]]:
    lengths = list(figures[names[0]]["bytes"])
    for length in lengths:
        cells = [_sized(figures[name], length) for name in names]
        yield [f"history of {length} iterations, {RESULT} B results", *cells]
    if lengths[-1] // 2 in lengths:
        title = f"bytes at {lengths[-1]} / bytes at {lengths[-1] // 2}"
        yield [title, *(_grown(name, figures[name], lengths[-1]) for name in names)]
    yield [f"of 1.3 x messages + 3 kB an iteration, at {lengths[-1]}", *(_share(figures[name]) for name in names)]
    replay = [_format_known("{replay_ms:.0f} ms", figures[name]) for name in names]
    yield [f"replay of {lengths[-1]} iterations", *replay]


def _events(figures: Figures, names: Sequence[str]) -> Iterable[list[str]]:
    for streams in next(iter(figures.values()), {}):
        title = f"byte to event, {streams} stream{'s' if streams != '1' else ''}: p50 / p95 / max"
        form = "{p50:.0f} / {p95:.0f} / {max:.0f} ms"
        yield [title, *(form.format(**figures[name][streams]) if name in figures else "-" for name in names)]


def _streaming(figures: Figures, names: Sequence[str], runs: int) -> Iterable[list[str]]:
    titles = {"single": "one run", "concurrent": f"{runs} runs", "slow": "slow replies at once"}
    for which, title in titles.items():
        mine = {name: figures[name][which] for name in names if name in figures}
        cells = [_streamed(mine[name]) if name in mine else "-" for name in names]
        yield [f"streamed / unstreamed, {title}: wall, CPU", *cells]


def _streamed(mine: Mapping[str, float]) -> str:
    return f"{mine['wall_ratio']:.2f} {_mark(mine['wall_ratio'] <= STREAMING)} ≤ {STREAMING}, {mine['cpu_ratio']:.2f}"


def _lengths(figures: Figures, names: Sequence[str]) -> Iterable[list[str]]:
    form = "{cpu_ms:.1f} ms ({cpu_ratio:.2f}), {memory_kb} KB"
    for length in next(iter(figures.values()), {}):
        cells = [_format_known(form, figures.get(name, {}).get(length, {})) for name in names]
        yield [f"at {length} iterations: worker CPU by that of a floor that posts as much, memory", *cells]


def _hooks(figures: Figures, names: Sequence[str], runs: int) -> Iterable[list[str]]:
    for which, title in {"single": "one run", "concurrent": f"{runs} runs"}.items():
        count = next((mine["hooks"] for mine in figures.values()), 0)
        cells = [_hooked(figures[name][which]) if name in figures else "-" for name in names]
        yield [f"{count} hooks on each event / none, {title}: wall, CPU", *cells]


def _conversations(figures: Figures, names: Sequence[str]) -> Iterable[list[str]]:
    for title, form in (
        ("conversations that are open, that wait for an answer", "{count}, {talking}"),
        ("turns per second", "{turns_s:.1f}"),
        ("a turn: p50 / p95 / max", "{p50:.0f} / {p95:.0f} / {max:.0f} ms"),
        ("workers' CPU per turn", "{cpu_ms:.1f} ms"),
        ("both workers' memory before / with them", "{before_kb} / {after_kb} KB"),
        ("PostgreSQL, bytes per turn, connections, memory", "{bytes:.0f}, {connections}, {server_kb} KB"),
        ("replies streamed at once, from piece to piece", "{streams[replies]}, {streams[every_ms]} ms"),
        (
            "byte to event there: p50 / p95 / max",
            "{streams[p50]:.0f} / {streams[p95]:.0f} / {streams[max]:.0f} ms",
        ),
        ("workers' CPU per piece", "{streams[piece_cpu_ms]:.2f} ms"),
        ("PostgreSQL, connections and memory meanwhile", "{streams[connections]}, {streams[server_kb]} KB"),
    ):
        yield [title, *(_format_known(form, figures.get(name, {})) for name in names)]


def _copies(mine: Mapping[str, Mapping[str, float]], names: Sequence[str]) -> Iterable[list[str]]:
    form = "{rows} rows, {bytes} bytes in {seconds:.1f} s: {rows_s:.0f} rows/s, {mb_s:.1f} MB/s"
    for key, title in (("into", "copy, SQLite into PostgreSQL"), ("back", "copy, PostgreSQL into SQLite")):
        yield [title, *(form.format(**mine[key]) for _ in names)]


def _web(figures: Figures, names: Sequence[str]) -> Iterable[list[str]]:
    reads = next((mine["reads"] for mine in figures.values()), {})
    for read in reads:
        yield [
            f"HTTP, {read}: per second (by a bare Starlette)",
            *_web_cells(figures, names, ("reads", read), "{per_s:.0f} ({ratio:.2f})"),
        ]
    for title, key, form in (
        ("HTTP, silent followers: KB of each, CPU", "idle", "{count}: {kb_each:.1f} KB, {cpu_percent:.1f} %"),
        ("each of a session of its own", "idle_apart", "{count}: {kb_each:.1f} KB, {cpu_percent:.1f} %"),
        ("the same, bare", "idle_bare", "{count}: {kb_each:.1f} KB, {cpu_percent:.1f} %"),
        (
            "HTTP, byte to client: p50 / p95 / p99, CPU of a piece",
            "active",
            "{followers}: {p50:.0f} / {p95:.0f} / {p99:.0f} ms, {cpu_us:.0f} µs",
        ),
        ("the same, bare", "active_bare", "{followers}: {p50:.1f} / {p95:.1f} / {p99:.1f} ms, {cpu_us:.0f} µs"),
        ("a turn by HTTP, by the Python client", "turn", "{http_ms:.1f}, {python_ms:.1f} ms"),
    ):
        yield [title, *_web_cells(figures, names, (key,), form)]
    cells = [
        f"{figures[n]['turn']['added_ms']:.1f} ms {_mark(figures[n]['turn']['added_ms'] <= HTTP_MS)} ≤ {HTTP_MS}"
        if n in figures
        else "-"
        for n in names
    ]
    yield ["a turn, added by HTTP", *cells]


def _console(mine: Mapping[str, Any], names: Sequence[str]) -> Iterable[list[str]]:
    def build_line(title: str, text: str) -> list[str]:
        return [title, *(text if name == "perdure" else "" for name in names)]

    yield build_line(f"console at {mine['open']:,} open runs, {mine['waits']:,} waits", "")
    for name, page in mine["pages"].items():
        text = "{p50:.0f} ms (p95 {p95:.0f}), {cpu_ms:.0f} ms of CPU, {kb:.0f} kB".format(
            kb=page["bytes"] / 1000, **page
        )
        yield build_line(f"  {name}: server's time", text)
    for name, times in (mine["browser"] or {}).items():
        text = ", ".join(f"{key.replace('_', ' ')} {value:.0f} ms" for key, value in times.items())
        yield build_line(f"  {name}: in a browser", text)


def _web_cells(figures: Figures, names: Sequence[str], keys: Sequence[str], form: str) -> list[str]:
    def cell(mine: Any) -> str:
        for key in keys:
            mine = mine[key]
        return form.format(**mine)

    return [cell(figures[name]) if name in figures else "-" for name in names]


def _actions(figures: Figures, names: Sequence[str]) -> Iterable[list[str]]:
    seconds = next(iter(figures.values()))["slow_ms"] / 1000
    for title, key in (("at once", "quick"), (f"after {seconds:g} s", "slow")):
        cells = [
            f"{mine[key]:.1f}, ${mine[key] * MILLION_USD:.0f}" if (mine := figures.get(name)) else "-" for name in names
        ]
        yield [f"billable actions per iteration, model answers {title}; a million", *cells]
    for title, count in figures.get("perdure", {}).get("requests", {}).items():
        yield [f"billable actions: {title}", *(f"{count:.1f}" if name == "perdure" else "-" for name in names)]


def _compared(mine: Mapping[str, Any]) -> str:
    if "store_cpu_ratio" not in mine:
        return "-"
    wall, cpu = mine["store_wall_ratio"], mine["store_cpu_ratio"]
    return f"{wall:.2f}, {cpu:.2f} {_mark(cpu <= POSTGRES)} ≤ {POSTGRES}"


def _database(figures: Figures, names: Sequence[str]) -> Iterable[list[str]]:
    for title, form in (
        ("PostgreSQL, transactions per iteration", "{transactions:.1f}"),
        ("PostgreSQL, CPU of the server per iteration", "{server_cpu_ms:.2f} ms"),
        ("PostgreSQL, bytes per iteration: log, database", "{wal_bytes:.0f}, {bytes:.0f}"),
        (
            "PostgreSQL, per piece of a slow reply: transactions, CPU, log",
            "{piece_transactions:.2f}, {piece_cpu_ms:.2f} ms, {piece_wal:.0f}",
        ),
    ):
        yield [title, *(form.format(**figures[name]) if name in figures else "-" for name in names)]


def _scaling(figures: Figures, names: Sequence[str]) -> Iterable[list[str]]:
    for model_ms, by_count in next(iter(figures.values()), {}).items():
        heading = f"model {model_ms} ms: iterations per second, by one, CPU, machine's CPUs busy, lock waits"
        yield [heading, *("" for _ in names)]
        for count in by_count:
            title = f"  {count} worker{'s' if count != '1' else ''}"
            cells = (_scaled(count, figures[name][model_ms][count]) if name in figures else "-" for name in names)
            yield [title, *cells]


def _scaled(count: str, mine: Mapping[str, float]) -> str:
    met = f" {_mark(mine['times'] >= FOUR_WORKERS)} ≥ {FOUR_WORKERS}" if count == "4" else ""
    costs = f"{mine['cpu_ms']:.1f} ms, {100 * mine['busy']:.0f} %, {mine['lock_waits']:.2f}"
    return f"{mine['iterations_s']:.1f}, {mine['times']:.2f}{met}, {costs}"


def _parked(figures: Figures, names: Sequence[str]) -> Iterable[list[str]]:
    for title, form in (
        ("runs that wait for approval, workers, cache of each", "{count}, {workers}, {cache}"),
        (
            "workers' memory before / with a fifth / with all / after",
            "{before_kb} / {few_kb} / {after_kb} / {end_kb} KB",
        ),
        ("workers' memory per parked run, of the later four fifths", "{kb_per_run:.1f} KB"),
        ("bytes of the store per run, at its end", "{store_bytes:.0f}"),
        ("PostgreSQL, connections and memory with them", "{connections}, {server_kb} KB"),
        ("started and waiting", "{park_s:.1f} s"),
        ("inbox: first page; all by Temporal, by the store", "{page_s:.2f}; {inbox_s:.1f}, {listed_s:.1f} s"),
        ("CPU of a decided call to the run's end: worker, Temporal", "{worker_ms:.1f}, {server_ms:.1f} ms"),
        ("approved by two who race, each call", "{burst_s:.1f} s"),
        ("until all had ended", "{done_s:.1f} s"),
    ):
        yield [title, *(_format_known(form, figures.get(name, {})) for name in names)]


def _format_known(form: str, mine: Mapping[str, Any]) -> str:
    """A cell; "-" without its figures."""
    try:
        return form.format(**mine)
    except KeyError:
        return "-"


def _hooked(mine: Mapping[str, float]) -> str:
    return f"{mine['wall_ratio']:.2f} {_mark(mine['wall_ratio'] <= HOOKS)} ≤ {HOOKS}, {mine['cpu_ratio']:.2f}"


def _sized(mine: Mapping[str, Any], length: int) -> str:
    if length not in mine["bytes"]:
        return "ended by Temporal"
    return f"{mine['bytes'][length] / 1000:.0f} kB, {mine['events'][length]} events"


def _grown(name: str, mine: Mapping[str, Any], longest: int) -> str:
    if longest not in mine["bytes"]:
        return "-"
    by = mine["bytes"][longest] / mine["bytes"][longest // 2]
    return f"{by:.2f}" if CONTESTANTS[name].is_peer else f"{by:.2f} {_mark(by <= GROWTH)} ≤ {GROWTH}"


def allowed(mine: Mapping[str, Any], length: int) -> float | None:
    """Bytes that a history of ``length`` iterations may have; None for a contestant without a transcript."""
    messages = mine["message_bytes"].get(length)
    return None if messages is None else 1.3 * messages + 3000 * length


def _share(mine: Mapping[str, Any]) -> str:
    longest = max(mine["bytes"], default=0)
    most = allowed(mine, longest)
    if most is None:
        return "-"
    return f"{mine['bytes'][longest] / most:.2f} {_mark(mine['bytes'][longest] <= most)} ≤ 1"


def _mark(met: bool) -> str:
    return "✓" if met else "✗"


def _aligned(lines: Sequence[Sequence[str]]) -> str:
    widths = [max(len(cell) for cell in column) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines
    )
