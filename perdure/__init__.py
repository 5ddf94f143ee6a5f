"""perdure: durable agents on Temporal.

Names are loaded when they are first used, so ``import perdure`` is quick and loads no SDK and no database driver.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ._lazy import NameLoader

if TYPE_CHECKING:
    from . import errors as errors
    from . import events as events
    from . import workflow as workflow
    from .agent.spec import AgentSpec as AgentSpec
    from .client.client import Client as Client
    from .client.run import Run as Run
    from .client.schedules import Schedule as Schedule
    from .client.turn import Turn as Turn
    from .context.auth import RunFacts as RunFacts
    from .errors import Abort as Abort
    from .errors import ModelRetry as ModelRetry
    from .hooks.hook import HookSet as HookSet
    from .hooks.hook import Veto as Veto
    from .hooks.hook import hook as hook
    from .hooks.step import Step as Step
    from .local_engine.agent import Agent as Agent
    from .local_engine.agent import load_agent as load_agent
    from .local_engine.engine import local as local
    from .ports.toolset import Toolset as Toolset
    from .providers.pricing import register_price as register_price
    from .providers.registry import register_provider as register_provider
    from .tools import Approval as Approval
    from .tools import Memory as Memory
    from .tools import RunContext as RunContext
    from .tools import ToolContext as ToolContext
    from .tools import allow as allow
    from .tools import ask as ask
    from .tools import background as background
    from .tools import callback_tool as callback_tool
    from .tools import delegate as delegate
    from .tools import deny as deny
    from .tools import remote_tool as remote_tool
    from .tools.tool import Tool as Tool
    from .tools.tool import tool as tool
    from .types.client_tools import ClientTool as ClientTool
    from .types.compaction import Compaction as Compaction
    from .types.interface import Response as Response
    from .types.interface import Status as Status
    from .types.limits import Limits as Limits
    from .types.limits import RateLimit as RateLimit
    from .types.messages import File as File
    from .types.messages import Message as Message
    from .worker import PerdurePlugin as PerdurePlugin
    from .worker import Worker as Worker


_NAMES_BY_HOME = {
    ".agent.spec": "AgentSpec",
    ".client.client": "Client",
    ".client.run": "Run",
    ".client.schedules": "Schedule",
    ".client.turn": "Turn",
    ".errors": "Abort ModelRetry",
    ".hooks.hook": "HookSet Veto hook",
    ".hooks.step": "Step",
    ".local_engine.agent": "Agent load_agent",
    ".local_engine.engine": "local",
    ".ports.toolset": "Toolset",
    ".providers.pricing": "register_price",
    ".providers.registry": "register_provider",
    ".tools": "Approval Memory RunContext ToolContext allow ask background callback_tool delegate deny remote_tool",
    ".context.auth": "RunFacts",
    ".tools.tool": "Tool tool",
    ".types.client_tools": "ClientTool",
    ".types.compaction": "Compaction",
    ".types.interface": "Response Status",
    ".types.limits": "Limits RateLimit",
    ".types.messages": "File Message",
    ".worker": "PerdurePlugin Worker",
}

if not TYPE_CHECKING:  # type checkers take the imports above as the list
    __all__ = sorted(name for names in _NAMES_BY_HOME.values() for name in names.split())
    _load_name = NameLoader(__name__, _NAMES_BY_HOME)

    def __getattr__(name: str) -> Any:
        if name in ("errors", "events", "workflow"):
            return import_module(f".{name}", __name__)
        return _load_name(name)

    def __dir__() -> list[str]:
        return __all__
