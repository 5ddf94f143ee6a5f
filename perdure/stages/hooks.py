"""The innermost stage: hooks see the whole conversation and run under the journal.

Hooks come with their own issue; the stage holds their place in the order, so that adding them touches nothing else.
"""

from __future__ import annotations

from ..ports import ModelCall, ModelReply, NextModel, NextTool, ToolCall
from ..types.wire import ToolOutput


class HookStage:
    """Runs the hooks of the agent, the worker and the tool around the bare call; there are none yet."""

    async def model(self, call: ModelCall, next: NextModel) -> ModelReply:
        """Around a model call."""
        return await next(call)

    async def tool(self, call: ToolCall, next: NextTool) -> ToolOutput:
        """Around a tool call."""
        return await next(call)
