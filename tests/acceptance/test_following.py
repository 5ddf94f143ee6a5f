"""Following over real processes: many at once, none of them in the run's history, and none that misses anything."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from perdure import Run
from perdure.types.events import Event, ModelCompleted, ModelDelta, ModelRetracted, ToolCompleted
from tests.servers.model_server import Call, OpenAIServer, Reply
from tests.support.engine import ON_BOTH_STORES, Engine, WorkerProcess
from tests.support.following import all_of, assert_whole
from tests.support.histories import kinds
from tests.support.wait import eventually
from tests.workers.following import written

pytestmark = pytest.mark.server


class Follower:
    """Processes that follow runs, one after the other: each goes on behind what the one before has written."""

    def __init__(self, engine: Engine, name: str, runs: Sequence[Run], **env: str) -> None:
        self._engine = engine
        self._path = engine.folder / f"{name}.jsonl"
        self._env = {"TEST_RUNS": json.dumps([run.id for run in runs]), "TEST_SEEN": str(self._path), **env}
        self.process: WorkerProcess = self._spawn()

    def _spawn(self) -> WorkerProcess:
        return self._engine.spawn("following", **self._env)

    def seen(self) -> dict[int, list[Event]]:
        """By place in the list of runs."""
        return written(self._path)

    def count(self) -> int:
        return sum(map(len, self.seen().values()))

    async def killed(self) -> int:
        """SIGKILL, and the next one begins; how many events the one that was killed had seen in all."""
        await self.process.kill()
        count = self.count()
        self.process = self._spawn()
        return count

    async def ended(self) -> dict[int, list[Event]]:
        """Its whole list, once it has ended by itself."""
        assert await self.process.gone() == 0, self.process.log.read_text()
        return self.seen()


def said(request: Mapping[str, Any]) -> int:
    """How often the model has answered."""
    return sum(message["role"] == "assistant" for message in request["messages"])


def plain(events: Sequence[Event], without: Sequence[int] = ()) -> list[dict[str, Any]]:
    """As they are compared. ``without`` those numbers."""
    return [event.model_dump() for event in events if event.seq not in without]


def replaced(events: Sequence[Event]) -> list[int]:
    """Numbers that some see and others, who come later, do not."""
    spans = [span for event in events if isinstance(event, ModelCompleted) for span in event.replaces]
    return [number for first, last in spans for number in range(first, last + 1)]


# --- many, and the history


@pytest.mark.slow
@pytest.mark.parametrize(("followers", "processes"), [(6, 2), (50, 5)])
async def test_many_follow_a_run_and_its_history_does_not_know(engine: Engine, followers: int, processes: int) -> None:
    def rule(request: dict[str, Any]) -> Reply:
        if said(request) < 2:
            return Reply(text="Looking.", calls=[Call("look", {"n": str(said(request))})])
        return Reply(text="One, two, three, four.", hang=server.release, hang_after=3)

    async with OpenAIServer(rule) as server:
        await engine.process("counting", TEST_MODEL_URL=server.base_url)
        client = await engine.client()
        run = await client.start("counting", "Go.")
        places = [run] * (followers // processes)
        following = [
            # One of the processes follows the run's turn: that asks the workflow how it stands.
            Follower(engine, f"seen-{number}", places, **({"TEST_TURNS": "1"} if number == 0 else {}))
            for number in range(processes)
        ]
        await eventually(lambda: all(_in_the_reply(one, len(places)) for one in following), deadline=60, every=0.2)
        server.release.set()
        await run.result()
        lists = [seen for one in following for seen in (await one.ended()).values()]
        alone = await client.start("counting", "Go.")
        await alone.result()
        whole = await all_of(run.events())

    gone = replaced(whole)
    ends = Counter(events[-1].type for events in lists)
    assert ends == {"run": followers - len(places), "turn": len(places)}
    for events in lists:
        of_run = events[-1].type == "run"
        task_id = events[-1].task_id
        assert plain(events, gone) == plain([event for event in whole if of_run or event.task_id == task_id])
        assert any(event.seq in gone for event in events)
        if of_run:
            assert_whole(events)
    assert await _without_tasks(run) == await _without_tasks(alone)


async def _without_tasks(run: Run) -> list[str]:
    """The kinds of its events, but for workflow tasks: one in which a run is looked at stands in history if something
    else happened meanwhile."""
    return [kind for kind in kinds(await run.handle.fetch_history()) if "WORKFLOW_TASK" not in kind]


def _in_the_reply(follower: Follower, places: int) -> bool:
    """Whether each has seen the part of the last reply that there is."""
    seen = follower.seen()
    return len(seen) == places and all("One, two" in _text(events) for events in seen.values())


def _text(events: Sequence[Event]) -> str:
    """What is shown of the last reply."""
    return "".join(event.text for event in events if isinstance(event, ModelDelta) and event.iteration == 3)


# --- kill -9

WORKERS = 3
ROUNDS, CALLS, HANGS = 6, 6, 3
"""Model calls that ask for tools, how many tools at once, and which of the calls hangs (the first is 0)."""
SAID = "Round by round, word by word, and then some more."
HUNG = "Round by round, word by "
"""What the call that hangs has said by then: the first of its six pieces has no text."""


class Model:
    """Says something and asks for tools. The watched run's call ``HANGS`` hangs in its reply, once."""

    def __init__(self) -> None:
        self.finish = asyncio.Event()
        """Until then no follower gets the last answer."""
        self.hanging = asyncio.Event()
        self._never = asyncio.Event()

    async def __call__(self, request: dict[str, Any]) -> Reply:
        n = said(request)
        if n == ROUNDS:
            await self.finish.wait()
            return Reply(text="All told.")
        reply = Reply(text=SAID, calls=[Call("tell", {"n": n * CALLS + i}) for i in range(CALLS)], delay=0.01)
        if n == HANGS and "Watched." in json.dumps(request["messages"]) and not self.hanging.is_set():
            self.hanging.set()
            reply.hang, reply.hang_after = self._never, 6
        return reply


