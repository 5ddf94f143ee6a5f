"""OpenAI's API over agents, under ``/openai/v1``: ``models``, ``chat/completions`` and ``responses``.

    openai.py             routes and models
    openai_requests.py    parameters, messages and answers of requests; ids; errors in OpenAI's envelope
    openai_sessions.py    how a request opens or continues a session
    openai_chat.py        chat completions
    openai_responses.py   responses: create, get, follow, cancel, input items
    openai_items.py       events as items and frames of a response

A model is an agent. The conversation is kept by the server: a session of perdure.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any

from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from ..ports.store import AgentRow
from .auth import Resource
from .lists import read_callable_agents
from .openai_chat import create_chat_completion
from .openai_requests import UnknownModelError, convert_problem, parse_time
from .openai_responses import cancel_response, create_response, follow_response, list_input_items
from .operations import Call, Web
from .problems import WebError
from .sse import HEADERS
from .turns import build_endpoint


def openai_routes(web: Web, prefix: str = "/openai/v1") -> list[Route]:
    """Build the routes of OpenAI's API: models, chat completions and responses, below ``prefix``."""
    response = "/responses/{response:segment}"
    handlers: list[tuple[str, str, Callable[[Call], Awaitable[Response]]]] = [
        ("GET", "/models", _list_models),
        ("GET", "/models/{model:segment}", _get_model),
        ("POST", "/chat/completions", create_chat_completion),
        ("POST", "/responses", create_response),
        ("GET", response, follow_response),
        ("DELETE", response, _refuse_delete),
        ("POST", f"{response}/cancel", cancel_response),
        ("GET", f"{response}/input_items", list_input_items),
    ]
    return [
        Route(prefix + path, build_endpoint(web, handler, convert_problem), methods=[method], name=f"openai_{name}")
        for method, path, handler in handlers
        for name in [handler.__name__.lstrip("_")]
    ]


async def _list_models(call: Call) -> Response:
    await call.authorize("read", "openai", Resource("agent"))
    agents = await read_callable_agents(call)
    data = [_describe_model(name, row) for name, row in agents.items()]
    return JSONResponse({"object": "list", "data": data}, headers=HEADERS)


async def _get_model(call: Call) -> Response:
    name = call.params["model"]
    row = (await read_callable_agents(call, name)).get(name)
    if row is None:
        raise UnknownModelError(f"The model {name!r:.200} does not exist", hint="GET models lists the agents.")
    return JSONResponse(_describe_model(name, row), headers=HEADERS)


def _describe_model(name: str, row: AgentRow) -> dict[str, Any]:
    description = json.loads(row.body).get("description")
    fields = {"id": name, "object": "model", "created": parse_time(row.created_at), "owned_by": "perdure"}
    return fields | ({"description": description} if description else {})


async def _refuse_delete(_: Call) -> Response:
    raise WebError(
        "a response is part of a session, and cannot be deleted alone", status=405, name="MethodNotAllowed",
        hint="DELETE /v1/sessions/{id} deletes the session, when it has ended.", headers={"Allow": "GET"},
    )  # fmt: skip
