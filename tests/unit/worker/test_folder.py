"""A folder of agent files: what is in it is served, as it is at present."""

from __future__ import annotations

import asyncio
import json
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from perdure import Agent, tool
from perdure.agent.agent_file import load_spec
from perdure.calls.agents import Agents
from perdure.errors import AgentNotFoundError, DefinitionError, InvalidInputError
from perdure.worker import agent_folder as folder_module
from perdure.worker.agent_folder import AgentFolder
from tests.support.wait import eventually


@tool
def refund() -> None:
    """Refund an order."""


class Folder:
    """The folder under test: files in it, and what was said."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.said: list[str] = []
        self.agents = Agents([Agent("coded", "openai:gpt-5")], [refund])
        self._written = 0

    def write(self, file: str, name: str = "", **spec: Any) -> None:
        """A file of another time than all before, whatever the clock of the file system is worth."""
        body = {"model": "openai:gpt-5", **({"name": name} if name else {}), **spec}
        self.put(file, json.dumps(body))

    def put(self, file: str, text: str) -> None:
        self._written += 1
        fresh = self.path / f".{file}.new"
        fresh.write_text(text)
        os.utime(fresh, (self._written, self._written))
        fresh.replace(self.path / file)

    def open(self) -> AgentFolder:
        return AgentFolder(self.path, self.agents, say=self.said.append)

    @property
    def served(self) -> dict[str, str | None]:
        """Instructions by name, without the agent of code."""
        parts = {one.name: one.instruction_parts for one in self.agents if one.name != "coded"}
        return {name: str(listed[0]) if listed else None for name, listed in parts.items()}

    async def serves(self, **served: str | None) -> None:
        await eventually(lambda: self.served == served, what=f"{served}")

    async def says(self, text: str) -> None:
        await eventually(lambda: any(text in one for one in self.said), what=f"{text!r} in {self.said}")


@pytest.fixture(autouse=True)
def _looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folder_module, "FOLDER_POLL_SECONDS", 0.02)


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path)


async def test_what_is_there_is_served_at_once(folder: Folder) -> None:
    folder.write("one.json", instructions="1", tools=["refund"])
    folder.write("two.json", "second", instructions="2")
    folder.put("readme.md", "no agent")
    folder.put(".hidden.json", "{")
    folder.open()
    assert folder.served == {"one": "1", "second": "2"}
    assert folder.said == ["serving: one (one.json)", "serving: second (two.json)"]
    assert folder.agents.get("one").toolbox.get("refund") is refund


async def test_files_come_change_and_go(folder: Folder) -> None:
    async with folder.open():
        folder.write("one.json", instructions="1")
        await folder.serves(one="1")
        folder.write("one.json", instructions="2")
        await folder.serves(one="2")
        folder.write("one.json", "another", instructions="3")
        await folder.serves(another="3")
        await folder.says("removed: agent one is not served any more")
        (folder.path / "one.json").unlink()
        await folder.serves()
        await folder.says("removed: agent another is not served any more")
    with pytest.raises(AgentNotFoundError):
        folder.agents.get("another")
    assert folder.agents.get("coded").model == "openai:gpt-5"


async def test_a_broken_file_leaves_what_it_said_before(folder: Folder) -> None:
    folder.write("one.json", instructions="1")
    async with folder.open():
        folder.write("one.json", instructions="2", tools=["pay"])
        await folder.says("there is no 'pay' (there is: refund)")
        assert folder.said[-1].endswith("; its last valid version is still served")
        assert folder.served == {"one": "1"}
        folder.put("two.json", "{")
        await folder.says("two.json cannot be read: Expecting property name")
        assert "before" not in folder.said[-1]
        folder.write("one.json", instructions="3")
        await folder.serves(one="3")
        folder.write("two.json", instructions="4")
        await folder.serves(one="3", two="4")


async def test_a_name_that_others_have(folder: Folder) -> None:
    folder.write("a.json", "coded", instructions="not me")
    folder.write("b.json", "x", instructions="b")
    folder.write("c.json", "x", instructions="c")
    async with folder.open():
        assert folder.served == {"x": "b"}
        assert [one.partition("two agents")[2] for one in folder.said] == [
            " are called 'coded', the other one in the code (rename one)",
            "",
            " are called 'x', the other one in b.json (rename one)",
        ]
        folder.write("a.json", "x", instructions="a")
        await folder.says(f"{folder.path / 'a.json'}: two agents are called 'x', the other one in b.json")
        (folder.path / "b.json").unlink()  # a name that becomes free goes to the first that asks for it
        await folder.serves(x="a")


async def test_two_files_change_their_names(folder: Folder) -> None:
    folder.write("a.json", "x", instructions="a")
    folder.write("b.json", "y", instructions="b")
    async with folder.open():
        folder.write("a.json", "y", instructions="a")
        await folder.says("two agents are called 'y'")
        assert folder.served == {"x": "a", "y": "b"}
        folder.write("b.json", "x", instructions="b")
        await folder.serves(x="b", y="a")


async def test_a_folder_that_is_gone_leaves_all_as_it_was(folder: Folder) -> None:
    folder.write("one.json", instructions="1")
    async with folder.open():
        moved = folder.path.with_name("moved")
        folder.path.rename(moved)
        await folder.says("is gone; its agents are still served")
        assert folder.served == {"one": "1"}
        moved.rename(folder.path)
        folder.write("one.json", instructions="2")
        await folder.serves(one="2")


def test_no_folder(folder: Folder) -> None:
    with pytest.raises(InvalidInputError, match="does not exist"):
        AgentFolder(folder.path / "none", folder.agents, say=print)


def test_agents_change_all_at_once_or_not_at_all() -> None:
    a, b, other = (Agent(name, "openai:gpt-5") for name in ("a", "b", "b"))
    agents = Agents([a, b])
    with pytest.raises(DefinitionError, match="two agents are called 'b'"):
        agents.replace_agents(remove=["a"], add=[other])
    assert list(agents) == [a, b]
    agents.replace_agents(remove=["b"], add=[other])
    assert list(agents) == [a, other]


async def test_a_file_that_takes_its_time_to_read_does_not_stop_the_worker(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """1 MB of YAML takes 15 s, and heartbeats are due every 5."""
    turned, loop = threading.Event(), asyncio.get_running_loop()

    def slow(path: Path, make: Any, **given: Any) -> Agent:
        loop.call_soon_threadsafe(turned.set)
        assert turned.wait(10), "the worker's loop stands still"
        loaded: Agent = load_spec(path, make, **given)
        return loaded

    monkeypatch.setattr("perdure.worker.agent_folder.load_spec", slow)
    async with folder.open():
        folder.write("one.json", instructions="1")
        await folder.serves(one="1")


async def test_what_nobody_expected_of_one_file_leaves_the_others(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def load(path: Path, make: Any, **given: Any) -> Agent:
        if path.name == "a.json":
            raise RecursionError("too deep")
        loaded: Agent = load_spec(path, make, **given)
        return loaded

    monkeypatch.setattr("perdure.worker.agent_folder.load_spec", load)
    folder.write("a.json", instructions="a")
    folder.write("b.json", instructions="b")
    folder.open()
    assert folder.served == {"b": "b"}
    assert folder.said[0] == f"broken: {folder.path / 'a.json'}: RecursionError: too deep"
