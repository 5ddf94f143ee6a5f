"""What front-end protocols need of a turn: its replies as they are written, the calls that wait, and decisions on them.

A front end's request ends when nothing moves without it: with the turn, or when every call in progress waits for a
decision or an answer, also in subagents. The run itself goes on; the next request continues the same turn.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import json
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from ..client.audit import audit_caller
from ..client.client import Client
from ..client.decisions import WAIT_ID_SEPARATOR, RunWait
from ..client.event_reader import decode_row, iter_own_rows
from ..client.run import Run
from ..client.turn import Turn
from ..errors import InvalidInputError, PerdureError, RunNotFoundError
from ..types.events import (
    ApprovalRequested,
    Event,
    MessageInjected,
    ModelCompleted,
    ModelDelta,
    ModelStarted,
    QuestionAsked,
    ToolCompleted,
    TurnEvent,
)
from ..types.interface import FINISH_TOOL
from ..types.messages import CALL_ID_CHARS, NAME_CHARS, RUN_ID_CHARS, File, FilePart, ToolCallPart, ToolResultPart
from .auth import Resource, Verb
from .limits import call_for_size, parse_json_body
from .operations import Call, Web, shown_errors
from .origins import get_client_address
from .problems import WebError, build_problem, build_unexpected_problem, build_unknown_session_error

MAX_BODY_BYTES = 4 * 1024 * 1024
MAX_MESSAGES = 10_000
QUIET_SECONDS, MAX_QUIET_SECONDS = 0.25, 4.0
"""How long nothing must happen until the run is asked whether it only waits: at first, and while it says no."""
_MAX_WAIT_ID_CHARS = RUN_ID_CHARS + CALL_ID_CHARS + 200
_WINDOW_EVENTS = 256


# ---
# Replies as they are written.


@dataclass
class WrittenCall:
    """A tool call of a reply, as far as it is written."""

    id: str
    name: str
    arguments: str = ""
    """Raw JSON."""


@dataclass
class Reply:
    """One reply of a model, as far as it is written."""

    id: str
    iteration: int
    text: str = ""
    thinking: str = ""
    calls: dict[int, WrittenCall] = field(default_factory=dict)

    def extend(self, delta: ModelDelta) -> str:
        """Add ``delta`` and return what of it is new: "" for a piece that is known, or whose beginning is missing."""
        if delta.kind != "tool_call":
            before = self.text if delta.kind == "text" else self.thinking
            added = _cut_known(before, delta)
            if delta.kind == "text":
                self.text += added
            else:
                self.thinking += added
            return added
        call = self.calls.setdefault(delta.index, WrittenCall(delta.call_id, delta.name))
        call.id, call.name = call.id or delta.call_id, call.name or delta.name
        added = _cut_known(call.arguments, delta)
        call.arguments += added
        return added


def _cut_known(before: str, delta: ModelDelta) -> str:
    known = len(before) - delta.offset
    return delta.text[known:] if known >= 0 else ""


class Replies:
    """The replies in progress of a run and its subagents, with ids that every reader of the events gives them."""

    def __init__(self) -> None:
        self._open: dict[str, Reply] = {}
        self._uses: dict[tuple[str, str | None, int], int] = {}
        """How many replies with this turn and iteration have ended, retracted ones too."""

    def find(self, context_id: str) -> Reply | None:
        """Return the reply in progress of a run."""
        return self._open.get(context_id)

    def open(self, event: ModelStarted | ModelDelta | ModelCompleted) -> Reply:
        """Return the reply of ``event``, which may be its first."""
        reply = self._open.get(event.context_id)
        if reply is None or reply.iteration != event.iteration:
            uses = self._uses.get((event.context_id, event.task_id, event.iteration), 0)
            reply_id = f"{event.context_id}/{event.task_id}/{event.iteration}" + (f".{uses}" if uses else "")
            reply = self._open[event.context_id] = Reply(reply_id, event.iteration)
        return reply

    def close(self, event: Event) -> Reply | None:
        """End the reply in progress of the event's run, and return it."""
        reply = self._open.pop(event.context_id, None)
        iteration = getattr(event, "iteration", None)
        if reply is not None or iteration is not None:
            key = event.context_id, event.task_id, reply.iteration if iteration is None and reply else iteration or 0
            self._uses[key] = self._uses.get(key, 0) + 1
        return reply


