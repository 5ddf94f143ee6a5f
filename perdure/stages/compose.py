"""Stages around a call, composed by hand: the first stage is the outermost."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from ..ports import NextModel, NextTool, Stage


def compose_model(stages: Sequence[Stage], call: NextModel) -> NextModel:
    """``call`` with ``stages`` around it."""
    for stage in reversed(stages):
        call = partial(stage.model, next=call)
    return call


def compose_tool(stages: Sequence[Stage], call: NextTool) -> NextTool:
    """``call`` with ``stages`` around it."""
    for stage in reversed(stages):
        call = partial(stage.tool, next=call)
    return call
