"""The UI message stream of the Vercel AI SDK (``useChat``): versions 6 and 7.

    POST {prefix}/{agent}                    a user's message, or the decisions and outputs of an assistant's message
    GET  {prefix}/{agent}/{chatId}/stream    the present turn from its start; 204 when nothing runs. With ?ended=true
                                             also the last turn: for a client that was cut off while it ended. With
                                             ?wait=true open while calls wait: someone else decides
    GET  {prefix}/{agent}/{chatId}/messages  what was said before, for a page that is opened again: vercel_history.py
    POST {prefix}/{agent}/{chatId}/stop      interrupts it: an aborted request looks like a lost connection

A chat is a session and the id of the user's message its turn. The server keeps the history: of ``messages`` only the
last is read.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Collection, Mapping, Sequence
from contextlib import aclosing
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import Response
from starlette.routing import Route

from ..client.decisions import RunWait
from ..client.turn import Turn
from ..errors import ApprovalDecidedError, ApprovalExpiredError, InvalidInputError, RunNotFoundError
from ..types.events import (
    ApprovalDecided,
    Event,
    ModelCompleted,
    ModelDelta,
    ModelRetracted,
    ModelStarted,
    RunEvent,
    ToolCompleted,
    ToolProgress,
    TurnEvent,
)
from ..types.messages import File
from .admission import admit_start
from .argument_text import find_rest
from .limits import call_for_size
from .operations import Call, Web, validate
from .problems import WebError
from .sessions import bound_delivery
from .sse import EventStream, encode_frame
from .turns import (
    MAX_MESSAGES,
    EventTexts,
    Replies,
    Reply,
    authorize_wait,
    build_endpoint,
    build_file,
    describe_answer,
    dump_event,
    encode_json,
    find_present_turn,
    find_turn_start,
    follow_until_still,
    is_answer_call,
    is_known_turn,
    open_session,
    parse_wait_id,
    read_body,
    read_history,
    read_latest_seq,
    read_waits,
    shorten_id,
)
from .vercel_history import list_chat_messages, read_tool_output

HEADERS = {"x-vercel-ai-ui-message-stream": "v1"}
_FINISH_REASONS = {"stop": "stop", "length": "length", "content_filter": "content-filter", "tool_calls": "tool-calls"}
Part = dict[str, Any]


# ---
# From events to parts.


class VercelTranslator:
    """The parts of one answer. With ``sdk`` 7 text of a retracted attempt is taken back (``reset-step``); version 6
    does not know that part: there it stays, and ``data-retracted`` names it."""

    def __init__(self, session_id: str, task_id: str, *, sdk: Literal[6, 7] = 7) -> None:
        self._session_id, self._task_id, self._sdk = session_id, task_id, sdk
        self._replies = Replies()
        self._parts: list[Part] = []
        self._open: dict[str, Part] = {}
        self._has_step = self._has_content = False
        self._step: int | None = None
        self._calls: set[str] = set()
        """Calls whose input is complete, and that have no output."""
        self._asked: set[str] = set()
        """The same of calls of subagents, which are shown when they have been asked about."""
        self._shown: set[str] = set()
        self._last_text = ""
        self._end: TurnEvent | RunEvent | None = None

    def rebuild(self, history: Sequence[Event], held: Collection[str] = ()) -> None:
        """Take the events of the turn before the stream. ``held`` are the calls that the client has."""
        for event in history:
            self.feed(event)
        self._asked |= set(held) - self._shown
        self._shown |= self._asked
        self._has_step, self._step = False, None

    def start(self) -> list[Part]:
        """Return the first parts. What was being written goes on in parts of its own. The message has the same id in
        each stream of the turn, and another one than the user's: the SDK replaces a message by its id."""
        begun = list(self._open.values())
        return [{"type": "start", "messageId": f"{self._task_id}/reply"}, *begun]

    def feed(self, event: Event, results: Mapping[str, str] | None = None) -> list[Part]:
        """Return the parts of ``event``; ``results`` as of ``AguiTranslator.feed``."""
        self._parts = []
        if event.path:
            self._show_subagent(event)
            return self._take()
        match event:
            case ModelStarted():
                self._answer_rest(results or {})
                self._begin_step(event.iteration)
            case ModelDelta():
                self._write(event)
            case ModelCompleted():
                self._complete(event)
            case ModelRetracted():
                self._retract(event)
            case ToolProgress():
                data = {"toolCallId": event.call_id, "name": event.name, "message": event.message, "data": event.data}
                self._emit("data-progress", id=event.call_id, data=data)
            case ToolCompleted():
                self._output(event.call_id, event.content, is_error=event.is_error)
                for file in event.files:
                    if file.url is not None:
                        self._emit("file", url=file.url, mediaType=file.media_type)
            case ApprovalDecided(decision="denied" | "expired"):
                if event.call_id in self._calls:
                    self._calls.discard(event.call_id)
                    self._emit("tool-output-denied", toolCallId=event.call_id)
            case TurnEvent() | RunEvent():
                self._note_state(event, results or {})
            case _ if event.type in ("compacted", "limit", "message.withheld", "error"):
                self._emit(f"data-{event.type.replace('.', '-')}", data=dump_event(event))
            case _:
                pass
        return self._take()

    def lacks_results(self, event: Event) -> bool:
        """As of ``AguiTranslator``."""
        return isinstance(event, ModelStarted | TurnEvent) and not event.path and bool(self._calls)

    def ask(self, waits: Sequence[RunWait]) -> list[Part]:
        """Return the parts that ask for decisions and answers, in a stream that stays open for them."""
        self._parts = []
        self._ask_all(waits)
        return self._take()

    def finish(self, waits: Sequence[RunWait] = ()) -> list[Part]:
        """Return the last parts: the turn has ended, or only the calls of ``waits`` are left."""
        self._parts = []
        self._ask_all(waits)
        if self._has_step:
            self._emit("finish-step")
            self._has_step = False
        end, reason = self._end, "tool-calls" if waits else "stop"
        if not waits and end is not None:
            if end.state == "cancelled" or getattr(end, "finish_reason", None) == "interrupted":
                self._emit("abort", reason="interrupted")
                return self._take()
            if end.state != "completed":
                self._emit("error", errorText=end.error or f"the turn has {end.state}")
                reason = "error"
            else:
                reason = _FINISH_REASONS.get(getattr(end, "finish_reason", None) or "stop", "other")
        self._emit("finish", finishReason=reason)
        return self._take()

    def _emit(self, kind: str, **fields: Any) -> Part:
        part = {"type": kind, **fields}
        self._parts.append(part)
        return part

    def _take(self) -> list[Part]:
        parts, self._parts = self._parts, []
        return parts

    def _begin_step(self, iteration: int) -> None:
        if self._has_step and self._step == iteration:  # another attempt: what is open is retracted, or goes on
            return
        self._close_open()
        if self._has_step:
            self._emit("finish-step")
        self._has_step, self._step, self._has_content = True, iteration, False
        self._emit("start-step")

    def _close_open(self, kind: str | None = None) -> None:
        for key, begun in list(self._open.items()):
            if kind is None or begun["type"] == f"{kind}-start":
                del self._open[key]
                self._emit(begun["type"].replace("-start", "-end"), id=begun["id"])

    def _write(self, event: ModelDelta) -> None:
        reply = self._replies.open(event)
        added = reply.extend(event)
        if event.kind == "tool_call":
            call = reply.calls[event.index]
            if call.id and call.name and not is_answer_call(call.name):
                self._close_open()
                self._input(call.id, call.name, added)
        elif added:
            kind = "text" if event.kind == "text" else "reasoning"
            self._close_open("reasoning" if kind == "text" else "text")
            self._say(reply, kind, added)

    def _say(self, reply: Reply, kind: str, added: str) -> None:
        if not added:
            return
        key = f"{reply.id}/{kind}"
        if key not in self._open:
            self._open[key] = self._emit(f"{kind}-start", id=key)
        self._has_content = True
        self._emit(f"{kind}-delta", id=key, delta=added)

    def _input(self, call_id: str, name: str, added: str) -> None:
        if call_id not in self._shown:
            self._shown.add(call_id)
            self._emit("tool-input-start", toolCallId=call_id, toolName=name, dynamic=True)
        self._has_content = True
        if added:
            self._emit("tool-input-delta", toolCallId=call_id, inputTextDelta=added)

    def _complete(self, event: ModelCompleted) -> None:
        reply = self._replies.open(event)
        calls = [call for call in event.calls if not is_answer_call(call.name)]
        written = {call.id: call.arguments for call in reply.calls.values() if not is_answer_call(call.name)}
        is_wrong = bool(written.keys() - {call.id for call in calls})
        if event.blob is None and (is_wrong or not event.text.startswith(reply.text)):
            self._take_back(reply)
            reply, written = Reply(reply.id, reply.iteration), {}
        if event.blob is None:
            self._say(reply, "text", event.text[len(reply.text) :])
        self._close_open()
        for call in calls:
            # Where the pieces begin other arguments (a hook changed them), those of the part that follows count.
            begun = written.get(call.id, "")
            if call.id not in self._shown or begun:
                self._input(call.id, call.name, find_rest(begun, call.arguments) or "")
            fields = {"toolCallId": call.id, "toolName": call.name, "input": call.arguments or {}, "dynamic": True}
            self._emit("tool-input-available", **fields)
            self._calls.add(call.id)
        self._replies.close(event)
        self._last_text = event.text

    def _retract(self, event: ModelRetracted) -> None:
        self._close_open()
        reply = self._replies.close(event)
        if reply is not None:
            self._take_back(reply)

    def _take_back(self, reply: Reply) -> None:
        """Take back what was written of a reply in this step."""
        self._close_open()
        if not self._has_content:
            return
        self._has_content = False
        self._shown -= {call.id for call in reply.calls.values()}
        if self._sdk >= 7 and self._has_step:
            self._emit("reset-step")
        else:
            self._emit("data-retracted", data={"ids": [f"{reply.id}/text", f"{reply.id}/reasoning"]})

    def _output(self, call_id: str, content: str, *, is_error: bool = False) -> None:
        if call_id not in self._calls:
            return
        self._calls.discard(call_id)
        self._emit_output(call_id, content, is_error=is_error)

    def _emit_output(self, call_id: str, content: str, *, is_error: bool) -> None:
        if is_error:
            self._emit("tool-output-error", toolCallId=call_id, errorText=content, dynamic=True)
        else:
            self._emit("tool-output-available", toolCallId=call_id, output=read_tool_output(content), dynamic=True)

    def _answer_rest(self, results: Mapping[str, str]) -> None:
        for call_id in sorted(self._calls):
            self._output(call_id, results.get(call_id, ""))

    def _show_subagent(self, event: Event) -> None:
        call_id = f"{event.context_id}/{getattr(event, 'call_id', '')}"
        if call_id in self._asked:
            if isinstance(event, ToolCompleted):
                self._asked.discard(call_id)
                self._emit_output(call_id, event.content, is_error=event.is_error)
            elif isinstance(event, ApprovalDecided) and event.decision in ("denied", "expired"):
                self._asked.discard(call_id)
                self._emit("tool-output-denied", toolCallId=call_id)
        if isinstance(event, TurnEvent):
            data = {"agent": event.path[-1].agent, "toolCallId": event.path[-1].call_id, "state": event.state}
            self._emit("data-subagent", id=event.context_id, data=data)

    def _ask_all(self, waits: Sequence[RunWait]) -> None:
        self._close_open()
        for wait in sorted(waits, key=lambda wait: wait.run_id != self._session_id):
            self._ask(wait)

    def _ask(self, wait: RunWait) -> None:
        """Ask for a decision or an answer; a call of a subagent gets a part of its own."""
        call, call_id = wait.call, wait.call.call_id
        if wait.run_id != self._session_id:
            call_id = f"{wait.run_id}/{call_id}"
            if call_id not in self._shown and not self._asked:
                # In a step of its own: the SDK sends a decision when all calls of the last step are decided, and the
                # call that runs the subagent has no output yet.
                self._emit("finish-step")
                self._emit("start-step")
                self._has_step = True
            self._asked.add(call_id)
        if call_id not in self._shown:
            self._shown.add(call_id)
            fields = {"toolCallId": call_id, "toolName": call.tool, "input": call.arguments or {}, "dynamic": True}
            self._emit("tool-input-available", **fields)
        if call.kind == "approval":
            self._emit("tool-approval-request", approvalId=wait.id, toolCallId=call_id)
        elif call.kind == "question":
            question = {"toolCallId": call_id, "question": call.question, "form": call.form}
            self._emit("data-question", id=wait.id, data=question)

    def _note_state(self, event: TurnEvent | RunEvent, results: Mapping[str, str]) -> None:
        if event.state in ("started", "idle"):
            return
        if event.state in ("held_up", "recovered", "paused", "resumed"):
            self._emit(f"data-{event.state}", data=dump_event(event))
            return
        self._answer_rest(results)
        self._end = event if self._end is None or isinstance(event, TurnEvent) else self._end
        if isinstance(event, TurnEvent) and (answer := describe_answer(event, self._last_text)):
            self._last_text = answer
            self._say(Reply(f"{event.context_id}/{event.seq}/answer", 0), "text", answer)
            self._close_open()


