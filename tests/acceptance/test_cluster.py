"""A cluster whose parts are killed in turn and whose links break: no effect doubled, none lost, nothing stuck.

Workers, three roles of Temporal's server and both PostgreSQL servers are killed one after the other, while the links
of workers and clients are cut, stalled, delayed and reset. The verdict is that of the fake model and of the tools: what
conversations the model was asked with, what the tools did, and what users were told. perdure's own word does not count.

``make cluster-test`` runs it alone, with ``FULL=1`` at its full size.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import Client as TemporalClient

from perdure import Client
from tests.servers.model_server import OpenAIServer, Reply
from tests.support.chat_room import answer, notes
from tests.support.cluster import CLIENTS, TASK_QUEUE, WORKERS, Cluster, run_cluster
from tests.support.cluster_model import UNKNOWN, ClusterModel, name_tool
from tests.support.engine import assert_replayable
from tests.support.go_programs import UnavailableError, find_programs
from tests.support.left_out import leave_out
from tests.support.toxiproxy import Link
from tests.support.wait import eventually
from tests.workers.cluster_client import Load

pytestmark = [pytest.mark.slow, pytest.mark.postgres, pytest.mark.alone]

PARTS = (
    "worker-0",
    "history",
    "store",
    "worker-1",
    "matching",
    "temporal-database",
    "worker-2",
    "frontend",
)
"""In the order in which they are killed."""
FAULTS = ("cut", "stall", "delay", "reset")
HELD = (1.0, 4.0, 8.0)
"""Seconds that a link fault lasts: less and more than the 5 s after which a worker counts as lost."""
DELAY = 300
"""Milliseconds of a link that is delayed."""


@dataclass(frozen=True)
class Size:
    """How much is done, and how much is broken meanwhile."""

    runs: int
    iterations: int
    users: int
    turns: int
    kills: int
    link_faults: int
    longest: float

    @property
    def calls(self) -> int:
        """Model calls, when none is repeated."""
        return self.runs * (self.iterations + 1) + self.users * (self.turns + len(notes(self.turns)))


SMALL = Size(runs=20, iterations=12, users=15, turns=6, kills=len(PARTS), link_faults=12, longest=400)
FULL = Size(runs=60, iterations=12, users=50, turns=10, kills=4 * len(PARTS), link_faults=40, longest=1500)


@dataclass
class Plan:
    """Spreads the faults over the work: the model answers no further than they have come."""

    size: Size
    cluster: Cluster
    dice: random.Random
    answered: int = 0
    kills: list[str] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)
    moved: asyncio.Condition = field(default_factory=asyncio.Condition)

    async def answer(self) -> None:
        """Wait until the faults that come before the next answer have begun."""
        async with self.moved:
            await self.moved.wait_for(self._may_answer)
            self.answered += 1
            self.moved.notify_all()

    def _may_answer(self) -> bool:
        return all(
            len(made) >= planned * self.answered // self.size.calls - 1
            for made, planned in ((self.kills, self.size.kills), (self.broken, self.size.link_faults))
        )

    async def _reach(self, made: list[str], planned: int) -> None:
        """Until the next fault is due."""
        due = self.size.calls * (len(made) + 1) // (planned + 1)
        async with self.moved:
            await self.moved.wait_for(lambda: self.answered >= due)

    async def _note(self, made: list[str], what: str) -> None:
        print(f"{time.strftime('%H:%M:%S')} {what}, {self.answered} of {self.size.calls} answered", flush=True)
        async with self.moved:
            made.append(what)
            self.moved.notify_all()

    async def kill_in_turn(self) -> None:
        """Kill one part after the other; each serves again before the next one."""
        while len(self.kills) < self.size.kills:
            await self._reach(self.kills, self.size.kills)
            part = PARTS[len(self.kills) % len(PARTS)]
            await self._note(self.kills, part)
            if part in self.cluster.workers:
                with suppress(TimeoutError):  # all runs may have ended
                    await eventually(lambda worker=part: self._is_at_work(worker), deadline=5, every=0.01)
                await self.cluster.kill_worker(part)
                await self.cluster.start_worker(part)
            elif part in self.cluster.databases:
                await self.cluster.restart_database(part)
            else:
                await self.cluster.temporal.kill_role(part)
                self.cluster.temporal.start_role(part)
                await self.cluster.temporal.wait_for_role(part)

    def _is_at_work(self, worker: str) -> bool:
        """Whether it has begun an effect, and not ended it."""
        ledger = self.cluster.ledger(worker)
        return len(ledger.entries("work")) > len(ledger.entries("worked"))

    async def break_links_in_turn(self) -> None:
        """Break one link after the other, for a while each."""
        names = [f"{name}-{end}" for name in (*WORKERS, *CLIENTS) for end in ("temporal", "store")]
        shuffled = zip(*(self.dice.sample(names, len(names)) for _ in FAULTS), strict=True)
        faults = [fault for links in shuffled for fault in zip(links, FAULTS, strict=True)]  # kinds alternate
        while len(self.broken) < self.size.link_faults:
            await self._reach(self.broken, self.size.link_faults)
            name, fault = faults[len(self.broken) % len(faults)]
            seconds = self.dice.choice(HELD)
            await self._note(self.broken, f"{fault} {name}")
            link = self.cluster.links[name]
            await _break(link, fault)
            await asyncio.sleep(seconds)  # the fault's own length
            await link.heal()


async def _break(link: Link, fault: str) -> None:
    makes: dict[str, Callable[[], Awaitable[None]]] = {
        "cut": link.cut,
        "stall": link.stall,
        "delay": lambda: link.delay(DELAY),
        "reset": link.reset,
    }
    await makes[fault]()


@pytest.fixture(scope="module")
def programs() -> Path:
    """Temporal's server and toxiproxy, which take minutes where they are built."""
    try:
        return find_programs()
    except UnavailableError as error:
        leave_out("a cluster under faults", str(error), required_by="PERDURE_REQUIRE_CLUSTER")


