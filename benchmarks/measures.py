"""What is measured, each as a function of the lab that returns plain figures."""

from __future__ import annotations

import asyncio
import json
import statistics
import time
import uuid
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from temporalio.client import WorkflowFailureError, WorkflowHandle, WorkflowHistory
from temporalio.exceptions import TerminatedError
from temporalio.worker import Replayer

from benchmarks.contestants import BASE, CONTESTANTS, Contestant, is_installed
from benchmarks.lab import Lab
from perdure import Client
from perdure.types.messages import encode_canonical
from perdure.workflows import AgentWorkflow

TINY = 64
"""Bytes of a tool result where time is measured."""
RESULT = 4096
"""Bytes of a tool result where history is measured."""
_SETTLE = 0.05  # what a worker does behind a result belongs to the run


@dataclass(frozen=True, slots=True)
class Scale:
    """How much is measured."""

    iterations: int = 30
    rounds: int = 15
    runs: int = 50
    """Concurrent ones."""
    each: int = 6
    """Iterations of each concurrent run."""
    run_rounds: int = 3
    histories: tuple[int, ...] = (10, 50, 100, 200)
    lengths: tuple[int, ...] = (250, 3000)
    """Of a session, where it is measured what an iteration costs by then."""
    kills: int = 3
    streams: int = 20
    """Replies that are streamed at once, where events are measured."""
    pieces: int = 100
    """Of each reply, one every 20 ms."""
    stream_rounds: int = 5
    hooks: int = 3
    """On each event, where their cost is measured."""
    parked: int = 1000
    """Runs that wait for approval at once."""
    parked_cache: int = 100
    """Workflows that a worker keeps meanwhile."""
    conversations: int = 1000
    """That are open at once."""
    turns: int = 3
    """Of each of them."""
    talking: int = 50
    """Conversations that wait for an answer at once."""
    replies: int = 200
    """Conversations whose replies are streamed at once on these workers."""
    reply_ms: int = 200
    """From one piece of these replies to the next."""
    speakers: int = 100
    """Runs whose replies are streamed at once, beside as many of the floor's."""
    many_streams: int = 200
    """Replies that are streamed at once, where the age of events is measured a third time."""
    workers: tuple[int, ...] = (1, 2, 4)
    """On one queue, where it is measured how they add up."""
    slots: int = 8
    """Activities at once of each of them."""
    model_ms: int = 300
    """What a model call takes there."""
    long_model_ms: int = 6000
    """What one takes where it is measured again how workers add up: with it, CPUs are not what limits them."""
    actions_ms: int = 5000
    """What a model call takes where billable actions are counted."""
    actions_wait_ms: int = 25_000
    """How long a client waits for an answer there."""
    copied: int = 2000
    """Runs of a store that is copied."""
    web_reads: int = 1000
    """Of each kind, in each round."""
    web_idle: int = 1000
    """Followers by HTTP of what is silent."""
    web_apart: int = 200
    """The same, each of a session of its own."""
    web_active: int = 200
    """Followers by HTTP of replies that are streamed."""
    web_turns: int = 30
    """By HTTP, and as many by the Python client."""
    console_open: int = 10_000
    """Open runs, where the console's pages are measured."""
    console_waits: int = 1000
    """Of them wait for approval."""
    console_turns: int = 2000
    """Of a long conversation."""
    console_reads: int = 30
    """Of each page."""


QUICK = Scale(
    iterations=20,
    rounds=3,
    runs=20,
    each=5,
    run_rounds=1,
    histories=(10, 20),
    lengths=(70, 140),
    kills=1,
    stream_rounds=1,
    parked=100,
    conversations=100,
    replies=20,
    speakers=10,
    many_streams=40,
    copied=100,
    web_reads=200,
    web_idle=100,
    web_apart=50,
    web_active=40,
    web_turns=10,
    console_open=300,
    console_waits=50,
    console_turns=60,
    console_reads=10,
    workers=(1, 2),
)

Figures = dict[str, dict[str, Any]]
"""By contestant."""


