"""Packages of a Node program, installed from its lock: once for a lock, and outside the checkout."""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
import tempfile
from contextlib import suppress
from pathlib import Path

import pytest

from perdure.embedded.home import current_home

OLDEST = (20, 3)
"""Node that Temporal's SDK needs."""
UNREACHABLE = re.compile(
    r"\b(ENOTFOUND|EAI_AGAIN|ECONNREFUSED|ECONNRESET|ETIMEDOUT|ENETUNREACH|EHOSTUNREACH|ERR_SOCKET_TIMEOUT|E50[234])\b"
)


def toolchain() -> None:
    """Skip the test where Node is not installed, or too old."""
    if shutil.which("npm") is None or shutil.which("node") is None:
        pytest.skip("no node and npm on PATH: the TypeScript client was not tested")
    said = subprocess.run(["node", "--version"], capture_output=True, text=True, check=True).stdout
    if tuple(map(int, re.findall(r"\d+", said)[:2])) < OLDEST:
        pytest.skip(f"node is {said.strip()}, too old for Temporal's SDK: the TypeScript client was not tested")


def packages(folder: Path) -> Path:
    """The ``node_modules`` of ``folder``. Skips the test where npm cannot reach its registry; fails for all else."""
    toolchain()
    key = hashlib.sha256((folder / "package-lock.json").read_bytes()).hexdigest()[:16]
    target = current_home().root / "cache" / f"npm-{key}"
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        made = Path(tempfile.mkdtemp(dir=target.parent))
        try:
            install(folder, made)
            with suppress(OSError):  # another session was quicker
                made.rename(target)
        finally:
            shutil.rmtree(made, ignore_errors=True)
    return target / "node_modules"


def install(folder: Path, into: Path) -> None:
    """``npm ci``, without running anything of the packages."""
    for name in ("package.json", "package-lock.json", ".npmrc"):
        shutil.copy(folder / name, into)
    command = ["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--fetch-retries=1"]
    ended = subprocess.run(command, cwd=into, capture_output=True, text=True, check=False, timeout=240)
    if ended.returncode and (why := UNREACHABLE.search(ended.stderr)):
        pytest.skip(f"npm cannot reach its registry ({why[0]}): the TypeScript client was not tested")
    assert ended.returncode == 0, ended.stderr


def copy(folder: Path, modules: Path, into: Path) -> Path:
    """``folder`` in a place where it may be built, with its packages."""
    shutil.copytree(folder, into, ignore=shutil.ignore_patterns("node_modules", "*.js"))
    (into / "node_modules").symlink_to(modules)
    return into
