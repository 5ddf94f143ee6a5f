"""Who runs: how each contestant is served and started. ``python -m benchmarks`` says what they do."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

from temporalio.client import Client as TemporalClient
from temporalio.worker import Worker as TemporalWorker

from benchmarks import floor
from benchmarks.floor_sandboxed import Floor2Sandboxed
from perdure import Agent, Client, Worker, hook, tool
from perdure.hooks import EVENTS
from perdure.workflows import AgentWorkflow

MODEL = "gpt-4o-mini"
"""A name that has a price, so that what pricing costs is in the figures."""
ACTIVITIES_VARIABLE = "BENCH_ACTIVITIES"
ACTIVITIES = int(os.environ.get(ACTIVITIES_VARIABLE, "100"))
"""Activities at once, for every worker; fewer where it is measured how workers add up."""


@dataclass(frozen=True, slots=True)
class Contestant:
    """``serve(client, task_queue, store_url)`` is a worker; ``start(iterations, size, kill)`` the workflow's input."""

    name: str
    workflow: type
    workflow_name: str
    serve: Callable[[TemporalClient, str, str], AbstractAsyncContextManager[Any]]
    start: Callable[[int, int, str | None], dict[str, Any]]
    postgres: bool = False
    """Whether its store is PostgreSQL."""
    beside: str = ""
    """The contestant that differs from it in the store alone."""


def _floor_worker(client: TemporalClient, task_queue: str, _: str) -> TemporalWorker:
    activities = floor.Activities(MODEL)
    return TemporalWorker(
        client,
        task_queue=task_queue,
        workflows=[floor.Floor1, floor.Floor2, floor.FloorReply, Floor2Sandboxed],
        activities=[activities.model, activities.work, activities.model_and_work, activities.reply],
        max_concurrent_activities=ACTIVITIES,
        # The rest as PerdurePlugin sets it.
        max_heartbeat_throttle_interval=timedelta(milliseconds=500),
        default_heartbeat_throttle_interval=timedelta(milliseconds=500),
        sticky_queue_schedule_to_start_timeout=timedelta(seconds=2),
        graceful_shutdown_timeout=timedelta(milliseconds=1),
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


def _perdure_start(iterations: int, size: int, kill: str | None) -> dict[str, Any]:
    order = f"until {iterations} size {size}"
    return {"agent": "bench", "message": f"{order} kill {kill} at 1" if kill else order}


CONTESTANTS = {
    one.name: one
    for one in (
        Contestant("floor2", floor.Floor2, "Floor2", _floor_worker, _floor_start),
        Contestant("floor2-sandboxed", Floor2Sandboxed, "Floor2Sandboxed", _floor_worker, _floor_start),
        Contestant("floor1", floor.Floor1, "Floor1", _floor_worker, _floor_start),
        Contestant(
            "perdure",
            AgentWorkflow,
            "AgentWorkflow",
            _perdure_worker,
            _perdure_start,
        ),
        Contestant(
            "perdure-inline",
            AgentWorkflow,
            "AgentWorkflow",
            lambda *given: _perdure_worker(*given, inline=True),
            _perdure_start,
        ),
    )
}
CONTESTANTS |= {
    name: replace(CONTESTANTS[beside], name=name, postgres=True, beside=beside)
    for name, beside in (("perdure-pg", "perdure"), ("perdure-inline-pg", "perdure-inline"))
}
BASE = "floor2"
"""What ratios are to."""
UNSTREAMED = Contestant(
    "perdure-unstreamed",
    AgentWorkflow,
    "AgentWorkflow",
    lambda *given: _perdure_worker(*given, stream=False),
    _perdure_start,
)
"""What ``perdure`` is measured beside where the cost of streaming is; it is in no table of its own."""
HOOKED = {
    "perdure": Contestant(
        "perdure-hooks",
        AgentWorkflow,
        "AgentWorkflow",
        lambda *given: _perdure_worker(*given, hooked=True),
        _perdure_start,
    ),
    "perdure-inline": Contestant(
        "perdure-inline-hooks",
        AgentWorkflow,
        "AgentWorkflow",
        lambda *given: _perdure_worker(*given, inline=True, hooked=True),
        _perdure_start,
    ),
}
"""What each is measured beside where the cost of hooks is."""
SERVED = {one.name: one for one in (*CONTESTANTS.values(), UNSTREAMED, *HOOKED.values())}
"""All that a worker process can be of."""
