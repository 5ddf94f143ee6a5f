"""Sign-ins at MCP servers from the page of a call that waits for one.

    the call's page ─► POST sign-in ─► a page with the link to the authorization server ─► its pages ─► GET callback

What is between the two halves is in the store, sealed (``client.grants``): any replica takes the browser's return. Only
a server that a waiting call names can be signed in to, and a call names only servers that its agent has.
"""

from __future__ import annotations

import json
from urllib.parse import quote, urlsplit

from starlette.requests import Request
from starlette.responses import Response

from ..errors import InvalidInputError, ToolError
from ..types.approvals import Consent
from ..web.auth import Resource
from ..web.operations import Call
from ..web.problems import ForbiddenError, WebError
from .decisions import find_pending
from .pages import Page, PageRoute

CALLBACK = "/mcp/callback"


async def may_sign_in(call: Call, consent: Consent) -> bool:
    """Whether the visitor may sign in for a waiting call: with a grant of a user that user, and with one that all runs
    of a tenant share whoever may operate all of these."""
    caller = call.caller
    if consent.user:
        return caller.name == consent.user and await call.may("send", call.resource or Resource("session"))
    is_limited = caller.agents is not None or caller.sessions is not None
    return not is_limited and await call.may("operate", Resource("session", tenant=consent.tenant or None))


async def begin(page: Page) -> Response:
    """Begin a sign-in: show where it leads, with a link. A redirect would send the form's browser on unasked."""
    session, call_id = page.call.params["id"], page.call.params["call_id"]
    pending, _ = await find_pending(page.call, call_id)
    if pending is None or pending.consent is None or pending.hash != page.form.get("hash"):
        raise InvalidInputError("The call has changed, or waits for no sign-in any longer.", hint="Open it again.")
    consent = pending.consent
    if not await may_sign_in(page.call, consent):
        raise ForbiddenError("You may not sign in for these runs.")
    try:
        begun = await page.call.client.grants.begin(
            consent.server,
            redirect_uri=_build_redirect_uri(page),
            tenant=consent.tenant or None,
            user=consent.user or None,
            scopes=consent.scopes,
            by=page.call.by,
            note=json.dumps([session, call_id]),
        )
    except ToolError as error:
        raise WebError(error.message, status=502, hint=error.hint) from error
    host = urlsplit(begun.url).netloc
    return page.render("sign_in.html", url=begun.url, host=host, consent=consent, session=session, call_id=call_id)


async def finish(page: Page) -> Response:
    """Take the browser's return: of the visitor who has begun the sign-in, once. Then show the run, which goes on."""
    pairs = page.request.query_params.multi_items()
    answer = dict(pairs)
    if len(answer) != len(pairs):
        raise InvalidInputError("The address that the authorization server led to has a parameter twice.")
    try:
        signed_in = await page.call.client.grants.finish(answer, by=page.call.by, tenants=page.call.caller.tenants)
    except ToolError as error:
        raise WebError(error.message, status=502, hint=error.hint) from error
    session, call_id = json.loads(signed_in.note)
    return page.redirect(f"/inbox/{_quote_id(page, session)}/{quote(call_id, safe='')}")


def _quote_id(page: Page, session: str) -> str:
    return quote(page.call.caller.show_id(session), safe="")


def _build_redirect_uri(page: Page) -> str:
    """Where the browser comes back to: this page's own origin, whose name the service has checked."""
    request: Request = page.request
    return f"{request.url.scheme}://{request.headers['host']}{page.base}{CALLBACK}"


PAGES = (
    PageRoute("POST", "/inbox/{id:segment}/{call_id:segment}/sign-in", begin, "sign_in", seconds=120.0),
    PageRoute("GET", CALLBACK, finish, "signed_in"),
)
