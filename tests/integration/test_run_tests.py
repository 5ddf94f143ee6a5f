"""``make test``: what does not pass gets a second try, and the end of the output says what is left."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from scripts import run_tests
from scripts.run_tests import Stage

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


@pytest.fixture
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stage:
    monkeypatch.setattr(run_tests, "STATE", tmp_path / "state")
    suite = tmp_path / "test_suite.py"
    suite.write_text(SUITE)
    return Stage("some", ("-n", "1", "--rootdir", str(tmp_path), str(suite)), tries=2)


def test_what_does_not_pass_gets_a_second_try(stage: Stage, capfd: pytest.CaptureFixture[str]) -> None:
    assert stage.run() == run_tests.FAILED
    stage.report()
    assert json.loads(stage.state.read_text())["passed"] == [
        f"test_suite.py::test_{name}" for name in ("passes", "passes_at_its_second_try", "takes_its_process_along")
    ]
    said = capfd.readouterr().out
    assert "3 failed, 1 passed" in said
    assert "1 failed, 2 passed in" in said
    *_, left = said.partition("== did not pass (some):")
    assert left.split()[:4] == ["test_suite.py::test_fails", "call:", "AssertionError:", "never"]


def test_the_second_try_may_have_nothing_left_to_do(stage: Stage) -> None:
    """As when pytest itself fails at the very end."""
    stage.state.parent.mkdir()
    names = [line.split("(")[0].removeprefix("def ") for line in SUITE.splitlines() if line.startswith("def test")]
    stage.state.write_text(json.dumps({"passed": [f"test_suite.py::{name}" for name in names], "failed": {}}))
    assert stage._try(2) == 0
    assert stage._try(1) == run_tests.NONE_LEFT
