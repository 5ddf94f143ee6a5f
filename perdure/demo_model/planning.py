"""OpenAI's chat completions, as far as the demo model speaks them."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .search import Findings, Question, named_file, rank, sought, variants

_PIECES = re.compile(r"\S+\s*|\s+")


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool that is offered."""

    name: str
    properties: Mapping[str, Mapping[str, Any]]
    required: frozenset[str]


@dataclass(frozen=True, slots=True)
class Ask:
    """A tool call."""

    name: str
    arguments: Mapping[str, Any]
    id: str = ""


@dataclass(frozen=True, slots=True)
class Turn:
    """A message: ``text`` of a user or of the model, with its calls; or the result of call ``call_id``."""

    role: str
    text: str = ""
    calls: tuple[Ask, ...] = ()
    call_id: str = ""


@dataclass(frozen=True, slots=True)
class Conversation:
    """What the model is asked."""

    turns: Sequence[Turn] = ()
    tools: Sequence[Tool] = ()
    system: str = ""
    model: str = "demo"
    stream: bool = False


@dataclass(frozen=True, slots=True)
class Say:
    """What the model answers: text, calls, or both."""

    text: str = ""
    calls: Sequence[Ask] = field(default_factory=tuple)


def parse(body: bytes) -> Conversation:
    """The conversation of a request. Raises ``ValueError`` for what is none."""
    request = json.loads(body)
    if not isinstance(request, dict) or not isinstance(request.get("messages"), list):
        raise ValueError("The request needs 'messages'.")
    turns = [_turn(message) for message in request["messages"] if isinstance(message, dict)]
    return Conversation(
        turns=[turn for turn in turns if turn.role in ("user", "assistant", "tool")],
        tools=[_tool(tool["function"]) for tool in request.get("tools") or ()],
        system="\n".join(turn.text for turn in turns if turn.role in ("system", "developer")),
        model=str(request.get("model", "demo")),
        stream=bool(request.get("stream")),
    )


def _turn(message: Mapping[str, Any]) -> Turn:
    content = message.get("content") or ""
    if isinstance(content, list):
        content = "".join(part.get("text", "") for part in content if isinstance(part, dict))
    calls = tuple(
        Ask(call["function"]["name"], _object(call["function"].get("arguments")), call["id"])
        for call in message.get("tool_calls") or ()
    )
    return Turn(str(message.get("role")), str(content), calls, str(message.get("tool_call_id", "")))


def _object(text: object) -> Mapping[str, Any]:
    try:
        value = json.loads(text) if isinstance(text, str) else text
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def _tool(function: Mapping[str, Any]) -> Tool:
    schema = function.get("parameters") or {}
    return Tool(function["name"], schema.get("properties") or {}, frozenset(schema.get("required") or ()))


def number_calls(say: Say, conversation: Conversation) -> Say:
    """``say`` with ids for its calls that the conversation does not have yet; the same request, the same ids."""
    before = sum(len(turn.calls) for turn in conversation.turns)
    calls = [Ask(call.name, call.arguments, f"call_{before + n:04d}") for n, call in enumerate(say.calls, 1)]
    return Say(say.text, calls)


def _head(conversation: Conversation, kind: str) -> dict[str, Any]:
    number = len(conversation.turns)
    return {"id": f"chatcmpl-demo-{number}", "object": kind, "created": 0, "model": conversation.model}


