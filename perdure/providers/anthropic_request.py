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
from .anthropic_messages import Block, fragment, role_of, tool_name, with_unique_calls
from .encoding import encode_json, own, provider_ids

# ---
# What the name of a Claude model says of its API. Names that say nothing are taken for models of today.
#
# Source: the model pages and the thinking guides of platform.claude.com, November 2026.


_NEW = re.compile(r"claude-(?P<line>[a-z]+)-(?P<major>\d{1,2})(?!\d)(?:[-.](?P<minor>\d{1,2})(?!\d))?")
_OLD = re.compile(r"claude-(?P<major>\d)(?:[-.](?P<minor>\d))?-(?P<line>[a-z]+)")
_LONGEST_FIRST = (
    ((4, 5), 64_000),
    ((4, 0), 32_000),
    ((3, 7), 64_000),
    ((3, 5), 8_192),
    ((0, 0), 4_096),
)
"""From this version on, so many tokens a reply: what the smallest model of the version can write, or half of it."""

Generation = tuple[str, tuple[int, int]]


def generation(model: str) -> Generation | None:
    """``"claude-opus-5-5"`` → ``("opus", (5, 5))``, with whatever a cloud puts around the name."""
    found = _NEW.search(model) or _OLD.search(model)
    return (found["line"], (int(found["major"]), int(found["minor"] or 0))) if found else None


def default_max_tokens(model: str) -> int:
    """The API wants a limit with every call: one that no usual reply reaches, and that the model allows."""
    known = generation(model)
    if known is None:
        # A Claude without a version, or another vendor's model, whose servers often stop at 8k.
        return 32_000 if "claude" in model else 8_192
    return next(limit for version, limit in _LONGEST_FIRST if known[1] >= version)


def takes_effort(model: str) -> bool:
    """Whether effort says how much it thinks; models before 4.6 take a budget of tokens instead."""
    known = generation(model)
    return known is None or known[1] >= (4, 6) or known[1] < (3, 7)


def thinks_unasked(model: str) -> bool:
    """Whether it thinks where the request does not say so."""
    known = generation(model)
    return known is not None and known[1] >= (5, 0)


def binds_thinking(model: str) -> bool:
    """Whether what it thought holds only after the very same messages, tools and system prompt."""
    known = generation(model)
    return known is not None and (known[1] >= (5, 5) or (_always(known[0]) and known[1] >= (5, 1)))


def can_be_forced(model: str) -> bool:
    """Whether a request may name the tool to call: that needs a model whose thinking can be switched off."""
    known = generation(model)
    return known is None or not (_always(known[0]) or known[1] >= (5, 5))


def _always(line: str) -> bool:
    return line in ("fable", "mythos")


# ---
# What a request says of thinking and of the tool that must be called: the API has rules on the two together.


_LEAST_BUDGET = 1024
_BUDGETS = {"minimal": _LEAST_BUDGET, "low": 2_048, "medium": 8_192, "high": 16_384, "xhigh": 24_576, "max": 31_999}
"""Tokens of thinking for models that take no effort."""

BINDING_BETA = "thinking-binding-controls-2026-08-01"


@dataclass(slots=True)
class Thinking:
    """The outcome. ``parameters`` go into the request."""

    parameters: dict[str, Any] = field(default_factory=dict)
    forces: bool = True
    """Whether ``tool_choice`` may name a tool; if not, the model is asked in words."""
    binding: bool = False
    """Whether a parameter is used that needs the header ``anthropic-beta``."""


def thinking(
    model: str,
    settings: Mapping[str, Any],
    options: Mapping[str, Any],
    messages: Sequence[Message],
    *,
    origin: str,
    forced: bool,
    max_tokens: int,
) -> Thinking:
    """Parameters for ``settings["reasoning_effort"]``; what ``options`` say of thinking stays as it is."""
    asked = Thinking()
    effort = settings.get("reasoning_effort")
    if effort is not None and takes_effort(model):
        asked.parameters = _effort(effort)
    elif effort is not None and _resumes_with_thinking(messages, origin):
        asked.parameters = _budget(effort, max_tokens)
    if "thinking" in options:
        kind = options["thinking"].get("type") if isinstance(options["thinking"], Mapping) else None
        asked.forces = kind in (None, "disabled") and can_be_forced(model)
        return asked
    asked.forces = can_be_forced(model)
    if forced and asked.forces:
        _still(asked.parameters, model)
    elif origin == "anthropic" and binds_thinking(model):
        # Instructions that change, a shortened past, another list of tools: for these models any of that makes
        # earlier thinking invalid, and a request that has it is refused. Better lose the thinking.
        given = asked.parameters.get("thinking", {"type": "adaptive"})
        if given["type"] == "adaptive":
            bound = {"block_binding": {"prefix_mismatch_behavior": "drop_block"}}
            asked.parameters["thinking"] = given | bound
            asked.binding = True
    return asked


def _effort(effort: str) -> dict[str, Any]:
    if effort == "none":
        return {"thinking": {"type": "disabled"}}
    level = "low" if effort == "minimal" else effort
    # Without "summarized" the newer models keep to themselves what they think.
    return {"output_config": {"effort": level}, "thinking": {"type": "adaptive", "display": "summarized"}}


def _budget(effort: str, max_tokens: int) -> dict[str, Any]:
    budget = min(_BUDGETS.get(effort, _BUDGETS["medium"]), max_tokens // 2)
    if effort == "none" or budget < _LEAST_BUDGET:
        return {}
    return {"thinking": {"type": "enabled", "budget_tokens": budget}}


def _still(parameters: dict[str, Any], model: str) -> None:
    """No thinking in this call: the API refuses it together with a forced tool."""
    parameters.pop("thinking", None)
    if thinks_unasked(model):
        parameters["thinking"] = {"type": "disabled"}
        if parameters.get("output_config", {}).get("effort") in ("xhigh", "max"):
            parameters["output_config"] = {"effort": "high"}  # above that thinking cannot be switched off


def _resumes_with_thinking(messages: Sequence[Message], origin: str) -> bool:
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
        return (own(begins, origin) or {}).get("type") == "redacted_thinking"
    return isinstance(begins, ThinkingPart) and own(begins, origin) is not None


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
