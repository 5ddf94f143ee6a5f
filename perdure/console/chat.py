"""The chat: a playground for the agents that a caller may send to, which are those of the store's table.

A session has an address of its own, and is a run like any other: its transcript, what is live and what is decided in it
are those of the run's page and the inbox. Here are the composer, typed input as a form, files, changes of the agent,
and the calls that wait, with their forms in the place where they happen.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, cast
from urllib.parse import quote

from markupsafe import Markup
from starlette.responses import Response

from ..client.pages import gather_bounded
from ..errors import InvalidInputError, PerdureError, RunNotFoundError
from ..ports.store import Store
from ..types.approvals import hash_arguments
from ..types.interface import Status
from ..types.messages import NAME_CHARS, Usage
from ..types.run_states import OPEN_STATES
from ..web.app import MAX_CONSOLE_UPLOAD_BYTES
from ..web.auth import Resource
from ..web.files import store_upload
from ..web.limits import get_caller_key
from ..web.lists import SessionRow, SessionsQuery, list_sessions, read_visible_agents
from ..web.operations import Call, validate
from ..web.problems import ForbiddenError, NotFoundError, build_problem
from ..web.sessions import NewSession, SessionEvent, create_session, post_event
from .access import MAX_FILES, Form
from .decisions import STATUS_SECONDS, Outcome, describe_decision, find_outcome
from .event_window import read_first_message
from .forms import Field, build_answer_fields, build_fields, find_tool_schema, parse_json_field, read_group
from .inbox import count_pending, decide_call, find_decided, has_started
from .inbox import show_call as show_inbox_call
from .inbox import show_outcome as show_inbox_outcome
from .pages import Page, PageRoute, build_context, build_templates
from .run import PATIENT_SECONDS, follow_page, read_nonce, read_status, read_view
from .texts import render_in_thread
from .transcript import Block, CallBlock, NoteBlock

_SESSIONS = 8
"""Sessions of an agent that its page lists."""
_TITLE_CHARS = 90
_QUIET_NOTES = ("Run started", "Waits for the next message", "Resumed")
"""Notes of a transcript that a chat leaves out."""
_IDLE_TYPES = ("", "application/octet-stream")
"""Content types by which a browser says that it does not know a file's type."""


# ---
# Agents.


@dataclass(frozen=True)
class ChatAgent:
    """An agent as its chat knows it: by the newest definition that a worker has recorded."""

    name: str
    description: str = ""
    models: Sequence[str] = ()
    tools: Sequence[str] = ()
    input: Mapping[str, Any] | None = None
    """JSON Schema of its input, if it takes one that is not text."""
    context: Mapping[str, Any] | None = None
    seen_at: str | None = None
    internal: bool = False
    """Whether only other agents call it."""

    @property
    def input_fields(self) -> list[Field]:
        """The form of its input."""
        return [] if self.input is None else build_fields(self.input, {}, "input")

    @property
    def context_fields(self) -> list[Field]:
        """The form of its context."""
        return [] if self.context is None else build_fields(self.context, {}, "context")


def _build_agent(name: str, body: bytes, seen_at: str) -> ChatAgent:
    definition = json.loads(body)
    schemas = {key: value for key in ("input", "context") if isinstance(value := definition.get(key), Mapping)}
    return ChatAgent(
        name,
        definition.get("description") or "",
        tuple(str(model) for model in definition.get("models", ())),
        tuple(str(tool["name"]) for tool in definition.get("tools", ())),
        seen_at=seen_at,
        internal=bool(definition.get("internal")),
        **schemas,
    )


async def _list_agents(call: Call) -> list[ChatAgent]:
    """List the agents that the caller may send to."""
    rows = [rows[0] for rows in (await read_visible_agents(call)).values()]
    agents = [
        _build_agent(row.name, row.body, row.seen_at)
        for row in rows
        if await call.may("send", Resource("agent", row.name, agent=row.name))
    ]
    return [agent for agent in agents if not agent.internal]


async def _find_agent(call: Call, name: str) -> ChatAgent | None:
    rows = (await read_visible_agents(call)).get(name)
    return _build_agent(name, rows[0].body, rows[0].seen_at) if rows else None


