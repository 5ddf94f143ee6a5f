"""The commands that start, show, steer and end runs, in this process. Processes: test_cli_processes.py."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from perdure import Agent, tool
from perdure.errors import AuthenticationError
from perdure.ports.model import ModelRequest
from perdure.testing import ScriptedProvider, call
from tests.support.checks import users
from tests.support.commands import Commands
from tests.support.engine import Engine
from tests.support.scripts import Gate, replied
from tests.support.wait import eventually


@pytest.fixture
def cli(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> Commands:
    return Commands(engine, monkeypatch)


def fail(request: ModelRequest) -> str:
    raise AuthenticationError("the key is wrong")


greeter = Agent("greeter", ScriptedProvider(lambda _: "Hello."))
failing = Agent("failing", ScriptedProvider(fail))


def waiting_at(gate: Gate) -> Agent:
    """An agent whose tool waits at ``gate``; then it repeats what it was told."""

    @tool(name="gate")
    async def wait(n: int) -> str:
        """Wait until the test opens it."""
        await gate()
        return f"passed {n}"

    def reply(request: ModelRequest) -> Any:
        if not replied(request):
            return ["I wait.", call("gate", n=1)]
        return "Heard: " + " | ".join(users(request.messages))

    return Agent("waiter", ScriptedProvider(reply), tools=[wait])


async def test_run_prints_the_answer_alone_on_stdout(engine: Engine, cli: Commands) -> None:
    async with engine.served(greeter, failing):
        text = await cli("run", "greeter", "Hi")
        assert (text.code, text.out) == (0, "Hello.\n")
        assert "run greeter-" in text.err
        as_json = await cli("run", "greeter", "Hi", "--id", "named", "--context", '{"user": "7"}', "--json")
        assert as_json.code == 0
        assert as_json.json["content"] == "Hello."
        assert [message["role"] for message in as_json.json["messages"]] == ["user", "assistant"]
        again = await cli("run", "greeter", "Hi", "--id", "named")
        assert again.code == 1
        assert "there is a run 'named' already" in again.err


async def test_a_failed_run_ends_with_1_and_its_error(engine: Engine, cli: Commands) -> None:
    async with engine.served(failing):
        failed = await cli("run", "failing", "Hi", "--id", "f-1")
        assert (failed.code, failed.out) == (1, "")
        assert "the key is wrong" in failed.err
        shown = await cli("show", "f-")
    assert shown.code == 0
    assert "failed: AuthenticationError: " in shown.out
    assert "the key is wrong" in shown.out


async def test_a_run_is_left_steered_listed_and_shown(engine: Engine, cli: Commands) -> None:
    gate = Gate()
    async with engine.served(waiting_at(gate)):
        run_id = (await cli("run", "waiter", "Are you there?", "-d", "--tenant", "acme", "--user", "ana")).out.strip()
        assert run_id.startswith("@acme/waiter-")
        await eventually(lambda: gate.entered)
        for _ in range(2):
            told = await cli("inject", run_id[:-2], "Be quick.", "--message-id", "m-1")
            assert (told.code, told.out) == (0, f"the message joins {run_id} at its next iteration\n")
        shown = await cli("show", run_id)
        assert "iteration 1 · tools: gate · 1 message waiting to be read" in shown.out
        gate.open()
        assert (await cli("wait", run_id)).out == "Heard: Are you there? | Be quick.\n"
        text = (await cli("show", run_id)).out
        assert f"{run_id}  completed  agent waiter" in text
        assert "[1]     I wait.\n        → gate(n=1)  call_1\n        ← passed 1\n" in text
        assert (await cli("list", "-q", "--status", "completed", "--agent", "waiter")).out == f"{run_id}\n"
        header, row = (await cli("list")).out.splitlines()
        assert header.split() == ["ID", "AGENT", "STATUS", "STARTED", "TOOK", "FIRST", "MESSAGE,", "ERROR"]
        assert row.split()[:3] == [run_id, "waiter", "completed"]
        assert (await cli("list", "-q", "--tenant", "acme", "--user", "ana")).out == f"{run_id}\n"
        others = ["--agent", "never-started"], ["--status", "failed"], ["--tenant", "other"], ["--user", "ben"]
        for other in others:
            assert (await cli("list", *other, "-q")).out == ""
        (first,) = (await cli("list", "--agent", "waiter", "-o", "json", "--limit", "1")).json
        fields = {"id", "agent", "status", "started", "closed", "tenant", "user", "held_up"}
        assert set(first) == fields | {"first_message", "error_type", "error"}
        closed = await cli("inject", run_id, "Too late")
        assert closed.code == 1
        assert "has ended" in closed.err
        assert (await cli("cancel", run_id)).code == 1


async def test_cancel_waits_until_the_run_has_ended(engine: Engine, cli: Commands) -> None:
    gate = Gate()
    async with engine.served(waiting_at(gate)):
        run_id = (await cli("run", "waiter", "Hi", "-d", "-o", "json")).json["id"]
        await eventually(lambda: gate.entered)
        done = await cli("cancel", run_id, "--wait", "-o", "jsonl")
        assert done.code == 0
        assert done.json == {"id": run_id, "status": "cancelled"}
        shown = (await cli("show", run_id, "-o", "json")).json
    assert shown["status"]["state"] == "cancelled"
    assert shown["messages"][-1]["parts"][0]["call_id"] == shown["messages"][1]["parts"][1]["id"]


async def test_ids_by_their_beginnings(engine: Engine, cli: Commands) -> None:
    stem = uuid.uuid4().hex
    async with engine.served(greeter):
        for end in ("one", "two"):
            assert (await cli("run", "greeter", "Hi", "--id", f"{stem}-{end}")).code == 0
        assert (await cli("show", f"{stem}-t")).out.startswith(f"{stem}-two  completed")
        several = await cli("show", stem)
        assert several.code == 2
        assert f"{stem}-one, {stem}-two" in several.err
        for command in (["show"], ["inject"], ["cancel"], ["resume"]):
            gone = await cli(*command, "no-such-id", *(["hi"] if command == ["inject"] else []))
            assert gone.code == 3
            assert "there is no run" in gone.err
