"""The page of a run: its transcript as it grows, where its time went, its subagents, and what can be done with it.

The page shows the last events; earlier ones are loaded backwards. What is live comes by Server-Sent Events as HTML that
is rendered here; ``id`` is the number of the event, so that a reader who was cut off goes on, on any replica.
"""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import quote, unquote

from starlette.responses import Response, StreamingResponse

from ..client.follow import follow_run
from ..client.pages import TranscriptPages
from ..client.run_states import refine_states
from ..client.visibility import build_run_summary
from ..errors import InvalidInputError, PerdureError, RunNotFoundError
from ..ports.store import RunRow, Store
from ..ports.times import format_utc_now
from ..ports.waits import RunWaits
from ..types.approvals import PendingKind
from ..types.events import Event, ModelCompleted, ModelDelta
from ..types.interface import Status
from ..types.messages import Message, Usage
from ..types.run_ids import get_parent_id
from ..types.run_states import ENDED_STATES, OPEN_STATES
from ..types.visible_text import show_controls
from ..web.auth import Resource, Verb
from ..web.files import get_file
from ..web.forks import NewFork, fork_session
from ..web.lists import PageQuery, list_subagents
from ..web.operations import validate
from ..web.sessions import SessionEvent, build_session, post_event
from ..web.sse import RECONNECT_MS, EventStream, encode_event, encode_frame, parse_seq
from .attempts import describe_links
from .compare import find_origin
from .decisions import STATUS_SECONDS
from .event_window import Window, add_nodes, add_stored_parts, add_texts, logger, read_window
from .forms import find_tool, summarize_changed
from .inbox import count_pending
from .pages import HEADERS, Page, PageRoute, build_context, build_templates
from .texts import render_in_thread
from .transcript import Block, CallBlock, NoteBlock, ReplyBlock, Transcript
from .waterfall import build_waterfall

PATIENT_SECONDS = 8.0
"""How long the script's request, and a page with ``wait``, waits for the run's own answer."""
_AROUND_EVENTS = 40
"""Events after the one that an address names."""
_LONG_RUN_EVENTS = 3_000
_TREE_RUNS = 40
_TREE_DEPTH = 4
_PINNED = 50
"""Waits that the page shows at its top."""
_INHERITED = 20
"""Messages of a fork's origin that its page shows."""


@dataclass(frozen=True)
class View:
    """What the page of a run shows."""

    transcript: Transcript
    window: Window
    inherited: Sequence[Message] = ()
    inherited_count: int = 0


async def read_view(page: Page, *, with_origin: bool = True) -> View:
    """Read the window that the address asks for: the end, what is before a number, or what is around one."""
    given = page.request.query_params
    before = parse_seq(given.get("before")) or None
    if at := parse_seq(given.get("at")):
        before = at + _AROUND_EVENTS
    store, run_id = await page.call.client.store(), page.call.params["id"]
    window = await read_window(store, run_id, before=before)
    transcript = Transcript().add_all(window.events)
    await add_stored_parts(page.call.client, transcript, window)
    await _update_summaries(page, transcript)
    inherited: Sequence[Message] = ()
    if window.first == 0 and with_origin:
        inherited = await _read_inherited(store, run_id, window.events)
    return View(transcript, window, inherited[-_INHERITED:], len(inherited))


async def _update_summaries(page: Page, transcript: Transcript) -> None:
    """Summarise calls that were approved with other arguments by these."""
    agent = (page.call.resource.agent if page.call.resource is not None else None) or ""
    for block in transcript.blocks.values():
        if isinstance(block, CallBlock) and block.decision is not None and block.decision.arguments is not None:
            tool = await find_tool(page.call, agent, block.name)
            block.summary = summarize_changed(tool, block.name, block.decision.arguments)


async def _read_inherited(store: Store, run_id: str, events: Sequence[Event]) -> Sequence[Message]:
    """Read the messages that a run has begun with: those of a fork's origin, or of an import."""
    first = next((event for event in events if isinstance(event, ModelCompleted) and event.head), None)
    if first is None or first.head is None:
        return ()
    own = sum(event.type == "message.injected" and event.seq < first.seq for event in events)
    messages = [message for message in await _read_messages(store, run_id, first.head) if message.role != "system"]
    replies = [index for index, message in enumerate(messages) if message.role == "assistant"]
    return messages[: max(replies[-1] - own, 0)] if replies else ()