@pytest.mark.timeout(2400)
async def test_a_cluster_whose_parts_are_killed_and_whose_links_break(programs: Path, tmp_path: Path) -> None:
    size = FULL if os.environ.get("TEST_CLUSTER_FULL") else SMALL
    seed = int(os.environ.get("TEST_SEED", random.randrange(10**6)))
    model = ClusterModel(size.iterations)
    plan: Plan | None = None

    async def rule(request: dict[str, Any]) -> Reply:
        assert plan is not None
        await plan.answer()
        return model(request)

    async with OpenAIServer(rule, record=False) as server, run_cluster(programs, server.base_url) as cluster:
        plan = Plan(size, cluster, random.Random(seed))
        began = time.monotonic()
        await _work_under_faults(plan)
        seconds = time.monotonic() - began
        refused = server.stats.refused
        temporal = await TemporalClient.connect(cluster.temporal.address)
        assert await assert_replayable(Client(temporal, task_queue=TASK_QUEUE), tmp_path) >= size.runs
        told, effects = _read(cluster, CLIENTS), _read(cluster, WORKERS)
    assert refused == 0, "the model's API refused a request"
    assert not model.wrong, f"conversations were not what they must be: {model.wrong[:3]}"
    check_answers(size, told)
    unknown = check_effects(size, model, effects)
    repeated = check_paid(size, model, effects, told)
    kinds = Counter(fault.partition(" ")[0] for fault in plan.broken)
    refusals = Counter(entry["key"] for entry in told if entry["what"] == "refused")
    print(f"seed {seed}, {size} in {seconds:.0f} s, load {os.getloadavg()[0]:.1f}")
    print(f"killed {dict(Counter(plan.kills))}, links {dict(kinds)}, clients tried again after {dict(refusals)}")
    tools = size.runs * size.iterations
    print(f"model calls repeated: {repeated} of {size.calls}; unknown outcomes: {unknown} of {tools}")


async def _work_under_faults(plan: Plan) -> None:
    """Both clients work, until each has ended by itself and every fault was made."""
    cluster, size = plan.cluster, plan.size
    clients = {}
    for number, name in enumerate(CLIENTS):
        load = Load(
            runs=list(range(size.runs))[number :: len(CLIENTS)],
            users=list(range(size.users))[number :: len(CLIENTS)],
            turns=size.turns,
            max_events=60,
            longest=size.longest,
        )
        clients[name] = cluster.spawn("cluster_client", name, TEST_LOAD=json.dumps(dataclasses.asdict(load)))
    async with asyncio.TaskGroup() as group:
        group.create_task(plan.kill_in_turn())
        group.create_task(plan.break_links_in_turn())
        for name, client in clients.items():
            code = await eventually(
                lambda ended=client.process: None if ended.poll() is None else (ended.poll(),),
                deadline=size.longest + 120,
                every=0.2,
                what=f"the end of {name}",
            )
            assert code == (0,), f"{name} ended with {code[0]}:\n{client.log.read_text()[-4000:]}"


