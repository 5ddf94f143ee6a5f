"""Record the histories that CI replays: every kind of run (scenarios.py), on a real server with the engine of today.

    python -m tests.replay.record v1 [SCENARIO …]

Histories of a released version are kept as they are: changes of the workflow must replay them (workflow.patched), or
open a new folder beside them. Recording anew is for versions that nobody runs yet.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sys
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

from temporalio.client import WorkflowHistory

from perdure import Run
from perdure.embedded.binary import ensure_binary
from perdure.embedded.home import Home
from perdure.embedded.server import ensure_server, stop_server
from tests.replay import sessions  # noqa: F401 - its scenarios too
from tests.replay.scenarios import SCENARIOS
from tests.support.engine import Engine

HISTORIES = Path(__file__).parent / "histories"
_NOISE = ("stackTrace", "identity", "workerVersion", "meteringMetadata")
"""Left out: what replay does not look at, and what names the machine. ``sdkMetadata`` stays: its flags switch the
SDK's checks on."""


async def executions(run: Run) -> AsyncIterator[WorkflowHistory]:
    """The histories of the run, the last execution first."""
    described = await run.handle.describe()
    execution: str | None = described.run_id
    while execution:
        history = await run.client.temporal.get_workflow_handle(run.id, run_id=execution).fetch_history()
        yield history
        execution = history.events[0].workflow_execution_started_event_attributes.continued_execution_run_id


def compact(history: WorkflowHistory) -> str:
    """Its JSON, an event per line, so that a diff of two recordings can be read."""
    plain = json.loads(history.to_json())
    lines = ",\n".join(json.dumps(_without_noise(event), separators=(",", ":")) for event in plain["events"])
    return f'{{"events":[\n{lines}\n]}}\n'


def _without_noise(value: object) -> object:
    if isinstance(value, dict):
        return {key: _without_noise(inner) for key, inner in value.items() if key not in _NOISE}
    return [_without_noise(inner) for inner in value] if isinstance(value, list) else value


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
        histories = [history async for history in executions(run)][::-1]
    finally:
        await engine.close()
    for old in folder.glob(f"{name}.*"):
        old.unlink()
    for number, history in enumerate(histories, 1):
        file = folder / (f"{name}.{number}.json" if len(histories) > 1 else f"{name}.json")
        file.write_text(compact(history))


async def main(version: str, *names: str) -> None:
    """Record ``names``, or everything."""
    logging.disable(logging.CRITICAL)
    await ensure_binary()
    await record(HISTORIES / version, list(names or SCENARIOS))


if __name__ == "__main__":
    if len(sys.argv) < 2 or not set(sys.argv[2:]) <= set(SCENARIOS):
        sys.exit(f"{__doc__}\nScenarios: {', '.join(SCENARIOS)}")
    asyncio.run(main(*sys.argv[1:]))