async def _read_messages(store: Store, run_id: str, head: str) -> Sequence[Message]:
    """Read a conversation up to the node ``head``, with large texts as references."""
    return (await TranscriptPages().read(store, run_id, head, after=-1, limit=1_000_000))[0]


async def read_status(page: Page, seconds: float = STATUS_SECONDS) -> Status | None:
    """Read the run's status; None if it does not answer in time, as where no worker serves it: after 5 s its status
    says so."""
    task = asyncio.ensure_future(build_session(page.call, page.call.params["id"]))
    done, _ = await asyncio.wait([task], timeout=seconds)
    if not done:
        task.cancel()
        with suppress(asyncio.CancelledError, PerdureError):
            await task
        return None
    try:
        return task.result()
    except RunNotFoundError:  # Temporal has forgotten it
        return None


@dataclass(frozen=True)
class TreeNode:
    """A run in the tree of subagents."""

    id: str
    agent: str
    status: str
    depth: int


async def _read_tree(page: Page, id: str, view: View | None, depth: int = 0) -> list[TreeNode]:
    """Read the tree below a run. Of a long run whose ``view`` is given, only the subagents on the page: to list all,
    its whole log is read."""
    call = replace(page.call, params={"id": id}, query=PageQuery(limit=_TREE_RUNS))
    nodes: list[TreeNode] = []
    children = _list_shown_children(view) if view is not None and view.window.last > _LONG_RUN_EVENTS else None
    store = await page.call.client.store()
    for child in children if children is not None else [child.id for child in (await list_subagents(call)).data]:
        row, failures = await store.get_run(child), (await store.list_run_failures([child])).get(child, ())
        known = row or next((call for call in failures if call.context_id == child), None)
        if known is None:  # it has not begun
            continue
        resource = Resource("session", child, known.agent, known.tenant, known.user)
        if not await page.call.may("read", resource):
            continue
        nodes.append(TreeNode(child, known.agent, "held_up" if failures or row is None else row.status, depth))
        if depth < _TREE_DEPTH and len(nodes) < _TREE_RUNS:
            nodes += await _read_tree(page, child, None, depth + 1)
    return nodes[:_TREE_RUNS]


def _list_shown_children(view: View) -> list[str]:
    blocks = view.transcript.blocks.values()
    calls = [block.child for block in blocks if isinstance(block, CallBlock) and block.child is not None]
    return list(
        dict.fromkeys([*calls, *(block.link for block in blocks if isinstance(block, NoteBlock) and block.link)])
    )


@dataclass(frozen=True)
class ShownWait:
    """A call of the run, or of a subagent, that waits for a person or a client."""

    run_id: str
    call_id: str
    kind: PendingKind
    tool: str
    hash: str
    expires: str | None
    on_expiry: str | None
    """What becomes of it at its deadline; None if only the run knows."""
    separate: bool = False
    subagent: str = ""
    """The agent of the subagent whose call it is."""
    summary: str = ""


async def _list_waits(page: Page, status: Status | None) -> list[ShownWait]:
    """List what waits: of the run as it says itself, else as the store has it, as what waits in the runs below it."""
    run_id, resource = page.call.params["id"], page.call.resource or Resource("session")
    own = None if status is None else [
        ShownWait(
            *(run_id, one.call_id, one.kind, one.tool, one.hash, one.expires, one.on_expiry, one.separate),
            summary=one.summary,
        )
        for one in status.approvals
    ]  # fmt: skip
    found = list(own or ())
    rows = (await (await page.call.client.store()).list_run_waits([run_id], limit=_PINNED)).get(run_id, RunWaits())
    for row in rows.waits:
        is_own = row.context_id == run_id
        below = Resource("session", row.context_id, row.agent, resource.tenant, resource.user)
        if (is_own and own is None) or (not is_own and await page.call.may("read", below)):
            subagent = "" if is_own else row.agent
            found.append(
                ShownWait(
                    *(row.context_id, row.call_id, row.kind, row.tool, row.hash, row.expires_at, None),
                    subagent=subagent,
                    summary=row.summary,
                )
            )
    return found


async def _read_listed_state(page: Page, row: RunRow | None) -> str:
    """Read the state as lists have it, of a run that does not say it itself."""
    client = page.call.client
    try:
        execution = await client.run(page.call.params["id"]).describe()
    except PerdureError:  # Temporal has forgotten it, or does not answer
        return row.status if row is not None else "unknown"
    [run] = await refine_states(client, [await build_run_summary(client, execution)])
    return run.status


