"""OpenAI's chat completions: what the API refuses, with its own messages, and what a reply is in the format."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Container, Iterator, Mapping
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
    decoded,
    fresh,
    in_range,
    is_object,
    is_text,
    pieces,
    read_json,
    slices,
    sse,
    words,
    written,
)

EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
_PARAMETERS = words("""
    max_tokens parallel_tool_calls presence_penalty logprobs messages temperature model tools stream_options stop store
    prompt_cache_key stream logit_bias n tool_choice user prediction safety_identifier metadata top_p top_logprobs
    response_format max_completion_tokens frequency_penalty reasoning_effort verbosity service_tier seed""")
_KEYS = {
    **{role: words("role content name") for role in ("system", "developer", "user")},
    "assistant": words("role content name tool_calls refusal audio"),
    "tool": words("role content tool_call_id"),
}
_PARTS = {"user": words("text image_url input_audio file"), "assistant": words("text refusal")}
_MAGIC = {"image/png": b"\x89PNG", "image/jpeg": b"\xff\xd8", "image/gif": b"GIF8", "image/webp": b"RIFF"}
_TYPES = words("object array string number integer boolean null")


class OpenAI(WireFormat):
    """What both formats of OpenAI do alike."""

    base = "/v1"

    def authenticate(self, headers: Mapping[str, str], right: str | None) -> None:
        check_bearer(headers, right, "You didn't provide an API key.", "Incorrect API key provided: {key}.")

    def error_body(self, error: RefusedError) -> dict[str, Any]:
        kind = "invalid_request_error" if error.kind is None else error.kind or None
        return {"error": {"message": error.message, "type": kind, "param": error.param, "code": error.code}}


class ChatCompletions(OpenAI):
    """The format."""

    name = "openai"
    path = re.compile(r"/v1/chat/completions(\?.*)?")
    ends = ("length", "content_filter")

    def __init__(self) -> None:
        self.thoughts: set[object] = set()
        """What it said of its thinking: it takes that back, as compatible servers do, and no other server's."""

    def parse(self, request: Request, model: str | None) -> dict[str, Any]:
        return parse(request.body, self.thoughts)

    def check_model(self, asked: dict[str, Any], known: set[str] | None, plain: set[str]) -> None:
        said = f"The model `{asked['model']}` does not exist or you do not have access to it."
        check(known is None or asked["model"] in known, said, "model", "model_not_found", status=404)

    def stream(self, reply: Reply, asked: dict[str, Any], size: int) -> Iterator[bytes]:
        self.thoughts.add(reply.thinking)
        yield from map(sse, self._chunks(reply, asked, size) if reply.chunks is None else reply.chunks)
        if reply.done:
            yield b"data: [DONE]\n\n"

    def _chunks(self, reply: Reply, asked: dict[str, Any], size: int) -> Iterator[dict[str, Any]]:
        head = {"id": fresh("chatcmpl"), "object": "chat.completion.chunk", "created": int(time.time())}
        head |= {"model": asked["model"]}
        for delta in _deltas(reply):
            yield head | {"choices": [{"index": 0, "delta": delta, "finish_reason": None}]}
        yield head | {"choices": [{"index": 0, "delta": {}, "finish_reason": self._reason(reply)}]}
        if asked.get("stream_options", {}).get("include_usage"):
            yield head | {"choices": [], "usage": _usage(reply, size)}

    def whole(self, reply: Reply, asked: dict[str, Any], size: int) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": reply.text or None, "refusal": None}
        if reply.calls:
            functions = [(key, {"name": name, "arguments": given}) for key, name, given in map(_call, reply.calls)]
            message["tool_calls"] = [{"id": key, "type": "function", "function": one} for key, one in functions]
        choice = {"index": 0, "message": message, "finish_reason": self._reason(reply), "logprobs": None}
        head = {"id": fresh("chatcmpl"), "object": "chat.completion", "created": int(time.time())}
        return head | {"model": asked["model"], "choices": [choice], "usage": _usage(reply, size)}

    def _reason(self, reply: Reply) -> str:
        return self.finish_reason(reply, "tool_calls" if reply.calls else "stop")


def _call(call: Call) -> tuple[str, str, str]:
    text = call.arguments if isinstance(call.arguments, str) else json.dumps(call.arguments)
    return call.id or fresh("call"), call.name, text


