"""The commands through real processes, on a real server."""

from __future__ import annotations

import os
import signal
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.cli import Cli, Command
from tests.support.wait import eventually

pytestmark = pytest.mark.server

AGENTS = '''
import os
import time
from pathlib import Path

from perdure import Agent, ToolContext, tool
from perdure.errors import AuthenticationError
from perdure.testing import ScriptedProvider, call

FOLDER = Path(os.environ["CLI_TEST_FOLDER"])


@tool
def gate(ctx: ToolContext, n: int) -> str:
    """Wait until the test opens it."""
    with (FOLDER / "entered").open("a") as entered:
        entered.write("x")
    while not (FOLDER / "open").exists() and not ctx.cancelled:
        time.sleep(0.02)
    return f"passed {n}"


def wait_then_answer(request):
    if not any(message.role == "assistant" for message in request.messages):
        return ["I wait.", call("gate", n=1)]
    return "Heard: " + " | ".join(message.text for message in request.messages if message.role == "user")


def fail(request):
    raise AuthenticationError("the key is wrong")


waiter = Agent("waiter", ScriptedProvider(wait_then_answer), tools=[gate])
greeter = Agent("greeter", ScriptedProvider(lambda request: "Hello."))
failing = Agent("failing", ScriptedProvider(fail))
'''


@pytest.fixture
async def cli(temporal_address: str, tmp_path: Path) -> AsyncIterator[Cli]:
    """Commands in a folder with ``agents.py``, on a task queue and a store of this test's own."""
    (tmp_path / "agents.py").write_text(AGENTS)
    cli = Cli(
        tmp_path,
        {
            "TEMPORAL_ADDRESS": temporal_address,
            "PERDURE_HOME": str(tmp_path / "home"),
            "PERDURE_STORE_URL": f"sqlite:///{tmp_path / 'store.db'}",
            "PERDURE_TASK_QUEUE": f"cli-{uuid.uuid4().hex[:8]}",
            "CLI_TEST_FOLDER": str(tmp_path),
        },
    )
    yield cli
    await cli.close()


async def served(cli: Cli, *arguments: str) -> Command:
    worker = await cli.spawn("worker", "agents.py", *arguments)
    await worker.until("serving failing, greeter, waiter on queue ")
    return worker


async def in_tool(cli: Cli) -> None:
    await eventually(lambda: (cli.folder / "entered").exists())


async def ended(cli: Cli, id: str) -> dict[str, Any]:
    """What ``show`` says of the run once it has ended."""

    async def look() -> dict[str, Any] | None:
        shown: dict[str, Any] = (await cli("show", id, "-o", "json")).json
        return None if shown["status"]["state"] in ("running", "waiting") else shown

    return await eventually(look, every=0.2)


async def test_run_prints_the_answer_alone_on_stdout(cli: Cli) -> None:
    await served(cli)
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


async def test_a_failed_run_ends_with_1_and_its_error(cli: Cli) -> None:
    await served(cli)
    failed = await cli("run", "failing", "Hi", "--id", "f-1")
    assert (failed.code, failed.out) == (1, "")
    assert "the key is wrong" in failed.err
    shown = await cli("show", "f-")
    assert shown.code == 0
    assert "failed: AuthenticationError: " in shown.out
    assert "the key is wrong" in shown.out


async def test_run_serves_a_file_itself(cli: Cli) -> None:
    del cli.env["PERDURE_TASK_QUEUE"]
    done = await cli("run", "greeter", "Hi", "--file", "agents.py")
    assert (done.code, done.out) == (0, "Hello.\n")
    unknown = await cli("run", "nobody", "Hi", "--file", "agents.py")
    assert unknown.code == 2
    assert "It has: waiter, greeter, failing" in unknown.err


