"""The public names of the package."""

from __future__ import annotations

import ast
import importlib
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.util import spec_from_loader
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pydantic import BaseModel

import perdure
import perdure.types

PUBLIC = [
    "Abort",
    "Agent",
    "AgentSpec",
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


LAZY = ("perdure", "perdure.events", "perdure.hooks", "perdure.providers")


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


@pytest.mark.parametrize("name", LAZY)
def test_names_that_are_loaded_late_are_listed_and_imported_by_a_star(name: str) -> None:
    code = (
        f"import sys; module = __import__({name!r}, fromlist=['_'])\n"
        "late = (module._load_name if module.__name__ == 'perdure' else module.__getattr__).homes\n"
        f"listed, names = dir(module), {{}}; exec('from {name} import *', names)\n"
        "print([one for one in late if one not in listed], [one for one in late if one not in names])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    internal = ["build_worker_lost_retraction", "decode_event", "encode_event_body"] if name == "perdure.events" else []
    assert done.stdout.strip() == f"[] {internal}"


class _HeldLoader(SourceFileLoader):
    """Holds the import of its package, before others can see it, until another thread waits for it."""

    start_other: Callable[[], threading.Thread]

    def create_module(self, spec: ModuleSpec) -> None:
        other = self.start_other()
        until = time.monotonic() + 60
        while not self._is_waiting(other, spec.name):
            assert time.monotonic() < until, "the other thread does not wait"
            time.sleep(0.001)  # there is no event for a thread that waits for a lock

    def _is_waiting(self, thread: threading.Thread, package: str) -> bool:
        frame = sys._current_frames().get(thread.ident or 0)
        lock = None if frame is None or frame.f_code.co_name != "acquire" else frame.f_locals.get("self")
        return getattr(lock, "name", None) == package


def test_two_threads_that_are_the_first_to_use_names_of_a_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "lazy_demo/parts").mkdir(parents=True)
    (tmp_path / "lazy_demo/__init__.py").write_text(
        "from perdure._lazy import NameLoader\n"
        "__getattr__ = NameLoader(__name__, {'.parts': 'whole', '.parts.one': 'part'})\n"
    )
    (tmp_path / "lazy_demo/parts/__init__.py").write_text("from .one import part\nwhole = [part]\n")
    (tmp_path / "lazy_demo/parts/one.py").write_text("part = 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    demo: Any = importlib.import_module("lazy_demo")
    with ThreadPoolExecutor() as threads:
        parts = list[Future[object]]()

        def start_other() -> threading.Thread:
            begun = Future[threading.Thread]()
            parts.append(threads.submit(lambda: begun.set_result(threading.current_thread()) or demo.part))
            return begun.result()

        loader = _HeldLoader("lazy_demo.parts", str(tmp_path / "lazy_demo/parts/__init__.py"))
        loader.start_other = start_other
        spec = spec_from_loader(loader.name, loader, is_package=True)
        finder = SimpleNamespace(find_spec=lambda name, *_: spec if name == loader.name else None)
        monkeypatch.setattr(sys, "meta_path", [finder, *sys.meta_path])
        assert demo.whole == [1]
        assert parts[0].result() == 1
    for name in [name for name in sys.modules if name.partition(".")[0] == "lazy_demo"]:
        monkeypatch.delitem(sys.modules, name)


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
