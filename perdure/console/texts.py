"""Text on pages: what models, tools and users wrote is hostile, and shown so that nothing in it acts or hides.

Escaping is the templates' own; here are characters that would hide or reorder others, Markdown without HTML and without
remote images, and the forms of times, amounts and JSON. What a page may spend on texts is bounded (``PageBudget``).
"""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import UTC, datetime
from difflib import SequenceMatcher
from functools import cache, lru_cache
from itertools import pairwise
from typing import Any, TypeVar
from urllib.parse import urlsplit

from markdown_it import MarkdownIt
from markdown_it.renderer import RendererProtocol
from markdown_it.ruler import RuleOptionsType
from markdown_it.rules_block import StateBlock, table
from markdown_it.rules_inline import StateInline
from markdown_it.token import Token
from markupsafe import Markup, escape

from ..types.summaries import END_ISOLATE, ISOLATE
from ..types.visible_text import HIDING_CHARS, show_controls

MARKDOWN_CHARS = 24_000
"""Most characters that are rendered as Markdown; longer text is shown as it is."""
SHOWN_CHARS = 40_000
"""Most characters of one text on a page; the rest is a download."""
MARKDOWN_SECONDS = 0.2
"""Most CPU time for one text as Markdown; one that takes longer is shown as it is."""
MARKDOWN_GROWTH = 10
"""How much longer than its text the HTML may be: an empty cell of a table costs its author one character."""
TABLE_CELLS = 2_000
"""Most cells in the tables of a text; one table more is shown as it is."""
PAGE_MARKDOWN_SECONDS, PAGE_MARKDOWN_CHARS, PAGE_MARKDOWN_TEXTS = 0.5, 200_000, 200
"""What a page may spend on Markdown: CPU time, characters and texts. Further texts are shown as they are."""
PAGE_CHARS = 2_000_000
"""Most characters of texts on a page, as HTML; of further texts it says how long they are."""
_MARK_TOKENS, _MARK_CHARS = 400, 16_000
"""Most words and characters of a text that is compared word by word."""
_ALIKE = 0.35
"""Texts that have less in common are not compared word by word."""
_OVERDUE_SECONDS = 60.0
_SOON_SECONDS = 600
"""A deadline that is nearer stands out, and is shown to the second."""


def keep_text(text: str) -> Markup:
    """Escape a text and keep its characters, for a field that is sent back."""
    return escape(text)


def finalize(value: Any) -> Any:
    """Prepare what a template prints: jinja calls it for each expression, before it escapes the result."""
    return show_controls(value) if isinstance(value, str) and not isinstance(value, Markup) else value


# ---
# Markdown.


def _is_safe_link(url: str) -> bool:
    try:
        parts = urlsplit(url)
    except ValueError:
        return False
    return (parts.scheme in ("http", "https") and bool(parts.hostname)) or parts.scheme == "mailto"


def _render_image(_: RendererProtocol, tokens: Sequence[Token], index: int, *__: Any) -> str:
    """A remote image is a link: fetching it would tell its server what the address says."""
    token = tokens[index]
    label = Markup("image: ") + (token.content or "without a description")
    return str(_build_link(str(token.attrs.get("src", ""))) + label + Markup("</a>"))


def _render_link_open(_: RendererProtocol, tokens: Sequence[Token], index: int, *__: Any) -> str:
    return str(_build_link(str(tokens[index].attrs.get("href", ""))))


def _render_link_close(_: RendererProtocol, tokens: Sequence[Token], index: int, *__: Any) -> str:
    """Name the host behind a link whose text does not: the text may name another one."""
    depth, text = 0, ""
    for token in reversed(tokens[:index]):
        depth += {"link_close": 1, "link_open": -1}.get(token.type, 0)
        if depth < 0:
            host = urlsplit(str(token.attrs.get("href", ""))).hostname or ""
            shown = Markup(' <span class="host">{}</span>').format(show_controls(host))
            return "</a>" + ("" if not host or text.endswith(host) else str(shown))
        text = token.content + text
    return "</a>"


def _build_link(url: str) -> Markup:
    return Markup('<a href="{}" rel="noreferrer noopener nofollow" target="_blank">').format(url)


_UNTIL, _CELLS = "perdure_until", "perdure_cells"
"""In the environment of a rendering: the CPU time of its thread at which it ends, and the cells left for tables."""
_TABLE_RULER_CHARS = frozenset("|-: \t")


class _TooCostlyError(Exception):
    """A text takes too long as Markdown."""


def _check_time(env: MutableMapping[str, Any]) -> bool:
    if time.thread_time() > env[_UNTIL]:
        raise _TooCostlyError
    return False  # as a rule of the parser: it does not apply


