"""What of an agent may be changed for a run: by callers of a service what the agent names, and by steps its tools."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from ..errors import DefinitionError, InvalidInputError
from ..loop.requests import lower_limits, merge_overrides
from ..tools import DeclaredTool, Toolbox
from ..types.interface import CALLER_CLAIMS, CallerOverride
from ..types.limits import Limits
from .validation import validate_list

logger = logging.getLogger("perdure.worker")


class ChangedAgent(Protocol):
    """What of an :class:`~perdure.agent.spec.AgentSpec` is read here, which imports this module."""

    name: str
    caller_overrides: tuple[str, ...]
    toolbox: Toolbox
    toolsets: Any
    settings: Mapping[str, Any]
    limits: Limits
    max_iterations: int

    def overridden(self, override: Any, worker: Toolbox | None = None) -> Any:
        """Return the agent with the changes."""


_SETTING = "settings."
_NAMED_ALONE = tuple(name for name in CallerOverride.model_fields if name != "settings")


def validate_caller_overrides(name: str, value: Any) -> tuple[str, ...]:
    """Return the fields of a ``CallerOverride`` that callers may set. Raises ``DefinitionError``."""
    known = f"There are: {', '.join(_NAMED_ALONE)}, and settings by name, as settings.temperature."
    listed = validate_list(name, "caller_overrides", value, '["settings.temperature"]')
    for field in listed:
        is_setting = isinstance(field, str) and field.startswith(_SETTING) and len(field) > len(_SETTING)
        if field not in _NAMED_ALONE and not is_setting:
            raise DefinitionError(f"agent {name!r}: caller_overrides cannot name {field!r:.100}", hint=known)
    return tuple(listed)


def validate_caller_claims(name: str, value: Any) -> tuple[str, ...]:
    """Return what callers may say of themselves. Raises ``DefinitionError``."""
    listed = validate_list(name, "caller_claims", value, '["context"]')
    for claim in listed:
        if claim not in CALLER_CLAIMS:
            hint = f"There are: {', '.join(CALLER_CLAIMS)}."
            raise DefinitionError(f"agent {name!r}: caller_claims cannot name {claim!r:.100}", hint=hint)
    return tuple(listed)


def validate_internal(name: str, value: Any) -> bool:
    """Return whether only other agents, and programs, call the agent. Raises ``DefinitionError``."""
    if not isinstance(value, bool):
        raise DefinitionError(f"agent {name!r}: internal is True or False, not {value!r:.100}", hint="For a subagent.")
    return value


# ---
# What a caller asks for.


def list_override_fields(asked: Mapping[str, Any]) -> list[str]:
    """List the names of what a ``CallerOverride``, as plain JSON, changes, as ``Agent(caller_overrides=…)`` has them:
    each setting is one."""
    fields = [name for name, value in asked.items() if name != "settings" and value is not None]
    settings = asked.get("settings")
    return fields + [f"{_SETTING}{name}" for name in (settings if isinstance(settings, Mapping) else ())]


def find_refused_field(asked: Mapping[str, Any], allowed: Sequence[str]) -> str | None:
    """Return the first field of what a caller asks for that an agent does not name; None if it names all."""
    return next((field for field in list_override_fields(asked) if field not in allowed), None)


def merge_caller_override(
    agent: ChangedAgent, asked: Mapping[str, Any] | None, override: Mapping[str, Any] | None, worker: Toolbox
) -> dict[str, Any] | None:
    """Merge what callers ask for into ``override``, what operators and step policies have said, which goes before it.

    Limits, and ``max_tokens``, only lower what holds without it. Raises ``InvalidInputError`` for a field that the
    agent does not name.
    """
    known = dict(override or {})
    if not asked:
        return known or None
    if (field := find_refused_field(asked, agent.caller_overrides)) is not None:
        raise InvalidInputError(
            f"override: agent {agent.name!r} does not let callers change {field}",
            hint=f"The agent's author can allow it: Agent(…, caller_overrides=[{field!r}]).",
        )
    present = agent.overridden(known, worker)
    merged = merge_overrides({name: asked[name] for name in asked if name not in ("limits", "max_iterations")}, known)
    if asked.get("tools") is not None and known.get("tools") is not None:
        merged["tools"] = [tool for tool in known["tools"] if tool in asked["tools"]]
    most, tokens = present.settings.get("max_tokens"), (asked.get("settings") or {}).get("max_tokens", ...)
    if isinstance(most, int) and tokens is not ...:
        merged["settings"] = {
            **merged["settings"],
            "max_tokens": min(most, tokens) if isinstance(tokens, int) else most,
        }
    return merged | _lower_agent_limits(present, known.get("limits") or {}, asked)


def _lower_agent_limits(present: ChangedAgent, override: Mapping[str, Any], asked: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of an override by which the limits of ``present`` are the lower ones of those and of ``asked``.
    ``override`` are the limits that its override has."""
    limits = dict(asked.get("limits") or {})
    turn = dict(limits.pop("turn", None) or {})
    iterations = [n for n in (turn.pop("iterations", None), asked.get("max_iterations")) if n is not None]
    changes: dict[str, Any] = {}
    if iterations:
        changes["max_iterations"] = min(*iterations, present.max_iterations)
    of_run = {name: getattr(present.limits, name) for name in limits}
    of_turn = {name: getattr(present.limits.turn, name, None) for name in turn}
    lowered = lower_limits(of_run, limits)
    before = dict(override.get("turn") or {})
    if iterations:
        before.pop("iterations", None)
    if lowered or turn or (iterations and "iterations" in (override.get("turn") or {})):
        changes["limits"] = {**override, **lowered, "turn": {**before, **lower_limits(of_turn, turn)} or None}
    return changes


# ---
# Tools of an override.


def select_tools(agent: ChangedAgent, names: Sequence[str]) -> Toolbox:
    """Return the tools of those names in the agent's order, so that the model sees the same list each time; and those
    that the turn's client has declared, which are not the agent's."""
    for name in names:
        if name not in agent.toolbox and not agent.toolsets:  # the tools of toolsets are not known yet
            known = ", ".join(tool.name for tool in agent.toolbox) or "none"
            problem = f"agent {agent.name!r}: tools names {name!r}, which the agent does not have"
            raise DefinitionError(problem, hint=f"Its tools are: {known}.")
    return Toolbox([tool for tool in agent.toolbox if tool.name in names or isinstance(tool, DeclaredTool)])


def apply_step_tools(
    agent: ChangedAgent, offered: Toolbox, added: Sequence[str], removed: Sequence[str], worker: Toolbox | None
) -> Toolbox:
    """Return ``offered`` with the changes of steps, added tools last. A tool that no longer exists is left out: code
    may change under a run."""
    tools = [tool for tool in offered if tool.name not in removed and tool.name not in added]
    for name in added:
        tool = agent.toolbox.get(name) or (worker.get(name) if worker is not None else None)
        if tool is not None:
            tools.append(tool)
        else:
            logger.warning("agent %s: a step added the tool %r, which this worker does not have", agent.name, name)
    return Toolbox(tools)
