"""What the plugin adds to the configuration of a Temporal worker."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from temporalio.common import WorkerDeploymentVersion
from temporalio.worker import WorkerConfig, WorkerDeploymentConfig

from perdure import Agent, PerdurePlugin
from perdure.worker.plugin import get_build_id

PLAIN: Any = SimpleNamespace(config=lambda **_: {"interceptors": []})
"""A client, as far as plugins ask."""
VERSIONED = WorkerDeploymentConfig(
    version=WorkerDeploymentVersion(deployment_name="agents", build_id="7"), use_worker_versioning=True
)


@pytest.mark.parametrize(
    ("given", "build_id"),
    [
        ({}, get_build_id()),
        ({"build_id": None}, get_build_id()),
        ({"build_id": "mine"}, "mine"),
        ({"deployment_config": VERSIONED}, None),
        ({"build_id": "mine", "use_worker_versioning": True}, "mine"),
    ],
)
def test_a_worker_without_a_version_has_the_engines_build_id(
    given: dict[str, Any], build_id: str | None, tmp_path: Path
) -> None:
    plugin = PerdurePlugin([Agent("a", "openai:gpt-5")], store_url=f"sqlite:///{tmp_path}/store.db")
    config = plugin.configure_worker(WorkerConfig(client=PLAIN, task_queue="q", **given))
    assert config.get("build_id") == build_id


def test_the_build_id_changes_with_the_programs_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "program_of_the_build.py"
    monkeypatch.syspath_prepend(str(tmp_path))
    seen = []
    for code in ("answer = 1", "answer = 1", "answer = 2"):
        program.write_text(code)
        monkeypatch.setitem(sys.modules, program.stem, importlib.import_module(program.stem))
        seen.append(get_build_id.__wrapped__())
    assert seen[0] == seen[1] != seen[2]
    program.unlink()
    assert get_build_id.__wrapped__() not in seen


class Odd:
    """Stands in ``sys.modules`` for what some programs put there."""

    def __init__(self, file: object) -> None:
        self.__file__ = file

    def __getattr__(self, name: str) -> None:
        raise ImportError("lazy")


@pytest.mark.parametrize("make", [lambda: Odd(None), lambda: Odd(Path("x.py")), lambda: Odd("/no/file.py"), lambda: 3])
def test_an_odd_module_stops_no_worker(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    build_id = get_build_id.__wrapped__()
    monkeypatch.setitem(sys.modules, "odd_module_of_a_program", make())
    assert get_build_id.__wrapped__() == build_id
