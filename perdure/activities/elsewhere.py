"""Calls that are run elsewhere, on the worker's side: what is planned around them, and what is checked before them.

Hooks and rules stand around the two activities as around any tool's: the stages see a call, and what it comes to.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..agent import Agent
from ..errors import ToolError
from ..hooks import Event, Hook
from ..hooks.inside import same
from ..ports import ToolCall
from ..tools import ArgumentsError, CallbackTool, RemoteTool, Tool
from ..types.elsewhere import After, Around, Before, Cleared
from ..types.plain import flaw, size
from ..types.question import AsCallback
from ..types.wire import REMOTE_BYTES, AsRemote, Call, ModelOutput, ToolOutput
from .author_loop import AuthorLoop

HooksOn = Callable[[Event, Agent], tuple[Hook, ...]]
"""The hooks of the worker, then those of the agent."""


def planned(agent: Agent, output: ModelOutput, on: HooksOn) -> ModelOutput:
    """``output``, its calls that are run elsewhere with what there is around them."""
    if not any(isinstance(call.disposition, AsRemote | AsCallback) for call in output.calls):
        return output
    return output.model_copy(update={"calls": tuple(_planned(agent, call, on) for call in output.calls)})


def _planned(agent: Agent, call: Call, on: HooksOn) -> Call:
    how = call.disposition
    if not isinstance(how, AsRemote | AsCallback):
        return call
    tool = agent.toolbox.get(call.name)

    def there(event: Event) -> bool:
        return bool(on(event, agent) or (tool is not None and tool.hooks.on(event)))

    around = Around(before=there("before_tool_call"), after=there("after_tool_call"), errors=there("on_error"))
    return call.model_copy(update={"disposition": how.model_copy(update={"around": around})})


async def cleared(author: AuthorLoop, tool: Tool, call: ToolCall, side: Before) -> ToolOutput:
    """The call may be handed over, with the arguments that it has behind the hooks. Raises ``ToolError``."""
    if not isinstance(tool, CallbackTool if side.client else RemoteTool):
        raise ToolError(f"{call.input.name} is run in another way now: call it again")
    arguments = dict(call.arguments)
    _check(call.input.name, arguments)
    await author.run(f"validators of tool {tool.name}", tool.ask, arguments)
    changed = None if same(arguments, call.input.arguments) else arguments
    return ToolOutput(key=call.key, status="cleared", cleared=Cleared(arguments=changed))


def returned(call: ToolCall, side: After) -> ToolOutput:
    """What the call came to, as its hooks are to see it."""
    text = side.text or ""
    call.error = ToolError(text) if side.is_error else None
    return ToolOutput(key=call.key, content=text, is_error=side.is_error)


def _check(name: str, arguments: dict[str, Any]) -> None:
    """Raise ``ArgumentsError`` for what cannot be sent."""
    wrong = f"the arguments of {name} are not valid"
    if why := flaw(arguments):
        raise ArgumentsError(f"{wrong}: they must be plain JSON: {why}")
    if (found := size(arguments)) > REMOTE_BYTES:
        raise ArgumentsError(f"{wrong}: they have {found:,} bytes and may have {REMOTE_BYTES:,}")
