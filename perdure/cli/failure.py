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
from ..printing import print_text, styled

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
    print_text(styled(_indented(f"error: {error.message}"), "red", on=_colours()), error=True)
    if error.hint:
        print_text(styled(_indented(f"hint: {error.hint}"), "dim", on=_colours()), error=True)
    return exit_code(error)


def _indented(text: str) -> str:
    """Further lines of ``text`` behind the first: a text from outside in it cannot pass for a line of ours."""
    return text.replace("\n", "\n  ")


def _colours() -> bool:
    return sys.stderr.isatty() and not os.environ.get("NO_COLOR")