async def _build_panel(page: Page, view: View, seconds: float) -> dict[str, Any]:
    """Build what stands beside the transcript. ``seconds``: how long the run may take to say what it does."""
    resource = page.call.resource or Resource("session", page.call.params["id"])
    status, tree = await asyncio.gather(read_status(page, seconds), _read_tree(page, page.call.params["id"], view))
    row = await (await page.call.client.store()).get_run(page.call.params["id"])
    verbs: tuple[Verb, ...] = ("send", "decide", "operate")
    may = {verb: await page.call.may(verb, resource) for verb in verbs}
    parent = get_parent_id(page.call.params["id"])
    state = status.state if status is not None else await _read_listed_state(page, row)
    closed = None
    if state in ENDED_STATES:
        closed = status.since if status is not None and status.since is not None else row.updated_at if row else None
    spans, seconds = build_waterfall(view.transcript, format_utc_now(), closed)
    return {
        "run_id": page.call.params["id"],
        "resource": resource,
        "run": status,
        "row": row,
        "state": state,
        "is_open": state in OPEN_STATES,
        "usage": status.usage if status is not None else Usage(),
        "waits": await _list_waits(page, status) if state not in ENDED_STATES else (),
        "tree": tree,
        "parent": parent,
        "spans": spans,
        "seconds": seconds,
        "may": may,
        "nonce": uuid.uuid4().hex,
        "fork_head": _find_fork_head(page, view),
    }


def _find_fork_head(page: Page, view: View) -> str:
    """Return the node of the reply that the address names to fork after; "" for none."""
    head = page.request.query_params.get("fork", "")
    blocks = view.transcript.blocks.values()
    return head if any(isinstance(block, ReplyBlock) and block.head == head for block in blocks) else ""


async def show_run(page: Page) -> Response:
    """Show a run."""
    view = await read_view(page)
    seconds = PATIENT_SECONDS if "wait" in page.request.query_params else STATUS_SECONDS
    panel, count, origin = await asyncio.gather(
        _build_panel(page, view, seconds), count_pending(page), find_origin(page.call, page.call.params["id"])
    )
    blocks = list(view.transcript.blocks.values())
    return page.render(
        "run.html", view=view, blocks=blocks, count=count, origin=origin, **panel, **describe_links(page)
    )


async def show_panel(page: Page) -> Response:
    """Show what stands beside the transcript, for the page's script."""
    view = await read_view(page, with_origin=False)
    return page.render("panel.html", view=view, **await _build_panel(page, view, PATIENT_SECONDS))


async def show_earlier(page: Page) -> Response:
    """Show the blocks before a number, for the page's script."""
    view = await read_view(page)
    blocks = list(view.transcript.blocks.values())
    return page.render("earlier.html", view=view, blocks=blocks, run_id=page.call.params["id"])


# ---
# What is live.


Renderer = Callable[[Page, Sequence[Block]], Awaitable[Sequence[str]]]
"""Renders the blocks of a page."""


async def render_blocks(page: Page, blocks: Sequence[Block]) -> Sequence[str]:
    """Render blocks as the page of a run shows them."""
    context = build_context(page.request, page.visitor)
    template = build_templates().get_template("live.html")
    run_id = page.call.params["id"]
    return await render_in_thread(lambda: [template.render(context, block=block, run_id=run_id) for block in blocks])


async def follow_page(page: Page, render: Renderer = render_blocks) -> Response:
    """Follow a run: the blocks that change, as HTML, and pieces of text."""
    call = page.call
    after = parse_seq(call.request.headers.get("last-event-id") or call.request.query_params.get("after"))
    if await _is_over(page, after):
        return Response(status_code=204, headers=HEADERS)  # an EventSource does not connect again
    return EventStream(_iterate_frames(page, after, render), on_close=call.hold_stream(), check=page.is_current)


async def _is_over(page: Page, after: int) -> bool:
    """Whether the run has ended, and has no event of its own after that number."""
    run = page.call.run
    try:
        if (await run.describe()).close_time is None:
            return False
    except RunNotFoundError:  # Temporal has forgotten it
        pass
    async with aclosing(follow_run(run, after, wait=False, children=False, texts=False)) as events:
        return await anext(events, None) is None