class Cost(NamedTuple):
    """Seconds of what was run, or of each iteration of it."""

    wall: float
    worker: float
    """CPU of the worker, all threads."""
    server: float
    """CPU of Temporal's dev server."""


Rounds = dict[str, list[Cost]]
"""The cost in each round, by contestant."""


async def single(lab: Lab, who: Sequence[Contestant], scale: Scale) -> Figures:
    """One run at a time: wall and worker CPU per iteration."""
    rounds = await in_rounds(lab, who, scale.rounds, runs=1, each=scale.iterations)
    figures: Figures = {}
    for one in who:
        mine, base = rounds[one.name], rounds[BASE]
        figures[one.name] = {
            "wall_ms": median([cost.wall * 1000 for cost in mine]),
            "wall_ratio": compare(mine, base, "wall"),
            **_compare_cpu(mine, base),
            **_compare_stores(rounds, one),
        }
    return figures


async def concurrent(lab: Lab, who: Sequence[Contestant], scale: Scale) -> Figures:
    """Many runs at once: iterations a second, and worker CPU per iteration."""
    rounds = await in_rounds(lab, who, scale.run_rounds, runs=scale.runs, each=scale.each)
    figures: Figures = {}
    for one in who:
        mine, base = rounds[one.name], rounds[BASE]
        figures[one.name] = {
            "iterations_s": median([1 / cost.wall for cost in mine]),
            "rate_ratio": compare(base, mine, "wall"),
            **_compare_cpu(mine, base),
            **_compare_stores(rounds, one),
        }
    return figures


def _compare_cpu(mine: Sequence[Cost], base: Sequence[Cost]) -> dict[str, float]:
    return {
        "cpu_ms": median([cost.worker * 1000 for cost in mine]),
        "cpu_ratio": compare(mine, base, "worker"),
        "server_ms": median([cost.server * 1000 for cost in mine]),
        "server_ratio": compare(mine, base, "server"),
    }


def _compare_stores(rounds: Rounds, one: Contestant) -> dict[str, float]:
    """Worker CPU and wall time by those of the contestant that has the other store, where both run."""
    if one.beside not in rounds:
        return {}
    mine, beside = rounds[one.name], rounds[one.beside]
    return {
        "store_wall_ratio": compare(mine, beside, "wall"),
        "store_cpu_ratio": compare(mine, beside, "worker"),
    }


async def in_rounds(lab: Lab, who: Sequence[Contestant], rounds: int, *, runs: int, each: int) -> Rounds:
    """The cost per iteration in every round; a round before the first warms everything up."""
    measured: Rounds = {one.name: [] for one in who}
    for number in range(-1, rounds):
        turn = number % len(who)
        for one in (*who[turn:], *who[:turn]):  # nobody always comes first
            iterations = each if number >= 0 else min(each, 2)
            calls = await lab.count_calls()
            cost = await take_cost(lab, one, partial(_run_many, lab, one, runs, iterations))
            calls = await lab.count_calls() - calls
            if calls < runs * (iterations + 1):
                raise RuntimeError(f"{one.name}: {calls} model calls in {runs} runs of {iterations} iterations")
            if number >= 0:
                measured[one.name].append(Cost(*(part / (runs * iterations) for part in cost)))
    return measured


def ratios(rounds: Rounds, pair: tuple[Contestant, Contestant]) -> dict[str, float]:
    """Wall time and worker CPU of the first by those of the second."""
    mine, base = (rounds[each.name] for each in pair)
    return {"wall_ratio": compare(mine, base, "wall"), "cpu_ratio": compare(mine, base, "worker")}


def compare(mine: Sequence[Cost], base: Sequence[Cost], part: str) -> float:
    """The median of the ratios within the rounds."""
    return median([getattr(a, part) / getattr(b, part) for a, b in zip(mine, base, strict=True)])


async def take_cost(lab: Lab, one: Contestant, act: Callable[[], Awaitable[object]]) -> Cost:
    """What ``act`` cost, whose runs ``one``'s worker executed."""
    worker = lab.workers[one.name]
    server, cpu, began = lab.read_server_cpu(), await worker.cpu(), time.perf_counter()
    await act()
    wall = time.perf_counter() - began
    await asyncio.sleep(_SETTLE)
    return Cost(wall, await worker.cpu() - cpu, lab.read_server_cpu() - server)


