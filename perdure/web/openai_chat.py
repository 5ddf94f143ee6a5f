"""Chat completions: ``POST chat/completions``, whole or as a stream of chunks.

A request with ``X-Perdure-Session`` sends its last user's message to that session; any other one begins a conversation
with ``messages`` as its history, or answers the calls whose results stand at the end of ``messages``. The answer ends
with the turn, or when nothing of it moves without the client or a person.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from typing import Any
from urllib.parse import quote

from starlette.requests import Request as HTTPRequest
from starlette.responses import Response

from .. import _config as config
from ..client.decisions import RunWait
from ..errors import PerdureError, RunCancelledError, build_error
from ..types.events import (
    ConversationCompacted,
    ErrorEvent,
    Event,
    MessageInjected,
    ModelCompleted,
    ModelDelta,
    ModelRetracted,
    ModelStarted,
    RunEvent,
    TurnEvent,
)
from ..types.messages import Usage
from ..types.run_states import ENDED_STATES
from .argument_text import dump_arguments
from .auth import Caller
from .limits import call_for_size
from .openai_requests import (
    ParameterError,
    Request,
    describe_error,
    encode_session_header,
    encode_wait_id,
    read_flag,
    read_messages,
    read_parameters,
    read_session_header,
    read_text,
    read_tools,
)
from .openai_sessions import Acted, act, claim_key, shows_texts
from .operations import Call
from .problems import WebError
from .sse import HEADERS, EventStream, begin_stream, encode_frame
from .turns import EventTexts, Replies, describe_answer, encode_json, follow_until_still, read_body

WAITS_HEADER = "X-Perdure-Waits"
"""Ids of the calls that wait for a person, of an answer that is not streamed."""
ANSWER_SECONDS = 600.0
"""Longest time of an answer that is not streamed."""
BEGIN_SECONDS = 3.0
"""How long a stream waits for the turn's first step: what fails before has a status, as without a stream."""
_HEADER_CHARS = 4_000
_OWN = frozenset({"messages", "model", "response_format", "store", "stream", "tools"})
_FINISH_REASONS = {
    "length": "length", "limit": "length", "content_filter": "content_filter", "refusal": "content_filter",
}  # fmt: skip
Chunk = dict[str, Any]


class RetractedTextError(WebError):
    """An attempt of the model failed after a part of its text was sent, and the next one writes another text."""

    status = 503


class ChatTranslator:
    """The answer to one request: chunks as they come, and the whole at its end."""

    def __init__(self, *, has_texts: bool = True, is_live: bool = True) -> None:
        """``has_texts``: see :func:`.openai_sessions.shows_texts`. ``is_live``: text is sent while it is written."""
        self._has_texts, self._is_live = has_texts, is_live
        self._replies = Replies()
        self._shown = ""
        """What was sent of the reply in progress, maybe of an attempt that failed."""
        self.texts: list[str] = []
        self.usage = Usage()
        self.end: TurnEvent | RunEvent | None = None
        self._last_text = ""

    @property
    def content(self) -> str | None:
        """The whole text."""
        return "\n\n".join(self.texts) or None

    def feed(self, event: Event) -> str:
        """Return what ``event`` adds to the text. Raises ``RetractedTextError`` if that does not continue what was
        sent."""
        if isinstance(event, ModelCompleted | ConversationCompacted):
            self.usage += event.usage
        if event.path:
            return ""
        match event:
            case ModelStarted():
                self._replies.open(event)
            case ModelDelta() if event.kind == "text" and self._has_texts and self._is_live:
                reply = self._replies.open(event)
                reply.extend(event)
                return self._send(reply.text)
            case ModelRetracted():
                self._replies.close(event)
            case ModelCompleted():
                self._replies.close(event)
                self._last_text = event.text
                return self._complete(event.text) if self._has_texts else ""
            case TurnEvent() | RunEvent() if event.state in ENDED_STATES:
                return self._note_end(event)
        return ""

    def _send(self, text: str, *, is_whole: bool = False) -> str:
        """Return what is new of the text of the reply in progress: nothing while another attempt repeats it."""
        if self._shown.startswith(text) and (not is_whole or self._shown == text):
            return ""
        if not text.startswith(self._shown):
            raise RetractedTextError(
                "an attempt of the model failed, and its text does not count",
                hint="Send the request again with its Idempotency-Key, or read the session.",
            )
        added, is_first = text[len(self._shown) :], not self._shown
        self._shown = text
        return ("\n\n" if is_first and self.texts else "") + added

    def _complete(self, text: str) -> str:
        added = self._send(text, is_whole=True)
        if text:
            self.texts.append(text)
        self._shown = ""
        return added

    def _note_end(self, event: TurnEvent | RunEvent) -> str:
        self.end = event if self.end is None or isinstance(event, TurnEvent) else self.end
        last = self._last_text if self._has_texts else ""
        if isinstance(event, TurnEvent) and (answer := describe_answer(event, last)):
            self._last_text = answer
            return self._complete(answer)
        return ""

    def add_waits(self, text: str) -> str:
        """Add what waits for a person as a last text, and return what that adds. An answer of an output type has no
        other text."""
        return self._complete(text) if text and self._has_texts else ""

    def find_error(self) -> PerdureError | None:
        """Return the error that the turn has ended with."""
        end = self.end
        if end is None or end.state == "completed":
            return None
        if end.state == "cancelled":
            return RunCancelledError("the turn was cancelled before it had an answer")
        return build_error(end.error_type, end.error or f"the turn has {end.state}")

    def find_finish_reason(self, waits: Sequence[RunWait]) -> str:
        """Return OpenAI's reason for the end of the answer."""
        if any(wait.call.kind == "callback" for wait in waits):
            return "tool_calls"
        return "stop" if waits else _FINISH_REASONS.get(str(getattr(self.end, "finish_reason", None)), "stop")


