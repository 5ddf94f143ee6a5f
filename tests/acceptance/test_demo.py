"""``perdure demo`` on an empty home: what a newcomer runs first."""

from __future__ import annotations

import re
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from perdure.cli.demo.model import DemoModel
from perdure.embedded.binary import ensure_binary
from perdure.embedded.home import Home
from perdure.embedded.server import stop_server
from tests.support.cli import Cli
from tests.support.wait import eventually

pytestmark = pytest.mark.server


@pytest.fixture
async def cli(tmp_path: Path) -> AsyncIterator[Cli]:
    """Commands on a machine with nothing but the dev server's binary."""
    binary = await ensure_binary()
    home = tmp_path / "home"
    cli = Cli(tmp_path, {"HOME": str(tmp_path), "PERDURE_HOME": str(home), "PERDURE_TEMPORAL_CLI": str(binary.path)})
    for name in ("PERDURE_STORE_URL", "PERDURE_TASK_QUEUE"):
        cli.env.pop(name, None)
    yield cli
    await cli.close()
    await stop_server(Home(home))


@pytest.mark.slow
async def test_demo_on_a_bare_machine(cli: Cli) -> None:
    done = await cli("demo")
    assert done.code == 0, done.out + done.err
    story = ("kill -9", "waits", "resumed", "injected", "done")
    places = [done.out.index(f"  {step} ") for step in story]
    assert places == sorted(places)
    assert "`workflows/agent.py`, line" in done.out, "the answer rests on the files"
    assert "[1]     " in done.out
    assert "user    One more thing" in done.out
    assert re.search(r"the model counted \d+ paid calls for \d+ replies", done.out)
    assert "NOT TRUE" not in done.out
    url = re.search(r"http://127\.0\.0\.1:\d+/namespaces/default/workflows/(demo-\w+)", done.out)
    assert url, "where to look at it"
    assert "\x1b" not in done.out, "no colours in a log"
    await nothing_left(cli)
    # The server stays, and with it the run.
    shown = await cli("show", url[1], "-o", "json")
    assert shown.json["status"]["state"] == "completed"
    assert shown.json["ui_url"] == url[0]


@pytest.mark.slow
async def test_demo_on_a_folder_a_question_and_an_endpoint_of_ones_own(cli: Cli) -> None:
    folder = cli.folder / "fruit"
    folder.mkdir()
    (folder / "prices.txt").write_text("Apples cost 3 euros.\nPears cost 4 euros.\n")
    (folder / "blob.bin").write_bytes(bytes(range(256)) * 10)
    with DemoModel(delay=0.05) as model:
        cli.env |= {"OPENAI_API_KEY": "a-key", "OPENAI_BASE_URL": model.base_url}
        done = await cli("demo", "--path", "fruit", "What do pears cost?")
        assert done.code == 0, done.out + done.err
        assert "> Pears cost 4 euros." in done.out
        assert "`blob.bin` (2,560 bytes)" in done.out, "the injected question is answered too"
        assert "openai:gpt-5-mini (a real one" in done.out
        counted = re.search(r"Temporal counted (\d+) paid calls", done.out)
        assert counted
        # An attempt that the worker's death cut off before it had sent anything is counted too.
        assert int(counted[1]) - model.requests in (0, 1)


@pytest.mark.slow
async def test_demo_with_a_failing_model_says_why(cli: Cli) -> None:
    with DemoModel() as model:
        cli.env |= {"OPENAI_API_KEY": "a-key", "OPENAI_BASE_URL": model.base_url.replace("/v1", "/nowhere")}
        done = await cli("demo")
    assert done.code == 1
    assert "error: " in done.err
    assert "Traceback" not in done.err
    await nothing_left(cli)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
async def test_a_demo_that_is_ended_leaves_nothing_behind(cli: Cli, number: signal.Signals) -> None:
    demo = await cli.spawn("demo")
    await demo.until("  waits ")
    demo.send(number)
    assert await demo.ended() == (-9 if number is signal.SIGKILL else 130)
    await nothing_left(cli)


async def nothing_left(cli: Cli) -> None:
    """No worker and no model of this test's demo runs any longer."""
    if sys.platform != "linux":
        return
    home = f"PERDURE_HOME={cli.env['PERDURE_HOME']}".encode()

    def ours() -> list[str]:
        found = []
        for process in Path("/proc").glob("[0-9]*"):
            try:
                arguments = (process / "cmdline").read_bytes()
                if b"perdure.cli.demo" in arguments and home in (process / "environ").read_bytes().split(b"\0"):
                    found.append(process.name)
            except OSError:
                continue
        return found

    await eventually(lambda: not ours(), what="no process of the demo")
