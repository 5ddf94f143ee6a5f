"""A tiny agent loop over real files, in process: what the engine does for the demo, without the engine."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from perdure.demo_model.model import reply
from perdure.demo_model.planning import Ask, Conversation, Say, Tool, Turn

TOOLS = (
    Tool("list_files", {"pattern": {"type": "string", "default": "*"}}, frozenset()),
    Tool("search", {"text": {"type": "string"}}, frozenset({"text"})),
    Tool(
        "read_file",
        {"path": {"type": "string"}, "start": {"type": "integer"}, "lines": {"type": "integer"}},
        frozenset({"path"}),
    ),
    Tool("count_lines", {"path": {"type": "string"}}, frozenset({"path"})),
)


class Reader:
    """Answers questions over ``root`` with the demo model; ``turns`` is the conversation."""

    def __init__(self, root: Path, tools: tuple[Tool, ...] = TOOLS, *, shape: str = "text", system: str = "") -> None:
        self.root = root
        self.tools = tools
        self.shape = shape
        self.system = system
        self.turns: list[Turn] = []
        self.steps: list[Say] = []

    @property
    def calls(self) -> list[Ask]:
        """Every call so far."""
        return [call for step in self.steps for call in step.calls]

    def ask(self, text: str, *, inject: Mapping[int, str] | None = None) -> str:
        """The answer; ``inject`` has messages that arrive after so many replies of this turn."""
        self.turns.append(Turn("user", text))
        for number in range(1, 40):
            say = self.step()
            if not say.calls:
                return say.text
            if inject and number in inject:
                self.turns.append(Turn("user", inject[number]))
        raise AssertionError("the model never answers")

    def step(self) -> Say:
        """One reply, with the results of its calls."""
        say = reply(Conversation(self.turns, self.tools, self.system))
        calls = tuple(Ask(call.name, call.arguments, f"{len(self.turns)}-{n}") for n, call in enumerate(say.calls))
        self.steps.append(say)
        self.turns.append(Turn("assistant", say.text, calls))
        self.turns.extend(Turn("tool", self.run(call), call_id=call.id) for call in calls)
        return say

    def run(self, call: Ask) -> str:
        """The result of a tool, its exception as the engine tells it to a model."""
        use: dict[str, Callable[..., Any]] = {
            "list_files": self._list,
            "search": self._search,
            "read_file": self._read,
            "count_lines": lambda path: len(self._lines(path)),
        }
        try:
            result = use[call.name](**call.arguments)
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        if self.shape == "json" or not isinstance(result, list):
            return json.dumps(result)
        return "\n".join(map(self._line, result)) or "nothing found"

    def _paths(self) -> list[str]:
        return sorted(str(path.relative_to(self.root)) for path in self.root.rglob("*") if path.is_file())

    def _lines(self, path: str) -> list[str]:
        return (self.root / path).read_text(errors="replace").splitlines()

    def _list(self, pattern: str = "*") -> list[Any]:
        paths = [path for path in self._paths() if fnmatch(path, pattern)]
        sizes = {path: (self.root / path).stat().st_size for path in paths}
        return [{"path": path, "size": sizes[path]} if self.shape != "bare" else path for path in paths]

    def _search(self, text: str) -> list[Any]:
        return [
            {"path": path, "line": number, "text": line}
            for path in self._paths()
            for number, line in enumerate(self._lines(path), 1)
            if text.lower() in line.lower()
        ]

    def _read(self, path: str, start: int = 1, lines: int = 50) -> Any:
        chosen = self._lines(path)[start - 1 : start - 1 + lines]
        numbered = [f"{number:4}: {line}" for number, line in enumerate(chosen, start)]
        return numbered if self.shape != "json" else "\n".join(chosen)

    def _line(self, item: Any) -> str:
        if isinstance(item, str):
            return item
        if "line" in item:
            return f"{item['path']}:{item['line']}: {item['text']}"
        return f"{item['path']} ({item['size']} bytes)"
