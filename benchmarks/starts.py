"""What a new process costs: perdure's import beside that of Temporal's client, and ``perdure list`` beside a bare list.

CPU, user and system, of new interpreters, one of each side in turn.
"""

from __future__ import annotations

import asyncio
import os
import resource
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence

from benchmarks.contestants import Contestant
from benchmarks.lab import Lab
from benchmarks.measures import Figures, Scale
from perdure import Client

_LISTED = 20
"""Runs that the server has."""

_LIST = """
import asyncio, os, sys
from temporalio.client import Client

async def main():
    client = await Client.connect(sys.argv[1])
    async for run in client.list_workflows("WorkflowType = 'AgentWorkflow'", limit=50):
        print(run.id, run.status, run.start_time)

asyncio.run(main())
sys.stdout.flush()
os._exit(0)
"""
"""Ends as `perdure list` does: the interpreter's own exit aborts now and then, in a thread of Temporal's client."""


async def starts(lab: Lab, _: Sequence[Contestant], scale: Scale) -> Figures:
    """CPU of each side, the median of ``scale.rounds`` rounds, and the ratio of the least of them."""
    client = Client(lab.client, task_queue="bench-starts")  # without a worker: the runs stay as they are
    runs = [await client.start("starts", "hi") for _ in range(_LISTED)]
    bare = {"import": ("-c", "import temporalio.client"), "list": ("-c", _LIST, lab.address)}
    ours = {"import": ("-c", "from perdure import Agent, Client, tool"), "list": ("-m", "perdure", "list")}
    figures = {name: await asyncio.to_thread(_compare, bare[name], ours[name], lab, scale.rounds) for name in bare}
    for run in runs:
        await run.terminate()
    return {"perdure": figures}


def _compare(bare: Sequence[str], ours: Sequence[str], lab: Lab, rounds: int) -> dict[str, float]:
    dropped = ("PYTHONDONTWRITEBYTECODE", "PERDURE_STORE_URL")
    environment = {name: value for name, value in os.environ.items() if name not in dropped}
    environment["PERDURE_HOME"] = str(lab.root)
    pairs = [(_measure_cpu(bare, environment), _measure_cpu(ours, environment)) for _ in range(rounds + 1)]
    floor, mine = zip(*pairs[1:], strict=True)  # the first round writes bytecode, and fills the disk's cache
    return {
        "bare_ms": statistics.median(floor),
        "cpu_ms": statistics.median(mine),
        "ratio": min(mine) / min(floor),
    }


def _measure_cpu(arguments: Sequence[str], environment: Mapping[str, str]) -> float:
    """Milliseconds of CPU of one interpreter."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, *arguments], env=environment, stdout=subprocess.DEVNULL, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return (after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime) * 1000
