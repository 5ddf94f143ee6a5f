"""What type checkers say of the programs in tests/types and of the examples: mypy and basedpyright, both strict.

An error that a program expects stands on its line as ``# E: CODE, RULE``: mypy's code, and basedpyright's rule. ``-``:
that checker does not find it. Any other error, and an expected one that is not reported, fails.

Usage: check_types.py
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
CONFIG = ROOT / "tests" / "types"
EXPECTATION = re.compile(r"# E: (\S+), (\S+)$")

Errors = dict[tuple[Path, int], dict[str, str]]
"""By file and line, numbered from 1: the text of each error by its code."""


def list_programs() -> list[Path]:
    examples = ROOT / "examples"
    return sorted([*CONFIG.glob("*.py"), *examples.glob("*.py"), *examples.glob("*/*.py")])


def read_expected(programs: list[Path], group: int) -> dict[tuple[Path, int], str]:
    """The expected code of each line that has one; ``group`` is the checker's in ``EXPECTATION``."""
    expected = {
        (path, number): match[group]
        for path in programs
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if (match := EXPECTATION.search(line))
    }
    return {place: code for place, code in expected.items() if code != "-"}


def run_checker(command: list[str]) -> str:
    """The output of a checker that has checked everything; both end with 1 where they found errors."""
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode not in (0, 1):
        sys.exit(f"{' '.join(command[:3])} failed:\n{done.stdout}{done.stderr}")
    return done.stdout


def run_mypy(programs: list[Path]) -> Errors:
    config = ["--config-file", str(CONFIG / "mypy.ini"), "--output", "json", "--no-error-summary"]
    errors: Errors = {}
    for line in run_checker([sys.executable, "-m", "mypy", *config, *map(str, programs)]).splitlines():
        error = json.loads(line)
        if error["severity"] == "error":
            place = (ROOT / error["file"], error["line"])
            errors.setdefault(place, {})[error["code"]] = error["message"]
    return errors


def run_basedpyright() -> Errors:
    command = ["-m", "basedpyright", "--project", str(CONFIG / "pyrightconfig.json"), "--outputjson"]
    report = json.loads(run_checker([sys.executable, *command, "--pythonpath", sys.executable]))
    errors: Errors = {}
    for error in report["generalDiagnostics"]:
        place = (Path(error["file"]), error["range"]["start"]["line"] + 1)
        errors.setdefault(place, {})[error.get("rule", "error")] = error["message"].partition("\n")[0]
    return errors


def compare(checker: str, errors: Errors, expected: dict[tuple[Path, int], str]) -> Iterator[str]:
    for path, line in sorted(errors.keys() | expected.keys()):
        reported, code = errors.get((path, line), {}), expected.get((path, line))
        where = f"{path.relative_to(ROOT)}:{line}: {checker}"
        if code is None:
            yield from (f"{where}: {text} [{found}]" for found, text in reported.items())
        elif code not in reported:
            yield f"{where}: expected {code}, not {', '.join(reported) or 'accepted'}"


def main() -> int:
    programs = list_programs()
    problems = [
        *compare("mypy", run_mypy(programs), read_expected(programs, 1)),
        *compare("basedpyright", run_basedpyright(), read_expected(programs, 2)),
    ]
    print("\n".join(problems) or f"mypy and basedpyright agree with {len(programs)} programs")
    return bool(problems)


if __name__ == "__main__":
    sys.exit(main())
