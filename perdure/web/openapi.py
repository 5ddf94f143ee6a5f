"""The OpenAPI 3.1 document of the native API, made from its operations and their models."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any

from pydantic import BaseModel, TypeAdapter
from starlette.responses import Response

from ..types.events import Event
from .operations import KEY_CHARS, Call, Operation
from .problems import PROBLEM_TYPE

EVENT_STREAM = "text/event-stream"
DOCUMENT_PATH = "/openapi.json"
_REF = "#/components/schemas/{model}"
_DESCRIPTION = """The native HTTP API of perdure: sessions of durable agents, their turns and events.

Answers leave out fields without a value. Long texts are references (`blob`), which are files of the session."""


class Problem(BaseModel):
    """An error (RFC 9457)."""

    type: str
    title: str
    status: int
    detail: str
    error: str
    """Name of perdure's error."""
    hint: str | None = None
    """The way out."""
    instance: str | None = None


def build_document(operations: Sequence[Operation], *, version: str = "1") -> dict[str, Any]:
    """Build the document. Its server is ``/v1``: who serves it elsewhere replaces ``servers``."""
    references, schemas = _build_schemas(operations)
    paths: dict[str, dict[str, Any]] = {}
    for operation in operations:
        item = paths.setdefault(format_path(operation.path), {})
        item[operation.method.lower()] = _build_operation(operation, references)
    tags = list(dict.fromkeys(operation.tag for operation in operations))
    return {
        "openapi": "3.1.0",
        "info": {"title": "perdure", "version": version, "description": _DESCRIPTION},
        "jsonSchemaDialect": "https://json-schema.org/draft/2020-12/schema",
        "servers": [{"url": "/v1"}],
        "security": [{"bearer": []}],
        "tags": [{"name": tag} for tag in tags],
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer"}},
            "responses": {
                "Problem": {
                    "description": "The request was refused, or failed.",
                    "content": {PROBLEM_TYPE: {"schema": references[(Problem, "serialization")]}},
                }
            },
            "headers": _HEADERS,
        },
    }


_HEADERS = {
    "ETag": {"description": "Version of the content: for If-None-Match.", "schema": {"type": "string"}},
    "Location": {"description": "Path of what was created.", "schema": {"type": "string"}},
    "Idempotency-Replayed": {
        "description": "The request was answered before, and this is that answer.",
        "schema": {"const": "true"},
    },
    "Content-Disposition": {"description": "A safe name of the file.", "schema": {"type": "string"}},
}


def format_path(path: str) -> str:
    """Return a route's path as OpenAPI writes it: without the types of parameters."""
    return re.sub(r"\{(\w+):\w+\}", r"{\1}", path)


_References = dict[tuple[Any, str], Any]


def _build_schemas(operations: Sequence[Operation]) -> tuple[_References, dict[str, Any]]:
    """Return the schema of each body, query and answer, and what these refer to."""
    wanted = dict.fromkeys(
        [(Problem, "serialization"), (Event, "serialization"), *(key for one in operations for key in _list_types(one))]
    )
    inputs = [(index, mode, TypeAdapter(kind)) for index, (kind, mode) in enumerate(wanted)]
    built, shared = TypeAdapter.json_schemas(inputs, ref_template=_REF)  # type: ignore[arg-type]  # modes are literals
    references = {key: built[(index, key[1])] for index, key in enumerate(wanted)}  # type: ignore[index]  # the same
    return references, dict(shared.get("$defs", {}))


def _list_types(operation: Operation) -> Iterator[tuple[Any, str]]:
    for kind in (operation.body, operation.query):
        if kind is not None and kind is not bytes:
            yield kind, "validation"
    if operation.answer is not None:
        yield operation.answer, "serialization"


def _build_operation(operation: Operation, references: _References) -> dict[str, Any]:
    text = (operation.handler.__doc__ or "").strip()
    described: dict[str, Any] = {
        "operationId": operation.name,
        "summary": operation.summary,
        "tags": [operation.tag],
        "parameters": [*_build_path_parameters(operation), *_build_query_parameters(operation)],
        "responses": {str(operation.status): _build_answer(operation, references), **_build_refusals(operation)},
    }
    if "\n" in text:
        described["description"] = text
    if operation.is_public:
        described["security"] = []
    if _is_repeatable(operation):
        described["parameters"].append(_KEY_PARAMETER)
    if operation.answer_type == EVENT_STREAM:
        described["parameters"].append(_LAST_EVENT_PARAMETER)
    if operation.body is bytes:
        described["requestBody"] = {"required": True, "content": {operation.body_type: {}}}
    elif operation.body is not None and issubclass(operation.body, BaseModel):
        content = {operation.body_type: {"schema": references[(operation.body, "validation")]}}
        required = any(field.is_required() for field in operation.body.model_fields.values())
        described["requestBody"] = {"required": required, "content": content}
    return described


