"""Approvals: the calls of all sessions that wait for a person or a client, and many decisions in one request."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from datetime import datetime
from typing import Any, Literal, cast

from pydantic import BaseModel, Field, JsonValue
from starlette.responses import Response

from ..client.pages import InboxEntry, list_wait_page
from ..client.progress import refuse_without_worker
from ..errors import InvalidInputError, PerdureError, RunNotFoundError
from ..ports.store import RunRow
from ..ports.waits import WaitGroup, WaitOrder, WaitRow
from ..types.approvals import DecidedApproval, OnExpiry, PendingKind, is_requester
from ..types.messages import CALL_ID_CHARS, NAME_CHARS, RUN_ID_CHARS
from .auth import Resource
from .lists import PageQuery
from .operations import Call, Input, Operation
from .problems import WebError, build_problem, build_unexpected_problem

MAX_DECISIONS = 50
_FILTERS = ("agent", "kind", "tool", "tenant", "user", "text", "order")
_CONCURRENT_DECISIONS = 8
DECIDE_SECONDS = 40.0
"""Longest time of all decisions of a request: less than that of the request."""


class ApprovalsQuery(PageQuery):
    """Which calls."""

    agent: str | None = Field(default=None, min_length=1, max_length=NAME_CHARS)
    kind: PendingKind | None = None
    tool: str | None = Field(default=None, min_length=1, max_length=NAME_CHARS)
    tenant: str | None = Field(default=None, min_length=1, max_length=NAME_CHARS)
    user: str | None = Field(default=None, min_length=1, max_length=NAME_CHARS)
    text: str | None = Field(default=None, min_length=1, max_length=200)
    """It occurs in the summary of the call, its tool or the id of its session."""
    order: WaitOrder = "since"
    """The longest waiting first; or those that expire, the soonest first; or those with an amount, the largest
    first."""
    group: WaitGroup | None = None
    """The calls of each tool, user or tenant together. Of a caller who sees only some sessions, within a page."""


class PendingCall(BaseModel):
    """A call that waits for an approval, an answer, or the result of a client."""

    run_id: str
    call_id: str
    kind: PendingKind
    agent: str
    tool: str
    hash: str
    """A decision or an answer is sent with it."""
    summary: str = ""
    """The call or its question in one line, for people."""
    amount: float | None = None
    """The number of its arguments by which calls are sorted."""
    since: datetime
    expires: datetime | None = None
    arguments: dict[str, JsonValue] | None = None
    question: str | None = None
    form: dict[str, JsonValue] | None = None
    """JSON Schema of the answer."""
    consent: dict[str, JsonValue] | None = None
    """For a question that a sign-in at an MCP server answers: the ``server``, ``scopes``, ``tenant`` and ``user``."""
    is_cut: bool = False
    """Whether arguments, question or form are too large for a list: the session's items and events have them."""
    separate: bool | None = None
    """Whether those who asked for the call may not approve it; missing if only the run knows."""
    own: bool = False
    """Whether that is so, and the caller is one of those."""
    on_expiry: OnExpiry | None = None
    """What becomes of an approval that expires; missing if only the run knows."""
    root: str | None = None
    """Of a subagent's call: the session that it works for."""
    tenant: str | None = None
    user: str | None = None


class ApprovalList(BaseModel):
    """A page of calls that wait. ``cursor`` is as in a list of sessions."""

    data: list[PendingCall]
    cursor: str | None = None


async def list_approvals(call: Call) -> ApprovalList:
    """List the calls of all sessions that wait for an approval, an answer, or a client's result."""
    query = cast(ApprovalsQuery, call.query)

    async def visible(row: WaitRow, run: RunRow | None) -> bool:
        if run is not None:
            return await call.may("read", Resource("session", row.context_id, run.agent, run.tenant, run.user))
        try:
            return await call.may("read", await call.web.find_session(row.context_id))
        except RunNotFoundError:  # the row is out of date
            return False

    # The cursor of a grouped list has a name, which of a call that the caller may not see is not the caller's to read.
    is_restricted = (call.caller.tenants, call.caller.agents, call.caller.sessions) != (None, None, None)
    page = await list_wait_page(
        call.client,
        **query.model_dump(include=set(_FILTERS)),
        group=None if is_restricted else query.group,
        limit=query.limit,
        cursor=query.cursor,
        visible=visible,
    )
    waits = [_build_pending_call(wait, call.by) for wait in page.waits]
    if query.group is not None and is_restricted:
        waits.sort(key=lambda wait: getattr(wait, query.group or "") or "")
    return ApprovalList(data=waits, cursor=page.cursor)


def _build_pending_call(wait: InboxEntry, by: str) -> PendingCall:
    names = PendingCall.model_fields.keys() - {"own"}
    own = is_requester(by, wait.requesters)
    return PendingCall(own=own, **{name: getattr(wait, name) for name in names})


# ---
# Decisions.


