"""Tools: functions that a model may call."""

from .approvals import Approval, Rule, allow, ask, deny
from .context import RunContext, ToolContext
from .external import CallbackTool, RemoteTool, callback_tool, remote_tool
from .memory import Memory
from .results import ResultContent, ResultError, format_error, read_result, serialise, truncate_error_text
from .signature import ArgumentsError
from .subagents import SubagentTool, background, delegate
from .tool import Tool, Toolbox, as_tool, tool

__all__ = [
    "Approval",
    "ArgumentsError",
    "CallbackTool",
    "Memory",
    "RemoteTool",
    "ResultContent",
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
    "format_error",
    "read_result",
    "remote_tool",
    "serialise",
    "tool",
    "truncate_error_text",
]