def dump_event(event: Event) -> dict[str, Any]:
    """Return the fields of ``event`` that say something beside its place."""
    hidden = {"context_id", "task_id", "path", "attempt", "partial", "type"}
    return event.model_dump(mode="json", exclude_defaults=True, exclude=hidden)


# ---
# Events with what is not in them, and the results that have no event.


class EventTexts:
    """Loads long texts, arguments and results into events from the store."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def load(self, event: Event) -> Event:
        """Return ``event`` with its text, and the arguments of its calls."""
        if isinstance(event, ModelCompleted) and any(call.arguments is None for call in event.calls):
            messages = await self._client.run(event.context_id).transcript(full=True)
            found = {part.id: part.arguments for m in messages for part in m.parts if isinstance(part, ToolCallPart)}
            calls = [call.model_copy(update={"arguments": found.get(call.id)}) for call in event.calls]
            return event.model_copy(update={"calls": tuple(calls)})
        if isinstance(event, MessageInjected | ToolCompleted) and event.blob is not None:
            content = await self._client.file(FilePart(media_type="text/plain", blob=event.blob))
            return event.model_copy(update={"content": content.decode(errors="replace"), "blob": None})
        return event

    async def load_wait(self, wait: RunWait) -> RunWait:
        """Return ``wait`` with its arguments, where they are too long for the run's status."""
        if wait.call.arguments is not None or wait.call.kind == "question":
            return wait
        messages = await self._client.run(wait.run_id).transcript(full=True)
        calls = [part for m in messages for part in m.parts if isinstance(part, ToolCallPart)]
        arguments = next((part.arguments for part in reversed(calls) if part.id == wait.call.call_id), None)
        return RunWait(wait.run_id, wait.call.model_copy(update={"arguments": arguments}))

    async def load_results(self, context_id: str) -> dict[str, str]:
        """Load the results of a run's calls that are in its transcript by now, by call id."""
        messages = await self._client.run(context_id).transcript(full=True)
        return {
            part.call_id: part.content
            for message in messages
            for part in message.parts
            if isinstance(part, ToolResultPart)
        }


# ---
# Calls that wait.


def parse_wait_id(id: str, root: str) -> tuple[str, str, str] | None:
    """Return the run, call and hash that ``RunWait.id`` names; None for another text, or a run that is neither
    ``root`` nor below it."""
    parts = id.rsplit(WAIT_ID_SEPARATOR, 2) if len(id) <= _MAX_WAIT_ID_CHARS else []
    if len(parts) != 3 or not all(parts) or not (parts[0] == root or parts[0].startswith(f"{root}/")):
        return None
    return parts[0], parts[1], parts[2]


async def read_waits(client: Client, run_id: str) -> tuple[list[RunWait], bool]:
    """Return the calls that wait in a run and its subagents, and whether everything else of it stands still."""
    status = await client.run(run_id).status(decided=False)
    waits = [RunWait(run_id, call) for call in status.approvals]
    is_still = status.state in ("waiting", "held_up") and status.doing in ("approval", "answer")
    waiting = {call.call_id for call in status.approvals}
    children = [call for call in status.calls if call.call_id not in waiting]
    if children and status.doing in ("tools", "branches", "approval", "answer"):
        is_still = True
        for child in children:
            if child.context_id is None:
                is_still = False
                continue
            try:
                below, child_is_still = await read_waits(client, child.context_id)
            except RunNotFoundError:  # it has not started yet
                below, child_is_still = [], False
            waits += below
            is_still = is_still and child_is_still and bool(below)
    return waits, is_still and bool(waits)


