"""Windows of a run's events, read from the store for a page, and what the events leave to the transcript and blobs.

Reads backwards, so the length of a conversation does not matter. What the blocks become: ``transcript.py``.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from ..client.client import Client
from ..client.pages import gather_bounded
from ..errors import PerdureError
from ..ports.store import Store
from ..types.events import Event, MessageInjected, ModelCompleted, decode_event
from ..types.messages import FilePart, Message, ThinkingPart, ToolCallPart, parse_messages
from .transcript import Block, CallBlock, MessageBlock, ReplyBlock, Transcript

logger = logging.getLogger("perdure.console")

WINDOW_EVENTS = 150
"""Events on a page, without deltas."""
MAX_LOADED_BYTES, MAX_LOADED_TEXTS = 200_000, 40
"""Texts that events refer to are loaded up to this length, and so many on a page: the last ones."""


@dataclass(frozen=True)
class Window:
    """The events of a page, and whether there are earlier and later ones."""

    previous_head: str | None
    """The transcript node of the last reply before the window; None if there is none, or it is far away."""

    events: Sequence[Event]
    first: int
    """Number behind which it begins; 0 at the beginning of the run."""
    last: int
    has_later: bool


async def read_window(store: Store, run_id: str, *, before: int | None = None, size: int = WINDOW_EVENTS) -> Window:
    """Read the last events of a run, or the last ones before a number; deltas of replies that are written count for
    nothing. Reads backwards, so the length of the conversation does not matter."""
    latest = await store.wait_for_event(run_id, 0, 0.0)
    end = latest if before is None else min(before - 1, latest)
    events: list[Event] = []
    first, span = end, size * 2
    while first > 0 and sum(event.type != "model.delta" for event in events) < size:
        start = max(0, first - span)
        events = [*await _read_between(store, run_id, start, first), *events]
        first, span = start, span * 4
    cut = _find_cut(events, size)
    heads = [event.head for event in events[:cut] if isinstance(event, ModelCompleted)]
    if cut:
        first, events = events[cut].seq - 1, events[cut:]
    return Window(heads[-1] if heads else None, events, first if events else 0, end, has_later=end < latest)


async def read_first_message(store: Store, run_id: str) -> MessageInjected | None:
    """Read the message that a run began with; None if it is not among its first events."""
    for row in await store.read_events(run_id, after=0, limit=8, children=False):
        event = decode_event(run_id, row.seq, row.task_id, row.type, row.body, row.spans)
        if isinstance(event, MessageInjected):
            return event
    return None


async def _read_between(store: Store, run_id: str, after: int, until: int) -> list[Event]:
    events: list[Event] = []
    while after < until:
        rows = await store.read_events(run_id, after=after, limit=min(until - after, 1000), children=False)
        if not rows:
            break
        decoded = (decode_event(run_id, row.seq, row.task_id, row.type, row.body, row.spans) for row in rows)
        events += [event for event in decoded if event is not None and event.seq <= until]
        after = rows[-1].seq
    return events


def _find_cut(events: Sequence[Event], size: int) -> int:
    """Return where a window of about ``size`` events begins: with a message or a model call, so that blocks are
    whole."""
    counted = [index for index, event in enumerate(events) if event.type != "model.delta"]
    if len(counted) <= size:
        return 0
    for index in range(counted[-size], 0, -1):
        if events[index].type in ("message.injected", "model.started", "turn"):
            return index
    return 0


async def add_stored_parts(client: Client, transcript: Transcript, window: Window) -> None:
    """Add what events do not have: the thinking of replies, large arguments, and texts of some length.

    Reads the transcript's nodes of the window, not the conversation before. What cannot be read is left out.
    """
    try:
        await add_nodes(await client.store(), transcript, window.previous_head, is_whole=window.first == 0)
        await add_texts(client, list(transcript.blocks.values()))
    except PerdureError as error:
        logger.warning("parts of a transcript cannot be shown: %s", error)


async def add_nodes(store: Store, transcript: Transcript, previous: str | None, *, is_whole: bool) -> None:
    """Add thinking and arguments of the replies after the node ``previous``; ``is_whole``: from the beginning on."""
    replies = [block for block in transcript.blocks.values() if isinstance(block, ReplyBlock) and block.head]
    if not replies:
        return
    first, last = str(replies[0].head), str(replies[-1].head)
    until = [previous] if previous is not None else [] if is_whole else [first]
    if [last] == until:
        return
    by_head = {node.hash: node for node in await store.read_nodes(last, until=until)}
    for reply in replies:
        node = by_head.get(str(reply.head))
        if node is not None:
            _add_message_parts(transcript, reply, parse_messages(node.body))


async def add_texts(client: Client, blocks: Sequence[Block]) -> None:
    """Load texts that events refer to, unless they are very long."""

    async def load(block: MessageBlock | ReplyBlock | CallBlock) -> None:
        assert block.blob is not None, "of those that are chosen"
        text = (await client.file(FilePart(media_type="text/plain", blob=block.blob))).decode(errors="replace")
        if isinstance(block, CallBlock):
            block.content = text
        else:
            block.text = text

    chosen = [
        block
        for block in blocks
        if isinstance(block, MessageBlock | ReplyBlock | CallBlock)
        and block.blob is not None
        and block.blob.size <= MAX_LOADED_BYTES
    ]
    await gather_bounded(load, chosen[-MAX_LOADED_TEXTS:])


def _add_message_parts(transcript: Transcript, reply: ReplyBlock, messages: Sequence[Message]) -> None:
    message = next((message for message in reversed(messages) if message.role == "assistant"), None)
    reply.thinking = ""
    for part in message.parts if message is not None else ():
        if isinstance(part, ThinkingPart):
            reply.thinking += part.text
        elif isinstance(part, ToolCallPart):
            block = transcript.blocks.get(f"c-{part.id}")
            if isinstance(block, CallBlock):
                block.arguments = block.arguments or part.arguments
