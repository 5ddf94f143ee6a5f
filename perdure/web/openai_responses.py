"""Responses: create, get, follow from a number on, cancel, and the items of the input.

A response is a turn, from where its request began or continued it; its id carries session, turn and that number. Calls
of the client's functions and approvals end it: the next request answers them, and continues the same turn.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing, suppress
from typing import Any

from starlette.responses import Response

from ..client.decisions import RunWait
from ..errors import PerdureError, RunClosedError, RunNotFoundError
from ..types.events import ApprovalDecided, ApprovalRequested, Event, MessageInjected, QuestionAsked, ToolCompleted
from ..types.messages import NAME_CHARS
from .auth import Resource, Verb
from .limits import call_for_size
from .openai_chat import follow_turn, wait_for_answer
from .openai_items import ResponseTranslator, hash_id
from .openai_requests import (
    ParameterError,
    Request,
    decode_id,
    describe_error,
    encode_id,
    encode_session_header,
    encode_wait_id,
    read_flag,
    read_messages,
    read_parameters,
    read_text,
    read_tools,
)
from .openai_sessions import Acted, act, claim_key, find_agent, load_arguments, shows_texts
from .operations import Call
from .problems import NotFoundError, WebError
from .sse import HEADERS, MAX_SEQ, EventStream, encode_frame
from .turns import EventTexts, encode_json, find_turn_start, read_body, read_latest_seq, read_waits

CANCEL_SECONDS = 10.0
"""How long a cancel waits until the turn has ended."""
_MAX_ITEMS = 100
_OWN = frozenset(
    {
        "background", "conversation", "input", "instructions", "model", "previous_response_id", "reasoning", "store",
        "stream", "text", "tools",
    }
)  # fmt: skip


class ResponseNotFoundError(NotFoundError):
    """There is no such response for this caller."""


async def create_response(call: Call) -> Response:
    """Begin or continue a turn, and answer with its response: when it has ended, as a stream, or at once."""
    body = await read_body(call)
    request = await call_for_size(call.body_bytes, _read_request, body)
    streams, is_background = read_flag(body, "stream"), read_flag(body, "background")
    await _read_conversation(call, body, request)
    request.has_key = await claim_key(call, body)
    reader = _ResponseReader(call, await act(call, request), is_background=is_background)
    echoed = ("max_output_tokens", "previous_response_id", "temperature", "top_p")
    reader.translator.fields |= {name: body[name] for name in echoed if body.get(name) is not None}
    headers = {**HEADERS, **encode_session_header(reader.acted.session_name)}
    if streams:
        stream = EventStream(
            reader.stream(), on_close=call.hold_stream(), build_break=reader.build_break, check=call.is_current
        )
        stream.headers.update(encode_session_header(reader.acted.session_name))
        return stream
    if not is_background:
        if not await wait_for_answer(call, reader.read):
            return Response(status_code=499)
        return _encode_answer(reader.translator.describe(), headers)
    await reader.read_now()  # a repeat of a request may be late
    response = reader.translator.describe()
    is_new = response["status"] == "in_progress" and not response["output"]
    return _encode_answer(response | ({"status": "queued"} if is_new else {}), headers)


def _read_request(body: dict[str, Any]) -> Request:
    settings = read_parameters(body, _OWN)
    if body.get("store") is False:
        raise ParameterError(
            "Every response is part of a session, which is kept", "store", code="unsupported_parameter",
            hint="Leave it out, and delete the session by DELETE /v1/sessions/{id}.",
        )  # fmt: skip
    reasoning = body.get("reasoning")
    if isinstance(reasoning, dict) and reasoning.get("effort") is not None:
        settings |= read_parameters({"reasoning_effort": reasoning["effort"]}, frozenset())
    form = body.get("text")
    kind = form.get("format") if isinstance(form, dict) else None
    request = Request(read_text(body, "model"), None, read_tools(body), settings)
    request.form = (kind.get("type") if isinstance(kind, dict) else kind, "text.format")
    request.system = read_text(body, "instructions")
    return request


async def _read_conversation(call: Call, body: dict[str, Any], request: Request) -> None:
    """Read which session the request continues, and its input."""
    previous, conversation = read_text(body, "previous_response_id"), body.get("conversation")
    if isinstance(conversation, dict):
        conversation = conversation.get("id")
    if conversation is not None and not isinstance(conversation, str):
        raise ParameterError("conversation is the id of a session", "conversation", code="invalid_type")
    if previous is not None and conversation is not None:
        raise ParameterError(
            "previous_response_id and conversation exclude each other", "previous_response_id",
            code="mutually_exclusive_parameters",
        )  # fmt: skip
    request.session = conversation
    if previous is not None:
        request.session, request.continues, _ = _parse_response_id(previous)
        await _find_session(call, previous, request.session, "read")
    if request.agent is None and request.session is None:
        raise ParameterError("model is the name of an agent", "model", code="missing")
    given = body.get("input")
    messages = [{"role": "user", "content": given}] if isinstance(given, str) else given
    if not isinstance(messages, list) or not messages:
        raise ParameterError("input is a text, or a list with at least one item", "input", code="missing")
    is_known = request.session is not None
    await call_for_size(call.body_bytes, read_messages, request, "openai-responses", messages, all_new=is_known)


# ---
# Responses that exist.


def _parse_response_id(id: str) -> tuple[str, str, int]:
    """Return session, turn and first number of a response. Raises ``ResponseNotFoundError``."""
    match decode_id("resp_", id):
        case [str(session), str(task_id), int(after)] if (
            session and 0 < len(task_id) <= NAME_CHARS and 0 <= after <= MAX_SEQ
        ):
            return session, task_id, after
    raise _build_unknown_error(id)


def _build_unknown_error(id: str) -> ResponseNotFoundError:
    return ResponseNotFoundError(f"Response with id {id!r:.200} not found")


async def _find_session(call: Call, id: str, session: str, verb: Verb) -> Resource:
    try:
        resource = await call.web.find_session(session)
        await call.authorize(verb, "openai", resource)
    except RunNotFoundError:
        raise _build_unknown_error(id) from None
    return resource


async def _find_response(call: Call, verb: Verb) -> _ResponseReader:
    """Return the response of the path. Raises ``ResponseNotFoundError``, ``ForbiddenError``."""
    response_id = call.params["response"]
    session, task_id, after = _parse_response_id(response_id)
    resource = await _find_session(call, response_id, session, verb)
    turn = call.client.run(session).turn(task_id)
    try:
        status = await turn.status()
    except RunNotFoundError:
        raise _build_unknown_error(response_id) from None
    if status.state == "unknown":
        raise _build_unknown_error(response_id)
    try:
        definition = await find_agent(call, resource.agent or "")
    except NotFoundError:  # its definition was deleted
        definition = {}
    start = await find_turn_start(call.client, turn, await read_latest_seq(call.client, session))
    acted = Acted(turn, resource, after, max(after, start or 0), status.state == "running", definition, call.caller)
    return _ResponseReader(call, acted)


async def follow_response(call: Call) -> Response:
    """Get a response as it is now; with ``stream=true`` follow it, behind the frame of number ``starting_after``."""
    query = call.request.query_params
    if query.get("stream", "false").lower() not in ("true", "1"):
        reader = await _find_response(call, "read")
        await reader.read_now()
        return _encode_answer(reader.translator.describe(), HEADERS)
    text = query.get("starting_after", "")
    if text and not (text.isascii() and text.isdigit() and len(text) <= 16):
        raise ParameterError("starting_after is the sequence_number of a frame", "starting_after")
    reader = await _find_response(call, "read")
    reader.translator.skip_until(int(text) if text else None)
    return EventStream(
        reader.stream(), on_close=call.hold_stream(), build_break=reader.build_break, check=call.is_current
    )


async def cancel_response(call: Call) -> Response:
    """Interrupt the turn of a response, if it is in progress; answer with what has become of it."""
    reader = await _find_response(call, "send")
    turn, run = reader.acted.turn, reader.acted.turn.run
    if (await turn.status()).state == "running" and (await run.status()).task_id == turn.task_id:
        with suppress(RunClosedError):
            await run.interrupt(by=call.by)
        with suppress(TimeoutError):
            async with asyncio.timeout(CANCEL_SECONDS), aclosing(turn.events(children=False)) as events:
                async for _ in events:
                    pass
    await reader.read_now()
    return _encode_answer(reader.translator.describe(), HEADERS)


def _encode_answer(fields: Any, headers: dict[str, str]) -> Response:
    return Response(encode_json(fields), 200, headers, "application/json")


class _ResponseReader:
    """A response: read from the events of its turn, whole or as frames."""

    def __init__(self, call: Call, acted: Acted, *, is_background: bool = False) -> None:
        self.call, self.acted = call, acted
        call.resource = acted.resource
        response_id = encode_id("resp_", acted.session, acted.turn.task_id, acted.after)
        self.translator = ResponseTranslator(
            response_id, acted.session, acted.resource.agent or "", acted.after, has_texts=shows_texts(acted.definition)
        )
        self.translator.fields["background"] = is_background
        self._texts = EventTexts(call.client)

    async def read(self) -> None:
        """Read until the turn has ended or stands still."""
        async for _ in self._follow():
            pass

    async def _follow(self) -> AsyncGenerator[list[dict[str, Any]]]:
        """Yield the frames of each event, and those of the end."""
        waits: list[RunWait] = []
        async with aclosing(follow_turn(self.call, self.acted)) as events:
            async for event in events:
                if isinstance(event, list):
                    waits = event
                else:
                    yield await self._feed(event)
        yield await self._finish(waits)

    async def _feed(self, event: Event) -> list[dict[str, Any]]:
        if event.type == "model.completed":  # the arguments of its calls
            event = await self._texts.load(event)
        if isinstance(event, ApprovalRequested | QuestionAsked) and self.translator.lacks_arguments(event):
            arguments = await load_arguments(self.call.client, event.context_id)
            self.translator.add_arguments(event.context_id, arguments)
        return self.translator.feed(event)

    async def _finish(self, waits: Sequence[RunWait]) -> list[dict[str, Any]]:
        if not waits and self.translator.end is None:
            self.translator.note_status(await self.acted.turn.status())
        return self.translator.finish([await self._texts.load_wait(wait) for wait in waits])

    async def read_now(self) -> None:
        """Read the recorded part of the response."""
        turn = self.acted.turn
        async with aclosing(turn.events(self.acted.since, wait=False)) as events:
            async for event in events:
                await self._feed(event)
        status = await turn.status()
        if status.state != "running":
            await self._finish(())
            return
        try:
            waits, is_still = await read_waits(self.call.client, turn.run.id)
        except PerdureError:  # no worker answers
            waits, is_still = [], False
        if is_still and (await turn.run.status()).task_id == turn.task_id:
            await self._finish(waits)

    async def stream(self) -> AsyncGenerator[bytes]:
        """Yield the frames that the client has not had."""
        for frame in self.translator.start():
            yield _encode(frame)
        async with aclosing(self._follow()) as batches:
            async for frames in batches:
                for frame in frames:
                    yield _encode(frame)
        yield encode_frame("[DONE]")

    def build_break(self, error: PerdureError | None) -> bytes:
        """Build the last frame of a stream that breaks."""
        error = error or WebError(
            "the stream has lasted as long as it may", status=503, name="StreamTimeoutError",
            hint="The response goes on: follow it with starting_after.",
        )  # fmt: skip
        fields = describe_error(error)
        frame = {**fields, "type": "error", "sequence_number": self.translator.last_number, "error": fields}
        return _encode(frame)


def _encode(frame: dict[str, Any]) -> bytes:
    return b"event: %s\n" % frame["type"].encode() + encode_frame(encode_json(frame))


# ---
# Items of the input.


async def list_input_items(call: Call) -> Response:
    """List what the client has sent to a response: messages, results of calls, and decisions."""
    query = call.request.query_params
    limit, order = query.get("limit", "20"), query.get("order", "desc")
    if not (limit.isascii() and limit.isdigit() and len(limit) < 4 and 0 < int(limit) <= _MAX_ITEMS):
        raise ParameterError(f"limit is a number from 1 to {_MAX_ITEMS}", "limit")
    if order not in ("asc", "desc"):
        raise ParameterError("order is asc or desc", "order")
    reader = await _find_response(call, "read")
    items: list[dict[str, Any]] = []
    hashes: dict[tuple[str, str], str] = {}
    turn, latest = reader.acted.turn, await read_latest_seq(call.client, reader.acted.session)
    start = await find_turn_start(call.client, turn, latest)
    async with aclosing(turn.events(start or 0, wait=False)) as events:
        async for event in events:
            if isinstance(event, ApprovalRequested | QuestionAsked):
                hashes[event.context_id, event.call_id] = event.hash
            elif event.seq > reader.acted.after and (item := await _build_input_item(call, event, hashes)) is not None:
                items.append(item)
    if order == "desc":
        items.reverse()
    after = query.get("after")
    start = next((index + 1 for index, item in enumerate(items) if item["id"] == after), 0)
    page = items[start : start + int(limit)]
    ids = {"first_id": page[0]["id"], "last_id": page[-1]["id"]} if page else {"first_id": None, "last_id": None}
    fields = {"object": "list", "data": page, **ids, "has_more": start + len(page) < len(items)}
    return _encode_answer(fields, HEADERS)


async def _build_input_item(call: Call, event: Event, hashes: Mapping[tuple[str, str], str]) -> dict[str, Any] | None:
    """Build the item of what a client has sent; None for all other events. ``hashes`` are those of what was asked."""
    event = await EventTexts(call.client).load(event) if isinstance(event, MessageInjected | ToolCompleted) else event
    place = (event.context_id, str(event.seq))
    match event:
        case MessageInjected() if not event.path:
            content = [{"type": "input_text", "text": event.content}]
            fields: dict[str, Any] = {"type": "message", "id": hash_id("msg_", *place), "role": "user"}
            return fields | {"status": "completed", "content": content}
        case ToolCompleted() if event.answered_by is not None:
            shown = hashes.get((event.context_id, event.call_id), "")
            call_id = encode_wait_id("call_", event.context_id, event.call_id, shown)
            fields = {"type": "function_call_output", "id": hash_id("fco_", *place), "call_id": call_id}
            return fields | {"output": event.content, "status": "completed"}
        case ApprovalDecided() if event.by is not None:
            shown = hashes.get((event.context_id, event.call_id), "")
            request_id = encode_wait_id("mcpr_", event.context_id, event.call_id, shown)
            fields = {"type": "mcp_approval_response", "id": hash_id("mcpar_", *place)}
            fields |= {"approval_request_id": request_id, "approve": event.decision == "approved"}
            return fields | {"reason": event.comment}
    return None