def _check_block(state: StateBlock, *_: Any) -> bool:
    return _check_time(state.env)


def _check_inline(state: StateInline, _: bool) -> bool:
    return _check_time(state.env)


def _parse_table(state: StateBlock, start: int, end: int, silent: bool) -> bool:
    """Parse a table unless it has too many cells: the parser adds those that are missing in a row, and each is HTML of
    ten times its length."""
    if state.env[_CELLS] <= 0 or start + 1 >= end:
        return False
    ruler = state.src[state.bMarks[start + 1] : state.eMarks[start + 1]]
    if not _TABLE_RULER_CHARS.issuperset(ruler.lstrip(" \t>")):
        return False
    columns, row = ruler.count("|") + 1, start + 2
    until = min(end, row + state.env[_CELLS] // columns)
    while row < until and not state.isEmpty(row):
        row += 1
    if row == until and row < end:
        state.env[_CELLS] = 0  # and no further table of the text: each line would be looked at again
        return False
    if not table(state, start, end, silent):
        return False
    state.env[_CELLS] -= 0 if silent else columns * (row - start)
    return True


def _build_renderer() -> MarkdownIt:
    markdown = MarkdownIt("commonmark", {"html": False, "breaks": True}).enable(["table", "strikethrough"])
    markdown.block.ruler.at("table", _parse_table, {"alt": ["paragraph", "reference"]})
    ends_others: RuleOptionsType = {"alt": ["paragraph", "reference", "blockquote", "list"]}
    markdown.block.ruler.before("table", "budget", _check_block, ends_others)
    markdown.inline.ruler.before("text", "budget", _check_inline)
    markdown.validateLink = _is_safe_link  # type: ignore[method-assign]  # the hook of the library
    markdown.add_render_rule("image", _render_image)
    markdown.add_render_rule("link_open", _render_link_open)
    markdown.add_render_rule("link_close", _render_link_close)
    return markdown


_MARKDOWN = _build_renderer()


@lru_cache(maxsize=128)
def _build_markdown(text: str) -> Markup | None:
    """Return the HTML of ``text``; None if it would cost too much."""
    try:
        html = _MARKDOWN.render(text, {_UNTIL: time.thread_time() + MARKDOWN_SECONDS, _CELLS: TABLE_CELLS})
    except (_TooCostlyError, RecursionError, ValueError):
        return None
    if len(html) > MARKDOWN_GROWTH * len(text) + 1_000:
        return None
    return Markup('<div class="md">') + Markup(html) + Markup("</div>")  # noqa: S704  # its own


def render_markdown(text: str) -> Markup:
    """Return the HTML of ``text``: without HTML of its own, images as links, links that tell their target nothing."""
    budget = _current_budget.get() or PageBudget()
    if len(text) > MARKDOWN_CHARS or not budget.may_render(len(text)):
        return render_plain(text)
    shown = show_controls(text)
    begin = time.thread_time()
    html = _build_markdown(shown)
    budget.seconds -= time.thread_time() - begin
    if html is None or len(html) > budget.html_chars:
        return render_plain(text)
    budget.html_chars -= len(html)
    return html


def render_plain(text: str) -> Markup:
    """Return ``text`` as it is written, cut if it is very long."""
    budget = _current_budget.get() or PageBudget()
    length = min(SHOWN_CHARS, budget.html_chars)
    html = (
        Markup('<pre class="plain" tabindex="0">{}</pre>').format(show_controls(text[:length])) if length else Markup()
    )
    budget.html_chars = max(budget.html_chars - len(html), 0)
    rest = len(text) - length
    return html + (Markup('<p class="muted">{:,} more characters are not shown.</p>').format(rest) if rest > 0 else "")


# ---
# What texts may cost. Whoever writes to a run chooses them, and others open the page.


@dataclass
class PageBudget:
    """What is left for the texts of a page; a text on its own has a budget for itself."""

    seconds: float = PAGE_MARKDOWN_SECONDS
    markdown_chars: int = PAGE_MARKDOWN_CHARS
    markdown_texts: int = PAGE_MARKDOWN_TEXTS
    html_chars: int = PAGE_CHARS

    def may_render(self, chars: int) -> bool:
        """Whether a text of so many characters may be rendered as Markdown; if so, it is counted."""
        if self.seconds <= 0 or self.markdown_texts < 1 or self.markdown_chars < chars:
            return False
        self.markdown_texts -= 1
        self.markdown_chars -= chars
        return True


_current_budget: ContextVar[PageBudget | None] = ContextVar("perdure_page_budget", default=None)
T = TypeVar("T")


@cache
def _get_threads() -> ThreadPoolExecutor:
    """Threads of their own: a page that takes long holds up other pages only."""
    return ThreadPoolExecutor(2, "perdure-page")


async def render_in_thread(render: Callable[[], T]) -> T:
    """Call ``render``, which fills in templates, in a thread, with a budget for its texts.

    A thread cannot be ended: what it does is bounded beforehand, and within each text.
    """

    def call() -> T:
        token = _current_budget.set(PageBudget())
        try:
            return render()
        finally:
            _current_budget.reset(token)

    return await asyncio.get_running_loop().run_in_executor(_get_threads(), call)


# ---
# What differs between two texts.


def mark_changes(old: str, new: str) -> tuple[Markup, Markup] | None:
    """Return both texts as HTML, with the words that differ marked; None for texts that are long, or have little in
    common."""
    if max(len(old), len(new)) > _MARK_CHARS:
        return None
    before, after = _split_words(old), _split_words(new)
    if not before or not after or max(len(before), len(after)) > _MARK_TOKENS:
        return None
    matcher = SequenceMatcher(None, before, after, autojunk=False)
    if matcher.ratio() < _ALIKE:
        return None
    left, right = Markup(), Markup()
    for tag, begin, end, other_begin, other_end in matcher.get_opcodes():
        gone, come = "".join(before[begin:end]), "".join(after[other_begin:other_end])
        if tag == "equal":
            left, right = left + gone, right + come
        else:
            left += Markup("<del>{}</del>").format(gone) if gone else ""
            right += Markup("<ins>{}</ins>").format(come) if come else ""
    return left, right


def _split_words(text: str) -> list[str]:
    return re.findall(r"\w+\s*|[^\w\s]\s*|\s+", show_controls(text))


# ---
# JSON, times and amounts.


def format_json(value: Any) -> str:
    """Return ``value`` as indented JSON, with escapes (``\\u202e``) for characters that hide or reorder others."""
    text = json.dumps(value, indent=2, ensure_ascii=False)
    return HIDING_CHARS.sub(_escape_char, text) if text != show_controls(text) else text


def _escape_char(match: re.Match[str]) -> str:
    return json.dumps(match[0])[1:-1]


def format_value(value: Any) -> str:
    """Return an argument as a person reads it: text as it is, anything else as JSON."""
    return value if isinstance(value, str) else format_json(value)


_FIELDS_CHARS, _FIELDS = 20_000, 40


def parse_fields(text: str) -> Mapping[str, Any] | None:
    """Return the fields of a result that is a short JSON object, which are shown as arguments are; else None."""
    if not (text.startswith("{") and text.endswith("}") and len(text) <= _FIELDS_CHARS):
        return None
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if 0 < len(value) <= _FIELDS else None


def render_summary_line(summary: str) -> Markup:
    """Return the summary of a call, in which no value reorders what stands around it."""
    parts = re.split(f"{ISOLATE}([^{ISOLATE}{END_ISOLATE}]*){END_ISOLATE}", summary)
    shown = (
        Markup("<bdi>{}</bdi>").format(show_controls(part)) if index % 2 else escape(show_controls(part))
        for index, part in enumerate(parts)
    )
    return Markup("<bdi>{}</bdi>").format(Markup().join(shown))


def format_amount(number: float, has_cents: bool = True) -> str:
    """Return a number of a column, all with two decimals if one has some: ``1,204.50``, or ``7``."""
    if abs(number) >= 1e12 or 0 < abs(number) < 0.005:
        return f"{number:.4g}"
    return f"{number:,.2f}" if has_cents else f"{number:,.0f}"


def summarize_arguments(arguments: Mapping[str, Any] | None) -> str:
    """Return arguments on one line, for a heading."""
    if not arguments:
        return ""
    values = (json.dumps(value, ensure_ascii=False, separators=(", ", ": ")) for value in arguments.values())
    text = ", ".join(f"{name}: {value}" for name, value in zip(arguments, values, strict=True))
    return text if len(text) <= 160 else f"{text[:159]}…"


def parse_time(text: str | datetime | None) -> datetime | None:
    """Return the time that an ISO 8601 text says."""
    if text is None or isinstance(text, datetime):
        return text
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)


