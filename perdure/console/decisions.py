"""Decisions of pages: taken with a delay, so that they can be taken back, and what is shown until they have an answer.

A decision is a row of the store, which any replica or worker sends when it is due. Taking it back deletes the row if no
attempt to send it has begun: of those who press at once one wins, and the others are told.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Literal, cast
from urllib.parse import quote

from starlette.responses import Response

from ..client.audit import audit_steering
from ..client.deferred_decisions import build_decision_row, read_answer
from ..client.visibility import read_pending_memo
from ..errors import InvalidInputError, PerdureError, join_sentences
from ..ports.decisions import DecisionRow
from ..types.approvals import DecidedApproval, WaitingCall
from ..types.interface import Status
from ..web.auth import Resource
from ..web.operations import Call
from ..web.origins import get_client_address
from ..web.problems import build_problem
from .pages import Page, PageRoute

Tone = Literal["good", "bad", "warn"]
STATUS_SECONDS = 1.0
"""How long a page waits for a run's own answer, which takes a worker."""


@dataclass(frozen=True)
class Outcome:
    """What became of a decision, or of a call that another person has decided."""

    key: str
    tone: Tone
    title: str
    text: str = ""
    session: str = ""
    tool: str = ""
    is_over: bool = True
    """Whether the call waits no longer."""
    at: str | None = None
    """When it was decided."""
    is_pending: bool = False
    """Whether the decision has no answer yet."""
    due_at: str | None = None
    """When it is sent, if that is to come."""
    back: str = ""
    """Where a form takes it back, "" where that is too late."""
    id: str = ""
    """What that form sends."""
    is_taken_back: bool = False


_STATES: Mapping[str, tuple[str, Tone]] = {
    "approved": ("Approved", "good"),
    "denied": ("Denied", "bad"),
    "expired": ("Expired", "warn"),
    "answered": ("Answered", "good"),
}


def parse_item(text: str) -> tuple[str, str, str]:
    """Read run, call and hash of a row from the form of the inbox. Raises ``InvalidInputError``."""
    try:
        item = json.loads(text)
    except ValueError:
        item = None
    if not isinstance(item, list) or len(item) != 3 or not all(isinstance(part, str) and part for part in item):
        raise InvalidInputError("the form names no call")
    return item[0], item[1], item[2]


def build_key(session: str, call_id: str, hash: str) -> str:
    """Return what names a row on the page."""
    return hashlib.sha256(json.dumps([session, call_id, hash]).encode()).hexdigest()[:20]


def describe_decision(decided: DecidedApproval, me: str) -> tuple[str, str, Tone]:
    """Return title, comment and tone of a decision."""
    title, tone = _STATES.get(decided.state, (decided.state, "warn"))
    by = "you" if decided.by == me else decided.by
    parts = [title, f"by {by}" if by else "", "with changed arguments" if decided.changed else ""]
    return " ".join(filter(None, parts)), decided.comment or "", tone


def build_problem_outcome(key: str, session: str, problem: Mapping[str, Any]) -> Outcome:
    """Build the outcome of a decision that was refused."""
    detail = join_sentences(problem["detail"], problem.get("hint"))
    is_over = problem["status"] in (404, 409)
    title = "Not decided" if problem["status"] != 409 else "Decided already"
    return Outcome(key, "warn", title, detail, session, "", is_over)


async def find_pending(call: Call, call_id: str) -> tuple[WaitingCall | None, Status]:
    """Return the pending call, and the run's status; if no worker answers in time, what the run's memo has of it."""
    task = asyncio.ensure_future(call.run.status())
    done, _ = await asyncio.wait([task], timeout=STATUS_SECONDS)
    pending = None if done else await read_pending_memo(await call.run.describe())
    if pending is None or call_id not in [one.call_id for one in pending]:
        status = await task
    else:
        task.cancel()
        agent = call.resource.agent if call.resource is not None else None
        status = Status(state="waiting", agent=agent or "", context_id=call.run.id, approvals=tuple(pending))
    return next((pending for pending in status.approvals if pending.call_id == call_id), None), status


# ---
# Decisions with a delay.


async def defer_decision(page: Page, call: Call, item: Sequence[str], tool: str, fields: Mapping[str, Any]) -> Outcome:
    """Record a decision on the call ``item`` (run, call, hash) of ``call.resource``, to be sent when it can no longer
    be taken back. The visitor may decide on it: the caller has checked that."""
    resource = call.resource or Resource("session", item[0])
    store = await page.call.client.store()
    row = build_decision_row(
        (item[0], item[1], item[2]),
        {"agent": resource.agent, "tool": tool, "tenant": resource.tenant, "user": resource.user},
        (page.call.by, page.call.caller.auth, get_client_address(page.request.scope)),
        fields,
    )
    standing = await store.defer_decision(row, page.access.undo_seconds)
    page.access.sender.start()
    outcome = describe_row(page, standing)
    if standing.id != row.id and standing.by != page.call.by:
        return replace(outcome, text=f"{standing.by} was first. {outcome.text}".strip())
    return outcome


