"""Text of models, tools and users on a terminal."""

from __future__ import annotations


def printable(line: str) -> str:
    """``line`` without control characters: a tool's result must not steer the terminal that shows it."""
    return "".join(char if char.isprintable() else " " for char in line.expandtabs(4))
