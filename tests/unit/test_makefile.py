"""What the Makefile says of a wrong argument."""

from __future__ import annotations

import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_a_python_that_is_not_installed_is_named_and_gets_no_folder() -> None:
    made = subprocess.run(
        ["make", "-n", "venv", "PYTHON=python3.99"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert made.returncode == 2
    assert "PYTHON=python3.99 cannot be run" in made.stderr
    assert made.stdout == ""
