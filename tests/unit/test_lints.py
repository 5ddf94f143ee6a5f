"""The repository's own lints: every rule fires, and what the code is meant to do instead passes."""

import contextlib
import io
import runpy
import subprocess
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


@dataclass
class Said:
    """How a lint ended."""

    returncode: int
    stdout: str


@cache
def script(name: str) -> dict[str, Any]:
    return runpy.run_path(str(ROOT / "scripts" / name))


def lint(name: str, *paths: Path) -> Said:
    """In this process: sixty of their own would take four seconds."""
    with contextlib.redirect_stdout(io.StringIO()) as out:
        code = script(name)["main"]([str(path) for path in paths])
    return Said(code, out.getvalue())


def determinism(directory: Path, source: str, package: str = "workflows") -> Said:
    path = directory / package / "case.py"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(source)
    return lint("lint_determinism.py", path)


REFUSED = {
    "import time": "time",
    "from time import monotonic": "time.monotonic",
    "import random as r": "random",
    "import secrets": "secrets",
    "import os": "os",
    "import os.path": "os.path",
    "from os import environ": "os.environ",
    "from pathlib import Path": "pathlib.Path",
    "import socket": "socket",
    "import subprocess": "subprocess",
    "import threading": "threading",
    "from concurrent.futures import Future": "concurrent.futures.Future",
    "import httpx": "httpx",
    "import requests": "requests",
    "import urllib.request": "urllib.request",
    "from urllib import request": "urllib.request",
    "import importlib": "importlib",
    "def f():\n    import time": "time",
    "import datetime\ndatetime.datetime.now()": "datetime.datetime.now",
    "import datetime as dt\ndt.datetime.utcnow()": "datetime.datetime.utcnow",
    "from datetime import datetime\ndatetime.now()": "datetime.datetime.now",
    "from datetime import datetime as d\nclock = d.today": "datetime.datetime.today",
    "from datetime import date\ndate.today()": "datetime.date.today",
    "import uuid\nuuid.uuid4()": "uuid.uuid4",
    "import uuid\nx: object = lambda: str(uuid.uuid1())": "uuid.uuid1",
    "from uuid import uuid4": "uuid.uuid4",
    "import asyncio\nasyncio.to_thread(f)": "asyncio.to_thread",
    "import asyncio\nasyncio.wait([])": "asyncio.wait",
    "import asyncio\nasyncio.get_running_loop().run_in_executor(None, f)": "run_in_executor",
    "import sys\nsys.stdout.write('x')": "sys.stdout",
    "open('x')": "open",
    "print('x')": "print",
    "input()": "input",
    "__import__('time')": "__import__",
    "hash('x')": "hash",
    "id(x)": "id",
    "for x in {1, 2}: pass": "iterating a set",
    "[x for x in set(y)]": "iterating a set",
    "{x: 1 for x in {y for y in z}}": "iterating a set",
    "if TYPE_CHECKING:\n    pass\nelse:\n    import time": "time",
}

ALLOWED = [
    "from datetime import datetime, timedelta\ndef f(x: datetime): return x + timedelta(1)",
    "from uuid import UUID\nUUID(int=1)",
    "from temporalio import workflow\nworkflow.now(); workflow.uuid4(); workflow.random(); workflow.time()",
    "import asyncio\nasyncio.sleep(1); asyncio.wait_for(f(), 1); asyncio.gather(f())",
    "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from pathlib import Path",
    "from . import time",
    "self.now(); state.open(); run.id",
    "for x in sorted({1, 2}): pass\n2 in {1, 2}",
]


@pytest.mark.parametrize(("source", "name"), REFUSED.items())
def test_determinism_refuses(tmp_path: Path, source: str, name: str) -> None:
    result = determinism(tmp_path, source)
    assert result.returncode == 1
    assert f": error: {name}: " in result.stdout


@pytest.mark.parametrize("source", ALLOWED)
def test_determinism_allows(tmp_path: Path, source: str) -> None:
    result = determinism(tmp_path, source)
    assert result == Said(0, "")


@pytest.mark.parametrize("call", ["asyncio.sleep(1)", "asyncio.wait_for(f(), 1)"])
def test_the_pure_loop_may_not_wait(tmp_path: Path, call: str) -> None:
    source = f"import asyncio\n{call}"
    assert determinism(tmp_path, source, "loop").returncode == 1
    assert determinism(tmp_path, source, "workflows").returncode == 0


def test_determinism_names_file_and_line(tmp_path: Path) -> None:
    assert "case.py:3: error: time" in determinism(tmp_path, "\n\nimport time\n").stdout


def function(lines: int) -> str:
    return "def f():\n" + "    x = 1\n" * (lines - 1)


