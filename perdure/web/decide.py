"""``/decide/<session>/<call>?hash=…``: the page that the link of a webhook or a mail leads to, with a button for each
way to decide. Reading it decides nothing, since mail programs and chats fetch links; the button posts.

A browser proves who its user is by a reverse proxy, or by Basic with an API token as the password.
"""

from __future__ import annotations

import base64
import hashlib
import json
import unicodedata
from collections.abc import Sequence
from html import escape
from typing import Any
from urllib.parse import parse_qs

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from ..client.audit import audit_caller
from ..client.progress import refuse_without_worker
from ..errors import PerdureError, RunNotFoundError, join_sentences
from ..types.approvals import WaitingCall
from ..types.interface import Status
from .auth import Resource
from .lists import GivenResults, read_given_results
from .operations import Call, Web, shown_errors
from .origins import get_client_address
from .problems import UnauthorizedError, WebError, build_problem, build_unexpected_problem

MAX_FORM_BYTES = 16 * 1024
FORM_TYPE = "application/x-www-form-urlencoded"
_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 44rem; margin: 2rem auto; padding: 0 1rem; }
pre { padding: 1rem; border: 1px solid; overflow-x: auto; white-space: pre-wrap; overflow-wrap: anywhere; }
textarea { width: 100%; font: inherit; box-sizing: border-box; }
button { font: inherit; padding: .5rem 1.5rem; margin: 1rem .5rem 0 0; }
:root { color-scheme: light dark; }
"""
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'; "
    f"style-src 'sha256-{base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()}'",
    "X-Frame-Options": "DENY",
    # Under no-referrer a browser posts the page's own form with "Origin: null", which is refused.
    "Referrer-Policy": "same-origin",
}


def decide_routes(web: Web, prefix: str = "/decide") -> list[Route]:
    """Build the routes of the page: ``GET`` shows the call, ``POST`` decides."""

    async def endpoint(request: Request) -> Response:
        try:
            caller = await web.authenticate(request)
            params = dict(request.path_params)
            call = Call(web, request, caller, params | {"id": caller.read_id(params["id"])}, None, None)
            with audit_caller(caller.auth, get_client_address(request.scope)), shown_errors(caller):
                call.resource = await web.find_session(call.params["id"])
                return await (_decide(call) if request.method == "POST" else _show(call))
        except UnauthorizedError as error:
            return build_problem(error)  # with its challenge, for which the browser asks its user
        except PerdureError as error:
            status = build_problem(error).status_code
            message = "There is no such call, or none for you." if status == 404 else _get_message(error)
            return _page("Not decided", f"<p>{_text(message)}</p>", status)
        except Exception as error:
            return build_unexpected_problem(error)

    path = f"{prefix}/{{id:segment}}/{{call_id:segment}}"
    return [Route(path, endpoint, methods=["GET", "POST"], name="decide")]


def _get_message(error: PerdureError) -> str:
    detail = json.loads(bytes(build_problem(error).body))
    return join_sentences(detail["detail"], detail.get("hint"))


async def _show(call: Call) -> Response:
    await call.authorize("read", "decide")
    given = call.request.query_params.get("hash", "")
    pending, status = await _find_pending(call)
    if pending is None or pending.hash != given:
        return _page(*_describe_past(call, status, pending))
    resource = call.resource or Resource("session")
    session = call.caller.show_id(call.params["id"])
    facts = {"agent": resource.agent, "tenant": resource.tenant, "session": session, "until": pending.expires}
    rows = "".join(f"<li>{name}: <b>{_text(value)}</b></li>" for name, value in facts.items() if value)
    may = await call.may("decide", resource)
    form = _build_form(pending) if may else "<p>You may read this, and not decide on it.</p>"
    title = f"Approve {pending.tool}?"
    evidence = _build_given(await read_given_results(call))
    return _page(title, f"<ul>{rows}</ul>{_build_arguments(pending)}{evidence}{form}")


async def _find_pending(call: Call) -> tuple[WaitingCall | None, Status]:
    status = await call.run.status()
    return next((one for one in status.approvals if one.call_id == call.params["call_id"]), None), status


def _describe_past(call: Call, status: Status, pending: WaitingCall | None) -> tuple[str, str, int]:
    """Say why there is nothing to decide: who has decided, or that the call has changed."""
    if pending is not None:
        return "The call has changed", "<p>It waits with other arguments than this link is for.</p>", 409
    past = next((one for one in reversed(status.decided) if one.call_id == call.params["call_id"]), None)
    if past is None:
        raise RunNotFoundError("there is no such call")
    return f"{past.tool}: {past.state}", f"<p>{_text(str(past))}</p>", 200


def _build_given(given: Sequence[GivenResults]) -> str:
    """Say which results of the conversation are not those of its tools."""
    rows = [f"{_text(one.tool)} by {_text(one.by or 'a client')} ({one.count})" for one in given]
    return (
        f"<p>Results in this conversation that people gave in the place of tools: {', '.join(rows)}</p>" if rows else ""
    )


def _build_arguments(pending: WaitingCall) -> str:
    if pending.arguments is None:
        return "<p>The arguments are too large for this page: read them in the session before you decide.</p>"
    return f"<pre>{_text(json.dumps(pending.arguments, ensure_ascii=False, indent=2))}</pre>"


def _build_form(pending: WaitingCall) -> str:
    if pending.kind != "approval":
        return f"<p>{_text(pending.question or 'It waits for an answer')}: answer it in the session.</p>"
    reminder = "<p>Those who asked for this call may not approve it.</p>" if pending.separate else ""
    return f"""{reminder}<form method="post">
<input type="hidden" name="hash" value="{escape(pending.hash, quote=True)}">
<label>Comment, for the agent <textarea name="comment" rows="3" maxlength="2000"></textarea></label>
<button name="decision" value="approve">Approve</button><button name="decision" value="deny">Deny</button></form>"""


async def _decide(call: Call) -> Response:
    form = await _read_form(call.request)
    decision, given = form.get("decision", ""), form.get("hash", "")
    if decision not in ("approve", "deny") or not given:
        raise WebError("the form has a decision, approve or deny, and the hash of the call", name="InvalidInputError")
    await call.authorize("decide", decision)
    call_id, comment = call.params["call_id"], form.get("comment", "").strip() or None
    decide = call.run.approve if decision == "approve" else call.run.deny
    decided = await refuse_without_worker(call.run, decide(call_id, by=call.by, comment=comment, hash=given))
    return _page(f"{decided.tool}: {decided.state}", f"<p>{_text(str(decided))}</p>")


async def _read_form(request: Request) -> dict[str, str]:
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != FORM_TYPE:
        raise WebError("the page's own form is sent here", status=415, name="ContentTypeError")
    raw = await request.body()
    try:
        fields = parse_qs(raw.decode(), max_num_fields=10, keep_blank_values=True, errors="strict")
    except ValueError:
        raise WebError("the form cannot be read", name="InvalidInputError") from None
    return {name: values[-1] for name, values in fields.items()}


def _text(value: Any) -> str:
    """Escape a text; characters that would hide or reorder others are shown by their number."""
    shown = "".join(
        char if char in "\n\t" or unicodedata.category(char) not in ("Cc", "Cf", "Cs", "Co") else f"[U+{ord(char):04X}]"
        for char in str(value)
    )
    return escape(shown)


def _page(title: str, body: str, status: int = 200) -> Response:
    head = f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{_text(title)}</title>'
    head += f'<meta name="viewport" content="width=device-width"><style>{_STYLE}</style>'
    return Response(f"{head}<h1>{_text(title)}</h1>{body}</html>", status, _HEADERS, "text/html")
