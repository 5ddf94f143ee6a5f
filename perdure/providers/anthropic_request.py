"""A request of the Messages API, as bytes: roles in turn, cache breakpoints placed, nothing encoded twice.

The messages come last, so that each call's bytes are a prefix of the next one's, but for the breakpoints.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..ports import ModelRequest, ToolSpec
from ..types.messages import Message, OpaquePart, Part, TextPart, ThinkingPart
from .anthropic_messages import Block, encode_anthropic_tool_name, encode_message, get_wire_role, make_call_ids_unique
from .encoding import encode_json, get_own_opaque, map_provider_ids

# ---
# What the name of a Claude model says of its API. Names that say nothing are taken for models of today.
#
# Source: the model pages and the thinking guides of platform.claude.com, November 2026.


_CLAUDE_NAME = re.compile(r"claude-(?P<line>[a-z]+)-(?P<major>\d{1,2})(?!\d)(?:[-.](?P<minor>\d{1,2})(?!\d))?")
_OLD_CLAUDE_NAME = re.compile(r"claude-(?P<major>\d)(?:[-.](?P<minor>\d))?-(?P<line>[a-z]+)")
_MAX_TOKENS_BY_VERSION = (
    ((4, 5), 64_000),
    ((4, 0), 32_000),
    ((3, 7), 64_000),
    ((3, 5), 8_192),
    ((0, 0), 4_096),
)
"""From this version on, so many tokens a reply: what the smallest model of the version can write, or half of it."""

ClaudeVersion = tuple[str, tuple[int, int]]


def parse_claude_version(model: str) -> ClaudeVersion | None:
    """``"claude-opus-5-5"`` → ``("opus", (5, 5))``, with whatever a cloud puts around the name."""
    found = _CLAUDE_NAME.search(model) or _OLD_CLAUDE_NAME.search(model)
    return (found["line"], (int(found["major"]), int(found["minor"] or 0))) if found else None


def get_default_max_tokens(model: str) -> int:
    """The API wants a limit with every call: one that no usual reply reaches, and that the model allows."""
    known = parse_claude_version(model)
    if known is None:
        # A Claude without a version, or another vendor's model, whose servers often stop at 8k.
        return 32_000 if "claude" in model else 8_192
    return next(limit for version, limit in _MAX_TOKENS_BY_VERSION if known[1] >= version)


def has_effort_parameter(model: str) -> bool:
    """Whether effort says how much it thinks; models before 4.6 take a budget of tokens instead."""
    known = parse_claude_version(model)
    return known is None or known[1] >= (4, 6) or known[1] < (3, 7)


def has_default_thinking(model: str) -> bool:
    """Whether it thinks where the request does not say so."""
    known = parse_claude_version(model)
    return known is not None and known[1] >= (5, 0)


def has_bound_thinking(model: str) -> bool:
    """Whether what it thought holds only after the very same messages, tools and system prompt."""
    known = parse_claude_version(model)
    return known is not None and (known[1] >= (5, 5) or (_is_always_thinking(known[0]) and known[1] >= (5, 1)))


def can_force_tool(model: str) -> bool:
    """Whether a request may name the tool to call: that needs a model whose thinking can be switched off."""
    known = parse_claude_version(model)
    return known is None or not (_is_always_thinking(known[0]) or known[1] >= (5, 5))


def _is_always_thinking(line: str) -> bool:
    return line in ("fable", "mythos")


# ---
# What a request says of thinking and of the tool that must be called: the API has rules on the two together.


_MIN_THINKING_BUDGET = 1024
_CLAUDE_THINKING_BUDGETS = {
    "minimal": _MIN_THINKING_BUDGET,
    "low": 2_048,
    "medium": 8_192,
    "high": 16_384,
    "xhigh": 24_576,
    "max": 31_999,
}
"""Tokens of thinking for models that take no effort."""

BINDING_BETA = "thinking-binding-controls-2026-08-01"


@dataclass(slots=True)
class ThinkingParameters:
    """The outcome. ``parameters`` go into the request."""

    parameters: dict[str, Any] = field(default_factory=dict)
    can_force_tool: bool = True
    """Whether ``tool_choice`` may name a tool; if not, the model is asked in words."""
    has_binding: bool = False
    """Whether a parameter is used that needs the header ``anthropic-beta``."""


def build_thinking_parameters(
    model: str,
    settings: Mapping[str, Any],
    options: Mapping[str, Any],
    messages: Sequence[Message],
    *,
    origin: str,
    forced: bool,
    max_tokens: int,
) -> ThinkingParameters:
    """Parameters for ``settings["reasoning_effort"]``; what ``options`` say of thinking stays as it is."""
    asked = ThinkingParameters()
    effort = settings.get("reasoning_effort")
    if effort is not None and has_effort_parameter(model):
        asked.parameters = _build_effort_parameters(effort)
    elif effort is not None and _can_resume_with_thinking(messages, origin):
        asked.parameters = _build_budget_parameters(effort, max_tokens)
    if "thinking" in options:
        kind = options["thinking"].get("type") if isinstance(options["thinking"], Mapping) else None
        asked.can_force_tool = kind in (None, "disabled") and can_force_tool(model)
        return asked
    asked.can_force_tool = can_force_tool(model)
    if forced and asked.can_force_tool:
        _disable_thinking(asked.parameters, model)
    elif origin == "anthropic" and has_bound_thinking(model):
        # Instructions that change, a shortened past, another list of tools: for these models any of that makes
        # earlier thinking invalid, and a request that has it is refused. Better lose the thinking.
        given = asked.parameters.get("thinking", {"type": "adaptive"})
        if given["type"] == "adaptive":
            bound = {"block_binding": {"prefix_mismatch_behavior": "drop_block"}}
            asked.parameters["thinking"] = given | bound
            asked.has_binding = True
    return asked


def _build_effort_parameters(effort: str) -> dict[str, Any]:
    if effort == "none":
        return {"thinking": {"type": "disabled"}}
    level = "low" if effort == "minimal" else effort
    # Without "summarized" the newer models keep to themselves what they think.
    return {"output_config": {"effort": level}, "thinking": {"type": "adaptive", "display": "summarized"}}


def _build_budget_parameters(effort: str, max_tokens: int) -> dict[str, Any]:
    budget = min(_CLAUDE_THINKING_BUDGETS.get(effort, _CLAUDE_THINKING_BUDGETS["medium"]), max_tokens // 2)
    if effort == "none" or budget < _MIN_THINKING_BUDGET:
        return {}
    return {"thinking": {"type": "enabled", "budget_tokens": budget}}


def _disable_thinking(parameters: dict[str, Any], model: str) -> None:
    """No thinking in this call: the API refuses it together with a forced tool."""
    parameters.pop("thinking", None)
    if has_default_thinking(model):
        parameters["thinking"] = {"type": "disabled"}
        if parameters.get("output_config", {}).get("effort") in ("xhigh", "max"):
            parameters["output_config"] = {"effort": "high"}  # above that thinking cannot be switched off


def _can_resume_with_thinking(messages: Sequence[Message], origin: str) -> bool:
    """Whether a model with a budget may think now.

    A turn under way (calls and results after the last user message) must then have begun with thinking of its own.
    Another provider's turn did not.
    """
    first: Message | None = None
    for message in reversed(messages):
        if message.role not in ("assistant", "tool"):
            break
        first = message if message.role == "assistant" else first
    if first is None or not first.tool_calls:
        return True
    parts = [part for part in first.parts if not (isinstance(part, TextPart) and not part.text.strip())]
    begins = parts[0]
    if isinstance(begins, OpaquePart):
        return (get_own_opaque(begins, origin) or {}).get("type") == "redacted_thinking"
    return isinstance(begins, ThinkingPart) and get_own_opaque(begins, origin) is not None


RESERVED_OPTIONS = ("model", "messages", "stream", "system", "max_tokens")
"""Parameters that the adapter sets itself."""

SAMPLING_SETTINGS = ("temperature", "top_p", "top_k")
"""Version 2026-10-21 of the API, which the SDK asks for, has these no more."""
SAMPLING_API_VERSION = "2023-06-01"

_MAX_BREAKPOINTS = 4
_OPENING_TEXT = "(The conversation begins with the assistant's message.)"
_CONTINUE_TEXT = "Go on."


@dataclass(frozen=True, slots=True)
class EncodedRequest:
    """A request: its ``body``, and the ``headers`` that it needs."""

    body: bytes
    headers: dict[str, str]


@dataclass(slots=True)
class _RoleGroup:
    """Consecutive messages of one role, which the API wants as one. Results stand first in it."""

    role: str
    results: list[bytes] = field(default_factory=list)
    other_blocks: list[bytes] = field(default_factory=list)

    def encode(self, mark: bytes = b"") -> bytes:
        content = b",".join((*self.results, *self.other_blocks))
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


def encode_request(request: ModelRequest, *, origin: str, paused: Sequence[Part] = ()) -> EncodedRequest:
    """The body of ``POST /v1/messages``, streamed. ``paused`` is the begun reply that the model is to go on with."""
    options = dict(request.provider_options)
    head: dict[str, Any] = {"model": request.model, "stream": True, "max_tokens": get_default_max_tokens(request.model)}
    head |= encode_settings(request.settings)
    asked = build_thinking_parameters(
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
        if request.tool_choice and asked.can_force_tool:
            head["tool_choice"] = {"type": "tool", "name": request.tool_choice}
    elif named := _list_called_tools(request.messages):
        # Calls in a conversation need tools in the request, also where none may be called any more.
        tools = [{"name": name, "input_schema": {"type": "object"}} for name in named]
        head["tool_choice"] = {"type": "none"}
    else:
        head.pop("tool_choice", None)  # the author's, who speaks of tools that this call has not
    marked = _count_own_breakpoints(options, tools)
    mark = b',"cache_control":' + encode_json(_get_cache_control(options))
    if tools:
        head["tools"] = [*tools[:-1], _add_cache_control(tools[-1], options)] if marked > 3 else tools
    if request.system and request.system.strip():
        block = {"type": "text", "text": request.system}
        head["system"] = [_add_cache_control(block, options) if marked > 2 else block]
    turns = _group_by_role(request, origin, asked, paused)
    users = [index for index, turn in enumerate(turns) if turn.role == "user"][-min(2, marked) :] if marked else []
    encoded = b",".join(turn.encode(mark if index in users else b"") for index, turn in enumerate(turns))
    body = b"".join((encode_json(head)[:-1], b',"messages":[', encoded, b"]}"))
    return EncodedRequest(body, _build_request_headers(head, asked))


def encode_tool(spec: ToolSpec) -> Block:
    """A tool's definition."""
    described = {"description": spec.description} if spec.description.strip() else {}
    return {"name": spec.name, **described, "input_schema": dict(spec.parameters)}