@pytest.mark.slow
@ON_BOTH_STORES
async def test_a_killed_follower_misses_nothing_while_three_workers_write_and_one_is_killed(engine: Engine) -> None:
    model = Model()
    async with OpenAIServer(model) as server:
        settings = {"TEST_MODEL_URL": server.base_url, "TEST_WORKERS": str(WORKERS)}
        workers = [engine.spawn("telling", **settings) for _ in range(WORKERS)]
        for worker in workers:
            await worker.ready()
        client = await engine.client()
        watched = await client.start("telling", "Watched.")
        await eventually(lambda: len(_pids(engine, watched)) == WORKERS, deadline=60, what="a call at every worker")
        runs = [watched, *[await client.start("telling", "Go.") for _ in range(2)]]
        follower = Follower(engine, "seen", runs)

        await eventually(lambda: follower.count() >= 30, deadline=60, what="events")
        read = [await follower.killed()]
        # All of it: what is not read before the reply is whole is not there any more.
        await eventually(lambda: _open(follower.seen()) == HUNG, deadline=60, what="a reply that hangs")
        hanging = engine.ledger.entries("asks")
        pid = [entry["pid"] for entry in hanging if entry["key"] == watched.id][-1]
        os.kill(pid, signal.SIGKILL)
        read.append(await follower.killed())
        # Those that are left go on with what the one that was killed had, and the third follower with the reading.
        await eventually(lambda: _retracted(follower.seen()), deadline=60, what="a retraction")
        model.finish.set()
        responses = [await run.result() for run in runs]
        seen = await follower.ended()
        whole = [await all_of(run.events()) for run in runs]

    assert [response.content for response in responses] == ["All told."] * 3
    assert sum(worker.process.poll() == -signal.SIGKILL for worker in workers) == 1
    assert 0 < read[0] < read[1] < sum(map(len, seen.values()))
    for place, events in enumerate(whole):
        assert_whole(seen[place])
        gone = replaced(events)
        assert plain(seen[place], gone) == plain(events)
        told = Counter(event.content for event in events if isinstance(event, ToolCompleted))
        assert told == {f"told {n}": 1 for n in range(ROUNDS * CALLS)}
    _assert_retracted(seen[0])


def _pids(engine: Engine, run: Run) -> set[int]:
    """Processes in which tools of the run have begun."""
    return {entry["pid"] for entry in engine.ledger.entries("told") if entry["key"] == run.id}


def _open(seen: Mapping[int, Sequence[Event]]) -> str:
    """What was seen of the reply that hangs."""
    deltas = [event for event in seen.get(0, ()) if isinstance(event, ModelDelta)]
    return "".join(delta.text for delta in deltas if delta.iteration == HANGS + 1)


def _retracted(seen: Mapping[int, Sequence[Event]]) -> bool:
    return any(isinstance(event, ModelRetracted) for event in seen[0])


def _assert_retracted(events: Sequence[Event]) -> None:
    """What the killed worker had streamed does not count, and the reply was then written by another attempt."""
    [undone] = [event for event in events if isinstance(event, ModelRetracted) and event.iteration == HANGS + 1]
    assert (undone.reason, undone.attempt) == ("WorkerLost", 1)
    first = [
        event
        for event in events
        if isinstance(event, ModelDelta) and (event.iteration, event.attempt) == (HANGS + 1, 1)
    ]
    numbers = [number for low, high in undone.retracts for number in range(low, high + 1)]
    assert first
    assert [event.seq for event in first] == numbers
    assert "".join(event.text for event in first) == SAID[: len("".join(event.text for event in first))]
    [done] = [event for event in events if isinstance(event, ModelCompleted) and event.iteration == HANGS + 1]
    assert done.text == SAID
    assert done.attempt > undone.attempt
    assert done.seq > undone.seq