# ---
# Requests. Unknown fields and parts are those of a newer SDK: they are ignored.


class _Lenient(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)


class _Approval(_Lenient):
    id: str
    approved: bool | None = None
    reason: str | None = None


class _Part(_Lenient):
    type: str
    text: str | None = None
    url: str | None = None
    media_type: str | None = Field(default=None, alias="mediaType")
    filename: str | None = None
    state: str | None = None
    tool_call_id: str | None = Field(default=None, alias="toolCallId")
    output: Any = None
    error_text: str | None = Field(default=None, alias="errorText")
    approval: _Approval | None = None


class _Message(_Lenient):
    id: str
    role: Literal["user", "assistant", "system"]
    parts: list[_Part]


class _Chat(_Lenient):
    id: str
    trigger: Literal["submit-message", "regenerate-message"] = "submit-message"
    message_id: str | None = Field(default=None, alias="messageId")
    """The message that the request is about, if it is not a new one."""
    messages: list[dict[str, Any]] = Field(min_length=1, max_length=MAX_MESSAGES)


def vercel_routes(web: Web, prefix: str = "/ui", *, sdk: Literal[6, 7] = 7) -> list[Route]:
    """Build the routes for ``useChat``. ``sdk`` is the major version of the package ``ai`` that the front end uses."""

    async def post(call: Call) -> Response:
        return await _post(call, sdk)

    async def resume(call: Call) -> Response:
        return await _resume(call, sdk)

    chat = f"{prefix}/{{agent:segment}}/{{chat:segment}}"
    return [
        Route(f"{prefix}/{{agent:segment}}", build_endpoint(web, post), methods=["POST"], name="vercel_chat"),
        Route(f"{chat}/stream", build_endpoint(web, resume), methods=["GET"], name="vercel_resume"),
        Route(f"{chat}/messages", build_endpoint(web, list_chat_messages), methods=["GET"], name="vercel_messages"),
        Route(f"{chat}/stop", build_endpoint(web, _stop), methods=["POST"], name="vercel_stop"),
    ]


