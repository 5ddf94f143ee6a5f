"""Any Temporal client can start and steer a run by plain JSON; a badly shaped start fails at once and says why."""

from __future__ import annotations

import asyncio
import json
import sys
import uuid
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import WorkflowFailureError
from temporalio.exceptions import ApplicationError

from perdure import Agent
from perdure.ports.model import ModelRequest
from perdure.testing import ScriptedProvider
from perdure.types.messages import ToolCallPart
from tests.support.checks import users
from tests.support.engine import ROOT, Engine

pytestmark = pytest.mark.server

SCRIPT = Path(__file__).with_name("plain_client.py")


async def test_a_program_without_perdure_starts_steers_and_reads_a_run(engine: Engine) -> None:
    def reply(request: ModelRequest) -> Any:
        said = users(request.messages)
        return " ".join(said) if said[-1] == "that is all" else ToolCallPart(id="", name="pass_time")

    async def pass_time() -> str:
        """Pass time."""
        await asyncio.sleep(0.02)
        return "ok"

    run_id = f"plain-{engine.task_queue}"
    agent = Agent("echo", ScriptedProvider(reply), tools=[pass_time], max_iterations=1000)
    async with engine.served(agent) as client:
        process = await asyncio.create_subprocess_exec(
            sys.executable,  # not forked: a forked one has imported perdure
            str(SCRIPT),
            engine.address,
            engine.task_queue,
            run_id,
            cwd=ROOT / "tests",
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        out, err = await process.communicate()
        assert process.returncode == 0, err.decode()
        messages = await client.run(run_id).transcript()
    told = json.loads(out.splitlines()[-1])  # before it the SDK may have warned of a busy machine
    assert told["result"]["content"] == "first second third that is all"
    assert told["result"]["context_id"] == run_id
    assert told["result"]["finish_reason"] == "stop"
    assert "messages" not in told["result"] or told["result"]["messages"] == []
    assert told["running"]["state"] == "running"
    assert told["running"]["agent"] == "echo"
    assert told["ended"]["state"] == "completed"
    assert users(messages) == ["first", "second", "third", "that is all"]


BAD_STARTS: list[tuple[list[Any], str]] = [
    ([], "JSON object"),
    ([None], "JSON object"),
    (["hello"], "JSON object"),
    ([7], "JSON object"),
    ([True], "JSON object"),
    ([["support", "hello"]], "JSON object"),
    ([b"\x00\x01"], "JSON object"),
    (["support", "hello"], ""),
    ([{}], "agent"),
    ([{"agent": ""}], "agent"),
    ([{"agent": 7}], "agent"),
    ([{"agent": None, "message": "hi"}], "agent"),
    ([{"agent": "support", "message": 7}], "message"),
    ([{"agent": "support", "message": {"text": "hi"}}], "message"),
    ([{"agent": "support", "messages": ["hi"]}], "messages"),
    ([{"agent": "support", "mode": "loop"}], "mode"),
    ([{"agent": "support", "context": "ana"}], "context"),
    ([{"agent": "support", "max_history_events": 1}], "max_history_events"),
    ([{"agent": "support", "max_history_events": "many"}], "max_history_events"),
    ([{"state": None}], "state"),
    ([{"state": {}}], "state"),
    ([{"state": {"schema_version": 1}}], "state"),
    ([{"state": {"schema_version": "1"}}], "state"),
]
"""Arguments of a start, and what the refusal names."""


async def test_badly_shaped_starts_fail_at_once(engine: Engine) -> None:
    temporal = await engine.temporal()

    async def refused(arguments: list[Any]) -> ApplicationError:
        handle = await temporal.start_workflow(
            "AgentWorkflow", args=arguments, id=f"bad-{uuid.uuid4().hex}", task_queue=engine.task_queue
        )
        with pytest.raises(WorkflowFailureError) as raised:
            await handle.result()
        assert isinstance(raised.value.cause, ApplicationError), arguments
        return raised.value.cause

    async with engine.served(Agent("support", ScriptedProvider([]))):
        causes = await asyncio.gather(*(refused(arguments) for arguments, _ in BAD_STARTS))
    for (arguments, named), cause in zip(BAD_STARTS, causes, strict=True):
        assert cause.type == "InvalidInputError", arguments
        assert named in cause.message, arguments
        assert len(arguments) > 1 or named == "state" or '{"agent": "' in cause.message, "no way out is shown"
