"""Agents with the overrides of a run, a turn or a step: copies, checked like definitions and cached."""

from __future__ import annotations

import copy
import json
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from ..errors import DefinitionError
from ..providers.registry import check_settings
from ..tools import Tool, Toolbox
from ..types.interface import Override, StepOverride
from ..types.limits import RunLimits
from ..types.validation_errors import describe_validation_error
from .output import validate_finish_protocol
from .validation import resolve_max_iterations, validate_models

if TYPE_CHECKING:
    from .agent import Agent


logger = logging.getLogger("perdure.worker")

_MAX_CACHED_COPIES = 64
"""Most overridden copies that an agent caches."""


class OverrideCache(dict[str, "Agent"]):
    """The overridden copies of an agent, by their changes. Bounded, because overrides come from outside."""

    def get_or_create(self, key: str, make: Callable[[], Agent]) -> Agent:
        """Return the copy of ``key``; call ``make`` if there is none."""
        found = self.get(key)
        if found is None:
            found = make()
            while len(self) >= _MAX_CACHED_COPIES:
                self.pop(next(iter(self)), None)
            self[key] = found
        return found


def get_overridden_agent(agent: Agent, override: Override | Mapping[str, Any], worker: Toolbox | None = None) -> Agent:
    """Return :func:`apply_override`'s copy, cached: the same copy for the same changes."""
    plain = override.model_dump() if isinstance(override, Override) else override
    key = json.dumps(plain, sort_keys=True, default=repr)
    if worker is not None and (added := plain.get("add_tools")):
        key += repr([id(worker.get(name)) for name in added])  # a copy keeps its tools alive, and so their ids
    return _get_override_cache(agent).get_or_create(key, lambda: apply_override(agent, override, worker))


def _get_override_cache(agent: Agent) -> OverrideCache:
    copies: OverrideCache = vars(agent)["_overridden"]
    return copies


def apply_override(agent: Agent, override: Override | Mapping[str, Any], tools: Toolbox | None = None) -> Agent:
    """Return a copy of ``agent`` with the changes. Errors are reported as for a definition. A step may have added some
    of the worker's ``tools``."""
    try:
        given = override if isinstance(override, Override) else StepOverride.model_validate(override)
        fields = type(given).model_fields
        changes = {field: value for field in fields if (value := getattr(given, field)) is not None}
        return _apply_override_changes(agent, changes, tools) if changes else agent
    except ValidationError as error:
        raise DefinitionError(
            f"the override of agent {agent.name!r}: {describe_validation_error(error, 'it')}",
            hint=f"It can change: {', '.join(Override.model_fields)}.",
        ) from None
    except DefinitionError as error:
        why = error.message.removeprefix(f"agent {agent.name!r}: ")
        raise type(error)(f"the override of agent {agent.name!r}: {why}", hint=error.hint) from None


def copy_with_tools(agent: Agent, key: str, tools: Callable[[], Iterable[Tool]]) -> Agent:
    """Return a copy of ``agent`` that also has ``tools``; the same copy for the same ``key``.

    If the agent's code has a tool of the same name by now, the code's tool is used.
    """

    def make() -> Agent:
        made = _copy_agent(agent)
        made.toolbox = Toolbox([*agent.toolbox, *(tool for tool in tools() if tool.name not in agent.toolbox)])
        made.toolsets = ()
        return made

    return _get_override_cache(agent).get_or_create(key, make)


def _copy_agent(agent: Agent) -> Agent:
    """Copy the agent, with an empty cache of copies."""
    made = copy.copy(agent)
    vars(made)["_overridden"] = OverrideCache()
    return made


def _apply_override_changes(agent: Agent, changes: dict[str, Any], worker: Toolbox | None) -> Agent:
    changed = _copy_agent(agent)
    if (model := changes.pop("model", None)) is not None:
        changed.chain = validate_models(agent.name, list(model) if isinstance(model, tuple) else model)
    if (tools := changes.pop("tools", None)) is not None:
        changed.toolbox = _select_offered_tools(agent, tools)
    added, removed = changes.pop("add_tools", ()), changes.pop("remove_tools", ())
    if added or removed:
        changed.toolbox = _apply_step_tools(agent, changed.toolbox, added, removed, worker)
    if "settings" in changes:
        merged = agent.settings | changes["settings"]
        taken_away = {name for name, value in changes["settings"].items() if value is None}
        changes["settings"] = {name: value for name, value in merged.items() if name not in taken_away}
    if "provider_options" in changes:
        changes["provider_options"] = agent.provider_options | changes["provider_options"]
    if "limits" in changes:
        _merge_limits(agent, changes)
    if "finish" in changes:
        validate_finish_protocol(agent.name, agent.output_type, changes["finish"])
    for field, value in changes.items():
        setattr(changed, field, value)
    check_agent_settings(changed)
    return changed


def _merge_limits(agent: Agent, changes: dict[str, Any]) -> None:
    """Replace the agent's limits one by one by those in ``changes``; the turn's iterations are ``max_iterations``."""
    limits: RunLimits = changes["limits"]
    changes["limits"] = agent.limits.changed(limits)
    if limits.turn is not None and limits.turn.iterations is not None:
        changes["max_iterations"] = resolve_max_iterations(agent.name, changes.get("max_iterations"), changes["limits"])


def _select_offered_tools(agent: Agent, names: Sequence[str]) -> Toolbox:
    """Return the tools of those names in the agent's order, so that the model sees the same list each time."""
    for name in names:
        if name not in agent.toolbox and not agent.toolsets:  # the tools of toolsets are not known yet
            there = ", ".join(tool.name for tool in agent.toolbox) or "none"
            raise DefinitionError(
                f"agent {agent.name!r}: tools names {name!r}, which the agent does not have",
                hint=f"Its tools are: {there}.",
            )
    return Toolbox([tool for tool in agent.toolbox if tool.name in names])


def _apply_step_tools(
    agent: Agent, offered: Toolbox, added: Sequence[str], removed: Sequence[str], worker: Toolbox | None
) -> Toolbox:
    """Return ``offered`` with the changes of steps, added tools last. A tool that no longer exists is left out: code
    may change under a run."""
    tools = [tool for tool in offered if tool.name not in removed and tool.name not in added]
    for name in added:
        found = agent.toolbox.get(name) or (worker.get(name) if worker is not None else None)
        if found is None:
            logger.warning("agent %s: a step added the tool %r, which this worker does not have", agent.name, name)
        else:
            tools.append(found)
    return Toolbox(tools)


def check_agent_settings(agent: Agent) -> None:
    """Check the agent's settings against every model of its chain, since any of them may be called.

    Raises ``SettingsError`` or ``DefinitionError``.
    """
    for model in agent.chain:
        try:
            if model.own is None:
                check_settings(model.provider, agent.settings, agent.provider_options)
            elif (check := getattr(model.own, "check_settings", None)) is not None:
                check(agent.settings, agent.provider_options)
        except DefinitionError as error:
            if len(agent.chain) == 1:
                raise
            raise type(error)(f"model {str(model)!r}: {error.message}", hint=error.hint) from None
