"""perdure: durable agents on Temporal.

Names are loaded when they are first used, so ``import perdure`` is quick and loads no SDK and no database driver.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .agent.agent import Agent
    from .agent.agent_file import load_agent
    from .client.client import Client
    from .client.run import Run
    from .client.schedules import Schedule
    from .client.turn import Turn
    from .errors import Abort, ModelRetry
    from .hooks import HookSet, Step, Veto, hook
    from .local_engine import local
    from .ports import Toolset
    from .providers.pricing import register_price
    from .providers.registry import register_provider
    from .tools import (
        Approval,
        Memory,
        RunContext,
        Tool,
        ToolContext,
        allow,
        ask,
        background,
        callback_tool,
        delegate,
        deny,
        remote_tool,
        tool,
    )
    from .tools.context import RunFacts
    from .types.compaction import Compaction
    from .types.interface import Response, Status
    from .types.limits import Limits, RateLimit
    from .types.messages import File, Message
    from .worker import PerdurePlugin, Worker


_NAMES_BY_MODULE = {
    "agent.agent": "Agent",
    "agent.agent_file": "load_agent",
    "client.client": "Client",
    "client.run": "Run",
    "client.schedules": "Schedule",
    "client.turn": "Turn",
    "errors": "Abort ModelRetry",
    "hooks": "HookSet Step Veto hook",
    "local_engine": "local",
    "ports": "Toolset",
    "providers.pricing": "register_price",
    "providers.registry": "register_provider",
    "tools": "Approval Memory RunContext Tool ToolContext allow ask background callback_tool delegate deny remote_tool "
    "tool",
    "tools.context": "RunFacts",
    "types.compaction": "Compaction",
    "types.interface": "Response Status",
    "types.limits": "Limits RateLimit",
    "types.messages": "File Message",
    "worker": "PerdurePlugin Worker",
}
_MODULES = {name: module for module, names in _NAMES_BY_MODULE.items() for name in names.split()}

__all__ = [
    "Abort",
    "Agent",
    "Approval",
    "Client",
    "Compaction",
    "File",
    "HookSet",
    "Limits",
    "Memory",
    "Message",
    "ModelRetry",
    "PerdurePlugin",
    "RateLimit",
    "Response",
    "Run",
    "RunContext",
    "RunFacts",
    "Schedule",
    "Status",
    "Step",
    "Tool",
    "ToolContext",
    "Toolset",
    "Turn",
    "Veto",
    "Worker",
    "allow",
    "ask",
    "background",
    "callback_tool",
    "delegate",
    "deny",
    "hook",
    "load_agent",
    "local",
    "register_price",
    "register_provider",
    "remote_tool",
    "tool",
]


def __getattr__(name: str) -> Any:
    if name in ("errors", "events", "workflow"):
        return import_module(f".{name}", __name__)
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f".{_MODULES[name]}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
