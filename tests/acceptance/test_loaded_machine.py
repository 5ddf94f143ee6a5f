"""On a machine whose CPUs, memory and disk are all in use, no worker is taken for lost.

Needs Debian's stress-ng. ``TEST_STRESS_SECONDS`` is how long it lasts, 600 by default. Heartbeats are as by default.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from perdure import Run
from perdure.types.limits import HEARTBEAT_SECONDS
from tests.servers.model_server import Call, OpenAIServer, Reply
from tests.support.engine import Engine
from tests.support.left_out import leave_out

pytestmark = [pytest.mark.server, pytest.mark.slow, pytest.mark.alone]

SECONDS = float(os.environ.get("TEST_STRESS_SECONDS", "600"))
RUNS = 20
CALL_SECONDS = 3 * HEARTBEAT_SECONDS + 1
"""Of a model call, and of a tool: longer than the timeout, so that each needs its heartbeats."""


@contextlib.contextmanager
def stressed(folder: Path) -> Iterator[None]:
    """Four processes of arithmetic for each CPU, and some that switch, write and use memory."""
    if (program := shutil.which("stress-ng")) is None:
        why = "no stress-ng on PATH; apt-get install stress-ng"
        leave_out("heartbeats on a loaded machine", why, required_by="PERDURE_REQUIRE_STRESS_NG")
    cpus = 4 * (os.cpu_count() or 1)
    load = ["--cpu", str(cpus), "--switch", "2", "--vm", "1", "--vm-bytes", "256M", "--hdd", "1", "--hdd-bytes", "64M"]
    stress = subprocess.Popen([program, *load, "--temp-path", str(folder), "--quiet"])
    try:
        yield
        assert stress.poll() is None, "it has ended by itself"
    finally:
        stress.terminate()
        stress.wait(60)


@pytest.mark.timeout(SECONDS + 600)
async def test_no_worker_is_taken_for_lost(engine: Engine) -> None:
    until = time.monotonic() + SECONDS

    def rule(request: dict[str, Any]) -> Reply:
        n = sum(message["role"] == "assistant" for message in request["messages"])
        if time.monotonic() > until:
            return Reply(text="Done.", delay=CALL_SECONDS)
        return Reply(calls=[Call("look", {"n": str(n)}, id=f"call_{n}")], delay=CALL_SECONDS)

    with stressed(engine.folder):
        async with OpenAIServer(rule) as server:
            settings = {"TEST_MODEL_URL": server.base_url, "TEST_TOOL_SECONDS": str(CALL_SECONDS)}
            await engine.process("counting", PERDURE_HEARTBEAT=str(HEARTBEAT_SECONDS), **settings)
            client = await engine.client()
            runs = [await client.start("counting", "Go.") for _ in range(RUNS)]
            responses = await asyncio.gather(*(run.result() for run in runs))
        load = os.getloadavg()[0]
    attempts = Counter[int]()
    for run in runs:
        attempts.update(await read_attempts(run))
    print(
        f"{attempts.total()} calls of {CALL_SECONDS:g} s in {SECONDS:g} s, attempts {dict(attempts)}, load {load:.1f}"
    )
    assert [response.content for response in responses] == ["Done."] * RUNS
    assert set(attempts) == {1}, "a worker that was there has been taken for lost"


async def read_attempts(run: Run) -> list[int]:
    """The last attempt of each call."""
    history = await run.handle.fetch_history()
    return [
        event.activity_task_started_event_attributes.attempt
        for event in history.events
        if event.HasField("activity_task_started_event_attributes")
    ]
