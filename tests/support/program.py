"""Programs of a user's own, as processes: what they print."""

from __future__ import annotations

import re

_WARNING = re.compile(r"\x1b\[2m\S+ [^\n]*WARN[^\n]* \x1b\[2mtemporalio_\w+::.*\n")
"""A line of Temporal's core, for instance of a query whose answer was no longer waited for. What the program was
printing at that moment may stand before it."""


def without_warnings(said: str) -> str:
    """``said`` without what Temporal's core warns of there on a busy machine."""
    return _WARNING.sub("", said)
