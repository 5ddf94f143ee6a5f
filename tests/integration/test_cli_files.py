"""Files by the commands, in this process: attached, shown, and as references in JSON."""

from __future__ import annotations

from typing import Any

import pytest

from perdure import Agent, File, tool
from perdure.ports.model import ModelRequest
from perdure.testing import ScriptedProvider, call
from perdure.types.messages import iter_file_parts
from tests.support.commands import Commands
from tests.support.engine import Engine


@tool
def draw() -> File:
    """Draw a cat."""
    return File(b"\x89PNG\r\n\x1a\n" + bytes(12280), name="drawn.png")


def reply(request: ModelRequest) -> Any:
    if request.messages[-1].text == "Draw.":
        return call("draw")
    blobs = [(part.name, part.blob) for part in iter_file_parts(request.messages)]
    return " ".join(f"{name}={len(request.files[blob.hash])}" for name, blob in blobs if blob is not None)


looker = Agent("looker", ScriptedProvider(reply), tools=[draw])


@pytest.fixture
def cli(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> Commands:
    """Commands in a folder with two files."""
    (engine.folder / "cat.png").write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(100))
    (engine.folder / "notes.md").write_text("# Cats\n")
    monkeypatch.chdir(engine.folder)
    return Commands(engine, monkeypatch)


async def test_files_are_attached_and_shown(engine: Engine, cli: Commands) -> None:
    attach = ("--attach", "cat.png", "--attach", "notes.md")
    async with engine.served(looker):
        run = await cli("run", "looker", "What are these?", *attach, "--id", "look")
        assert (run.code, run.out) == (0, "cat.png=108 notes.md=7\n"), run.err
        shown = (await cli("show", "look")).out
        assert "user    What are these?\n        [image cat.png, image/png, 108 B]" in shown
        assert "[file notes.md, text/markdown, 7 B]" in shown
        (user, _) = (await cli("show", "look", "-o", "json")).json["messages"]
        assert [part["type"] for part in user["parts"]] == ["text", "file", "file"]
        assert user["parts"][1]["blob"]["size"] == 108
        assert user["parts"][1]["data"] is None

        assert (await cli("run", "looker", "Draw.", "--id", "draw")).out == "drawn.png=12288\n"
        assert "← [image drawn.png, image/png, 12 KB]" in (await cli("show", "draw")).out


async def test_chat_send_and_inject_attach(engine: Engine, cli: Commands) -> None:
    async with engine.served(looker):
        said = await cli("chat", "looker", "--attach", "cat.png", stdin="Look.\nAnd now?\n")
        assert (said.code, said.out) == (0, "cat.png=108\ncat.png=108\n"), said.err

        sent = await cli("send", "talk", "Look.", "--agent", "looker", "--attach", "cat.png", "--wait")
        assert (sent.code, sent.out) == (0, "cat.png=108\n"), sent.err
        assert (await cli("inject", "talk", "And this.", "--attach", "notes.md")).code == 0
        last = await cli("send", "talk", "Well?", "--wait")
        assert last.out == "cat.png=108 notes.md=7\n"


async def test_what_cannot_be_attached_is_named(cli: Commands) -> None:
    missing = await cli("run", "looker", "Look.", "--attach", "dog.png")
    assert (missing.code != 0, "cannot read 'dog.png': No such file" in missing.err) == (True, True)
    alone = await cli("interrupt", "x", "--attach", "cat.png")
    assert "--attach needs a message" in alone.err
