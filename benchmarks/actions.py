"""Billable actions, as Temporal's server counts them in its own metric ``action``: of an iteration, by contestant, and
of what else clients do with a run of perdure.

The dev server serves its metrics on a port that it chooses; the bench finds it among those on which the process
listens.
"""

from __future__ import annotations

import asyncio
import re
import urllib.request
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.contestants import Contestant
from benchmarks.lab import Lab
from benchmarks.measures import TINY, Figures, Scale
from perdure import Agent, Client, Run, Worker, ask, tool
from perdure.testing import ScriptedProvider, call

MILLION_USD = 50.0
"""Price of a million actions on Temporal Cloud, in the first tier of its price list (November 2026)."""
MEASURED = ("floor2", "perdure", "perdure-inline", "pydantic-ai", "openai-agents")
"""The contestants that differ in actions: neither the store nor the sandbox makes any."""
_LINE = re.compile(r'^action\{action_type="(\w+)",namespace="default",.*\} (\d+)', re.MULTILINE)
_LISTENS = "0A"
_SETTLE = 2.5
"""Seconds after which the metric has what was done: the server gathers for one."""
_TIMES = 5
_OF_CALLS = ("command_ScheduleActivityTask", "grpc_RecordActivityTaskHeartbeat")


class ActionCounter:
    """Reads the metric of the dev server with that process id."""

    def __init__(self, pid: int) -> None:
        self._url = next(url for port in list_ports(pid) if _read(url := f"http://127.0.0.1:{port}/metrics"))

    def read(self) -> Counter[str]:
        """The actions so far, by their type."""
        counts: Counter[str] = Counter()
        for kind, count in _LINE.findall(_read(self._url)):
            counts[kind] += int(count)
        return counts

    async def count(self, act: Callable[[], Awaitable[object]]) -> Counter[str]:
        """The actions of ``act``, by their type."""
        await asyncio.sleep(_SETTLE)
        before = self.read()
        await act()
        await asyncio.sleep(_SETTLE)
        return self.read() - before


def list_ports(pid: int) -> list[int]:
    """The TCP ports on which the process listens."""
    links = (str(file.readlink()) for file in Path(f"/proc/{pid}/fd").iterdir())
    inodes = {link.removeprefix("socket:[").rstrip("]") for link in links if link.startswith("socket:[")}
    tables = [Path(f"/proc/{pid}/net/{name}").read_text() for name in ("tcp", "tcp6")]
    rows = [row.split() for table in tables for row in table.splitlines()[1:]]
    return [int(row[1].rpartition(":")[2], 16) for row in rows if row[3] == _LISTENS and row[9] in inodes]


def _read(url: str) -> str:
    """The server's metrics; empty if they are not there."""
    with suppress(OSError, ValueError), urllib.request.urlopen(url, timeout=2) as answer:  # noqa: S310  # loopback
        text = bytes(answer.read()).decode()
        return text if "service_requests" in text else ""
    return ""


async def actions(lab: Lab, who: Sequence[Contestant], scale: Scale) -> Figures:
    """Per iteration with a model that answers at once, and with one that takes ``scale.actions_ms``; of perdure also
    what else clients do."""
    counter = ActionCounter(lab.server_pid)
    figures: Figures = {}
    for one in who:
        if one.name in MEASURED:
            quick, slow = [await _count_iteration(lab, one, counter, wait) for wait in (0, scale.actions_ms)]
            figures[one.name] = {"quick": quick, "slow": slow, "slow_ms": scale.actions_ms}
    if "perdure" in figures:
        figures["perdure"]["requests"] = await _count_requests(lab, counter, scale)
    return figures


async def _count_iteration(lab: Lab, one: Contestant, counter: ActionCounter, wait: int) -> float:
    """By the difference of two runs: without their start and their last call."""
    few, many = [await counter.count(partial(_run, lab, one, n, wait)) for n in (1, 3)]
    return (many.total() - few.total()) / 2


async def _run(lab: Lab, one: Contestant, iterations: int, wait: int) -> None:
    await lab.get(f"/delay/{wait}")
    try:
        await (await lab.start(one, iterations, TINY)).result()
    finally:
        await lab.get("/delay/0")


async def _count_requests(lab: Lab, counter: ActionCounter, scale: Scale) -> dict[str, float]:
    """Each one's mean of a few."""
    async with _serve(lab, scale.actions_wait_ms / 1000) as client:

        async def count(act: Callable[[], Awaitable[object]]) -> float:
            async def repeat() -> None:
                for _ in range(_TIMES):
                    await act()

            return (await counter.count(repeat)).total() / _TIMES

        async def run(agent: str) -> None:
            await (await client.start(agent, "Go.")).result()

        async def run_approved() -> None:
            asked = await client.start("asking", "Go.")
            async for event in asked.events():  # of the store: the look at a status would be an action
                if event.type == "approval.requested":
                    break
            await asked.approve()
            await asked.result()

        session: Run = await client.start("talking", "Go.", mode="session")
        await session.turn().result()

        async def send() -> None:
            await (await session.send("And now?")).result()

        start, message = await count(lambda: run("talking")), await count(send)
        waiting: Run = await client.start("waiting", "Go.", mode="session")
        waited = await counter.count(lambda: waiting.turn().result())
        return {
            "start of a run, with its only model call": start,
            "message to a session, with its model call": message,
            "read of the status": await count(session.status),
            f"wait for an answer, {scale.actions_wait_ms / 1000:g} s": waited.total()
            - sum(waited[kind] for kind in _OF_CALLS),
            "call of a subagent, with its model call": await count(lambda: run("parent")) - 2 - start + 1,
            "call that is approved": await count(run_approved) - start - 1,
        }


@asynccontextmanager
async def _serve(lab: Lab, wait: float) -> AsyncIterator[Client]:
    @tool
    async def pay() -> str:
        """Pay."""
        return "paid"

    async def think(_: Any) -> str:
        await asyncio.sleep(wait)
        return "Done."

    def answer(_: Any) -> str:
        return "Done."

    def then(name: str, **arguments: str) -> Callable[[Any], Any]:
        return lambda request: "Done." if request.messages[-1].role == "tool" else call(name, **arguments)

    talking = Agent("talking", ScriptedProvider(answer))
    agents = [
        talking,
        Agent("waiting", ScriptedProvider(think)),
        Agent("parent", ScriptedProvider(then("call_talking", task="Go.")), subagents=[talking]),
        Agent("asking", ScriptedProvider(then("pay")), tools=[pay], approvals=[ask("pay")]),
    ]
    client = Client(lab.client, store_url=f"sqlite:///{lab.root}/actions.db", task_queue="bench-actions")
    try:
        async with Worker(client, agents, drain=0):
            yield client
    finally:
        await client.close()
