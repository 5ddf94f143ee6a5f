"""OpenAI's Responses: what the API refuses, with its own messages, and what a reply is in the format.

A reply is a list of output items. Reasoning is "encrypted" so that the server can tell, when it comes back, whether it
is unchanged, which model wrote it, and which item it belongs to.
"""

from __future__ import annotations

import base64
import itertools
import json
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tests.servers.chat import OpenAI, check_choice, check_effort, check_sampling, check_tools
from tests.servers.http import Request
from tests.servers.wire import (
    CORRUPT,
    MISLABELLED,
    NAME,
    Call,
    RefusedError,
    Reply,
    check,
    decoded,
    fresh,
    is_object,
    is_text,
    pieces,
    read_json,
    slices,
    sse,
    words,
    written,
)

Item = dict[str, Any]
ENCRYPTED = "reasoning.encrypted_content"

_PARAMETERS = words("""
    background context_management conversation include input instructions max_output_tokens max_tool_calls metadata
    model parallel_tool_calls previous_response_id prompt prompt_cache_key prompt_cache_options reasoning
    safety_identifier service_tier store stream stream_options temperature text tool_choice tools top_logprobs top_p
    truncation user""")
_INCLUDES = {ENCRYPTED} | words("""
    web_search_call.action.sources code_interpreter_call.outputs computer_call_output.output.image_url
    file_search_call.results message.input_image.image_url message.output_text.logprobs""")
_BUILT_IN = words("web_search web_search_preview file_search code_interpreter image_generation mcp")
_FUNCTION = words("type name description parameters strict defer_loading")
_PREFIXES = {"reasoning": "rs", "message": "msg", "function_call": "fc", "web_search_call": "ws"}
_KEYS = {
    "message": words("type id role status content phase"),
    "reasoning": words("type id summary content encrypted_content"),
    "function_call": words("type id call_id name arguments status namespace"),
    "function_call_output": words("type id call_id output status"),
    "web_search_call": words("type id status action"),
    "code_interpreter_call": words("type id status code container_id outputs"),
    "compaction": words("type id encrypted_content"),
}
_INPUT, _OUTPUT = words("input_text input_image input_file"), words("output_text refusal")
_CONTENT = {
    "input_text": words("type text"),
    "input_image": words("type image_url file_id detail"),
    "input_file": words("type file_data file_url file_id filename detail"),
    "output_text": words("type text annotations logprobs"),
    "refusal": words("type refusal"),
}
_IMAGE = re.compile(r"(data:image/(png|jpeg|webp|gif);base64,[A-Za-z0-9+/]+=*|https?://\S+)\Z")
_FILE = re.compile(r"data:[\w.+-]+/[\w.+-]+;base64,[A-Za-z0-9+/]+=*\Z")


class Responses(OpenAI):
    """The format."""

    name = "openai-responses"
    path = re.compile(r"/v1/responses(\?.*)?")
    ends = ("max_output_tokens", "content_filter")

    def __init__(self) -> None:
        self._needs: dict[str, str] = {}
        """The reasoning item that an item was given after, by its id."""

    def parse(self, request: Request, model: str | None) -> dict[str, Any]:
        return parse(request.body, self._needs)

    def check_model(self, asked: dict[str, Any], known: set[str] | None, plain: set[str]) -> None:
        said = f"The requested model '{asked['model']}' does not exist."
        check(known is None or asked["model"] in known, said, "model", "model_not_found")
        fits = asked["model"] not in plain or ENCRYPTED not in asked.get("include", ())
        check(fits, "Encrypted content is not supported with this model.", "include")

    def whole(self, reply: Reply, asked: dict[str, Any], size: int) -> dict[str, Any]:
        why = self.finish_reason(reply, "")
        items = output(reply, model=asked["model"], encrypted=ENCRYPTED in asked.get("include", ()), cut=bool(why))
        for before, after in itertools.pairwise(items):
            if before["type"] == "reasoning":
                self._needs[after["id"]] = before["id"]
        return {
            "id": fresh("resp"),
            "object": "response",
            "created_at": int(time.time()),
            "status": "failed" if reply.failed else "incomplete" if why else "completed",
            "error": reply.failed,
            "incomplete_details": {"reason": why} if why else None,
            "instructions": asked.get("instructions"),
            "model": asked["model"],
            "output": items,
            "parallel_tool_calls": asked.get("parallel_tool_calls", True),
            "store": asked.get("store", True),
            "tool_choice": asked.get("tool_choice", "auto"),
            "tools": asked.get("tools", []),
            "usage": _usage(reply, size),
        }

    def stream(self, reply: Reply, asked: dict[str, Any], size: int) -> Iterator[bytes]:
        if reply.chunks is not None:
            yield from (sse(chunk, named=True) for chunk in reply.chunks)
            return
        ended = self.whole(reply, asked, size)
        begun = ended | {
            "status": "in_progress",
            "output": [],
            "usage": None,
            "error": None,
            "incomplete_details": None,
        }
        events = itertools.chain(
            ({"type": f"response.{name}", "response": begun} for name in ("created", "in_progress")),
            *(_of_item(index, item) for index, item in enumerate(ended["output"])),
        )
        for number, event in enumerate(events):
            yield sse(event | {"sequence_number": number}, named=True)
        if reply.done:
            last = ended if reply.final_output else ended | {"output": []}
            yield sse({"type": f"response.{ended['status']}", "response": last}, named=True)


