"""How requests of OpenAI's API open and continue sessions: they send a message, answer calls, and may be repeated."""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Any, cast

from ..client.client import Client
from ..client.decisions import RunWait
from ..client.turn import Turn
from ..errors import (
    ApprovalDecidedError,
    ApprovalExpiredError,
    InvalidInputError,
    PerdureError,
    RunClosedError,
    RunNotFoundError,
)
from ..types.engine_texts import EngineText, enclose_text
from ..types.events import ApprovalRequested, Event, MessageInjected, QuestionAsked
from ..types.messages import MessageInput, TextPart, ToolCallPart
from ..types.plain_json import parse_json
from ..types.run_ids import get_root_id, split_run_id
from .admission import FieldForbiddenError, admit_start
from .auth import Caller, Resource
from .key_lease import KeyLease
from .lists import read_callable_agents
from .openai_requests import (
    SESSION_HEADER,
    Answer,
    ParameterError,
    Request,
    UnknownModelError,
    build_unknown_call_error,
    check_model_settings,
)
from .operations import KEY_CHARS, Call
from .problems import WebError
from .sessions import bound_delivery
from .turns import (
    authorize_wait,
    find_present_turn,
    find_turn_start,
    is_known_turn,
    open_session,
    read_latest_seq,
    read_waits,
)

IDLE_SECONDS = 300.0
"""How long a conversation that the client has not named stays open in Temporal. A message opens it again."""
_OWN_PREFIX = "openai-"
"""Begins the ids of these."""
_MAX_ANSWERS = 100


@dataclass(frozen=True)
class Acted:
    """What a request has done: the turn that it began or continued."""

    turn: Turn[Any]
    resource: Resource
    after: int
    """Its answer are the events of the turn after this number."""
    since: int
    """The number of an event before the first of them, from which the events are read."""
    has_waits: bool
    definition: Mapping[str, Any]

    caller: Caller

    @property
    def session(self) -> str:
        """Id of the session."""
        return self.turn.run.id

    @property
    def session_name(self) -> str:
        """What the caller names the session."""
        return self.caller.show_id(self.session)


async def find_agent(call: Call, name: str) -> Mapping[str, Any]:
    """Return the definition of an agent that the caller may see. Raises ``UnknownModelError``."""
    row = (await read_callable_agents(call, name)).get(name)
    if row is None:
        raise UnknownModelError(f"The model {name!r:.200} does not exist", hint="GET models lists the agents.")
    return cast(Mapping[str, Any], json.loads(row.body))


async def load_arguments(client: Client, run_id: str) -> dict[str, dict[str, Any]]:
    """Load the arguments of a run's calls, by call id: where they are too long for its events and status."""
    messages = await client.run(run_id).transcript(full=True)
    return {part.id: part.arguments for m in messages for part in m.parts if isinstance(part, ToolCallPart)}


def shows_texts(definition: Mapping[str, Any]) -> bool:
    """Whether the replies of an agent are its answer: not if it has a typed output, or says when it has finished."""
    return definition.get("output") is None and definition.get("finish") in (None, "text")


def _check_form(kind: Any, param: str, definition: Mapping[str, Any]) -> None:
    """Refuse another form of the answer than the agent gives."""
    if kind not in (None, "text") and definition.get("output") is None:
        raise ParameterError(
            "The agent's own output type decides the form of its answers, and this one answers with text", param,
            code="unsupported_parameter", hint="Agent(…, output=…) gives it one.",
        )  # fmt: skip


async def claim_key(call: Call, body: Mapping[str, Any]) -> bool:
    """Take the ``Idempotency-Key`` of a request: the ids of what it does are made from it, or are new. Return whether
    there is one. Raises ``WebError`` for one that was sent with another request."""
    given = call.request.headers.getlist("idempotency-key")
    if not given:
        call.key = uuid.uuid4().hex
        return False
    if len(given) > 1 or not 0 < len(given[0]) <= KEY_CHARS or not given[0].isprintable() or not given[0].isascii():
        raise WebError(f"an Idempotency-Key has 1 to {KEY_CHARS} printable ASCII characters", name="InvalidInputError")
    call.key = f"openai/{call.scope}/{given[0]}"
    place = [call.request.url.path, call.request.headers.get(SESSION_HEADER)]
    asked = {name: value for name, value in body.items() if name not in ("background", "stream", "stream_options")}
    digest = hashlib.sha256(json.dumps([place, asked], sort_keys=True).encode()).hexdigest()
    store = await call.client.store(create=True)
    lease = KeyLease(store, call.key, digest, uuid.uuid4().hex)
    state = await lease.claim()
    if state == "mismatch":
        raise WebError(
            "this Idempotency-Key was sent with another request", status=409, name="IdempotencyKeyConflict",
            hint="Give each request a key of its own.", headers={"x-should-retry": "false"},
        )  # fmt: skip
    if state == "new":  # the ids make a repeat the same act; the row only holds what was asked
        await store.complete_idempotency(call.key, lease.owner, b"{}")
    return True


