"""What cannot be tested on this machine: left out, and reported at the end of pytest's output."""

from __future__ import annotations

import os
from typing import NoReturn

import pytest

left_out: list[str] = []
"""What was not tested, and why."""


def leave_out(what: str, why: str, *, required_by: str) -> NoReturn:
    """Skip the test of ``what``; fail it where the variable ``required_by`` is set."""
    said = f"NOT TESTED: {what} ({why})"
    if os.environ.get(required_by):
        pytest.fail(f"{said}, and {required_by} is set", pytrace=False)
    if said not in left_out:
        left_out.append(said)
    pytest.skip(said)
