"""A request of the Messages API, as bytes: roles in turn, cache breakpoints placed, nothing encoded twice.

The messages come last, so that each call's bytes are a prefix of the next one's, but for the breakpoints.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..ports import ModelRequest, ToolSpec
from ..types.messages import Message, Part
from .anthropic_blocks import Block, fragment, role_of, tool_name, with_unique_calls
from .anthropic_models import default_max_tokens
from .anthropic_thinking import BINDING_BETA, Thinking, thinking
from .encoding import encode_json
from .foreign import provider_ids

RESERVED = ("model", "messages", "stream", "system", "max_tokens")
"""Parameters that the adapter sets itself."""

SAMPLING = ("temperature", "top_p", "top_k")
"""Version 2026-10-21 of the API, which the SDK asks for, has these no more."""
VERSION_WITH_SAMPLING = "2023-06-01"

_MOST_BREAKPOINTS = 4
_BEGIN = "(The conversation begins with the assistant's message.)"
_GO_ON = "Go on."


@dataclass(frozen=True, slots=True)
class Encoded:
    """A request: its ``body``, and the ``headers`` that it needs."""

    body: bytes
    headers: dict[str, str]


@dataclass(slots=True)
class _Turn:
    """Consecutive messages of one role, which the API wants as one. Results stand first in it."""

    role: str
    results: list[bytes] = field(default_factory=list)
    rest: list[bytes] = field(default_factory=list)

    def encode(self, mark: bytes = b"") -> bytes:
        content = b",".join((*self.results, *self.rest))
        if mark:
            content = content[:-1] + mark + b"}"  # the last block is an object
        return b'{"role":"%b","content":[%b]}' % (self.role.encode(), content)


def encode_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Canonical settings under their wire names; ``reasoning_effort`` is not one parameter and has its own place."""
    given = {key: value for key, value in settings.items() if value is not None and key != "reasoning_effort"}
    if "stop" in given:
        stop = given.pop("stop")
        given["stop_sequences"] = [stop] if isinstance(stop, str) else list(stop)
    return given


def encode_request(request: ModelRequest, *, origin: str, paused: Sequence[Part] = ()) -> Encoded:
    """The body of ``POST /v1/messages``, streamed. ``paused`` is the begun reply that the model is to go on with."""
    options = dict(request.provider_options)
    head: dict[str, Any] = {"model": request.model, "stream": True, "max_tokens": default_max_tokens(request.model)}
    head |= encode_settings(request.settings)
    asked = thinking(
        request.model,
        request.settings,
        options,
        request.messages,
        origin=origin,
        forced=request.tool_choice is not None,
        max_tokens=head["max_tokens"],
    )
    head |= asked.parameters
    tools = [*options.pop("tools", ()), *map(encode_tool, request.tools)]
    head |= options
    if tools:
        if request.tool_choice and asked.forces:
            head["tool_choice"] = {"type": "tool", "name": request.tool_choice}
    elif named := _named(request.messages):
        # Calls in a conversation need tools in the request, also where none may be called any more.
        tools = [{"name": name, "input_schema": {"type": "object"}} for name in named]
        head["tool_choice"] = {"type": "none"}
    else:
        head.pop("tool_choice", None)  # the author's, who speaks of tools that this call has not
    marked = _breakpoints(options, tools)
    mark = b',"cache_control":' + encode_json(_control(options))
    if tools:
        head["tools"] = [*tools[:-1], _marked(tools[-1], options)] if marked > 3 else tools
    if request.system and request.system.strip():
        block = {"type": "text", "text": request.system}
        head["system"] = [_marked(block, options) if marked > 2 else block]
    turns = _turns(request, origin, asked, paused)
    users = [index for index, turn in enumerate(turns) if turn.role == "user"][-min(2, marked) :] if marked else []
    encoded = b",".join(turn.encode(mark if index in users else b"") for index, turn in enumerate(turns))
    body = b"".join((encode_json(head)[:-1], b',"messages":[', encoded, b"]}"))
    return Encoded(body, _headers(head, asked))


def encode_tool(spec: ToolSpec) -> Block:
    """A tool's definition."""
    described = {"description": spec.description} if spec.description.strip() else {}
    return {"name": spec.name, **described, "input_schema": dict(spec.parameters)}


def _headers(head: Mapping[str, Any], asked: Thinking) -> dict[str, str]:
    headers = {}
    if any(key in head for key in SAMPLING):
        headers["anthropic-version"] = VERSION_WITH_SAMPLING
    if asked.binding:
        headers["anthropic-beta"] = BINDING_BETA
    return headers


def _turns(request: ModelRequest, origin: str, asked: Thinking, paused: Sequence[Part]) -> list[_Turn]:
    turns: list[_Turn] = []
    ids = provider_ids(request.messages, origin)
    for message in with_unique_calls(request.messages):
        if encoded := fragment(message, origin, request.files, ids):
            _add(turns, role_of(message), encoded, result=message.role == "tool")
    if not turns or turns[0].role == "assistant":
        turns.insert(0, _Turn("user", rest=[_said(_BEGIN)] if turns else [_said(_GO_ON)]))
    if turns[-1].role == "assistant":
        _add(turns, "user", _said(_GO_ON))  # most models refuse to go on with words put into their mouth
    if request.tool_choice and not asked.forces:
        _add(turns, "user", _said(f"Now call the tool {request.tool_choice}, and write nothing else."))
    if paused:
        begun = fragment(Message(role="assistant", parts=tuple(paused)), origin, request.files, ids)
        if begun:
            _add(turns, "assistant", begun)
    return turns


def _add(turns: list[_Turn], role: str, encoded: bytes, *, result: bool = False) -> None:
    if not turns or turns[-1].role != role:
        turns.append(_Turn(role))
    (turns[-1].results if result else turns[-1].rest).append(encoded)


def _said(text: str) -> bytes:
    return encode_json({"type": "text", "text": text})


def _named(messages: Sequence[Message]) -> list[str]:
    """Names of the tools that were called, in order."""
    return list(dict.fromkeys(_called(messages)))


def _called(messages: Sequence[Message]) -> Iterator[str]:
    for message in messages:
        if message.role == "assistant":
            yield from (tool_name(call.name) for call in message.tool_calls)


def _breakpoints(options: Mapping[str, Any], tools: Sequence[Any]) -> int:
    """How many breakpoints are ours: the last two user messages first, then the system prompt, then the tools.

    Each call reads what the one before wrote, at the user message before the last. The system prompt and the tools
    are kept for calls of other conversations, and where the system prompt changes.
    """
    if options.get("cache_control", ...) is None:
        return 0  # switched off
    taken = sum(isinstance(tool, Mapping) and "cache_control" in tool for tool in tools)
    return max(0, _MOST_BREAKPOINTS - taken - ("cache_control" in options))


def _control(options: Mapping[str, Any]) -> Any:
    """What marks a breakpoint: the author's own mark, with its time to live, where there is one."""
    return options.get("cache_control") or {"type": "ephemeral"}


def _marked(block: Mapping[str, Any], options: Mapping[str, Any]) -> Block:
    return {"cache_control": _control(options), **block}