def _deltas(reply: Reply) -> Iterator[dict[str, Any]]:
    yield {"role": "assistant", "content": None if reply.calls and not reply.text else ""}
    yield from ({"reasoning_content": piece} for piece in pieces("".join(reply.thinking)))
    yield from ({"content": piece} for piece in pieces(reply.text))
    for index, (call_id, name, arguments) in enumerate(map(_call, reply.calls)):
        function = {"name": name, "arguments": ""}
        yield {"tool_calls": [{"index": index, "id": call_id, "type": "function", "function": function}]}
        for piece in slices(arguments):
            yield {"tool_calls": [{"index": index, "function": {"arguments": piece}}]}


def _usage(reply: Reply, size: int) -> Mapping[str, Any]:
    read, wrote = size // 4, written(reply) + len(pieces("".join(reply.thinking)))
    counted = {"prompt_tokens": read, "completion_tokens": wrote, "total_tokens": read + wrote}
    return counted if reply.usage is None else reply.usage


def parse(body: bytes, thoughts: Container[object] = ()) -> dict[str, Any]:
    """The request's JSON, checked whole. ``thoughts``: what the server has said of its thinking, and so takes back."""
    request = read_json(body, "We could not parse the JSON body of your request.")
    for key in request:
        check(key in _PARAMETERS, f"Unknown parameter: '{key}'.", key, "unknown_parameter")
    check(is_text(request.get("model")) and request["model"], "you must provide a model parameter", "model")
    check_sampling(request)
    for key in ("max_tokens", "max_completion_tokens", "n"):
        value = request.get(key, 1)
        check(isinstance(value, int) and value >= 1, f"Invalid '{key}': integer below minimum value.", key)
    check(not {"max_tokens", "max_completion_tokens"} <= set(request), "Setting both token limits is not supported.")
    check(isinstance(request.get("seed", 0), int), "Invalid type for 'seed'.", "seed")
    stop = request.get("stop", [])
    fits = is_text(stop) or (isinstance(stop, list) and len(stop) <= 4 and all(map(is_text, stop)))
    check(fits, "Invalid 'stop': a string or at most 4 strings.", "stop")
    check_effort(request.get("reasoning_effort", "low"), "reasoning_effort")
    if request.get("metadata") is not None:
        check(request.get("store"), "The 'metadata' parameter is only allowed when 'store' is enabled.", "metadata")
    tools = request.get("tools", [])
    check(isinstance(tools, list) and (tools or "tools" not in request), "Invalid 'tools': empty array.", "tools")
    names = check_tools([_function(tool, f"tools[{index}]") for index, tool in enumerate(tools)])
    choice = request.get("tool_choice")
    check_choice(choice, names)
    if isinstance(choice, dict):
        named = choice.get("function", {}).get("name")
        check(named in names, f"Tool choice '{named}' is not among the tools.", "tool_choice")
    messages = request.get("messages")
    check(isinstance(messages, list), "Missing required parameter: 'messages'.", "messages")
    check(messages, "Invalid 'messages': empty array. Expected an array with minimum length 1.", "messages")
    check_messages(request["messages"], thoughts)
    return request


def check_sampling(request: dict[str, Any]) -> None:
    """Parameters that both formats of OpenAI have."""
    for key, high in (("temperature", 2), ("top_p", 1)):
        check(in_range(request.get(key, 0), 0, high), f"Invalid '{key}': {request.get(key)}.", key)
    for key in ("stream", "store", "parallel_tool_calls"):
        check(isinstance(request.get(key, False), bool), f"Invalid type for '{key}'.", key)
    if "stream_options" in request:
        check(request.get("stream"), "The 'stream_options' parameter is only allowed when 'stream' is enabled.")
    metadata = request.get("metadata") or {}
    fits = isinstance(metadata, dict) and len(metadata) <= 16 and all(map(is_text, metadata.values()))
    check(fits, "Invalid 'metadata': expected at most 16 strings.", "metadata")


def check_effort(effort: object, param: str) -> None:
    """An effort of reasoning."""
    check(effort in EFFORTS, f"Invalid value: '{effort}'. Supported values are: {EFFORTS}.", param)


def check_choice(choice: Any, names: object) -> None:
    """A choice of tools, but for the name in it."""
    if choice is not None:
        check(names, "Invalid 'tool_choice': only allowed when 'tools' are specified.", "tool_choice")
        fits = choice in ("auto", "none", "required") if is_text(choice) else isinstance(choice, dict)
        check(fits, f"Invalid value: '{choice}'.", "tool_choice")


def _function(tool: Any, where: str) -> dict[str, Any]:
    check(isinstance(tool, dict) and tool.get("type") == "function", f"Invalid value: '{where}.type'.", where)
    function = tool.get("function")
    check(isinstance(function, dict), f"Missing required parameter: '{where}.function'.", where)
    check(set(function) <= words("name description parameters strict"), f"Unknown key in '{where}'.", where)
    return dict(function)


