"""The commands that open, steer, await and end conversations, in processes of their own on a real server."""

from __future__ import annotations

import asyncio
import sys
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from perdure import Client
from tests.support.cli import Cli, talking
from tests.support.wait import eventually

pytestmark = pytest.mark.server


@pytest.fixture
async def cli(temporal_address: str, tmp_path: Path) -> AsyncIterator[Cli]:
    """Commands in a folder with the talker's ``agents.py``, and a worker that serves it."""
    async with talking(temporal_address, tmp_path) as cli:
        cli.env["PERDURE_TASK_QUEUE"] = f"cli-{uuid.uuid4().hex[:8]}"
        cli.env["PERDURE_USER"] = "ana"
        worker = await cli.spawn("worker", "agents.py")
        await worker.until("serving shower, talker on queue")
        yield cli


@pytest.fixture
def named() -> str:
    return f"talk-{uuid.uuid4().hex[:8]}"


async def shown(cli: Cli, run: str) -> dict[str, Any]:
    return (await cli("show", run, "-o", "json")).json


async def until_state(cli: Cli, run: str, *states: str) -> dict[str, Any]:
    async def look() -> dict[str, Any] | None:
        seen = await shown(cli, run)
        return seen if seen["status"]["state"] in states else None

    return await eventually(look, every=0.2)


async def in_the_gate(cli: Cli) -> None:
    await eventually(lambda: (cli.folder / "entered").exists())


async def test_send_opens_a_conversation_and_goes_on_with_it(cli: Cli, named: str) -> None:
    unknown = await cli("send", named, "Hello")
    assert unknown.code == 3
    first = await cli("send", named, "Hello", "--agent", "talker", "--wait")
    assert (first.code, first.out) == (0, "1: 'Hello'\n")
    second = await cli("send", named[:-2], "-", "--message-id", "m-2", stdin="Again")
    assert second.code == 0
    task = second.out.strip()
    assert (await cli("wait", named, "--turn", task)).out == "2: 'Hello' | 'Again'\n"
    repeated = (await cli("send", named, "Again", "--message-id", "m-2", "-o", "json")).json
    assert repeated == {"id": named, "task_id": task, "message_id": "m-2"}
    assert (await cli("wait", named, "-o", "jsonl")).json["content"] == "2: 'Hello' | 'Again'"
    assert (await cli("wait", named, "--turn", "never")).code == 3


async def test_close_ends_a_session_and_a_message_opens_it_again(cli: Cli, named: str) -> None:
    await cli("send", named, "Hello", "--agent", "talker", "--wait")
    closed = await cli("close", named, "--wait", "--by", "kim")
    assert (closed.code, closed.out) == (0, f"{named} is completed\n")
    assert (await cli("close", named)).code == 1
    done = await cli("resume", named)
    assert done.code == 1
    assert "has completed" in done.err
    assert (await cli("wait", named)).out == "1: 'Hello'\n"
    assert (await cli("send", named, "Again", "--wait")).out == "2: 'Hello' | 'Again'\n"


async def test_a_session_that_idles_closes_by_itself(cli: Cli, named: str) -> None:
    await cli("send", named, "Hello", "--agent", "talker", "--idle-timeout", "1s", "--wait")
    await until_state(cli, named, "completed")


async def test_interrupt_ends_the_turn_or_goes_on_with_a_message(cli: Cli, named: str) -> None:
    task = (await cli("send", named, "Please wait", "--agent", "talker")).out.strip()
    await in_the_gate(cli)
    stopped = await cli("interrupt", named)
    assert (stopped.code, stopped.out) == (0, f"{named} stops what it is at; its turn ends\n")
    assert (await cli("wait", named, "--turn", task, "-o", "json")).json["finish_reason"] == "interrupted"
    (cli.folder / "entered").unlink()
    task = (await cli("send", named, "Do wait")).out.strip()
    await in_the_gate(cli)
    assert (await cli("interrupt", named, "Go on", "-o", "json")).json == {"id": named, "interrupted": True}
    assert (await cli("wait", named, "--turn", task)).out == "3: 'Do wait' | 'Go on'\n"


async def test_a_failed_conversation_is_resumed_and_told_who_did_what(cli: Cli, named: str) -> None:
    failed = await cli("send", named, "fail", "--agent", "talker", "--wait")
    assert (failed.code, failed.out) == (1, "")
    assert "the key is wrong" in failed.err
    assert (await cli("wait", named)).code == 1
    again = await cli("resume", named, "-o", "json", "--by", "kim")
    assert again.json == {"id": named, "resumed": True, "was": "failed"}
    assert (await cli("wait", named)).code == 1, "it tries the same again, and fails the same way"
    text = await cli("resume", named)
    assert text.out == f"{named} was failed, and goes on from where it ended\n"
    await until_state(cli, named, "failed")
    assert (await cli("send", named, "Hello", "--wait")).out == "2: 'fail' | 'Hello'\n"


async def test_the_server_remembers_who_sent_it(cli: Cli, named: str) -> None:
    await cli("send", named, "Hello", "--agent", "talker", "--wait")
    await cli("send", named, "Again", "--wait", "--by", "kim")
    client = await Client.connect(address=cli.env["TEMPORAL_ADDRESS"])
    history = [event.SerializeToString() async for event in client.run(named).handle.fetch_history_events()]
    for user in (b"ana", b"kim"):
        assert any(b'"by":"%s"' % user in event for event in history)