def reasoning(*summary: str, content: Sequence[str] = ()) -> Item:
    """A reasoning item."""
    item: Item = {"id": fresh("rs"), "type": "reasoning"}
    item["summary"] = [{"type": "summary_text", "text": text} for text in summary]
    return item | ({"content": [{"type": "reasoning_text", "text": text} for text in content]} if content else {})


def message(text: str = "", *, refusal: str = "", phase: str | None = None, annotations: Sequence[Any] = ()) -> Item:
    """A message of the model."""
    content: list[Item] = []
    if text or not refusal:
        content.append({"type": "output_text", "text": text, "annotations": list(annotations), "logprobs": []})
    if refusal:
        content.append({"type": "refusal", "refusal": refusal})
    item = {"id": fresh("msg"), "type": "message", "status": "completed", "role": "assistant", "content": content}
    return item | ({"phase": phase} if phase else {})


def function_call(call: Call) -> Item:
    """A call."""
    text = call.arguments if isinstance(call.arguments, str) else json.dumps(call.arguments, separators=(",", ":"))
    ids = {"id": fresh("fc"), "call_id": call.id or fresh("call")}
    return ids | {"type": "function_call", "status": "completed", "name": call.name, "arguments": text}


def outputs(request: dict[str, Any]) -> list[Any]:
    """The outputs of function calls in a request's input, in order."""
    return [item["output"] for item in request["input"] if item.get("type") == "function_call_output"]


def seal(item: Item, model: str, follower: str | None) -> str:
    """Encrypted content of a reasoning item: what it was, who wrote it, what follows it."""
    kept = {"id": item["id"], "model": model, "follower": follower, "summary": item["summary"]}
    return "gAAAA" + base64.urlsafe_b64encode(json.dumps(kept).encode()).decode()


def _unseal(content: object) -> dict[str, Any] | None:
    try:
        kept = json.loads(base64.urlsafe_b64decode(str(content).removeprefix("gAAAA")))
    except ValueError:
        return None
    return kept if isinstance(kept, dict) else None


def output(reply: Reply, *, model: str, encrypted: bool, cut: bool = False) -> list[Item]:
    """The output items of a reply. ``cut``: the last one is not complete."""
    items = list(_items(reply)) if reply.content is None else [dict(item) for item in reply.content]
    if cut and items and "status" in items[-1]:
        items[-1]["status"] = "incomplete"
    for item, after in itertools.zip_longest(items, items[1:]):
        if item["type"] == "reasoning" and encrypted and "encrypted_content" not in item:
            item["encrypted_content"] = seal(item, model, after["id"] if after else None)
    return items


