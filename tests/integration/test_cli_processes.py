"""What only processes show of the commands: signals, ``--file``, a worker that drains, no server and no worker."""

from __future__ import annotations

import asyncio
import signal
import uuid
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.cli import PERDURE, Cli, Command, talking
from tests.support.wait import eventually

NO_SERVER = "127.0.0.1:1"


@pytest.fixture
async def cli(temporal_address: str, tmp_path: Path) -> AsyncIterator[Cli]:
    """Commands in a folder with the talker's ``agents.py``, on a task queue of this test's own."""
    async with talking(temporal_address, tmp_path) as cli:
        cli.env["PERDURE_TASK_QUEUE"] = f"cli-{uuid.uuid4().hex[:8]}"
        yield cli


@pytest.fixture
async def unserved(tmp_path: Path) -> AsyncIterator[Cli]:
    """The same, without a server."""
    async with talking(NO_SERVER, tmp_path) as cli:
        yield cli


@pytest.fixture
def named() -> str:
    return f"talk-{uuid.uuid4().hex[:8]}"


async def start_worker(cli: Cli) -> Command:
    worker = await cli.spawn("worker", "agents.py")
    await worker.until("serving desk, planner, shower, slow, talker on queue ")
    return worker


async def in_tool(cli: Cli) -> None:
    await eventually(lambda: (cli.folder / "entered").exists())


@pytest.mark.server
async def test_run_and_chat_serve_a_file_themselves(cli: Cli, named: str) -> None:
    del cli.env["PERDURE_TASK_QUEUE"]
    look = ("shower", "Look", "--file", "agents.py")
    done = await cli("run", *look, "--context", '{"name": "Ana"}')
    assert (done.code, done.out) == (0, "the file's resources, Ana\n")
    chat = await cli("chat", *look, "--context", '{"name": "Bea"}')
    assert (chat.code, chat.out) == (0, "the file's resources, Bea\n")
    for command in ("run", "chat"):  # before anything is begun
        wrong = await cli(command, *look, "--context", '{"nam": "Ana"}', "--id", named)
        assert (wrong.code, "name" in wrong.err) == (2, True)
    unknown = await cli("run", "nobody", "Hi", "--file", "agents.py")
    assert unknown.code == 2
    assert "It has: talker, shower, planner, slow" in unknown.err
    wrong_input = await cli("run", "planner", "--input", '{"town": "Oslo"}', "--file", "agents.py", "--id", named)
    assert (wrong_input.code, "city" in wrong_input.err) == (2, True)
    assert (await cli("show", named)).code == 3


@pytest.mark.server
async def test_signals_leave_the_run_and_drain_the_worker(cli: Cli, named: str) -> None:
    worker = await start_worker(cli)
    command = await cli.spawn("run", "talker", "Please wait", "--id", named)
    await command.until("tools: gate")
    command.send(signal.SIGINT)
    assert await command.ended() == 130
    assert f"run {named} goes on" in command.output
    assert f"perdure cancel {named}" in command.output

    worker.send(signal.SIGTERM)
    await worker.until("SIGTERM: finishing what runs")
    assert worker.process.poll() is None
    (cli.folder / "open").touch()
    assert await worker.ended() == 0
    worker = await start_worker(cli)
    assert (await cli("wait", named)).out == "1: 'Please wait'\n"
    assert (cli.folder / "entered").read_text() == "x", "the tool ran once"

    for left in ("entered", "open"):
        (cli.folder / left).unlink()
    followed = await cli.spawn("run", "talker", "Do wait", "--id", f"{named}-2", "--follow")
    await followed.until("I wait.")
    followed.send(signal.SIGINT)
    assert await followed.ended() == 130
    assert f"run {named}-2 goes on" in followed.output
    await in_tool(cli)
    followers = [await cli.spawn("events", f"{named}-2", "-f"), await cli.spawn("wait", f"{named}-2")]
    for follower, text in zip(followers, ("→ gate(n=1)", "tools: gate"), strict=True):
        await follower.until(text)
        follower.send(signal.SIGINT)
        assert await follower.ended() == 130

    worker.send(signal.SIGINT)
    await worker.until("SIGINT: finishing")
    worker.send(signal.SIGTERM)
    assert await worker.ended() == 128 + signal.SIGTERM, "a second signal ends it at once"


@pytest.mark.server
async def test_without_a_worker_it_is_said_and_the_run_stays(cli: Cli, named: str) -> None:
    run, sent, chat = await asyncio.gather(
        cli("run", "talker", "Hi", "--id", named),
        cli("send", f"{named}-2", "Hello", "--agent", "talker"),
        cli("chat", "talker", stdin="Hello\n"),
    )
    for alone in (run, sent, chat):
        assert alone.code == 4
        assert f"no worker has polled task queue '{cli.env['PERDURE_TASK_QUEUE']}'" in alone.err
    assert "perdure worker FILE --task-queue" in run.err
    assert "--message-id" in sent.err
    await start_worker(cli)
    assert (await cli("wait", named)).out == "1: 'Hi'\n"


async def test_without_a_server_commands_end_with_4(unserved: Cli) -> None:
    for command in (["list"], ["show", "x"], ["run", "talker", "Hi"]):
        done = await unserved(*command)
        assert done.code == 4, command
        assert f"no Temporal server at {NO_SERVER}" in done.err


async def test_a_worker_refuses_a_broken_file(unserved: Cli) -> None:
    (unserved.folder / "agents.py").write_text("x = 1 / 0\n")
    done = await unserved("worker", "agents.py")
    assert done.code == 2
    assert done.err.startswith("error: agents.py:1: ZeroDivisionError: division by zero")
    assert "Traceback" not in done.err


SLOW_TO_LOAD = """
import sys, time

class Slow:
    def find_spec(self, name, path=None, target=None):
        if name in ("temporalio.client", "sqlite3"):
            time.sleep(1.1)

sys.meta_path.insert(0, Slow())
"""


@pytest.mark.server
async def test_completion_of_a_machine_that_is_slow_to_load_modules(cli: Cli, named: str) -> None:
    """In a process that begins with nothing loaded."""
    done = await cli("run", "talker", "Hi", "--id", named, "-d")
    assert done.code == 0, done.err
    (cli.folder / "sitecustomize.py").write_text(SLOW_TO_LOAD)
    words = {"COMP_WORDS": f"perdure show {named[:8]}", "COMP_CWORD": "2", "_PERDURE_COMPLETE": "complete_bash"}
    path = f"{cli.folder}:{Path(__file__).parent.parent.parent}"

    async def completed() -> str:
        process = await asyncio.create_subprocess_exec(
            *PERDURE,
            env={**cli.env, **words, "PYTHONPATH": path},
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        out, err = await process.communicate()
        assert err == b""
        return out.decode()

    assert (await eventually(completed)).split() == [named]