def _is_repeatable(operation: Operation) -> bool:
    return operation.method == "POST" and operation.can_repeat and not operation.is_public


_KEY_PARAMETER = {
    "name": "Idempotency-Key",
    "in": "header",
    "description": "Identifies the request for repeats: they get the answer of the first one, for 24 hours.",
    "schema": {"type": "string", "minLength": 1, "maxLength": KEY_CHARS},
}
_LAST_EVENT_PARAMETER = {
    "name": "Last-Event-ID",
    "in": "header",
    "description": "Number of the last event that was received; counts before `after`.",
    "schema": {"type": "string"},
}


def _build_path_parameters(operation: Operation) -> list[dict[str, Any]]:
    names = re.findall(r"\{(\w+)", operation.path)
    return [{"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in names]


def _build_query_parameters(operation: Operation) -> list[dict[str, Any]]:
    if operation.query is None:
        return []
    plain = operation.query.model_json_schema(ref_template=_REF)
    required = plain.get("required", ())
    parameters = []
    for name, schema in plain.get("properties", {}).items():
        parameter = {"name": name, "in": "query", "required": name in required, "schema": schema}
        if text := schema.pop("description", None):
            parameter["description"] = text
        parameters.append(parameter)
    return parameters


def _build_answer(operation: Operation, references: _References) -> dict[str, Any]:
    content: dict[str, Any] = {}
    if operation.answer is not None:
        content["application/json"] = {"schema": references[(operation.answer, "serialization")]}
    if operation.answer_type == EVENT_STREAM:
        # The type of one frame's data; OpenAPI 3.1 has no word for a sequence.
        event = {"contentMediaType": "application/json", "contentSchema": references[(Event, "serialization")]}
        text = "Server-Sent Events: `id` is the number of an event, `data` the event."
        content[EVENT_STREAM] = {"schema": {"type": "string", "description": text, **event}}
    elif operation.answer_type != "application/json":
        content[operation.answer_type] = {}
    answer: dict[str, Any] = {"description": "Done." if operation.status != 202 else "Accepted."}
    if content:
        answer["content"] = content
    names = ["Idempotency-Replayed"] if _is_repeatable(operation) else []
    names += ["Location"] if operation.status == 201 and operation.kind != "file" else []
    if operation.answer_type not in (EVENT_STREAM, "application/json"):
        names += ["ETag", "Content-Disposition"]
    if names:
        answer["headers"] = {name: {"$ref": f"#/components/headers/{name}"} for name in names}
    return answer


def _build_refusals(operation: Operation) -> dict[str, Any]:
    problem = {"$ref": "#/components/responses/Problem"}
    refusals: dict[str, Any] = {str(status): problem for status in _list_refusal_statuses(operation)}
    refusals["default"] = problem
    if operation.answer_type == EVENT_STREAM:
        refusals["204"] = {"description": "The stream has ended, and has no later event."}
    elif operation.answer_type != "application/json":
        refusals["304"] = {"description": "Not modified."}
    return refusals


def _list_refusal_statuses(operation: Operation) -> list[int]:
    """List the statuses of refusals; what fails on the side of the service is any other one."""
    statuses = {400, 414, 421, 431}
    if not operation.is_public:
        statuses |= {401, 403, 429, 503}
    named = (
        "create_webhook",
        "decide_approvals",
        "create_session",
        "create_schedule",
    )  # a session or agent in the body
    if "{" in operation.path or operation.name in named:
        statuses.add(404)
    if operation.body is not None:
        statuses |= {408, 413, 415}
    if operation.method != "GET":
        statuses.add(409)
    if operation.method == "POST":
        statuses.add(504)
    return sorted(statuses)


def build_openapi_operation(operations: Sequence[Operation]) -> Operation:
    """Build the operation that answers with the document of ``operations`` and itself."""

    @lru_cache(maxsize=8)
    def encode(server: str) -> tuple[bytes, str]:
        document = build_document([*operations, operation]) | {"servers": [{"url": server}]}
        body = json.dumps(document, ensure_ascii=False).encode()
        return body, f'"{hashlib.sha256(body).hexdigest()[:32]}"'

    async def get_openapi(call: Call) -> Response:
        """Get the OpenAPI document of this API."""
        body, etag = encode(call.link("get_openapi").removesuffix(DOCUMENT_PATH))
        headers = {"ETag": etag, "Cache-Control": "no-cache"}
        if etag in call.request.headers.get("if-none-match", ""):
            return Response(status_code=304, headers=headers)
        return Response(body, headers=headers, media_type="application/json")

    operation = Operation(
        "GET", DOCUMENT_PATH, get_openapi, "read", answer=dict[str, Any], is_public=True, tag="service"
    )
    return operation
