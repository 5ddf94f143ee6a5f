"""Tools: functions that a model may call."""

from perdure.tools.arguments import ArgumentsError
from perdure.tools.context import RunContext, ToolContext
from perdure.tools.memory import Memory
from perdure.tools.result import Result, ResultError, error_text, read_result, serialise
from perdure.tools.subagent import SubagentTool, delegate
from perdure.tools.tool import Tool, as_tool, tool
from perdure.tools.toolbox import Toolbox

__all__ = [
    "ArgumentsError",
    "Memory",
    "Result",
    "ResultError",
    "RunContext",
    "SubagentTool",
    "Tool",
    "ToolContext",
    "Toolbox",
    "as_tool",
    "delegate",
    "error_text",
    "read_result",
    "serialise",
    "tool",
]
