"""The model of ``perdure demo`` without an API key: rules behind an HTTP server that speaks OpenAI's chat completions.

``python -m perdure.cli.demo.model`` is its process. The server keeps no conversation: it builds each reply from the
messages of the request, and its statements about the files from the tool results among them.
"""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler
from socketserver import ThreadingTCPServer
from threading import Thread
from typing import Any

from ...embedded.process import report_to_parent

# ---
# The rules, for the tools of the demo's agent (worker.py) and the format of their results.

MAX_TERMS, MAX_QUOTED_LINES, MAX_FILE_NAMES = 3, 6, 5
"""Searches for a question, lines of a quote, files in an enumeration."""
CALL_TEXTS = {
    "list_files": "I look at which files there are.",
    "search": "I search the files for words of the question.",
    "read_file": "I read the lines that matter.",
    "count_lines": "I count the lines.",
}
"""The model's text before a tool call."""
COMMON_WORDS = frozenset(
    """about all also and any are can code count defined describe does explain explained file files find folder for from
    happens has have here how into line lines list long many mean more often one other project say says show tell that
    the their there they this used what when where which who why will with work works""".split()  # noqa: SIM905 - shorter
)
"""Words that are not searched for."""
WORD_PATTERN = re.compile(r"\w[\w./-]+\w")
QUOTED_PATTERN = re.compile(r"[`\"“]([^`\"”]{2,80})[`\"”]")
SUPERLATIVE_PATTERN = re.compile(r"\b(?:largest|biggest|smallest)\b")
DEFINITION_PATTERN = re.compile(r"(?:async def|def|class|function|func|fn|type|struct|interface|const|#+)\s")
INTRODUCTION_PATTERN = re.compile(r"\b(?:readme|index)\b", re.IGNORECASE)
LISTED_FILE_PATTERN = re.compile(r"^(.+) \(([\d,]+) bytes\)$", re.MULTILINE)
MATCH_PATTERN = re.compile(r"^(.+?):(\d+): (.*)$", re.MULTILINE)
NUMBERED_LINE_PATTERN = re.compile(r"^\d+: (.*\S)$", re.MULTILINE)


@dataclass(frozen=True)
class ToolCall:
    """A call of a tool. Equal calls compare equal: ``arguments`` is JSON with sorted keys."""

    name: str
    arguments: str


JsonObject = dict[str, Any]
"""An object of the wire format."""
AnswerSteps = Generator[ToolCall, str, str]
"""Yields a tool call, is sent its result, and so on; returns a text."""


def build_reply(request: JsonObject) -> ToolCall | str:
    """The next tool call, or the answer: the steps of each open question are repeated over the results so far."""
    messages = request["messages"]
    functions = {call["id"]: call["function"] for call in list_tool_calls(messages)}
    results: dict[ToolCall, str] = {}
    for message in messages:
        if message["role"] == "tool":
            function = functions[message["tool_call_id"]]
            results[build_tool_call(function["name"], **json.loads(function["arguments"]))] = message["content"]
    offered = {tool["function"]["name"] for tool in request.get("tools", ())}
    answers: list[str] = []
    for question in list_open_questions(messages):
        steps = answer_question(question)
        try:
            call = next(steps)
            while call in results or call.name not in offered:
                call = steps.send(results.get(call, ""))
        except StopIteration as end:
            answers.append(f"You also asked “{question}” {end.value}" if answers else end.value)
        else:
            return call
    return "\n\n".join(answers) or "Ask me something about the files of this folder."


def build_tool_call(name: str, **arguments: object) -> ToolCall:
    """A call of the tool ``name``."""
    return ToolCall(name, json.dumps(arguments, sort_keys=True))


def list_tool_calls(messages: Sequence[JsonObject]) -> list[JsonObject]:
    """All tool calls in ``messages``."""
    return [call for message in messages for call in message.get("tool_calls") or ()]


def list_open_questions(messages: Sequence[JsonObject]) -> list[str]:
    """The user's messages since the last answer."""
    questions: list[str] = []
    for message in messages:
        if message["role"] == "user":
            questions.append(message["content"])
        elif message["role"] == "assistant" and not message.get("tool_calls"):
            questions.clear()
    return questions