async def show_agents(page: Page) -> Response:
    """Show the agents that the caller may chat with: all, or those with ``text`` in the name or description."""
    agents, text = await _list_agents(page.call), page.request.query_params.get("text", "").strip()[:NAME_CHARS]
    shown = [agent for agent in agents if text.lower() in f"{agent.name}\n{agent.description or ''}".lower()]
    count = await count_pending(page)
    return page.render("chat_agents.html", agents=shown, total=len(agents), text=text, count=count)


# ---
# A new session.


@dataclass(frozen=True)
class SessionLink:
    """A session of a list, with the beginning of its first message."""

    session: SessionRow
    title: str


async def _list_sessions(page: Page, agent: str) -> list[SessionLink]:
    query = SessionsQuery(agent=agent, limit=_SESSIONS)
    listed = await list_sessions(replace(page.call, query=query))
    store = await page.call.client.store()
    return await gather_bounded(lambda row: _read_link(store, row), listed.data)


async def _read_link(store: Store, row: SessionRow) -> SessionLink:
    message = await read_first_message(store, row.id)
    if message is None:
        return SessionLink(row, "")
    text = " ".join(message.content.split())
    files = f"{len(message.files)} file{'' if len(message.files) == 1 else 's'}" if message.files else ""
    return SessionLink(row, text[:_TITLE_CHARS] + ("…" if len(text) > _TITLE_CHARS else "") or files)


async def show_new(page: Page) -> Response:
    """Show the page where a session with an agent begins."""
    return await _show_new(page)


async def _show_new(page: Page, problem: Mapping[str, Any] | None = None, status: int = 200) -> Response:
    name = page.call.params["agent"]
    agent = await _find_agent(page.call, name)
    if agent is None:
        raise NotFoundError(f"there is no agent {name!r:.200}")
    return page.render(
        "chat_new.html",
        status=status,
        agent=agent,
        sessions=await _list_sessions(page, name),
        may_send=not agent.internal and await page.call.may("send", Resource("agent", name, agent=name)),
        tenants=page.call.caller.tenants or (),
        count=await count_pending(page),
        **_build_composer(page, problem),
        **await _read_rights(page, Resource("agent", name, agent=name)),
    )


async def _read_rights(page: Page, resource: Resource) -> dict[str, bool]:
    """Read which parts of the composer the caller may use: what it may not is not shown."""
    operates = await page.call.may("operate", resource)
    terms = await page.call.web.terms.find(page.call.client, resource.agent or "")
    return {
        "may_change": operates or bool(terms.overrides),
        "may_name_user": operates or "user" in terms.claims,
        "may_give_context": operates or "context" in terms.claims,
    }


def _build_composer(page: Page, problem: Mapping[str, Any] | None) -> dict[str, Any]:
    """Build what the composer shows: after a problem, what was typed. Files have to be chosen again."""
    values = page.form if problem is not None else Form([])
    bounds = {"max_files": MAX_FILES, "max_bytes": MAX_CONSOLE_UPLOAD_BYTES}
    return {"values": values, "problem": problem, "nonce": uuid.uuid4().hex, **bounds}


async def start(page: Page) -> Response:
    """Start a session with its first message."""
    name = page.call.params["agent"]
    call = _repeatable(page)
    try:
        agent = await _find_agent(page.call, name)
        if agent is None:
            raise NotFoundError(f"there is no agent {name!r:.200}")
        labels = {key: value for key in ("tenant", "user") if (value := page.form.get(key).strip())}
        new = Resource("session", None, name, labels.get("tenant"))
        if not await page.call.may("send", new):
            raise ForbiddenError(f"{page.call.by!r:.200} may not start agent {name!r:.200}")
        fields: dict[str, Any] = {"agent": name, **labels, **await _read_message(page, call, agent)}
        rights = await _read_rights(page, Resource("agent", name, agent=name))
        if agent.context is not None and rights["may_give_context"]:
            fields["context"] = read_group(page.form, agent.context, "context")
        fields["override"] = _read_override(page.form)
        call = replace(call, body=validate(NewSession, fields, "the form"))
        await create_session(call)
    except PerdureError as error:
        problem = _describe_problem(page, error)
        return await _show_new(page, problem, problem["status"])
    assert call.resource is not None, "that of the new session"
    return page.redirect(_get_path(name, call.caller.show_id(str(call.resource.id))))