def check_tools(functions: list[dict[str, Any]], *, strict: bool = False) -> list[str]:
    """The names of tools. ``strict``: what a tool is that does not say whether it is."""
    check(len(functions) <= 128, "Invalid 'tools': array too long. Expected at most 128.", "tools")
    names: list[str] = []
    for index, function in enumerate(functions):
        where = f"tools[{index}]"
        name = function.get("name")
        check(is_text(name), f"Missing required parameter: '{where}.name'.", f"{where}.name")
        check(NAME.match(str(name)), f"Invalid '{where}.name': string does not match pattern.", f"{where}.name")
        check(name not in names, f"Tool names must be unique: {name}.", where)
        check(is_text(function.get("description", "")), f"Invalid type for '{where}.description'.", where)
        given = function.get("strict")
        check(given is None or isinstance(given, bool), f"Invalid type for '{where}.strict'.", where)
        said = f"Invalid schema for function '{name}':"
        if "parameters" in function:
            _check_schema(said, function["parameters"], top=True, strict=strict if given is None else given)
            for flaw in find_flaws("openai", function["parameters"]):
                check(False, f"{said} {flaw}", f"{where}.parameters", code="invalid_function_parameters")
        names.append(str(name))
    return names


def _check_schema(said: str, schema: Any, *, top: bool = False, strict: bool, defined: Container[str] = ()) -> None:
    check(isinstance(schema, dict | bool), f"{said} not an object.", "tools")
    if isinstance(schema, bool):
        return
    kind = schema.get("type")
    if top:
        check(kind == "object", f"{said} must be of 'type: \"object\"', got '{kind}'.", "tools")
        combined = words("anyOf oneOf allOf enum not") & set(schema)
        check(not combined, f"{said} must not have {sorted(combined)} at the top level.", "tools")
        keywords = ("$defs", "definitions")
        defined = {"#", *(f"#/{keyword}/{key}" for keyword in keywords for key in schema.get(keyword, {}))}
    kinds = kind if isinstance(kind, list) else [kind] if "type" in schema else []
    check(all(one in _TYPES for one in kinds), f"{said} {kind!r} is not valid under any of the given schemas.", "tools")
    if "array" in kinds:
        check("items" in schema or "prefixItems" in schema, f"{said} array schema missing items.", "tools")
    if "$ref" in schema:
        check(schema["$ref"] in defined, f"{said} reference to '{schema['$ref']}' can't be resolved.", "tools")
    required = schema.get("required", [])
    check(isinstance(required, list) and all(map(is_text, required)), f"{said} required.", "tools")
    if strict and "object" in kinds:
        closed = schema.get("additionalProperties") is False
        check(closed, f"{said} 'additionalProperties' is required to be false.", "tools")
        missing = set(schema.get("properties", {})) - set(required)
        check(not missing, f"{said} 'required' must include every property.", "tools")
    inner: list[Any] = [schema["items"]] if "items" in schema else []
    for key in ("properties", "$defs"):
        check(isinstance(schema.get(key, {}), dict), f"{said} {key} is not an object.", "tools")
        inner += schema.get(key, {}).values()
    for key in ("anyOf", "oneOf", "allOf"):
        check(schema.get(key, True), f"{said} {key} is empty.", "tools")
        inner += schema.get(key, ())
    for one in inner:
        _check_schema(said, one, strict=strict, defined=defined)


def check_messages(messages: list[Any], thoughts: Container[object] = ()) -> None:
    """Roles, content, and that every tool call has exactly one result directly after it."""
    open_calls: list[str] = []  # not answered yet
    asked: set[str] = set()  # by the assistant message that is being answered
    for index, message in enumerate(messages):
        where = f"messages[{index}]"
        check(isinstance(message, dict), f"Invalid type for '{where}': expected an object.", where)
        role = message.get("role")
        check(role in _KEYS, f"Invalid value: '{role}'. Supported values are: {list(_KEYS)}.", f"{where}.role")
        extra = set(message) - _KEYS[role]
        if role == "assistant":
            mine = {key for key in ("reasoning_content", "reasoning") if is_text(message.get(key))}
            extra -= {key for key in mine if message[key] in thoughts}
        check(not extra, f"Unknown parameter in '{where}': {sorted(extra)}.", where)
        check(NAME.match(message.get("name", "x")), f"Invalid '{where}.name'.", where)
        _content(message, role, where)
        if role == "tool":
            call = message.get("tool_call_id")
            check(is_text(call), f"Missing parameter 'tool_call_id' in '{where}'.", where)
            said = "messages with role 'tool' must be a response to a preceeding message with 'tool_calls'."
            check(call in asked, f"Invalid parameter: {said}", where)
            check(call in open_calls, f"Duplicate response for tool_call_id '{call}'.", where)
            open_calls.remove(str(call))
            continue
        _answered(open_calls, where)
        open_calls = _calls(message, where) if role == "assistant" else []
        asked = set(open_calls)
    _answered(open_calls, "messages")


