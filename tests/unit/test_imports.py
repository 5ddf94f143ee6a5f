"""What importing costs: no SDK or driver, and for the package alone nothing else either."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

import perdure

HEAVY = (
    "openai",
    "anthropic",
    "google.genai",
    "pydantic_ai",
    "mcp",
    "sqlalchemy",
    "alembic",
    "aiosqlite",
    "asyncpg",
    "genai_prices",
)
PARTS = ("client", "workflows", "agent", "worker", "tools", "mcp", "toolsets")
PUBLIC = [
    "Abort",
    "Agent",
    "Approval",
    "Client",
    "Compaction",
    "File",
    "HookSet",
    "Limits",
    "Memory",
    "Message",
    "ModelRetry",
    "PerdurePlugin",
    "RateLimit",
    "Response",
    "Run",
    "RunContext",
    "RunFacts",
    "Schedule",
    "Status",
    "Step",
    "Tool",
    "ToolContext",
    "Toolset",
    "Turn",
    "Veto",
    "Worker",
    "allow",
    "ask",
    "background",
    "callback_tool",
    "delegate",
    "deny",
    "hook",
    "load_agent",
    "local",
    "register_price",
    "register_provider",
    "remote_tool",
    "tool",
]


def test_no_sdk_and_no_driver_is_loaded() -> None:
    """By no import, nor by an agent of a known provider: a worker that never calls it need not have it, and a client's
    process starts quickly. One process for all of them: what one has loaded is still there behind the next. The first
    import loads no module but its own and those of Python.
    """
    steps = [f"import {name}" for name in ("perdure", *(f"perdure.{part}" for part in PARTS))]
    steps.append("perdure.Agent('a', 'openai:gpt-5', settings={'temperature': 0})")
    code = (
        "import sys, json\n"
        "before = set(sys.modules)\n"
        "import perdure\n"
        "print(json.dumps([name for name in sys.modules if name not in before"
        " and name.partition('.')[0] not in sys.stdlib_module_names]))\n"
        f"print(json.dumps([[step, exec(step, globals()) or [one for one in {HEAVY!r} if one in sys.modules]]"
        f" for step in {steps!r}]))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    own, loaded = map(json.loads, done.stdout.splitlines())
    assert own == ["perdure"]
    assert loaded == [[step, []] for step in steps]


def test_the_public_names_are_these() -> None:
    """A change here is a change of the public interface: say so in the changelog."""
    assert sorted(perdure.__all__) == PUBLIC
    assert perdure.__all__ == sorted(perdure.__all__)


def test_every_public_name_is_there() -> None:
    for name in PUBLIC:
        value = getattr(perdure, name)
        assert value.__name__ == {"Abort": "AbortError"}.get(name, name)
        assert name in dir(perdure)


def test_every_public_name_is_known_to_type_checkers() -> None:
    """Names that are loaded late stand twice in the module: the imports for type checkers must be the same names, from
    the same modules, and each exported (``Agent as Agent``)."""
    imports = [
        node for node in ast.walk(ast.parse(Path(perdure.__file__).read_text())) if isinstance(node, ast.ImportFrom)
    ]
    for_checkers = {alias.asname: node.module for node in imports if node.level for alias in node.names}
    assert for_checkers == perdure._MODULES


def test_star_import_gives_them_all(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in PUBLIC:  # as in a new process: none of them was asked for
        monkeypatch.delitem(vars(perdure), name, raising=False)
    names: dict[str, object] = {}
    exec("from perdure import *", names)  # noqa: S102  # not allowed in a function otherwise
    assert set(PUBLIC) <= set(names)


def test_a_name_that_is_not_there() -> None:
    with pytest.raises(AttributeError, match="module 'perdure' has no attribute 'Agnet'"):
        perdure.Agnet  # noqa: B018  # the look is what raises