def _repeatable(page: Page) -> Call:
    """Return the call of a form that is sent twice, as by a second press: it counts once."""
    key = f"console/{page.call.scope}/{page.request.url.path}/{read_nonce(page.form.get('nonce'))}"
    return replace(page.call, key=key)


def _describe_problem(page: Page, error: PerdureError) -> dict[str, Any]:
    """Describe an error beside the form that led to it. Raises it where that is of no use."""
    problem = build_problem(error)
    if page.wants_fragment or problem.status_code in (401, 403, 404, 500):
        raise error
    fields = json.loads(bytes(problem.body))
    return {"status": problem.status_code, "detail": fields["detail"], "hint": fields.get("hint")}


def _get_path(agent: str, session: str) -> str:
    return f"/chat/{quote(agent, safe='')}/{quote(session, safe='')}"


# ---
# What the composer sends.


async def _read_message(page: Page, call: Call, agent: ChatAgent) -> dict[str, Any]:
    """Read the message of a form: text and files, or typed input. Raises ``InvalidInputError``."""
    form = page.form
    if form.get("action") == "input" and agent.input is not None:
        return {"input": read_group(form, agent.input, "input")}
    text = form.get("text")
    if not text.strip() and not form.files:
        raise InvalidInputError("the message is empty", hint="Write one, or attach a file.")
    if not form.files:
        return {"content": text}
    await call.authorize("send", "upload_file", Resource("file"))
    parts: list[dict[str, Any]] = [{"type": "text", "text": text}] if text.strip() else []
    key = get_caller_key(call.caller)
    for file in form.files:
        size = file.size or 0
        call.web.held.take(size, key)
        try:
            media_type = file.content_type if file.content_type not in _IDLE_TYPES else None
            stored = await store_upload(call, await file.read(), file.filename, media_type)
        finally:
            call.web.held.release(size, key)
        parts.append(stored.model_dump(mode="json"))
    return {"content": parts}


def _read_override(form: Form) -> dict[str, Any] | None:
    """Read the changes of the agent; None for none. Their values are checked where a session or a turn is begun."""
    override: dict[str, Any] = {}
    if more := form.get("more").strip():
        given = parse_json_field("more changes", more)
        if not isinstance(given, dict):
            raise InvalidInputError("more changes: they are an object", hint='For instance {"max_iterations": 5}.')
        override |= given
    override |= {name: value for name in ("model", "instructions") if (value := form.get(name).strip())}
    settings = {
        name: parse_json_field(name.replace("_", " "), value, must_be_number=True)
        for name in ("temperature", "max_tokens")
        if (value := form.get(name).strip())
    }
    if settings:
        before = override.get("settings")
        override["settings"] = {**(before if isinstance(before, dict) else {}), **settings}
    if (chosen := form.get_all("tool")) != form.get_all("listed_tool"):
        override["tools"] = chosen
    return override or None


# ---
# A session.


async def _open_session(page: Page) -> Resource:
    """Return the session of the path. Raises ``NotFoundError`` if it is another agent's: its own address names that."""
    resource = page.call.resource or Resource("session", page.call.params["id"])
    if resource.agent is not None and resource.agent != page.call.params["agent"]:
        raise NotFoundError("the session is another agent's")
    return resource


async def show_chat(page: Page) -> Response:
    """Show a session."""
    return await _show_chat(page)


async def _show_chat(page: Page, problem: Mapping[str, Any] | None = None, status: int = 200) -> Response:
    resource = await _open_session(page)
    view = await read_view(page)
    name = page.call.params["agent"]
    agent = await _find_agent(page.call, name) or ChatAgent(name)
    blocks = list(view.transcript.blocks.values())
    return page.render(
        "chat.html",
        status=status,
        agent=agent,
        resource=resource,
        view=view,
        html=await render_chat_blocks(page, blocks),
        may_send=not agent.internal and await page.call.may("send", resource),
        count=await count_pending(page),
        **await _read_rights(page, resource),
        **await _build_state(page),
        **_build_composer(page, problem),
    )