async def _post(call: Call, sdk: Literal[6, 7]) -> Response:
    body = await read_body(call)
    chat = await call_for_size(call.body_bytes, validate, _Chat, body, "body")
    chat = chat.model_copy(update={"id": call.caller.read_id(chat.id)})
    if chat.trigger == "regenerate-message":
        raise WebError(
            "a reply cannot be written again in the same session: what was said stays", status=409,
            name="RegenerateError", hint="Fork the session before the message, and send it to the fork.",
        )  # fmt: skip
    last = validate(_Message, _find_message(chat), "messages[-1]")
    if last.role == "assistant":
        await open_session(call, chat.id, "read", "vercel")
        after = await read_latest_seq(call.client, chat.id)
        await _decide(call, chat.id, last)
        turn = await find_present_turn(call.client, chat.id)
        held = {part.tool_call_id for part in last.parts if part.tool_call_id is not None}
        return _respond(call, turn, await find_turn_start(call.client, turn, after) or 0, sdk, after, held)
    if last.role != "user":
        raise WebError("the last of messages is neither the user's nor the assistant's", name="InvalidInputError")
    if chat.message_id is not None:
        raise WebError(
            "a message that was sent cannot be changed: what was said stays", status=409, name="RegenerateError",
            hint="Fork the session before the message, and send it to the fork.",
        )  # fmt: skip
    turn, begin = await _send(call, chat, last)
    return _respond(call, turn, begin, sdk)


