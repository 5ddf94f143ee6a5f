"""Which of the offered tools lists, searches, reads and counts, and how to call it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from .wire import Ask, Tool

_PATTERN = ("pattern", "glob", "mask")
_TEXT = ("text", "query", "term", "pattern", "regex", "q", "string", "needle")
_PATH = ("path", "file", "filename", "file_path", "name")
_START = ("start", "start_line", "first_line", "from_line", "offset", "line")
_COUNT = ("lines", "count", "limit", "num_lines", "n", "length", "max_lines")
_END = ("end", "end_line", "last_line", "to_line")


def use_of(name: str) -> str | None:
    """What a tool of this name does: list, search, read, count; None for anything else."""
    words = set(re.split(r"[^a-z]+", re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()))
    if words & {"count", "wc", "size", "stat"}:
        return "count"
    if words & {"search", "grep", "rg"}:
        return "search"
    if words & {"list", "ls", "glob", "tree", "dir"}:
        return "list"
    if "find" in words:
        return "list" if words & {"files", "file"} else "search"
    if words & {"read", "open", "cat", "show", "view", "head"}:
        return "read"
    return None


class Toolkit:
    """The tools on offer, by use."""

    def __init__(self, tools: Sequence[Tool]) -> None:
        self._tools: dict[str, Tool] = {}
        for tool in tools:
            use = use_of(tool.name)
            if use is not None:
                self._tools.setdefault(use, tool)

    def __contains__(self, use: str) -> bool:
        return use in self._tools

    def __bool__(self) -> bool:
        return bool(self._tools)

    def list_files(self) -> Ask:
        """All files."""
        return self._ask("list", {_PATTERN: "*"}, optional=_PATTERN)

    def search(self, text: str) -> Ask:
        """Lines with ``text``."""
        return self._ask("search", {_TEXT: text})

    def read(self, path: str, start: int, lines: int) -> Ask:
        """``lines`` lines of a file from line ``start`` (1 is the first)."""
        return self._ask("read", {_PATH: path, _START: start, _COUNT: lines, _END: start + lines - 1})

    def count(self, path: str) -> Ask:
        """How many lines a file has."""
        return self._ask("count", {_PATH: path})

    def _ask(self, use: str, wanted: Mapping[tuple[str, ...], Any], optional: tuple[str, ...] = ()) -> Ask:
        tool = self._tools[use]
        arguments: dict[str, Any] = {}
        for names, value in wanted.items():
            name = next((name for name in names if name in tool.properties and name not in arguments), None)
            if name is None and not arguments and isinstance(value, str):
                name = _first_text(tool)  # a tool with names of its own: the text goes first
            if name is None or (names == optional and name not in tool.required):
                continue
            arguments[name] = value
        for name in tool.required - set(arguments):
            arguments[name] = _filler(tool.properties.get(name, {}))
        return Ask(tool.name, arguments)


def _first_text(tool: Tool) -> str | None:
    texts = [name for name, schema in tool.properties.items() if schema.get("type") == "string"]
    return next((name for name in texts if name in tool.required), None)


def _filler(schema: Mapping[str, Any]) -> Any:
    """A value for a parameter that we do not know."""
    if "default" in schema:
        return schema["default"]
    if schema.get("enum"):
        return schema["enum"][0]
    plain: dict[str, Any] = {"integer": 50, "number": 50, "boolean": False, "array": [], "object": {}}
    return plain.get(str(schema.get("type")), ".")
