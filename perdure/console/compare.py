"""The comparison of two runs, as of a fork and its origin: where they part, what came after, and what each cost.

Both are read as the native API reads them, with large texts as references; the page shows the first steps after the
parting, so it does not grow with the conversations.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import zip_longest
from typing import Any

from markupsafe import Markup
from starlette.responses import Response

from ..client.follow import list_child_runs
from ..client.fork import MEMO_FORK, Difference, compare_transcripts
from ..client.pages import TranscriptPages
from ..client.run import Run
from ..errors import RunNotFoundError
from ..ports.store import RunRow
from ..ports.times import timestamp
from ..types.messages import Message, OpaquePart, Part, TextPart, ThinkingPart, ToolCallPart, ToolResultPart
from ..web.auth import Resource
from ..web.operations import Call
from ..web.sessions import build_session
from ..web.sse import parse_seq
from .inbox import count_pending
from .pages import Page, PageRoute
from .texts import mark_changes, measure

STEPS = 20
"""Steps after the parting that the page shows at first."""
MOST_STEPS = 400
_SHARED = 3
"""Messages before the parting that the page shows."""
_MOST_MESSAGES = 1_000_000
_STATUS_SECONDS = 2.0
"""How long a run may take to say what it has used."""


# ---
# Forks.


@dataclass(frozen=True)
class Origin:
    """What a fork was made of."""

    run: str
    at: int
    """The iteration after which it begins."""
    by: str | None
    may_read: bool


async def find_origin(call: Call, id: str) -> Origin | None:
    """Return what the run is a fork of; None if it is none, or if Temporal, which knows it, has forgotten the run."""
    try:
        memo = await (await call.client.run(id).describe()).memo()
    except RunNotFoundError:
        return None
    except Exception:  # written with another codec
        return None
    forked = memo.get(MEMO_FORK)
    if not isinstance(forked, Mapping) or not isinstance(forked.get("run"), str):
        return None
    at, by = forked.get("at"), forked.get("by")
    may_read = await _may_read(call, forked["run"])
    return Origin(forked["run"], at if isinstance(at, int) else 0, by if isinstance(by, str) else None, may_read)


async def _may_read(call: Call, id: str) -> bool:
    try:
        return await call.may("read", await call.web.find_session(id))
    except RunNotFoundError:
        return False


# ---
# The two sides.


@dataclass(frozen=True)
class Amounts:
    """What messages took: calls, tokens, money."""

    model_calls: int
    tool_calls: int
    tokens: int
    cost_usd: float | None
    """None if a price is unknown."""


def _add_up(messages: Iterable[Message]) -> Amounts:
    replies = [message for message in messages if message.role == "assistant"]
    costs = [reply.cost_usd for reply in replies]
    known = [cost for cost in costs if cost is not None]
    return Amounts(
        len(replies),
        sum(len(reply.tool_calls) for reply in replies),
        sum(reply.usage.total_tokens for reply in replies if reply.usage is not None),
        sum(known) if len(known) == len(costs) and costs else None,
    )


@dataclass(frozen=True)
class Side:
    """A run of the comparison."""

    id: str
    resource: Resource
    state: str
    started: str | None
    seconds: float | None
    """From its start to its end, or until now."""
    whole: Amounts
    """What the run has used, as its own page has it."""
    has_subagents: bool | None
    """Whether ``whole`` has what subagents have used; None if it has not, because the run does not answer."""
    messages: Sequence[Message]

    @property
    def models(self) -> str:
        """The models that replied."""
        return ", ".join(dict.fromkeys(message.model for message in self.messages if message.model)) or "none yet"


async def _read_side(page: Page, id: str) -> Side:
    call = page.call
    resource = await call.web.find_session(id)
    await call.authorize("read", "compare", resource)
    store, run = await call.client.store(), call.client.run(id)
    row, head = await store.get_run(id), await run.read_head(store)
    stored, _ = await TranscriptPages().read(store, id, head, after=-1, limit=_MOST_MESSAGES)
    messages = [message for message in stored if message.role != "system"]
    own = _add_up(messages)
    status = None
    with suppress(RunNotFoundError, TimeoutError):  # Temporal has forgotten it, or no worker answers
        async with asyncio.timeout(_STATUS_SECONDS):
            status = await build_session(call, id)
    if status is None:
        times = (row.created_at, row.updated_at) if row is not None else (None, None)
        state = row.status if row is not None else "running"
        return Side(id, resource, state, times[0], measure(*times), own, None, messages)
    whole = replace(own, tokens=status.usage.total_tokens, cost_usd=status.cost_usd)
    started, ended = await _read_times(run, row)
    has_subagents = bool(await list_child_runs(run))
    return Side(id, resource, status.state, started, measure(started, ended), whole, has_subagents, messages)


async def _read_times(run: Run, row: RunRow | None) -> tuple[str | None, str | None]:
    """Return when the run began and ended, or the present: of its last execution, or as the store has it."""
    try:
        described = await run.describe()
    except RunNotFoundError:
        return (None, None) if row is None else (row.created_at, row.updated_at)
    return timestamp(described.start_time), timestamp(described.close_time or datetime.now(UTC))


# ---
# Where they part.


def find_difference(left: Sequence[Message], right: Sequence[Message]) -> Difference:
    """Compare what two runs say. Unlike two forks, runs that began apart have other ids of calls, and other data that
    only a provider reads, with the same content."""
    plain = compare_transcripts(_strip_messages(left), _strip_messages(right))
    shared = len(plain.shared)
    return Difference(tuple(left[:shared]), tuple(left[shared:]), tuple(right[shared:]))


def _strip_messages(messages: Sequence[Message]) -> list[Message]:
    numbers: dict[str, str] = {}

    def strip(part: Part) -> Part:
        match part:
            case ToolCallPart():
                number = numbers.setdefault(part.id, str(len(numbers)))
                return part.model_copy(update={"id": number, **_PROVIDERS_OWN, "provider_id": None})
            case ToolResultPart():
                return part.model_copy(update={"call_id": numbers.get(part.call_id, part.call_id)})
            case TextPart() | ThinkingPart():
                return part.model_copy(update=_PROVIDERS_OWN)
            case _:
                return part

    return [
        message.model_copy(
            update={"parts": tuple(strip(part) for part in message.parts if not isinstance(part, OpaquePart))}
        )
        for message in messages
    ]


_PROVIDERS_OWN = {"provider": None, "opaque": None}


Step = Sequence[Message]
"""A user's message; or a reply, with the results of its calls."""