def measure(start: str | None, end: str | None) -> float | None:
    """Return the seconds between two times; None if one is missing."""
    first, last = parse_time(start), parse_time(end)
    return None if first is None or last is None else (last - first).total_seconds()


_UNITS = ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s"))


def format_duration(seconds: float | None) -> str:
    """Return a length of time: ``420 ms``, ``3.2 s``, ``4 min 10 s``, ``2 d 3 h``."""
    if seconds is None:
        return ""
    if seconds < 1:
        return f"{max(seconds, 0) * 1000:.0f} ms"
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    for (size, unit), (smaller, small_unit) in pairwise(_UNITS):
        if whole >= size:
            rest = whole % size // smaller
            return f"{whole // size} {unit}" + (f" {rest} {small_unit}" if rest else "")
    return f"{whole} s"


def render_time(moment: str | datetime | None, *, style: str = "ago") -> Markup:
    """Return a ``<time>``: its text is the time itself, in UTC, which the page's script replaces by the time since
    (``ago``), the time to a deadline (``until``) or the local time (``clock``), after the day if that is not today."""
    at = parse_time(moment)
    if at is None:
        return Markup()
    utc = at.astimezone(UTC)
    is_dated = style == "clock" and utc.date() != datetime.now(UTC).date()
    clock = f"{utc.day} {utc:%b %H:%M:%S}" if is_dated else f"{utc:%H:%M:%S}"
    text = clock if style == "clock" else _describe_distance(utc, style)
    is_soon = style == "until" and (utc - datetime.now(UTC)).total_seconds() < _SOON_SECONDS
    return Markup('<time datetime="{}" data-style="{}" title="{}"{}>{}</time>').format(
        utc.isoformat(timespec="milliseconds"), style, f"{utc:%d %b %Y, %H:%M:%S} UTC",
        Markup(' class="soon"') if is_soon else Markup(' class="dated"') if is_dated else "", text,
    )  # fmt: skip


