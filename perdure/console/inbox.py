"""The inbox: the calls of all runs that wait for a person, and the page of one call, where it is decided.

Rows come from the store by one query, sorted there, and those of the page are checked with their runs. Every decision
is sent with the hash of what was shown, so that a call that has changed meanwhile is not decided by it. Many at once
are exactly those that were ticked, each decided on its own.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast
from urllib.parse import quote

from starlette.responses import JSONResponse, Response

from ..client.pages import gather_bounded
from ..errors import ApprovalForbiddenError, InvalidInputError, PerdureError, RunNotFoundError, join_sentences
from ..ports.store import RunRow
from ..ports.waits import WaitRow
from ..types.approvals import DecidedApproval, WaitingCall, hash_arguments, hash_name
from ..types.interface import Status
from ..types.run_states import OPEN_STATES
from ..web.approvals import ApprovalsQuery, Decision, DecisionResult, Decisions, decide_approvals, list_approvals
from ..web.approvals import PendingCall as InboxCall
from ..web.auth import Resource
from ..web.lists import read_given_results
from ..web.operations import Call, validate
from ..web.problems import ForbiddenError, NotFoundError, build_problem
from ..web.sessions import Accepted, SessionEvent, post_event
from .decisions import (
    Outcome,
    build_key,
    build_problem_outcome,
    defer_decision,
    describe_decision,
    describe_row,
    find_decisions,
    find_outcome,
    find_pending,
    find_waiting_tool,
    parse_item,
)
from .event_window import add_stored_parts, read_first_message, read_window
from .forms import (
    Field,
    build_answer_fields,
    build_fields,
    find_changes,
    find_tool,
    find_tool_schemas,
    get_parameters,
    list_defaults,
    parse_json_field,
    read_answer,
    read_fields,
    summarize_changed,
)
from .pages import HEADERS, Page, PageRoute
from .sign_ins import may_sign_in
from .transcript import CallBlock, Transcript

FILTERS = ("agent", "kind", "tool", "tenant", "user", "text", "order", "group")
ROWS = 50
"""Rows of a page."""
_MAX_SHOWN_CHARS = 500_000
"""Arguments that are longer, as JSON, are not shown, and so not approved here."""
_CONTEXT_BLOCKS = 12
_KEYS = 200
"""Waits that are looked through for what has come and gone, and for other calls of a user."""

# ---
# Rows.


@dataclass(frozen=True)
class Row:
    """A call that waits, as a row."""

    wait: InboxCall
    key: str
    item: str
    """What its form sends: the run, the call and the hash of what is shown."""
    may_decide: bool
    is_selectable: bool
    """Whether it can be decided with others: an approval that is shown whole, and needs no second person."""
    fields: Sequence[Field] = ()
    """Of an answer that the row has a form for."""
    others: int = 0
    """Other calls of the same user that wait."""
    defaults: Sequence[Field] = ()
    """Arguments that an approval does not give, and that the tool has a value for."""
    outcome: Outcome | None = None
    """What is known of a decision that was taken here and has no effect yet."""


async def _build_row(
    page: Page, wait: InboxCall, others: int, schema: Mapping[str, Any] | None, outcome: Outcome | None
) -> Row:
    resource = Resource("session", wait.run_id, wait.agent, wait.tenant, wait.user)
    is_approval = wait.kind == "approval"
    may = await page.call.may("decide" if is_approval else "send", resource)
    has_form = not is_approval and not wait.is_cut and wait.consent is None
    fields = build_answer_fields(wait.form) if has_form else []
    return Row(
        wait,
        build_key(wait.run_id, wait.call_id, wait.hash),
        json.dumps([wait.run_id, wait.call_id, wait.hash]),
        may,
        is_selectable=may and is_approval and not wait.is_cut and not wait.separate and outcome is None,
        fields=fields if len(fields) <= 4 else (),
        others=others,
        defaults=[] if schema is None or wait.arguments is None else list_defaults(schema, wait.arguments),
        outcome=outcome,
    )


def _read_query(page: Page) -> ApprovalsQuery:
    given = page.request.query_params
    fields: dict[str, Any] = {"limit": ROWS}
    fields |= {name: given[name].strip() for name in (*FILTERS, "cursor") if given.get(name, "").strip()}
    return validate(ApprovalsQuery, fields, "the address")


async def _list_rows(page: Page) -> tuple[list[Row], str | None]:
    listed = await list_approvals(replace(page.call, query=_read_query(page)))
    has_users = any(wait.user for wait in listed.data)
    known = (await _list_visible_waits(page, ApprovalsQuery()))[0] if has_users else []
    counts = Counter((run.tenant, run.user) for _, run in known)
    schemas = await find_tool_schemas(
        page.call, [wait for wait in listed.data if wait.kind == "approval" and not wait.is_cut]
    )
    deferred = await find_decisions(page, [wait.run_id for wait in listed.data])
    outcomes = {name: describe_row(page, row) for name, row in deferred.items()}
    return [
        await _build_row(
            page,
            wait,
            max(counts[wait.tenant, wait.user] - 1, 0) if wait.user else 0,
            schemas.get((wait.agent, wait.tool)),
            outcomes.get((wait.run_id, wait.call_id, wait.hash)),
        )
        for wait in listed.data
    ], listed.cursor


async def _list_visible_waits(page: Page, query: ApprovalsQuery) -> tuple[list[tuple[WaitRow, RunRow]], bool]:
    """List the first waits that the visitor may see, with their runs, as the store has them: no run is asked. Also
    return whether there are no more."""
    store = await page.call.client.store()
    rows = await store.list_waits(**query.model_dump(include=set(FILTERS)), limit=_KEYS)
    known = await store.get_runs([row.context_id for row in rows])
    pairs = [(row, known[row.context_id]) for row in rows if row.context_id in known]
    visible = [
        (row, run)
        for row, run in pairs
        if await page.call.may("read", Resource("session", run.context_id, run.agent, run.tenant, run.user))
    ]
    return visible, len(rows) < _KEYS


async def count_pending(page: Page) -> int | None:
    """Count what waits in all runs; None for a caller who may not see all of them."""
    caller = page.call.caller
    if (caller.tenants, caller.agents, caller.sessions) != (None, None, None):
        return None
    return await (await page.call.client.store()).count_waits()


async def show_inbox(page: Page) -> Response:
    """Show what waits, the longest waiting first, or what expires the soonest."""
    return await _render_inbox(page, [])


async def _render_inbox(page: Page, results: Sequence[Outcome]) -> Response:
    (rows, cursor), count = await asyncio.gather(_list_rows(page), count_pending(page))
    given = page.request.query_params
    filters = {name: given[name] for name in FILTERS if given.get(name)}
    query = _read_query(page)
    groups: dict[str, int] = {}
    if (
        query.group is not None
        and count is not None
        and not filters.keys() & {"tool", "tenant", "user", "text", "order"}
    ):
        store = await page.call.client.store()
        groups = await store.count_wait_groups(query.group, agent=query.agent, kind=query.kind)

    amounts = [row.wait.amount for row in rows if row.wait.amount is not None]

    def drop_filter(dropped: str) -> dict[str, str]:
        return {name: value for name, value in filters.items() if name != dropped}

    return page.render(
        "inbox.html",
        rows=rows,
        cursor=cursor,
        count=count,
        filters=filters,
        is_filtered=bool(filters.keys() - {"group"}),
        is_first="cursor" not in given,
        has_amounts=bool(amounts),
        has_cents=any(amount != round(amount) for amount in amounts),
        groups=groups,
        drop_filter=drop_filter,
        results=results,
    )


async def list_changes(page: Page) -> Response:
    """Answer with the keys of the rows that wait by now: the page's script looks what has come and gone."""
    rows, is_whole = await _list_visible_waits(page, _read_query(page))
    keys = [build_key(row.context_id, row.call_id, row.hash) for row, _ in rows]
    return JSONResponse({"keys": keys, "is_whole": is_whole, "count": await count_pending(page)}, headers=HEADERS)


