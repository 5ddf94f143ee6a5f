"""AG-UI 1.0: ``POST /agui/{agent}`` takes a ``RunAgentInput`` and answers with the events of the turn.

    threadId   id of the session              interrupt   a call that waits for approval, or asks
    runId      id of the turn                 tools       client tools of the turn

The server keeps the history: of ``messages`` only the last is sent. A message's id is that of the run and the client's
own: the same run is the same message, and a client finds its message under its own id. Needs the extra ``server``.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

from ag_ui.core import RunAgentInput, ToolMessage, UserMessage
from ag_ui.core.capabilities import AgentCapabilities
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from ..client.turn import Turn
from ..errors import ApprovalDecidedError, ApprovalExpiredError, InvalidInputError, RunNotFoundError
from ..types.messages import File
from .admission import admit_start
from .agui_events import AguiTranslator, Frame, build_message_id, dump_message
from .auth import Resource
from .limits import call_for_size
from .operations import Call, Web, validate
from .problems import WebError
from .sessions import bound_delivery
from .sse import EventStream, encode_frame, parse_seq
from .turns import (
    MAX_MESSAGES,
    EventTexts,
    authorize_wait,
    build_endpoint,
    build_file,
    encode_json,
    find_present_turn,
    find_turn_start,
    follow_until_still,
    is_known_turn,
    open_session,
    parse_wait_id,
    read_body,
    read_history,
    read_latest_seq,
    read_waits,
    shorten_id,
)

CAPABILITIES: Frame = {
    "transport": {"streaming": True, "resumable": True, "websocket": False, "httpBinary": False},
    "tools": {"supported": True, "clientProvided": True, "parallelCalls": True},
    "state": {"snapshots": False, "deltas": False, "persistentState": True},
    "multiAgent": {"supported": True, "delegation": True},
    "reasoning": {"supported": True, "streaming": True, "encrypted": False},
    "multimodal": {"input": {"image": True, "audio": True, "video": True, "pdf": True, "file": True}},
    "humanInTheLoop": {"supported": True, "approvals": True, "interrupts": True, "approveWithEdits": True},
}


def agui_routes(web: Web, prefix: str = "/agui") -> list[Route]:
    """Build the routes of AG-UI: ``POST`` and ``GET {prefix}/{agent}``, ``GET {prefix}/{agent}/capabilities``."""
    path = f"{prefix}/{{agent:segment}}"
    return [
        Route(path, build_endpoint(web, _run), methods=["POST"], name="agui_run"),
        Route(path, build_endpoint(web, _continue), methods=["GET"], name="agui_continue"),
        Route(
            f"{prefix}/{{agent:segment}}/capabilities",
            build_endpoint(web, _tell),
            methods=["GET"],
            name="agui_capabilities",
        ),
    ]


async def _tell(call: Call) -> Response:
    name = call.params["agent"]
    await call.authorize("read", "agui", Resource("agent", name, name))
    fields = {**CAPABILITIES, "identity": {"name": name}}
    return JSONResponse(AgentCapabilities.model_validate(fields).model_dump(mode="json", by_alias=True))


async def _continue(call: Call) -> Response:
    """Continue the stream of a run: it begins with the whole conversation, so that the last id only saves time."""
    run_id = call.request.query_params.get("runId", "")
    thread_id = call.caller.read_id(call.request.query_params.get("threadId", ""))
    parse_seq(call.request.headers.get("last-event-id"))
    await open_session(call, thread_id, "read", "agui")
    turn = call.client.run(thread_id).turn(shorten_id(run_id))
    after = await read_latest_seq(call.client, thread_id)
    is_last = bool(run_id) and await find_turn_start(call.client, turn, after, is_last=True) is not None
    if not is_last and not (run_id and await is_known_turn(turn)):
        turn = await find_present_turn(call.client, thread_id)
    translator = AguiTranslator(thread_id, run_id or turn.task_id, version="1.0")
    return EventStream(
        _stream(call, _Acted(turn), translator, after), on_close=call.hold_stream(), check=call.is_current
    )


@dataclass
class _Acted:
    """What a request has done."""

    turn: Turn[Any]
    held: Sequence[Frame] = ()
    """The messages that the client has."""
    is_new: bool = False
    """Whether the request has begun the turn: nothing of it has to be restated."""
    warnings: list[tuple[str, Any]] = field(default_factory=list)
    results: list[Frame] = field(default_factory=list)
    """The tool messages that were sent."""


async def _run(call: Call) -> Response:
    body = await read_body(call)
    sent = await call_for_size(call.body_bytes, validate, RunAgentInput, body, "body")
    sent = sent.model_copy(update={"thread_id": call.caller.read_id(sent.thread_id)})
    if len(sent.messages) > MAX_MESSAGES:
        raise WebError(f"messages has more than {MAX_MESSAGES:,} entries", status=413, name="BodyTooLargeError")
    agent, thread_id = call.params["agent"], sent.thread_id
    after = 0
    acted: _Acted
    if sent.resume:
        await open_session(call, thread_id, "read", "agui")
        after = await read_latest_seq(call.client, thread_id)
        acted = await _resume(call, sent)
    elif sent.messages and isinstance(sent.messages[-1], ToolMessage):
        await open_session(call, thread_id, "send", "agui")
        after = await read_latest_seq(call.client, thread_id)
        acted = await _answer(call, sent)
    else:
        acted, after = await _send(call, agent, sent)
    names = [tool.name for tool in sent.tools or ()]
    translator = AguiTranslator(thread_id, sent.run_id, version=sent.protocol_version, frontend_tools=names)
    acted.held = await call_for_size(call.body_bytes, lambda: [dump_message(message) for message in sent.messages])
    return EventStream(_stream(call, acted, translator, after), on_close=call.hold_stream(), check=call.is_current)


async def _send(call: Call, agent: str, sent: RunAgentInput) -> tuple[_Acted, int]:
    """Send the last message. A run id that was sent before is the same turn."""
    resource = await open_session(call, sent.thread_id, "send", "agui")
    after = await read_latest_seq(call.client, sent.thread_id)
    task_id = shorten_id(sent.run_id)
    known = call.client.run(sent.thread_id).turn(task_id)
    if await find_turn_start(call.client, known, after, is_last=True) is not None:
        return _Acted(known), after  # also of a client that was cut off in the middle, and while no worker answers
    message = sent.messages[-1] if sent.messages else None
    if not isinstance(message, UserMessage):
        try:
            turn = await find_present_turn(call.client, sent.thread_id)
        except RunNotFoundError:
            raise WebError("the last of messages is not the user's", name="InvalidInputError") from None
        return _Acted(turn), after
    message_id = build_message_id(sent.run_id, message.id)
    is_known = after > 0 and await is_known_turn(known, message_id)
    options = await admit_start(call, resource)
    if sent.tools:
        options["client_tools"] = [
            {"name": tool.name, "description": tool.description, "parameters": tool.parameters or {"type": "object"}}
            for tool in sent.tools
        ]
    async with bound_delivery():
        turn = await call.client.send(
            agent, _read_content(message), id=sent.thread_id, message_id=message_id, task_id=task_id,
            **options,
        )  # fmt: skip
    return _Acted(turn, is_new=turn.task_id == task_id and not is_known), after


def _read_content(message: UserMessage) -> str | list[str | File]:
    if isinstance(message.content, str):
        return message.content
    content: list[str | File] = []
    for part in message.content:
        if part.type == "text":
            content.append(part.text)
        elif part.source.type == "file":
            raise InvalidInputError("a file of a provider's own cannot be read", hint="Send its data, or a URL.")
        else:
            name = part.metadata.get("filename") if isinstance(part.metadata, dict) else None
            value, mime_type = part.source.value, part.source.mime_type
            content.append(build_file(value, mime_type, name if isinstance(name, str) else None))
    return content


async def _resume(call: Call, sent: RunAgentInput) -> _Acted:
    """Decide the interrupts. Each open one needs an entry; what others have decided meanwhile is told."""
    thread_id, entries = sent.thread_id, sent.resume or []
    frontend = {tool.name for tool in sent.tools or ()}
    entries = [entry.model_copy(update={"interrupt_id": call.caller.read_id(entry.interrupt_id)}) for entry in entries]
    waits, _ = await read_waits(call.client, thread_id)
    given = {entry.interrupt_id for entry in entries}
    asked = [wait for wait in waits if not (wait.call.kind == "callback" and wait.call.tool in frontend)]
    kinds = {wait.id: wait.call.kind for wait in waits}
    if given & kinds.keys() and (missing := [wait.id for wait in asked if wait.id not in given]):
        names = ", ".join(map(call.caller.show_id, missing))
        raise WebError(
            f"resume has no entry for {len(missing)} open interrupts: {names[:500]}",
            status=409, name="UncoveredInterruptError", hint="Answer each, or give it the status cancelled.",
        )  # fmt: skip
    warnings: list[tuple[str, Any]] = []
    for entry in entries:
        parsed = parse_wait_id(entry.interrupt_id, thread_id)
        if parsed is None:
            warnings.append(("unknown_interrupt", {"interruptId": entry.interrupt_id[:1000]}))
            continue
        try:
            await _decide(call, parsed, entry, kinds.get(entry.interrupt_id))
        except (ApprovalDecidedError, ApprovalExpiredError, RunNotFoundError) as error:
            problem = {"interruptId": entry.interrupt_id, "error": type(error).__name__, "message": error.message}
            warnings.append(("already_decided", problem))
        except InvalidInputError as error:
            if entry.interrupt_id in kinds:
                raise
            warnings.append(("unknown_interrupt", {"interruptId": entry.interrupt_id, "message": error.message}))
    return _Acted(await find_present_turn(call.client, thread_id), warnings=warnings)


async def _decide(call: Call, wait: tuple[str, str, str], entry: Any, kind: str | None) -> None:
    run_id, call_id, reviewed = wait
    run, payload = call.client.run(run_id), entry.payload
    is_decision = isinstance(payload, dict) and isinstance(payload.get("approved"), bool)
    is_approval = kind == "approval" or (kind is None and (is_decision or entry.status == "cancelled"))
    await authorize_wait(call, run_id, "decide" if is_approval else "send")
    if not is_approval:
        cancelled = "the user gave no answer" if entry.status == "cancelled" else None
        value = None if cancelled else payload
        await run.answer(call_id, value, error=cancelled, hash=reviewed, by=call.by)
        return
    if entry.status != "cancelled" and not is_decision:
        raise InvalidInputError("the payload of an approval has approved: true or false", hint=f"Interrupt {call_id}.")
    comment = payload.get("reason") if is_decision else None
    comment = comment if isinstance(comment, str) else None
    if entry.status == "cancelled" or not payload["approved"]:
        await run.deny(call_id, comment=comment, hash=reviewed, by=call.by)
    else:
        await run.approve(call_id, arguments=payload.get("editedArgs"), comment=comment, hash=reviewed, by=call.by)


async def _answer(call: Call, sent: RunAgentInput) -> _Acted:
    """Answer the calls of frontend tools with the tool messages at the end of ``messages``."""
    waits, _ = await read_waits(call.client, sent.thread_id)
    open_calls = {wait.call.call_id: wait for wait in waits if wait.call.kind == "callback"}
    warnings: list[tuple[str, Any]] = []
    results: list[Frame] = []
    for message in _list_last_tool_messages(sent.messages):
        call_id = message.tool_call_id
        wait = open_calls.get(call_id) or open_calls.get(call_id.rpartition("/")[2])
        if wait is None:
            warnings.append(("unknown_call", {"toolCallId": call_id[:1000]}))
            continue
        texts = message.content if isinstance(message.content, str) else _join_texts(message.content)
        await authorize_wait(call, wait.run_id, "send")
        run, value = call.client.run(wait.run_id), None if message.error else texts
        try:
            await run.answer(wait.call.call_id, value, error=message.error, hash=wait.call.hash, by=call.by)
        except (ApprovalDecidedError, ApprovalExpiredError) as error:
            warnings.append(("already_decided", {"toolCallId": call_id, "message": error.message}))
        else:
            results.append(dump_message(message))
    return _Acted(await find_present_turn(call.client, sent.thread_id), warnings=warnings, results=results)


def _list_last_tool_messages(messages: Sequence[Any]) -> list[ToolMessage]:
    found: list[ToolMessage] = []
    for message in reversed(messages):
        if not isinstance(message, ToolMessage):
            break
        found.append(message)
    return found[::-1]


def _join_texts(parts: Sequence[Any]) -> str:
    return "".join(part.text for part in parts if part.type == "text")


async def _stream(call: Call, acted: _Acted, translator: AguiTranslator, after: int) -> AsyncGenerator[bytes]:
    """Yield the frames of a run. Only an event's last frame carries its number as id: a client that was cut off
    between two of them receives the whole event again."""
    client = call.client
    texts, turn = EventTexts(client), acted.turn

    def encode(frame: Frame, seq: int | None = None) -> bytes:
        return encode_frame(encode_json(call.caller.show_ids(frame)), seq)

    if acted.is_new:
        frames = translator.start(acted.held)
    else:
        begin = await find_turn_start(client, turn, after) if acted.held else 0
        translator.rebuild(await read_history(turn.run, texts, after, begin or 0), turn.task_id)
        if begin and not translator.merge(acted.held, acted.results):  # the client has not seen the turn begin
            translator.rebuild(await read_history(turn.run, texts, after), turn.task_id)
            begin = 0
        if not begin:
            translator.merge(acted.held, acted.results, is_whole=True)
        frames = translator.start()
    for frame in frames:
        yield encode(frame)
    for name, value in acted.warnings:
        for frame in translator.warn(name, value):
            yield encode(frame)
    async with aclosing(follow_until_still(client, turn, after, has_waits=not acted.is_new)) as events:
        async for event in events:
            if isinstance(event, list):
                for frame in translator.finish([await texts.load_wait(wait) for wait in event]):
                    yield encode(frame)
                return
            results = await texts.load_results(event.context_id) if translator.lacks_results(event) else None
            frames = translator.feed(await texts.load(event), results)
            for index, frame in enumerate(frames, 1):
                yield encode(frame, event.seq if index == len(frames) else None)
    for frame in translator.finish():
        yield encode(frame)