def is_overdue(moment: str | None) -> bool:
    """Whether the time is a minute ago or more: what was due then has not happened."""
    at = parse_time(moment)
    return at is not None and (datetime.now(UTC) - at).total_seconds() >= _OVERDUE_SECONDS


def render_date(moment: str | None) -> Markup:
    """Return a ``<time>`` with day and time, which the page's script shows as the local time."""
    at = parse_time(moment)
    if at is None:
        return Markup()
    utc = at.astimezone(UTC)
    return Markup('<time datetime="{}" data-style="date" title="{}">{}</time>').format(
        utc.isoformat(timespec="milliseconds"), f"{utc:%d %b %Y, %H:%M:%S} UTC", f"{utc.day} {utc:%b %Y %H:%M:%S}"
    )


def render_utc(moment: str | None) -> Markup:
    """Return a ``<time>`` with day and time of UTC, which stay as they are."""
    at = parse_time(moment)
    if at is None:
        return Markup()
    utc = at.astimezone(UTC)
    return Markup('<time datetime="{}">{} <span class="clock">{}</span></time>').format(
        utc.isoformat(timespec="milliseconds"), f"{utc:%d %b %Y}", f"{utc:%H:%M:%S}"
    )


def _describe_distance(at: datetime, style: str) -> str:
    seconds = (datetime.now(UTC) - at).total_seconds()
    if style == "for":
        return format_duration(max(round(seconds), 1))
    if seconds >= 0:
        return "just now" if seconds < 5 else f"{format_duration(round(seconds))} ago"
    if style == "until" and -seconds >= _SOON_SECONDS:
        return f"in {format_duration(-seconds // 60 * 60)}"
    return f"in {format_duration(-seconds)}"


def format_period(text: str) -> str:
    """Return a period as addresses have it: a time, or two with a slash between them."""
    first, last = (
        f"{at.astimezone(UTC):%d %b %Y %H:%M}" if (at := parse_time(part)) is not None else ""
        for part in text.partition("/")[::2]
    )
    if first and last:
        return f"{first} to {last} UTC"
    return f"since {first} UTC" if first else f"before {last} UTC"


def format_cost(usd: float | None) -> str:
    """Return an amount of money."""
    if usd is None:
        return ""
    return f"${usd:,.2f}" if usd >= 1 else f"${usd:.4f}" if usd else "$0"


_SHOWN_ID_CHARS = 8


def shorten_auth(auth: str) -> str:
    """Return how a name is known, with the beginning of a token's id."""
    kind, sign, name = auth.partition(":")
    return f"{kind}:{name[:_SHOWN_ID_CHARS]}…" if sign and len(name) > _SHOWN_ID_CHARS + 1 else auth


def format_count(number: float | None) -> str:
    """Return a count: ``940``, ``12.4k``, ``3.1M``."""
    if number is None:
        return ""
    for size, unit in ((1e6, "M"), (1e3, "k")):
        if number >= size * 10 or (unit == "M" and number >= size):
            return f"{number / size:.1f}{unit}"
    return f"{number:,.0f}"


def format_size(size: int) -> str:
    """Return a number of bytes."""
    for limit, unit in ((1 << 20, "MB"), (1 << 10, "kB")):
        if size >= limit:
            return f"{size / limit:.1f} {unit}".replace(".0 ", " ")
    return f"{size} bytes"