# ---
# Decisions in the inbox.


def _build_outcome(item: Decision, result: DecisionResult, me: str) -> Outcome:
    key = build_key(item.run_id, item.call_id, item.hash)
    if result.decided is not None:
        title, text, tone = describe_decision(result.decided, me)
        return Outcome(key, tone, title, text, item.run_id, result.decided.tool, at=result.decided.at)
    return build_problem_outcome(key, item.run_id, cast(dict[str, Any], result.problem))


async def decide_rows(page: Page) -> Response:
    """Decide on one row, or on those that were ticked, one after the other, with a result for each."""
    form, me = page.form, page.call.by
    items = [parse_item(text) for text in form.get_all("item")]
    if not items:
        raise InvalidInputError("no call was chosen", hint="Tick the calls that you have read.")
    decision, comment = form.get("decision"), form.get("comment").strip() or None
    if decision in ("answer", "refuse"):
        return await _answer_row(page, items[0], comment if decision == "refuse" else None)
    if decision not in ("approve", "deny"):
        raise InvalidInputError("the form says neither approve nor deny")
    outcomes: list[Outcome] = []
    if "bulk" in form:
        if decision == "deny" and comment is None:
            raise InvalidInputError("to deny several calls, give a reason", hint="The agents get it as their result.")
        items, outcomes = await _refuse_unselectable(page, items)
    decisions = [
        Decision(
            run_id=session,
            call_id=call_id,
            hash=shown,
            decision="approve" if decision == "approve" else "deny",
            comment=comment,
        )
        for session, call_id, shown in items
    ]
    if decisions and page.access.undo_seconds:
        outcomes += await gather_bounded(lambda item: _defer(page, item), decisions)
    elif decisions:
        answer = await decide_approvals(replace(page.call, body=Decisions(decisions=decisions)))
        pairs = zip(decisions, answer.results, strict=True)
        outcomes += [_build_outcome(item, result, me) for item, result in pairs]
    return await _show_outcomes(page, outcomes)