def _find_message(chat: _Chat) -> dict[str, Any]:
    """Return the last message, or the one of the assistant that the request is about: it may stand before others."""
    found: dict[str, Any] = chat.messages[-1]
    for message in chat.messages if chat.message_id is not None else ():
        if message.get("id") == chat.message_id and message.get("role") == "assistant":
            found = message
    return found


async def _send(call: Call, chat: _Chat, message: _Message) -> tuple[Turn[Any], int]:
    """Send a user's message; returns its turn, and the number before the turn's first event."""
    resource = await open_session(call, chat.id, "send", "vercel")
    task_id = shorten_id(message.id)
    latest = await read_latest_seq(call.client, chat.id)
    known = call.client.run(chat.id).turn(task_id)
    if (begin := await find_turn_start(call.client, known, latest, is_last=True)) is not None:
        return known, begin  # also while no worker answers
    is_known = latest > 0 and await is_known_turn(known, task_id)
    async with bound_delivery():
        turn = await call.client.send(
            call.params["agent"], _read_content(message), id=chat.id, message_id=task_id, task_id=task_id,
            **await admit_start(call, resource),
        )  # fmt: skip
    if turn.task_id == task_id and not is_known:
        return turn, latest
    return turn, await find_turn_start(call.client, turn, await read_latest_seq(call.client, chat.id)) or 0


