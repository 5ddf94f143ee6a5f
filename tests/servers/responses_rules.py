"""The rules that OpenAI's Responses API enforces on a request, with its own status codes and messages."""

from __future__ import annotations

import json
from typing import Any, NoReturn

from tests.servers.chat_messages import NAME, RefusedError, check, is_text, refuse
from tests.servers.responses_input import check_input

_PARAMETERS = {
    "background",
    "context_management",
    "conversation",
    "include",
    "input",
    "instructions",
    "max_output_tokens",
    "max_tool_calls",
    "metadata",
    "model",
    "parallel_tool_calls",
    "previous_response_id",
    "prompt",
    "prompt_cache_key",
    "prompt_cache_options",
    "reasoning",
    "safety_identifier",
    "service_tier",
    "store",
    "stream",
    "stream_options",
    "temperature",
    "text",
    "tool_choice",
    "tools",
    "top_logprobs",
    "top_p",
    "truncation",
    "user",
}
_INCLUDES = {
    "web_search_call.action.sources",
    "code_interpreter_call.outputs",
    "computer_call_output.output.image_url",
    "file_search_call.results",
    "message.input_image.image_url",
    "message.output_text.logprobs",
    "reasoning.encrypted_content",
}
_EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
_BUILT_IN = {"web_search", "web_search_preview", "file_search", "code_interpreter", "image_generation", "mcp"}
_FUNCTION = {"type", "name", "description", "parameters", "strict", "defer_loading"}


def parse(body: bytes, needs: dict[str, str]) -> dict[str, Any]:
    """The request's JSON, checked whole. ``needs``: the reasoning item that an item was given after, by its id.

    Raises ``RefusedError``.
    """
    try:
        request = json.loads(body.decode("utf-8", "strict"), parse_constant=_no_constant)
    except ValueError:
        raise RefusedError(400, "We could not parse the JSON body of your request.") from None
    check(isinstance(request, dict), "The body must be a JSON object.")
    for key in request:
        if key not in _PARAMETERS:
            refuse(f"Unknown parameter: '{key}'.", key, "unknown_parameter")
    check(is_text(request.get("model")) and request["model"], "Missing required parameter: 'model'.", "model")
    check(is_text(request.get("instructions") or ""), "Invalid type for 'instructions'.", "instructions")
    _numbers(request)
    _options(request)
    names = _tools(request)
    _choice(request, names)
    check_input(request, needs)
    return request


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _numbers(request: dict[str, Any]) -> None:
    for key, low, high in (("temperature", 0, 2), ("top_p", 0, 1)):
        value = request.get(key, low)
        number = isinstance(value, int | float) and not isinstance(value, bool)
        check(number and low <= value <= high, f"Invalid '{key}': {value}.", key)
    value = request.get("max_output_tokens", 16)
    said = "Invalid 'max_output_tokens': integer below minimum value. Expected a value >= 16, but got"
    if not isinstance(value, int) or value < 16:
        refuse(f"{said} {value} instead.", "max_output_tokens", "integer_below_min_value")


def _options(request: dict[str, Any]) -> None:
    for key in ("stream", "store", "parallel_tool_calls"):
        check(isinstance(request.get(key, False), bool), f"Invalid type for '{key}'.", key)
    for name in request.get("include", []):
        check(name in _INCLUDES, f"Invalid value: '{name}'. Supported values are: {sorted(_INCLUDES)}.", "include")
    reasoning = request.get("reasoning", {})
    check(isinstance(reasoning, dict), "Invalid type for 'reasoning'.", "reasoning")
    unknown = set(reasoning) - {"effort", "summary", "context", "mode"}
    check(not unknown, f"Unknown parameter: 'reasoning.{''.join(unknown)}'.", "reasoning")
    effort, summary = reasoning.get("effort", "low"), reasoning.get("summary", "auto")
    check(effort in _EFFORTS, f"Invalid value: '{effort}'. Supported values are: {_EFFORTS}.", "reasoning.effort")
    check(summary in ("auto", "concise", "detailed"), f"Invalid value: '{summary}'.", "reasoning.summary")
    metadata = request.get("metadata", {})
    check(isinstance(metadata, dict) and len(metadata) <= 16, "Invalid 'metadata'.", "metadata")
    for key, value in metadata.items():
        check(is_text(value), f"Invalid type for 'metadata.{key}': expected a string.", "metadata")
    if "stream_options" in request:
        check(request.get("stream"), "The 'stream_options' parameter is only allowed when 'stream' is enabled.")


