"""``pytest --tried=FILE``: tests that passed in an earlier session with this file are left out; what became of the
others is added to it. ``scripts/run_tests.py``, which is ``make test``, gives what did not pass a second try with it.

The tests that wait longest come first, so that no process begins with one while the others have nothing left to do.
"""

from __future__ import annotations

import json
import zlib
from pathlib import Path
from typing import Any

import pytest


class Tried:
    """What became of the tests of this session, and which passed in those before."""

    def __init__(self, path: Path, config: pytest.Config) -> None:
        self.path = path
        self.config = config
        earlier = _read(path)
        self.before = set(earlier["passed"])
        ended_whole = not earlier.get("broken")  # else a test that did not begin is in no list
        self.files = {test.partition("::")[0] for test in earlier.get("failed", ())} if ended_whole else set()
        """Where the tests of a second try stand; empty: anywhere."""
        self._ended: set[str] = set()
        self._failed: dict[str, str] = {}
        self._broken = ""

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Every process of xdist leaves out the same ones: the file is not written before the end."""
        again = [item for item in items if item.nodeid not in self.before]
        if len(again) < len(items):
            self.config.hook.pytest_deselected(items=[item for item in items if item.nodeid in self.before])
            items[:] = again
        items.sort(key=_begins)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._failed[report.nodeid] = f"{report.when}: {_reason(report)}"
        elif report.when == "call" or report.skipped:
            self._ended.add(report.nodeid)

    def pytest_internalerror(self, excrepr: object) -> None:
        """The first one is the cause: xdist reports the error of a process, and stumbles over its absence then."""
        self._broken = self._broken or str(excrepr)[-2000:]

    def pytest_sessionfinish(self) -> None:
        if hasattr(self.config, "workerinput"):
            return  # a process of xdist: the one that started it has all reports
        passed = sorted(self.before | (self._ended - self._failed.keys()))
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_text(json.dumps({"passed": passed, "failed": self._failed, "broken": self._broken}, indent=1))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--tried", metavar="FILE", help="leave out what passed before, according to this file")
    parser.addoption("--half", metavar="1/2", help="half of the test files: 1/2 or 2/2; the other half is not imported")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """The files of the other half, and at a second try those where nothing failed: collecting all takes a minute.

    Which half a file is in goes by its name alone, so that none is in neither.
    """
    half: str | None = config.getoption("--half")
    tried: Tried | None = config.pluginmanager.get_plugin(Tried.__name__)
    if not collection_path.name.startswith("test_") or collection_path.is_dir():
        return None
    name = collection_path.relative_to(config.rootpath).as_posix()
    if tried is not None and tried.files and name not in tried.files:
        return True
    if half is None:
        return None
    return True if zlib.crc32(name.encode()) % 2 != int(half.partition("/")[0]) - 1 else None


def pytest_configure(config: pytest.Config) -> None:
    if path := config.getoption("--tried"):
        config.pluginmanager.register(Tried(Path(path), config), Tried.__name__)


def refuse_alone_elsewhere(item: pytest.Item) -> None:
    """The stage ``alone`` collects tests/acceptance only: elsewhere no stage of ``make test`` would run the test."""
    if item.get_closest_marker("alone") is not None and "acceptance" not in item.path.parts:
        raise pytest.UsageError(f"{item.nodeid} is marked alone: move it to tests/acceptance, where such tests stand")


def _begins(item: pytest.Item) -> int:
    """0 for tests of kills and heartbeats, 1 for others on a server, 2 for the rest."""
    if item.get_closest_marker("server") is None:
        return 2
    return 0 if "acceptance" in item.path.parts else 1


def _read(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text()) if path.exists() else {"passed": []}


def _reason(report: pytest.TestReport) -> str:
    """The last line of what pytest shows of a failure which says something."""
    crash = getattr(report.longrepr, "reprcrash", None)
    said = crash.message if crash is not None else str(report.longrepr)
    return next((line for line in said.splitlines() if line.strip()), "")[:300]