def build_tool_calls(waits: Sequence[RunWait]) -> list[dict[str, Any]]:
    """Build the calls that the client runs."""
    return [
        {
            "id": encode_wait_id("call_", wait.run_id, wait.call.call_id, wait.call.hash),
            "type": "function",
            "function": {"name": wait.call.tool, "arguments": dump_arguments(wait.call.arguments)},
        }
        for wait in waits
        if wait.call.kind == "callback"
    ]


def describe_waits(caller: Caller, waits: Sequence[RunWait]) -> list[dict[str, Any]]:
    """Describe what waits for a person: an extension field."""
    return [
        {
            "id": encode_wait_id("mcpr_", wait.run_id, wait.call.call_id, wait.call.hash),
            "kind": wait.call.kind,
            "run_id": caller.show_id(wait.run_id),
            "call_id": wait.call.call_id,
            "hash": wait.call.hash,
            "tool": wait.call.tool,
            "arguments": wait.call.arguments,
            **({"question": wait.call.question, "form": wait.call.form} if wait.call.kind == "question" else {}),
        }
        for wait in waits
        if wait.call.kind != "callback"
    ]


_SHOWN_ARGUMENT_CHARS = 300


def describe_waits_in_words(caller: Caller, waits: Sequence[RunWait]) -> str:
    """Describe what waits for a person, and where: the text of an answer for clients that show texts alone."""
    lines: list[str] = []
    for wait in waits:
        call, run_id, url = wait.call, caller.show_id(wait.run_id), config.get_public_url()
        if call.kind == "callback":
            continue
        arguments = dump_arguments(call.arguments)
        shown = arguments if len(arguments) <= _SHOWN_ARGUMENT_CHARS else f"{arguments[:_SHOWN_ARGUMENT_CHARS]}…"
        what = f"{call.tool} {shown} waits for approval" if call.kind == "approval" else f"{call.tool} asks"
        where = f"session {run_id}, call {call.call_id}"
        if url:
            place = "/".join(quote(name, safe="") for name in (run_id, call.call_id))
            where = f"{url}/decide/{place}?hash={quote(call.hash, safe='')}"
        question = f": {call.question}" if call.question else ""
        lines.append(f"[{what}{question} ({where})]")
    return "\n".join(lines)


