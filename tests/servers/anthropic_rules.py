"""The rules that the Messages API enforces on a request, with its own status codes and messages."""

from __future__ import annotations

import json
import re
from typing import Any, NoReturn

from tests.servers.anthropic_messages import NAME, RefusedError, check, check_messages, check_text, refuse

NEW_VERSION = "2026-10-21"
_SAMPLING = ("temperature", "top_p", "top_k")
_PARAMETERS = {
    "max_tokens",
    "messages",
    "model",
    "cache_control",
    "container",
    "inference_geo",
    "metadata",
    "output_config",
    "service_tier",
    "speed",
    "stop_sequences",
    "stream",
    "system",
    "thinking",
    "tool_choice",
    "tools",
    *_SAMPLING,
}
_EFFORTS = ("low", "medium", "high", "xhigh", "max")
_BINDING = "thinking-binding-controls-2026-08-01"


def parse(body: bytes, *, version: str, beta: str) -> dict[str, Any]:
    """The request's JSON, checked whole. Raises ``RefusedError``."""
    try:
        request = json.loads(body.decode("utf-8", "strict"), parse_constant=_no_constant)
    except ValueError:
        raise RefusedError(400, "The request body is not valid JSON.") from None
    check(isinstance(request, dict), "The body must be a JSON object.")
    for key in request:
        if key not in _PARAMETERS or (key in _SAMPLING and version == NEW_VERSION):
            refuse(f"{key}: Extra inputs are not permitted")
    check(isinstance(request.get("model"), str) and request["model"], "model: Field required")
    _numbers(request)
    thinking = _thinking(request, beta)
    _tools(request)
    _choice(request, thinking)
    _system(request)
    messages = request.get("messages")
    check(isinstance(messages, list) and messages, "messages: at least one message is required")
    check_messages(messages, budgeted=thinking == "enabled")
    called = any(block["type"] == "tool_use" for message in messages for block in _blocks(message))
    check(not called or "tools" in request, "Requests which include tool_use or tool_result blocks must define tools")
    marks = sum(_marks(request[key]) for key in ("tools", "system", "messages") if key in request)
    most = 4 - ("cache_control" in request and request["cache_control"] is not None)
    check(marks <= most, f"A maximum of 4 blocks with cache_control may be provided. Found {marks}.")
    return request


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _blocks(message: dict[str, Any]) -> list[dict[str, Any]]:
    return message["content"] if isinstance(message["content"], list) else []


def _marks(value: Any) -> int:
    if isinstance(value, dict):
        return ("cache_control" in value) + sum(_marks(inner) for key, inner in value.items() if key != "input_schema")
    return sum(map(_marks, value)) if isinstance(value, list) else 0


def _numbers(request: dict[str, Any]) -> None:
    limit = request.get("max_tokens")
    check("max_tokens" in request, "max_tokens: Field required")
    check(isinstance(limit, int) and not isinstance(limit, bool) and limit > 0, "max_tokens: must be above 0")
    for key in ("temperature", "top_p"):
        value = request.get(key, 0)
        check(isinstance(value, int | float) and 0 <= value <= 1, f"{key}: range: 0..1")
    check(isinstance(request.get("top_k", 1), int), "top_k: Input should be a valid integer")
    stop = request.get("stop_sequences", [])
    check(isinstance(stop, list), "stop_sequences: Input should be a valid list")
    for text in stop:
        check(isinstance(text, str) and text.strip(), "stop_sequences: each stop sequence must contain non-whitespace")
    metadata = request.get("metadata", {})
    check(isinstance(metadata, dict) and set(metadata) <= {"user_id"}, "metadata: Extra inputs are not permitted")
    check(isinstance(request.get("stream", False), bool), "stream: Input should be a valid boolean")


def _thinking(request: dict[str, Any], beta: str) -> str:
    """The kind of thinking that is asked for."""
    output = request.get("output_config", {})
    check(isinstance(output, dict) and set(output) <= {"effort", "format"}, "output_config: Extra inputs")
    check(output.get("effort", "low") in _EFFORTS, f"output_config.effort: Input should be one of {_EFFORTS}")
    thinking = request.get("thinking", {"type": ""})
    kind = thinking.get("type")
    keys = {
        "": set(),
        "enabled": {"budget_tokens", "display"},
        "adaptive": {"display"},
        "disabled": set(),
        "between_tools": set(),
    }
    check(kind in keys, f"thinking.type: '{kind}' is not one of {sorted(keys)}")
    allowed = (
        keys[kind] | {"type"} | ({"block_binding"} if kind in ("enabled", "adaptive") and _BINDING in beta else set())
    )
    check(
        set(thinking) <= allowed, f"thinking.{kind}: Extra inputs are not permitted: {sorted(set(thinking) - allowed)}"
    )
    if kind == "enabled":
        budget = thinking.get("budget_tokens")
        check(isinstance(budget, int) and budget >= 1024, "thinking.enabled.budget_tokens: at least 1024")
        check(budget < request["max_tokens"], "`max_tokens` must be greater than `thinking.budget_tokens`")
    if kind in ("enabled", "adaptive"):
        check(request.get("temperature", 1) == 1, "`temperature` may only be set to 1 when thinking is enabled.")
        check("top_k" not in request, "`top_k` must be unset when thinking is enabled.")
    return str(kind)


def _tools(request: dict[str, Any]) -> None:
    names: list[str] = []
    tools = request.get("tools", [])
    check(isinstance(tools, list), "tools: Input should be a valid list")
    for index, tool in enumerate(tools):
        where = f"tools.{index}"
        check(isinstance(tool, dict), f"{where}: Input should be an object")
        name = tool.get("name")
        check(isinstance(name, str) and NAME.match(name), f"{where}.custom.name: String should match pattern")
        check(name not in names, "tools: Tool names must be unique.")
        names.append(name)
        if tool.get("type", "custom") != "custom":
            continue  # one of the API's own
        keys = {"type", "name", "description", "input_schema", "cache_control", "strict"}
        check(set(tool) <= keys, f"{where}.custom: Extra inputs are not permitted: {sorted(set(tool) - keys)}")
        if "description" in tool:
            check_text(tool["description"], f"{where}.custom.description")
        schema = tool.get("input_schema")
        check(isinstance(schema, dict), f"{where}.custom.input_schema: Field required")
        check(schema.get("type") == "object", f"{where}.custom.input_schema.type: Input should be 'object'")
        for key in ("oneOf", "allOf", "anyOf"):
            check(key not in schema, f"{where}.custom.input_schema: {key} is not supported at the top level")


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
        check(
            not re.search(r"-5-[1-9]", request["model"]), "tool_choice: forced tool use is not supported on this model."
        )


def _system(request: dict[str, Any]) -> None:
    system = request.get("system", "x")
    if isinstance(system, str):
        check_text(system, "system")
        return
    check(isinstance(system, list) and system, "system: Input should be text or blocks")
    for block in system:
        check(isinstance(block, dict) and block.get("type") == "text", "system: only text blocks")
        check_text(block.get("text"), "system")