async def _run_many(lab: Lab, one: Contestant, runs: int, iterations: int) -> None:
    await asyncio.gather(*(_run(lab, one, iterations, TINY) for _ in range(runs)))


async def _run(lab: Lab, one: Contestant, iterations: int, size: int) -> WorkflowHandle[Any, Any]:
    handle = await lab.start(one, iterations, size)
    result = await handle.result()
    text = result["content"] if isinstance(result, dict) else result
    if text != "Done.":
        raise RuntimeError(f"{one.name} ended with {result!r}")
    return handle


async def histories(lab: Lab, who: Sequence[Contestant], scale: Scale) -> Figures:
    """History of runs with 4 KB tool results by length, what of it is messages, and the replay of the longest."""
    figures: Figures = {}
    for one in who:
        mine: dict[str, Any] = {"bytes": {}, "events": {}, "message_bytes": {}}
        for iterations in scale.histories:
            try:
                handle = await _run(lab, one, iterations, RESULT)
            except WorkflowFailureError as error:
                if not one.is_peer or not isinstance(error.cause, TerminatedError):
                    raise
                break  # Temporal ends a run whose history is larger than 50 MB
            history = await handle.fetch_history()
            mine["bytes"][iterations] = sum(event.ByteSize() for event in history.events)
            mine["events"][iterations] = len(history.events)
            mine["message_bytes"][iterations] = await _message_bytes(lab, one, handle.id)
        if one.workflow is not None:
            mine["replay_ms"] = await _time_replay(one.workflow, history) * 1000
        figures[one.name] = mine
    return figures


async def _time_replay(workflow: type, history: WorkflowHistory) -> float:
    """Seconds; the best of three."""
    replayer = Replayer(workflows=[workflow])
    times = []
    for _ in range(3):
        began = time.perf_counter()
        await replayer.replay_workflow(history)
        times.append(time.perf_counter() - began)
    return min(times)


async def _message_bytes(lab: Lab, one: Contestant, run_id: str) -> int | None:
    """Bytes of the transcript; neither a floor nor a peer has one beside the history."""
    if one.workflow is not AgentWorkflow:
        return None
    client = Client(lab.client, store_url=lab.store_url(one))
    try:
        return len(encode_canonical(await client.run(run_id).transcript()))
    finally:
        await client.close()


async def recovery(lab: Lab, who: Sequence[Contestant], scale: Scale) -> Figures:
    """SIGKILL in the middle of a model call, a new worker started at once: seconds to the next model call."""
    figures: Figures = {}
    for one in who:
        # Of a peer once: by its defaults a lost worker is noticed after half a minute or a whole one.
        seconds = [await _kill(lab, one) for _ in range(1 if one.is_peer else scale.kills)]
        figures[one.name] = {"seconds": median(seconds), "most": max(seconds)}
    return figures


async def _kill(lab: Lab, one: Contestant) -> float:
    name = uuid.uuid4().hex
    handle = await lab.start(one, 3, TINY, kill=name)
    await _seen(lab, name, 1)
    await asyncio.sleep(2.4)  # the first heartbeat has been sent: a loss counts from the last
    killed = time.time()
    await lab.workers[one.name].kill()
    new = await lab.start_worker(one)
    times = await _seen(lab, name, 2)
    await new.ready()
    await handle.result()
    return times[1] - killed


async def _seen(lab: Lab, name: str, count: int) -> list[float]:
    """When the call arrived, once it has done so ``count`` times."""
    while True:
        times: list[float] = json.loads(await lab.get(f"/seen/{name}"))
        if len(times) >= count:
            return times
        await asyncio.sleep(0.05)


def median(values: Sequence[float]) -> float:
    return statistics.median(values)


def chosen(names: Sequence[str]) -> list[Contestant]:
    """The contestants of those names, the base among them and first; none named: all that are installed."""
    if not names:
        names = [one.name for one in CONTESTANTS.values() if is_installed(one)]
    return [one for one in CONTESTANTS.values() if one.name in names or one.name == BASE]
