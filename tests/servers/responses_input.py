"""The rules on input items: content by role, ids, an output for every call, reasoning unchanged before its item."""

from __future__ import annotations

import json
import re
from typing import Any

from tests.servers.chat_messages import NAME, RefusedError, check, decoded, is_text, refuse
from tests.servers.http import CORRUPT, MISLABELLED
from tests.servers.responses_wire import unseal

_PREFIXES = {"reasoning": "rs", "message": "msg", "function_call": "fc", "web_search_call": "ws"}
_KEYS = {
    "message": {"type", "id", "role", "status", "content", "phase"},
    "reasoning": {"type", "id", "summary", "content", "encrypted_content"},
    "function_call": {"type", "id", "call_id", "name", "arguments", "status", "namespace"},
    "function_call_output": {"type", "id", "call_id", "output", "status"},
    "web_search_call": {"type", "id", "status", "action"},
    "code_interpreter_call": {"type", "id", "status", "code", "container_id", "outputs"},
    "compaction": {"type", "id", "encrypted_content"},
}
_INPUT = {"input_text", "input_image", "input_file"}
_OUTPUT = {"output_text", "refusal"}
_CONTENT = {
    "input_text": {"type", "text"},
    "input_image": {"type", "image_url", "file_id", "detail"},
    "input_file": {"type", "file_data", "file_url", "file_id", "filename", "detail"},
    "output_text": {"type", "text", "annotations", "logprobs"},
    "refusal": {"type", "refusal"},
}
_IMAGE = re.compile(r"(data:image/(png|jpeg|webp|gif);base64,[A-Za-z0-9+/]+=*|https?://\S+)\Z")
_FILE = re.compile(r"data:[\w.+-]+/[\w.+-]+;base64,[A-Za-z0-9+/]+=*\Z")


def check_input(request: dict[str, Any], needs: dict[str, str]) -> None:
    """``needs``: the reasoning item that an item was given after, by its id. Raises ``RefusedError``."""
    items = request.get("input")
    if isinstance(items, str):
        return
    check(isinstance(items, list), "Missing required parameter: 'input'.", "input")
    check(items, "Invalid 'input': empty array. Expected an array with minimum length 1.", "input")
    for index, item in enumerate(items):
        _item(item, f"input[{index}]")
    _pairs(items)
    _order(items, request["model"], needs)


def _item(item: Any, where: str) -> None:
    check(isinstance(item, dict), f"Invalid type for '{where}': expected an object.", where)
    kind = item.get("type", "message" if "role" in item else None)
    check(kind in _KEYS, f"Invalid value: '{kind}'. Supported values are: {sorted(_KEYS)}.", f"{where}.type")
    for key in item:
        if key not in _KEYS[kind]:
            refuse(f"Unknown parameter: '{where}.{key}'.", f"{where}.{key}", "unknown_parameter")
    prefix = _PREFIXES.get(kind)
    if "id" in item and prefix:
        fits = is_text(item["id"]) and item["id"].startswith(prefix) and len(item["id"]) <= 64
        said = f"Invalid '{where}.id': '{item['id']}'. Expected an ID that begins with '{prefix}'."
        check(fits, said, f"{where}.id")
    match kind:
        case "message":
            _message(item, where)
        case "reasoning":
            for key in ("id", "summary"):
                check(key in item, f"Missing required parameter: '{where}.{key}'.", f"{where}.{key}")
        case "function_call":
            _call_id(item, where)
            check(is_text(item.get("name")) and NAME.match(item["name"]), f"Invalid '{where}.name'.", where)
            check(
                is_text(item.get("arguments")) and _is_json(item["arguments"]), f"Invalid '{where}.arguments'.", where
            )
        case "function_call_output":
            _call_id(item, where)
            _content(item.get("output"), _INPUT, f"{where}.output")


def _message(item: dict[str, Any], where: str) -> None:
    role = item.get("role")
    roles = ("assistant", "system", "developer", "user")
    check(role in roles, f"Invalid value: '{role}'. Supported values are: {roles}.", f"{where}.role")
    if role == "assistant":
        if not isinstance(item.get("content"), str):
            for key in ("id", "status"):
                check(key in item, f"Missing required parameter: '{where}.{key}'.", f"{where}.{key}")
        check(item.get("phase", "commentary") in ("commentary", "final_answer"), f"Invalid '{where}.phase'.", where)
    else:
        check("id" not in item and "phase" not in item, f"Unknown parameter in '{where}'.", where)
    _content(item.get("content"), _OUTPUT if role == "assistant" else _INPUT, f"{where}.content")