async def _build_state(page: Page, seconds: float = STATUS_SECONDS) -> dict[str, Any]:
    """Build the line above the composer. ``seconds``: how long the run may take to say what it does."""
    status, row = await read_status(page, seconds), None
    if status is None:
        row = await (await page.call.client.store()).get_run(page.call.params["id"])
    state = status.state if status is not None else row.status if row is not None else "unknown"
    return {
        "run_id": page.call.params["id"],
        "chat_path": page.base + _get_path(page.call.params["agent"], page.call.caller.show_id(page.call.params["id"])),
        "run": status,
        "state": state,
        "is_open": state in OPEN_STATES,
        "is_busy": status is not None and _is_busy(status),
        "may_stop": await page.call.may("send", page.call.resource or Resource("session")),
        "usage": status.usage if status is not None else Usage(),
    }


def _is_busy(status: Status) -> bool:
    """Whether a turn is in progress, which can be stopped."""
    return status.state in ("running", "held_up", "waiting") and status.doing not in ("message", "nothing", "closing")


async def show_state(page: Page) -> Response:
    """Show the line above the composer, for the page's script."""
    return page.render("chat_state.html", **await _build_state(page, PATIENT_SECONDS))


async def show_earlier(page: Page) -> Response:
    """Show the blocks before a number, for the page's script."""
    view = await read_view(page)
    html = await render_chat_blocks(page, list(view.transcript.blocks.values()))
    state = await _build_state(page)
    return page.render("chat_earlier.html", view=view, html=html, **state)


async def send(page: Page) -> Response:
    """Send a message to the session, or stop its turn."""
    await _open_session(page)
    call = _repeatable(page)
    name = page.call.params["agent"]
    await call.authorize("send", "message")
    try:
        if page.form.get("action") == "stop":
            event: dict[str, Any] = {"type": "interrupt", "content": page.form.get("text").strip() or None}
        else:
            agent = await _find_agent(page.call, name) or ChatAgent(name)
            event = {"type": "message", **await _read_message(page, call, agent)}
            event["override"] = _read_override(page.form)
        await post_event(replace(call, body=validate(SessionEvent, event, "the form")))
    except PerdureError as error:
        problem = _describe_problem(page, error)
        return await _show_chat(page, problem, problem["status"])
    if page.wants_fragment:
        return page.render("chat_state.html", **await _build_state(page))
    return page.redirect(_get_path(name, page.call.caller.show_id(page.call.params["id"])))


# ---
# The transcript, with the forms of what waits.


@dataclass(frozen=True)
class WaitForms:
    """A call of the transcript that waits, with its forms; ``outcome`` if it was decided since."""

    block: CallBlock
    is_approval: bool
    may_decide: bool
    is_whole: bool
    """Whether the block shows what the hash is of: it can be decided here."""
    fields: Sequence[Field] = ()
    answer_fields: Sequence[Field] = ()
    expires: str | None = None
    on_expiry: str = "deny"
    separate: bool = False
    is_own: bool = False
    """Whether who looks at it has started the conversation."""
    outcome: Outcome | None = None
    key: str = field(default_factory=lambda: uuid.uuid4().hex[:8])
    """Makes the ids of its fields unique on the page."""

    @property
    def omitted(self) -> list[Field]:
        """The arguments that the call does not give."""
        return [known for known in self.fields if known.name not in (self.block.arguments or {})]


async def _find_waits(page: Page, blocks: Sequence[Block]) -> dict[str, WaitForms]:
    open_calls = [
        block
        for block in blocks
        if isinstance(block, CallBlock) and block.state in ("approval", "question", "callback")
    ]
    if not open_calls:
        return {}
    with suppress(RunNotFoundError):
        status, is_own = await read_status(page), await has_started(page)
        return {block.key: await _build_wait(page, block, status, is_own=is_own) for block in open_calls}
    return {}