async def _defer(page: Page, item: Decision) -> Outcome:
    """Take a decision that can be taken back, if the call still waits."""
    names = item.run_id, item.call_id, item.hash
    try:
        call = await _open_call(page, item.run_id)
        await call.authorize("decide", cast(str, item.decision))
        pending, status = await find_pending(call, item.call_id)
        tool = pending.tool if pending else await find_waiting_tool(page, names) if status.reason else ""
        if not tool or (pending is not None and pending.hash != item.hash):
            gone = await _describe_gone(page, call, item)
            return replace(gone, title="Decided already", text=f"{gone.title}. {gone.text}") if gone.is_over else gone
        return await defer_decision(page, call, names, tool, {"decision": item.decision, "comment": item.comment})
    except PerdureError as error:
        return build_problem_outcome(build_key(*names), item.run_id, json.loads(bytes(build_problem(error).body)))


async def _refuse_unselectable(
    page: Page, items: Sequence[tuple[str, str, str]]
) -> tuple[list[tuple[str, str, str]], list[Outcome]]:
    """Refuse what is not to be decided with others, whatever the form says; what this page does not list is not decided
    either, only described."""
    rows, _ = await _list_rows(page)
    listed = {row.key: row for row in rows}
    kept, outcomes = [], []
    for item in items:
        row = listed.get(build_key(*item))
        if row is None:
            outcomes.append(await _describe_unlisted(page, item))
        elif row.is_selectable:
            kept.append(item)
        else:
            why = "Who asked for it may not approve it" if row.wait.separate else "It is not shown whole here"
            text = f"{why}: decide on it alone."
            outcomes.append(Outcome(row.key, "warn", "Not decided", text, item[0], row.wait.tool, False))
    return kept, outcomes


async def _describe_unlisted(page: Page, item: tuple[str, str, str]) -> Outcome:
    session, call_id, shown = item
    try:
        call = await _open_call(page, session)
    except (RunNotFoundError, ForbiddenError):
        return Outcome(build_key(*item), "warn", "Not decided", "There is no such call, or none that you may see.")
    return await _describe_gone(page, call, Decision(run_id=session, call_id=call_id, hash=shown))


async def _open_call(page: Page, session: str) -> Call:
    """Return the visitor's call for a run that it may read."""
    call = replace(page.call, params={"id": session}, resource=await page.call.web.find_session(session))
    await call.authorize("read", "answer")
    return call


