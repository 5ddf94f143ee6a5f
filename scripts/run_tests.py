"""``make test``: the whole test suite, and what did not pass once more.

The quick ones first. Those of real servers mostly wait, so several processes, each with a server of its own, run them
beside each other; those marked ``alone`` come last. A test of real processes and servers that fails gets a second try,
in new processes and on new servers: the machine may have other things to do. A unit test gets one.

The last lines of the output say what did not pass, why, and what the machine was like.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

STATE = Path("build/tests")
FAILED, BROKEN, NONE_LEFT = 1, 3, 5  # exit codes of pytest


@dataclass(frozen=True)
class Stage:
    """One call of pytest, and how often it may be made."""

    name: str
    arguments: tuple[str, ...]
    tries: int

    @property
    def state(self) -> Path:
        return STATE / f"{self.name}.json"

    def run(self) -> int:
        """Exit code of the last try."""
        self.state.unlink(missing_ok=True)
        for number in range(1, self.tries + 1):
            code = self._try(number)
            if code not in (FAILED, BROKEN):
                return code
        return code

    def _try(self, number: int) -> int:
        if number > 1:
            print(f"\n== second try of what did not pass ({self.name}):", *self.left(), sep="\n", flush=True)
        command = [sys.executable, "-m", "pytest", "-q", "-p", "tests.support.tries", f"--tried={self.state}"]
        code = subprocess.run([*command, *self.arguments], check=False).returncode
        return 0 if code == NONE_LEFT and number > 1 else code

    def left(self) -> dict[str, str]:
        """What did not pass, with the reason."""
        return json.loads(self.state.read_text())["failed"] if self.state.exists() else {}

    def report(self) -> None:
        """What did not pass, in few lines: some places show the end of a long output alone."""
        print(f"\n== did not pass ({self.name}):")
        for test, reason in list(self.left().items())[:8]:
            print(f"{test[:110]}\n    {reason[:140]}")
        if self.state.exists() and (broken := json.loads(self.state.read_text())["broken"]):
            print("pytest itself failed:", broken[-500:])
        print(f"the machine: {_machine()}", flush=True)


BESIDE = ("--dist", "worksteal", "-n")
STAGES = (
    Stage("unit", (*BESIDE, "2", "tests/unit"), tries=1),
    Stage("servers", (*BESIDE, "3", "--ignore=tests/unit", "-m", "not alone"), tries=2),
    Stage("alone", ("--ignore=tests/unit", "-m", "alone"), tries=2),
)


def _machine() -> str:
    """Disk, memory and load, where they can be read."""
    said = [f"{shutil.disk_usage('.').free >> 20:,} MiB of disk free"]
    if (memory := Path("/proc/meminfo")).exists():
        lines = dict(line.split(":", 1) for line in memory.read_text().splitlines())
        said.append(f"{int(lines['MemAvailable'].split()[0]) >> 10:,} MiB of memory available")
    said.append("load " + " ".join(f"{one:.1f}" for one in os.getloadavg()))
    return ", ".join(said)


def main() -> int:
    """Exit code of the first stage that failed twice, or 0."""
    for stage in STAGES:
        if code := stage.run():
            stage.report()
            return code
    return 0


if __name__ == "__main__":
    sys.exit(main())
