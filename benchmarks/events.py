"""What is measured of live text: how old it is when it comes, and what it costs to write it."""

from __future__ import annotations

import asyncio
import math
import statistics
import uuid
from collections.abc import Sequence
from functools import partial
from typing import Any

from benchmarks.contestants import BASE, CONTESTANTS, UNSTREAMED, Contestant
from benchmarks.lab import Lab
from benchmarks.measures import Figures, Rounds, Scale, in_rounds, ratios, take_cost

PACE = 20
"""Milliseconds from one piece of a streamed reply to the next."""
_SHARES = {"p50": 0.5, "p95": 0.95, "p99": 0.99, "max": 1.0}


def following(who: Sequence[Contestant]) -> list[Contestant]:
    """Those of whom this is measured: a floor has no events, and an inline tool changes nothing of them."""
    return [one for one in who if one.name in ("perdure", "perdure-pg")]


async def events(lab: Lab, who: Sequence[Contestant], scale: Scale) -> Figures:
    """From the moment a piece of a reply leaves the model to ``run.events()`` in another process, in milliseconds.

    One reply at a time, many at once, and once as many as a worker of 100 slots streams in two goes.
    """
    figures: Figures = {}
    for one in following(who):
        mine: dict[str, Any] = {}
        async with lab.follower(one) as follower:
            await follower.ages(1, f"say 5 every {PACE}")  # warms up
            for streams in dict.fromkeys((1, scale.streams, scale.many_streams)):
                rounds = range(scale.stream_rounds if streams < scale.many_streams else 1)
                ages = [age for _ in rounds for age in await follower.ages(streams, _order(scale))]
                mine[str(streams)] = spread(ages)
        figures[one.name] = mine
    return figures


def spread(values: Sequence[float]) -> dict[str, float]:
    """How many there are, two percentiles and the largest."""
    ordered = sorted(values)
    at = {name: ordered[math.ceil(share * len(ordered)) - 1] for name, share in _SHARES.items()}
    return {"pieces": len(ordered), **at}


def _order(scale: Scale) -> str:
    return f"say {scale.pieces} every {PACE}"


async def streaming(lab: Lab, who: Sequence[Contestant], scale: Scale) -> Figures:
    """A worker that writes replies while they come, by one that writes them when they are whole, in the same rounds; on
    SQLite.

    One run and many, as elsewhere, with replies that are whole at once; and replies that take a while, many at once.
    """
    figures: Figures = {}
    for one in [one for one in following(who) if not one.postgres]:
        if UNSTREAMED.name not in lab.workers:
            await (await lab.start_worker(UNSTREAMED)).ready()
        pair = (one, UNSTREAMED)
        single = await in_rounds(lab, pair, scale.rounds, runs=1, each=scale.iterations)
        many = await in_rounds(lab, pair, scale.run_rounds, runs=scale.runs, each=scale.each)
        slow = await _reply_in_rounds(lab, pair, scale, scale.streams)
        figures[one.name] = {
            name: ratios(rounds, pair) for name, rounds in (("single", single), ("concurrent", many), ("slow", slow))
        }
    return figures


async def replies(lab: Lab, who: Sequence[Contestant], scale: Scale) -> Figures:
    """Many replies that are streamed at once: wall time and worker CPU by the floor's, which reads them by the official
    SDK and keeps nothing."""
    figures: Figures = {}
    for one in following(who):
        pair = (one, CONTESTANTS[BASE])
        rounds = await _reply_in_rounds(lab, pair, scale, scale.speakers)
        spoken_us = {
            name: statistics.median(cost.worker for cost in mine) / (scale.speakers * scale.pieces) * 1e6
            for name, mine in rounds.items()
        }
        figures[one.name] = {**ratios(rounds, pair), "piece_us": spoken_us[one.name], "floor_us": spoken_us[BASE]}
    return figures


async def _reply_in_rounds(lab: Lab, pair: tuple[Contestant, Contestant], scale: Scale, count: int) -> Rounds:
    """The cost of ``count`` replies that are streamed at once; a round before the first warms everything up."""
    rounds: Rounds = {each.name: [] for each in pair}
    for number in range(-1, scale.stream_rounds):
        for each in pair[:: 1 if number % 2 else -1]:
            cost = await take_cost(lab, each, partial(_reply_many, lab, each, scale, count))
            if number >= 0:
                rounds[each.name].append(cost)
    return rounds


async def _reply_many(lab: Lab, one: Contestant, scale: Scale, count: int) -> None:
    await asyncio.gather(*(reply(lab, one, scale) for _ in range(count)))


async def reply(lab: Lab, one: Contestant, scale: Scale) -> None:
    """A run whose reply comes in pieces."""
    is_floor = one.name == BASE
    order = _order(scale) if is_floor else {"agent": "bench", "message": _order(scale)}
    workflow = "FloorReply" if is_floor else one.workflow_name
    await lab.client.execute_workflow(workflow, order, id=f"{one.name}-{uuid.uuid4().hex}", task_queue=lab.queue(one))
