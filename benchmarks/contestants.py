"""Who runs: how each contestant is served and started. ``python -m benchmarks`` says what they do."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from temporalio.client import Client as TemporalClient
from temporalio.worker import Worker as TemporalWorker

from benchmarks import floor
from benchmarks.floor import ACTIVITIES
from benchmarks.floor_sandboxed import Floor2Sandboxed
from benchmarks.postgres import is_installed as is_postgres_installed
from perdure import Agent, Client, Worker, hook, tool
from perdure.hooks import EVENTS
from perdure.workflows import AgentWorkflow

MODEL = "gpt-4o-mini"
"""A name that has a price, so that what pricing costs is in the figures."""


@dataclass(frozen=True, slots=True)
class Contestant:
    """``start(iterations, size, kill)`` is the workflow's input; ``serve(client, task_queue, store_url)`` a worker."""

    name: str
    workflow_name: str
    start: Callable[[int, int, str | None], Any]
    workflow: type | None = None
    """None for a peer, as ``serve``: both are in its own environment (``benchmarks.peers``)."""
    serve: Callable[[TemporalClient, str, str], AbstractAsyncContextManager[Any]] | None = None
    postgres: bool = False
    """Whether its store is PostgreSQL."""
    beside: str = ""
    """The contestant that differs from it in the store alone."""

    @property
    def is_peer(self) -> bool:
        """Whether it is another framework."""
        return self.serve is None


def _floor_worker(client: TemporalClient, task_queue: str, _: str) -> TemporalWorker:
    activities = floor.Activities(MODEL)
    return TemporalWorker(
        client,
        task_queue=task_queue,
        workflows=[floor.Floor1, floor.Floor2, floor.FloorReply, floor.FloorLong, Floor2Sandboxed],
        activities=[activities.model, activities.work, activities.model_and_work, activities.post, activities.reply],
        **floor.WORKER_SETTINGS,
    )


def _floor_start(iterations: int, size: int, kill: str | None) -> dict[str, Any]:
    return {"iterations": iterations, "size": size, "kill": kill}


async def work(size: int) -> str:
    """Do some work.

    Args:
        size: How many bytes to return.
    """
    return "x" * size


HOOKS = "BENCH_HOOKS"
"""Environment variable of workers with hooks: how many on each event."""


async def _seen() -> None:
    """A hook that looks on."""


def _perdure_worker(
    client: TemporalClient,
    task_queue: str,
    store_url: str,
    *,
    inline: bool = False,
    stream: bool = True,
    hooked: bool = False,
) -> Worker:
    count = int(os.environ[HOOKS]) if hooked else 0
    agent = Agent("bench", f"openai:{MODEL}", tools=[tool(work, inline=inline)], max_iterations=1_000_000)
    return Worker(
        Client(client, store_url=store_url),
        [agent],
        task_queue=task_queue,
        drain=0,
        stream=stream,
        hooks=[hook(event)(_seen) for event in EVENTS for _ in range(count)],
        max_concurrent_activities=ACTIVITIES,
    )


def build_order(iterations: int, size: int, kill: str | None) -> str:
    """What the model is asked: a run's first message."""
    order = f"until {iterations} size {size}"
    return f"{order} kill {kill} at 1" if kill else order


def _perdure_start(iterations: int, size: int, kill: str | None) -> dict[str, Any]:
    return {"agent": "bench", "message": build_order(iterations, size, kill)}


def _perdure(name: str, **options: bool) -> Contestant:
    return Contestant(name, "AgentWorkflow", _perdure_start, AgentWorkflow, partial(_perdure_worker, **options))


CONTESTANTS = {
    one.name: one
    for one in (
        Contestant("floor2", "Floor2", _floor_start, floor.Floor2, _floor_worker),
        Contestant("floor2-sandboxed", "Floor2Sandboxed", _floor_start, Floor2Sandboxed, _floor_worker),
        Contestant("floor1", "Floor1", _floor_start, floor.Floor1, _floor_worker),
        _perdure("perdure"),
        _perdure("perdure-inline", inline=True),
    )
}
CONTESTANTS |= {
    name: replace(CONTESTANTS[beside], name=name, postgres=True, beside=beside)
    for name, beside in (("perdure-pg", "perdure"), ("perdure-inline-pg", "perdure-inline"))
}
CONTESTANTS |= {
    "pydantic-ai": Contestant("pydantic-ai", "PydanticAI", build_order),
    "openai-agents": Contestant("openai-agents", "OpenAIAgents", build_order),
}
BASE = "floor2"
"""What ratios are to."""
UNSTREAMED = _perdure("perdure-unstreamed", stream=False)
"""What ``perdure`` is measured beside where the cost of streaming is; it is in no table of its own."""
HOOKED = {
    "perdure": _perdure("perdure-hooks", hooked=True),
    "perdure-inline": _perdure("perdure-inline-hooks", inline=True, hooked=True),
}
"""What each is measured beside where the cost of hooks is."""
SERVED = {one.name: one for one in (*CONTESTANTS.values(), UNSTREAMED, *HOOKED.values())}
"""All that a worker process can be of."""


def is_installed(one: Contestant) -> bool:
    """Whether what it needs is there, beside what every checkout has."""
    if one.is_peer:
        return Path(sys.prefix, ".peers").exists()  # the stamp: an environment without it is not complete
    return not one.postgres or is_postgres_installed()
