"""Lists: agents, sessions, and what a session consists of: its items, turns and subagents; and the deletion of one."""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Any, cast

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, JsonValue
from starlette.responses import Response

from ..client.follow import list_child_runs
from ..client.pages import MAX_PAGE, decode_cursor, encode_cursor, gather_bounded
from ..client.run_pages import RunFilters, list_run_page
from ..client.run_states import RunSummary
from ..errors import RunNotFoundError, TranscriptCorruptedError
from ..ports.store import AgentRow, Store
from ..types.interface import HeldUp
from ..types.messages import NAME_CHARS, FilePart, Message, OpaquePart, Part, ToolResultPart
from ..types.run_states import RunState, StateFilter
from .auth import Resource
from .operations import Call, Input, Operation
from .problems import build_unknown_agent_error

SEARCH_CHARS = 200
"""Most characters of a search."""
PAGE_BYTES = 4_000_000
"""Bytes of items after which a page ends."""


def _check_iso(value: Any) -> Any:
    if isinstance(value, str) and not re.match(r"\d{4}-\d\d-\d\d", value):  # pydantic takes numbers for Unix times
        raise ValueError("a time is ISO 8601, as 2026-01-31T12:00:00Z")
    return value


def _convert_to_utc(at: datetime) -> datetime:
    try:
        return (at if at.tzinfo is not None else at.replace(tzinfo=UTC)).astimezone(UTC)
    except OverflowError:
        raise ValueError("there is no such time in UTC") from None


Instant = Annotated[datetime, BeforeValidator(_check_iso), AfterValidator(_convert_to_utc)]
"""A time of a query: ISO 8601; without an offset it is UTC."""


class PageQuery(Input):
    """Which page of a list."""

    limit: int = Field(default=50, ge=1, le=MAX_PAGE)
    cursor: str | None = None
    """``cursor`` of the page before."""


def answer_unchanged(call: Call, tag: str) -> Response | None:
    """Set the ``ETag`` of the answer; return 304 if the caller has that one already."""
    etag = f'"{tag}"'
    call.headers |= {"ETag": etag, "Cache-Control": "private, no-cache", "Vary": "Authorization"}
    known = ",".join(call.request.headers.getlist("if-none-match"))
    names = {name.strip().removeprefix("W/") for name in known.split(",")}
    return Response(status_code=304) if etag in names or "*" in names else None


def _hash_texts(*texts: str) -> str:
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()[:32]


# ---
# Agents: the definitions that workers have recorded.


class AgentVersion(BaseModel):
    """A definition of an agent that workers have served."""

    hash: str
    created_at: str
    seen_at: str
    """When a worker that serves it has last started."""


class AgentSummary(AgentVersion):
    """An agent, by its newest definition."""

    name: str
    description: str | None = None
    models: list[str] = []
    tools: list[str] = []
    versions: int = 1
    """Number of recorded definitions."""


class AgentList(BaseModel):
    """Agents by name."""

    data: list[AgentSummary]


class AgentDetails(BaseModel):
    """An agent: its newest definition, as the author has written it, and the versions before, the newest first."""

    name: str
    hash: str
    definition: dict[str, JsonValue]
    """Instructions, tools with their schemas, limits, approvals, schemas of context, input and output."""
    versions: list[AgentVersion]


async def read_visible_agents(call: Call, name: str | None = None) -> dict[str, list[AgentRow]]:
    """Return the definitions that the caller may see, or those of ``name``, by name, the newest first."""
    definitions: dict[str, list[AgentRow]] = {}
    for row in await (await call.client.store()).list_agents(name):
        definitions.setdefault(row.name, []).append(row)
    return {
        name: rows for name, rows in definitions.items() if await call.may("read", Resource("agent", name, agent=name))
    }


async def read_callable_agents(call: Call, name: str | None = None) -> dict[str, AgentRow]:
    """Return the newest definitions of the agents that the caller may see, by name, without internal ones: those that
    only other agents call."""
    newest = {name: rows[0] for name, rows in (await read_visible_agents(call, name)).items()}
    return {name: row for name, row in newest.items() if not json.loads(row.body).get("internal")}


def _hash_rows(rows: Sequence[AgentRow]) -> str:
    return _hash_texts(*(text for row in rows for text in (row.name, row.hash, row.seen_at)))


