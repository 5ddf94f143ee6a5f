"""The way down to a run, as it is kept: one that is begun again, by another call under its id, has another way then."""

from __future__ import annotations

import json
from bisect import bisect_right
from typing import Any

from ..types.lineage import Lineage, PathStep

Path = tuple[PathStep, ...]


class Ways:
    """Those of one run, each with the number from which on its events have come by it."""

    def __init__(self, kept: str | None) -> None:
        read = json.loads(kept) if kept else []
        pairs: list[Any] = read if read and isinstance(read[0], list) else [[0, read]]
        self._from = [first for first, _ in pairs]
        self._steps = [steps for _, steps in pairs]
        self._paths: dict[int, Path] = {}

    def at(self, seq: int) -> Path:
        """Of the event of that number."""
        which = max(0, bisect_right(self._from, seq) - 1)
        if which not in self._paths:
            self._paths[which] = tuple(PathStep.model_validate(step) for step in self._steps[which])
        return self._paths[which]

    @property
    def depth(self) -> int:
        """Steps from the run at the top, which are as many on each: they are in the run's id."""
        return len(self._steps[-1])

    def then(self, lineage: Lineage, seq: int) -> str | None:
        """As it is to be kept where the events from that number on have come by ``lineage``; None where it is so."""
        steps = _steps(lineage)
        if self._steps[-1] == steps:
            return None
        pairs = [*zip(self._from, self._steps, strict=True), (seq, steps)]
        return json.dumps(pairs, ensure_ascii=False)


def first_way(lineage: Lineage) -> str:
    """As it is kept of a run that has come by one way, as nearly all do."""
    return json.dumps(_steps(lineage), ensure_ascii=False)


def _steps(lineage: Lineage) -> list[dict[str, str]]:
    return [step.model_dump(exclude_none=True) for step in lineage.path]
