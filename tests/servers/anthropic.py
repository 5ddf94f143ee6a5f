"""Anthropic's Messages: what the API refuses, with its own messages, and what a reply is in the format."""

from __future__ import annotations

import base64
import hashlib
import itertools
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from tests.servers.http import Request
from tests.servers.tool_schemas import find_flaws
from tests.servers.wire import (
    CORRUPT,
    MISLABELLED,
    NAME,
    Call,
    RefusedError,
    Reply,
    WireFormat,
    check,
    check_bearer,
    fresh,
    in_range,
    is_text,
    pieces,
    read_json,
    slices,
    sse,
    words,
)

Block = dict[str, Any]
NEW_VERSION = "2026-10-21"

_SAMPLING = words("temperature top_p top_k")
_PARAMETERS = _SAMPLING | words("""
    max_tokens messages model cache_control container inference_geo metadata output_config service_tier speed
    stop_sequences stream system thinking tool_choice tools""")
_EFFORTS = ("low", "medium", "high", "xhigh", "max")
_BINDING = "thinking-binding-controls-2026-08-01"
_THINKING = {
    "": set(),
    "enabled": words("budget_tokens display"),
    "adaptive": {"display"},
    "disabled": set(),
    "between_tools": set(),
}
_TOOL = words("type name description input_schema cache_control strict")
_ID = re.compile(r"[a-zA-Z0-9_-]+\Z")
_IMAGES = words("image/jpeg image/png image/gif image/webp")
_KEYS = {
    "text": words("text citations"),
    "image": words("source"),
    "document": words("source title context citations"),
    "thinking": words("thinking signature"),
    "redacted_thinking": words("data"),
    "tool_use": words("id name input caller"),
    "tool_result": words("tool_use_id content is_error"),
    "server_tool_use": words("id name input caller"),
    "web_search_tool_result": words("tool_use_id content caller"),
}
_ROLES = {
    "user": words("text image document tool_result"),
    "assistant": set(_KEYS) - words("image document tool_result"),
}


