"""Named points between an effect and its record, at which a test can let something happen: a crash, an error.

    model.begun      the model is about to be asked
    model.answered   its reply is there, and nobody has written it down
    model.recorded   the reply is in the store, and Temporal has not been told
    tool.claimed     the intent is recorded, and the tool has not begun
    tool.acted       the tool has done what it does, and nobody has written it down
    tool.recorded    its outcome is in the store, and Temporal has not been told

``perdure.testing`` listens (``kill_at``, ``at``); nobody else does, and then a point costs one look at a dictionary.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, get_args

Point = Literal["model.begun", "model.answered", "model.recorded", "tool.claimed", "tool.acted", "tool.recorded"]
POINTS: tuple[str, ...] = get_args(Point)

listeners: dict[str, tuple[Callable[[], object], ...]] = {}
"""Who listens, by point; a point that nobody listens to is not in it. Whoever changes it puts whole tuples in."""


def reached(point: Point) -> None:
    """Tell whoever listens. What a listener raises comes out here: it is the fault that a test asked for."""
    if listeners:
        for listener in listeners.get(point, ()):
            listener()
