"""Files by the commands: attached, shown, and as references in JSON."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.cli import Cli

pytestmark = pytest.mark.server

AGENTS = '''
from perdure import Agent, File, tool
from perdure.testing import ScriptedProvider, call
from perdure.types.messages import file_parts


@tool
def draw() -> File:
    """Draw a cat."""
    return File(b"\\x89PNG\\r\\n\\x1a\\n" + bytes(12280), name="drawn.png")


def reply(request):
    if request.messages[-1].text == "Draw.":
        return call("draw")
    return " ".join(f"{part.name}={len(request.files[part.blob.hash])}" for part in file_parts(request.messages))


looker = Agent("looker", ScriptedProvider(reply), tools=[draw])
'''


@pytest.fixture
async def cli(temporal_address: str, tmp_path: Path) -> AsyncIterator[Cli]:
    """Commands in a folder with ``agents.py`` and two files."""
    (tmp_path / "agents.py").write_text(AGENTS)
    (tmp_path / "cat.png").write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(100))
    (tmp_path / "notes.md").write_text("# Cats\n")
    env = {
        "TEMPORAL_ADDRESS": temporal_address,
        "PERDURE_HOME": str(tmp_path / "home"),
        "PERDURE_STORE_URL": f"sqlite:///{tmp_path / 'store.db'}",
        "PERDURE_TASK_QUEUE": f"cli-{uuid.uuid4().hex[:8]}",
    }
    cli = Cli(tmp_path, env)
    yield cli
    await cli.close()


async def test_files_are_attached_and_shown(cli: Cli) -> None:
    name = f"look-{uuid.uuid4().hex[:8]}"
    attach = ("--attach", "cat.png", "--attach", "notes.md")
    run = await cli("run", "looker", "What are these?", *attach, "-f", "agents.py", "--id", name)
    assert (run.code, run.out) == (0, "cat.png=108 notes.md=7\n"), run.err
    shown = (await cli("show", name)).out
    assert "user    What are these?\n        [image cat.png, image/png, 108 B]" in shown
    assert "[file notes.md, text/markdown, 7 B]" in shown
    (user, _) = (await cli("show", name, "-o", "json")).json["messages"]
    assert [part["type"] for part in user["parts"]] == ["text", "file", "file"]
    assert user["parts"][1]["blob"]["size"] == 108
    assert user["parts"][1]["data"] is None


async def test_what_a_tool_gave_is_shown(cli: Cli) -> None:
    name = f"draw-{uuid.uuid4().hex[:8]}"
    assert (await cli("run", "looker", "Draw.", "-f", "agents.py", "--id", name)).out == "drawn.png=12288\n"
    assert "← [image drawn.png, image/png, 12 KB]" in (await cli("show", name)).out


async def test_chat_attaches_to_what_is_said_first(cli: Cli) -> None:
    said = await cli("chat", "looker", "--attach", "cat.png", "-f", "agents.py", stdin="Look.\nAnd now?\n")
    assert (said.code, said.out) == (0, "cat.png=108\ncat.png=108\n"), said.err


async def test_send_and_inject_attach(cli: Cli) -> None:
    worker = await cli.spawn("worker", "agents.py")
    await worker.until("serving looker on queue ")
    name = f"send-{uuid.uuid4().hex[:8]}"
    sent = await cli("send", name, "Look.", "--agent", "looker", "--attach", "cat.png", "--wait")
    assert (sent.code, sent.out) == (0, "cat.png=108\n"), sent.err
    assert (await cli("inject", name, "And this.", "--attach", "notes.md")).code == 0
    last = await cli("send", name, "Well?", "--wait")
    assert last.out == "cat.png=108 notes.md=7\n"


async def test_what_cannot_be_attached_is_named(cli: Cli) -> None:
    missing = await cli("run", "looker", "Look.", "--attach", "dog.png", "-f", "agents.py")
    assert (missing.code != 0, "cannot read 'dog.png': No such file" in missing.err) == (True, True)
    alone = await cli("interrupt", "x", "--attach", "cat.png")
    assert "goes with a message" in alone.err
