"""How a command fails: one clear message on stderr, and an exit code that a script can use.

0 done · 1 the run or command failed · 2 usage · 3 not found · 4 no server or worker · 130 interrupted
"""

from __future__ import annotations

import os
import sys

from ..errors import (
    DefinitionError,
    InvalidInputError,
    PerdureError,
    RunNotFoundError,
    RuntimeSetupError,
    ScheduleNotFoundError,
)

_CODES: tuple[tuple[type[PerdureError], int], ...] = (
    (RunNotFoundError, 3),
    (ScheduleNotFoundError, 3),
    (RuntimeSetupError, 4),
    (InvalidInputError, 2),
    (DefinitionError, 2),
)


def exit_code(error: PerdureError) -> int:
    """The exit code that stands for ``error``."""
    return next((code for kind, code in _CODES if isinstance(error, kind)), 1)


def report(error: PerdureError) -> int:
    """Print ``error`` and the way out on stderr; its exit code."""
    red, dim, plain = ("\033[31m", "\033[2m", "\033[0m") if _colours() else ("", "", "")
    sys.stderr.write(f"{red}error: {error.message}{plain}\n")
    if error.hint:
        sys.stderr.write(f"{dim}hint: {error.hint}{plain}\n")
    return exit_code(error)


def _colours() -> bool:
    return sys.stderr.isatty() and not os.environ.get("NO_COLOR")
