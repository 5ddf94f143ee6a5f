"""What hooks cost: workers with some on every event beside workers without, in the same rounds."""

from __future__ import annotations

import os
from collections.abc import Sequence

from benchmarks.contestants import HOOKED, HOOKS, Contestant
from benchmarks.lab import Lab
from benchmarks.measures import Figures, Scale, in_rounds, ratios


async def hooks(lab: Lab, who: Sequence[Contestant], scale: Scale) -> Figures:
    """Wall and worker CPU with ``scale.hooks`` on every event, by those without: one run, and many."""
    os.environ[HOOKS] = str(scale.hooks)
    figures: Figures = {}
    for one in who:
        if one.name not in HOOKED:
            continue
        hooked = HOOKED[one.name]
        await (await lab.start_worker(hooked)).ready()
        pair = (hooked, one)
        single = await in_rounds(lab, pair, scale.rounds, runs=1, each=scale.iterations)
        many = await in_rounds(lab, pair, scale.run_rounds, runs=scale.runs, each=scale.each)
        figures[one.name] = {
            name: ratios(rounds, pair) for name, rounds in (("single", single), ("concurrent", many))
        } | {"hooks": scale.hooks}
    return figures