def _read(cluster: Cluster, names: tuple[str, ...]) -> list[dict[str, Any]]:
    entries = [entry for name in names for entry in cluster.ledger(name).entries()]
    return sorted(entries, key=lambda entry: entry["at"])


def check_answers(size: Size, told: list[dict[str, Any]]) -> None:
    """Each run has ended once with its answer, each message was answered once, and in order."""
    ended = [(entry["key"], entry["content"]) for entry in told if entry["what"] == "ended"]
    assert sorted(ended) == sorted((str(n), f"All done, run {n}.") for n in range(size.runs))
    for index in range(size.users):
        user = f"user-{index}"
        heard = [entry["content"] for entry in told if entry["what"] == "told" and entry["key"] == user]
        assert heard == [answer(user, n) for n in range(size.turns)]
    followed = [entry["key"] for entry in told if entry["what"] == "followed"]
    assert sorted(followed) == sorted(f"run-{n}" for n in range(0, size.runs, 3))


def check_effects(size: Size, model: ClusterModel, effects: list[dict[str, Any]]) -> int:
    """Each effect that the model was told of happened, once where it may not happen twice. How many outcomes no part
    of the cluster knows: their worker was lost while the tool ran."""
    count = {what: Counter(entry["key"] for entry in effects if entry["what"] == what) for what in ("work", "worked")}
    looked = Counter(entry["key"] for entry in effects if entry["what"] == "look")
    keys = [(f"{run}-{n}", name_tool(n)) for run in range(size.runs) for n in range(size.iterations)]
    assert set(model.results) == {key for key, _ in keys}, "the model was told of every call"
    assert set(looked) == {key for key, tool in keys if tool == "look"}
    assert set(count["work"]) <= {key for key, tool in keys if tool == "work"}
    assert max(count["work"].values()) == 1, f"done twice: {count['work'].most_common(3)}"
    unknown = 0
    for key, tool in keys:
        if tool == "work" and model.results[key].startswith(UNKNOWN):
            unknown += 1
        elif tool == "work":
            assert count["worked"][key] == 1, f"{key} was lost"
    noted = Counter(entry["key"] for entry in effects if entry["what"] == "note")
    assert set(noted) == {f"user-{index}/{n}" for index in range(size.users) for n in notes(size.turns)}
    return unknown


def check_paid(size: Size, model: ClusterModel, effects: list[dict[str, Any]], told: list[dict[str, Any]]) -> int:
    """No model call was repeated once something had followed from its reply. How many were repeated before that."""
    followed = dict(_list_followers(size, model, effects, told))
    asked = {**model.asked, **model.counted}
    assert set(asked) == set(followed)
    for key, moments in asked.items():
        late = [again - followed[key] for _, again in pairwise(moments) if again > followed[key]]
        assert not late, f"{key} was asked again {late} s after its reply had been used"
    return sum(len(moments) - 1 for moments in asked.values())


def _list_followers(
    size: Size, model: ClusterModel, effects: list[dict[str, Any]], told: list[dict[str, Any]]
) -> Iterator[tuple[str, float]]:
    """For each model call the first moment at which something followed from its reply."""
    began: dict[str, float] = {}
    for entry in effects:
        began.setdefault(entry["key"], entry["at"])
    for run in range(size.runs):
        for n in range(size.iterations):  # a tool that never began was lost before: the next call follows
            yield f"{run}-{n}", began.get(f"{run}-{n}", model.counted[f"{run}-{n + 1}"][0])
    for entry in told:
        if entry["what"] == "ended":
            yield f"{entry['key']}-{size.iterations}", entry["at"]
        elif entry["what"] == "told":
            n = entry["n"]
            yield f"{entry['key']}/{n}/{int(n % 3 != 2)}", entry["at"]
            if n % 3 != 2:
                yield f"{entry['key']}/{n}/0", began[f"{entry['key']}/{n}"]