async def find_decisions(page: Page, sessions: Sequence[str]) -> dict[tuple[str, str, str], DecisionRow]:
    """Find the decisions on calls of these runs: by run, call and hash."""
    store = await page.call.client.store()
    return {(row.context_id, row.call_id, row.hash): row for row in await store.list_decisions(sessions)}


async def find_waiting_tool(page: Page, item: Sequence[str]) -> str:
    """Find the tool of a call that waits as the store knows it, for a run that does not answer; "" if it does not."""
    session, *names = item
    waits = (await (await page.call.client.store()).list_run_waits([session]))[session].waits
    return next((wait.tool for wait in waits if [wait.call_id, wait.hash] == names), "")


async def find_outcome(page: Page, session: str, call_id: str, hash: str) -> Outcome | None:
    """Find what is known of a decision on the call; None if none was taken here."""
    row = (await find_decisions(page, [session])).get((session, call_id, hash))
    return None if row is None else describe_row(page, row)


def describe_row(page: Page, row: DecisionRow) -> Outcome:
    """Describe a decision, as far as it has come."""
    me, key = page.call.by, build_key(row.context_id, row.call_id, row.hash)
    answer = read_answer(row)
    if answer is not None and answer.decided is not None:
        title, text, tone = describe_decision(answer.decided, me)
        return Outcome(key, tone, title, text, row.context_id, row.tool, at=answer.decided.at)
    if answer is not None:
        problem = json.loads(bytes(build_problem(cast(PerdureError, answer.error)).body))
        return build_problem_outcome(key, row.context_id, problem)
    decision = json.loads(row.body)
    verb = "Approving" if decision["decision"] == "approve" else "Denying"
    by = "you" if row.by == me else row.by
    is_due = row.due_at <= datetime.now(UTC).isoformat(timespec="microseconds")
    text = row.note or ("The run has not answered yet." if is_due else "")
    path = f"/inbox/{quote(row.context_id, safe='')}/{quote(row.call_id, safe='')}/back"
    return Outcome(
        key,
        "warn",
        f"{verb} {row.tool}, by {by}",
        text,
        row.context_id,
        row.tool,
        is_over=False,
        is_pending=True,
        due_at=None if is_due else row.due_at,
        back="" if row.owner else f"{page.base}{path}",
        id=row.id,
    )


async def take_back(page: Page) -> Response:
    """Take back a decision that nobody has begun to send."""
    session, call_id = page.call.params["id"], page.call.params["call_id"]
    await page.call.authorize("decide", "take_back")
    store = await page.call.client.store()
    rows = await store.list_decisions([session])
    known = next((row for row in rows if row.call_id == call_id and row.id == page.form.get("decision_id")), None)
    is_back = False
    if known is not None:
        async with audit_steering(page.call.client, "take_back", session, by=page.call.by, call_id=call_id):
            is_back = await store.take_back_decision(session, call_id, known.id)
    if is_back and known is not None:
        key = build_key(session, call_id, known.hash)
        outcome = Outcome(
            key, "warn", "Taken back", "Nothing was decided.", session, known.tool, is_over=False, is_taken_back=True
        )
    else:
        outcome = await _describe_lost(page, session, call_id, known)
    if page.wants_fragment:
        return page.render("outcomes.html", outcomes=[outcome])
    return page.render("decided.html", outcome=outcome, name=outcome.tool or "decision", arguments=None, count=None)


async def _describe_lost(page: Page, session: str, call_id: str, known: DecisionRow | None) -> Outcome:
    """Say why a decision could not be taken back: it was sent, or somebody else was quicker."""
    rows = await (await page.call.client.store()).list_decisions([session])
    now = next((row for row in rows if row.call_id == call_id), None)
    if now is None:
        key = build_key(session, call_id, known.hash) if known is not None else ""
        tool = known.tool if known is not None else ""
        return Outcome(
            key, "warn", "Taken back already", "Somebody else was first. Nothing was decided.", session, tool,
            is_over=False, is_taken_back=True,
        )  # fmt: skip
    outcome = describe_row(page, now)
    return replace(outcome, text=f"Too late to take it back: it was sent. {outcome.text}".strip())


PAGES = (PageRoute("POST", "/inbox/{id:segment}/{call_id:segment}/back", take_back, "take_back"),)