def _answered(open_calls: list[str], where: str) -> None:
    said = "An assistant message with 'tool_calls' must be followed by tool messages responding to each 'tool_call_id'."
    missing = f"The following tool_call_ids did not have response messages: {', '.join(open_calls)}"
    check(not open_calls, f"{said} {missing}", where)


def _content(message: dict[str, Any], role: str, where: str) -> None:
    content = message.get("content")
    if content is None:
        excused = role == "assistant" and (message.get("tool_calls") or message.get("refusal"))
        check(excused, "Invalid value for 'content': expected a string, got null.", f"{where}.content")
    elif isinstance(content, list):
        check(content, f"Invalid '{where}.content': empty array.", where)
        for part in content:
            allowed = _PARTS.get(role, {"text"})
            fits = isinstance(part, dict) and part.get("type") in allowed and set(part) == {"type", part["type"]}
            check(fits, f"Invalid value in '{where}.content'. Supported types are: {sorted(allowed)}.", where)
            _part(part["type"], part[part["type"]], f"{where}.content")
    else:
        check(is_text(content), f"Invalid type for '{where}.content': expected a string or an array.", where)


def _part(kind: str, value: Any, where: str) -> None:
    """One piece of content, as deep as the API looks into it."""
    match kind:
        case "text" | "refusal":
            check(is_text(value), f"Invalid type for '{where}[].text': expected a string.", where)
        case "image_url":
            url = str(value.get("url")) if isinstance(value, dict) else ""
            data = decoded(url.partition(";base64,")[2])
            said = "You uploaded an unsupported image. Please make sure your image has of one the following formats:"
            check(not data.endswith(CORRUPT), f"{said} ['png', 'jpeg', 'gif', 'webp'].", code="image_parse_error")
            known = url.startswith(("https://", "http://")) or any(
                _inline(url, media).startswith(magic) for media, magic in _MAGIC.items()
            )
            known = known and not data.endswith(MISLABELLED) and set(value) <= {"url", "detail"}
            check(known, f"Invalid image in '{where}'.", where, "invalid_image_url")
        case "file":
            fits = isinstance(value, dict) and set(value) in ({"filename", "file_data"}, {"file_id"})
            check(fits, f"Missing required parameter: '{where}[].file.filename'.", where)
            if "file_data" in value:
                is_pdf = _inline(value["file_data"], "application/pdf").startswith(b"%PDF")
                check(is_pdf, f"Invalid file data in '{where}': expected a base64-encoded PDF as data URL.", where)
        case "input_audio":
            fits = isinstance(value, dict) and set(value) == {"data", "format"} and value["format"] in ("wav", "mp3")
            check(fits and decoded(value["data"]), f"Invalid audio in '{where}'.", where)


def _inline(url: object, kind: str) -> bytes:
    """The bytes of a data URL of ``kind``; none for anything else."""
    start = f"data:{kind};base64,"
    return decoded(url[len(start) :]) if isinstance(url, str) and url.startswith(start) else b""


def _calls(message: dict[str, Any], where: str) -> list[str]:
    calls = message.get("tool_calls", [])
    fits = isinstance(calls, list) and (calls or "tool_calls" not in message)
    check(fits, f"Invalid '{where}.tool_calls': empty array.", where)
    ids: list[str] = []
    for call in calls:
        fits = isinstance(call, dict) and set(call) == {"id", "type", "function"} and call["type"] == "function"
        check(fits, f"Invalid call in '{where}'.", where)
        check(is_text(call["id"]) and call["id"], f"Invalid '{where}.tool_calls[].id'.", where)
        check(len(call["id"]) <= 40, f"Invalid '{where}.tool_calls[].id': string too long, at most 40.", where)
        check(call["id"] not in ids, f"Duplicate tool call id in '{where}'.", where)
        function = call["function"]
        check(NAME.match(str(function.get("name"))), f"Invalid '{where}.tool_calls[].function.name'.", where)
        check(is_object(function.get("arguments")), f"Invalid '{where}.tool_calls[].function.arguments'.", where)
        ids.append(call["id"])
    return ids
