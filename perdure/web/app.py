"""The application: all routes behind one door, and what a request must pass before it reaches any."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Mount
from starlette.types import ASGIApp, Receive, Scope, Send

from ..client.client import Client
from .approvals import OPERATIONS as APPROVALS
from .auth import Authenticator, Authorizer
from .lists import OPERATIONS as LISTS
from .operations import Operation, Web, decode_path, list_routes
from .problems import problem_response
from .sessions import OPERATIONS as SESSIONS

PREFIX = "/v1"
OPERATIONS: Sequence[Operation] = (*SESSIONS, *LISTS, *APPROVALS)
"""Every operation of the native API."""


def list_native_routes(web: Web, prefix: str = PREFIX) -> list[BaseRoute]:
    """Build the routes of the native API, to be mounted in another application."""
    return [Mount(prefix, routes=list_routes(web, OPERATIONS))]


def create_app(client: Client, *, authenticator: Authenticator, authorizer: Authorizer) -> Starlette:
    """Build the application that ``perdure serve`` runs. ``client`` needs a store."""
    web = Web(client, authenticator, authorizer)
    handlers: dict[Any, Any] = {404: _answer_unknown, 405: _answer_wrong_method}
    app = Starlette(routes=list_native_routes(web), exception_handlers=handlers)
    app.add_middleware(EncodedSlashes)
    return app


class EncodedSlashes:
    """Keeps %2F in the ids of paths: see :func:`decode_path`."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._app(decode_path(dict(scope)) if scope["type"] == "http" else scope, receive, send)


async def _answer_unknown(request: Request, _: Exception) -> Response:
    return problem_response(404, "NotFoundError", f"there is nothing at {request.url.path!r:.300}")


async def _answer_wrong_method(request: Request, error: Exception) -> Response:
    headers = getattr(error, "headers", None) or {}
    return problem_response(405, "MethodNotAllowed", f"{request.method} is not possible here", headers=headers)
