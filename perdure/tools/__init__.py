"""Tools: functions that a model may call."""

from .approvals import Approval as Approval
from .approvals import Rule as Rule
from .approvals import allow as allow
from .approvals import ask as ask
from .approvals import deny as deny
from .context import RunContext as RunContext
from .context import ToolContext as ToolContext
from .external import CallbackTool as CallbackTool
from .external import RemoteTool as RemoteTool
from .external import callback_tool as callback_tool
from .external import remote_tool as remote_tool
from .memory import Memory as Memory
from .results import ResultContent as ResultContent
from .results import ResultError as ResultError
from .results import format_error as format_error
from .results import read_result as read_result
from .results import serialise as serialise
from .results import truncate_error_text as truncate_error_text
from .signature import ArgumentsError as ArgumentsError
from .subagents import SubagentTool as SubagentTool
from .subagents import background as background
from .subagents import delegate as delegate
from .tool import Tool as Tool
from .tool import Toolbox as Toolbox
from .tool import as_tool as as_tool
from .tool import tool as tool