def _tools(request: dict[str, Any]) -> list[str]:
    tools = request.get("tools", [])
    check(isinstance(tools, list) and len(tools) <= 128, "Invalid 'tools': array too long.", "tools")
    names: list[str] = []
    for index, tool in enumerate(tools):
        where = f"tools[{index}]"
        check(isinstance(tool, dict), f"Invalid type for '{where}'.", where)
        kind = tool.get("type")
        check(kind in {"function", *_BUILT_IN}, f"Invalid value: '{kind}'.", f"{where}.type")
        if kind != "function":
            continue
        name = tool.get("name")
        check(is_text(name), f"Missing required parameter: '{where}.name'.", f"{where}.name")
        check(NAME.match(name), f"Invalid '{where}.name': string does not match pattern.", f"{where}.name")
        check(name not in names, f"Tool names must be unique: {name}.", where)
        check(set(tool) <= _FUNCTION, f"Unknown parameter: '{where}.{sorted(set(tool) - _FUNCTION)}'.", where)
        check(is_text(tool.get("description", "")), f"Invalid type for '{where}.description'.", where)
        check(isinstance(tool.get("parameters"), dict), f"Missing required parameter: '{where}.parameters'.", where)
        strict = tool.get("strict")
        check(strict is None or isinstance(strict, bool), f"Invalid type for '{where}.strict'.", where)
        # Left out it means true here, unlike in chat completions.
        check_schema(name, tool["parameters"], strict=strict is not False, top=True)
        names.append(name)
    return names


def check_schema(name: str, schema: Any, *, strict: bool, top: bool = False) -> None:
    """Refuse a schema that the API refuses: with ``strict`` every object is closed and all its fields required."""
    check(isinstance(schema, dict | bool), f"Invalid schema for function '{name}': not an object.", "tools")
    if isinstance(schema, bool):
        return
    kind = schema.get("type")
    if top:
        said = (
            f"Invalid schema for function '{name}': schema must be a JSON Schema of 'type: \"object\"', got '{kind}'."
        )
        check(kind == "object", said, "tools")
    if kind == "array":
        has_items = "items" in schema or "prefixItems" in schema
        check(has_items, f"Invalid schema for function '{name}': array schema missing items.", "tools")
    if strict and kind == "object":
        closed = schema.get("additionalProperties") is False
        check(closed, f"Invalid schema for function '{name}': 'additionalProperties' is required to be false.", "tools")
        missing = set(schema.get("properties", {})) - set(schema.get("required", []))
        check(not missing, f"Invalid schema for function '{name}': 'required' must include every property.", "tools")
    inner = [*schema.get("properties", {}).values(), *schema.get("$defs", {}).values()]
    inner += [*schema.get("anyOf", ()), *schema.get("oneOf", ()), *([schema["items"]] if "items" in schema else ())]
    for one in inner:
        check_schema(name, one, strict=strict)


def _choice(request: dict[str, Any], names: list[str]) -> None:
    choice = request.get("tool_choice")
    if choice is None:
        return
    check(request.get("tools"), "Tool choice is only allowed when 'tools' are specified.", "tool_choice")
    if isinstance(choice, str):
        check(choice in ("auto", "none", "required"), f"Invalid value: '{choice}'.", "tool_choice")
        return
    kind = choice.get("type") if isinstance(choice, dict) else None
    check(kind in {"function", "allowed_tools", *_BUILT_IN}, f"Invalid value: '{kind}'.", "tool_choice.type")
    if kind == "function":
        check(set(choice) == {"type", "name"}, "Missing required parameter: 'tool_choice.name'.", "tool_choice.name")
        check(choice["name"] in names, f"Tool choice '{choice['name']}' not found in 'tools' parameter.", "tool_choice")