async def act(call: Call, request: Request) -> Acted:
    """Answer the calls that the request answers, and send its message. A repeat changes nothing more."""
    session = None if request.session is None else call.caller.read_id(request.session)
    if request.answers:
        roots = {get_root_id(answer.run_id) for answer in request.answers}
        if len(roots) > 1 or (session is not None and roots != {session}):
            raise ParameterError("The calls are of different conversations", "input")
        session = roots.pop()
    session = session or call.caller.read_id(f"{_OWN_PREFIX}{call.derive_id('session')}")
    agent = request.agent
    if agent is None:
        resource = await call.web.find_session(session)
        await call.authorize("read", "openai", resource)
        agent = resource.agent or ""
    try:
        definition = await find_agent(call, agent)
    except UnknownModelError as error:
        await call.record_refusal("openai", "agent", error, agent[:200])
        raise
    _check_form(*request.form, definition)
    check_model_settings(request.settings, definition)
    scoped = replace(call, params={"agent": agent})
    if not request.answers:
        return await _send(scoped, request, session, definition)
    resource = await open_session(scoped, session, "read", "openai")
    if request.content is not None:  # before anything is decided
        await _admit(scoped, request, resource)
    turn, after = await _answer(scoped, request.answers, session)
    acted = Acted(turn, resource, after, after, True, definition, call.caller)
    if request.content is not None:
        await open_session(scoped, session, "send", "openai")
        await _deliver(scoped, request, resource, session, definition)
    return acted


async def _answer(call: Call, answers: Sequence[Answer], session: str) -> tuple[Turn[Any], int]:
    """Answer the calls; return their turn, and the number of the event that has asked for the last of them."""
    if len(answers) > _MAX_ANSWERS:
        raise ParameterError(f"A request answers at most {_MAX_ANSWERS} calls", "input")
    asked = await _find_asked(call, session, await _find_last_turn(call, session))
    if any(_key(answer) not in asked for answer in answers):  # of an earlier turn
        asked = await _find_asked(call, session, 0)
    if unknown := next((answer for answer in answers if _key(answer) not in asked), None):
        raise build_unknown_call_error(unknown.id)
    waits = {(wait.run_id, wait.call.call_id, wait.call.hash): wait for wait in (await _read_waits(call, session))}
    for answer in answers:
        await authorize_wait(call, answer.run_id, "send" if answer.approve is None else "decide")
        wait = waits.get(_key(answer))
        if wait is not None and (wait.call.kind == "approval") != (answer.approve is not None):
            kind = "an approval" if wait.call.kind == "approval" else "a result"
            raise ParameterError(f"The call {answer.id[:100]!r} waits for {kind}", "input")
    lost: PerdureError | None = None
    for answer in answers:
        try:
            await _answer_call(call, answer, waits.get(_key(answer)))
        except RunClosedError:  # the answer says how it went on
            continue
        except (ApprovalDecidedError, ApprovalExpiredError) as error:
            lost = lost or (error if answer.approve is not None else None)  # of two results the first counts
        except InvalidInputError:
            if _key(answer) in waits:
                raise
    if lost is not None:
        raise lost
    last = max((asked[_key(answer)] for answer in answers), key=lambda event: event.seq)
    return call.client.run(session).turn(_get_root_turn(last)), last.seq


async def _read_waits(call: Call, session: str) -> Sequence[RunWait]:
    try:
        return (await read_waits(call.client, session))[0]
    except PerdureError:  # it has ended, or no worker answers
        return ()


def _key(answer: Answer) -> tuple[str, str, str]:
    return answer.run_id, answer.call_id, answer.hash


def _get_root_turn(event: Event) -> str:
    return (event.path[0].task_id if event.path else event.task_id) or ""


async def _find_last_turn(call: Call, session: str) -> int:
    """Return the number before the last turn; 0 if there is none."""
    try:
        turn = await find_present_turn(call.client, session)
    except RunNotFoundError:
        return 0
    return await find_turn_start(call.client, turn, await read_latest_seq(call.client, session)) or 0


async def _find_asked(call: Call, session: str, after: int) -> dict[tuple[str, str, str], Event]:
    """Return the events after number ``after`` that have asked for a decision or an answer, by run, call and hash."""
    asked: dict[tuple[str, str, str], Event] = {}
    async with aclosing(call.client.run(session).events(after, wait=False)) as events:
        async for event in events:
            if isinstance(event, ApprovalRequested | QuestionAsked):
                asked[event.context_id, event.call_id, event.hash] = event
    return asked


async def _answer_call(call: Call, answer: Answer, wait: RunWait | None) -> None:
    run, by = call.client.run(answer.run_id), call.by
    if answer.approve is None:
        await run.answer(answer.call_id, _read_value(answer.text, wait), hash=answer.hash, by=by)
    elif answer.approve:
        await run.approve(answer.call_id, comment=answer.text or None, hash=answer.hash, by=by)
    else:
        await run.deny(answer.call_id, comment=answer.text or None, hash=answer.hash, by=by)