def _read_content(message: _Message) -> str | list[str | File]:
    content: list[str | File] = []
    for part in message.parts:
        if part.type == "text" and part.text is not None:
            content.append(part.text)
        elif part.type == "file" and part.url is not None:
            content.append(build_file(part.url, part.media_type, part.filename))
    if not content:
        raise InvalidInputError("the message has neither text nor a file")
    return content[0] if len(content) == 1 and isinstance(content[0], str) else content


async def _decide(call: Call, chat_id: str, message: _Message) -> None:
    """Carry out the approvals and outputs of an assistant's message. What is decided already stays decided."""
    waits, _ = await read_waits(call.client, chat_id)
    open_calls = {wait.call.call_id: wait for wait in waits if wait.call.kind != "approval"}
    for part in message.parts:
        try:
            if part.state == "approval-responded" and part.approval is not None and part.approval.approved is not None:
                await _decide_approval(call, chat_id, part.approval)
            elif part.state in ("output-available", "output-error") and part.tool_call_id is not None:
                wait = open_calls.get(part.tool_call_id) or open_calls.get(part.tool_call_id.rpartition("/")[2])
                if wait is not None:
                    await authorize_wait(call, wait.run_id, "send")
                    error = (part.error_text or "failed") if part.state == "output-error" else None
                    value = None if error else part.output
                    run = call.client.run(wait.run_id)
                    await run.answer(wait.call.call_id, value, error=error, hash=wait.call.hash, by=call.by)
        except (ApprovalDecidedError, ApprovalExpiredError):
            continue  # the stream says how the call went on