async def test_a_run_is_left_steered_listed_and_shown(cli: Cli) -> None:
    await served(cli)
    run_id = (await cli("run", "waiter", "Are you there?", "-d")).out.strip()
    assert run_id.startswith("waiter-")
    await in_tool(cli)
    for _ in range(2):
        told = await cli("inject", run_id[:-2], "Be quick.", "--message-id", "m-1")
        assert (told.code, told.out) == (0, f"the message joins {run_id} at its next iteration\n")
    shown = await cli("show", run_id)
    assert "iteration 1 · tools: gate · 1 message waiting to be read" in shown.out
    (cli.folder / "open").touch()
    assert (await ended(cli, run_id))["messages"][-1]["parts"][0]["text"] == "Heard: Are you there? | Be quick."
    text = (await cli("show", run_id)).out
    assert f"{run_id}  completed  agent waiter" in text
    assert "[1]     I wait.\n        → gate(n=1)\n        ← passed 1\n" in text
    await eventually(lambda: _listed(cli, "--status", "completed", "--agent", "waiter"))
    assert run_id in (await cli("list", "-q")).out.splitlines()
    assert (await cli("list", "--agent", "never-started", "-q")).out == ""
    first = (await cli("list", "--agent", "waiter", "-o", "json", "--limit", "1")).json[0]
    assert {"id", "agent", "status", "started", "closed"} == set(first)
    closed = await cli("inject", run_id, "Too late")
    assert closed.code == 1
    assert "has ended" in closed.err
    assert (await cli("cancel", run_id)).code == 1


async def _listed(cli: Cli, *arguments: str) -> str:
    return (await cli("list", "-q", *arguments)).out


async def test_cancel_waits_until_the_run_has_ended(cli: Cli) -> None:
    await served(cli)
    run_id = (await cli("run", "waiter", "Hi", "-d", "-o", "json")).json["id"]
    await in_tool(cli)
    done = await cli("cancel", run_id, "--wait", "-o", "jsonl")
    assert done.code == 0
    assert done.json == {"id": run_id, "status": "cancelled"}
    shown = (await cli("show", run_id, "-o", "json")).json
    assert shown["status"]["state"] == "cancelled"
    assert shown["messages"][-1]["parts"][0]["call_id"] == shown["messages"][1]["parts"][1]["id"]


async def test_ids_by_their_beginnings(cli: Cli) -> None:
    await served(cli)
    stem = uuid.uuid4().hex
    for end in ("one", "two"):
        await cli("run", "greeter", "Hi", "--id", f"{stem}-{end}")
    await eventually(lambda: _resolves(cli, f"{stem}-t"))
    several = await cli("show", stem)
    assert several.code == 2
    assert f"{stem}-one, {stem}-two" in several.err
    for command in (["show"], ["inject"], ["cancel"], ["resume"]):
        gone = await cli(*command, "no'such\\id", *(["hi"] if command == ["inject"] else []))
        assert gone.code == 3
        assert "there is no run" in gone.err


async def _resolves(cli: Cli, prefix: str) -> bool:
    return (await cli("show", prefix)).code == 0


async def test_a_draining_worker_finishes_the_tool_that_runs(cli: Cli) -> None:
    worker = await served(cli)
    run_id = (await cli("run", "waiter", "Hi", "-d")).out.strip()
    await in_tool(cli)
    worker.send(signal.SIGTERM)
    await worker.until("SIGTERM: finishing what runs")
    assert worker.process.poll() is None
    (cli.folder / "open").touch()
    assert await worker.ended() == 0
    await served(cli)
    shown = await ended(cli, run_id)
    assert [part["content"] for part in shown["messages"][2]["parts"]] == ["passed 1"]
    assert (cli.folder / "entered").read_text() == "x", "it ran once"


async def test_a_second_signal_ends_at_once(cli: Cli) -> None:
    worker = await served(cli)
    await cli("run", "waiter", "Hi", "-d")
    await in_tool(cli)
    worker.send(signal.SIGINT)
    await worker.until("SIGINT: finishing")
    worker.send(signal.SIGTERM)
    assert await worker.ended() == 128 + signal.SIGTERM