def answer_question(question: str) -> AnswerSteps:
    """List the files, and look for the question's words in the file that it names, or in all."""
    listing = yield build_tool_call("list_files")
    sizes = {path: int(size.replace(",", "")) for path, size in LISTED_FILE_PATTERN.findall(listing)}
    if not sizes:
        return f"I see no files that could answer this. {listing}".strip()
    words = list(dict.fromkeys(WORD_PATTERN.findall(question)))
    if {"file", "files"}.intersection(words) and (superlative := SUPERLATIVE_PATTERN.search(question)):
        return (yield from find_file_by_size(sizes, superlative[0], is_truncated(listing)))
    named = [(path, word) for path in sizes for word in words if f"/{path}".endswith(f"/{word}")]
    file, name = named[0] if named else ("", "")
    terms = [text for text in QUOTED_PATTERN.findall(question) if text != name]
    if not terms:
        by_length = sorted(words, key=len, reverse=True)
        terms = [word for word in by_length if word != name and word.lower() not in COMMON_WORDS]
    terms = terms[:MAX_TERMS]
    if answer := (yield from find_best_match(terms, file or ".")):
        return answer
    if file:
        description = yield from describe_file_beginning(file, sizes[file])
    else:
        description = yield from describe_folder(sizes, is_truncated(listing))
    return f"I found no line with {format_terms(terms)}. {description}" if terms else description


def find_best_match(terms: Sequence[str], path: str) -> AnswerSteps:
    """The line with most of the terms, best a definition or a heading, and where else they are; "" if nowhere."""
    matches: dict[tuple[str, int], str] = {}
    truncated = False
    for term in terms:
        result = yield build_tool_call("search", text=term, path=path)
        matches |= {(file, int(line)): text for file, line, text in MATCH_PATTERN.findall(result)}
        truncated |= is_truncated(result)
    if not matches:
        return ""

    def rank(place: tuple[str, int]) -> tuple[int, bool]:
        text = matches[place].lower()
        return sum(term.lower() in text for term in terms), bool(DEFINITION_PATTERN.match(text))

    places = sorted(matches, key=rank, reverse=True)
    file, line = places[0]
    quote = (yield from read_quote(file, line)) or f"> {matches[file, line]}"
    files = list(dict.fromkeys(path for path, _ in places))
    at_least = "at least " if truncated else ""
    number = f"{at_least}{format_count(len(matches), 'line')} of {format_count(len(files), 'file')}"
    text = f"I found {format_terms(terms)} in {number}, best in `{file}`, line {line}:\n\n{quote}"
    return f"{text}\n\nSee also {format_file_names(files[1:])}." if files[1:] else text


def describe_file_beginning(path: str, size: int) -> AnswerSteps:
    """The size of a file, and how it begins."""
    measured = yield from describe_file_size(path, size)
    quote = yield from read_quote(path, 1)
    return f"{measured} begins:\n\n{quote}" if quote else f"{measured} has no text that I can read."


def describe_folder(sizes: dict[str, int], truncated: bool) -> AnswerSteps:
    """Which files there are, and how the README or the index begins, or else the first file."""
    total = re.match(r"\d+ lines", (yield build_tool_call("count_lines")))
    at_least, lines = "at least " if truncated else "", f" with {total[0]}" if total else ""
    text = f"The folder has {at_least}{format_count(len(sizes), 'file')}{lines}: {format_file_names(list(sizes))}."
    first = min(sizes, key=lambda path: (not INTRODUCTION_PATTERN.search(path), path.count("/")))
    quote = yield from read_quote(first, 1)
    return f"{text} `{first}` begins:\n\n{quote}" if quote else text


def find_file_by_size(sizes: dict[str, int], superlative: str, truncated: bool) -> AnswerSteps:
    """The largest or the smallest file."""
    choose = min if superlative == "smallest" else max
    path = choose(sizes, key=sizes.__getitem__)
    scope = f" of the {len(sizes)} that are listed" if truncated else ""
    return f"The {superlative} file{scope} is {yield from describe_file_size(path, sizes[path])}."


def describe_file_size(path: str, size: int) -> AnswerSteps:
    """A file's name with its bytes and lines."""
    lines = re.search(r" has (\d+ lines)$", (yield build_tool_call("count_lines", path=path)))
    return f"`{path}` ({size:,} bytes{f', {lines[1]}' if lines else ''})"


def read_quote(path: str, line: int) -> AnswerSteps:
    """The lines of a file from ``line`` on, without blank ones, as a quote; "" if it cannot be read."""
    result = yield build_tool_call("read_file", path=path, start=line, lines=MAX_QUOTED_LINES)
    return "\n".join(f"> {text}" for text in NUMBERED_LINE_PATTERN.findall(result))


