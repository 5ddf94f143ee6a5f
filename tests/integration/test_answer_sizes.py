"""Up to INLINE_BYTES an answer stands in history, where any client reads it; beyond, the store has it."""

from __future__ import annotations

from typing import Any

import pytest

from perdure import Agent
from perdure.testing import ScriptedProvider
from perdure.types.messages import INLINE_BYTES
from tests.support.engine import Engine


@pytest.mark.parametrize(("size", "whole"), [(INLINE_BYTES, True), (INLINE_BYTES + 1, False)])
async def test_an_answer_stands_in_history_as_long_as_it_fits(engine: Engine, size: int, whole: bool) -> None:
    text = "x" * size
    async with engine.served(Agent("author", ScriptedProvider([text]))) as client:
        run = await client.start("author", "Write.")
        response = await run.result()
        raw: dict[str, Any] = await run.handle.result()
    assert response.content == text
    assert (raw["content"] == text) is whole
    assert ("blob" in raw) is not whole
