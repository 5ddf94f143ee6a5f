"""The application: all routes behind one door, and what a request passes before it reaches any.

    headers and URL ─► proxy's headers ─► Host ─► origin ─► body ─► route: caller, rate, verb, handler

Nothing is kept from one request to the next but rates, and what can be asked for again at any time (which turns have
ended, what followers wait for together): any replica may answer any request.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from time import monotonic
from typing import Any, Literal, get_args

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Match, Mount, Route
from starlette.types import ASGIApp, Receive, Scope, Send
from temporalio.service import RPCError

from .._installation import build_missing_extra_error
from ..client.client import Client
from ..errors import PerdureError
from ..types.messages import MAX_FILE_BYTES
from .approvals import OPERATIONS as APPROVALS
from .auth import Authenticator, Authorizer, ContextFunction, RoleAuthorizer
from .bulk_actions import OPERATIONS as BULK_ACTIONS
from .decide import FORM_TYPE, MAX_FORM_BYTES, decide_routes
from .files import OPERATIONS as FILES
from .forks import OPERATIONS as FORKS
from .limits import (
    ANY_TYPE,
    BODY_SECONDS,
    BodyLimits,
    BodyRule,
    ConnectionLimiter,
    RateLimiter,
    RequestLimits,
    WebLimits,
)
from .lists import OPERATIONS as LISTS
from .openapi import build_openapi_operation
from .operations import ApiRouter, Operation, Web, decode_path, list_routes
from .origins import CrossOrigin, ForwardedHeaders, HostCheck, SecurityHeaders
from .problems import problem_response
from .records import OPERATIONS as RECORDS
from .schedules import OPERATIONS as SCHEDULES
from .sessions import OPERATIONS as SESSIONS
from .webhooks import OPERATIONS as WEBHOOKS

PREFIX = "/v1"
CONSOLE_PREFIX = "/console"
MAX_CONSOLE_FORM_BYTES = 1024 * 1024
MAX_CONSOLE_UPLOAD_BYTES = 32 * 1024 * 1024
"""Most bytes of a form of the console with files."""
MAX_REFUSED_FORM_BYTES = 256 * 1024 * 1024
"""Bytes above these of a form that the console still takes, to refuse it with a page: a browser sends all of a form
before it reads the answer, and shows an error of its own where the connection is closed meanwhile."""
Protocol = Literal["agui", "vercel", "openai", "mcp"]
_OPERATIONS: Sequence[Operation] = (
    *(*SESSIONS, *LISTS, *BULK_ACTIONS, *APPROVALS, *FILES, *FORKS, *SCHEDULES, *WEBHOOKS, *RECORDS),
)
OPERATIONS: Sequence[Operation] = (*_OPERATIONS, build_openapi_operation(_OPERATIONS))
"""Every operation of the native API."""
_READY_SECONDS = 1.0
"""How long the result of a readiness check is answered again."""
_CHECK_SECONDS = 3.0


@dataclass(frozen=True)
class WebOptions:
    """Who may reach the application, and how much of it."""

    hosts: Sequence[str] = ()
    """Hosts that it is reached by: ``api.example.com``, ``*.example.com``."""
    origins: Sequence[str] = ()
    """Other origins whose pages may call it: ``https://app.example.com``."""
    trusted_proxies: Sequence[str] = ()
    """Networks of reverse proxies whose ``X-Forwarded-*`` headers count."""
    dev: bool = False
    """Names of this machine are hosts, too."""
    protocols: Sequence[Protocol] | None = None
    """What front ends speak: ``agui`` under ``/agui``, ``vercel`` under ``/ui``, ``openai`` under ``/openai/v1``,
    ``mcp`` under ``/mcp``. By default all that are installed."""
    limits: WebLimits = field(default_factory=WebLimits)
    api: bool = True
    """Serve the native API, the protocols and ``/decide``; without it ``pages`` alone."""


