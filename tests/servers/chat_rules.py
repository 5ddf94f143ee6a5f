"""The rules that OpenAI's chat completions enforce on a request, with its own status codes and messages."""

from __future__ import annotations

import json
from collections.abc import Container
from typing import Any, NoReturn

from tests.servers.chat_messages import NAME, RefusedError, check, check_messages, is_text, refuse

_PARAMETERS = {
    "max_tokens",
    "parallel_tool_calls",
    "presence_penalty",
    "logprobs",
    "messages",
    "temperature",
    "model",
    "tools",
    "stream_options",
    "stop",
    "store",
    "prompt_cache_key",
    "stream",
    "logit_bias",
    "n",
    "tool_choice",
    "user",
    "prediction",
    "safety_identifier",
    "metadata",
    "top_p",
    "top_logprobs",
    "response_format",
    "max_completion_tokens",
    "frequency_penalty",
    "reasoning_effort",
    "verbosity",
    "service_tier",
    "seed",
}
_EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")


def parse(body: bytes, thoughts: Container[object] = ()) -> dict[str, Any]:
    """The request's JSON, checked whole. Raises ``RefusedError``. ``thoughts`` as in ``check_messages``."""
    try:
        request = json.loads(body.decode("utf-8", "strict"), parse_constant=_no_constant)
    except ValueError:
        raise RefusedError(400, "We could not parse the JSON body of your request.") from None
    check(isinstance(request, dict), "The body must be a JSON object.")
    for key in request:
        if key not in _PARAMETERS:
            refuse(f"Unknown parameter: '{key}'.", key, "unknown_parameter")
    check(
        isinstance(request.get("model"), str) and request["model"],
        "you must provide a model parameter",
        "model",
    )
    _numbers(request)
    _metadata(request)
    names = _tools(request)
    _choice(request, names)
    check(isinstance(request.get("messages"), list), "Missing required parameter: 'messages'.", "messages")
    check(
        request["messages"],
        "Invalid 'messages': empty array. Expected an array with minimum length 1.",
        "messages",
    )
    check_messages(request["messages"], thoughts)
    return request


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _numbers(request: dict[str, Any]) -> None:
    for key, low, high in (("temperature", 0, 2), ("top_p", 0, 1)):
        value = request.get(key, low)
        check(_number(value) and low <= value <= high, f"Invalid '{key}': {value}.", key)
    for key in ("max_tokens", "max_completion_tokens", "n"):
        value = request.get(key, 1)
        check(isinstance(value, int) and value >= 1, f"Invalid '{key}': integer below minimum value.", key)
    check(
        not {"max_tokens", "max_completion_tokens"} <= set(request),
        "Setting both token limits is not supported.",
    )
    check(isinstance(request.get("seed", 0), int), "Invalid type for 'seed'.", "seed")
    stop = request.get("stop", [])
    fits = isinstance(stop, str) or (isinstance(stop, list) and len(stop) <= 4 and all(map(is_text, stop)))
    check(fits, "Invalid 'stop': a string or at most 4 strings.", "stop")
    effort = request.get("reasoning_effort", "low")
    check(
        effort in _EFFORTS,
        f"Invalid value: '{effort}'. Supported values are: {_EFFORTS}.",
        "reasoning_effort",
    )
    check(isinstance(request.get("stream", False), bool), "Invalid type for 'stream'.", "stream")
    if "stream_options" in request:
        check(request.get("stream"), "The 'stream_options' parameter is only allowed when 'stream' is enabled.")


def _metadata(request: dict[str, Any]) -> None:
    metadata = request.get("metadata")
    if metadata is None:
        return
    fits = isinstance(metadata, dict) and len(metadata) <= 16 and all(map(is_text, metadata.values()))
    check(fits, "Invalid 'metadata': expected at most 16 strings.", "metadata")
    check(request.get("store"), "The 'metadata' parameter is only allowed when 'store' is enabled.", "metadata")


def _number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _tools(request: dict[str, Any]) -> list[str]:
    if "tools" not in request:
        return []
    tools = request["tools"]
    check(isinstance(tools, list) and tools, "Invalid 'tools': empty array.", "tools")
    check(len(tools) <= 128, "Invalid 'tools': array too long. Expected at most 128.", "tools")
    names = []
    for index, tool in enumerate(tools):
        where = f"tools[{index}]"
        check(
            isinstance(tool, dict) and tool.get("type") == "function",
            f"Invalid value: '{where}.type'.",
            where,
        )
        function = tool.get("function")
        check(isinstance(function, dict), f"Missing required parameter: '{where}.function'.", where)
        name = function.get("name")
        check(
            is_text(name) and NAME.match(name),
            f"Invalid '{where}.function.name': does not match pattern.",
            where,
        )
        check(name not in names, f"Tool names must be unique: {name}.", where)
        check(
            set(function) <= {"name", "description", "parameters", "strict"},
            f"Unknown key in '{where}'.",
            where,
        )
        check(is_text(function.get("description", "")), f"Invalid type for '{where}.function.description'.", where)
        if "parameters" in function:
            _schema(name, function["parameters"], top=True)
        names.append(name)
    return names


_TYPES = {"object", "array", "string", "number", "integer", "boolean", "null"}


def _schema(name: str, schema: Any, *, top: bool = False, defined: Container[str] = ()) -> None:
    said = f"Invalid schema for function '{name}':"
    check(isinstance(schema, dict | bool), f"{said} not an object.", "tools")
    if isinstance(schema, bool):
        return
    kind = schema.get("type")
    if top:
        check(kind == "object", f"{said} must be of 'type: \"object\"', got '{kind}'.", "tools")
        combined = {"anyOf", "oneOf", "allOf", "enum", "not"} & set(schema)
        check(not combined, f"{said} must not have {sorted(combined)} at the top level.", "tools")
        defined = {f"#/$defs/{key}" for key in schema.get("$defs", {})}
    kinds = kind if isinstance(kind, list) else [kind] if "type" in schema else []
    check(all(one in _TYPES for one in kinds), f"{said} {kind!r} is not valid under any of the given schemas.", "tools")
    if "array" in kinds:
        check("items" in schema or "prefixItems" in schema, f"{said} array schema missing items.", "tools")
    if "$ref" in schema:
        check(schema["$ref"] in defined, f"{said} reference to '{schema['$ref']}' can't be resolved.", "tools")
    required = schema.get("required", [])
    check(isinstance(required, list) and all(map(is_text, required)), f"{said} required.", "tools")
    for key in ("properties", "$defs"):
        check(isinstance(schema.get(key, {}), dict), f"{said} {key} is not an object.", "tools")
        for inner in schema.get(key, {}).values():
            _schema(name, inner, defined=defined)
    for key in ("anyOf", "oneOf", "allOf"):
        check(schema.get(key, True), f"{said} {key} is empty.", "tools")
        for inner in schema.get(key, ()):
            _schema(name, inner, defined=defined)
    if "items" in schema:
        _schema(name, schema["items"], defined=defined)


def _choice(request: dict[str, Any], names: list[str]) -> None:
    choice = request.get("tool_choice")
    if choice is None:
        return
    check(names, "Invalid value for 'tool_choice': only allowed when 'tools' are specified.", "tool_choice")
    if isinstance(choice, str):
        check(choice in ("auto", "none", "required"), f"Invalid value: '{choice}'.", "tool_choice")
    else:
        named = choice.get("function", {}).get("name")
        check(named in names, f"Tool choice '{named}' is not among the tools.", "tool_choice")