@pytest.mark.parametrize(
    ("source", "code", "says"),
    [
        (function(40), 0, ""),
        (function(41), 0, "case.py:1: warning: function f has 41 lines (limit 60)"),
        (function(60), 0, "warning"),
        (function(61), 1, "case.py:1: error: function f has 61 lines (limit 60)"),
        ("async " + function(61), 1, "error: function f"),
        ("class C:\n    " + function(61).replace("\n", "\n    ").rstrip(), 1, "case.py:2: error: function f"),
        ("x = 1\n" * 500, 0, ""),
        ("x = 1\n" * 501, 0, "case.py: warning: file has 501 lines (limit 600)"),
        ("x = 1\n" * 600, 0, "warning"),
        ("x = 1\n" * 601, 1, "case.py: error: file has 601 lines (limit 600)"),
    ],
)
def test_lengths(tmp_path: Path, source: str, code: int, says: str) -> None:
    path = tmp_path / "case.py"
    path.write_text(source)
    result = lint("lint_lengths.py", tmp_path)
    assert result.returncode == code
    assert says in result.stdout if says else not result.stdout


def write_package(folder: Path, modules: dict[str, str]) -> Path:
    """A package with these modules, named like the folder: no other test has one of that name."""
    package = folder / folder.name
    for path, source in {"__init__.py": "", **modules}.items():
        (package / path).parent.mkdir(parents=True, exist_ok=True)
        (package / path).write_text(source)
    return package


PROGRAM = 'def main(): ...\nif __name__ == "__main__":\n    main()\n'


@pytest.mark.parametrize(
    ("path", "source", "importers", "refused"),
    [
        ("small.py", "x = 1\n", 1, True),
        ("small.py", "x = 1\n" * 59, 1, True),
        ("small.py", "x = 1\n" * 60, 1, False),
        ("small.py", "x = 1\n", 0, False),
        ("small.py", "x = 1\n", 2, False),
        ("small.py", '"""Numbers, apart because they break a cycle with sums."""\n', 1, False),
        ("small.py", '"""Numbers; separate because they keep an import cheap.\n\nMore."""\n', 1, False),
        ("small.py", '"""Numbers.\n\nApart because of a cycle."""\n', 1, True),
        ("small.py", '"""Numbers, apart because."""\n', 1, True),
        ("small.py", "# apart because of a cycle\nx = 1\n", 1, True),
        ("small.py", PROGRAM, 1, False),
        ("small/__init__.py", "x = 1\n", 1, False),
        ("small/__main__.py", "x = 1\n", 1, False),
        ("migrations/small.py", "x = 1\n", 1, False),
    ],
)
def test_small_modules(tmp_path: Path, path: str, source: str, importers: int, refused: bool) -> None:
    module = path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    imports = f"def late():\n    from .{module} import x\n" + "x = 1\n" * 60
    package = write_package(tmp_path, {path: source, **{f"user{n}.py": imports for n in range(importers)}})
    result = lint("lint_small_modules.py", package)
    assert result.returncode == refused
    says = f"small.py: error: {len(source.splitlines())} lines, imported by {package.name}.user0 alone: "
    assert says in result.stdout if refused else not result.stdout


LOADER = (
    "from ._lazy import NameLoader\nNAMES = {'.engine': 'local', '.other': 'one two'}\nload = NameLoader('p', NAMES)\n"
)
IN_PLACE = "__getattr__ = NameLoader(__name__, {'.engine': 'local'})\n"


@pytest.mark.parametrize(
    ("modules", "refused"),
    [
        ({"__init__.py": LOADER, "_engine.py": "", "local_engine/__init__.py": ""}, None),
        ({"__init__.py": LOADER, "local/__init__.py": ""}, "local: error: {0}.local is a name that the package offers"),
        (
            {"__init__.py": LOADER, "_x.py": "", "two.py": ""},
            "two.py: error: {0}.two is a name that the package offers",
        ),
        ({"hooks/__init__.py": IN_PLACE, "hooks/local.py": ""}, "local.py: error: {0}.hooks.local is a name"),
        ({"hooks/__init__.py": "from .local import local\n", "hooks/local.py": ""}, None),
        ({"terminal.py": ""}, "terminal.py: error: no page under docs imports from {0}.terminal: call it _terminal.py"),
        ({"errors.py": ""}, None),
    ],
)
def test_names_of_modules(tmp_path: Path, modules: dict[str, str], refused: str | None) -> None:
    package = write_package(tmp_path, modules)
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs/page.md").write_text(
        f"    from {package.name}.errors import X\n\nThe logger `{package.name}.terminal`.\n"
    )
    result = lint("lint_module_names.py", package)
    assert result.returncode == (refused is not None)
    assert refused.format(package.name) in result.stdout if refused else not result.stdout


