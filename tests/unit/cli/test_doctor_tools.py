"""``perdure doctor FILE`` names the tools that the models of its agents cannot be offered."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from perdure.cli import app

AGENTS = """
from perdure import Agent, Toolset, tool
from perdure.ports.toolset import ListedTool

EITHER = {"anyOf": [{"required": ["a"]}, {"required": ["b"]}], "properties": {"a": {}, "b": {}}}


class Server(Toolset):
    name = "server"

    async def list(self, ctx):
        assert ctx.agent == "clerk"
        text = ListedTool("text", "", {"type": "string"})
        return [ListedTool("x.y", "", EITHER), ListedTool("x:y", "", {}), text, ListedTool("", "", {})]

    async def call(self, name, arguments, ctx):
        raise AssertionError("nothing is called")


class Down(Toolset):
    name = "down"

    async def list(self, ctx):
        raise ConnectionError("no route")


@tool
def at(place: tuple[float, float]) -> str:
    "At."


clerk = Agent("clerk", ["openai:gpt-5", "anthropic:claude-sonnet-4-5"], tools=[at], toolsets=[Server(), Down()])
"""


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TEMPORAL_ADDRESS", "TEMPORAL_PROFILE", "PERDURE_STORE_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PERDURE_HOME", str(tmp_path / "home"))


def test_tools_that_are_left_out_or_rewritten_are_named(tmp_path: Path) -> None:
    file = tmp_path / "agents_of_doctor.py"
    file.write_text(AGENTS)
    output = CliRunner().invoke(app, ["doctor", str(file), "--json"]).stdout
    findings: list[Any] = [each for each in json.loads(output) if each["check"] == "tools of clerk"]
    reason = "its arguments are of type 'string', not an object"
    assert [(finding["status"], finding["detail"]) for finding in findings] == [
        ("warn", "toolset server: tool  is left out: it has no name"),
        ("warn", "toolset down could not list its tools: ConnectionError: no route"),
        ("warn", f"openai:gpt-5: tool text is left out: {reason}"),
        ("ok", "openai:gpt-5: 3 tools; with a rewritten schema: at, x_y"),
        ("warn", f"anthropic:claude-sonnet-4-5: tool text is left out: {reason}"),
        ("ok", "anthropic:claude-sonnet-4-5: 3 tools; with a rewritten schema: x_y"),
    ]