async def _answer_row(page: Page, item: tuple[str, str, str], error: str | None) -> Response:
    """Answer a question, or say by ``error`` why there is no answer."""
    session, call_id, shown = item
    if page.form.get("decision") == "refuse" and error is None:
        raise InvalidInputError("say why there is no answer")
    call = await _open_call(page, session)
    pending, _ = await find_pending(call, call_id)
    if pending is None or pending.hash != shown:
        decision = Decision(run_id=session, call_id=call_id, hash=shown, value=None)
        return await _show_outcomes(page, [await _describe_gone(page, call, decision)])
    value = None if error is not None else read_answer(page.form, pending.form)
    decision = Decision(run_id=session, call_id=call_id, hash=shown, value=value, error=error)
    answer = await decide_approvals(replace(page.call, body=Decisions(decisions=[decision])))
    return await _show_outcomes(page, [_build_outcome(decision, answer.results[0], page.call.by)])


async def _show_outcomes(page: Page, outcomes: Sequence[Outcome]) -> Response:
    if page.wants_fragment:
        return page.render("outcomes.html", outcomes=outcomes)
    return await _render_inbox(page, outcomes)


async def show_outcome(page: Page) -> Response:
    """Show, in the place of a row's buttons, what became of a call that waits no longer."""
    shown = page.request.query_params.get("hash", "")
    decision = Decision(run_id=page.call.params["id"], call_id=page.call.params["call_id"], hash=shown or "-")
    return page.render("outcomes.html", outcomes=[await _describe_gone(page, page.call, decision)])


async def _describe_gone(page: Page, call: Call, item: Decision) -> Outcome:
    key = build_key(item.run_id, item.call_id, item.hash)
    if (deferred := await find_outcome(page, item.run_id, item.call_id, item.hash)) is not None:
        return deferred
    pending, status = await find_pending(call, item.call_id)
    if pending is not None:
        if pending.hash == item.hash:
            return Outcome(key, "warn", "It still waits", "Load the page to decide on it.", item.run_id, is_over=False)
        return Outcome(key, "warn", "It has changed", "The call waits with other arguments now.", item.run_id)
    past = find_decided(status, item.call_id)
    if past is None and status.reason and status.state in OPEN_STATES:
        return Outcome(key, "warn", "The run does not answer", status.reason, item.run_id, is_over=False)
    if past is None:
        return Outcome(key, "warn", "It waits no longer", f"The run is {status.state}.", item.run_id)
    title, text, tone = describe_decision(past, page.call.by)
    return Outcome(key, tone, title, text, item.run_id, past.tool, at=past.at)


def find_decided(status: Status, call_id: str) -> DecidedApproval | None:
    return next((decided for decided in reversed(status.decided) if decided.call_id == call_id), None)


# ---
# The page of one call.


async def show_call(page: Page) -> Response:
    """Show a call that waits: what it is about to do, what led to it, and the ways to decide."""
    return await _show_call(page)


async def _show_call(page: Page, *, problem: str | None = None, status_code: int = 200) -> Response:
    call_id = page.call.params["call_id"]
    pending, status = await find_pending(page.call, call_id)
    transcript = await _read_context(page)
    resource = page.call.resource or Resource("session")
    block = transcript.blocks.get(f"c-{call_id}")
    if pending is not None:
        deferred = await find_outcome(page, status.context_id, call_id, pending.hash)
        if deferred is not None and deferred.is_pending:
            shown = _find_arguments(pending, block)
            count = await count_pending(page)
            return page.render("decided.html", outcome=deferred, name=pending.tool, arguments=shown, count=count)
        if deferred is not None and not deferred.is_over:
            problem = problem or f"{deferred.title}. {deferred.text}"
    if pending is None:
        past = find_decided(status, call_id)
        if past is None and not isinstance(block, CallBlock):
            raise NotFoundError("there is no such call")
        outcome = await _describe_gone(page, page.call, Decision(run_id=status.context_id, call_id=call_id, hash="-"))
        shown = block.arguments if isinstance(block, CallBlock) else None
        name = past.tool if past is not None else cast(CallBlock, block).name
        count = await count_pending(page)
        return page.render("decided.html", outcome=outcome, name=name, arguments=shown, count=count)
    arguments = _find_arguments(pending, block)
    if len(json.dumps(arguments)) > _MAX_SHOWN_CHARS:
        arguments = None
    tool = await find_tool(page.call, status.agent, pending.tool)
    schema = get_parameters(tool)
    is_approval = pending.kind == "approval"
    fields = build_fields(schema, arguments) if is_approval and arguments is not None else []
    blocks = [known for known in transcript.blocks.values() if known.key != f"c-{call_id}"][-_CONTEXT_BLOCKS:]
    given = page.request.query_params.get("hash", "")
    return page.render(
        "call.html",
        status=status_code,
        pending=pending,
        description=str(tool.get("description") or ""),
        run=status,
        resource=resource,
        arguments=arguments,
        fields=fields,
        omitted=[known for known in fields if known.name not in (arguments or {})],
        answer_fields=[] if is_approval else build_answer_fields(pending.form),
        may_sign_in=pending.consent is not None and await may_sign_in(page.call, pending.consent),
        blocks=blocks,
        may_decide=await page.call.may("decide" if is_approval else "send", resource),
        has_changed=bool(given) and given != pending.hash,
        problem=problem,
        is_own=await has_started(page),
        given=await read_given_results(page.call),
        others=await _list_others(page, resource, call_id),
        count=await count_pending(page),
        standing=[one for one in status.standing if one.tool == pending.tool],
        values=page.form,
    )