async def list_agents(call: Call) -> BaseModel | Response:
    """List the agents that workers have served, each by its newest definition."""
    agents = await read_visible_agents(call)
    tag = _hash_rows([row for rows in agents.values() for row in rows])
    return answer_unchanged(call, tag) or AgentList(data=[_summarize_agent(rows) for rows in agents.values()])


def _summarize_agent(rows: Sequence[AgentRow]) -> AgentSummary:
    newest = rows[0]
    definition = json.loads(newest.body)
    return AgentSummary(
        name=newest.name,
        hash=newest.hash,
        created_at=newest.created_at,
        seen_at=newest.seen_at,
        description=definition.get("description"),
        models=[str(model) for model in definition.get("models", ())],
        tools=[tool["name"] for tool in definition.get("tools", ())],
        versions=len(rows),
    )


async def get_agent(call: Call) -> BaseModel | Response:
    """Get an agent: its newest definition and its versions."""
    name = call.params["name"]
    rows = (await read_visible_agents(call, name)).get(name)
    if not rows:
        raise build_unknown_agent_error(name)
    versions = [AgentVersion(hash=row.hash, created_at=row.created_at, seen_at=row.seen_at) for row in rows]
    return answer_unchanged(call, _hash_rows(rows)) or AgentDetails(
        name=name, hash=rows[0].hash, definition=json.loads(rows[0].body), versions=versions
    )


# ---
# Sessions.


class RunsQuery(Input):
    """Which sessions: the filters of a list, and of a bulk action."""

    agent: str | None = Field(default=None, min_length=1, max_length=NAME_CHARS)
    status: StateFilter | None = None
    """``open`` is any that has not ended; ``waiting`` and ``paused`` need the attributes of ``perdure server
    setup``."""
    tenant: str | None = Field(default=None, min_length=1, max_length=NAME_CHARS)
    user: str | None = Field(default=None, min_length=1, max_length=NAME_CHARS)
    started_from: Instant | None = None
    """Those that have started at this time or later; without an offset it is UTC."""
    started_before: Instant | None = None
    updated_from: Instant | None = None
    """Those whose last step was recorded at this time or later."""
    error: str | None = Field(default=None, min_length=1, max_length=NAME_CHARS)
    """The class of the error that they failed with, as ``error.type`` of a row."""
    search: str | None = Field(default=None, min_length=1, max_length=SEARCH_CHARS)
    """Words that are in the id, in the first message or in the error; letters of ASCII in either case."""
    children: bool = False
    """Also the sessions of subagents."""


class SessionsQuery(RunsQuery, PageQuery):
    """Which sessions, and which page of them."""


class SessionError(BaseModel):
    """What a session, or its last turn, failed with."""

    type: str
    """The class of the error."""
    message: str
    """At most 500 characters of its text."""


class SessionRow(BaseModel):
    """A session in a list."""

    id: str
    agent: str
    status: RunState
    held_up: list[HeldUp] | None = None
    """What holds it up, or one of its subagents, the oldest first; missing if nothing does."""
    started: str | None = None
    """ISO 8601, UTC; with a status that Temporal alone knows, the start of its last execution. Lists are in the order
    in which the first steps were recorded."""
    closed: str | None = None
    tenant: str | None = None
    user: str | None = None
    first_message: str | None = None
    """The beginning of the message that the session began with, on one line, at most 200 characters; missing until the
    first step is recorded."""
    error: SessionError | None = None


class SessionList(BaseModel):
    """A page of sessions. ``cursor`` begins the next page, and is missing at the end; a page may have fewer rows than
    ``limit``, even none, before the end."""

    data: list[SessionRow]
    cursor: str | None = None


async def list_sessions(call: Call) -> SessionList:
    """List sessions, the newest start first; with a status that Temporal alone knows, in the order of its list."""
    query = cast(SessionsQuery, call.query)
    tenant = query.tenant or call.caller.tenant

    async def visible(run: RunSummary) -> bool:
        return await call.may("read", Resource("session", run.id, run.agent, run.tenant, run.user))

    filters = build_run_filters(query, tenant)
    page = await list_run_page(call.client, filters, limit=query.limit, cursor=query.cursor, visible=visible)
    return SessionList(data=[_build_session_row(run) for run in page.runs], cursor=page.cursor)