def _items(reply: Reply) -> Iterator[Item]:
    thoughts = [reply.thinking] if isinstance(reply.thinking, str) else reply.thinking
    if reply.thinking or reply.reasons:
        yield reasoning(*filter(None, thoughts))
    if reply.thinking and reply.opaque:
        search = {"type": "search", "query": "".join(thoughts)}
        yield {"type": "web_search_call", "id": fresh("ws"), "status": "completed", "action": search}
    if reply.text or reply.refusal or not reply.calls:
        phase = reply.phase or (("commentary" if reply.calls else "final_answer") if reply.opaque else None)
        yield message(reply.text, refusal=reply.refusal, phase=phase)
    yield from map(function_call, reply.calls)


def _usage(reply: Reply, size: int) -> Mapping[str, Any]:
    read, wrote = size // 4, written(reply)
    none = {"input_tokens_details": {"cached_tokens": 0}, "output_tokens_details": {"reasoning_tokens": 0}}
    counted = {"input_tokens": read, "output_tokens": wrote, "total_tokens": read + wrote, **none}
    return counted if reply.usage is None else reply.usage


def _of_item(index: int, item: Item) -> Iterator[Item]:
    at = {"output_index": index, "item_id": item["id"]}
    empty = {"message": {"content": []}, "function_call": {"arguments": ""}, "reasoning": {"summary": []}}
    begun = item | empty.get(item["type"], {}) | ({"status": "in_progress"} if "status" in item else {})
    yield {"type": "response.output_item.added", "output_index": index, "item": begun}
    match item["type"]:
        case "reasoning":
            yield from _of_reasoning(item, at)
        case "message":
            for number, part in enumerate(item["content"]):
                yield from _of_content(part, at | {"content_index": number})
        case "function_call":
            for piece in slices(item["arguments"]):
                yield {"type": "response.function_call_arguments.delta", "delta": piece} | at
            if item["status"] == "completed":
                yield {"type": "response.function_call_arguments.done", "arguments": item["arguments"]} | at
        case "web_search_call":
            yield {"type": "response.web_search_call.searching"} | at
    yield {"type": "response.output_item.done", "output_index": index, "item": item}


def _of_reasoning(item: Item, at: Item) -> Iterator[Item]:
    kind = "response.reasoning_summary"
    for number, part in enumerate(item["summary"]):
        here = at | {"summary_index": number}
        yield {"type": f"{kind}_part.added", "part": part | {"text": ""}} | here
        yield from ({"type": f"{kind}_text.delta", "delta": piece} | here for piece in pieces(part["text"]))
        yield {"type": f"{kind}_text.done", "text": part["text"]} | here
        yield {"type": f"{kind}_part.done", "part": part} | here
    for number, part in enumerate(item.get("content", ())):
        for piece in pieces(part["text"]):
            yield {"type": "response.reasoning_text.delta", "delta": piece, "content_index": number} | at


def _of_content(part: Item, at: Item) -> Iterator[Item]:
    kind, key = ("refusal", "refusal") if part["type"] == "refusal" else ("output_text", "text")
    yield {"type": "response.content_part.added", "part": part | {key: ""}} | at
    for piece in pieces(part[key]):
        yield {"type": f"response.{kind}.delta", "delta": piece, "obfuscation": "xyz"} | at
    yield {"type": f"response.{kind}.done", key: part[key]} | at
    yield {"type": "response.content_part.done", "part": part} | at


def parse(body: bytes, needs: Mapping[str, str]) -> dict[str, Any]:
    """The request's JSON, checked whole. ``needs``: the reasoning item that an item was given after, by its id."""
    request = read_json(body, "We could not parse the JSON body of your request.")
    for key in request:
        check(key in _PARAMETERS, f"Unknown parameter: '{key}'.", key, "unknown_parameter")
    check(is_text(request.get("model")) and request["model"], "Missing required parameter: 'model'.", "model")
    check(is_text(request.get("instructions") or ""), "Invalid type for 'instructions'.", "instructions")
    check_sampling(request)
    limit = request.get("max_output_tokens", 16)
    said = f"Invalid 'max_output_tokens': integer below minimum value. Expected a value >= 16, but got {limit} instead."
    check(isinstance(limit, int) and limit >= 16, said, "max_output_tokens", "integer_below_min_value")
    for name in request.get("include", []):
        check(name in _INCLUDES, f"Invalid value: '{name}'. Supported values are: {sorted(_INCLUDES)}.", "include")
    thinking = request.get("reasoning", {})
    check(isinstance(thinking, dict), "Invalid type for 'reasoning'.", "reasoning")
    unknown = set(thinking) - words("effort summary context mode")
    check(not unknown, f"Unknown parameter: 'reasoning.{''.join(unknown)}'.", "reasoning")
    check_effort(thinking.get("effort", "low"), "reasoning.effort")
    summary = thinking.get("summary", "auto")
    check(summary in ("auto", "concise", "detailed"), f"Invalid value: '{summary}'.", "reasoning.summary")
    _choice(request.get("tool_choice"), request.get("tools", []), _tools(request))
    _check_input(request, needs)
    return request