def _read_value(text: str, wait: RunWait | None) -> Any:
    """Return the answer to a question in the form that it wants: JSON, where that is not a text."""
    form = None if wait is None or wait.call.kind != "question" else wait.call.form
    if form is None or form.get("type") == "string":
        return text
    try:
        return parse_json(text)
    except ValueError:
        return text  # the run says what it wants


async def _send(call: Call, request: Request, session: str, definition: Mapping[str, Any]) -> Acted:
    resource = await open_session(call, session, "send", "openai")
    before = await read_latest_seq(call.client, session)
    task_id, message_id = call.derive_id("turn"), call.derive_id("message")
    start = None
    if request.has_key and before:
        start = await _find_repeat(call, call.client.run(session).turn(task_id), message_id, before)
    if request.continues is not None and start is None:
        await _check_latest(call, session, (request.continues, task_id))
    turn = await _deliver(call, request, resource, session, definition)
    if turn.task_id == task_id:
        return Acted(turn, resource, 0, before if start is None else start, False, definition, call.caller)
    joined = await _find_message(call, session, message_id) if request.has_key else None
    after = before if joined is None else joined - 1
    return Acted(turn, resource, after, after, True, definition, call.caller)


async def _find_repeat(call: Call, turn: Turn[Any], message_id: str, before: int) -> int | None:
    """Return the number before the turn that a request with this key began earlier; None for a new one. Mostly it is
    the last turn, so its cost is that of one turn."""
    start = await find_turn_start(call.client, turn, before, is_last=True)
    if start is None and await is_known_turn(turn, message_id):
        start = await find_turn_start(call.client, turn, before)
    return start


async def _check_latest(call: Call, session: str, allowed: tuple[str, str]) -> None:
    """Refuse to continue from an earlier turn than the last: the model would see what came after it, too. ``allowed``
    are that turn, and the one that the request itself may have begun."""
    last = (await call.client.run(session).turn().status()).task_id
    if last not in ("", *allowed):
        raise WebError(
            "previous_response_id is not the last response of its conversation", status=409,
            name="PreviousResponseError", headers={"x-should-retry": "false"},
            hint="Continue the last one; POST /v1/sessions/{id}/fork makes another conversation of an earlier one.",
        )  # fmt: skip


async def _find_message(call: Call, session: str, message_id: str) -> int | None:
    async with aclosing(call.client.run(session).events(wait=False, children=False)) as events:
        async for event in events:
            if isinstance(event, MessageInjected) and event.id == message_id:
                return event.seq
    return None


async def _deliver(
    call: Call, request: Request, resource: Resource, session: str, definition: Mapping[str, Any]
) -> Turn[Any]:
    """Send the user's message: to a session that exists, or that it opens."""
    options = await _admit(call, request, resource)
    options["client_tools"] = request.tools
    if request.history:
        options["history"] = request.history
    idle = IDLE_SECONDS if split_run_id(session)[1].startswith(_OWN_PREFIX) else None
    message = await _build_message(call, request, session, definition)
    async with bound_delivery():
        return await call.client.send(
            call.params["agent"], message, id=session, message_id=call.derive_id("message"),
            task_id=call.derive_id("turn"), idle_timeout=idle, **options,
        )  # fmt: skip


async def _admit(call: Call, request: Request, resource: Resource) -> dict[str, Any]:
    """Return the options that the caller may give. Raises ``ParameterError`` for a setting that it may not."""
    override = {"settings": request.settings} if request.settings else None
    try:
        return await admit_start(call, resource, override=override)
    except FieldForbiddenError as error:
        param = error.field.removeprefix("settings.")
        raise ParameterError(error.message, param, code="unsupported_parameter", hint=error.hint) from None


async def _build_message(call: Call, request: Request, session: str, definition: Mapping[str, Any]) -> MessageInput:
    """Build the message; what the client adds to the agent's instructions stands before it, unless it is there."""
    content = request.content or []
    if definition.get("input") is not None:
        if request.system:
            raise ParameterError("An agent with an input type takes no instructions", "instructions")
        try:
            given = parse_json("".join(part.text for part in content if isinstance(part, TextPart)))
        except ValueError as flaw:
            raise InvalidInputError(f"the agent takes JSON of its input type, and the message is not: {flaw}") from None
        if not isinstance(given, dict):
            raise InvalidInputError("the agent takes a JSON object of its input type")
        return given
    parts: list[Any] = [part.text if isinstance(part, TextPart) else part for part in content]
    if request.system and not await _has_system(call, session, request.system):
        parts.insert(0, EngineText(f"{enclose_text('system', request.system)}\n\n"))
    if not parts:  # the model is asked to go on
        return ""
    return parts[0] if len(parts) == 1 and isinstance(parts[0], str) else parts


async def _has_system(call: Call, session: str, system: str) -> bool:
    """Whether a message of the session has these instructions already."""
    if await read_latest_seq(call.client, session) == 0:
        return False
    block = enclose_text("system", system)
    messages = await call.client.run(session).transcript(full=True)
    return any(message.role == "user" and block in message.text for message in messages)
