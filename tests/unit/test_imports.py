"""The public names of the package."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import perdure

PUBLIC = [
    "Abort",
    "Agent",
    "Approval",
    "Client",
    "ClientTool",
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
