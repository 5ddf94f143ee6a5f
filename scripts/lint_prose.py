"""The shape of the documentation's prose: lines that can be reviewed, sentences of tables that can be read at once.

A line of prose has at most 160 characters, and a sentence in a cell of a table at most 30 words. Code, the API
reference, decisions and AGENTS.md, which have rules of their own, are left out.

Usage: lint_prose.py [--write]    `--write` breaks the lines of paragraphs that have a longer one; sentences are yours.
"""

from __future__ import annotations

import re
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LINE_CHARS = 160
WIDTH = 140
"""Of paragraphs whose lines are broken."""
SENTENCE_WORDS = 30

_ITEM = re.compile(r"^(\s*)([-*] |\d+\. |> )?")
_BLOCK = re.compile(r"^\s*([-*] |\d+\. |> |\||#|```|<!--|!\[)")
_SPAN = re.compile(r"`[^`]*`|\[[^\]]*\]\([^)]*\)")
"""Inline code and links, which stay on one line."""
_LINK = re.compile(r"\[([^\]]*)\]\([^)]*\)")


def list_pages() -> list[Path]:
    """List the pages whose prose is checked."""
    docs = [path for path in (ROOT / "docs").rglob("*.md") if path.parent.name not in ("decisions", "reference")]
    return sorted([*docs, *(ROOT / name for name in ("README.md", "CONTRIBUTING.md")),
                   ROOT / "examples/README.md", ROOT / "deploy/README.md"])  # fmt: skip


def iter_prose(text: str) -> Iterator[tuple[int, str]]:
    """Yield the lines outside code, with their numbers."""
    in_code = False
    for number, line in enumerate(text.split("\n"), 1):
        if line.lstrip().startswith("```"):
            in_code = not in_code
        elif not in_code:
            yield number, line


def list_findings(text: str) -> list[str]:
    """List what is too long, as ``line: finding``."""
    found = []
    for number, line in iter_prose(text):
        if line.startswith("|"):
            found += [f"{number}: a sentence of {count} words in a table" for count in _count_long_sentences(line)]
        elif len(line) > LINE_CHARS and not line.startswith(("![", "<!--")):
            found.append(f"{number}: {len(line)} characters")
    return found


def _count_long_sentences(row: str) -> Iterator[int]:
    for cell in _LINK.sub(r"\1", row).strip("|").split("|"):
        for sentence in re.split(r"(?<=[.!?])\s+|<br>", cell):
            if (count := len(sentence.split())) > SENTENCE_WORDS:
                yield count


def break_lines(text: str) -> str:
    """Break the lines of each paragraph and item of a list that has one over the limit."""
    prose = dict(iter_prose(text))
    lines = text.split("\n")
    out: list[str] = []
    index = 0
    while index < len(lines):
        line, end = lines[index], index + 1
        if index + 1 in prose and line.strip() and not re.match(r"^\s*(\||#|<!--|!\[)", line):
            while end + 1 in prose and end < len(lines) and lines[end].strip() and not _BLOCK.match(lines[end]):
                end += 1
        paragraph = lines[index:end]
        is_long = index + 1 in prose and not line.startswith(("|", "![", "<!--"))
        out += _wrap(paragraph) if is_long and any(len(each) > LINE_CHARS for each in paragraph) else paragraph
        index = end
    return "\n".join(out)


def _wrap(paragraph: list[str]) -> list[str]:
    item = _ITEM.match(paragraph[0])
    first = item[0] if item else ""
    rest = first if first.endswith("> ") else " " * len(first)
    body = " ".join(line.strip() for line in [paragraph[0][len(first) :], *paragraph[1:]])
    kept = _SPAN.sub(lambda span: span[0].replace(" ", "\0"), body)
    wrapped = textwrap.wrap(
        kept, WIDTH, initial_indent=first, subsequent_indent=rest, break_long_words=False, break_on_hyphens=False
    )
    return [line.replace("\0", " ") for line in wrapped]


def main() -> int:
    """Check the pages, or break their lines."""
    found = []
    for path in list_pages():
        text = path.read_text(encoding="utf-8")
        if "--write" in sys.argv[1:] and (broken := break_lines(text)) != text:
            path.write_text(text := broken, encoding="utf-8")
        found += [f"{path.relative_to(ROOT)}:{finding}" for finding in list_findings(text)]
    print("\n".join(found) or "prose: no findings")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
