"""What a worker finds wrong when it starts, and not in the middle of a run."""

from __future__ import annotations

from typing import Any

import pytest

from perdure import Agent, hook
from perdure.errors import DefinitionError
from perdure.testing.store import MemoryStore
from perdure.worker.engine import Engine


@hook("on_iteration", agents=["critic"])
def asks(step: Any) -> None:
    """Asks a person."""


async def test_a_hook_of_the_worker_that_asks_an_unknown_agent() -> None:
    engine = Engine([Agent("writer", "openai:gpt-5")], store=MemoryStore(), hooks=[asks])
    with pytest.raises(DefinitionError, match="the hook asks of the worker calls agent 'critic'") as failed:
        async with engine.serve():
            pass
    assert "it serves: writer" in str(failed.value)
    engine.agents.add(Agent("critic", "openai:gpt-5"))  # as a folder does
    async with engine.serve():
        pass


@pytest.mark.parametrize("cache", [-1, 1.5, True, "64MB", None])
def test_a_cache_that_is_no_number_of_bytes_is_refused(cache: Any) -> None:
    with pytest.raises(DefinitionError, match="cache must be a number of bytes"):
        Engine(store=MemoryStore(), cache=cache)
