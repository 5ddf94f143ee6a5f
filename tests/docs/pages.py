"""What a page of the documentation has: Python programs, commands, links."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
SHELL = {"", "sh", "bash", "console", "shell"}
PROGRAMS = {"perdure", "temporal", "make", "python"}

_FENCE = re.compile(
    r"^(?P<indent> *)(?:<!-- test: (?P<mark>[^\n]*?) -->\n+ *)?```(?P<language>\w*)[^\n]*\n(?P<body>.*?)^ *```",
    re.MULTILINE | re.DOTALL,
)
_LINK = re.compile(r"\]\(([^)\s]+)\)")
_EVAL = re.compile(r'^eval "\$\((.*)\)"')


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block. ``mark`` is what the HTML comment above it says to the tests."""

    line: int
    language: str
    body: str
    mark: str

    @property
    def commands(self) -> Iterator[list[str]]:
        """The commands that are ours to check, in words: ``["perdure", "server", "start"]``."""
        if self.language not in SHELL:
            return
        for line in self.body.replace("\\\n", " ").splitlines():
            for part in line.removeprefix("$ ").split(" && "):
                part = _EVAL.sub(r"\1", re.sub(r" < \S+$", "", part.strip()))
                try:
                    words = shlex.split(part, comments=True)
                except ValueError:  # no command, a drawing
                    continue
                while words and re.fullmatch(r"[A-Z_]+=.*", words[0]):
                    words = words[1:]
                if words and Path(words[0]).name in PROGRAMS:
                    yield [Path(words[0]).name, *words[1:]]


def awaits(block: Block) -> bool:
    """Whether ``await`` stands outside any function, as in ``python -m asyncio``."""
    try:
        compile(block.body, "block", "exec")
    except SyntaxError:
        compile(block.body, "block", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        return True
    return False


@dataclass(frozen=True)
class Page:
    """A Markdown file."""

    path: Path

    @property
    def name(self) -> str:
        """Relative to the checkout."""
        return str(self.path.relative_to(ROOT))

    @cached_property
    def text(self) -> str:
        """All of it."""
        return self.path.read_text()

    @cached_property
    def blocks(self) -> list[Block]:
        """Its fenced blocks, in order, without the indentation of a list that they stand in."""
        found = []
        for match in _FENCE.finditer(self.text):
            body = re.sub(rf"^{match['indent']}", "", match["body"], flags=re.MULTILINE)
            line = self.text.count("\n", 0, match.start("body"))
            found.append(Block(line, match["language"], body, match["mark"] or ""))
        return found

    @property
    def programs(self) -> list[Block]:
        """Its Python blocks."""
        return [block for block in self.blocks if block.language == "python"]

    @property
    def sections(self) -> list[list[Block]]:
        """Its blocks in order, each Python block together with those that continue it."""
        found: list[list[Block]] = []
        programs: list[Block] = []
        for block in self.blocks:
            if block.language == "python" and block.mark == "continue":
                programs.append(block)
                continue
            found.append([block])
            if block.language == "python":
                programs = found[-1]
        return found

    @property
    def served(self) -> str | None:
        """The file as which the text tells one to save the program before it, where it goes on to serve it."""
        saved = re.search(r"Save it as `([\w.]+)`", self.text)
        return saved[1] if saved and f"`perdure worker {saved[1]}`" in self.text else None

    @property
    def commands(self) -> list[list[str]]:
        """The commands of all blocks."""
        return [command for block in self.blocks for command in block.commands]

    @property
    def mentions(self) -> list[list[str]]:
        """Commands in `backquotes` in the text."""
        found = re.findall(r"`((?:perdure|make) [a-z][^`]*)`", _FENCE.sub("", self.text))
        return [command for words in found for command in Block(0, "sh", words, "").commands]

    @property
    def links(self) -> list[str]:
        """Where its relative links go to, with the anchor."""
        prose = re.sub(r"`[^`]+`", "", _FENCE.sub("", self.text))
        return [link for link in _LINK.findall(prose) if not re.match(r"[a-z]+:", link)]

    @cached_property
    def anchors(self) -> set[str]:
        """What its headings are called in links."""
        headings = re.findall(r"^#+ (.*)$", _FENCE.sub("", self.text), re.MULTILINE)
        return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def pages() -> list[Page]:
    """All pages that a reader of the documentation comes to."""
    beside = (ROOT / "deploy/README.md", ROOT / "examples/README.md")
    return [Page(path) for path in [*ROOT.glob("*.md"), *sorted((ROOT / "docs").rglob("*.md")), *beside]]
