"""Stages around a call, composed by hand: the first stage is the outermost."""

from __future__ import annotations

from collections.abc import Sequence

from ..ports import ModelCall, ModelReply, NextModel, NextTool, Stage, ToolCall
from ..types.wire import ToolOutput


def compose_model(stages: Sequence[Stage], call: NextModel) -> NextModel:
    """``call`` with ``stages`` around it."""
    for stage in reversed(stages):
        call = _around_model(stage, call)
    return call


def compose_tool(stages: Sequence[Stage], call: NextTool) -> NextTool:
    """``call`` with ``stages`` around it."""
    for stage in reversed(stages):
        call = _around_tool(stage, call)
    return call


def _around_model(stage: Stage, next: NextModel) -> NextModel:
    async def call(call: ModelCall) -> ModelReply:
        return await stage.model(call, next)

    return call


def _around_tool(stage: Stage, next: NextTool) -> NextTool:
    async def call(call: ToolCall) -> ToolOutput:
        return await stage.tool(call, next)

    return call
