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


_HOME = {
    "Abort": "errors",
    "Agent": "agent.agent",
    "Approval": "tools",
    "Client": "client.client",
    "Compaction": "types.compaction",
    "File": "types.messages",
    "HookSet": "hooks",
    "Limits": "types.limits",
    "Memory": "tools",
    "Message": "types.messages",
    "ModelRetry": "errors",
    "PerdurePlugin": "worker",
    "RateLimit": "types.limits",
    "Response": "types.interface",
    "Run": "client.run",
    "RunContext": "tools",
    "RunFacts": "tools.context",
    "Schedule": "client.schedules",
    "Status": "types.interface",
    "Step": "hooks",
    "Tool": "tools",
    "ToolContext": "tools",
    "Toolset": "ports",
    "Turn": "client.turn",
    "Veto": "hooks",
    "Worker": "worker",
    "allow": "tools",
    "ask": "tools",
    "background": "tools",
    "callback_tool": "tools",
    "delegate": "tools",
    "deny": "tools",
    "hook": "hooks",
    "load_agent": "agent.agent_file",
    "local": "local_engine",
    "register_price": "providers.pricing",
    "register_provider": "providers.registry",
    "remote_tool": "tools",
    "tool": "tools",
}

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
    if name in ("errors", "workflow"):
        return import_module(f".{name}", __name__)
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f".{_HOME[name]}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