def _content(content: Any, allowed: set[str], where: str) -> None:
    if isinstance(content, str):
        return
    check(isinstance(content, list) and content, f"Invalid type for '{where}'.", where)
    for index, part in enumerate(content):
        here = f"{where}[{index}]"
        kind = part.get("type") if isinstance(part, dict) else None
        check(kind in allowed, f"Invalid value: '{kind}'. Supported values are: {sorted(allowed)}.", here)
        check(set(part) <= _CONTENT[kind], f"Unknown parameter: '{here}.{set(part) - _CONTENT[kind]}'.", here)
        match kind:
            case "input_text":
                check(is_text(part.get("text")), f"Missing required parameter: '{here}.text'.", here)
            case "output_text":
                check(is_text(part.get("text")), f"Missing required parameter: '{here}.text'.", here)
                check("annotations" in part, f"Missing required parameter: '{here}.annotations'.", here)
            case "refusal":
                check(is_text(part.get("refusal")), f"Missing required parameter: '{here}.refusal'.", here)
            case "input_image":
                data = decoded(part.get("image_url", "").partition(";base64,")[2])
                said = "The image data you provided does not represent a valid image. Please check your input"
                check(not data.endswith(CORRUPT), f"{said} and try again with one of the supported formats.", "input")
                said = f"Invalid '{here}.image_url'. Expected a valid URL, but got a value with an invalid format."
                check(not data.endswith(MISLABELLED), said, f"{here}.image_url")
                fits = "file_id" in part or _IMAGE.match(part.get("image_url", ""))
                check(fits, f"Invalid '{here}.image_url'. Expected a valid URL or a base64-encoded image.", here)
            case "input_file":
                _file(part, here)


def _file(part: dict[str, Any], where: str) -> None:
    given = [key for key in ("file_data", "file_url", "file_id") if key in part]
    check(
        len(given) == 1, f"Mutually exclusive parameters: '{where}' needs one of file_data, file_url, file_id.", where
    )
    if given == ["file_data"]:
        check(_FILE.match(part["file_data"]), f"Invalid '{where}.file_data'. Expected a base64 data URL.", where)
        check(is_text(part.get("filename")) and "." in part["filename"], f"Missing '{where}.filename'.", where)
    else:
        check("filename" not in part or given == ["file_id"], f"Unknown parameter: '{where}.filename'.", where)


def _call_id(item: dict[str, Any], where: str) -> None:
    call_id = item.get("call_id")
    check(is_text(call_id) and call_id, f"Missing required parameter: '{where}.call_id'.", where)
    check(len(call_id) <= 64, f"Invalid '{where}.call_id': string too long, at most 64.", where)


def _pairs(items: list[Any]) -> None:
    asked: set[str] = set()
    given: set[str] = set()
    for item in items:
        call_id = item.get("call_id", "")
        if item.get("type") == "function_call":
            check(call_id not in asked, f"Duplicate function call with call_id {call_id}.", "input")
            asked.add(call_id)
        elif item.get("type") == "function_call_output":
            check(call_id in asked, f"No tool call found for function call output with call_id {call_id}.", "input")
            check(call_id not in given, f"Duplicate output for call_id {call_id}.", "input")
            given.add(call_id)
        elif item.get("role") == "user":
            _closed(asked - given)
    _closed(asked - given)


def _closed(waiting: set[str]) -> None:
    check(not waiting, f"No tool output found for function call {', '.join(sorted(waiting))}.", "input")


def _order(items: list[Any], model: str, needs: dict[str, str]) -> None:
    before: dict[str, Any] | None = None
    for item in items:
        if before is not None and before.get("type") == "reasoning":
            _reasoning(before, item, model)
        wanted = needs.get(item.get("id", ""))
        if wanted is not None and (before is None or before.get("id") != wanted):
            kind = item.get("type")
            refuse(
                f"Item '{item['id']}' of type '{kind}' was provided without its required 'reasoning' item: '{wanted}'."
            )
        before = item
    if before is not None and before.get("type") == "reasoning":
        _reasoning(before, {}, model)


def _reasoning(item: dict[str, Any], after: dict[str, Any], model: str) -> None:
    if "encrypted_content" not in item:
        if item.get("content"):
            return  # open reasoning, which some servers give
        said = f"Item with id '{item['id']}' not found. Items are not persisted when `store` is set to false."
        raise RefusedError(404, said, param="input")
    kept = unseal(item["encrypted_content"])
    if kept is None or (kept["id"], kept["summary"], kept["model"]) != (item["id"], item["summary"], model):
        said = f"The encrypted content for item {item['id']} could not be verified."
        raise RefusedError(400, said, code="invalid_encrypted_content")
    if after.get("id") != kept["follower"] or not after:
        refuse(f"Item '{item['id']}' of type 'reasoning' was provided without its required following item.", "input")


def _is_json(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except ValueError:
        return False
