"""The public names of the package."""

from __future__ import annotations

import ast
import importlib
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

import perdure
import perdure.types

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


LAZY = ("perdure", "perdure.events", "perdure.hooks", "perdure.ports", "perdure.providers")


def test_the_public_names_are_these() -> None:
    """A change here is a change of the public interface: say so in the changelog."""
    assert sorted(perdure.__all__) == PUBLIC
    assert perdure.__all__ == sorted(perdure.__all__)


def test_every_public_name_is_there() -> None:
    for name in PUBLIC:
        value = getattr(perdure, name)
        assert value.__name__ == {"Abort": "AbortError"}.get(name, name)
        assert name in dir(perdure)


@pytest.mark.parametrize("name", LAZY)
def test_names_that_are_loaded_late_are_known_to_type_checkers(name: str) -> None:
    """They stand twice in the module: the imports for type checkers must be the same names, from the same modules, and
    each exported (``Agent as Agent``, or in ``__all__``). Type checkers do not see ``__getattr__``: they would take any
    name."""
    module: Any = importlib.import_module(name)
    tree = ast.parse(Path(module.__file__).read_text())
    [hidden] = [node for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"]
    for_checkers = {
        alias.name: f".{node.module}"
        for node in hidden.body
        if isinstance(node, ast.ImportFrom) and node.module
        for alias in node.names
        if alias.asname == alias.name or alias.name in module.__all__
    }
    homes = module._load_name.homes if module is perdure else module.__getattr__.homes
    assert for_checkers == homes
    assert not [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == "__getattr__"]
    for late in homes:
        assert getattr(module, late) is not None


def test_star_import_gives_them_all(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in PUBLIC:  # as in a new process: none of them was asked for
        monkeypatch.delitem(vars(perdure), name, raising=False)
    names: dict[str, object] = {}
    exec("from perdure import *", names)  # noqa: S102  # not allowed in a function otherwise
    assert set(PUBLIC) <= set(names)


def test_a_name_that_is_not_there() -> None:
    with pytest.raises(AttributeError, match="module 'perdure' has no attribute 'Agnet'"):
        perdure.Agnet  # noqa: B018  # the look is what raises


def test_modules_with_models_have_annotations_that_pydantic_need_not_compile() -> None:
    checked = 0
    for path in sorted(Path(perdure.types.__file__).parent.glob("*.py")):
        module = importlib.import_module(f"perdure.types.{path.stem}")
        kinds = [kind for kind in vars(module).values() if isinstance(kind, type) and issubclass(kind, BaseModel)]
        if any(kind.__module__ == module.__name__ for kind in kinds):
            assert "annotations" not in vars(module), f"{path.name}: from __future__ import annotations"
            checked += 1
    assert checked > 8
