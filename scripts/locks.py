"""Resolves the locks under requirements/ anew, or says what is newer than they are.

Usage: locks.py [uv's options]    writes the locks; `--upgrade` raises versions
       locks.py --outdated        prints what the package index has newer, and writes nothing

`--outdated` resolves each lock as `--upgrade` would, so it names what the bounds of pyproject.toml allow, and compares
the dependencies of each package.json with npm's newest, if npm is there. It ends with 0 whatever it finds.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
REQUIREMENTS = ROOT / "requirements"
PIN = re.compile(r"^([A-Za-z0-9._-]+)(?:\[.*\])?==([^ ;\\]+)", re.MULTILINE)


@dataclass(frozen=True)
class Lock:
    """A file under requirements/: what it resolves, and the lock whose versions it keeps."""

    name: str
    source: Sequence[str]
    within: str = ""
    without: str = ""
    """The package of ``within`` that may have another version."""
    packages: str = ""
    """What it resolves, if that stands in no file."""
    folder: str = "requirements"

    @property
    def path(self) -> Path:
        """The file."""
        return ROOT / self.folder / f"{self.name}.txt"


def _group(name: str) -> tuple[str, str]:
    return ("--group", f"pyproject.toml:{name}")


_WORKER_EXTRAS = "openai anthropic google encryption yaml mcp postgres objects server uvloop"
LOCKS = (
    Lock("dev", ("--extra", "dev", "pyproject.toml")),
    Lock("types", _group("types")),
    Lock("postgres", _group("postgres"), within="dev"),
    Lock("browser", _group("browser"), within="dev"),
    Lock("objects", _group("objects")),
    Lock("deploy", _group("deploy")),
    Lock("fuzz", _group("fuzz")),
    # The lock's versions, but for the one that a peer refuses.
    Lock("peers", ("--no-annotate", *_group("peers")), within="dev", without="websockets"),
    # What the image of a worker needs, and what builds its wheel.
    Lock(
        "requirements",
        (*(f"--extra={extra}" for extra in _WORKER_EXTRAS.split()), "pyproject.toml"),
        within="dev",
        folder="deploy",
    ),
    Lock("build-requirements", ("--no-annotate", "-"), within="dev", packages="hatchling", folder="deploy"),
)
"""evals.txt is written by hand: it is installed without its dependencies."""


def resolve(lock: Lock, output: Path, folder: Path, options: Sequence[str]) -> None:
    """Resolve ``lock`` into ``output``; the locks that it keeps to are in ``folder``."""
    within: list[str] = []
    if lock.within:
        pins = PIN.findall((folder / f"{lock.within}.txt").read_text())
        constraints = output.with_name(f".{lock.name}-constraints.txt")
        constraints.write_text("".join(f"{name}=={version}\n" for name, version in pins if name != lock.without))
        within = ["-c", str(constraints)]
    # Locks name the extras of packages, as pip 23 refuses a package that is pinned without the extra that is asked for.
    fixed = [
        "--quiet",
        "--universal",
        "--no-strip-extras",
        "--python-version",
        "3.11",
        "--generate-hashes",
        "--no-emit-index-url",
    ]
    command = [find_uv(), "pip", "compile", *fixed, *lock.source, *within, "-o", str(output), *options]
    try:
        environment = {**os.environ, "UV_CUSTOM_COMPILE_COMMAND": "make lock"}
        subprocess.run(command, cwd=ROOT, env=environment, check=True, input=lock.packages, text=True)
    finally:
        if lock.within:
            constraints.unlink()
    # That a version is of another lock is left out: it would name a file that is gone.
    output.write_text(
        re.sub(rf"^ +#   -c \S*\.{lock.name}-constraints\.txt\n", "", output.read_text(), flags=re.MULTILINE)
    )


def find_uv() -> str:
    """uv of this environment, or of the machine; it is installed if there is none."""
    own = Path(sys.executable).parent / "uv"
    if not own.exists() and shutil.which("uv") is None:
        subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", "uv"], check=True)
    return str(own) if own.exists() else shutil.which("uv") or "uv"


def list_outdated() -> Iterator[tuple[str, str, str, str]]:
    """The file, package, version there, and newest version of all that is behind."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for lock in LOCKS:
            newest = folder / lock.path.name
            resolve(lock, newest, folder, ["--upgrade"])
            yield from compare(lock.path, newest.read_text())
    if (npm := shutil.which("npm")) is None:
        print("npm is not there: nothing is said of package.json files", file=sys.stderr)
        return
    files = subprocess.run(["git", "ls-files", "*package.json"], cwd=ROOT, capture_output=True, text=True, check=True)
    for path in map(ROOT.joinpath, files.stdout.split()):
        yield from compare_npm(npm, path)


def compare(lock: Path, newest: str) -> Iterator[tuple[str, str, str, str]]:
    """What ``lock`` has in another version than ``newest``, a lock's text."""
    found: dict[str, list[str]] = {}  # more than one where it depends on the platform
    for package, version in PIN.findall(newest):
        found.setdefault(package, []).append(version)
    for package, version in PIN.findall(lock.read_text()):
        if version not in found.get(package, [version]):
            yield str(lock.relative_to(ROOT)), package, version, found[package][-1]


def compare_npm(npm: str, path: Path) -> Iterator[tuple[str, str, str, str]]:
    """Those dependencies of a package.json of which npm has a newer version."""
    declared: Mapping[str, Mapping[str, str]] = json.loads(path.read_text())
    for package in sorted({**declared.get("dependencies", {}), **declared.get("devDependencies", {})}):
        locked = json.loads(path.with_name("package-lock.json").read_text())["packages"]
        version = locked[f"node_modules/{package}"]["version"]
        told = subprocess.run([npm, "view", package, "version"], capture_output=True, text=True, check=False)
        newest = told.stdout.strip()
        if told.returncode == 0 and newest and newest != version:
            yield str(path.relative_to(ROOT)), package, version, newest


def main() -> None:
    """See the module."""
    if "--outdated" not in sys.argv:
        for lock in LOCKS:
            resolve(lock, lock.path, REQUIREMENTS, sys.argv[1:])
        return
    count = 0
    for file, package, version, newest in list_outdated():
        count += 1
        print(f"{file:<44} {package:<32} {version:<18} {newest}", flush=True)
    print(f"{count} behind; make lock ARGS=--upgrade raises the locks" if count else "nothing is behind")


if __name__ == "__main__":
    main()
