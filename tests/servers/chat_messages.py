"""The rules on a conversation: roles, content, and that every tool call has exactly one result directly after it."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Container
from typing import Any, NoReturn

from tests.servers.http import CORRUPT, MISLABELLED

NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}\Z")
_KEYS = {
    "system": {"role", "content", "name"},
    "developer": {"role", "content", "name"},
    "user": {"role", "content", "name"},
    "assistant": {"role", "content", "name", "tool_calls", "refusal", "audio"},
    "tool": {"role", "content", "tool_call_id"},
}
_THINKING = ("reasoning_content", "reasoning")
_PARTS = {"user": {"text", "image_url", "input_audio", "file"}, "assistant": {"text", "refusal"}}


class RefusedError(Exception):
    """The API refuses the request: status and the body of the answer."""

    def __init__(self, status: int, message: str, *, code: str | None = None, param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        kind = "invalid_request_error"
        self.body = {"error": {"message": message, "type": kind, "param": param, "code": code}}


def refuse(message: str, param: str | None = None, code: str | None = "invalid_value") -> NoReturn:
    """Answer 400."""
    raise RefusedError(400, message, code=code, param=param)


def check(condition: object, message: str, param: str | None = None, code: str | None = "invalid_value") -> None:
    """Answer 400 unless ``condition``."""
    if not condition:
        refuse(message, param, code)


def check_messages(messages: list[Any], thoughts: Container[object] = ()) -> None:
    """All of them. ``thoughts``: what the server itself has said of its thinking, and so takes back."""
    open_calls: list[str] = []  # not answered yet
    asked: set[str] = set()  # by the assistant message that is being answered
    for index, message in enumerate(messages):
        where = f"messages[{index}]"
        check(isinstance(message, dict), f"Invalid type for '{where}': expected an object.", where)
        role = message.get("role")
        check(role in _KEYS, f"Invalid value: '{role}'. Supported values are: {list(_KEYS)}.", f"{where}.role")
        extra = set(message) - _KEYS[role]
        if role == "assistant":
            extra -= {field for field in _THINKING if is_text(message.get(field)) and message[field] in thoughts}
        check(not extra, f"Unknown parameter in '{where}': {sorted(extra)}.", where)
        check(NAME.match(message.get("name", "x")), f"Invalid '{where}.name'.", where)
        _content(message, role, where)
        if role == "tool":
            call = message.get("tool_call_id")
            check(is_text(call), f"Missing parameter 'tool_call_id' in '{where}'.", where)
            said = "messages with role 'tool' must be a response to a preceeding message with 'tool_calls'."
            check(call in asked, f"Invalid parameter: {said}", where)
            check(call in open_calls, f"Duplicate response for tool_call_id '{call}'.", where)
            open_calls.remove(call)
            continue
        _answered(open_calls, where)
        open_calls = _calls(message, where) if role == "assistant" else []
        asked = set(open_calls)
    _answered(open_calls, "messages")


def _answered(open_calls: list[str], where: str) -> None:
    check(
        not open_calls,
        "An assistant message with 'tool_calls' must be followed by tool messages responding to each "
        f"'tool_call_id'. The following tool_call_ids did not have response messages: {', '.join(open_calls)}",
        where,
    )


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
            _part(part, f"{where}.content")
    else:
        check(is_text(content), f"Invalid type for '{where}.content': expected a string or an array.", where)


def _part(part: dict[str, Any], where: str) -> None:
    """One piece of content, as deep as the API looks into it."""
    value = part[part["type"]]
    match part["type"]:
        case "text" | "refusal":
            check(is_text(value), f"Invalid type for '{where}[].text': expected a string.", where)
        case "image_url":
            url = value.get("url") if isinstance(value, dict) else None
            data = decoded(url.partition(";base64,")[2]) if is_text(url) else b""
            said = "You uploaded an unsupported image. Please make sure your image has of one the following formats:"
            check(not data.endswith(CORRUPT), f"{said} ['png', 'jpeg', 'gif', 'webp'].", code="image_parse_error")
            known = (
                is_text(url)
                and not data.endswith(MISLABELLED)
                and (url.startswith(("https://", "http://")) or _is_image(url))
            )
            check(known and set(value) <= {"url", "detail"}, f"Invalid image in '{where}'.", where, "invalid_image_url")
        case "file":
            fits = isinstance(value, dict) and set(value) in ({"filename", "file_data"}, {"file_id"})
            check(fits, f"Missing required parameter: '{where}[].file.filename'.", where)
            if "file_data" in value:
                is_pdf = _inline(value["file_data"], "application/pdf").startswith(b"%PDF")
                check(is_pdf, f"Invalid file data in '{where}': expected a base64-encoded PDF as data URL.", where)
        case "input_audio":
            fits = isinstance(value, dict) and set(value) == {"data", "format"} and value["format"] in ("wav", "mp3")
            check(fits and decoded(value["data"]), f"Invalid audio in '{where}'.", where)


_MAGIC = {"image/png": b"\x89PNG", "image/jpeg": b"\xff\xd8", "image/gif": b"GIF8", "image/webp": b"RIFF"}


def _is_image(url: str) -> bool:
    return any(_inline(url, kind).startswith(magic) for kind, magic in _MAGIC.items())


def _inline(url: object, kind: str) -> bytes:
    """The bytes of a data URL of ``kind``; none for anything else."""
    start = f"data:{kind};base64,"
    return decoded(url[len(start) :]) if isinstance(url, str) and url.startswith(start) else b""


def decoded(text: object) -> bytes:
    try:
        return base64.b64decode(text, validate=True) if isinstance(text, str) else b""
    except ValueError:
        return b""


def _calls(message: dict[str, Any], where: str) -> list[str]:
    if "tool_calls" not in message:
        return []
    calls = message["tool_calls"]
    check(isinstance(calls, list) and calls, f"Invalid '{where}.tool_calls': empty array.", where)
    ids: list[str] = []
    for call in calls:
        check(
            isinstance(call, dict) and set(call) == {"id", "type", "function"},
            f"Invalid call in '{where}'.",
            where,
        )
        check(is_text(call["id"]) and call["id"], f"Invalid '{where}.tool_calls[].id'.", where)
        check(len(call["id"]) <= 40, f"Invalid '{where}.tool_calls[].id': string too long, at most 40.", where)
        check(call["id"] not in ids, f"Duplicate tool call id in '{where}'.", where)
        check(call["type"] == "function", f"Invalid '{where}.tool_calls[].type'.", where)
        function = call["function"]
        name, arguments = function.get("name"), function.get("arguments")
        check(is_text(name) and NAME.match(name), f"Invalid '{where}.tool_calls[].function.name'.", where)
        check(
            is_text(arguments) and _is_json(arguments),
            f"Invalid '{where}.tool_calls[].function.arguments'.",
            where,
        )
        ids.append(call["id"])
    return ids


def is_text(value: object) -> bool:
    """Whether it is a string."""
    return isinstance(value, str)


def _is_json(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except ValueError:
        return False