async def follow_until_still(
    client: Client, turn: Turn[Any], after: int, *, has_waits: bool
) -> AsyncGenerator[Event | list[RunWait]]:
    """Yield the events of ``turn`` after number ``after`` until it has ended, or last the calls that wait where
    everything else stands still. ``has_waits``: calls may wait since before ``after``."""
    async with aclosing(turn.events(after)) as events:
        pending, quiet = asyncio.ensure_future(anext(events, None)), QUIET_SECONDS
        try:
            while True:
                done, _ = await asyncio.wait([pending], timeout=quiet if has_waits else None)
                if not done:
                    waits, is_still = await _try_waits(client, turn)
                    if is_still and not pending.done():
                        yield waits
                        return
                    quiet = min(quiet * 2, MAX_QUIET_SECONDS)
                    continue
                event = pending.result()
                if event is None:
                    return
                has_waits = has_waits or isinstance(event, ApprovalRequested | QuestionAsked)
                yield event
                pending, quiet = asyncio.ensure_future(anext(events, None)), QUIET_SECONDS
        finally:
            pending.cancel()
            await asyncio.gather(pending, return_exceptions=True)


async def _try_waits(client: Client, turn: Turn[Any]) -> tuple[list[RunWait], bool]:
    try:
        return await read_waits(client, turn.run.id)
    except PerdureError:  # no worker answers: the turn goes on when one does
        return [], False


# ---
# Requests.


def build_endpoint(
    web: Web,
    handler: Callable[[Call], Awaitable[Response]],
    convert_problem: Callable[[Response, Exception, Request], Response] = lambda problem, *_: problem,
) -> Callable[[Request], Awaitable[Response]]:
    """Build the endpoint that calls ``handler`` for an authenticated caller, and answers errors with problems, in the
    form that ``convert_problem`` gives them. The handler checks what the caller may: which session it is about stands
    in the body."""

    async def endpoint(request: Request) -> Response:
        try:
            caller = await web.authenticate(request)
            with audit_caller(caller.auth, get_client_address(request.scope)), shown_errors(caller):
                return await handler(Call(web, request, caller, dict(request.path_params), None, None))
        except PerdureError as error:
            return convert_problem(build_problem(error), error, request)
        except ClientDisconnect:  # in the middle of its body
            return Response(status_code=400)
        except Exception as error:  # nothing of it is for the caller
            return convert_problem(build_unexpected_problem(error), error, request)

    return endpoint


async def find_present_turn(client: Client, session_id: str) -> Turn[Any]:
    """Return the current turn of a session, or its last one. Raises ``RunNotFoundError``."""
    turn = client.run(session_id).turn()
    status = await turn.status()
    turn.task_id = turn.task_id or status.task_id
    if not turn.task_id and status.state == "running":  # no worker answers
        async with aclosing(
            _read_turn_events(client, session_id, await read_latest_seq(client, session_id))
        ) as windows:
            turn.task_id = await anext((events[-1].task_id or "" async for events in windows if events), "")
    if not turn.task_id or status.state == "unknown":
        raise RunNotFoundError(f"session {session_id!r:.200} has no turn yet", hint="Send a user's message.")
    return turn


async def read_body(call: Call) -> Any:
    """Read a JSON body of at most ``MAX_BODY_BYTES``, an object. Raises ``WebError``."""
    request = call.request
    content_type = request.headers.get("content-type", "").split(";")[0].strip().lower()
    if content_type != "application/json":
        raise WebError("the body must be JSON", status=415, hint="Send Content-Type: application/json.")
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > MAX_BODY_BYTES:
            raise WebError(f"the body has more than {MAX_BODY_BYTES:,} bytes", status=413, name="BodyTooLargeError")
    call.web.rates.charge(call.caller, len(body))
    call.body_bytes = len(body)
    limits = call.web.limits
    plain = await call_for_size(len(body), parse_json_body, bytes(body), limits.json_depth, limits.json_values)
    if not isinstance(plain, dict):
        raise WebError("the body must be an object", name="InvalidInputError")
    return plain


async def open_session(call: Call, id: str, verb: Verb, action: str) -> Resource:
    """Return the session ``id`` of the path's agent, which the caller may ``verb``; with ``send`` also one that does
    not exist yet, of the caller's tenant. Raises ``RunNotFoundError``, ``ForbiddenError``, ``RunIdError``."""
    agent = call.params["agent"]
    found: Resource | None = None
    try:
        found = await call.web.find_session(id)
    except RunNotFoundError:
        if verb != "send":
            raise
    if found is None or (verb == "send" and not await call.may("read", found)):  # the same answer for both
        start = Resource("session", None, agent, call.caller.tenant, call.caller.name)
        found = await call.authorize_start(action, id, start)
    await call.authorize(verb, action, found)
    if found.agent != agent:
        raise build_unknown_session_error(id)
    call.resource = found
    return found