def test_a_facade_may_be_longer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name, lines in (("client.py", 800), ("other.py", 601)):
        path = Path("perdure/client", name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("x = 1\n" * lines)
    assert lint("lint_lengths.py", Path("perdure")).stdout == (
        "perdure/client/other.py: error: file has 601 lines (limit 600)\n"
    )
    path = Path("perdure/client/client.py")
    path.write_text("x = 1\n" * 801)
    assert lint("lint_lengths.py", path).stdout == f"{path}: error: file has 801 lines (limit 800)\n"


CYCLES = {
    "run": ({"a.py": "from . import b\n", "b.py": "from .a import x\n"}, "{0}.a -> {0}.b -> {0}.a"),
    "type": (
        {"a.py": "from .b import x\n", "b.py": "if TYPE_CHECKING:\n    from .a import X\n"},
        "{0}.a -> {0}.b -> {0}.a\n    {0}.a, line 1: from .b import x\n    {0}.b, line 2: from .a import X\n",
    ),
    "lazy": (
        {"a.py": "from .b import x\n", "b.py": "def f():\n    from {0}.a import x\n"},
        "{0}.a -> {0}.b -> {0}.a",
    ),
    "three": (
        {"a.py": "from . import b", "b.py": "from . import c", "c.py": "from . import a"},
        "{0}.a -> {0}.b -> {0}.c -> {0}.a",
    ),
    "parts": (
        {"a/__init__.py": "", "a/low.py": "", "a/high.py": "from ..b import x", "b.py": "from .a.low import x"},
        "{0}.a -> {0}.b -> {0}.a\n    {0}.a.high, line 1: from ..b import x\n    {0}.b, line 1: from .a.low import x\n",
    ),
}


@pytest.mark.parametrize("kind", CYCLES)
def test_cycles(tmp_path: Path, kind: str) -> None:
    modules, says = CYCLES[kind]
    name = tmp_path.name
    package = write_package(tmp_path, {path: source.replace("{0}", name) for path, source in modules.items()})
    result = lint("lint_cycles.py", package)
    assert result.returncode == 1
    assert result.stdout.startswith("error: import cycle: " + says.format(name))
    assert result.stdout.count("error:") == 1


def test_without_a_cycle(tmp_path: Path) -> None:
    modules = {"a.py": "from .b import x\nfrom .c import x\n", "b.py": "from .c import x\n", "c.py": "import os\n"}
    assert lint("lint_cycles.py", write_package(tmp_path, modules)) == Said(0, "")


def test_exceptions_of_cycles(tmp_path: Path) -> None:
    package = write_package(tmp_path, {"a.py": "from . import b\n", "b.py": "from .a import x\n"})
    a, b, c = (f"{package.name}.{module}" for module in "abc")
    check = script("lint_cycles.py")["check"]
    assert not list(check(package, {(b, a): "a reason"}))
    assert list(check(package, {(b, a): "a reason", (b, c): "stale"})) == [
        f"error: {b} does not import {c}: remove the exception"
    ]


@pytest.mark.parametrize("name", ["lint_lengths.py", "lint_determinism.py"])
def test_as_make_runs_them(tmp_path: Path, name: str) -> None:
    path = tmp_path / "workflows" / "case.py"
    path.parent.mkdir()
    path.write_text("import time\n" + "x = 1\n" * 600)
    command = [sys.executable, f"scripts/{name}", str(path)]
    result = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert result.returncode == 1, result.stderr
    assert "error" in result.stdout


# --- words

MODULE = '''"""Sends, as :mod:`.wire` says. Files: ``perdure/wire.py``, not ``perdure/old.py``."""


class Sender:
    """``send`` is what it has; `Sender.send()` is, `Sender.post()` is not, `send_all` is not, and :func:`.wire.gone`.
    """

    def send(self, ctx: str) -> None:
        """Send, with ``ctx`` and without ``told``."""
'''


def test_names_in_backticks_exist(tmp_path: Path) -> None:
    package = tmp_path / "perdure"
    package.mkdir()
    (package / "wire.py").write_text("")
    (package / "sender.py").write_text(MODULE)
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "page.md").write_text(
        "See `perdure.wire`, `perdure.wires`.\n```python\nmy_name = 1\n```\n`my_name`\n"
    )
    said = lint("lint_words.py", tmp_path)
    unknown = [line.split("`")[1] for line in said.stdout.splitlines()]
    assert said.returncode == 1
    assert unknown == ["perdure.wires", "perdure/old.py", "Sender.post()", "send_all", ".wire.gone", "told"]


def git(folder: Path, *arguments: str) -> None:
    author = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
    subprocess.run(["git", "-C", str(folder), *author, *arguments], check=True, capture_output=True)


def test_idioms_are_found_in_changed_lines_alone(tmp_path: Path) -> None:
    page = tmp_path / "README.md"
    page.write_text("It goes on for ever.\n")
    assert lint("lint_words.py", tmp_path).returncode == 0, "there is no git"
    git(tmp_path, "init", "-b", "main")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-m", "one")
    assert lint("lint_words.py", tmp_path).returncode == 0, "nothing has changed"
    page.write_text(
        "It goes on for ever.\nThere is no way. It is no longer so.\nIt waits for ever.\nIt is no run, `nobody`.\n"
    )
    said = lint("lint_words.py", tmp_path)
    assert [line.partition(":")[2] for line in said.stdout.splitlines()] == [
        '3: error: "for ever": say it in plain words (STYLE.md, section 8)',
        '4: error: "is no run": say it in plain words (STYLE.md, section 8)',
    ]