def build_completion_usage(usage: Usage) -> dict[str, Any]:
    """Build OpenAI's counts of tokens."""
    return {
        "prompt_tokens": usage.input_tokens,
        "completion_tokens": usage.output_tokens,
        "total_tokens": usage.total_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens, "audio_tokens": 0},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning_tokens, "audio_tokens": 0},
    }


# ---
# Requests.


async def create_chat_completion(call: Call) -> Response:
    """Answer a request for a chat completion."""
    body = await read_body(call)
    request = await call_for_size(call.body_bytes, _read_request, call, body)
    streams, includes_usage = read_flag(body, "stream"), _includes_usage(body)
    request.has_key = await claim_key(call, body)
    acted = await act(call, request)
    call.resource = acted.resource
    completion = _Completion(acted, is_live=streams, includes_usage=includes_usage)
    if not streams:
        return await _answer_whole(call, completion)
    release = call.hold_stream()
    try:
        frames = await begin_stream(_stream(call, completion), BEGIN_SECONDS)
    except BaseException:
        release()
        raise
    stream = EventStream(frames, on_close=release, build_break=build_break, check=call.is_current)
    stream.headers.update(encode_session_header(acted.session_name))
    return stream


def _read_request(call: Call, body: dict[str, Any]) -> Request:
    settings = read_parameters(body, _OWN)
    model, messages = read_text(body, "model"), body.get("messages")
    if not model:
        raise ParameterError("model is the name of an agent", "model", code="missing")
    if not isinstance(messages, list) or not messages:
        raise ParameterError("messages is a list with at least one message", "messages", code="missing")
    session = read_session_header(call.request)
    form = body.get("response_format")
    kind = form.get("type") if isinstance(form, dict) else form
    request = Request(model, session, read_tools(body), settings, form=(kind, "response_format"))
    read_messages(request, "openai", messages, all_new=False)
    return request


def _includes_usage(body: dict[str, Any]) -> bool:
    options = body.get("stream_options")
    return isinstance(options, dict) and options.get("include_usage") is True


class _Completion:
    """What all chunks of an answer have."""

    def __init__(self, acted: Acted, *, is_live: bool, includes_usage: bool) -> None:
        self.acted, self.includes_usage = acted, includes_usage
        place = f"{acted.session}\0{acted.turn.task_id}\0{acted.after}"
        digest = hashlib.sha256(place.encode(errors="replace")).hexdigest()[:32]
        self.head = {"id": f"chatcmpl-{digest}", "created": int(time.time()), "model": acted.resource.agent}
        self.translator = ChatTranslator(has_texts=shows_texts(acted.definition), is_live=is_live)

    def build_chunk(self, delta: Chunk, finish_reason: str | None = None, **fields: Any) -> Chunk:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
        usage = {"usage": None} if self.includes_usage else {}
        return {**self.head, "object": "chat.completion.chunk", "choices": [choice], **usage, **fields}

    def describe(self, waits: Sequence[RunWait]) -> dict[str, Any]:
        """Build the extension field: where the conversation is, and what waits in it for a person."""
        place = {"session": self.acted.session_name, "task_id": self.acted.turn.task_id}
        return place | {"waits": describe_waits(self.acted.caller, waits)}

    async def read_end(self) -> None:
        """Learn how a turn has ended whose events do not say it."""
        if self.translator.end is None:
            status = await self.acted.turn.status()
            if status.state in ("failed", "cancelled"):
                fields = {"error_type": status.error_type, "error": status.error}
                self.translator.end = TurnEvent(state=status.state, **fields)  # type: ignore[arg-type]  # as checked


