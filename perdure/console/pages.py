"""A page: what a request for one passes, what templates know, the headers and the files that pages load.

    request ─► who looks? (login, proxy, --dev) ─► may it see this run? ─► form: own page, own browser ─► page

A page works with the functions of the native API, through a :class:`~perdure.web.operations.Call` of its visitor: what
the API refuses, a page refuses.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from typing import Any
from urllib.parse import quote, urlencode

from jinja2 import Environment, PackageLoader, StrictUndefined, pass_context
from jinja2.runtime import Context
from markupsafe import Markup
from starlette.requests import ClientDisconnect, Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from ..client.audit import audit_caller
from ..errors import PerdureError, RunNotFoundError
from ..types.summaries import is_own_summary
from ..web.auth import Caller, Resource, Verb
from ..web.operations import Call, Web
from ..web.origins import get_client_address
from ..web.problems import (
    ForbiddenError,
    NotFoundError,
    UnauthorizedError,
    WebError,
    build_problem,
    build_unexpected_problem,
)
from . import texts
from .access import FORM_COOKIE, FORM_TOKEN, NOBODY, ConsoleAccess, Form, Visitor, build_visitor, read_form, set_cookie

logger = logging.getLogger("perdure.console")

HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'",
    "X-Frame-Options": "DENY",
    "X-Content-Type-Options": "nosniff",
    # Not no-referrer: browsers then send `Origin: null` with the pages' own forms. Links out have rel=noreferrer.
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
FRAGMENT_HEADER = "x-perdure-fragment"
"""Sent by the pages' script: it wants the changed part of a page alone."""
_ASSETS = {
    "console.css": "text/css; charset=utf-8",
    "console.js": "text/javascript; charset=utf-8",
    "keys.js": "text/javascript; charset=utf-8",
    "decisions.js": "text/javascript; charset=utf-8",
    "inbox.js": "text/javascript; charset=utf-8",
    "run.js": "text/javascript; charset=utf-8",
    "bulk.js": "text/javascript; charset=utf-8",
    "chat.css": "text/css; charset=utf-8",
    "chat.js": "text/javascript; charset=utf-8",
    "icon.svg": "image/svg+xml",
}


@dataclass(frozen=True)
class Asset:
    """A file that pages load."""

    content: bytes
    media_type: str
    version: str
    """The same of all files: scripts import each other by relative addresses."""


@cache
def load_assets() -> Mapping[str, Asset]:
    """Read the files that pages load from the package."""
    folder = resources.files("perdure.console").joinpath("assets")
    contents = {name: folder.joinpath(name).read_bytes() for name in _ASSETS}
    version = hashlib.sha256(b"".join(contents.values())).hexdigest()[:12]
    return {name: Asset(content, _ASSETS[name], version) for name, content in contents.items()}


