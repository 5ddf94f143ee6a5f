"""The definition of an agent as JSON: what can be shown of it without its code.

Workers record it in the store when they start. It has what the author has written, and nothing that was computed in a
run; of settings and provider options, which may hold credentials, it has the names alone.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from pydantic import TypeAdapter

from ..hooks import Hook
from ..ports.store import AgentRow
from ..tools import SubagentTool, Tool
from ..tools.approvals import Approval, Rule
from ..types.messages import clean_json_text
from ..types.redaction import find_credentials, redact_credentials
from .spec import AgentSpec

MAX_DEFINITION_BYTES = 256 * 1024
"""Most bytes of a definition; a longer one is stored without its schemas, then with shortened texts, then without its
tools, and says so under ``left_out``."""
_SHORT_TEXT_CHARS = 500


def build_agent_row(agent: AgentSpec[Any, Any], variables: Mapping[str, str]) -> AgentRow:
    """Build the row of the agent's definition. Its texts are without the credentials in the environment
    ``variables``."""
    definition = _redact(describe_agent(agent), find_credentials(variables))
    for name, leave_out in (("", None), *_REDUCTIONS):
        if leave_out is not None:
            leave_out(definition)
            definition.setdefault("left_out", []).append(name)
        text = json.dumps(definition, sort_keys=True, ensure_ascii=False, separators=(",", ":"), default=str)
        body = clean_json_text(text).encode()
        if len(body) <= MAX_DEFINITION_BYTES:
            break
    return AgentRow(hashlib.sha256(body).hexdigest(), agent.name, body)


def describe_agent(agent: AgentSpec[Any, Any]) -> dict[str, Any]:
    """Return the definition as plain data; the keys are those of ``Agent(…)``."""
    definition = {
        "name": agent.name,
        "description": agent.description,
        "models": list(agent.models),
        "instructions": [_describe_instruction(part) for part in agent.instruction_parts],
        "tools": [_describe_tool(tool) for tool in agent.toolbox],
        "toolsets": [toolset.name for toolset in agent.toolsets],
        "subagents": [name if isinstance(name, str) else name.name for name in agent.subagents],
        "approvals": [_describe_rule(rule) for rule in agent.approvals],
        "hooks": _describe_hooks(agent.hooks),
        "limits": agent.limits.model_dump(mode="json", exclude_defaults=True),
        "max_iterations": agent.max_iterations,
        "on_limit": agent.on_limit,
        "finish": agent.finish,
        "versioning": None if agent.versioning == "auto_upgrade" else agent.versioning,
        "client_tools": agent.client_tools or None,
        "caller_overrides": list(agent.caller_overrides),
        "caller_claims": list(agent.caller_claims),
        "internal": agent.internal or None,
        "context": None if agent.context is None else TypeAdapter(agent.context).json_schema(),
        "input": agent.input_schema() if agent.takes_input else None,
        "output": None if agent.output_type.is_text else agent.output_type.schema,
        "output_validators": [_name_function(validator.fn) for validator in agent.output_validators],
        "settings": sorted(agent.settings),
        "provider_options": sorted(agent.provider_options),
    }
    return {name: value for name, value in definition.items() if value not in (None, "", [], {})}


def _redact(value: Any, credentials: Sequence[str]) -> Any:
    if isinstance(value, str):
        return redact_credentials(value, credentials)
    if isinstance(value, Mapping):
        return {key: _redact(item, credentials) for key, item in value.items()}
    return [_redact(item, credentials) for item in value] if isinstance(value, list | tuple) else value


def _describe_instruction(part: str | Callable[..., Any]) -> dict[str, str]:
    return {"text": part} if isinstance(part, str) else {"function": _name_function(part)}


def _describe_tool(tool: Tool[..., Any, Any]) -> dict[str, Any]:
    described = {
        "name": tool.name,
        "description": tool.description,
        "parameters": tool.parameters,
        "needs_approval": _describe_policy(tool.needs_approval),
        "summary": tool.summary,
        "run_by": getattr(tool, "run_by", None),
        "agents": [name if isinstance(name, str) else name.name for name in tool.agents]
        if isinstance(tool, SubagentTool)
        else [],
        "timeout": tool.timeout,
        "retries": tool.retries,
        "task_queue": tool.task_queue,
        "idempotent": tool.idempotent or None,
        "inline": tool.inline or None,
        "hooks": _describe_hooks(tool.hooks),
    }
    return {name: value for name, value in described.items() if value not in (None, "", [])}


def _describe_policy(policy: Any) -> Any:
    """Return True, the terms, or the name of the function that decides; None without an approval."""
    if isinstance(policy, Approval):
        return policy.model_dump(mode="json", exclude_defaults=True) or True
    return {"function": _name_function(policy)} if callable(policy) else (policy or None)


def _describe_rule(rule: Rule) -> dict[str, Any]:
    terms = {} if rule.approval is None else {"terms": _describe_policy(rule.approval)}
    arguments = {"arguments": dict(rule.arguments)} if rule.arguments else {}
    return {"action": rule.action, "tool": rule.tool, **arguments, **terms}


def _describe_hooks(hooks: Iterable[Hook[Any]]) -> list[dict[str, str]]:
    return [{"event": hook.event, "name": hook.name} for hook in hooks]


def _name_function(function: Callable[..., Any]) -> str:
    """Return the name of a function, or the class of another callable: its repr may have an address."""
    return str(getattr(function, "__qualname__", None) or type(function).__qualname__)


def _leave_out_schemas(definition: dict[str, Any]) -> None:
    for name in ("context", "input", "output"):
        definition.pop(name, None)
    for tool in definition.get("tools", ()):
        tool.pop("parameters", None)


def _shorten_texts(definition: dict[str, Any]) -> None:
    for owner in (definition, *definition.get("tools", ()), *definition.get("instructions", ())):
        for name in ("description", "text"):
            if len(owner.get(name, "")) > _SHORT_TEXT_CHARS:
                owner[name] = owner[name][:_SHORT_TEXT_CHARS] + "…"


def _leave_out_lists(definition: dict[str, Any]) -> None:
    for name in [name for name, value in definition.items() if isinstance(value, list | dict)]:
        if name not in ("models", "left_out", "caller_overrides", "caller_claims"):
            del definition[name]


_REDUCTIONS = (("schemas", _leave_out_schemas), ("texts", _shorten_texts), ("lists", _leave_out_lists))