async def _decide_approval(call: Call, chat_id: str, approval: _Approval) -> None:
    parsed = parse_wait_id(call.caller.read_id(approval.id), chat_id)
    if parsed is None:
        raise InvalidInputError(f"approval {approval.id!r:.200} is none of this chat")
    run_id, call_id, reviewed = parsed
    await authorize_wait(call, run_id, "decide")
    run = call.client.run(run_id)
    if approval.approved:
        await run.approve(call_id, comment=approval.reason, hash=reviewed, by=call.by)
    else:
        await run.deny(call_id, comment=approval.reason, hash=reviewed, by=call.by)


async def _resume(call: Call, sdk: Literal[6, 7]) -> Response:
    chat_id = call.caller.read_id(call.params["chat"])
    try:
        await open_session(call, chat_id, "read", "vercel")
        turn = await find_present_turn(call.client, chat_id)
    except RunNotFoundError:  # a chat without a message yet
        return Response(status_code=204)
    if not _has_flag(call, "ended") and (await turn.status()).state != "running":
        return Response(status_code=204)
    latest = await read_latest_seq(call.client, chat_id)
    begin = await find_turn_start(call.client, turn, latest) or 0
    return _respond(call, turn, begin, sdk, waits_on=_has_flag(call, "wait"))


def _has_flag(call: Call, name: str) -> bool:
    return call.request.query_params.get(name, "").lower() in ("true", "1")


async def _stop(call: Call) -> Response:
    chat_id = call.caller.read_id(call.params["chat"])
    await open_session(call, chat_id, "operate", "vercel")
    await call.client.run(chat_id).interrupt(by=call.by)
    return Response(status_code=204)


def _respond(
    call: Call,
    turn: Turn[Any],
    begin: int,
    sdk: Literal[6, 7],
    after: int = 0,
    held: Collection[str] = (),
    *,
    waits_on: bool = False,
) -> Response:
    """Stream the turn, which begins after number ``begin``: from there; or after number ``after``, to a client that has
    the calls ``held`` of it. With ``waits_on`` the stream stays open while only calls that wait are left."""
    parts = _stream(call, turn, begin, sdk, after, held, waits_on=waits_on)
    response = EventStream(parts, on_close=call.hold_stream(), check=call.is_current)
    response.headers.update(HEADERS)
    return response


async def _stream(
    call: Call,
    turn: Turn[Any],
    begin: int,
    sdk: Literal[6, 7],
    after: int,
    held: Collection[str],
    *,
    waits_on: bool,
) -> AsyncGenerator[bytes]:
    client = call.client

    def encode(part: Part) -> bytes:
        return encode_frame(encode_json(call.caller.show_ids(part)))

    texts, translator = EventTexts(client), VercelTranslator(turn.run.id, turn.task_id, sdk=sdk)
    if after:
        history = await read_history(turn.run, texts, after, begin)
        translator.rebuild([event for event in history if event.path or event.task_id == turn.task_id], held)
    for part in translator.start():
        yield encode(part)
    has_waits, seq = after > 0, after or begin
    while True:
        waits: list[RunWait] = []
        async with aclosing(follow_until_still(client, turn, seq, has_waits=has_waits)) as events:
            async for event in events:
                if isinstance(event, list):
                    waits = [await texts.load_wait(wait) for wait in event]
                    break
                seq = event.seq
                results = await texts.load_results(event.context_id) if translator.lacks_results(event) else None
                for part in translator.feed(await texts.load(event), results):
                    yield encode(part)
        if not waits or not waits_on:
            break
        for part in translator.ask(waits):
            yield encode(part)
        has_waits = False  # the next event says what became of them
    for part in translator.finish(waits):
        yield encode(part)
    yield encode_frame("[DONE]")
