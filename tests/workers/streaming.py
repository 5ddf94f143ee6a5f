"""Agents whose models are slow: they say half of a reply, and the rest when the file ``TEST_GO`` is there."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path

from pydantic import BaseModel

from perdure import Agent
from perdure.ports.model import Completed, ModelRequest, StreamEvent, TextDelta, ToolCallDelta
from perdure.testing import finish
from perdure.types.messages import TextPart
from tests.support.engine import run_worker
from tests.support.wait import eventually


class Outline(BaseModel):
    title: str = ""
    points: list[str] = []


async def until_told() -> None:
    """Until the file is there."""
    await eventually(Path(os.environ["TEST_GO"]).exists, deadline=60)


class Slow:
    """Half, and after a while the other half."""

    async def stream(self, request: ModelRequest) -> AsyncIterator[StreamEvent]:
        yield TextDelta("Half ")
        await until_told()
        yield TextDelta("whole.")
        yield Completed((TextPart(text="Half whole."),), model=request.model)


class SlowOutline:
    """The same of an output."""

    async def stream(self, request: ModelRequest) -> AsyncIterator[StreamEvent]:
        yield ToolCallDelta(0, "c1", "__finish__", '{"title": "Ha')
        await until_told()
        yield ToolCallDelta(0, "", "", 'lf", "points": ["whole"]}')
        yield Completed((finish(title="Half", points=["whole"]),), model=request.model)


def agents() -> list[Agent]:
    return [Agent("slow", Slow()), Agent("outliner", SlowOutline(), output=Outline)]


if __name__ == "__main__":
    run_worker(agents())