def build_run_filters(query: RunsQuery, tenant: str | None) -> RunFilters:
    """Build the filters of a list of runs for the client."""
    return RunFilters(
        agent=query.agent,
        status=query.status,
        tenant=tenant,
        user=query.user,
        roots=not query.children,
        started_from=query.started_from,
        started_before=query.started_before,
        updated_from=query.updated_from,
        error=query.error,
        search=query.search,
    )


def _build_session_row(run: RunSummary) -> SessionRow:
    return SessionRow(
        id=run.id,
        agent=run.agent,
        status=cast(RunState, run.status),
        held_up=list(run.held_up) or None,
        started=None if run.started is None else run.started.isoformat(),
        closed=None if run.closed is None else run.closed.isoformat(),
        tenant=run.tenant,
        user=run.user,
        first_message=run.first_message,
        error=None if run.error_type is None else SessionError(type=run.error_type, message=run.error or ""),
    )


async def delete_session(call: Call) -> None:
    """Delete a session that has ended, and its subagents, from the store, and from Temporal if that allows it."""
    await call.client.delete(call.params["id"], by=call.by)


# ---
# Items: the messages of a session.


class ItemsQuery(Input):
    """Which items."""

    full: bool = False
    """Also messages that a summary or an edit has replaced."""
    after: int = Field(default=-1, ge=-1, le=2**31)
    """Index of the last item that was seen."""
    limit: int = Field(default=50, ge=1, le=MAX_PAGE)


class Item(BaseModel):
    """A message of a session."""

    model_config = ConfigDict(extra="allow")

    index: int
    role: str
    parts: list[dict[str, Any]]
    """By ``type``: text, thinking, tool_call, tool_result, file."""


class ItemPage(BaseModel):
    """A page of messages."""

    data: list[Item]
    head: str | None
    """Names the transcript up to its last message."""
    total: int
    last: int
    """``after`` of the next page."""
    has_more: bool


async def list_items(call: Call) -> Response:
    """List the messages of a session; large texts and files are references (``blob``)."""
    query = cast(ItemsQuery, call.query)
    store = await call.client.store()
    head = await call.run.read_head(store)
    if (unchanged := answer_unchanged(call, _hash_texts(str(head), repr(query)))) is not None:
        return unchanged
    messages, total = await call.web.transcripts.read(
        store, call.params["id"], head, after=query.after, limit=query.limit, full=query.full
    )
    body = await asyncio.to_thread(_encode_items, messages, total, query.after, head)
    return Response(body, media_type="application/json")


def _encode_items(messages: Sequence[Message], total: int, after: int, head: str | None) -> bytes:
    """Encode a page: the items behind ``after``, at most about 4 MB."""
    page: list[bytes] = []
    size, last = 0, after
    for last, message in enumerate(messages, after + 1):
        page.append(_encode_item(last, message))
        size += len(page[-1])
        if size > PAGE_BYTES:
            break
    facts = {"head": head, "total": total, "last": last, "has_more": last + 1 < total}
    return b'{"data":[%s],%s' % (b",".join(page), json.dumps(facts).encode()[1:])


def _encode_item(index: int, message: Message) -> bytes:
    """Encode a message without what only its provider reads."""
    parts = [_describe_part(part) for part in message.parts if not isinstance(part, OpaquePart)]
    fields = message.model_dump(mode="json", exclude_defaults=True, exclude={"parts", "role", "withheld", "replaces"})
    withheld = [{"what": item.what, "reason": item.reason} for item in message.withheld]
    item = {"index": index, "role": message.role, "parts": parts, **fields}
    item |= {"withheld": withheld} if withheld else {}
    item |= {"replaces": message.replaces.messages} if message.replaces is not None else {}
    return json.dumps(item, ensure_ascii=False).encode(errors="replace")


@dataclass(frozen=True, slots=True)
class GivenResults:
    """Results of a tool that a person gave in its place."""

    tool: str
    by: str
    """Empty if unknown."""
    count: int


MAX_GIVEN_ROWS = 20


async def read_given_results(call: Call) -> list[GivenResults]:
    """Read which tool results of a session, also of replaced messages, were given by people: by a fork, in an imported
    history, or in answer to a call. At most the first ``MAX_GIVEN_ROWS`` tools and people; none where the transcript
    cannot be read."""
    store, session = await call.client.store(), call.params["id"]
    try:
        head = await call.run.read_head(store)
        messages, _ = await call.web.transcripts.read(store, session, head, after=-1, limit=sys.maxsize, full=True)
    except (RunNotFoundError, TranscriptCorruptedError):
        return []
    given = Counter(
        (part.name, part.given_by) for message in messages for part in message.tool_results if part.given_by is not None
    )
    return [GivenResults(name, by, count) for (name, by), count in list(given.items())[:MAX_GIVEN_ROWS]]