async def has_started(page: Page) -> bool:
    """Whether the visitor has started the run's conversation."""
    message = await read_first_message(await page.call.client.store(), page.call.params["id"])
    return message is not None and message.by is not None and hash_name(message.by) == hash_name(page.call.by)


async def _list_others(page: Page, resource: Resource, call_id: str) -> list[WaitRow]:
    """List the other calls of the same user that wait."""
    if not resource.user:
        return []
    rows, _ = await _list_visible_waits(page, ApprovalsQuery())
    return [
        row
        for row, run in rows
        if (run.tenant, run.user) == (resource.tenant, resource.user)
        and (row.context_id, row.call_id) != (page.call.params["id"], call_id)
    ]


def _find_arguments(pending: WaitingCall, block: Any) -> Mapping[str, Any] | None:
    """Return the arguments that the hash is of, in the model's order, which the events have; large ones only they
    have."""
    given = block.arguments if isinstance(block, CallBlock) else None
    if given is not None and hash_arguments(pending.call_id, pending.tool, given) == pending.hash:
        return given
    return pending.arguments


async def _read_context(page: Page) -> Transcript:
    store = await page.call.client.store()
    window = await read_window(store, page.call.params["id"], size=60)
    transcript = Transcript().add_all(window.events)
    await add_stored_parts(page.call.client, transcript, window)
    return transcript


async def show_context(page: Page) -> Response:
    """Show what led to a call, in its row."""
    transcript = await _read_context(page)
    key = f"c-{page.call.params['call_id']}"
    blocks = [block for block in transcript.blocks.values() if block.key != key][-_CONTEXT_BLOCKS:]
    given = await read_given_results(page.call)
    return page.render("context.html", blocks=blocks, given=given, run_id=page.call.params["id"])


async def decide_call(page: Page, back: str | None = None) -> Response:
    """Decide on one call, or show what a change of its arguments changes before it is approved with them; then show the
    call, or the page ``back``."""
    action, call_id = page.form.get("decision"), page.call.params["call_id"]
    try:
        if action == "review":
            return await _review_change(page)
        event = await _build_event(page, action)
        if event["type"] == "approval" and page.access.undo_seconds:
            return await _defer_event(page, SessionEvent.model_validate(event).root, back)
        accepted = await post_event(replace(page.call, body=SessionEvent.model_validate(event)))
    except (InvalidInputError, ApprovalForbiddenError) as error:
        if page.wants_fragment:
            raise
        message = join_sentences(error.message, error.hint)
        return await _show_call(page, problem=message, status_code=build_problem(error).status_code)
    except PerdureError as error:
        if page.wants_fragment or build_problem(error).status_code != 409:
            raise
        return await _show_call(page, problem=error.message, status_code=409)
    assert isinstance(accepted, Accepted)
    if page.wants_fragment and accepted.decided is not None:
        title, text, tone = describe_decision(accepted.decided, page.call.by)
        return page.render("outcomes.html", outcomes=[Outcome("", tone, title, text, at=accepted.decided.at)])
    return page.redirect(back or f"/inbox/{quote(page.call.params['id'], safe='')}/{quote(call_id, safe='')}")