async def _iterate_frames(page: Page, after: int, render: Renderer) -> AsyncGenerator[bytes]:
    """Yield frames. First comes the reply that is being written, as it is at ``after``: its reader may have less."""
    yield b"retry: %d\n\n" % RECONNECT_MS
    store, run_id = await page.call.client.store(), page.call.params["id"]
    transcript = Transcript().add_all((await read_window(store, run_id, before=after + 1)).events)
    if transcript.open_reply is not None:
        yield await _encode_blocks(page, [transcript.open_reply], render)
    async with aclosing(follow_run(page.call.run, after, children=False, texts=False)) as events:
        async for event in events:
            known = _measure(transcript.open_reply)
            blocks = transcript.add(event)
            if isinstance(event, ModelDelta) and known is not None and known[0] == blocks[0].key and known[1]:
                piece = _cut_piece(transcript.open_reply, event, known)
                yield encode_frame(json.dumps(piece), event.seq)
                continue
            await _add_live_parts(page, transcript, blocks)
            yield await _encode_blocks(page, blocks, render, event.seq)


async def _add_live_parts(page: Page, transcript: Transcript, blocks: Sequence[Block]) -> None:
    """Add what events do not have to blocks that have changed. What cannot be read is left out."""
    replies = [block for block in transcript.blocks.values() if isinstance(block, ReplyBlock) and block.head]
    try:
        if any(isinstance(block, ReplyBlock) and block.state == "done" for block in blocks):
            part = Transcript()
            part.blocks = {block.key: block for block in blocks}
            before = replies[-2].head if len(replies) > 1 else None
            await add_nodes(await page.call.client.store(), part, before, is_whole=len(replies) == 1)
        await add_texts(page.call.client, blocks)
    except PerdureError as error:
        logger.warning("parts of a live transcript cannot be shown: %s", error)


def _measure(reply: ReplyBlock | None) -> tuple[str, bool, int, int] | None:
    return None if reply is None else (reply.key, reply.state == "writing", len(reply.text), len(reply.thinking))


def _cut_piece(reply: ReplyBlock | None, event: ModelDelta, known: tuple[str, bool, int, int]) -> dict[str, Any]:
    """Build the frame of a piece of text: the script appends it as text."""
    if reply is None or event.kind == "tool_call":
        return {"key": known[0], "field": "call", "text": "" if reply is None else reply.writes_call}
    text, before = (reply.text, known[2]) if event.kind == "text" else (reply.thinking, known[3])
    return {"key": known[0], "field": event.kind, "text": show_controls(text[before:])}


async def _encode_blocks(page: Page, blocks: Sequence[Block], render: Renderer, seq: int | None = None) -> bytes:
    texts = await render(page, blocks)
    items = [{"key": block.key, "html": html} for block, html in zip(blocks, texts, strict=True)]
    return encode_frame(json.dumps({"blocks": items}), seq)


# ---
# Files and exports.


async def send_file(page: Page) -> Response:
    """Send a file of the run: with a type that its bytes show, as an attachment."""
    return await get_file(page.call)


async def export_events(page: Page) -> Response:
    """Send all events of the run and its subagents, one a line."""

    async def iterate() -> AsyncGenerator[bytes]:
        async with aclosing(follow_run(page.call.run, wait=False)) as events:
            async for event in events:
                yield encode_event(event, page.call.caller) + b"\n"

    name = quote(page.call.params["id"], safe="")
    headers = HEADERS | {"Content-Disposition": f"attachment; filename*=UTF-8''{name}.events.jsonl"}
    return StreamingResponse(iterate(), headers=headers, media_type="application/jsonl")


async def export_transcript(page: Page) -> Response:
    """Send the whole conversation, also what summaries have replaced, one message a line."""
    messages = await page.call.run.transcript(full=True)
    hidden = {"parts": {"__all__": {"opaque", "data"}}}
    lines = [message.model_dump_json(exclude_defaults=True, exclude=hidden).encode() for message in messages]
    roles = [
        b'{"role":"%s",%s' % (message.role.encode(), line[1:]) for message, line in zip(messages, lines, strict=True)
    ]
    name = quote(page.call.params["id"], safe="")
    headers = HEADERS | {"Content-Disposition": f"attachment; filename*=UTF-8''{name}.messages.jsonl"}
    return Response(b"\n".join([*roles, b""]), headers=headers, media_type="application/jsonl")


# ---
# Actions.