def build_web(
    client: Client,
    *,
    authenticator: Authenticator,
    authorizer: Authorizer | None = None,
    limits: WebLimits | None = None,
    context: ContextFunction | None = None,
) -> Web:
    """Build what routes work with, for one's own application. ``client`` needs a store; ``authorizer`` is by default
    :class:`~perdure.web.auth.RoleAuthorizer`. ``context`` builds the context of the runs that a caller starts, in every
    protocol: ``lambda caller: {"user": caller.name}``; its fields go before those of a request."""
    limits = limits or WebLimits()
    rates, streams = RateLimiter(limits), ConnectionLimiter(limits)
    return Web(client, authenticator, authorizer or RoleAuthorizer(), rates, streams, limits, context=context)


def native_routes(web: Web, prefix: str = PREFIX) -> list[BaseRoute]:
    """Build the routes of the native API, to be mounted in another application, inside the middleware of
    :func:`build_middleware`, which has the checks."""
    return [Mount(prefix, ApiRouter(list_routes(web, OPERATIONS)))]


def create_app(
    client: Client,
    *,
    authenticator: Authenticator,
    authorizer: Authorizer | None = None,
    options: WebOptions | None = None,
    routes: Sequence[BaseRoute] = (),
    pages: Callable[[Web], Sequence[BaseRoute]] | None = None,
    context: ContextFunction | None = None,
) -> Starlette:
    """Build the application that ``perdure serve`` runs: the native API under ``/v1``, the protocols of front ends,
    ``/decide``, ``/healthz``, ``/readyz``, and ``routes`` of one's own. ``pages`` builds routes that work with what the
    API works with: :func:`perdure.console.console_routes`; ``context`` is as of :func:`build_web`. ``client`` needs a
    store."""
    options = options or WebOptions()
    web = build_web(client, authenticator=authenticator, authorizer=authorizer, limits=options.limits, context=context)
    readiness = Readiness(client)
    own: list[BaseRoute] = [Route("/healthz", _answer_alive), Route("/readyz", readiness.answer)]
    handlers: dict[Any, Any] = {404: _answer_unknown, 405: _answer_wrong_method}
    api = [*native_routes(web), *decide_routes(web), *_list_protocol_routes(web, options)] if options.api else []
    app = Starlette(
        routes=[*own, *api, *(() if pages is None else pages(web)), *routes],
        exception_handlers=handlers,
        middleware=build_middleware(options),
    )
    app.router.redirect_slashes = False
    return app


def _list_protocol_routes(web: Web, options: WebOptions) -> list[BaseRoute]:
    from .agui import agui_routes
    from .openai import openai_routes
    from .vercel import vercel_routes

    wanted = options.protocols if options.protocols is not None else get_args(Protocol)
    found: list[BaseRoute] = list(agui_routes(web)) if "agui" in wanted else []
    if "mcp" in wanted:
        try:
            from .mcp import mcp_routes
        except ImportError as error:  # its extra
            if options.protocols is not None:
                raise build_missing_extra_error("the protocol 'mcp'", "mcp", module=error.name) from None
        else:
            found += mcp_routes(web)
    found += vercel_routes(web) if "vercel" in wanted else ()
    return [*found, *(openai_routes(web) if "openai" in wanted else ())]


def build_middleware(options: WebOptions) -> list[Middleware]:
    """Build what a request passes before the routes, for one's own application."""
    return [
        Middleware(SecurityHeaders),
        Middleware(RequestLimits, limits=options.limits),
        Middleware(ForwardedHeaders, trusted=options.trusted_proxies),
        Middleware(HostCheck, hosts=options.hosts, dev=options.dev),
        Middleware(CrossOrigin, origins=options.origins),
        Middleware(EncodedSlashes),  # before what looks at the path: an id may have the end of another route's
        Middleware(BodyLimits, limits=options.limits, find_rule=_find_body_rule),
    ]


