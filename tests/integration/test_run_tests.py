"""``make test``: what does not pass gets a second try, and the end of the output says what is left."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from scripts import run_tests
from scripts.run_tests import Stage
from tests.support.engine import ROOT
from tests.support.tries import pytest_ignore_collect, refuse_alone_elsewhere

SUITE = """
import os
from pathlib import Path

def first(what):
    seen = Path(__file__).with_name(what)
    if seen.exists():
        return False
    seen.touch()
    return True

def test_passes():
    assert first("passed"), "it is not run again"

def test_passes_at_its_second_try():
    assert not first("failed")

def test_takes_its_process_along():
    if first("crashed"):
        os._exit(3)

def test_fails():
    assert 1 == 2, "never"
"""


AT_FIRST = ("passes_at_its_second_try", "takes_its_process_along", "fails")
"""What does not pass at the first try."""


@pytest.fixture
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stage:
    monkeypatch.setattr(run_tests, "STATE", tmp_path / "state")
    suite = tmp_path / "test_suite.py"
    suite.write_text(SUITE)
    return Stage("some", ("-n", "1", "--rootdir", str(tmp_path), str(suite)), tries=2)


@pytest.mark.slow
def test_what_does_not_pass_gets_a_second_try(stage: Stage, capfd: pytest.CaptureFixture[str]) -> None:
    assert stage.run() == run_tests.FAILED
    stage.report()
    assert json.loads(stage.state.read_text())["passed"] == [
        f"test_suite.py::test_{name}" for name in ("passes", "passes_at_its_second_try", "takes_its_process_along")
    ]
    said = capfd.readouterr().out
    assert "3 failed, 1 passed" in said
    assert "1 failed, 2 passed in" in said
    assert list(stage.tried_twice) == [f"test_suite.py::test_{name}" for name in AT_FIRST]
    *_, left = said.partition("== did not pass (some):")
    assert left.split()[:4] == ["test_suite.py::test_fails", "call:", "AssertionError:", "never"]


def test_the_second_try_may_have_nothing_left_to_do(stage: Stage) -> None:
    """As when pytest itself fails at the very end."""
    stage.state.parent.mkdir()
    alone = Stage(stage.name, stage.arguments[2:], tries=2)  # without xdist
    names = [line.split("(")[0].removeprefix("def ") for line in SUITE.splitlines() if line.startswith("def test")]
    stage.state.write_text(json.dumps({"passed": [f"test_suite.py::{name}" for name in names], "failed": {}}))
    assert alone._try(2) == 0
    assert alone._try(1) == run_tests.NONE_LEFT


@pytest.mark.parametrize(("broken", "imports"), [("", False), ("INTERNALERROR", True)])
def test_a_second_try_imports_no_file_without_a_failure(
    stage: Stage, tmp_path: Path, capfd: pytest.CaptureFixture[str], *, broken: str, imports: bool
) -> None:
    """But all of them where pytest itself failed: then some tests may not have begun."""
    (tmp_path / "test_other.py").write_text("raise OSError('imported')\n")
    (tmp_path / "test_suite.py").write_text("def test_fails():\n    pass\n")
    alone = Stage(stage.name, ("--rootdir", str(tmp_path), str(tmp_path)), tries=2)
    stage.state.parent.mkdir()
    stage.state.write_text(json.dumps({"passed": [], "failed": {"test_suite.py::test_fails": ""}, "broken": broken}))
    assert (alone._try(2) != 0) == imports
    assert ("OSError: imported" in capfd.readouterr().out) == imports


@pytest.mark.parametrize(
    ("codes", "ended"), [([0, 0], 0), ([1, 0], 1)], ids=["all pass in the end", "a stage that fails is the last"]
)
def test_the_end_names_what_was_tried_twice(
    codes: list[int], ended: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stages = [Stage(f"stage-{n}", (), tries=1, tried_twice={f"test_{n}": "Busy"}) for n in range(2)]
    monkeypatch.setattr(run_tests, "STAGES", {"everyday": [[stage] for stage in stages]})
    monkeypatch.setattr(Stage, "run", lambda stage: codes[stages.index(stage)])
    monkeypatch.setattr("sys.argv", ["run_tests.py"])
    assert run_tests.main() == ended
    said = capsys.readouterr().out
    assert ("== passed at the second try alone: 2\ntest_0\n    Busy\ntest_1\n    Busy\n" in said) == (ended == 0)
    assert ("did not pass (stage-0)" in said) == (ended == 1)


def test_a_stage_that_is_killed_beside_one_that_passes_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    stages = (Stage("killed", (), tries=1), Stage("passes", (), tries=1))
    monkeypatch.setattr(run_tests, "STAGES", {"everyday": (stages,)})
    monkeypatch.setattr(Stage, "run", lambda stage: -9 if stage.name == "killed" else 0)
    monkeypatch.setattr("sys.argv", ["run_tests.py"])
    assert run_tests.main() == -9


def test_every_test_belongs_to_one_stage() -> None:
    """However it is marked, and wherever it stands: of the everyday ones or of the rest."""
    for path, slow, node, postgres, alone in itertools.product(
        ("tests/unit", "tests/integration", *run_tests.ALONE), *[(False, True)] * 4
    ):
        if alone and path not in run_tests.ALONE:
            continue  # tests/conftest.py refuses it
        marks = {"slow": slow, "node": node, "postgres": postgres, "alone": alone}
        takes = [
            stage.name
            for groups in run_tests.STAGES.values()
            for stages in groups
            for stage in stages
            if stage.name != "properties"  # once more, with more examples
            if "--half=2/2" not in stage.arguments
            if eval(stage.arguments[stage.arguments.index("-m") + 1], marks)  # noqa: S307  # as pytest does
            and _collects(stage, path)
        ]
        assert len(takes) == 1, (marks, path, takes)


def _collects(stage: Stage, path: str) -> bool:
    folders = [argument for argument in stage.arguments if argument.startswith("tests/")] or [path]
    return path in folders and f"--ignore={path}" not in stage.arguments


@pytest.mark.parametrize("name", ["test_a.py", "deeper/test_a.py", "test_b.py", "conftest.py", "__init__.py"])
def test_every_unit_test_is_in_one_half(name: str) -> None:
    def ignores(half: str) -> bool | None:
        plugins = SimpleNamespace(get_plugin=lambda _: None)
        config: Any = SimpleNamespace(getoption=lambda _: half, rootpath=ROOT, pluginmanager=plugins)
        return pytest_ignore_collect(ROOT / "tests/unit" / name, config)

    ignored = [half for half in run_tests.HALVES if ignores(half)]
    assert len(ignored) == int("test_" in name), "a conftest is in both halves"


def test_the_mark_alone_is_refused_where_its_stage_does_not_look(request: pytest.FixtureRequest) -> None:
    item = pytest.Function.from_parent(request.node.parent, name="here", callobj=lambda: None)
    refuse_alone_elsewhere(item)
    item.add_marker(pytest.mark.alone)
    with pytest.raises(pytest.UsageError, match=r"test_run_tests\.py::here is marked alone.*tests/acceptance"):
        refuse_alone_elsewhere(item)