def _build_request_headers(head: Mapping[str, Any], asked: ThinkingParameters) -> dict[str, str]:
    headers = {}
    if any(key in head for key in SAMPLING_SETTINGS):
        headers["anthropic-version"] = SAMPLING_API_VERSION
    if asked.has_binding:
        headers["anthropic-beta"] = BINDING_BETA
    return headers


def _group_by_role(
    request: ModelRequest, origin: str, asked: ThinkingParameters, paused: Sequence[Part]
) -> list[_RoleGroup]:
    turns: list[_RoleGroup] = []
    ids = map_provider_ids(request.messages, origin)
    for message in make_call_ids_unique(request.messages):
        if encoded := encode_message(message, origin, request.files, ids):
            _append_to_group(turns, get_wire_role(message), encoded, result=message.role == "tool")
    if not turns or turns[0].role == "assistant":
        turns.insert(
            0,
            _RoleGroup(
                "user",
                other_blocks=[_encode_prompt_block(_OPENING_TEXT)] if turns else [_encode_prompt_block(_CONTINUE_TEXT)],
            ),
        )
    if turns[-1].role == "assistant":
        _append_to_group(
            turns, "user", _encode_prompt_block(_CONTINUE_TEXT)
        )  # most models refuse to go on with words put into their mouth
    if request.tool_choice and not asked.can_force_tool:
        _append_to_group(
            turns, "user", _encode_prompt_block(f"Now call the tool {request.tool_choice}, and write nothing else.")
        )
    if paused:
        begun = encode_message(Message(role="assistant", parts=tuple(paused)), origin, request.files, ids)
        if begun:
            _append_to_group(turns, "assistant", begun)
    return turns


