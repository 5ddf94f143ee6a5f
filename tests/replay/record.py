"""Record the histories that CI replays: every kind of run (scenarios.py), on a real server with the engine of today.

    python -m tests.replay.record 0.1 [SCENARIO …]

The folder is named after the release that ran so. From 0.1.0 on a recorded history is never recorded again: a change of
the workflow has to replay it (``workflow.patched``), and gets histories of its own in the next release's folder.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import tempfile
from pathlib import Path

from perdure.embedded.binary import ensure_binary
from perdure.embedded.home import Home
from perdure.embedded.server import ensure_server, stop_server
from perdure.worker.replay import fetch_run_histories, save_histories
from tests.replay import (  # noqa: F401 - their scenarios too
    approvals,
    auth,
    background,
    branches,
    bulk_actions,
    collects,
    compaction,
    hooks,
    inbox,
    indexing,
    limits,
    questions,
    remote,
    schedules,
    sessions,
    steps,
    subagents,
    toolsets,
    typed,
    webhooks,
)
from tests.replay.scenarios import SCENARIOS
from tests.support.engine import Engine

HISTORIES = Path(__file__).parent / "histories"


async def record(folder: Path, names: list[str]) -> None:
    """Write ``<scenario>.json``; of a run that continued as new ``<scenario>.<n>.json``, n from 1."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        home = Home(Path(scratch) / "home")
        address = (await ensure_server(home)).address
        try:
            for name in names:
                place = Path(scratch) / name
                place.mkdir()
                await _one(Engine(address, place), name, folder)
        finally:
            await stop_server(home)


async def _one(engine: Engine, name: str, folder: Path) -> None:
    print(name, flush=True)
    try:
        async with asyncio.timeout(120):
            run = await SCENARIOS[name](engine)
        histories = await fetch_run_histories(run.client, run.id)
    finally:
        await engine.close()
    for old in folder.glob(f"{name}.*"):
        old.unlink()
    save_histories(folder, name, histories.values())


async def main(version: str, *names: str) -> None:
    """Record ``names``, or everything."""
    logging.disable(logging.CRITICAL)
    await ensure_binary()
    await record(HISTORIES / version, list(names or SCENARIOS))


if __name__ == "__main__":
    if len(sys.argv) < 2 or not set(sys.argv[2:]) <= set(SCENARIOS):
        sys.exit(f"{__doc__}\nScenarios: {', '.join(SCENARIOS)}")
    asyncio.run(main(*sys.argv[1:]))