async def act(page: Page) -> Response:
    """Do what a form of the page asks for, as the native API does it."""
    form, action = page.form, page.form.get("action")
    text = form.get("text").strip()
    event: dict[str, Any]
    match action:
        case "message":
            if not text:
                raise InvalidInputError("the message is empty", hint="Write one, and send it again.")
            event = {"type": "message", "content": text, "message_id": read_nonce(form.get("nonce"))}
        case "interrupt":
            event = {"type": "interrupt", "content": text or None, "message_id": read_nonce(form.get("nonce"))}
        case "pause":
            event = {"type": "pause", "reason": text or None, "children": "children" in form}
        case "resume":
            event = {"type": "resume", "children": "children" in form}
        case "limit":
            event = {"type": "resume", "limits": _read_limit(page)}
        case "revoke":
            event = {"type": "revoke", "tool": form.get("tool")}
        case "cancel" | "close":
            event = {"type": action}
        case "fork":
            return await _fork(page, text)
        case _:
            raise InvalidInputError("the form says not what to do")
    await post_event(replace(page.call, body=validate(SessionEvent, event, "the form")))
    return page.redirect(f"/runs/{quote(page.call.caller.show_id(page.call.params['id']), safe='')}")


def read_nonce(text: str) -> str:
    """Return the id that a form has for its message: sent twice, it counts once."""
    return text if len(text) == 32 and text.isalnum() else uuid.uuid4().hex


def _read_limit(page: Page) -> dict[str, Any]:
    scope, _, name = page.form.get("limit").partition(".")
    try:
        value = float(page.form.get("value"))
    except ValueError:
        raise InvalidInputError("the new limit is not a number") from None
    if name in ("iterations", "tool_calls", "tokens", "max_iterations"):
        value = int(value)
    return {name: value} if scope == "run" else {"turn": {name: value}}


async def _fork(page: Page, text: str) -> Response:
    form = page.form
    fields: dict[str, Any] = {"content": text or None}
    if head := form.get("head"):
        fields["at"] = await _count_replies(page, head)
    elif at := form.get("at").strip():
        fields["at"] = int(at) if at.isdecimal() and len(at) < 10 else at
    if model := form.get("model").strip():
        fields["model"] = model
    agent = page.call.resource.agent if page.call.resource is not None else None
    fields["id"] = form.get("id").strip() or f"{(agent or 'fork')[:100]}-{read_nonce(form.get('nonce'))[:16]}"
    call = replace(page.call, body=validate(NewFork, fields, "the form"))
    await call.authorize("send", "fork")
    fork = await fork_session(call)
    return page.redirect(f"/runs/{quote(page.call.caller.show_id(fork.id), safe='')}")


async def _count_replies(page: Page, head: str) -> int:
    """Return the number of the reply that ends with the node ``head``, as ``fork(at=…)`` takes it.

    Raises ``InvalidInputError`` if the conversation does not have the node any longer.
    """
    store = await page.call.client.store()
    present = await page.call.run.read_head(store)
    if present != head:
        nodes = await store.read_nodes(present, until=[head]) if present is not None else []
        if not nodes or nodes[0].parent != head:
            raise InvalidInputError(
                "the conversation has been rewritten since that reply", hint="Fork it after a later one."
            )
    return sum(message.role == "assistant" for message in await _read_messages(store, page.call.params["id"], head))


async def find_page(page: Page) -> Response:
    """Lead an address with the slashes of an id, as people type and chats link it, to the page of that run."""
    run_id = unquote(page.call.params["rest"]).strip("/")
    return page.redirect(f"/runs/{quote(run_id, safe='')}" if run_id else "/runs")


PAGES = (
    # Named as the operation of the native API, so that links to a session that its functions make lead here.
    PageRoute("GET", "/runs/{id:segment}", show_run, "get_session"),
    PageRoute("POST", "/runs/{id:segment}", act, "act"),
    PageRoute("GET", "/runs/{id:segment}/panel", show_panel, "panel"),
    PageRoute("GET", "/runs/{id:segment}/earlier", show_earlier, "earlier"),
    PageRoute("GET", "/runs/{id:segment}/live", follow_page, "live"),
    PageRoute("GET", "/runs/{id:segment}/files/{hash:segment}", send_file, "file"),
    PageRoute("GET", "/runs/{id:segment}/export/events", export_events, "export_events"),
    PageRoute("GET", "/runs/{id:segment}/export/messages", export_transcript, "export_messages"),
    PageRoute("GET", "/runs/{rest:path}", find_page, "find_page"),
)