def _find_body_rule(scope: Scope) -> BodyRule | None:
    """Return the rule of an upload: any type, as large as a file may be; and that of a page's form."""
    if scope["method"] != "POST":
        return None
    if scope["path"].endswith(f"{PREFIX}/files"):
        return BodyRule((ANY_TYPE,), MAX_FILE_BYTES, BODY_SECONDS)
    if f"{PREFIX}/" in scope["path"]:
        return None
    if "/decide/" in scope["path"]:
        return BodyRule((FORM_TYPE,), MAX_FORM_BYTES)
    if f"{CONSOLE_PREFIX}/chat/" in scope["path"]:
        most = MAX_CONSOLE_UPLOAD_BYTES + MAX_REFUSED_FORM_BYTES
        return BodyRule((FORM_TYPE, "multipart/form-data"), most, BODY_SECONDS)
    if f"{CONSOLE_PREFIX}/" in scope["path"]:
        is_anyones = scope["path"].endswith(f"{CONSOLE_PREFIX}/login")
        return BodyRule((FORM_TYPE,), MAX_CONSOLE_FORM_BYTES + (0 if is_anyones else MAX_REFUSED_FORM_BYTES))
    return None


class EncodedSlashes:
    """Keeps %2F in the ids of paths: see :func:`~perdure.web.operations.decode_path`."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a connection."""
        await self._app(decode_path(dict(scope)) if scope["type"] == "http" else scope, receive, send)


async def _answer_alive(_: Request) -> Response:
    return JSONResponse({"status": "ok"})


class Readiness:
    """Whether the store and Temporal answer. One check serves all requests of a second: anyone may ask."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._checked_at = -_READY_SECONDS
        self._checks: dict[str, str] = {}
        self._lock = asyncio.Lock()

    async def answer(self, _: Request) -> Response:
        """Answer ``GET /readyz``: 200, or 503 with the part that does not answer."""
        async with self._lock:
            if monotonic() - self._checked_at >= _READY_SECONDS:
                store, temporal = await asyncio.gather(_check(self._read_store()), _check(self._ask_temporal()))
                self._checks = {"store": store, "temporal": temporal}
                self._checked_at = monotonic()
        is_ready = set(self._checks.values()) == {"ok"}
        body = {"status": "ok" if is_ready else "unavailable", "checks": self._checks}
        return JSONResponse(body, 200 if is_ready else 503)

    async def _read_store(self) -> None:
        await (await self._client.store()).count_waits()

    async def _ask_temporal(self) -> None:
        await self._client.temporal.service_client.check_health()


async def _check(part: Any) -> str:
    try:
        async with asyncio.timeout(_CHECK_SECONDS):
            await part
    except (PerdureError, RPCError, TimeoutError, RuntimeError):
        return "unavailable"
    return "ok"


async def _answer_unknown(request: Request, _: Exception) -> Response:
    return problem_response(404, "NotFoundError", f"there is nothing at {request.url.path!r:.300}")


async def _answer_wrong_method(request: Request, _: Exception) -> Response:
    scope = request.scope
    outer = {**scope, "root_path": scope.get("app_root_path", scope.get("root_path", ""))}  # as before the mounts
    headers = {"Allow": ", ".join(sorted(_find_methods(request.app.routes, outer)))}
    return problem_response(405, "MethodNotAllowed", f"{request.method} is not possible here", headers=headers)


def _find_methods(routes: Iterable[BaseRoute], scope: Scope) -> set[str]:
    """Return the methods of all routes that have the path: each operation is a route of its own.

    A path that is named goes before one with parameters: ``/bulk-actions/preview`` is no bulk action.
    """
    methods, named = set[str](), set[str]()
    for route in routes:
        match, below = route.matches(scope)
        if match is not Match.NONE and isinstance(route, Mount):
            methods |= _find_methods(route.routes, {**scope, **below})
        elif match is not Match.NONE:
            found = methods if getattr(route, "param_convertors", None) else named
            found |= getattr(route, "methods", None) or set()
    return named or methods
