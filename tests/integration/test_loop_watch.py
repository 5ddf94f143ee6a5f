"""A call that blocks its worker's event loop again and again ends with an error; the other runs go on."""

from __future__ import annotations

import logging
import time
from datetime import timedelta
from typing import Any

import pytest

from perdure import Agent
from perdure.errors import BadRequestError
from perdure.testing import ScriptedProvider
from perdure.workflows import activity_options
from tests.support.engine import Engine

pytestmark = pytest.mark.server


async def test_a_call_that_blocks_the_loop_twice_fails_and_says_so(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "perdure.worker")
    monkeypatch.setattr(activity_options, "HEARTBEAT_TIMEOUT", timedelta(seconds=1))
    attempts = 0

    def block(_: Any) -> str:
        nonlocal attempts
        attempts += 1
        time.sleep(4)  # stands for work of the CPU, in a provider's code on the loop
        raise BadRequestError("no")

    agents = [Agent("poison", ScriptedProvider(block)), Agent("other", ScriptedProvider(lambda _: "fine"))]
    async with engine.served(*agents) as client:
        run = await client.start("poison", "go")
        others = [await client.start("other", "go") for _ in range(3)]
        assert [(await other.result()).text for other in others] == ["fine"] * 3
        with pytest.raises(Exception, match="has blocked the event loop of its worker 2 times") as failed:
            await run.result()
    assert "the model call of agent poison" in str(failed.value)
    assert attempts == 2
    blocks = [record.getMessage() for record in caplog.records if "blocks the event loop" in record.getMessage()]
    assert len(blocks) >= 2
    assert "test_loop_watch.py" in blocks[0], "the stack at that moment"
