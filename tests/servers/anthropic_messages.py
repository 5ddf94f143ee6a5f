"""The rules on a conversation: roles in turn, what stands in which, and a result for every call directly after it."""

from __future__ import annotations

import base64
import re
from typing import Any, NoReturn

from tests.servers.anthropic_wire import error_body, sign
from tests.servers.http import CORRUPT, MISLABELLED

NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}\Z")
_ID = re.compile(r"[a-zA-Z0-9_-]+\Z")
_IMAGES = {"image/jpeg", "image/png", "image/gif", "image/webp"}
_KEYS = {
    "text": {"text", "citations"},
    "image": {"source"},
    "document": {"source", "title", "context", "citations"},
    "thinking": {"thinking", "signature"},
    "redacted_thinking": {"data"},
    "tool_use": {"id", "name", "input", "caller"},
    "tool_result": {"tool_use_id", "content", "is_error"},
    "server_tool_use": {"id", "name", "input", "caller"},
    "web_search_tool_result": {"tool_use_id", "content", "caller"},
}
_ROLES = {
    "user": {"text", "image", "document", "tool_result"},
    "assistant": set(_KEYS) - {"image", "document", "tool_result"},
}
Block = dict[str, Any]


class RefusedError(Exception):
    """The API refuses the request: status and the body of the answer."""

    def __init__(self, status: int, message: str, type: str = "invalid_request_error") -> None:
        super().__init__(message)
        self.status = status
        self.body = error_body(message, type)


def refuse(message: str) -> NoReturn:
    """Answer 400."""
    raise RefusedError(400, message)


def check(condition: object, message: str) -> None:
    """Answer 400 unless ``condition``."""
    if not condition:
        refuse(message)


def check_text(text: object, where: str) -> None:
    """Answer 400 for what is no text, or says nothing."""
    check(isinstance(text, str), f"{where}: Input should be a valid string")
    check(str(text).strip(), f"{where}: text content blocks must contain non-whitespace text")


def check_messages(messages: list[Any], *, budgeted: bool) -> None:
    """``budgeted``: thinking has a budget, as with older models, which want to find it in a turn that goes on."""
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
        blocks = _content(message, where)
        _answered(blocks, open_calls, where)
        open_calls = _calls(blocks)
    check(not open_calls, _unanswered(open_calls))
    ids = [block["id"] for message in messages for block in message["content"] if _is_call(block)]
    check(len(set(ids)) == len(ids), "messages: `tool_use` ids must be unique")
    last = messages[-1]["content"]
    if role == "assistant":
        known = isinstance(last, list) and last[-1]["type"] not in ("text", "thinking", "redacted_thinking")
        check(
            known,
            "This model does not support assistant message prefill. The conversation must end with a user message.",
        )
    if budgeted:
        _begins_with_thinking(messages)


def _is_call(block: object) -> bool:
    return isinstance(block, dict) and block["type"] == "tool_use"


def _content(message: Block, where: str) -> list[Block]:
    content = message["content"]
    if isinstance(content, str):
        check_text(content, where)
        return []
    check(isinstance(content, list) and content, f"{where}: content must be non-empty")
    for index, block in enumerate(content):
        _block(block, message["role"], f"{where}.content.{index}")
    return list(content)


def _block(block: Any, role: str, where: str) -> None:
    kind = block.get("type") if isinstance(block, dict) else None
    check(kind in _ROLES[role], f"{where}: '{kind}' blocks are not allowed in a message of '{role}'")
    extra = set(block) - _KEYS[str(kind)] - {"type", "cache_control"}
    check(not extra, f"{where}.{kind}: Extra inputs are not permitted: {sorted(extra)}")
    match kind:
        case "text":
            check_text(block.get("text"), where)
            check(role == "assistant" or not block.get("citations"), f"{where}.text.citations: not in user messages")
        case "thinking":
            check("cache_control" not in block, f"{where}: cache_control is not allowed in thinking blocks")
            true = block.get("signature") == sign(str(block.get("thinking")))
            check(true, f"{where}: Invalid `signature` in `thinking` block")
        case "redacted_thinking":
            check(
                str(block.get("data", "")).startswith("sealed/"),
                f"{where}: Invalid `data` in `redacted_thinking` block",
            )
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
            wrong = (
                "The image was specified using the image/png media type, but the image appears to be a image/jpeg image"
            )
            check(not data.endswith(MISLABELLED), f"{where}.image.source.base64: {wrong}")
        case "url", _:
            check(str(source.get("url")).startswith("https://"), f"{where}.source.url: Only HTTPS URLs are supported.")
        case "text", "document":
            check(source.get("media_type") == "text/plain", f"{where}.source.media_type: text/plain")
            check_text(source.get("data"), where)
        case other, _:
            refuse(f"{where}.source: type '{other}' is not known")


def _result(block: Block, where: str) -> None:
    check(_ID.match(str(block.get("tool_use_id"))), f"{where}.tool_use_id: String should match pattern")
    check(isinstance(block.get("is_error", False), bool), f"{where}.is_error: Input should be a valid boolean")
    content = block.get("content", [])
    if block.get("is_error"):
        check(content, f"{where}: content cannot be empty if `is_error` is true")
    if isinstance(content, str):
        check_text(content, where)
        return
    for index, inner in enumerate(content):
        check(inner.get("type") in ("text", "image", "document"), f"{where}.content.{index}: not allowed in a result")
        said = f"{where}: all content must be type `text` if `is_error` is true"
        check(not block.get("is_error") or inner["type"] == "text", said)
        _block(inner, "user", f"{where}.content.{index}")


def _answered(blocks: list[Block], open_calls: list[str], where: str) -> None:
    """Results stand first, one for each call of the message before, and for no other."""
    waiting = list(open_calls)
    others = False
    for block in blocks:
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


def _calls(blocks: list[Block]) -> list[str]:
    return [block["id"] for block in blocks if block["type"] == "tool_use"]


def _begins_with_thinking(messages: list[Any]) -> None:
    """Of the turn that goes on: the assistant's first message after the last one in which the user says something."""
    said = [
        index
        for index, message in enumerate(messages)
        if message["role"] == "user" and any(b["type"] != "tool_result" for b in _content(message, ""))
    ]
    after = messages[said[-1] + 1 :] if said else messages
    first = next((message["content"][0] for message in after if message["role"] == "assistant"), None)
    fits = first is None or first["type"] in ("thinking", "redacted_thinking")
    said_so = "When `thinking` is enabled, a final `assistant` message must start with a thinking block."
    check(fits, f"messages: Expected `thinking` or `redacted_thinking`, but found another. {said_so}")