async def test_without_a_worker_send_says_how_to_say_it_again(cli: Cli, named: str) -> None:
    alone = await cli("send", named, "Hello", "--agent", "talker", "--task-queue", named)
    assert alone.code == 4
    assert f"no worker has polled task queue '{named}'" in alone.err
    assert "--message-id" in alone.err


async def completed(cli: Cli, line: str) -> list[str]:
    """What a Tab behind ``line`` says."""
    words = {"COMP_WORDS": line, "COMP_CWORD": str(len(line.split(" ")) - 1), "_PERDURE_COMPLETE": "complete_bash"}
    cli.env |= words
    done = await cli()
    for name in words:
        del cli.env[name]
    assert done.err == ""
    return done.out.split()


async def test_completion_knows_runs_and_agents(cli: Cli, named: str) -> None:
    await cli("send", named, "Hello", "--agent", "talker", "--wait")
    assert await eventually(lambda: completed(cli, f"perdure show {named[:8]}"), every=0.2) == [named]
    assert "talker" in await eventually(lambda: completed(cli, "perdure chat ta"), every=0.2)
    assert await completed(cli, "perdure run --file agents.py s") == ["shower"]
    cli.env["TEMPORAL_ADDRESS"] = "127.0.0.1:1"
    assert await completed(cli, "perdure show t") == []


SLOW_TO_LOAD = """
import sys, time

class Slow:
    def find_spec(self, name, path=None, target=None):
        if name in ("temporalio.client", "sqlalchemy"):
            time.sleep(1.1)

sys.meta_path.insert(0, Slow())
"""


async def test_completion_of_a_machine_that_is_slow_to_load_modules(cli: Cli, named: str) -> None:
    await cli("send", named, "Hello", "--agent", "talker", "--wait")
    (cli.folder / "sitecustomize.py").write_text(SLOW_TO_LOAD)
    cli.env["PYTHONPATH"] = str(cli.folder)
    assert await eventually(lambda: completed(cli, f"perdure show {named[:8]}"), every=0.2) == [named]


async def test_dev_serves_what_the_files_own_calls_left(cli: Cli) -> None:
    del cli.env["PERDURE_TASK_QUEUE"]
    file = cli.folder / "agents.py"
    left = f"left-{uuid.uuid4().hex[:8]}"
    file.write_text(
        f'{file.read_text()}\nif __name__ == "__main__":\n    talker.call_sync("Please wait", id="{left}")\n'
    )
    script = await asyncio.create_subprocess_exec(sys.executable, str(file), env=cli.env, cwd=cli.folder)
    await in_the_gate(cli)
    script.kill()
    await script.wait()
    (cli.folder / "open").touch()
    dev = await cli.spawn("dev", "agents.py")
    await dev.until("serving")
    assert (await until_state(cli, left, "completed"))["messages"][-1]["parts"][0]["text"] == "1: 'Please wait'"
    arguments = ("shower", "Look", "--context", '{"name": "Ana"}', "--task-queue")
    queue = next(line.split()[1] for line in dev.said if line.split()[:1] == ["queue"])
    assert (await cli("run", *arguments, queue)).out == "the file's resources, Ana\n"


async def test_dev_watches_files_that_the_package_imports(cli: Cli) -> None:
    package = cli.folder / "shop" / "agents"
    package.mkdir(parents=True)
    for folder in (package, package.parent):
        (folder / "__init__.py").touch()
    words = package.parent / "words.py"
    words.write_text("GREETING = 'Hello.'\n")
    source = "from perdure import Agent\nfrom perdure.testing import ScriptedProvider\nfrom ..words import GREETING\n"
    agent = "greeter = Agent('greeter', ScriptedProvider(lambda request: GREETING))\n"
    (package / "main.py").write_text(source + agent)
    cli.env["PERDURE_TASK_QUEUE"] += "-dev"
    dev = await cli.spawn("dev", "shop/agents/main.py")
    await dev.until("serving")
    words.write_text("GREETING = 'Welcome.'\n")
    await dev.until("reloaded")
    assert (await cli("run", "greeter", "Hi")).out == "Welcome.\n"
    words.write_text("GREETING = 'Welcome.'\nraise ValueError('no luck')\n")
    await dev.until("words.py:2: ValueError: no luck")
    await dev.until("the previous version goes on serving")
    assert (await cli("run", "greeter", "Hi")).out == "Welcome.\n"


async def test_fork_and_diff(cli: Cli, named: str) -> None:
    assert (await cli("run", "talker", "one", "--id", named)).code == 0
    made = await cli("fork", named, "left", "--at", "1", "--id", f"{named}-b")
    assert (made.code, made.out) == (0, f"{named}-b\n"), made.err
    assert (await cli("wait", f"{named}-b")).out == "2: 'one' | 'left'\n"
    parted = (await cli("diff", named, f"{named}-b", "-o", "json")).json
    assert (parted["iteration"], parted["left"]) == (1, {"id": named, "messages": []})
    assert [message["role"] for message in parted["right"]["messages"]] == ["user", "assistant"]
    said = (await cli("diff", named, f"{named}-b")).out.splitlines()
    assert said[0] == f"{named} and {named}-b part after iteration 1"
    assert said[2:4] == [f"- {named}", "(nothing more)"]
    assert said[5:] == [f"+ {named}-b", "user    left", "[2]     2: 'one' | 'left'"]
    assert "say the same" in (await cli("diff", named, named)).out
    wrong = await cli("fork", named, "--result", "x")
    assert (wrong.code, "--result x: it has no text" in wrong.err) == (2, True)
    assert (await cli("fork", named, "x", "--at", "9")).code == 2
