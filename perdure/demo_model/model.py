"""The model itself: a conversation in, the next reply out. It keeps nothing; all it knows is in the conversation."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import re
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from dataclasses import dataclass

from . import planning
from .answer import compose
from .planning import Ask, Conversation, Say, Toolkit, Turn, next_calls, use_of
from .search import Findings, Question, understand

# ---
# As much HTTP/1.1 as the demo model needs, on loopback.


HOST = "127.0.0.1"
_LARGEST = 64 * 1024 * 1024
"""Bytes of a request's body."""


@dataclass(frozen=True, slots=True)
class Request:
    """A request; ``path`` without its query."""

    method: str
    path: str
    body: bytes


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole JSON answer, or the events of a stream."""

    status: int = 200
    json: object = None
    events: AsyncGenerator[bytes, None] | None = None


Handler = Callable[[Request], Awaitable[Answer]]


class HttpServer:
    """Serves ``handler`` while it is entered; port 0 takes a free one, which ``port`` then is."""

    def __init__(self, handler: Handler, port: int = 0) -> None:
        self.port = port
        self._handler = handler
        self._connections: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> HttpServer:
        self._server = await asyncio.start_server(self._connected, HOST, self.port)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *exc: object) -> None:
        assert self._server is not None
        self._server.close()
        for connection in self._connections:
            connection.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)
        await self._server.wait_closed()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            while (request := await _read(reader)) is not None:
                await _write(writer, await self._handler(request))
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, ValueError):
            pass  # whoever hung up or speaks no HTTP gets no answer
        except asyncio.CancelledError:
            pass  # the server closes; asyncio would log a cancelled connection as an error
        finally:
            self._connections.discard(task)
            writer.close()
            with contextlib.suppress(ConnectionError, asyncio.CancelledError):
                await writer.wait_closed()


async def _read(reader: asyncio.StreamReader) -> Request | None:
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError:
        return None
    first, *lines = head.decode("latin-1").split("\r\n")
    method, target, _ = first.split(" ", 2)
    length = 0
    for line in lines:
        name, _, value = line.partition(":")
        if name.strip().lower() == "content-length":
            length = int(value)
    if not 0 <= length <= _LARGEST:
        raise ValueError("body too large")
    return Request(method, target.partition("?")[0], await reader.readexactly(length))


async def _write(writer: asyncio.StreamWriter, answer: Answer) -> None:
    if answer.events is None:
        body = json.dumps(answer.json).encode()
        head = f"HTTP/1.1 {answer.status} -\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
        writer.write(head.encode() + body)
        await writer.drain()
        return
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
    async with contextlib.aclosing(answer.events) as events:
        async for event in events:
            writer.write(b"%x\r\n%b\r\n" % (len(event), event))
            await writer.drain()
    writer.write(b"0\r\n\r\n")
    await writer.drain()


_ONE_CALL = re.compile(r"\bone (?:tool|call|tool call) at a time\b", re.IGNORECASE)
"""An instruction of the system prompt that the model follows."""


def reply(conversation: Conversation) -> Say:
    """What the model says next."""
    turns = conversation.turns
    since = _turn_start(turns)
    questions, brief = _questions(turns, since)
    findings = _findings(turns)
    used = sum(len(turn.calls) for turn in turns[since:])
    tools = Toolkit(conversation.tools)
    calls = next_calls(questions, findings, tools, used) if tools else []
    if calls and _ONE_CALL.search(conversation.system):
        calls = calls[:1]
    if calls:
        return Say(_lead(calls, questions, turns, since), calls)
    if not questions:
        text = "Ask me something about the files in this folder."
    else:
        text = compose(questions, findings, brief=brief)
    return Say(f"<finish>{text}</finish>" if "<finish>" in conversation.system else text)


def _turn_start(turns: Sequence[Turn]) -> int:
    """Index of the first message after the last answer: what is open begins there."""
    for index in range(len(turns) - 1, -1, -1):
        if turns[index].role == "assistant" and not turns[index].calls:
            if all(turn.role == "user" and understand(turn.text).instruction for turn in turns[index + 1 :]):
                return _turn_start(turns[:index])  # "shorter, please": the question before is asked again
            return index + 1
    return 0


def _questions(turns: Sequence[Turn], since: int) -> tuple[list[Question], bool]:
    """The open questions, and whether any message asks for a short answer."""
    asked = [understand(turn.text) for turn in turns[since:] if turn.role == "user" and turn.text.strip()]
    return [question for question in asked if not question.instruction], any(question.brief for question in asked)


def _findings(turns: Sequence[Turn]) -> Findings:
    findings = Findings()
    calls: dict[str, Ask] = {}
    for turn in turns:
        calls.update((call.id, call) for call in turn.calls)
        call = calls.get(turn.call_id)
        if turn.role == "tool" and call is not None and (use := use_of(call.name)):
            findings.add(use, call.arguments, turn.text)
    return findings


def _lead(calls: Sequence[Ask], questions: Sequence[Question], turns: Sequence[Turn], since: int) -> str:
    """A sentence on what comes next, as models say before they call tools."""
    uses = {use_of(call.name) for call in calls}
    named = [str(next(iter(call.arguments.values()), "")) for call in calls]
    match next(iter(sorted(use for use in uses if use))):
        case "list":
            text = "I look at which files there are."
        case "search":
            text = f"I search for {' and '.join(f'“{name}”' for name in named)}."
        case "read":
            text = f"I read {' and '.join(f'`{name}`' for name in named)}."
        case _:
            text = f"I count the lines of {' and '.join(f'`{name}`' for name in named)}."
    interrupted = any(turn.role == "assistant" for turn in turns[since:]) and _just_asked(turns)
    return f"There is a further request: “{' '.join(questions[-1].text.split())[:80]}”. {text}" if interrupted else text


def _just_asked(turns: Sequence[Turn]) -> bool:
    """Whether a question has arrived since the model last spoke."""
    for turn in reversed(turns):
        if turn.role == "assistant":
            return False
        if turn.role == "user":
            return not understand(turn.text).instruction
    return False


# ---
# The model of ``perdure demo``: needs no key and no network, and still reads files to answer.
#
# In process: ``async with DemoModel() as model: … model.base_url``. As a process, with the base URL as the first
# line of stdout::
#
# python -m perdure.demo_model.model --port 0 --delay 0.02


DELAY = 0.02
"""Seconds between two tokens: slow enough to watch."""


class DemoModel:
    """The model as a server on loopback. ``requests`` counts what was asked, ``completed`` what was answered whole."""

    def __init__(self, *, port: int = 0, delay: float = DELAY) -> None:
        self.requests = 0
        self.completed = 0
        self._delay = delay
        self._http = HttpServer(self._handle, port)

    async def __aenter__(self) -> DemoModel:
        await self._http.__aenter__()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._http.__aexit__(*exc)

    @property
    def base_url(self) -> str:
        """For ``OPENAI_BASE_URL`` or ``OpenAIChat(base_url=…)``."""
        return f"http://{HOST}:{self._http.port}/v1"

    async def _handle(self, request: Request) -> Answer:
        match request.method, request.path:
            case "POST", "/v1/chat/completions":
                return self._complete(request.body)
            case "GET", "/v1/models":
                return Answer(json={"object": "list", "data": [{"id": "demo", "object": "model"}]})
            case "GET", "/stats":
                return Answer(json={"requests": self.requests, "completed": self.completed})
            case method, path:
                return _error(404, f"Unknown URL: {method} {path}")

    def _complete(self, body: bytes) -> Answer:
        self.requests += 1
        try:
            conversation = planning.parse(body)
        except (ValueError, KeyError, TypeError) as error:
            return _error(400, f"The request is no chat completion: {error}")
        say = planning.number_calls(reply(conversation), conversation)
        if conversation.stream:
            return Answer(events=self._counted(planning.stream(say, conversation, len(body), self._delay)))
        self.completed += 1
        return Answer(json=planning.whole(say, conversation, len(body)))

    async def _counted(self, events: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
        async for event in events:
            yield event
        self.completed += 1


def _error(status: int, message: str) -> Answer:
    return Answer(status, {"error": {"message": message, "type": "invalid_request_error", "param": None, "code": None}})


async def serve(port: int, delay: float) -> None:
    """Serve until killed; prints the base URL first."""
    async with DemoModel(port=port, delay=delay) as model:
        sys.stdout.write(f"{model.base_url}\n")
        sys.stdout.flush()
        await asyncio.Event().wait()


def main(argv: Sequence[str] | None = None) -> None:
    """Entry of ``python -m perdure.demo_model.model``."""
    parser = argparse.ArgumentParser(prog="perdure.demo_model.model", description="The demo's small model.")
    parser.add_argument("--port", type=int, default=0, help="0 takes a free one")
    parser.add_argument("--delay", type=float, default=DELAY, help="seconds between two tokens")
    options = parser.parse_args(argv)
    try:
        asyncio.run(serve(options.port, options.delay))
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