class Messages(WireFormat):
    """The format."""

    name = "anthropic"
    path = re.compile(r"/v1/messages(\?.*)?")
    ends = ("max_tokens", "refusal")

    def authenticate(self, headers: Mapping[str, str], right: str | None) -> None:
        missing = "x-api-key header is required"
        check_bearer(headers, right, missing, "invalid x-api-key", kind="authentication_error")
        check(headers.get("anthropic-version"), "anthropic-version: header is required")

    def parse(self, request: Request, model: str | None) -> dict[str, Any]:
        version, beta = (request.headers.get(f"anthropic-{name}", "") for name in ("version", "beta"))
        return parse(request.body, version=version, beta=beta)

    def error_body(self, error: RefusedError) -> Block:
        return error_body(error.message, error.kind or ("invalid_request_error" if error.status < 500 else "api_error"))

    def whole(self, reply: Reply, asked: Block, size: int) -> Block:
        blocks = _blocks(reply)
        called = any(block["type"] == "tool_use" for block in blocks)
        head = {"id": fresh("msg"), "type": "message", "role": "assistant", "model": asked["model"]}
        reason = self.finish_reason(reply, "tool_use" if called else "end_turn")
        wrote = sum(max(1, len(json.dumps(block)) // 4) for block in blocks)
        usage = {"input_tokens": size // 4, "output_tokens": wrote} if reply.usage is None else dict(reply.usage)
        return head | {"stop_sequence": None, "content": blocks, "stop_reason": reason, "usage": usage}

    def stream(self, reply: Reply, asked: Block, size: int) -> Iterator[bytes]:
        events = self._events(reply, self.whole(reply, asked, size)) if reply.chunks is None else reply.chunks
        yield from (sse(event, named=True) for event in events)

    def _events(self, reply: Reply, ended: Block) -> Iterator[Block]:
        usage = ended["usage"]
        begun = ended | {"content": [], "stop_reason": None, "usage": usage | {"output_tokens": 1}}
        yield {"type": "message_start", "message": begun}
        yield {"type": "ping"}
        for index, block in enumerate(ended["content"]):
            start, deltas = _begun(block)
            yield {"type": "content_block_start", "index": index, "content_block": start}
            yield from ({"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas)
            yield {"type": "content_block_stop", "index": index}
        told = {key: value for key, value in usage.items() if key != "input_tokens"}
        delta = {"stop_reason": ended["stop_reason"], "stop_sequence": None}
        if reply.done:
            yield {"type": "message_delta", "delta": delta, "usage": told}
            yield {"type": "message_stop"}


def error_body(message: str, kind: str) -> Block:
    """An error as the API sends it."""
    return {"type": "error", "error": {"type": kind, "message": message}, "request_id": "req_test"}


def thinking(text: str) -> Block:
    """A thinking block with the signature that the server takes back."""
    return {"type": "thinking", "thinking": text, "signature": sign(text)}


def sign(text: str) -> str:
    """The signature of a thought: no other provider could have made it."""
    return "sig/" + hashlib.sha256(f"the server's secret {text}".encode()).hexdigest()[:24] + "=="


def _blocks(reply: Reply) -> list[Block]:
    if reply.content is not None:
        return [_as_block(item) for item in reply.content]
    said: list[Any] = [thinking("".join(reply.thinking))] if reply.thinking else []
    if reply.thinking and reply.opaque:
        search = {"id": "srvtoolu_1", "name": "web_search", "input": {"query": "x"}}
        found = {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": []}
        said += [{"type": "redacted_thinking", "data": "sealed/1"}, {"type": "server_tool_use"} | search, found]
    return [_as_block(item) for item in (*said, *([reply.text] if reply.text else []), *reply.calls)]


def _as_block(item: Any) -> Block:
    if isinstance(item, Call):
        return {"type": "tool_use", "id": item.id or fresh("toolu"), "name": item.name, "input": item.arguments}
    return {"type": "text", "text": item} if isinstance(item, str) else dict(item)


def _begun(block: Block) -> tuple[Block, list[Block]]:
    """A block's start and the pieces that follow."""
    match block["type"]:
        case "text":
            deltas = [{"type": "text_delta", "text": piece} for piece in pieces(block["text"])]
            cited = block.get("citations") or []
            deltas += [{"type": "citations_delta", "citation": citation} for citation in cited]
            return {"type": "text", "text": ""} | ({"citations": []} if cited else {}), deltas
        case "thinking":
            deltas = [{"type": "thinking_delta", "thinking": piece} for piece in pieces(block["thinking"])]
            deltas += [{"type": "signature_delta", "signature": block.get("signature", sign(block["thinking"]))}]
            return {"type": "thinking", "thinking": "", "signature": ""}, deltas
        case "tool_use" | "server_tool_use":
            arguments = block["input"] if is_text(block["input"]) else json.dumps(block["input"])
            sent = ("", *(slices(arguments) if block["input"] else ()))
            return block | {"input": {}}, [{"type": "input_json_delta", "partial_json": piece} for piece in sent]
        case _:
            return block, []


def parse(body: bytes, *, version: str, beta: str) -> dict[str, Any]:
    """The request's JSON, checked whole."""
    request = read_json(body, "The request body is not valid JSON.")
    for key in request:
        fits = key in _PARAMETERS and not (key in _SAMPLING and version == NEW_VERSION)
        check(fits, f"{key}: Extra inputs are not permitted")
    check(is_text(request.get("model")) and request["model"], "model: Field required")
    _numbers(request)
    kind = _thinking(request, beta)
    _tools(request.get("tools", []))
    _choice(request, kind)
    system = request.get("system", "x")
    check(isinstance(system, str | list) and system, "system: Input should be text or blocks")
    for block in [{"type": "text", "text": system}] if is_text(system) else system:
        check(isinstance(block, dict) and block.get("type") == "text", "system: only text blocks")
        _text(block.get("text"), "system")
    messages = request.get("messages")
    check(isinstance(messages, list) and messages, "messages: at least one message is required")
    _messages(request["messages"], budgeted=kind == "enabled")
    called = "tools" in request or not any(map(_called, request["messages"]))
    check(called, "Requests which include tool_use or tool_result blocks must define tools")
    marks = sum(_marks(request[key]) for key in ("tools", "system", "messages") if key in request)
    most = 4 - (request.get("cache_control") is not None)
    check(marks <= most, f"A maximum of 4 blocks with cache_control may be provided. Found {marks}.")
    return request


def _marks(value: Any) -> int:
    if isinstance(value, dict):
        return ("cache_control" in value) + sum(_marks(inner) for key, inner in value.items() if key != "input_schema")
    return sum(map(_marks, value)) if isinstance(value, list) else 0


def _numbers(request: dict[str, Any]) -> None:
    limit = request.get("max_tokens")
    check("max_tokens" in request, "max_tokens: Field required")
    check(isinstance(limit, int) and not isinstance(limit, bool) and limit > 0, "max_tokens: must be above 0")
    for key in ("temperature", "top_p"):
        check(in_range(request.get(key, 0), 0, 1), f"{key}: range: 0..1")
    check(isinstance(request.get("top_k", 1), int), "top_k: Input should be a valid integer")
    stop = request.get("stop_sequences", [])
    check(isinstance(stop, list), "stop_sequences: Input should be a valid list")
    for text in stop:
        check(is_text(text) and text.strip(), "stop_sequences: each stop sequence must contain non-whitespace")
    metadata = request.get("metadata", {})
    check(isinstance(metadata, dict) and set(metadata) <= {"user_id"}, "metadata: Extra inputs are not permitted")
    check(isinstance(request.get("stream", False), bool), "stream: Input should be a valid boolean")


def _thinking(request: dict[str, Any], beta: str) -> str:
    """The kind of thinking that is asked for."""
    output = request.get("output_config", {})
    check(isinstance(output, dict) and set(output) <= {"effort", "format"}, "output_config: Extra inputs")
    check(output.get("effort", "low") in _EFFORTS, f"output_config.effort: Input should be one of {_EFFORTS}")
    asked = request.get("thinking", {"type": ""})
    kind = asked.get("type")
    check(kind in _THINKING, f"thinking.type: '{kind}' is not one of {sorted(_THINKING)}")
    bound = kind in ("enabled", "adaptive") and _BINDING in beta
    extra = set(asked) - _THINKING[kind] - {"type"} - ({"block_binding"} if bound else set())
    check(not extra, f"thinking.{kind}: Extra inputs are not permitted: {sorted(extra)}")
    if kind == "enabled":
        budget = asked.get("budget_tokens")
        check(isinstance(budget, int) and budget >= 1024, "thinking.enabled.budget_tokens: at least 1024")
        check(budget < request["max_tokens"], "`max_tokens` must be greater than `thinking.budget_tokens`")
    if kind in ("enabled", "adaptive"):
        check(request.get("temperature", 1) == 1, "`temperature` may only be set to 1 when thinking is enabled.")
        check("top_k" not in request, "`top_k` must be unset when thinking is enabled.")
    return str(kind)


def _tools(tools: Any) -> None:
    names: list[str] = []
    check(isinstance(tools, list), "tools: Input should be a valid list")
    for index, tool in enumerate(tools):
        where = f"tools.{index}"
        check(isinstance(tool, dict), f"{where}: Input should be an object")
        check(NAME.match(str(tool.get("name", "."))), f"{where}.custom.name: String should match pattern")
        check(tool["name"] not in names, "tools: Tool names must be unique.")
        names.append(tool["name"])
        if tool.get("type", "custom") != "custom":
            continue  # one of the API's own
        check(set(tool) <= _TOOL, f"{where}.custom: Extra inputs are not permitted: {sorted(set(tool) - _TOOL)}")
        if "description" in tool:
            _text(tool["description"], f"{where}.custom.description")
        schema = tool.get("input_schema")
        check(isinstance(schema, dict), f"{where}.custom.input_schema: Field required")
        check(schema.get("type") == "object", f"{where}.custom.input_schema.type: Input should be 'object'")
        for flaw in find_flaws("anthropic", schema):
            check(False, f"{where}.custom.input_schema: {flaw}")


def _choice(request: dict[str, Any], thinking: str) -> None:
    choice = request.get("tool_choice")
    if choice is None:
        return
    names = [tool["name"] for tool in request.get("tools", [])]
    check(names, "tool_choice may only be specified while providing tools.")
    kind = choice.get("type") if isinstance(choice, dict) else None
    check(kind in ("auto", "any", "tool", "none"), f"tool_choice.type: '{kind}' is not known")
    if kind == "tool":
        check(choice.get("name") in names, f"tool_choice: Tool '{choice.get('name')}' not found in provided tools")
    if kind in ("any", "tool"):
        said = "Thinking may not be enabled when tool_choice forces tool use."
        check(thinking not in ("enabled", "adaptive"), said)
        new = re.search(r"-5-[1-9]", request["model"])
        check(not new, "tool_choice: forced tool use is not supported on this model.")


def _text(text: object, where: str) -> None:
    check(is_text(text), f"{where}: Input should be a valid string")
    check(str(text).strip(), f"{where}: text content blocks must contain non-whitespace text")


def _messages(messages: list[Any], *, budgeted: bool) -> None:
    """Roles in turn, what stands in which, and a result for every call directly after it. ``budgeted``: thinking has a
    budget, as with older models, which want to find it in a turn that goes on."""
    open_calls: list[str] = []
    role = ""
    for index, message in enumerate(messages):
        where = f"messages.{index}"
        check(isinstance(message, dict) and set(message) == {"role", "content"}, f"{where}: not a message")
        # The real API joins messages of one role; a client that counts on it moves what the calls before had cached.
        check(message["role"] in _ROLES, f"{where}.role: '{message['role']}' is not known")
        check(message["role"] != role, "messages: roles must alternate between 'user' and 'assistant'")
        role = message["role"]
        check(index or role == "user", "messages: first message must use the 'user' role")
        _content(message, where)
        _answered(message, open_calls, where)
        open_calls = _called(message)
    check(not open_calls, _unanswered(open_calls))
    ids = list(itertools.chain(*map(_called, messages)))
    check(len(set(ids)) == len(ids), "messages: `tool_use` ids must be unique")
    last = messages[-1]["content"]
    known = isinstance(last, list) and last[-1]["type"] not in ("text", "thinking", "redacted_thinking")
    said = "This model does not support assistant message prefill. The conversation must end with a user message."
    check(role == "user" or known, said)
    if budgeted:
        _begins_with_thinking(messages)


def _in(message: Block) -> list[Block]:
    return [] if is_text(message["content"]) else message["content"]


def _called(message: Block) -> list[str]:
    return [block["id"] for block in _in(message) if block["type"] == "tool_use"]


def _content(message: Block, where: str) -> None:
    content = message["content"]
    if is_text(content):
        _text(content, where)
        return
    check(isinstance(content, list) and content, f"{where}: content must be non-empty")
    for index, block in enumerate(content):
        _block(block, message["role"], f"{where}.content.{index}")


def _block(block: Any, role: str, where: str) -> None:
    kind = block.get("type") if isinstance(block, dict) else None
    check(kind in _ROLES[role], f"{where}: '{kind}' blocks are not allowed in a message of '{role}'")
    extra = set(block) - _KEYS[str(kind)] - {"type", "cache_control"}
    check(not extra, f"{where}.{kind}: Extra inputs are not permitted: {sorted(extra)}")
    match kind:
        case "text":
            _text(block.get("text"), where)
            check(role == "assistant" or not block.get("citations"), f"{where}.text.citations: not in user messages")
        case "thinking":
            check("cache_control" not in block, f"{where}: cache_control is not allowed in thinking blocks")
            true = block.get("signature") == sign(str(block.get("thinking")))
            check(true, f"{where}: Invalid `signature` in `thinking` block")
        case "redacted_thinking":
            true = str(block.get("data")).startswith("sealed/")
            check(true, f"{where}: Invalid `data` in `redacted_thinking` block")
        case "image" | "document":
            _source(block, where)
        case "tool_use" | "server_tool_use":
            check(isinstance(block.get("input"), dict), f"{where}.{kind}.input: Input should be an object")
            check(NAME.match(str(block.get("name"))), f"{where}.{kind}.name: String should match pattern")
            check(_ID.match(str(block.get("id"))), f"{where}.{kind}.id: String should match pattern '^[a-zA-Z0-9_-]+$'")
        case "tool_result":
            _result(block, where)


def _source(block: Block, where: str) -> None:
    source = block.get("source", {})
    match source.get("type"), block["type"]:
        case "base64", kind:
            allowed = _IMAGES if kind == "image" else {"application/pdf"}
            check(source.get("media_type") in allowed, f"{where}.source.media_type: one of {sorted(allowed)}")
            check(source.get("data"), f"{where}.source.data: empty")
            data = base64.b64decode(source["data"])
            check(not data.endswith(CORRUPT), "Could not process image")
            said = (
                "The image was specified using the image/png media type, but the image appears to be a image/jpeg image"
            )
            check(not data.endswith(MISLABELLED), f"{where}.image.source.base64: {said}")
        case "url", _:
            check(str(source.get("url")).startswith("https://"), f"{where}.source.url: Only HTTPS URLs are supported.")
        case "text", "document":
            check(source.get("media_type") == "text/plain", f"{where}.source.media_type: text/plain")
            _text(source.get("data"), where)
        case other, _:
            raise RefusedError(f"{where}.source: type '{other}' is not known")


def _result(block: Block, where: str) -> None:
    check(_ID.match(str(block.get("tool_use_id"))), f"{where}.tool_use_id: String should match pattern")
    failed = block.get("is_error", False)
    check(isinstance(failed, bool), f"{where}.is_error: Input should be a valid boolean")
    content = block.get("content", [])
    check(content or not failed, f"{where}: content cannot be empty if `is_error` is true")
    if is_text(content):
        _text(content, where)
        return
    for index, inner in enumerate(content):
        check(inner.get("type") in ("text", "image", "document"), f"{where}.content.{index}: not allowed in a result")
        said = f"{where}: all content must be type `text` if `is_error` is true"
        check(not failed or inner["type"] == "text", said)
        _block(inner, "user", f"{where}.content.{index}")


def _answered(message: Block, open_calls: list[str], where: str) -> None:
    """Results stand first, one for each call of the message before, and for no other."""
    waiting = list(open_calls)
    others = False
    for block in _in(message):
        if block["type"] != "tool_result":
            others = True
            continue
        call = block["tool_use_id"]
        check(call in open_calls, f"{where}: unexpected `tool_use_id` found in `tool_result` blocks: {call}.")
        check(call in waiting, f"{where}: each tool_use must have a single result. Found multiple for: {call}")
        check(not others, f"{where}: `tool_result` blocks must come first in the content")
        waiting.remove(call)
    check(not waiting, _unanswered(waiting))


def _unanswered(calls: list[str]) -> str:
    said = "`tool_use` ids were found without `tool_result` blocks immediately after"
    return f"messages: {said}: {', '.join(calls)}."


def _begins_with_thinking(messages: list[Any]) -> None:
    """Of the turn that goes on: the assistant's first message after the last one in which the user says something."""
    going: list[Any] = []
    for message in messages:
        said = message["role"] == "user" and any(block["type"] != "tool_result" for block in _in(message))
        going = [] if said else [*going, message]
    first = next((message["content"][0] for message in going if message["role"] == "assistant"), None)
    fits = first is None or first["type"] in ("thinking", "redacted_thinking")
    said = "When `thinking` is enabled, a final `assistant` message must start with a thinking block."
    check(fits, f"messages: Expected `thinking` or `redacted_thinking`, but found another. {said}")
