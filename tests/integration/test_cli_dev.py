"""``perdure dev``, and agent files beside a worker: code and files change under a process that serves."""

from __future__ import annotations

import json
import os
import signal
import sys
import uuid
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support import forkserver
from tests.support.cli import Cli, talking
from tests.support.wait import eventually

pytestmark = pytest.mark.server


@pytest.fixture
async def cli(temporal_address: str, tmp_path: Path) -> AsyncIterator[Cli]:
    """Commands in a folder with the talker's ``agents.py``, on a task queue of this test's own."""
    async with talking(temporal_address, tmp_path) as cli:
        cli.env["PERDURE_TASK_QUEUE"] = f"cli-{uuid.uuid4().hex[:8]}"
        yield cli


GREETER = """
from perdure import Agent
from perdure.testing import ScriptedProvider
from ..words import GREETING

greeter = Agent("greeter", ScriptedProvider(lambda request: GREETING))
"""


@pytest.mark.slow
async def test_dev_reloads_what_changes_and_survives_what_is_broken(cli: Cli) -> None:
    """A file in a package, what it imports from the folder above, and a module that is not there yet."""
    agents = cli.folder / "shop" / "agents"
    agents.mkdir(parents=True)
    for folder in (agents, agents.parent):
        (folder / "__init__.py").touch()
    main, words = agents / "main.py", agents.parent / "words.py"
    words.write_text("GREETING = 'Hello.'\n")
    main.write_text("import\n")

    async def greeted() -> str:
        return (await cli("run", "greeter", "Hi")).out

    dev = await cli.spawn("dev", "shop/agents/main.py")
    await dev.until("main.py:1: SyntaxError")
    await dev.until("nothing is served")
    main.write_text(GREETER)
    await dev.until("serving")
    await dev.until("perdure run greeter")
    words.write_text("GREETING = 'Welcome.'\n")
    await dev.until("reloaded")
    assert await greeted() == "Welcome.\n"
    words.write_text("GREETING = 'Welcome.'\nraise ValueError('no luck')\n")
    await dev.until("words.py:2: ValueError: no luck")
    await dev.until("the previous version goes on serving")
    assert await greeted() == "Welcome.\n"
    words.write_text("GREETING = 'Good'\n")
    main.write_text(GREETER.replace("GREETING)", "f'{GREETING} {TIME}.')") + "\nfrom .clock import TIME\n")
    await dev.until("ModuleNotFoundError")
    (agents / "clock.py").write_text("TIME = 'day'\n")
    await dev.until("reloaded")
    assert await greeted() == "Good day.\n"
    (agents / "clock.py").write_text("TIME = 'night'\n")
    await dev.until("reloaded")
    assert await greeted() == "Good night.\n"

    children = Path(f"/proc/{dev.process.pid}/task/{dev.process.pid}/children")
    if sys.platform == "linux":
        workers = [int(pid) for pid in children.read_text().split()]  # the one before may still be ending
        assert workers
        dev.process.kill()
        await eventually(lambda: all(map(_is_gone, workers)), what="no worker of the killed dev")


def _is_gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/stat").read_text().split()[2] == "Z"
    except (ProcessLookupError, FileNotFoundError):
        return True


async def test_dev_serves_what_the_files_own_calls_left(cli: Cli) -> None:
    """On the queue of the file's name, with the file's resources."""
    del cli.env["PERDURE_TASK_QUEUE"]
    file = cli.folder / "agents.py"
    left = f"left-{uuid.uuid4().hex[:8]}"
    file.write_text(
        f'{file.read_text()}\nif __name__ == "__main__":\n    talker.call_sync("Please wait", id="{left}")\n'
    )
    script = await forkserver.create_process(sys.executable, file, env=cli.env, cwd=cli.folder)
    await eventually(lambda: (cli.folder / "entered").exists())
    script.kill()
    await script.wait()
    (cli.folder / "open").touch()
    dev = await cli.spawn("dev", "agents.py")
    await dev.until("serving")
    assert (await cli("wait", left)).out == "1: 'Please wait'\n"
    queue = next(line.split()[1] for line in dev.said if line.split()[:1] == ["queue"])
    look = ("shower", "Look", "--context", '{"name": "Ana"}', "--task-queue", queue)
    assert (await cli("run", *look)).out == "the file's resources, Ana\n"


CODE = '''
from perdure import register_provider, tool
from perdure.testing import ScriptedProvider, call


@tool
def refund(order_id: str) -> str:
    """Refund an order."""
    return f"refunded {order_id}"


def answer(request):
    said = [message for message in request.messages if message.role == "tool"]
    if request.tools and not said:
        return call("refund", order_id="7")
    return f"{request.system}: " + " ".join(result.content for one in said for result in one.tool_results)


register_provider("script", ScriptedProvider(answer))
tools = [refund]
'''


@pytest.fixture
def agents(cli: Cli) -> Path:
    """A folder for agent files, beside an ``agents.py`` that has tools and no agents."""
    (cli.folder / "agents.py").write_text(CODE)
    (cli.folder / "agents").mkdir()
    return cli.folder / "agents"


async def test_a_worker_serves_a_folder(cli: Cli, agents: Path) -> None:
    """Files are taken up, changed, broken and removed under it."""
    none = await cli("worker", "agents.py", "--agents", "nowhere")
    assert (none.code, "folder nowhere does not exist" in none.err) == (2, True)
    without = await cli("worker", "agents.py")
    assert "agents.py has no agents at its top level" in without.err
    worker = await cli.spawn("worker", "agents.py", "--agents", "agents")
    await worker.until("serving no agents yet on queue ")
    file = agents / "support.yaml"
    file.write_text("model: script:m\ninstructions: Kind\ntools: [refund]\n")
    await worker.until("serving: support (support.yaml)")
    assert (await cli("run", "support", "Hi")).out == "Kind: refunded 7\n"
    file.write_text("model: script:m\ninstructions: Brief\n")
    await worker.until("serving: support (support.yaml)")
    assert (await cli("run", "support", "Hi")).out == "Brief: \n"
    file.write_text("model: script:m\ntools: [pay]\n")
    await worker.until("tools: there is no 'pay' (there is: refund)")
    assert (await cli("run", "support", "Hi")).out == "Brief: \n"
    (agents / "other.json").write_text(json.dumps({"model": "script:m", "instructions": "Other"}))
    await worker.until("serving: other (other.json)")
    assert (await cli("run", "other", "Hi")).out == "Other: \n"
    file.unlink()
    await worker.until("removed: agent support is not served any more")


async def test_dev_serves_a_folder_and_reloads_the_code(cli: Cli, agents: Path) -> None:
    dev = await cli.spawn("dev", "agents.py", "--agents", "agents")
    await dev.until("no agents yet; watching 1 file")
    (agents / "other.json").write_text(json.dumps({"model": "script:m", "instructions": "Other"}))
    await dev.until("serving: other (other.json)")
    (cli.folder / "agents.py").write_text(CODE.replace("{request.system}", "now {request.system}"))
    await dev.until("reloaded")
    assert (await cli("run", "other", "Hi")).out == "now Other: \n"
    dev.send(signal.SIGINT)
    assert await dev.ended() == 0
