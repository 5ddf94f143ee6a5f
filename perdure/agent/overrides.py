"""An agent with what a run, a turn or a step changes of it: a copy, checked as a definition is."""

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
"""Changed copies that an agent keeps."""


class OverrideCache(dict[str, "Agent"]):
    """The changed copies of an agent, by what is changed: so many, for overrides come from outside."""

    def get_or_create(self, key: str, make: Callable[[], Agent]) -> Agent:
        """That of ``key``, made if there is none."""
        found = self.get(key)
        if found is None:
            found = make()
            while len(self) >= _MAX_CACHED_COPIES:
                self.pop(next(iter(self)), None)
            self[key] = found
        return found


def get_overridden_agent(agent: Agent, override: Override | Mapping[str, Any], worker: Toolbox | None = None) -> Agent:
    """:func:`apply_override`, and the same copy for the same changes."""
    plain = override.model_dump() if isinstance(override, Override) else override
    key = json.dumps(plain, sort_keys=True, default=repr)
    if worker is not None and (added := plain.get("add_tools")):
        key += repr([id(worker.get(name)) for name in added])  # a copy keeps its tools, and so their ids
    return _get_override_cache(agent).get_or_create(key, lambda: apply_override(agent, override, worker))


def _get_override_cache(agent: Agent) -> OverrideCache:
    copies: OverrideCache = vars(agent)["_overridden"]
    return copies


def apply_override(agent: Agent, override: Override | Mapping[str, Any], tools: Toolbox | None = None) -> Agent:
    """A copy of ``agent`` with the changes; what is wrong with them is said as of a definition. A step may have added
    some of the worker's ``tools``."""
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
    """A copy of ``agent`` that has ``tools`` besides its own; the same copy for the same ``key``.

    Where its code has got a tool of a name that one of them has, meanwhile, it is the code's that counts.
    """

    def make() -> Agent:
        made = _copy_agent(agent)
        made.toolbox = Toolbox([*agent.toolbox, *(tool for tool in tools() if tool.name not in agent.toolbox)])
        made.toolsets = ()
        return made

    return _get_override_cache(agent).get_or_create(key, make)


def _copy_agent(agent: Agent) -> Agent:
    """A copy with no copies of its own yet."""
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
    """``limits`` put in the place of the agent's, one by one; the turn's iterations are ``max_iterations``."""
    limits: RunLimits = changes["limits"]
    changes["limits"] = agent.limits.changed(limits)
    if limits.turn is not None and limits.turn.iterations is not None:
        changes["max_iterations"] = resolve_max_iterations(agent.name, changes.get("max_iterations"), changes["limits"])


def _select_offered_tools(agent: Agent, names: Sequence[str]) -> Toolbox:
    """The tools of those names, in the agent's order: the model is shown the same list each time."""
    for name in names:
        if name not in agent.toolbox and not agent.toolsets:  # what these have is not known yet
            there = ", ".join(tool.name for tool in agent.toolbox) or "none"
            raise DefinitionError(
                f"agent {agent.name!r}: tools names {name!r}, which the agent does not have",
                hint=f"Its tools are: {there}.",
            )
    return Toolbox([tool for tool in agent.toolbox if tool.name in names])


def _apply_step_tools(
    agent: Agent, offered: Toolbox, added: Sequence[str], removed: Sequence[str], worker: Toolbox | None
) -> Toolbox:
    """``offered`` as steps have changed it, what they added last. A tool that is gone since then is left out: code may
    change under a run."""
    tools = [tool for tool in offered if tool.name not in removed and tool.name not in added]
    for name in added:
        found = agent.toolbox.get(name) or (worker.get(name) if worker is not None else None)
        if found is None:
            logger.warning("agent %s: a step added the tool %r, which this worker does not have", agent.name, name)
        else:
            tools.append(found)
    return Toolbox(tools)


def check_agent_settings(agent: Agent) -> None:
    """The agent's settings, against every model of its chain: which of them is asked is not known before.

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
