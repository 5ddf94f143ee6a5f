"""What models, tools, users and other clients wrote reaches the operator's terminal as text, whatever it is."""

from __future__ import annotations

import asyncio
import contextlib
import io
import uuid
from typing import Any

import pytest
from temporalio.client import Schedule as TemporalSchedule
from temporalio.client import ScheduleActionStartWorkflow, ScheduleSpec

from perdure import Agent, File, tool
from perdure.cli import app
from perdure.cli.failure import report
from perdure.errors import AuthenticationError, PerdureError
from perdure.ports import ModelRequest
from perdure.testing import ScriptedProvider, call
from tests.support.checks import steers
from tests.support.engine import Engine
from tests.support.wait import eventually

pytestmark = [pytest.mark.server, pytest.mark.slow]

HOSTILE = "\x1b[2J\x1b]0;t\x07\x9b31m\u202e\u2066\r\x7f\nFORGED completed"


@tool
def look() -> str:
    """Look."""
    raise ValueError(f"look {HOSTILE}")


@tool
def fetch() -> list[Any]:
    """Fetch."""
    return [f"fetched {HOSTILE}", File(b"x", media_type="image/png", name=f"cat{HOSTILE}.png")]


@tool(needs_approval=True)
def pay(note: str) -> str:
    """Pay."""
    return f"paid {note}"


def fail(request: ModelRequest) -> str:
    raise AuthenticationError(f"no key {HOSTILE}")


def reply(request: ModelRequest) -> Any:
    if not any(message.tool_results for message in request.messages):
        return [f"Soon {HOSTILE}", call("look"), call("fetch"), call("pay", note=HOSTILE)]
    return f"Done {HOSTILE}"


def command(*arguments: str) -> int:
    """The command ``perdure`` in this process: thirty processes of their own take a minute of CPU."""
    try:
        return int(app(arguments, prog_name="perdure", standalone_mode=False) or 0)
    except PerdureError as error:
        return report(error)


async def test_no_command_lets_through_what_steers_a_terminal(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEMPORAL_ADDRESS", engine.address)
    monkeypatch.setenv("PERDURE_STORE_URL", str(engine.store_url))
    monkeypatch.setenv("PERDURE_TASK_QUEUE", engine.task_queue)
    name = f"odd-{uuid.uuid4().hex[:8]}"
    main, failed, waiting, other = (f"{name}-{one}{HOSTILE}" for one in "abcd")
    printed: list[str] = []

    async def look_at(*arguments: str, code: int = 0) -> str:
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            ended = await asyncio.to_thread(command, *arguments)
        assert ended == code, (arguments, ended, err.getvalue())
        for stream in (out.getvalue(), err.getvalue()):
            assert not steers(stream), arguments
            printed.append(stream)
        return out.getvalue() + err.getvalue()

    async def one_line(*arguments: str, **more: Any) -> None:
        """Of commands that print no text of several lines as it is."""
        said = await look_at(*arguments, **more)
        assert not any(line.startswith("FORGED") for line in said.splitlines()), (arguments, said)

    reader = Agent("reader", ScriptedProvider(reply), tools=[look, fetch, pay])
    async with engine.served(reader, Agent("failing", ScriptedProvider(fail))) as client:
        run = await client.start("reader", [f"Go {HOSTILE}", File(b"x", name=HOSTILE)], id=main, by=f"ana{HOSTILE}")
        await client.start("failing", HOSTILE, id=failed)
        start = {"agent": f"gone{HOSTILE}", "message": HOSTILE}
        await client.temporal.start_workflow("AgentWorkflow", start, id=waiting, task_queue=f"nobody{HOSTILE}")
        action = ScheduleActionStartWorkflow("AgentWorkflow", start, id=name, task_queue="nobody")
        schedule = TemporalSchedule(action=action, spec=ScheduleSpec())
        scheduled = await client.temporal.create_schedule(f"{name}{HOSTILE}", schedule)
        pending = await eventually(lambda: _pending(client, main))

        await one_line("list")
        await one_line("approvals")
        await look_at("events", main)
        await one_line("show", waiting)
        await one_line("show", f"nobody{HOSTILE}", code=3)
        await one_line("schedule", "list")
        await one_line("schedule", "show", f"{name}{HOSTILE}")
        await look_at("wait", failed, code=1)
        await one_line("inject", main, f"and {HOSTILE}", "--by", f"bea{HOSTILE}")
        await one_line("approve", main, pending, "--by", f"bea{HOSTILE}", "--comment", HOSTILE)
        await one_line("wait", main, "--turn", f"none{HOSTILE}", code=3)
        assert "Done" in await look_at("wait", main)
        await run.result()
        for shown in ("show", "events"):
            for form in (), ("-o", "json"), ("-o", "jsonl"):
                await look_at(shown, main, *form)
        await look_at("show", main, "--full")
        await one_line("events", failed)
        await one_line("fork", main, HOSTILE, "--id", other)
        await look_at("diff", main, other)
        await look_at("list", "-o", "jsonl")
        await look_at("replay", main, failed)
        await one_line("cancel", waiting, code=0)
        # Nobody is there to cancel it, and without PerdureAgent it would be in the inbox of every agent.
        await client.temporal.get_workflow_handle(waiting).terminate()
        await scheduled.delete()
    # All of it was there to be printed.
    said = "".join(printed)
    for seen in ("\\x1b[2J", "\\x9b31m", "\\u202e", "\\r", "ana", "bea", "cat\\x1b", "no key", "fetched"):
        assert seen in said


async def _pending(client: Any, id: str) -> str | None:
    return next((one.call_id for one in await client.approvals() if one.run_id == id), None)