async def authorize_wait(call: Call, run_id: str, verb: Verb) -> None:
    """Check that the caller may decide or answer the calls of a run, which may be a subagent's."""
    await call.authorize(verb, "answer" if verb == "send" else verb, await call.web.find_session(run_id))


def shorten_id(id: str) -> str:
    """Return a name of at most ``NAME_CHARS`` characters for a client's id, the same for the same id."""
    if 0 < len(id) <= NAME_CHARS and id.isprintable():
        return id
    return hashlib.sha256(id.encode(errors="replace")).hexdigest()


def build_file(value: str, media_type: str | None, name: str | None = None) -> File:
    """Build a file of a data URL, of base64 text (``data:`` left out), or at an http(s) URL. Raises
    ``InvalidInputError``."""
    if value.startswith(("http://", "https://")):
        return File.at(value, media_type, name)
    if value.startswith("data:"):
        head, _, value = value.partition(",")
        if not head.endswith(";base64"):
            raise InvalidInputError("a data URL of a file is in base64", hint="data:image/png;base64,…")
        media_type = media_type or head[len("data:") : -len(";base64")] or None
    try:
        return File(base64.b64decode(value, validate=True), media_type, name)
    except (binascii.Error, ValueError):
        raise InvalidInputError("the data of a file is not base64") from None


async def read_latest_seq(client: Client, run_id: str) -> int:
    """Return the number of the last event of a conversation; 0 for none."""
    return await (await client.store()).wait_for_event(run_id, 0, 0.0)


async def is_known_turn(turn: Turn[Any], message_id: str | None = None) -> bool:
    """Whether a session has events of the turn, or of the message that began it. Two rows of the store: the workflow
    forgets old turns, and to look for one in the events would cost the whole conversation with each new message."""
    store, session_id = await turn.run.client.store(), turn.run.id
    if await store.get_turn(session_id, turn.task_id) is not None:
        return True
    return message_id is not None and await store.find_message_turn(session_id, message_id) is not None


async def _read_turn_events(client: Client, run_id: str, until: int) -> AsyncGenerator[list[TurnEvent]]:
    """Yield the turn events of a conversation up to number ``until``, a window of them after the other, backwards: who
    wants the last turn reads no more than that."""
    store, before, window = await client.store(), until, _WINDOW_EVENTS
    while before > 0:
        after = max(0, before - window)
        rows = [row async for row in iter_own_rows(store, run_id, after) if row.type == "turn" and row.seq <= before]
        yield [event for row in rows if isinstance(event := decode_row(run_id, row), TurnEvent)]
        before, window = after, window * 4


async def find_turn_start(client: Client, turn: Turn[Any], until: int, *, is_last: bool = False) -> int | None:
    """Return the number before the first event of ``turn``, among those up to number ``until``; None for a turn that
    has none, and with ``is_last`` for one that is not the last. Its cost is that of the conversation since then."""
    async with aclosing(_read_turn_events(client, turn.run.id, until)) as windows:
        async for events in windows:
            for event in events:
                if event.task_id == turn.task_id and event.state == "started":
                    return event.seq - 1
            if is_last and any(event.task_id != turn.task_id for event in events):
                return None
    return None


async def read_history(run: Run[Any], texts: EventTexts, until: int, after: int = 0) -> list[Event]:
    """Read the events of a conversation and its subagents after number ``after``, up to number ``until``."""
    history: list[Event] = []
    async with aclosing(run.events(after, wait=False)) as events:
        async for event in events:
            if event.seq > until:
                break
            history.append(await texts.load(event))
    return history


def encode_json(value: Any) -> str:
    """Encode JSON on one line; a lone surrogate, as a model may write, is escaped."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return text if text.isascii() or _is_encodable(text) else json.dumps(value, separators=(",", ":"))


def _is_encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def is_answer_call(name: str) -> bool:
    """Whether a call is not one of a tool: it gives the turn's typed answer."""
    return name == FINISH_TOOL


def describe_answer(event: TurnEvent, last_text: str) -> str:
    """Return the answer of a turn where it is not the text of its last reply; "" otherwise."""
    return event.content if event.content and event.content != last_text else ""
