"""A call that blocks its worker's event loop again and again ends with an error; the other runs go on."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import subprocess
import sys
import time
from typing import Any

import httpx
import pytest

from perdure import Agent
from perdure.calls.loop_watch import LoopBlock, LoopWatch, WatchedCall, watched
from perdure.errors import BadRequestError
from perdure.testing import ScriptedProvider
from tests.support.engine import Engine


@pytest.mark.fault("Borders", "A text has 30,000 letters, or tables of thousands of cells.")
@pytest.mark.server
# The SDK warns of the cancellation of an attempt that was lost, which it has ended meanwhile.
@pytest.mark.filterwarnings("ignore:Cannot find activity to cancel:UserWarning")
async def test_a_call_that_blocks_the_loop_twice_fails_and_says_so(
    engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "perdure.event_loop")
    attempts = 0

    def block(_: Any) -> str:
        nonlocal attempts
        attempts += 1
        time.sleep(4)  # stands for work of the CPU, in a provider's code on the loop
        raise BadRequestError("no")

    agents = [Agent("poison", ScriptedProvider(block)), Agent("other", ScriptedProvider(lambda _: "fine"))]
    async with engine.served(*agents, heartbeat=1 / 3) as client:
        run = await client.start("poison", "go")
        others = [await client.start("other", "go") for _ in range(3)]
        assert [(await other.result()).content for other in others] == ["fine"] * 3
        with pytest.raises(Exception, match="has blocked the event loop of its worker 2 times") as failed:
            await run.result()
    assert "the model call of agent poison" in str(failed.value)
    assert attempts == 2
    blocks = [record.getMessage() for record in caplog.records if "blocks the event loop" in record.getMessage()]
    blocks = [text for text in blocks if text.startswith("the model call of agent poison")]
    assert len(blocks) >= 2
    assert "test_loop_watch.py" in blocks[0], "the stack at that moment"


async def test_a_suspended_process_has_seen_no_block(caplog: pytest.LogCaptureFixture) -> None:
    """A process that stands still and comes back, as one that is stopped or killed, counts nothing: its clock has gone
    on, but its thread has not looked, and has used no CPU."""
    caplog.set_level(logging.WARNING, "perdure.event_loop")
    watch = LoopWatch()
    with watch.watching():
        helper = subprocess.Popen(  # starts at once
            ["/bin/sh", "-c", f"sleep 0.3; kill -STOP {os.getpid()}; sleep 2; kill -CONT {os.getpid()}"]
        )
        while helper.poll() is None:  # noqa: ASYNC110  # the loop is to go on beside it
            await asyncio.sleep(0.05)
    assert watch.longest < 1.0, "not the two seconds for which it stood still"


async def test_a_function_that_keeps_python_to_itself_is_named() -> None:
    recorded: list[tuple[WatchedCall, LoopBlock]] = []

    async def record(call: WatchedCall, block: LoopBlock) -> None:
        recorded.append((call, block))

    async def search() -> None:
        re.search(r"a+b", "a" * 40_000)  # seconds, in which no other thread runs

    watch = LoopWatch(record)
    with watch.watching():
        call = WatchedCall("run", None, "the model call of agent a", "workflow-run", "1", 1, 0.3)
        with watched(call):
            await asyncio.sleep(0.3)  # a probe is under way
            await search()
            await asyncio.sleep(0.3)
    [(recorded_call, block)] = recorded
    assert recorded_call is call
    assert block.function == "the model call of agent a"
    assert "in search" in block.stack
    assert watch.count >= 1


SLOW_SERVICE = """
import sys, time
from perdure import cli
from perdure.web import app

async def answer_slowly(request):
    time.sleep(1)  # as a renderer or a parser would that has no bound
    return await answer_alive(request)

answer_alive, app._answer_alive = app._answer_alive, answer_slowly
sys.argv[1:] = ["serve", "--dev", "--port", "0"]
cli.main()
"""


@pytest.mark.server
async def test_a_request_that_blocks_a_replica_is_logged_with_its_stack(engine: Engine) -> None:
    env = {**os.environ, "TEMPORAL_ADDRESS": engine.address, "PERDURE_STORE_URL": str(engine.store_url)}
    env["PERDURE_HOME"] = str(engine.folder / "home")
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", SLOW_SERVICE), env=env, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    said = ""

    async def read_until(pattern: str) -> str:
        nonlocal said
        while (found := re.search(pattern, said)) is None:
            assert process.stdout is not None
            line = await process.stdout.readline()
            assert line, said
            said += line.decode()
        return found[1]

    try:
        url = await read_until(r"(http://[\d.]+:\d+)/v1")
        async with httpx.AsyncClient(base_url=url) as http:
            assert (await http.get("/healthz", timeout=30)).status_code == 200
        await read_until("(in answer_slowly)")
    finally:
        process.kill()
        await process.wait()
    assert "blocks the event loop of this process" in said