async def _build_wait(page: Page, block: CallBlock, status: Status | None, *, is_own: bool) -> WaitForms:
    is_approval = block.state == "approval"
    resource = page.call.resource or Resource("session")
    pending = None if status is None else next((one for one in status.approvals if one.call_id == block.call_id), None)
    decided = None if status is None or pending is not None else find_decided(status, block.call_id)
    outcome = None
    if decided is not None and decided.at >= block.asked[:19]:
        title, text, tone = describe_decision(decided, page.call.by)
        outcome = Outcome("", tone, title, text, at=decided.at)
    elif is_approval and block.hash:
        deferred = await find_outcome(page, page.call.params["id"], block.call_id, block.hash)
        outcome = deferred if deferred is not None and deferred.is_pending else None
    arguments = block.arguments
    is_whole = bool(block.hash) and (
        not is_approval
        or (arguments is not None and hash_arguments(block.call_id, block.name, arguments) == block.hash)
    )
    may = await page.call.may("decide" if is_approval else "send", resource)
    fields: list[Field] = []
    if is_approval and may and is_whole:
        schema = await find_tool_schema(page.call, page.call.params["agent"], block.name)
        fields = build_fields(schema, cast(Mapping[str, Any], arguments))
    return WaitForms(
        block,
        is_approval,
        may,
        is_whole,
        fields,
        build_answer_fields(block.form) if not is_approval else (),
        None if pending is None else pending.expires,
        "deny" if pending is None else pending.on_expiry,
        pending is not None and pending.separate,
        is_own,
        outcome,
    )


async def render_chat_blocks(page: Page, blocks: Sequence[Block]) -> Sequence[Markup]:
    """Render blocks as a chat shows them."""
    waits = await _find_waits(page, blocks)
    context = build_context(page.request, page.visitor)
    template = build_templates().get_template("chat_block.html")
    run_id, agent = page.call.params["id"], page.call.params["agent"]
    values = {"run_id": run_id, "chat_path": f"{page.base}{_get_path(agent, page.call.caller.show_id(run_id))}"}

    def render(block: Block) -> Markup:
        if isinstance(block, NoteBlock) and block.title in _QUIET_NOTES:
            return Markup()
        return Markup(template.render(context, block=block, wait=waits.get(block.key), **values))  # noqa: S704  # escaped

    return await render_in_thread(lambda: [render(block) for block in blocks])


async def follow_chat(page: Page) -> Response:
    """Follow a session: the blocks that change, as HTML, and pieces of text."""
    await _open_session(page)
    return await follow_page(page, render_chat_blocks)


# ---
# Calls that wait.


async def show_call(page: Page) -> Response:
    """Show a call that waits on a page of its own: what a form of it that was refused leads to, without scripts."""
    await _open_session(page)
    return await show_inbox_call(page)


async def decide(page: Page) -> Response:
    """Decide on a call, or answer it, as the inbox does."""
    await _open_session(page)
    return await decide_call(
        page, back=_get_path(page.call.params["agent"], page.call.caller.show_id(page.call.params["id"]))
    )


async def show_outcome(page: Page) -> Response:
    """Show what became of a call that waits no longer, for the page's script."""
    await _open_session(page)
    return await show_inbox_outcome(page)


_SESSION = "/chat/{agent:segment}/{id:segment}"
_CALL = _SESSION + "/calls/{call_id:segment}"
PAGES = (
    PageRoute("GET", "/chat", show_agents, "chat_agents"),
    PageRoute("GET", "/chat/{agent:segment}", show_new, "chat_new"),
    PageRoute("POST", "/chat/{agent:segment}", start, "chat_start", takes_files=True),
    PageRoute("GET", _SESSION, show_chat, "chat"),
    PageRoute("POST", _SESSION, send, "chat_send", takes_files=True),
    PageRoute("GET", f"{_SESSION}/state", show_state, "chat_state"),
    PageRoute("GET", f"{_SESSION}/earlier", show_earlier, "chat_earlier"),
    PageRoute("GET", f"{_SESSION}/live", follow_chat, "chat_live"),
    PageRoute("GET", _CALL, show_call, "chat_call"),
    PageRoute("POST", _CALL, decide, "chat_decide"),
    PageRoute("GET", f"{_CALL}/outcome", show_outcome, "chat_outcome"),
)