async def _stream(call: Call, completion: _Completion) -> AsyncGenerator[bytes]:
    translator, acted, waits = completion.translator, completion.acted, list[RunWait]()
    texts, begun = EventTexts(call.client), False
    begin = _encode(completion.build_chunk({"role": "assistant", "content": ""}))
    async with aclosing(follow_turn(call, acted)) as events:
        async for event in events:
            if not begun and not isinstance(event, TurnEvent | RunEvent | MessageInjected | ErrorEvent):
                begun = True
                yield begin
            if isinstance(event, list):
                waits = [await texts.load_wait(wait) for wait in event]
            elif added := translator.feed(event):
                yield _encode(completion.build_chunk({"content": added}))
    if not waits:
        await completion.read_end()
        if (error := translator.find_error()) is not None:
            raise error
    if not begun:
        yield begin
    if added := translator.add_waits(describe_waits_in_words(acted.caller, waits)):
        yield _encode(completion.build_chunk({"content": added}))
    for index, tool_call in enumerate(build_tool_calls(waits)):
        yield _encode(completion.build_chunk({"tool_calls": [{"index": index, **tool_call}]}))
    yield _encode(completion.build_chunk({}, translator.find_finish_reason(waits), perdure=completion.describe(waits)))
    if completion.includes_usage:
        last = completion.build_chunk({}) | {"choices": [], "usage": build_completion_usage(translator.usage)}
        yield _encode(last)
    yield encode_frame("[DONE]")


def follow_turn(call: Call, acted: Acted) -> AsyncGenerator[Event | list[RunWait]]:
    """Yield the events of the answer, and at last what waits if the turn stands still."""
    return follow_until_still(call.client, acted.turn, acted.since, has_waits=acted.has_waits)


def build_break(error: PerdureError | None) -> bytes:
    """Build the last frame of a stream that breaks: the SDK raises it."""
    if error is None:
        error = WebError(
            "the stream has lasted as long as it may", status=503, name="StreamTimeoutError",
            hint="The turn goes on: send the request again with its Idempotency-Key.",
        )  # fmt: skip
    return encode_frame(encode_json({"error": describe_error(error)}))


async def _answer_whole(call: Call, completion: _Completion) -> Response:
    waits: list[RunWait] = []
    texts = EventTexts(call.client)
    async with aclosing(follow_turn(call, completion.acted)) as events:

        async def read() -> None:
            async for event in events:
                if isinstance(event, list):
                    waits.extend([await texts.load_wait(wait) for wait in event])
                else:
                    completion.translator.feed(event)

        if not await wait_for_answer(call, read):
            return Response(status_code=499)
    if not waits:
        await completion.read_end()
        if (error := completion.translator.find_error()) is not None:
            raise error
    return _build_completion(completion, waits)


async def wait_for_answer(call: Call, read_answer: Callable[[], Awaitable[None]]) -> bool:
    """Wait for ``read_answer``; False if the client has left. Raises ``WebError`` after ``ANSWER_SECONDS``."""
    release = call.hold_stream()
    read, left = asyncio.ensure_future(read_answer()), asyncio.ensure_future(_wait_for_disconnect(call.request))
    try:
        await asyncio.wait([read, left], timeout=ANSWER_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        if read.done():
            read.result()
            return True
        if left.done():
            return False
        raise WebError(
            f"there is no answer after {ANSWER_SECONDS:g} s, and the turn goes on", status=504, name="TimeoutError",
            hint="Send the request again with its Idempotency-Key, or stream it.",
        )  # fmt: skip
    finally:
        for task in (read, left):
            task.cancel()
        await asyncio.gather(read, left, return_exceptions=True)
        release()


async def _wait_for_disconnect(request: HTTPRequest) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _build_completion(completion: _Completion, waits: Sequence[RunWait]) -> Response:
    translator, tool_calls = completion.translator, build_tool_calls(waits)
    translator.add_waits(describe_waits_in_words(completion.acted.caller, waits))
    message: Chunk = {"role": "assistant", "content": translator.content, "refusal": None, "annotations": []}
    message |= {"tool_calls": tool_calls} if tool_calls else {}
    choice = {
        "index": 0, "message": message, "logprobs": None, "finish_reason": translator.find_finish_reason(waits),
    }  # fmt: skip
    body = {
        **completion.head,
        "object": "chat.completion",
        "choices": [choice],
        "usage": build_completion_usage(translator.usage),
        "perdure": completion.describe(waits),
    }
    headers = {**HEADERS, **encode_session_header(completion.acted.session_name)}
    if ids := ",".join(wait["id"] for wait in describe_waits(completion.acted.caller, waits)):
        headers[WAITS_HEADER] = ids[:_HEADER_CHARS]
    return Response(encode_json(body), 200, headers, "application/json")


def _encode(chunk: Chunk) -> bytes:
    return encode_frame(encode_json(chunk))