def _tools(request: dict[str, Any]) -> list[str]:
    tools = request.get("tools", [])
    check(isinstance(tools, list), "Invalid type for 'tools'.", "tools")
    functions = []
    for index, tool in enumerate(tools):
        where = f"tools[{index}]"
        kind = tool.get("type") if isinstance(tool, dict) else None
        check(kind in {"function", *_BUILT_IN}, f"Invalid value: '{kind}'.", f"{where}.type")
        if kind == "function":
            check(is_text(tool.get("name")), f"Missing required parameter: '{where}.name'.", f"{where}.name")
            check(set(tool) <= _FUNCTION, f"Unknown parameter: '{where}.{sorted(set(tool) - _FUNCTION)}'.", where)
            check(isinstance(tool.get("parameters"), dict), f"Missing required parameter: '{where}.parameters'.", where)
            functions.append(tool)
    return check_tools(functions, strict=True)  # unlike in chat completions


def _choice(choice: Any, tools: list[Any], names: list[str]) -> None:
    check_choice(choice, tools)
    if isinstance(choice, dict):
        kind = choice.get("type")
        check(kind in {"function", "allowed_tools", *_BUILT_IN}, f"Invalid value: '{kind}'.", "tool_choice.type")
        if kind == "function":
            fits = set(choice) == {"type", "name"}
            check(fits, "Missing required parameter: 'tool_choice.name'.", "tool_choice.name")
            said = f"Tool choice '{choice['name']}' not found in 'tools' parameter."
            check(choice["name"] in names, said, "tool_choice")


def _check_input(request: dict[str, Any], needs: Mapping[str, str]) -> None:
    """Content by role, ids, an output for every call, reasoning unchanged before its item."""
    items = request.get("input")
    if isinstance(items, str):
        return
    check(isinstance(items, list), "Missing required parameter: 'input'.", "input")
    check(items, "Invalid 'input': empty array. Expected an array with minimum length 1.", "input")
    for index, item in enumerate(request["input"]):
        _item(item, f"input[{index}]")
    _pairs(request["input"])
    _order(request["input"], request["model"], needs)


def _item(item: Any, where: str) -> None:
    check(isinstance(item, dict), f"Invalid type for '{where}': expected an object.", where)
    kind = item.get("type", "message" if "role" in item else None)
    check(kind in _KEYS, f"Invalid value: '{kind}'. Supported values are: {sorted(_KEYS)}.", f"{where}.type")
    for key in item:
        known = key in _KEYS[kind]
        check(known, f"Unknown parameter: '{where}.{key}'.", f"{where}.{key}", "unknown_parameter")
    prefix = _PREFIXES.get(kind)
    if "id" in item and prefix:
        fits = is_text(item["id"]) and item["id"].startswith(prefix) and len(item["id"]) <= 64
        said = f"Invalid '{where}.id': '{item['id']}'. Expected an ID that begins with '{prefix}'."
        check(fits, said, f"{where}.id")
    match kind:
        case "message":
            _message(item, where)
        case "reasoning":
            _present(item, where, "id", "summary")
        case "function_call":
            _call_id(item, where)
            check(NAME.match(str(item.get("name"))), f"Invalid '{where}.name'.", where)
            check(is_object(item.get("arguments")), f"Invalid '{where}.arguments'.", where)
        case "function_call_output":
            _call_id(item, where)
            _content(item.get("output"), _INPUT, f"{where}.output")


def _present(item: Item, where: str, *keys: str) -> None:
    for key in keys:
        check(key in item, f"Missing required parameter: '{where}.{key}'.", f"{where}.{key}")