@cache
def build_templates() -> Environment:
    """Build the environment of the templates: everything that they print is escaped."""
    environment = Environment(
        loader=PackageLoader("perdure.console"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
        finalize=texts.finalize,
    )
    environment.filters |= {
        "shown": _show_id,
        "segment": _quote_segment,
        "duration": texts.format_duration,
        "cost": texts.format_cost,
        "count": texts.format_count,
        "size": texts.format_size,
        "pretty": texts.format_json,
        "value": texts.format_value,
        "summary": texts.summarize_arguments,
        "summary_line": texts.render_summary_line,
        "amount": texts.format_amount,
        "time": texts.render_time,
        "overdue": texts.is_overdue,
        "utc": texts.render_utc,
        "date": texts.render_date,
        "took_row": lambda row: texts.format_duration(texts.measure(row.created_at, row.updated_at)),
        "markdown": texts.render_markdown,
        "plain": texts.render_plain,
        "raw_text": texts.keep_text,
        "period": texts.format_period,
        "digest": lambda text: hashlib.sha256(text.encode(errors="replace")).hexdigest()[:10],
        "fields": texts.parse_fields,
        "lasted": lambda block: texts.format_duration(texts.measure(block.started, block.ended)),
        "success": lambda totals: f"{100 * (totals.calls - totals.errors) / totals.calls:.1f} %",
        "short_auth": texts.shorten_auth,
        "took": lambda run: texts.format_duration(texts.measure(run.started, run.closed)),
    }
    environment.tests["own_summary"] = is_own_summary
    return environment


@pass_context
def _show_id(context: Context, id: str) -> str:
    """Return the id of a run or a schedule as the visitor names it: one of a single tenant without that tenant."""
    caller = context.get("caller")
    return caller.show_id(id) if isinstance(caller, Caller) else id


@pass_context
def _quote_segment(context: Context, text: str) -> str:
    return quote(_show_id(context, text), safe="")


@dataclass
class Page:
    """A request for a page: of a known visitor, for a run that it may see."""

    call: Call
    visitor: Visitor
    access: ConsoleAccess
    form: Form = field(default_factory=lambda: Form([]))
    """The fields of a POST."""

    @property
    def request(self) -> Request:
        """The request."""
        return self.call.request

    @property
    def base(self) -> str:
        """The path of the console, as the browser reaches it."""
        return quote(self.request.scope["root_path"])

    @property
    def wants_fragment(self) -> bool:
        """Whether the page's script asks, for a part of it."""
        return FRAGMENT_HEADER in self.request.headers

    async def is_current(self) -> bool:
        """Whether the request's credentials still say the same of its visitor, and it may still read, as of
        :meth:`~perdure.web.operations.Call.is_current`: false after a logout or a revocation."""
        try:
            known = (await self.access.find_visitor(self.request)).caller == self.call.caller
            return known and (self.call.resource is None or await self.call.may("read", self.call.resource))
        except (UnauthorizedError, ForbiddenError):
            return False
        except Exception as error:  # the store does not answer: neither do the events
            logger.info("whether %r is still known cannot be checked: %s", self.call.by, error)
            return True

    def render(self, template: str, *, status: int = 200, **values: Any) -> Response:
        """Return the page of a template, which :meth:`PageRoute.build_route` fills in."""
        context = build_context(self.request, self.visitor)
        return TemplateResponse(lambda: build_templates().get_template(template).render(context, **values), status)

    def redirect(self, path: str, **query: str) -> Response:
        """Send the browser to another page of the console."""
        return RedirectResponse(f"{self.base}{path}" + (f"?{urlencode(query)}" if query else ""), 303, HEADERS)


# The first button of a form is the one that Enter in a field presses. One that is disabled keeps Enter from sending the
# form, also without scripts: nothing is decided by a single key.
_NO_ENTER = Markup('<button type="submit" disabled hidden></button>')
_TOKEN_FIELD = Markup('<input type="hidden" name="{}" value="{}">{}')


def build_context(request: Request, visitor: Visitor) -> dict[str, Any]:
    """Build what every template knows."""
    base = quote(request.scope["root_path"])
    caller = visitor.caller
    return {
        "base": base,
        "asset": lambda name: f"{base}/assets/{load_assets()[name].version}/{name}",
        "caller": caller,
        "has_login": visitor.login_id is not None,
        "path": quote(request.scope["path"], safe="/%~:@!$&'()*+,;="),
        "token_field": lambda enter=False: _TOKEN_FIELD.format(
            FORM_TOKEN, visitor.form_token, "" if enter else _NO_ENTER
        ),
    }


def html_response(body: str, status: int = 200) -> Response:
    """Build a response with the console's headers."""
    return Response(body.encode(errors="replace"), status, HEADERS, "text/html; charset=utf-8")


class TemplateResponse(Response):
    """A page whose template is filled in after its handler has returned: in a thread, with a budget for its texts."""

    def __init__(self, render: Callable[[], str], status: int) -> None:
        super().__init__(None, status, HEADERS, "text/html; charset=utf-8")
        self._render_template = render

    async def complete(self) -> None:
        """Fill in the template."""
        self.body = (await texts.render_in_thread(self._render_template)).encode(errors="replace")
        self.headers["content-length"] = str(len(self.body))


Handler = Callable[[Page], Awaitable[Response]]


@dataclass(frozen=True)
class PageRoute:
    """A page, or what a form of one does. ``{id}`` in its path is a run."""

    method: str
    path: str
    handler: Handler
    name: str
    verb: Verb = "read"
    takes_files: bool = False
    """Whether its form has files."""
    seconds: float = 20.0
    """How long a form may take to act: a person waits."""

    def build_route(self, web: Web, access: ConsoleAccess) -> Route:
        """Build the route that serves it."""

        async def endpoint(request: Request) -> Response:
            try:
                visitor = await access.find_visitor(request)
            except UnauthorizedError as error:
                return ask_for_login(request, error)
            except PerdureError as error:
                return show_error(request, build_visitor(request, NOBODY), error)
            except Exception as error:
                build_unexpected_problem(error)  # for the log
                failure = WebError("The page failed unexpectedly.", status=500)
                return show_error(request, build_visitor(request, NOBODY), failure)
            try:
                response = await self._answer(web, access, request, visitor)
            except ClientDisconnect:
                return Response(status_code=400)
            except PerdureError as error:
                response = show_error(request, visitor, error)
            except Exception as error:
                build_unexpected_problem(error)  # for the log
                response = show_error(request, visitor, WebError("The page failed unexpectedly.", status=500))
            if visitor.is_new_seed and self.method == "GET":
                set_cookie(request, response, FORM_COOKIE, visitor.seed)
            return response

        return Route(self.path, endpoint, methods=[self.method], name=self.name)

    async def _answer(self, web: Web, access: ConsoleAccess, request: Request, visitor: Visitor) -> Response:
        params = dict(request.path_params)
        params |= {name: visitor.caller.read_id(params[name]) for name in ("id", "schedule") if name in params}
        call = Call(web, request, visitor.caller, params, None, None)
        page = Page(call, visitor, access)
        with audit_caller(visitor.caller.auth, get_client_address(request.scope)):
            if self.method == "POST":
                page.form = await read_form(request, visitor, takes_files=self.takes_files)
            try:
                response = await self._handle(web, page)
                if isinstance(response, TemplateResponse):
                    await response.complete()
                return response
            finally:
                await page.form.close()

    async def _handle(self, web: Web, page: Page) -> Response:
        call = page.call
        call.resource = await web.find_session(call.params["id"]) if "id" in call.params else Resource("approval")
        await call.authorize(self.verb, self.name)
        if self.method != "POST":
            return await self.handler(page)
        try:
            async with asyncio.timeout(self.seconds):
                return await self.handler(page)
        except TimeoutError:
            raise WebError(
                f"There was no answer for {self.seconds:g} s: no worker may be serving this run. What was asked for"
                " may still take effect.", status=504, name="TimeoutError",
                hint="Look at the run, and send the form again if needed: the same decision counts once.",
            ) from None  # fmt: skip


def show_error(request: Request, visitor: Visitor, error: PerdureError) -> Response:
    """Build the page of an error. One that names hosts or stores is in the log alone, as with the API."""
    problem = build_problem(visitor.caller.show_error(error))
    fields = json.loads(bytes(problem.body))
    values = {"status": problem.status_code, "detail": fields["detail"], "hint": fields.get("hint")}
    if isinstance(error, RunNotFoundError | NotFoundError):
        values |= {"detail": "There is no such page or run, or none that you may see.", "hint": None}
    template = "error_fragment.html" if FRAGMENT_HEADER in request.headers else "error.html"
    body = build_templates().get_template(template).render(build_context(request, visitor), **values)
    response = html_response(body, problem.status_code)
    for name in ("retry-after",):
        if name in problem.headers:
            response.headers[name] = problem.headers[name]
    return response


def ask_for_login(request: Request, error: UnauthorizedError) -> Response:
    """Send a browser to the login. A form that is posted without a login is refused: nothing of it was done."""
    base = quote(request.scope["root_path"])
    if FRAGMENT_HEADER in request.headers or "text/event-stream" in request.headers.get("accept", ""):
        return Response(f"{error.message}\n", 401, HEADERS, "text/plain; charset=utf-8")
    path = request.scope["path"].removeprefix(request.scope["root_path"]) if request.method == "GET" else ""
    query = f"?{request.url.query}" if request.url.query and path else ""
    target = urlencode({"next": f"{quote(path)}{query}"}) if path not in ("", "/") else ""
    return RedirectResponse(f"{base}/login" + (f"?{target}" if target else ""), 303, HEADERS)