def _calls(say: Say) -> list[dict[str, Any]]:
    return [
        {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": json.dumps(call.arguments)}}
        for call in say.calls
    ]


def _usage(say: Say, size: int) -> dict[str, int]:
    """Tokens, as four bytes each: the demo has no tokenizer, and nobody pays."""
    written = len(_PIECES.findall(say.text)) + sum(8 + len(str(call.arguments)) // 4 for call in say.calls)
    return {"prompt_tokens": size // 4, "completion_tokens": written, "total_tokens": size // 4 + written}


def whole(say: Say, conversation: Conversation, size: int) -> dict[str, Any]:
    """The reply in one piece; ``size`` is the request's in bytes."""
    message: dict[str, Any] = {"role": "assistant", "content": say.text or None}
    if say.calls:
        message["tool_calls"] = _calls(say)
    choice = {"index": 0, "message": message, "finish_reason": "tool_calls" if say.calls else "stop"}
    return _head(conversation, "chat.completion") | {"choices": [choice], "usage": _usage(say, size)}


async def stream(say: Say, conversation: Conversation, size: int, delay: float) -> AsyncGenerator[bytes, None]:
    """The reply token by token, ``delay`` seconds apart, as server-sent events."""
    head = _head(conversation, "chat.completion.chunk")

    def event(**fields: Any) -> bytes:
        return b"data: " + json.dumps(head | fields).encode() + b"\n\n"

    def delta(finish: str | None = None, **fields: Any) -> bytes:
        return event(choices=[{"index": 0, "delta": fields, "finish_reason": finish}])

    yield delta(role="assistant", content="" if say.text else None)
    for piece in _PIECES.findall(say.text):
        await asyncio.sleep(delay)
        yield delta(content=piece)
    for index, call in enumerate(_calls(say)):
        await asyncio.sleep(delay)
        yield delta(tool_calls=[{"index": index, **call}])
    yield delta("tool_calls" if say.calls else "stop")
    yield event(choices=[], usage=_usage(say, size))
    yield b"data: [DONE]\n\n"


# ---
# Which of the offered tools lists, searches, reads and counts, and how to call it.


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


# ---
# What to look at next: the calls that a question still needs.


MOST_CALLS = 12
"""Calls in a turn."""
_SEARCHES = 3
_READS = 2
_COUNTS = 5
_BEFORE, _WINDOW = 4, 16
"""Lines above a hit, and lines altogether, that are read."""
_INTRODUCTION = re.compile(r"(?:^|/)(?:readme|index|overview|introduction|main|__init__)\b[^/]*$", re.IGNORECASE)


def next_calls(questions: Sequence[Question], findings: Findings, tools: Toolkit, used: int) -> list[Ask]:
    """The calls of the next step, at most so many as are left; none when it is time to answer.

    Steps go list, search, read, count, each for all questions at once.
    """
    for step in (_list, _search, _search_again, _read, _count):
        calls = step(questions, findings, tools)
        if calls:
            return _once(calls)[: max(0, MOST_CALLS - used)]
    return []


def _once(calls: list[Ask]) -> list[Ask]:
    kept: list[Ask] = []
    for call in calls:
        if call not in kept:
            kept.append(call)
    return kept


def _list(questions: Sequence[Question], findings: Findings, tools: Toolkit) -> list[Ask]:
    return [tools.list_files()] if "list" in tools and not findings.listed and questions else []


def _search(questions: Sequence[Question], findings: Findings, tools: Toolkit) -> list[Ask]:
    if "search" not in tools:
        return []
    asked = [question for question in questions if question.kind != "size"]
    wanted = [term.text for question in asked for term in sought(question, findings)[:_SEARCHES]]
    return [tools.search(text) for text in wanted if text.lower() not in findings.searches]


def _search_again(questions: Sequence[Question], findings: Findings, tools: Toolkit) -> list[Ask]:
    """Shorter forms, for a question none of whose words was found."""
    if "search" not in tools:
        return []
    calls: list[Ask] = []
    for question in questions:
        terms = sought(question, findings)[:_SEARCHES]
        if question.kind == "size" or rank(question, findings).hits:
            continue
        forms = [form for term in terms for form in variants(term.text)][:2]
        calls.extend(tools.search(form) for form in forms if form.lower() not in findings.searches)
    return calls


def _read(questions: Sequence[Question], findings: Findings, tools: Toolkit) -> list[Ask]:
    if "read" not in tools:
        return []
    calls: list[Ask] = []
    for question in questions:
        for path, line in spots(question, findings):
            if path not in findings.reads:
                calls.append(tools.read(path, max(1, line - _BEFORE), _WINDOW))
    return calls


def spots(question: Question, findings: Findings) -> list[tuple[str, int]]:
    """Where to read for a question: path and line."""
    if question.kind in ("size", "count", "list"):
        return []
    named = named_file(question, findings)
    ranking = rank(question, findings)
    found = [(path, ranking.best_in(path).line) for path in ranking.files[:_READS]]
    if named:
        return [(path, line) for path, line in found if path == named] or [(named, 1)]
    if not question.terms and (start := introduction(findings)):
        return [(start, 1)]
    return found


def introduction(findings: Findings) -> str | None:
    """The file that says what a folder is about."""
    candidates = sorted(findings.files, key=lambda path: (path.count("/"), len(path), path))
    return next((path for path in candidates if _INTRODUCTION.search(path)), candidates[0] if candidates else None)


def _count(questions: Sequence[Question], findings: Findings, tools: Toolkit) -> list[Ask]:
    if "count" not in tools:
        return []
    wanted: list[str] = []
    for question in questions:
        named = named_file(question, findings)
        if question.kind == "count" and named:
            wanted.append(named)
        if question.kind == "size":
            wanted.extend(candidates(question, findings))
    return [tools.count(path) for path in wanted if findings.files[path].lines is None]


def candidates(question: Question, findings: Findings) -> list[str]:
    """Files whose lines are worth counting to find the largest (or smallest)."""
    paths = [path for path in findings.files if not question.suffix or path.endswith(question.suffix)]
    sized = [path for path in paths if findings.files[path].size is not None]
    if sized:
        sized.sort(key=lambda path: (findings.files[path].size or 0) * (1 if question.small else -1))
        return sized[:1]
    # Nothing says how large they are: those deeper in the tree are rarely the answer.
    paths.sort(key=lambda path: (findings.files[path].lines is None, path.count("/"), path))
    return paths[:_COUNTS]
