"""Packages of a Node program, installed from its lock: once for a lock, and outside the checkout.

Where there is no npm the tests are left out, and the end of pytest's output says so. With ``PERDURE_REQUIRE_NPM`` in
the environment, as in ``.ci/run``, they fail instead.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from perdure.embedded.home import current_home
from tests.support.left_out import leave_out

OLDEST = (20, 15)
"""Node that the packages need."""
UNREACHABLE = re.compile(
    r"\b(ENOTFOUND|EAI_AGAIN|ECONNREFUSED|ECONNRESET|ETIMEDOUT|ENETUNREACH|EHOSTUNREACH|ERR_SOCKET_TIMEOUT|E50[234])\b"
)


def packages(folder: Path, what: str) -> Path:
    """The ``node_modules`` of ``folder``. Leaves the test of ``what`` out where there is no npm, or it cannot reach its
    registry; fails for all else."""
    _toolchain(what)
    key = hashlib.sha256((folder / "package-lock.json").read_bytes()).hexdigest()[:16]
    target = current_home().root / "cache" / f"npm-{key}"
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        made = Path(tempfile.mkdtemp(dir=target.parent))
        try:
            _install(folder, made, what)
            with suppress(OSError):  # another session was quicker
                made.rename(target)
        finally:
            shutil.rmtree(made, ignore_errors=True)
    return target / "node_modules"


def copy(folder: Path, modules: Path, into: Path) -> Path:
    """``folder`` in a place where it may be built, with its packages."""
    shutil.copytree(folder, into, ignore=shutil.ignore_patterns("node_modules", "*.js"))
    (into / "node_modules").symlink_to(modules)
    return into


def _toolchain(what: str) -> None:
    if shutil.which("npm") is None or shutil.which("node") is None:
        _leave_out(what, "no node and npm on PATH")
    said = subprocess.run(["node", "--version"], capture_output=True, text=True, check=True).stdout
    if tuple(map(int, re.findall(r"\d+", said)[:2])) < OLDEST:
        _leave_out(what, f"node is {said.strip()}, older than {OLDEST[0]}.{OLDEST[1]}")


def _install(folder: Path, into: Path, what: str) -> None:
    """``npm ci``, without running anything of the packages."""
    for name in ("package.json", "package-lock.json", ".npmrc"):
        shutil.copy(folder / name, into)
    # Who has no network shall not wait for it; who must have the packages, for a registry that is busy.
    retries = 3 if os.environ.get("PERDURE_REQUIRE_NPM") else 1
    command = ["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund", f"--fetch-retries={retries}"]
    ended = subprocess.run(command, cwd=into, capture_output=True, text=True, check=False, timeout=240)
    if ended.returncode and (why := UNREACHABLE.search(ended.stderr)):
        _leave_out(what, f"npm cannot reach its registry ({why[0]})")
    assert ended.returncode == 0, ended.stderr


def _leave_out(what: str, why: str) -> NoReturn:
    leave_out(what, why, required_by="PERDURE_REQUIRE_NPM")