def _describe_part(part: Part) -> dict[str, Any]:
    fields: dict[str, Any] = part.model_dump(
        mode="json", exclude_defaults=True, exclude={"opaque", "provider", "provider_id", "files", "data"}
    )
    if isinstance(part, ToolResultPart) and part.files:
        fields["files"] = [_describe_part(file) for file in part.files]
    if isinstance(part, FilePart) and part.url is not None:
        fields["url"] = part.url
    return {"type": part.type, **fields}


# ---
# Turns and subagents.


class TurnRow(BaseModel):
    """A turn in a list."""

    task_id: str
    state: str
    """running, completed, failed or cancelled, as the store has it."""
    started: str
    """ISO 8601, UTC: when the turn was first recorded, with its first reply."""
    updated: str


class TurnList(BaseModel):
    """A page of turns, the newest first."""

    data: list[TurnRow]
    cursor: str | None = None


async def list_turns(call: Call) -> TurnList:
    """List the turns of a session, the newest first; a turn is recorded with its first reply."""
    query, session = cast(PageQuery, call.query), call.params["id"]
    after = decode_cursor("turns", {"id": session}, query.cursor, 2) if query.cursor is not None else None
    store = await call.client.store()
    rows = await store.list_turns(session, after=None if after is None else (after[0], after[1]), limit=query.limit + 1)
    shown = rows[: query.limit]
    place = (shown[-1].created_at, shown[-1].task_id) if len(rows) > query.limit else None
    return TurnList(
        data=[
            TurnRow(task_id=row.task_id, state=row.status, started=row.created_at, updated=row.updated_at)
            for row in shown
        ],
        cursor=None if place is None else encode_cursor("turns", {"id": session}, place),
    )


class Subagent(BaseModel):
    """A run that a call, or a branch of a step, of the session has started."""

    id: str
    agent: str | None = None
    """None for one that was not allowed to start, or has not begun yet."""
    status: str | None = None
    """As the store has it."""
    background: bool = False
    started: str | None = None


class SubagentList(BaseModel):
    """A page of subagents, in the order of their calls."""

    data: list[Subagent]
    cursor: str | None = None


async def list_subagents(call: Call) -> SubagentList:
    """List the runs that the session's calls of other agents have started, in their order."""
    query, session = cast(PageQuery, call.query), call.params["id"]
    place = decode_cursor("subagents", {"id": session}, query.cursor, 1) if query.cursor is not None else [""]
    children = await list_child_runs(call.run)
    ids = list(children)
    start = ids.index(place[0]) + 1 if place[0] in children else 0
    page = ids[start : start + query.limit]
    store = await call.client.store()
    rows = await gather_bounded(lambda name: _read_subagent(store, name, children), page)
    more = start + len(page) < len(ids)
    return SubagentList(
        data=rows, cursor=encode_cursor("subagents", {"id": session}, [page[-1]]) if more and page else None
    )


async def _read_subagent(store: Store, id: str, background: Mapping[str, bool]) -> Subagent:
    row = await store.get_run(id)
    found = {} if row is None else {"agent": row.agent, "status": row.status, "started": row.created_at}
    return Subagent(id=id, background=background[id], **found)


OPERATIONS = [
    Operation("GET", "/agents", list_agents, "read", answer=AgentList, kind="agent", tag="agents"),
    Operation("GET", "/agents/{name:segment}", get_agent, "read", answer=AgentDetails, kind="agent", tag="agents"),
    Operation("GET", "/sessions", list_sessions, "read", query=SessionsQuery, answer=SessionList),
    Operation("DELETE", "/sessions/{id:segment}", delete_session, "operate", status=204),
    Operation("GET", "/sessions/{id:segment}/items", list_items, "read", query=ItemsQuery, answer=ItemPage),
    Operation("GET", "/sessions/{id:segment}/turns", list_turns, "read", query=PageQuery, answer=TurnList),
    Operation("GET", "/sessions/{id:segment}/subagents", list_subagents, "read", query=PageQuery, answer=SubagentList),
]