def _append_to_group(turns: list[_RoleGroup], role: str, encoded: bytes, *, result: bool = False) -> None:
    if not turns or turns[-1].role != role:
        turns.append(_RoleGroup(role))
    (turns[-1].results if result else turns[-1].other_blocks).append(encoded)


def _encode_prompt_block(text: str) -> bytes:
    return encode_json({"type": "text", "text": text})


def _list_called_tools(messages: Sequence[Message]) -> list[str]:
    """Names of the tools that were called, in order."""
    return list(dict.fromkeys(_iterate_called_tools(messages)))


def _iterate_called_tools(messages: Sequence[Message]) -> Iterator[str]:
    for message in messages:
        if message.role == "assistant":
            yield from (encode_anthropic_tool_name(call.name) for call in message.tool_calls)


def _count_own_breakpoints(options: Mapping[str, Any], tools: Sequence[Any]) -> int:
    """How many breakpoints are ours: the last two user messages first, then the system prompt, then the tools.

    Each call reads what the one before wrote, at the user message before the last. The system prompt and the tools
    are kept for calls of other conversations, and where the system prompt changes.
    """
    if options.get("cache_control", ...) is None:
        return 0  # switched off
    taken = sum(isinstance(tool, Mapping) and "cache_control" in tool for tool in tools)
    return max(0, _MAX_BREAKPOINTS - taken - ("cache_control" in options))


def _get_cache_control(options: Mapping[str, Any]) -> Any:
    """What marks a breakpoint: the author's own mark, with its time to live, where there is one."""
    return options.get("cache_control") or {"type": "ephemeral"}


def _add_cache_control(block: Mapping[str, Any], options: Mapping[str, Any]) -> Block:
    return {"cache_control": _get_cache_control(options), **block}
