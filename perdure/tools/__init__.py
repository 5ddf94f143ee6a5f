"""Tools: functions that a model may call."""

from perdure.tools.approval import Approval, Rule, allow, ask, deny
from perdure.tools.arguments import ArgumentsError
from perdure.tools.background import background
from perdure.tools.callback import CallbackTool, callback_tool
from perdure.tools.context import RunContext, ToolContext
from perdure.tools.memory import Memory
from perdure.tools.remote import RemoteTool, remote_tool
from perdure.tools.result import Result, ResultError, error_text, read_result, serialise, shortened
from perdure.tools.subagent import SubagentTool, delegate
from perdure.tools.tool import Tool, as_tool, tool
from perdure.tools.toolbox import Toolbox

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
