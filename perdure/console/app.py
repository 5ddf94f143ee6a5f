"""The routes of the console: login and logout, the files that pages load, and the pages of the other modules."""

from __future__ import annotations

import json
from collections.abc import Sequence
from urllib.parse import quote, urlsplit

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import BaseRoute, Mount, Route

from .. import _config as config
from ..client.deferred_decisions import UNDO_SECONDS
from ..errors import PerdureError
from ..web.app import CONSOLE_PREFIX
from ..web.operations import ApiRouter, Web
from ..web.problems import NotFoundError, UnauthorizedError, build_problem, build_unexpected_problem
from . import (
    agents,
    attempts,
    audit,
    bulk,
    chat,
    compare,
    costs,
    decisions,
    inbox,
    overview,
    run,
    runs,
    schedules,
    sign_ins,
    webhooks,
    workers,
)
from .access import (
    FORM_COOKIE,
    LOGIN_COOKIE,
    LOGIN_SECONDS,
    NOBODY,
    ConsoleAccess,
    build_visitor,
    delete_cookie,
    read_form,
    set_cookie,
)
from .pages import HEADERS, Page, PageRoute, build_context, build_templates, html_response, load_assets, show_error

# ---
# Login and logout.


def _clean_next(target: str) -> str:
    """Return the page of the console that a login goes on with: never one elsewhere."""
    parts = urlsplit(target)
    is_own = target.startswith("/") and not target.startswith("//") and not parts.netloc and not parts.scheme
    return target if is_own and "\\" not in target and target.isprintable() and len(target) < 4_000 else "/overview"


_LOGIN_HINT = "Copy it whole, with the pdr_ at its beginning. It may also have been revoked, or have expired."


def _build_login_route(access: ConsoleAccess) -> Route:
    async def endpoint(request: Request) -> Response:
        visitor, status, problem = build_visitor(request, NOBODY), 200, None
        target = _clean_next(request.query_params.get("next", "/overview"))
        if request.method == "POST":
            try:
                form = await read_form(request, visitor)
                target = _clean_next(form.get("next"))
                _, cookie = await access.log_in(request, form.get("token").strip())
                response: Response = RedirectResponse(quote(request.scope["root_path"]) + target, 303, HEADERS)
                set_cookie(request, response, LOGIN_COOKIE, cookie, LOGIN_SECONDS)
                delete_cookie(request, response, FORM_COOKIE)
                return response
            except PerdureError as error:
                answer = build_problem(error)
                status, problem = answer.status_code, json.loads(bytes(answer.body))
                if isinstance(error, UnauthorizedError):
                    problem = {"detail": "That is not a token of this server.", "hint": _LOGIN_HINT}
            except Exception as error:
                build_unexpected_problem(error)
                status, problem = 500, {"detail": "The login failed unexpectedly."}
        template = build_templates().get_template("login.html")
        context = build_context(request, visitor)
        response = html_response(template.render(context, next=target, problem=problem), status)
        if visitor.is_new_seed:
            set_cookie(request, response, FORM_COOKIE, visitor.seed)
        return response

    return Route("/login", endpoint, methods=["GET", "POST"], name="login")


def _build_logout_route(access: ConsoleAccess) -> Route:
    async def endpoint(request: Request) -> Response:
        try:
            visitor = await access.find_visitor(request)
            await read_form(request, visitor)
            await access.log_out(visitor)
        except UnauthorizedError:  # it has ended already
            pass
        except PerdureError as error:
            return show_error(request, build_visitor(request, NOBODY), error)
        response = RedirectResponse(f"{quote(request.scope['root_path'])}/login", 303, HEADERS)
        delete_cookie(request, response, LOGIN_COOKIE)
        return response

    return Route("/logout", endpoint, methods=["POST"], name="logout")


# ---
# Routes.


async def _send_asset(request: Request) -> Response:
    """Send a file that pages load. Its address changes with its content."""
    asset = load_assets().get(request.path_params["name"])
    if asset is None or request.path_params["version"] != asset.version:
        return Response("There is no such file.\n", 404, HEADERS, "text/plain; charset=utf-8")
    headers = HEADERS | {"Cache-Control": "public, max-age=31536000, immutable"}
    return Response(asset.content, 200, headers, asset.media_type)


async def _go_to_overview(page: Page) -> Response:
    return page.redirect("/overview")


async def _refuse_unknown(_: Page) -> Response:
    raise NotFoundError("there is no such page")


_MODULES = (
    *(overview, inbox, decisions, sign_ins, runs, bulk, run, attempts, chat, compare, agents, schedules, workers),
    *(webhooks, audit, costs),
)
PAGE_ROUTES: Sequence[PageRoute] = (
    PageRoute("GET", "/", _go_to_overview, "first"),
    *sorted((page for module in _MODULES for page in module.PAGES), key=lambda page: page.path.endswith(":path}")),
)
"""Every page, and what forms of pages do, but for login and logout. The first route that fits is taken, so a path with
any rest comes behind the others."""


def console_routes(
    web: Web, prefix: str = CONSOLE_PREFIX, *, undo_seconds: float = UNDO_SECONDS
) -> Sequence[BaseRoute]:
    """Build the routes of the console, to be mounted in the application of :func:`perdure.web.app.create_app`, or
    inside its middleware (:func:`perdure.web.app.build_middleware`). ``undo_seconds``: how long a decision of a page
    can be taken back; 0 sends it at once."""
    config.get_temporal_ui(), config.get_log_url()  # a wrong setting is an error at the start
    access = ConsoleAccess(web, undo_seconds)
    ordered = sorted(PAGE_ROUTES, key=lambda page: page.path.endswith(":path}"))  # those that take any rest come last
    pages = [page.build_route(web, access) for page in ordered]
    unknown = PageRoute("GET", "/{rest:path}", _refuse_unknown, "unknown").build_route(web, access)
    assets = Route("/assets/{version}/{name}", _send_asset, methods=["GET"], name="assets")
    routes = [_build_login_route(access), _build_logout_route(access), assets, *pages, unknown]

    async def redirect_to_console(request: Request) -> Response:
        return RedirectResponse(f"{quote(request.scope['root_path'])}{prefix}/", 307, HEADERS)

    return [Route(prefix, redirect_to_console), Mount(prefix, ApiRouter(routes))]