def is_truncated(result: str) -> bool:
    """Whether the tool has found more than it shows."""
    return result.rpartition("\n")[2].startswith("…")


def format_count(number: int, noun: str) -> str:
    """``1 file``, ``2 files``."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def format_terms(terms: Sequence[str]) -> str:
    """All terms, for a sentence."""
    return " or ".join(f"“{term}”" for term in terms)


def format_file_names(paths: Sequence[str]) -> str:
    """The first files and how many more, for a sentence."""
    more = f" and {len(paths) - MAX_FILE_NAMES} more" if len(paths) > MAX_FILE_NAMES else ""
    return ", ".join(f"`{path}`" for path in paths[:MAX_FILE_NAMES]) + more


# ---
# The server.


class DemoModel(ThreadingTCPServer):
    """The model on a free port of loopback: ``with DemoModel() as model: … model.base_url``.

    ``delay`` is the time before each chunk of a reply, in seconds.
    """

    daemon_threads = True

    def __init__(self, delay: float = 0.0) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.base_url = f"http://127.0.0.1:{self.server_address[1]}/v1"
        self.delay = delay
        self.requests = 0
        """How many replies were asked for, also those whose connection was lost."""

    def __enter__(self) -> DemoModel:
        Thread(target=self.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.shutdown()
        self.server_close()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Reports what went wrong, but not that a killed worker has hung up."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    server: DemoModel

    def do_GET(self) -> None:
        if self.path == "/stats":
            self._send_json(200, {"requests": self.server.requests})
        else:
            self._send_json(404, {"error": {"message": f"Unknown URL: GET {self.path}"}})

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        if self.path != "/v1/chat/completions":
            self._send_json(404, {"error": {"message": f"Unknown URL: POST {self.path}"}})
            return
        self.server.requests += 1
        try:
            request = json.loads(body)
            reply = build_reply(request)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            self._send_json(400, {"error": {"message": f"The request is no chat completion: {error!r}"}})
            return
        self._send_headers(200, "text/event-stream")
        call_id = f"call_{len(list_tool_calls(request['messages'])) + 1}"
        for chunk in build_chunks(reply, call_id, prompt_tokens=len(body) // 4):
            time.sleep(self.server.delay)
            self.wfile.write(b"data: %b\n\n" % json.dumps(chunk).encode())
        self.wfile.write(b"data: [DONE]\n\n")

    def _send_json(self, status: int, value: object) -> None:
        self._send_headers(status, "application/json")
        self.wfile.write(json.dumps(value).encode())

    def _send_headers(self, status: int, content_type: str) -> None:
        self.send_response(status)
        self.send_header("content-type", content_type)
        self.end_headers()  # no length: in HTTP/1.0 the body ends with the connection

    def log_message(self, format: str, *args: object) -> None:
        """No log: stderr is the demo's."""


def build_chunks(reply: ToolCall | str, call_id: str, prompt_tokens: int) -> Iterator[JsonObject]:
    """The reply in the wire format: a chunk for each word, the tool call in one, the usage in the last."""
    head = {"id": "chatcmpl-demo", "object": "chat.completion.chunk", "created": 0, "model": "demo"}

    def build_chunk(finish_reason: str | None = None, **delta: Any) -> JsonObject:
        return head | {"choices": [{"index": 0, "delta": delta, "finish_reason": finish_reason}]}

    words = re.findall(r"\S+\s*", CALL_TEXTS[reply.name] if isinstance(reply, ToolCall) else reply)
    yield build_chunk(role="assistant", content="")
    for word in words:
        yield build_chunk(content=word)
    if isinstance(reply, ToolCall):
        function = {"name": reply.name, "arguments": reply.arguments}
        yield build_chunk(tool_calls=[{"index": 0, "id": call_id, "type": "function", "function": function}])
    yield build_chunk("tool_calls" if isinstance(reply, ToolCall) else "stop")
    usage = {"prompt_tokens": prompt_tokens, "completion_tokens": len(words)}
    yield head | {"choices": [], "usage": usage | {"total_tokens": prompt_tokens + len(words)}}


if __name__ == "__main__":
    with DemoModel(delay=0.05) as model:  # slow enough that a call can be cut short
        report_to_parent("serving", base_url=model.base_url)
        sys.stdin.read()  # it ends with the demo, however that ends