@dataclass(frozen=True)
class Pair:
    """A step of either side; None where a side has ended. ``marks`` are their texts, with what differs marked."""

    left: Step | None
    right: Step | None
    marks: tuple[Markup, Markup] | None = None


def _split_steps(messages: Iterable[Message]) -> list[list[Message]]:
    steps: list[list[Message]] = []
    for message in messages:
        if message.role == "tool" and steps and steps[-1][0].role != "user":
            steps[-1].append(message)
        else:
            steps.append([message])
    return steps


def _pair_steps(difference: Difference, limit: int) -> tuple[list[Pair], int]:
    """Pair the steps after the parting; return the first of them, and how many there are."""
    left, right = _split_steps(difference.left), _split_steps(difference.right)
    shown = zip_longest(left[:limit], right[:limit])
    return [Pair(one, other, _mark_step(one, other)) for one, other in shown], max(len(left), len(right))


def _mark_step(left: Step | None, right: Step | None) -> tuple[Markup, Markup] | None:
    if not left or not right or left[0].role != right[0].role or left[0].text == right[0].text:
        return None
    return mark_changes(left[0].text, right[0].text)


# ---
# The page.


async def show_comparison(page: Page) -> Response:
    """Show two runs side by side; without two ids the form that asks for them."""
    given = page.request.query_params
    named = [given.get(name, "").strip() for name in ("left", "right")]
    left_id, right_id = [page.call.caller.read_id(name) if name else "" for name in named]
    values: dict[str, Any] = {"left_id": left_id, "right_id": right_id, "count": await count_pending(page)}
    if not left_id or not right_id:
        if left_id or right_id:  # a fork alone is compared with its origin
            alone = left_id or right_id
            await page.call.authorize("read", "compare", await page.call.web.find_session(alone))
            origin = await find_origin(page.call, alone)
            if origin is not None and origin.may_read:
                return page.redirect("/compare", left=origin.run, right=alone)
        return page.render("compare.html", difference=None, **values)
    left, right = await asyncio.gather(_read_side(page, left_id), _read_side(page, right_id))
    difference = await asyncio.to_thread(find_difference, left.messages, right.messages)
    limit = min(parse_seq(given.get("steps")) or STEPS, MOST_STEPS)
    pairs, total = await asyncio.to_thread(_pair_steps, difference, limit)
    origins = await asyncio.gather(find_origin(page.call, left_id), find_origin(page.call, right_id))
    fork = next(
        (
            (one, other, origin)
            for one, other, origin in ((left, right, origins[0]), (right, left, origins[1]))
            if origin is not None and origin.run == other.id
        ),
        None,
    )
    return page.render(
        "compare.html",
        difference=difference,
        left=left,
        right=right,
        whole=(left.whole, right.whole),
        after=(_add_up(difference.left), _add_up(difference.right)),
        shared=difference.shared[-_SHARED:],
        pairs=pairs,
        total=total,
        next_steps=min(limit * 4, MOST_STEPS) if total > limit and limit < MOST_STEPS else None,
        fork=fork,
        **values,
    )


PAGES = (PageRoute("GET", "/compare", show_comparison, "compare"),)
