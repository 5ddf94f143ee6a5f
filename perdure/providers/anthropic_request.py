"""Encodes a request of the Messages API: roles in turn, cache breakpoints placed, nothing encoded twice.

The messages come last, so that each call's bytes are a prefix of the next one's, but for the breakpoints.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from ..ports.model import ModelRequest
from ..types.messages import Message, OpaquePart, Part, TextPart, ThinkingPart
from .anthropic_messages import AnthropicEncoder, Block, iter_unique_pieces
from .dialects import Dialect, find_dialect, find_signer
from .encoding import (
    CONTINUE_TEXT,
    MODEL_KEY,
    OPENING_TEXT,
    build_body,
    build_tool_demand,
    encode_json,
    encode_tool_name,
    get_own_opaque,
)
from .tool_schemas import ANTHROPIC, WireTool, translate_tools

# ---
# What a Claude model's API takes, by the model's name. Other names are taken for current models.
#
# Source: the model pages and the thinking guides of platform.claude.com, November 2026.


_CLAUDE_NAME = re.compile(r"claude-(?P<line>[a-z]+)-(?P<major>\d{1,2})(?!\d)(?:[-.](?P<minor>\d{1,2})(?!\d))?")
_OLD_CLAUDE_NAME = re.compile(r"claude-(?P<major>\d)(?:[-.](?P<minor>\d))?-(?P<line>[a-z]+)")
_MAX_TOKENS_BY_VERSION = (((4, 5), 64_000), ((4, 0), 32_000), ((3, 7), 64_000), ((3, 5), 8_192), ((0, 0), 4_096))
"""Tokens of a reply from this version on: what the smallest model of the version can write, or half of it."""

_ALWAYS_THINKING = ("fable", "mythos")


def parse_claude_version(model: str) -> tuple[str, tuple[int, int]]:
    """``"claude-opus-5-5"`` → ``("opus", (5, 5))``; a cloud may put more around the name.

    Any other name is taken for a model like 4.6, which takes an effort, and thinks only if asked.
    """
    match = _CLAUDE_NAME.search(model) or _OLD_CLAUDE_NAME.search(model)
    return (match["line"], (int(match["major"]), int(match["minor"] or 0))) if match else ("", (4, 6))


def get_default_max_tokens(model: str) -> int:
    """The limit of a reply, which the API requires: one that no usual reply reaches, and that the model allows."""
    line, version = parse_claude_version(model)
    if not line:
        # A Claude without a version, or another vendor's model, whose servers often stop at 8k.
        return 32_000 if "claude" in model else 8_192
    return next(limit for first, limit in _MAX_TOKENS_BY_VERSION if version >= first)


def has_effort_parameter(model: str) -> bool:
    """Whether the effort sets how much it thinks; models before 4.6 take a budget of tokens instead."""
    _, version = parse_claude_version(model)
    return version >= (4, 6) or version < (3, 7)


def has_bound_thinking(model: str) -> bool:
    """Whether its thinking is valid only after the very same messages, tools and system prompt."""
    line, version = parse_claude_version(model)
    return version >= ((5, 1) if line in _ALWAYS_THINKING else (5, 5))


def can_force_tool(model: str) -> bool:
    """Whether a request may name the tool to call: that needs a model whose thinking can be switched off."""
    line, version = parse_claude_version(model)
    return line not in _ALWAYS_THINKING and version < (5, 5)


# ---
# Parameters of thinking and of the tool that must be called: the API has rules on the two together.


_MIN_THINKING_BUDGET = 1024
_CLAUDE_THINKING_BUDGETS = {
    "minimal": _MIN_THINKING_BUDGET,
    "low": 2_048,
    "medium": 8_192,
    "high": 16_384,
    "xhigh": 24_576,
    "max": 31_999,
}
"""Tokens of thinking for models without an effort parameter."""

BINDING_BETA = "thinking-binding-controls-2026-08-01"


@dataclass(slots=True)
class ThinkingParameters:
    """How a request has the model think."""

    parameters: dict[str, Any] = field(default_factory=dict)
    """For the request."""
    can_force_tool: bool = True
    """Whether ``tool_choice`` may name a tool; if not, the model is asked in words."""
    has_binding: bool = False
    """Whether a parameter needs the header ``anthropic-beta``."""


def build_thinking_parameters(
    request: ModelRequest, *, origin: str, max_tokens: int, may_force: bool = True
) -> ThinkingParameters:
    """Parameters for ``settings["reasoning_effort"]``; those in the provider's options stay as they are."""
    model, effort = request.model, request.settings.get("reasoning_effort")
    thinking = ThinkingParameters(can_force_tool=may_force and can_force_tool(model))
    if effort is not None and has_effort_parameter(model):
        thinking.parameters = _build_effort_parameters(effort)
    elif effort is not None and _can_resume_with_thinking(request, origin):
        thinking.parameters = _build_budget_parameters(effort, max_tokens)
    if "thinking" in request.provider_options:
        given = request.provider_options["thinking"]
        is_off = not isinstance(given, Mapping) or given.get("type") in (None, "disabled")
        thinking.can_force_tool = is_off and thinking.can_force_tool
    elif request.tool_choice is not None and thinking.can_force_tool:
        _disable_thinking(thinking.parameters, model)
    elif origin == "anthropic" and has_bound_thinking(model):
        # Changed instructions, a shortened past or another list of tools make the earlier thinking of these models
        # invalid, and the API refuses a request that has it. It is better to lose the thinking.
        given = thinking.parameters.get("thinking", {"type": "adaptive"})
        if given["type"] == "adaptive":
            thinking.parameters["thinking"] = given | {"block_binding": {"prefix_mismatch_behavior": "drop_block"}}
            thinking.has_binding = True
    return thinking


