"""What a step policy decides, as far as the loop and the next activities are told of it."""

from __future__ import annotations

from typing import Any, Literal

from .interface import Override
from .messages import Data

KeptFor = Literal["turn", "run"]
KEPT: tuple[KeptFor, ...] = ("turn", "run")


class StepOverride(Override):
    """An ``Override`` with what only the author's own code may change: nobody outside can give an agent a tool."""

    add_tools: tuple[str, ...] | None = None
    """Tools that are offered too: the agent's own that an override took away, or tools that the worker was given."""
    remove_tools: tuple[str, ...] | None = None
    """Tools that are not offered."""


class Kept(Data):
    """What is to hold from now on, each a ``StepOverride``: for the rest of the turn, and of the run."""

    turn: dict[str, Any] | None = None
    run: dict[str, Any] | None = None
