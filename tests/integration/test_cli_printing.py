"""What models, tools, users and other clients wrote reaches the operator's terminal as text, whatever it is."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from temporalio.client import Schedule as TemporalSchedule
from temporalio.client import ScheduleActionStartWorkflow, ScheduleSpec

from perdure import Agent, File, tool
from perdure.errors import AuthenticationError
from perdure.ports.model import ModelRequest
from perdure.testing import ScriptedProvider, call
from tests.support.checks import steers
from tests.support.commands import Commands
from tests.support.engine import Engine
from tests.support.wait import eventually

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


class Watched:
    """Commands, each of which must print nothing that steers a terminal."""

    def __init__(self, cli: Commands) -> None:
        self._cli = cli
        self.printed = ""

    async def __call__(self, *arguments: str, code: int = 0) -> str:
        done = await self._cli(*arguments)
        assert done.code == code, (arguments, done.code, done.err)
        said = done.out + done.err
        assert not steers(said), arguments
        self.printed += said
        return said

    async def one_line(self, *arguments: str, code: int = 0) -> None:
        """A command that prints no text of several lines as it is."""
        said = await self(*arguments, code=code)
        assert not any(line.startswith("FORGED") for line in said.splitlines()), (arguments, said)


@pytest.fixture
def watched(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> Watched:
    return Watched(Commands(engine, monkeypatch))


async def test_no_command_lets_through_what_steers_a_terminal(engine: Engine, watched: Watched) -> None:
    main, failed, other = f"a{HOSTILE}", f"b{HOSTILE}", "c"
    reader = Agent("reader", ScriptedProvider(reply), tools=[look, fetch, pay])
    async with engine.served(reader, Agent("failing", ScriptedProvider(fail))) as client:
        # perdure gives no such id, but a plain client of Temporal does; the file comes with a message of its own
        for run_id, agent in ((main, "reader"), (failed, "failing")):
            start = {"agent": agent, "message": {"content": f"Go {HOSTILE}", "by": f"ana{HOSTILE}"}}
            await client.temporal.start_workflow("AgentWorkflow", start, id=run_id, task_queue=client.task_queue)
        run = client.run(main)
        await run.inject([f"Look {HOSTILE}", File(b"x", name=HOSTILE)], by=f"ana{HOSTILE}")
        pending = await eventually(lambda: _pending(client, main))

        await watched.one_line("list")
        await watched.one_line("approvals")
        await watched("events", main)
        await watched.one_line("show", f"nobody{HOSTILE}", code=3)
        await watched("wait", failed, code=1)
        await watched.one_line("inject", main, f"and {HOSTILE}", "--by", f"bea{HOSTILE}")
        await watched.one_line("approve", main, pending, "--by", f"bea{HOSTILE}", "--comment", HOSTILE)
        await watched.one_line("wait", main, "--turn", f"none{HOSTILE}", code=3)
        assert "Done" in await watched("wait", main)
        await run.result()
        for shown in ("show", "events"):
            for form in (), ("-o", "json"), ("-o", "jsonl"):
                await watched(shown, main, *form)
        await watched("show", main, "--full")
        await watched.one_line("events", failed)
        await watched.one_line("fork", main, HOSTILE, "--id", f"c{HOSTILE}", code=1)
        await watched.one_line("fork", main, HOSTILE, "--id", other)
        await watched("diff", main, other)
        await watched("list", "-o", "jsonl")
    # All of it was there to be printed.
    for seen in ("\\x1b[2J", "\\x9b31m", "\\u202e", "\\r", "ana", "bea", "cat\\x1b", "no key", "fetched"):
        assert seen in watched.printed


async def _pending(client: Any, id: str) -> str | None:
    return next((one.call_id for one in await client.approvals() if one.run_id == id), None)


@pytest.mark.slow
@pytest.mark.server
async def test_nor_of_what_other_clients_left_on_the_server(engine: Engine, watched: Watched) -> None:
    name = f"odd-{uuid.uuid4().hex[:8]}"
    ended, waiting, scheduled = (f"{name}-{one}{HOSTILE}" for one in "abc")
    start = {"agent": f"gone{HOSTILE}", "message": HOSTILE}
    async with engine.served(Agent("failing", ScriptedProvider(fail))) as client:
        await client.temporal.start_workflow("AgentWorkflow", start, id=waiting, task_queue=f"nobody{HOSTILE}")
        action = ScheduleActionStartWorkflow("AgentWorkflow", start, id=name, task_queue="nobody")
        schedule = TemporalSchedule(action=action, spec=ScheduleSpec())
        made = await client.temporal.create_schedule(scheduled, schedule)
        failing = {**start, "agent": "failing"}
        await client.temporal.start_workflow("AgentWorkflow", failing, id=ended, task_queue=client.task_queue)
        run = client.run(ended)
        with pytest.raises(AuthenticationError):
            await run.result()

        await watched.one_line("show", waiting)
        await watched.one_line("show", f"no'such\\id{HOSTILE}", code=3)  # looked for by a query of the server's
        await watched.one_line("list")
        await watched.one_line("schedule", "list")
        await watched.one_line("schedule", "show", scheduled)
        await watched("replay", ended)
        await watched.one_line("cancel", waiting)
        # No worker is there to cancel it, and without PerdureAgent it would be in the inbox of every agent.
        await client.temporal.get_workflow_handle(waiting).terminate()
        await made.delete()
    assert "gone\\x1b[2J" in watched.printed
