"""What an author is told when their file does not load: the place in it, the reason, the way out."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from perdure.cli.agent_loader import find_author_files, find_failing_files, load_agent_module
from perdure.errors import DefinitionError, InvalidInputError, PerdureError

AGENT = "from perdure import Agent\nhelper = Agent('helper', 'openai:gpt-5-mini')\n"

Write = Callable[..., str]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Write]:
    """Writes a file into an empty folder, which is the current one; modules that it makes are forgotten."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = set(sys.modules)

    def make(name: str, text: str = AGENT) -> str:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return name

    yield make
    for name in set(sys.modules) - before:
        if getattr(sys.modules[name], "__file__", None) and str(tmp_path) in str(sys.modules[name].__file__):
            del sys.modules[name]


def refused(target: str) -> PerdureError:
    with pytest.raises((DefinitionError, InvalidInputError)) as caught:
        load_agent_module(target)
    return caught.value


def test_agents_at_the_top_level_are_found_once(write: Write) -> None:
    loaded = load_agent_module(write("shop.py", AGENT + "same = helper\nother = Agent('other', 'openai:gpt-5-mini')\n"))
    assert [agent.name for agent in loaded.agents] == ["helper", "other"]
    assert loaded.get_agent("other").name == "other"
    with pytest.raises(InvalidInputError, match=r"no agent 'nobody'.\nIt has: helper, other"):
        loaded.get_agent("nobody")


def test_a_file_may_import_its_neighbours(write: Write) -> None:
    write("prices.py", "PRICE = 3\n")
    loaded = load_agent_module(write("shop2.py", "import prices\n" + AGENT))
    assert loaded.agents[0].name == "helper"
    assert {path.name for path in find_author_files(Path.cwd())} >= {"prices.py", "shop2.py"}


def test_a_file_in_a_package_may_import_relatively(write: Write) -> None:
    write("market/__init__.py", "")
    write("market/inner/__init__.py", "")
    write("market/tools.py", "NAME = 'helper'\n")
    loaded = load_agent_module(write("market/inner/agents.py", "from ..tools import NAME\n" + AGENT))
    assert loaded.agents[0].name == "helper"


def test_a_module_is_found_from_here(write: Write) -> None:
    write("kiosk/__init__.py", "")
    write("kiosk/agents.py")
    assert load_agent_module("kiosk.agents").agents[0].name == "helper"


def test_a_file_called_like_a_loaded_module_does_not_take_its_place(write: Write) -> None:
    import json

    assert load_agent_module(write("json.py")).agents[0].name == "helper"
    assert sys.modules["json"] is json


@pytest.mark.parametrize(
    ("text", "said", "hint"),
    [
        ("x = 1\ny = 1 / 0\n", "bad.py:2: ZeroDivisionError: division by zero", "y = 1 / 0"),
        ("def f(:\n", "bad.py:1: SyntaxError: invalid syntax", "def f(:"),
        ("import no_such_module_here\n", "bad.py:1: ModuleNotFoundError: No module named", "Install it for"),
        ("import sys\nsys.exit(1)\n", "bad.py:2: it exits when it is imported", "__main__"),
        ("x = 1\n", "bad.py has no agents at its top level", "Define one there"),
        (AGENT + "\nAgent('a b', 'openai:x')\n", "bad.py:4: the agent name 'a b'", "short name"),
        (AGENT + "def t(x): ...\nAgent('a', 'openai:x', tools=[t])\n", "bad.py:4: tool 't'", "x: str"),
    ],
)
def test_what_is_wrong_is_said_with_its_place(write: Write, text: str, said: str, hint: str) -> None:
    error = refused(write("bad.py", text))
    assert error.message.startswith(said)
    assert hint in (error.hint or "")
    assert "perdure/" not in error.message.partition(": ")[0], "the place is the author's, not ours"


def test_an_error_in_a_neighbour_names_the_neighbour(write: Write) -> None:
    write("broken_part.py", "\n\nraise ValueError('no luck')\n")
    error = refused(write("shop3.py", "import broken_part\n" + AGENT))
    assert error.message == "broken_part.py:3: ValueError: no luck"
    assert {path.name for path in find_failing_files(error)} >= {"broken_part.py", "shop3.py"}


def test_targets_that_are_not_there(write: Write, tmp_path: Path) -> None:
    assert refused("gone.py").message == "there is no file gone.py"
    assert refused(".").message == ". is a folder"
    assert refused(write("agents.txt")).message == f"{tmp_path / 'agents.txt'} is not a Python file"
    assert refused("no_such.module").message == "there is no file or module 'no_such.module'"
    assert refused("json").message == "json has no agents at its top level"


def test_the_files_lifespan_is_found(write: Write) -> None:
    text = "from contextlib import asynccontextmanager\n@asynccontextmanager\nasync def lifespan({}): yield 1\n" + AGENT
    loaded = load_agent_module(write("shop4.py", text.format("size=1")))
    assert loaded.lifespan is not None
    assert load_agent_module(write("shop5.py")).lifespan is None
    assert "give it another name" in (refused(write("web.py", text.format("app"))).hint or "")


def test_the_files_list_of_tools_is_found_and_another_list_of_that_name_is_not(write: Write) -> None:
    text = "from perdure import tool\n@tool\ndef refund() -> str: return ''\n" + AGENT
    assert [tool.name for tool in load_agent_module(write("tools1.py", text + "\ntools = [refund]\n")).tools] == [
        "refund"
    ]
    assert load_agent_module(write("tools2.py", text + "\ntools = [refund, 'hammer']\n")).tools == ()
    assert load_agent_module(write("tools3.py", text + "\ntools = 'many'\n")).tools == ()