def _build_effort_parameters(effort: str) -> dict[str, Any]:
    if effort == "none":
        return {"thinking": {"type": "disabled"}}
    level = "low" if effort == "minimal" else effort
    # Without "summarized" the newer models do not show their thinking.
    return {"output_config": {"effort": level}, "thinking": {"type": "adaptive", "display": "summarized"}}


def _build_budget_parameters(effort: str, max_tokens: int) -> dict[str, Any]:
    budget = min(_CLAUDE_THINKING_BUDGETS.get(effort, _CLAUDE_THINKING_BUDGETS["medium"]), max_tokens // 2)
    if effort == "none" or budget < _MIN_THINKING_BUDGET:
        return {}
    return {"thinking": {"type": "enabled", "budget_tokens": budget}}


def _disable_thinking(parameters: dict[str, Any], model: str) -> None:
    """Switch thinking off: the API refuses it together with a forced tool."""
    parameters.pop("thinking", None)
    if parse_claude_version(model)[1] >= (5, 0):  # which think unless the request says otherwise
        parameters["thinking"] = {"type": "disabled"}
        if parameters.get("output_config", {}).get("effort") in ("xhigh", "max"):
            parameters["output_config"] = {"effort": "high"}  # above that thinking cannot be switched off


def _can_resume_with_thinking(request: ModelRequest, origin: str) -> bool:
    """Whether a model with a budget may think now.

    A turn under way (calls and results after the last user message) must then have begun with thinking of its own,
    which another provider's turn did not.
    """
    first: Message | None = None
    for message in reversed(request.messages):
        if message.role not in ("assistant", "tool"):
            break
        first = message if message.role == "assistant" else first
    if first is None or not first.tool_calls:
        return True
    first_part = next(part for part in first.parts if not (isinstance(part, TextPart) and not part.text.strip()))
    if not isinstance(first_part, OpaquePart | ThinkingPart):
        return False
    opaque = get_own_opaque(first_part, origin) or {}
    if opaque.get(MODEL_KEY) not in (None, find_signer(request.model)):
        return False
    if isinstance(first_part, OpaquePart):
        return opaque.get("type") == "redacted_thinking"
    return bool(opaque.get("signature"))


RESERVED_OPTIONS = dict.fromkeys(("model", "messages", "stream", "system", "max_tokens"), "perdure")
"""Parameters that the adapter sets itself."""

SAMPLING_SETTINGS = ("temperature", "top_p", "top_k")
"""Version 2026-10-21 of the API, which the SDK asks for, no longer has these."""
SAMPLING_API_VERSION = "2023-06-01"

_MAX_BREAKPOINTS = 4


@dataclass(frozen=True, slots=True)
class EncodedRequest:
    """A request: its body, and the headers that it needs."""

    body: bytes
    headers: dict[str, str]


@dataclass(slots=True)
class _RoleGroup:
    """Consecutive messages of one role, which the API wants as one, with the tool results first."""

    role: str
    results: list[bytes] = field(default_factory=list)
    other_blocks: list[bytes] = field(default_factory=list)
    closed: bytes = b""
    """Several groups of both roles as JSON, which take no more messages and no breakpoint; the role is then ""."""

    def encode(self, mark: bytes = b"") -> bytes:
        if self.closed:
            return self.closed
        content = b",".join((*self.results, *self.other_blocks))
        if mark:
            content = content[:-1] + mark + b"}"  # the last block is an object
        return b'{"role":"%b","content":[%b]}' % (self.role.encode(), content)


def encode_request(
    request: ModelRequest, *, origin: str, paused: Sequence[Part] = (), dialect: Dialect | None = None
) -> EncodedRequest:
    """The body of ``POST /v1/messages``, streamed. ``paused`` is the begun reply that the model is to continue."""
    dialect = dialect or find_dialect("anthropic", "anthropic.com" if origin == "anthropic" else "")
    options = dict(request.provider_options)
    head: dict[str, Any] = {"model": request.model, **({"stream": True} if dialect.streaming else {})}
    head["max_tokens"] = get_default_max_tokens(request.model)
    settings = {name: value for name, value in request.settings.items() if value is not None}
    head |= {name: value for name, value in settings.items() if name not in ("stop", "reasoning_effort")}
    if stop := settings.get("stop"):
        head["stop_sequences"] = [stop] if isinstance(stop, str) else list(stop)
    may_force = dialect.forced_tool == "named"
    thinking = build_thinking_parameters(request, origin=origin, max_tokens=head["max_tokens"], may_force=may_force)
    head |= thinking.parameters
    tools = [*options.pop("tools", ()), *map(encode_tool, translate_tools(ANTHROPIC, request.tools).offered)]
    head |= options
    if tools:
        if request.tool_choice and thinking.can_force_tool:
            head["tool_choice"] = {"type": "tool", "name": request.tool_choice}
    elif names := _list_called_tools(request.messages):
        # Calls in a conversation need tools in the request, even if none may be called any more.
        tools = [{"name": name, "input_schema": {"type": "object"}} for name in names]
        head["tool_choice"] = {"type": "none"}
    else:
        head.pop("tool_choice", None)  # the author's, for tools that this call does not have
    breakpoint_count = _count_own_breakpoints(options, tools) if dialect.cache_marks else 0
    # A breakpoint is the author's own mark, with its time to live, if there is one.
    mark = {"cache_control": options.get("cache_control") or {"type": "ephemeral"}}
    if tools:
        head["tools"] = [*tools[:-1], {**mark, **tools[-1]}] if breakpoint_count > 3 else tools
    if request.system and request.system.strip():
        block = {"type": "text", "text": request.system}
        head["system"] = [mark | block if breakpoint_count > 2 else block]
    groups = _group_by_role(request, origin, dialect, thinking, paused)
    marked = _find_marked_groups(groups, breakpoint_count)
    if marked is None:  # many messages of one role: without segments, no group is closed
        groups = _group_by_role(replace(request, messages=[*request.messages]), origin, dialect, thinking, paused)
        marked = _find_marked_groups(groups, breakpoint_count) or []
    encoded_mark = b"," + encode_json(mark)[1:-1]
    body = build_body(
        head, "messages", (group.encode(encoded_mark if index in marked else b"") for index, group in enumerate(groups))
    )
    headers = {}
    if any(key in head for key in SAMPLING_SETTINGS):
        headers["anthropic-version"] = SAMPLING_API_VERSION
    if thinking.has_binding:
        headers["anthropic-beta"] = BINDING_BETA
    return EncodedRequest(body, headers)


def encode_tool(tool: WireTool) -> Block:
    """A tool's definition."""
    description = {"description": tool.description} if tool.description.strip() else {}
    return {"name": tool.name, **description, "input_schema": tool.parameters}


def _group_by_role(
    request: ModelRequest, origin: str, dialect: Dialect, thinking: ThinkingParameters, paused: Sequence[Part]
) -> list[_RoleGroup]:
    encoder = AnthropicEncoder(request, origin, dialect)
    groups: list[_RoleGroup] = []
    pieces = iter_unique_pieces(request.messages)
    for group in encoder.encode_pieces(pieces, encoder.key, partial(_group_messages, encoder), _close_groups):
        _add_group(groups, group)
    if groups and groups[0].role == "assistant":
        groups.insert(0, _build_prompt_group(OPENING_TEXT))
    if not groups or groups[-1].role == "assistant":
        _add_group(groups, _build_prompt_group(CONTINUE_TEXT))  # most models refuse to continue a reply of their own
    if request.tool_choice and not thinking.can_force_tool:
        _add_group(groups, _build_prompt_group(build_tool_demand(request.tool_choice)))
    for group in _group_messages(encoder, [Message(role="assistant", parts=tuple(paused))] if paused else []):
        _add_group(groups, group)
    return groups


def _group_messages(encoder: AnthropicEncoder, messages: Sequence[Message]) -> list[_RoleGroup]:
    """Each message that can be sent as a group of its own."""
    groups: list[_RoleGroup] = []
    for message in messages:
        if fragment := encoder.encode_message(message):
            if message.role == "tool":
                groups.append(_RoleGroup("user", results=[fragment]))
            else:
                role = "assistant" if message.role == "assistant" else "user"
                groups.append(_RoleGroup(role, other_blocks=[fragment]))
    return groups


def _add_group(groups: list[_RoleGroup], group: _RoleGroup) -> None:
    """Add the blocks of ``group`` to the last of ``groups`` if that has its role, else to a new one."""
    if group.closed or not groups or groups[-1].role != group.role:
        groups.append(_RoleGroup(group.role, closed=group.closed))
    groups[-1].results += group.results
    groups[-1].other_blocks += group.other_blocks


def _close_groups(message_groups: list[_RoleGroup]) -> list[_RoleGroup]:
    """The groups of a segment: its first and its last, which its neighbours may continue, and all between as one."""
    groups: list[_RoleGroup] = []
    for group in message_groups:
        _add_group(groups, group)
    if len(groups) < 4:
        return groups
    closed = b",".join(group.encode() for group in groups[1:-1])
    return [groups[0], _RoleGroup("", closed=closed), groups[-1]]


def _find_marked_groups(groups: Sequence[_RoleGroup], breakpoint_count: int) -> list[int] | None:
    """Find the places of the last user messages, which get a breakpoint; None if a closed group may have one of
    them."""
    marked: list[int] = []
    for index in reversed(range(len(groups))):
        if len(marked) == min(2, breakpoint_count):
            break
        if groups[index].closed:
            return None
        if groups[index].role == "user":
            marked.append(index)
    return marked


def _build_prompt_group(text: str) -> _RoleGroup:
    return _RoleGroup("user", other_blocks=[_encode_prompt(text)])


def _encode_prompt(text: str) -> bytes:
    return encode_json({"type": "text", "text": text})


def _list_called_tools(messages: Sequence[Message]) -> list[str]:
    """Names of the tools that were called, in order."""
    calls = (call for message in messages if message.role == "assistant" for call in message.tool_calls)
    return list(dict.fromkeys(encode_tool_name(call.name or "unknown") for call in calls))


def _count_own_breakpoints(options: Mapping[str, Any], tools: Sequence[Any]) -> int:
    """How many breakpoints are ours: the last two user messages first, then the system prompt, then the tools.

    Each call reads what the one before wrote, at the user message before the last. The system prompt and the tools
    are cached for calls of other conversations, and for when the system prompt changes.
    """
    if options.get("cache_control", ...) is None:
        return 0  # switched off
    taken = sum(isinstance(tool, Mapping) and "cache_control" in tool for tool in tools)
    return max(0, _MAX_BREAKPOINTS - taken - ("cache_control" in options))
