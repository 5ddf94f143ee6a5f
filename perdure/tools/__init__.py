"""Tools: functions that a model may call."""

from .approvals import Approval, Rule, allow, ask, deny
from .context import RunContext, ToolContext
from .external import CallbackTool, RemoteTool, callback_tool, remote_tool
from .memory import Memory
from .results import Result, ResultError, error_text, read_result, serialise, shortened
from .signature import ArgumentsError
from .subagents import SubagentTool, background, delegate
from .tool import Tool, Toolbox, as_tool, tool

__all__ = [
    "Approval",
    "ArgumentsError",
    "CallbackTool",
    "Memory",
    "RemoteTool",
    "Result",
    "ResultError",
    "Rule",
    "RunContext",
    "SubagentTool",
    "Tool",
    "ToolContext",
    "Toolbox",
    "allow",
    "as_tool",
    "ask",
    "background",
    "callback_tool",
    "delegate",
    "deny",
    "error_text",
    "read_result",
    "remote_tool",
    "serialise",
    "shortened",
    "tool",
]
