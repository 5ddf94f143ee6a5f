"""An agent whose model is slow: it says half of its reply, and the rest when the file ``TEST_GO`` is there."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path

from perdure import Agent
from perdure.ports import Completed, ModelRequest, StreamEvent, TextDelta
from perdure.types.messages import TextPart
from tests.support.engine import run_worker
from tests.support.wait import eventually


class Slow:
    """Half, and after a while the other half."""

    async def stream(self, request: ModelRequest) -> AsyncIterator[StreamEvent]:
        yield TextDelta("Half ")
        go = Path(os.environ["TEST_GO"])
        await eventually(go.exists, deadline=60)
        yield TextDelta("whole.")
        yield Completed((TextPart(text="Half whole."),), model=request.model)


def agents() -> list[Agent]:
    return [Agent("slow", Slow())]


if __name__ == "__main__":
    run_worker(agents())