class Decision(Input):
    """A decision on a call that waits for approval, or without ``decision`` the answer to a call that waits for one."""

    run_id: str = Field(min_length=1, max_length=RUN_ID_CHARS)
    call_id: str = Field(min_length=1, max_length=CALL_ID_CHARS)
    hash: str = Field(min_length=1, max_length=100)
    """That of the call or question that was reviewed."""
    decision: Literal["approve", "deny"] | None = None
    comment: str | None = None
    arguments: dict[str, JsonValue] | None = None
    """With ``approve``: arguments to use instead."""
    value: JsonValue = None
    error: str | None = None
    """Why there is no ``value``."""


class Decisions(Input):
    """Decisions and answers, each for another call."""

    decisions: list[Decision] = Field(min_length=1, max_length=MAX_DECISIONS)


class DecisionResult(BaseModel):
    """What became of one decision: ``decided``, or the ``problem`` that it was refused with."""

    run_id: str
    call_id: str
    decided: DecidedApproval | None = None
    problem: dict[str, JsonValue] | None = None


class DecisionResults(BaseModel):
    """A result for each decision, in their order."""

    results: list[DecisionResult]


async def decide_approvals(call: Call) -> DecisionResults:
    """Decide and answer many calls; each is authorised and decided on its own."""
    decisions = [
        item.model_copy(update={"run_id": call.caller.read_id(item.run_id)})
        for item in cast(Decisions, call.body).decisions
    ]
    counts = Counter((item.run_id, item.call_id) for item in decisions)
    if twice := next((name for name, count in counts.items() if count > 1), None):
        raise InvalidInputError(
            f"decisions: call {twice[1]!r:.100} of session {twice[0]!r:.200} is there {counts[twice]} times",
            hint="Send one decision for each call.",
        )
    for index, item in enumerate(decisions):
        _check_decision(index, item)
    slots = asyncio.Semaphore(_CONCURRENT_DECISIONS)
    deadline = asyncio.get_running_loop().time() + DECIDE_SECONDS

    async def decide(item: Decision) -> DecisionResult:
        try:
            async with asyncio.timeout_at(deadline), slots:
                return _build_result(item, await _decide(call, item))
        except TimeoutError:
            return _build_result(item, _build_late_error())
        except PerdureError as error:
            return _build_result(item, call.caller.show_error(error))
        except Exception as error:  # of one decision: the others have their results
            return _build_result(item, build_unexpected_problem(error))

    return DecisionResults(results=await asyncio.gather(*map(decide, decisions)))


def _check_decision(index: int, item: Decision) -> None:
    place = f"decisions[{index}]"
    if item.decision is not None and (item.value is not None or item.error is not None):
        raise InvalidInputError(f"{place}: value and error belong to an answer, which has no decision")
    if item.decision is None and (item.comment is not None or item.arguments is not None):
        raise InvalidInputError(f"{place}: comment and arguments belong to a decision", hint="approve or deny")
    if item.decision is None and not item.model_fields_set & {"value", "error"}:
        raise InvalidInputError(f"{place}: there is neither a decision nor a value", hint="approve or deny")
    if item.decision == "deny" and item.arguments is not None:
        raise InvalidInputError(f"{place}: arguments belong to an approval, not to a denial")


def _build_late_error() -> WebError:
    return WebError(
        f"the decision was not taken within {DECIDE_SECONDS:g} s, and may still take effect", status=504,
        name="TimeoutError", hint="Send it again: the same decision counts once.", headers={"Retry-After": "1"},
    )  # fmt: skip


async def _decide(call: Call, item: Decision) -> DecidedApproval:
    """Decide or answer one call. Raises the error that it is refused with."""
    resource = await call.web.find_session(item.run_id)
    await call.authorize("send" if item.decision is None else "decide", item.decision or "answer", resource)
    run = call.client.run(item.run_id)
    match item.decision:
        case "approve":
            deciding = run.approve(
                item.call_id, by=call.by, comment=item.comment, arguments=item.arguments, hash=item.hash
            )
        case "deny":
            deciding = run.deny(item.call_id, by=call.by, comment=item.comment, hash=item.hash)
        case None:
            deciding = run.answer(item.call_id, item.value, error=item.error, by=call.by, hash=item.hash)
    return await refuse_without_worker(run, deciding)


def _build_result(item: Decision, outcome: DecidedApproval | PerdureError | Response) -> DecisionResult:
    if isinstance(outcome, DecidedApproval):
        return DecisionResult(run_id=item.run_id, call_id=item.call_id, decided=outcome)
    problem = build_problem(outcome) if isinstance(outcome, PerdureError) else outcome
    fields: dict[str, Any] = json.loads(bytes(problem.body))
    return DecisionResult(run_id=item.run_id, call_id=item.call_id, problem=fields)


OPERATIONS = [
    Operation(
        "GET",
        "/approvals",
        list_approvals,
        "read",
        query=ApprovalsQuery,
        answer=ApprovalList,
        kind="approval",
        tag="approvals",
    ),
    Operation(
        "POST",
        "/approvals:decide",
        decide_approvals,
        "read",
        body=Decisions,
        answer=DecisionResults,
        kind="approval",
        tag="approvals",
    ),
]