async def test_ctrl_c_leaves_the_run_running(cli: Cli) -> None:
    await served(cli)
    command = await cli.spawn("run", "waiter", "Hi", "--id", "kept")
    await command.until("tools: gate")
    command.send(signal.SIGINT)
    assert await command.ended() == 130
    assert "run kept goes on" in command.output
    assert "perdure cancel kept" in command.output
    (cli.folder / "open").touch()
    assert (await ended(cli, "kept"))["status"]["state"] == "completed"


async def test_without_a_worker_run_says_so_and_the_run_stays(cli: Cli) -> None:
    alone = await cli("run", "greeter", "Hi", "--id", "patient")
    assert alone.code == 4
    assert "no worker has polled task queue" in alone.err
    assert "perdure worker FILE --task-queue" in alone.err
    await served(cli)
    assert (await ended(cli, "patient"))["status"]["state"] == "completed"


async def test_without_a_server_commands_end_with_4(cli: Cli) -> None:
    cli.env["TEMPORAL_ADDRESS"] = "127.0.0.1:1"
    for command in (["list"], ["show", "x"], ["run", "greeter", "Hi"], ["worker", "agents.py"]):
        done = await cli(*command)
        assert done.code == 4, command
        assert "no Temporal server at 127.0.0.1:1" in done.err


async def test_a_worker_refuses_a_broken_file(cli: Cli) -> None:
    (cli.folder / "agents.py").write_text("x = 1 / 0\n")
    done = await cli("worker", "agents.py")
    assert done.code == 2
    assert done.err.startswith("error: agents.py:1: ZeroDivisionError: division by zero")
    assert "Traceback" not in done.err


async def test_dev_reloads_and_survives_a_broken_file(cli: Cli) -> None:
    file = cli.folder / "agents.py"
    dev = await cli.spawn("dev", "agents.py")
    await dev.until("serving")
    await dev.until("perdure run waiter")
    file.write_text(AGENTS.replace("Hello.", "Good day."))
    await dev.until("reloaded")
    assert (await cli("run", "greeter", "Hi")).out == "Good day.\n"
    file.write_text("def broken(:\n")
    await dev.until("agents.py:1: SyntaxError")
    await dev.until("the previous version goes on serving")
    assert (await cli("run", "greeter", "Hi")).out == "Good day.\n"
    # Mended by a module that was not there.
    file.write_text("import words\n" + AGENTS.replace('"Hello."', "words.GREETING"))
    await dev.until("ModuleNotFoundError")
    (cli.folder / "words.py").write_text("GREETING = 'Welcome.'\n")
    await dev.until("reloaded")
    assert (await cli("run", "greeter", "Hi")).out == "Welcome.\n"
    (cli.folder / "words.py").write_text("GREETING = 'Welcome back.'\n")
    await dev.until("reloaded")
    assert (await cli("run", "greeter", "Hi")).out == "Welcome back.\n"
    dev.send(signal.SIGINT)
    assert await dev.ended() == 0


async def test_dev_begins_with_a_broken_file(cli: Cli) -> None:
    file = cli.folder / "agents.py"
    file.write_text("import\n")
    dev = await cli.spawn("dev", "agents.py")
    await dev.until("nothing is served")
    file.write_text(AGENTS)
    await dev.until("serving")
    assert (await cli("run", "greeter", "Hi")).out == "Hello.\n"


async def test_a_killed_dev_leaves_no_worker(cli: Cli) -> None:
    dev = await cli.spawn("dev", "agents.py")
    await dev.until("serving")
    children = Path(f"/proc/{dev.process.pid}/task/{dev.process.pid}/children")
    if not children.exists():
        pytest.skip("needs /proc")
    (worker,) = map(int, children.read_text().split())
    dev.process.kill()
    await eventually(lambda: _gone(worker))


def _gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/stat").read_text().split()[2] == "Z"
    except (ProcessLookupError, FileNotFoundError):
        return True
