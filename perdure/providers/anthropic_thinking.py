"""What a request says of thinking and of the tool that must be called: the API has rules on the two together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..types.messages import Message, OpaquePart, TextPart, ThinkingPart
from .anthropic_models import binds_thinking, can_be_forced, takes_effort, thinks_unasked
from .foreign import own

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
