"""A machine of its own for each test: an empty home, an empty PATH, no configuration."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from perdure.embedded.home import Home

VERSION_LINE = "temporal version 0.0.0-DEV (Server 1.29.1, UI 2.42.1)"

MakeProgram = Callable[..., Path]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    """An empty home, which PERDURE_HOME names."""
    for name in [name for name in os.environ if name.startswith(("PERDURE_", "TEMPORAL_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path / "user"))
    monkeypatch.setenv("PERDURE_HOME", str(tmp_path / "home"))
    return Home(tmp_path / "home")


@pytest.fixture
def path_dir(home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only directory on PATH, empty."""
    folder = tmp_path / "path"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    return folder


@pytest.fixture
def program() -> MakeProgram:
    """Makes an executable file; by default a dev server that only knows its version."""

    def make(path: Path, script: str = f"echo '{VERSION_LINE}'") -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
        return path

    return make