def _message(item: Item, where: str) -> None:
    role = item.get("role")
    roles = ("assistant", "system", "developer", "user")
    check(role in roles, f"Invalid value: '{role}'. Supported values are: {roles}.", f"{where}.role")
    if role == "assistant":
        _present(item, where, *(() if is_text(item.get("content")) else ("id", "status")))
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
                _present(part, here, "text")
            case "output_text":
                _present(part, here, "text", "annotations")
            case "refusal":
                _present(part, here, "refusal")
            case "input_image":
                data = decoded(part.get("image_url", "").partition(";base64,")[2])
                said = "The image data you provided does not represent a valid image. Please check your input"
                check(not data.endswith(CORRUPT), f"{said} and try again with one of the supported formats.", "input")
                fits = "file_id" in part or _IMAGE.match(part.get("image_url", ""))
                said = f"Invalid '{here}.image_url'. Expected a valid URL, but got a value with an invalid format."
                check(fits and not data.endswith(MISLABELLED), said, f"{here}.image_url")
            case "input_file":
                _file(part, here)
        for key in ("text", "refusal"):
            check(is_text(part.get(key, "")), f"Invalid type for '{here}.{key}'.", here)


def _file(part: Item, where: str) -> None:
    given = [key for key in ("file_data", "file_url", "file_id") if key in part]
    said = f"Mutually exclusive parameters: '{where}' needs one of file_data, file_url, file_id."
    check(len(given) == 1, said, where)
    if given == ["file_data"]:
        check(_FILE.match(part["file_data"]), f"Invalid '{where}.file_data'. Expected a base64 data URL.", where)
        check("." in str(part.get("filename")), f"Missing '{where}.filename'.", where)
    else:
        check("filename" not in part or given == ["file_id"], f"Unknown parameter: '{where}.filename'.", where)


def _call_id(item: Item, where: str) -> None:
    call_id = item.get("call_id")
    check(is_text(call_id) and call_id, f"Missing required parameter: '{where}.call_id'.", where)
    check(len(str(call_id)) <= 64, f"Invalid '{where}.call_id': string too long, at most 64.", where)


def _pairs(items: list[Any]) -> None:
    asked: set[str] = set()
    given: set[str] = set()
    for item in [*items, {"role": "user"}]:
        call_id = item.get("call_id", "")
        if item.get("type") == "function_call":
            check(call_id not in asked, f"Duplicate function call with call_id {call_id}.", "input")
            asked.add(call_id)
        elif item.get("type") == "function_call_output":
            check(call_id in asked, f"No tool call found for function call output with call_id {call_id}.", "input")
            check(call_id not in given, f"Duplicate output for call_id {call_id}.", "input")
            given.add(call_id)
        elif item.get("role") == "user":
            waiting = ", ".join(sorted(asked - given))
            check(not waiting, f"No tool output found for function call {waiting}.", "input")


def _order(items: list[Any], model: str, needs: Mapping[str, str]) -> None:
    for before, item in itertools.pairwise([{}, *items, {}]):
        if before.get("type") == "reasoning":
            _reasoning(before, item, model)
        wanted = needs.get(item.get("id", ""))
        said = (
            f"Item '{item.get('id')}' of type '{item.get('type')}' was provided without its required 'reasoning' item"
        )
        check(wanted is None or before.get("id") == wanted, f"{said}: '{wanted}'.")


def _reasoning(item: Item, after: Item, model: str) -> None:
    if "encrypted_content" not in item:
        if item.get("content"):
            return  # open reasoning, which some servers give
        said = f"Item with id '{item['id']}' not found. Items are not persisted when `store` is set to false."
        raise RefusedError(said, "input", status=404)
    kept = _unseal(item["encrypted_content"])
    fits = kept and (kept["id"], kept["summary"], kept["model"]) == (item["id"], item["summary"], model)
    said = f"The encrypted content for item {item['id']} could not be verified."
    check(fits, said, code="invalid_encrypted_content")
    said = f"Item '{item['id']}' of type 'reasoning' was provided without its required following item."
    check(after and kept and after.get("id") == kept["follower"], said, "input")
