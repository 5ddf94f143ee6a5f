"""``make test`` and ``make test-all``: the test suite in stages, and what did not pass once more.

Without an argument the unit tests, then the others, but none marked ``slow``, ``node`` or ``postgres``; with ``rest``
those alone, and the property tests again, with more examples.
Tests on real servers mostly wait, so more processes than there are cores run them, each with a server of its own; those
marked ``alone`` come last. A test of real processes and servers that fails gets a second try, in new processes and on
new servers: the machine may have other things to do. A unit test gets one.

The last lines of the output name what passed only then, or what did not pass, why, and what the machine was like.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

STATE = Path("build/tests")
FAILED, BROKEN, NONE_LEFT = 1, 3, 5  # exit codes of pytest


@dataclass(frozen=True)
class Stage:
    """One call of pytest, and how often it may be made."""

    name: str
    arguments: tuple[str, ...]
    tries: int
    shows_late: bool = False
    """Its output is shown when it has ended: another stage runs beside it."""
    tried_twice: dict[str, str] = field(default_factory=dict)
    """What did not pass at the first try, with the reason."""

    @property
    def state(self) -> Path:
        return STATE / f"{self.name}.json"

    def run(self) -> int:
        """Exit code of the last try."""
        self.state.unlink(missing_ok=True)
        self.tried_twice.clear()
        for number in range(1, self.tries + 1):
            if number > 1:
                self.tried_twice.update(self.left())
            code = self._try(number)
            if code not in (FAILED, BROKEN):
                return code
        return code

    def _try(self, number: int) -> int:
        title = [f"\n== {self.name}"]
        if number > 1:
            title = [f"\n== second try of what did not pass ({self.name}):", *self.left()]
        if not self.shows_late:
            print(*title, sep="\n", flush=True)
        command = [sys.executable, "-m", "pytest", "-q", "-p", "tests.support.tries", f"--tried={self.state}"]
        output = (subprocess.PIPE, subprocess.STDOUT) if self.shows_late else (None, None)
        ended = subprocess.run([*command, *self.arguments], check=False, stdout=output[0], stderr=output[1], text=True)
        if self.shows_late:
            print(*title, ended.stdout, sep="\n", flush=True)
        none_expected = number > 1 or self.name == "alone"  # the stage of those marked alone may be empty
        return 0 if ended.returncode == NONE_LEFT and none_expected else ended.returncode

    def left(self) -> dict[str, str]:
        """What did not pass, with the reason."""
        return json.loads(self.state.read_text())["failed"] if self.state.exists() else {}

    def report(self) -> None:
        """What did not pass, in few lines: some places show the end of a long output alone."""
        print(f"\n== did not pass ({self.name}):")
        _print_reasons(self.left())
        if self.state.exists() and (broken := json.loads(self.state.read_text())["broken"]):
            print("pytest itself failed:", broken[-500:])
        print(f"the machine: {_machine()}", flush=True)


EVERYDAY = "not slow and not node and not postgres"
REST = "(slow or node or postgres)"
BESIDE = ("--dist", "load", "--maxschedchunk", "1", "-n")
"""Each process is given the next test of the list, which tests/support/tries.py begins with the longest."""
ALONE = ("tests/acceptance",)
"""Where tests may be marked ``alone``; tests/conftest.py refuses the mark elsewhere. Collecting them all takes 10 s."""
PROPERTIES = ("tests/unit", "tests/contract", "tests/acceptance/test_control.py")
"""Where property tests stand; ``make test-all`` runs them again with more examples."""
HALVES = ("1/2", "2/2")
"""Two processes without xdist take three quarters of the CPU: each collects its own files alone."""
STAGES = {
    "everyday": (
        tuple(
            Stage(
                f"unit-{half[0]}", (f"--half={half}", "tests/unit", "-m", EVERYDAY), tries=1, shows_late=half != "1/2"
            )
            for half in HALVES
        ),
        (Stage("servers", (*BESIDE, "7", "--ignore=tests/unit", "-m", f"{EVERYDAY} and not alone"), tries=2),),
        (Stage("alone", (*ALONE, "-m", f"{EVERYDAY} and alone"), tries=2),),
    ),
    "rest": (
        (Stage("rest", (*BESIDE, "3", "-m", f"{REST} and not alone"), tries=2),),
        (Stage("properties", ("-n", "2", *PROPERTIES, "-m", "hypothesis", "--hypothesis-profile=rest"), tries=1),),
        (Stage("rest-alone", (*ALONE, "-m", f"{REST} and alone"), tries=2),),
    ),
}
"""The stages of a group run beside each other."""


def _print_reasons(failures: dict[str, str]) -> None:
    for test, reason in list(failures.items())[:8]:
        print(f"{test[:110]}\n    {reason[:140]}")


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
    groups = STAGES[sys.argv[1] if sys.argv[1:] else "everyday"]
    for stages in groups:
        with ThreadPoolExecutor() as pool:
            codes = list(pool.map(Stage.run, stages))
        for stage, code in zip(stages, codes, strict=True):
            if code:
                stage.report()
        if any(codes):
            return next(code for code in codes if code)  # negative for a process that was killed
    if twice := {test: reason for stages in groups for stage in stages for test, reason in stage.tried_twice.items()}:
        print(f"\n== passed at the second try alone: {len(twice)}")
        _print_reasons(twice)
    return 0


if __name__ == "__main__":
    sys.exit(main())