async def _defer_event(page: Page, event: Any, back: str | None) -> Response:
    """Take the decision of a form that can be taken back, if the call still waits as it was shown."""
    session, call_id = page.call.params["id"], page.call.params["call_id"]
    await page.call.authorize("decide", event.decision)
    pending, _ = await find_pending(page.call, call_id)
    if pending is None or pending.hash != event.hash:
        if not page.wants_fragment:
            return await _show_call(page, problem="The call has changed, or waits no longer.", status_code=409)
        outcome = await _describe_gone(
            page, page.call, Decision(run_id=session, call_id=call_id, hash=event.hash or "-")
        )
    else:
        fields = {"comment": event.comment, "arguments": event.arguments, "always": event.always or None}
        fields["decision"] = event.decision
        outcome = await defer_decision(page, page.call, (session, call_id, pending.hash), pending.tool, fields)
    if page.wants_fragment:
        return page.render("outcomes.html", outcomes=[outcome])
    return page.redirect(back or f"/inbox/{quote(session, safe='')}/{quote(call_id, safe='')}")


async def _build_event(page: Page, action: str) -> dict[str, Any]:
    """Build the event of a form. Raises ``InvalidInputError``."""
    form, call_id = page.form, page.call.params["call_id"]
    common = {"call_id": call_id, "hash": form.get("hash")}
    approval = {"type": "approval", **common, "comment": form.get("comment").strip() or None}
    match action:
        case "approve":
            return approval | {"decision": "approve"}
        case "always":
            return approval | {"decision": "approve", "always": True}
        case "deny":
            return approval | {"decision": "deny"}
        case "change":
            arguments = parse_json_field("arguments", form.get("arguments"))
            return approval | {"decision": "approve", "arguments": arguments}
        case "refuse":
            reason = form.get("comment").strip()
            if not reason:
                raise InvalidInputError("say why there is no answer")
            return {"type": "answer", **common, "error": reason}
        case "answer":
            pending, _ = await find_pending(page.call, call_id)
            schema = None if pending is None else pending.form
            return {"type": "answer", **common, "value": read_answer(form, schema)}
        case _:
            raise InvalidInputError("the form says not what to do")


async def _review_change(page: Page) -> Response:
    """Show the difference between the arguments of the call and those of the form. Nothing is decided yet."""
    call_id = page.call.params["call_id"]
    pending, status = await find_pending(page.call, call_id)
    if pending is None or pending.hash != page.form.get("hash"):
        return await _show_call(page)
    block = (await _read_context(page)).blocks.get(f"c-{call_id}")
    old = _find_arguments(pending, block) or {}
    tool = await find_tool(page.call, status.agent, pending.tool)
    schema = get_parameters(tool)
    if "arguments" in page.form:
        new = parse_json_field("arguments", page.form.get("arguments"))
        if not isinstance(new, dict):
            raise InvalidInputError("arguments: they are an object of names and values")
    else:
        new = read_fields(page.form, build_fields(schema, old), old)
    changes = find_changes(old, new)
    if not changes:
        raise InvalidInputError("nothing was changed", hint="Approve the call as it is, or change an argument.")
    return page.render(
        "review_part.html" if page.wants_fragment else "review.html",
        pending=pending,
        run=status,
        resource=page.call.resource or Resource("session"),
        summary=summarize_changed(tool, pending.tool, new),
        changes={change.name: change for change in changes},
        shown={**old, **new},
        defaults=[] if schema is None else list_defaults(schema, new),
        arguments=json.dumps(new, ensure_ascii=True),
        comment=page.form.get("comment"),
        is_own=await has_started(page),
        count=None if page.wants_fragment else await count_pending(page),
    )


PAGES = (
    PageRoute("GET", "/inbox", show_inbox, "inbox"),
    PageRoute("POST", "/inbox", decide_rows, "decide_rows", seconds=50.0),
    PageRoute("GET", "/inbox/changes", list_changes, "inbox_changes"),
    PageRoute("GET", "/inbox/{id:segment}/{call_id:segment}", show_call, "call"),
    PageRoute("POST", "/inbox/{id:segment}/{call_id:segment}", decide_call, "decide_call"),
    PageRoute("GET", "/inbox/{id:segment}/{call_id:segment}/context", show_context, "context"),
    PageRoute("GET", "/inbox/{id:segment}/{call_id:segment}/outcome", show_outcome, "outcome"),
)
