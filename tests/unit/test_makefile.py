"""What the Makefile says of a wrong argument."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_a_python_that_is_not_installed_is_named_and_gets_no_folder() -> None:
    outside = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
    command = ["make", "-n", "venv", "PYTHON=python3.99"]
    made = subprocess.run(command, cwd=ROOT, env=outside, capture_output=True, text=True, check=False)
    assert made.returncode == 2
    assert "PYTHON=python3.99 cannot be run" in made.stderr
    assert made.stdout == ""
