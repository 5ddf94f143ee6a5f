"""Subagents in background in process: the same workflow code, and the same answers as on a server."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from perdure import Agent, Run, background
from perdure.errors import DefinitionError, RunCancelledError
from perdure.ports.model import ModelRequest
from perdure.testing import Script, call, scripted
from tests.support.checks import assert_closed, results, users
from tests.support.children import find_child_id
from tests.support.scripts import Gate
from tests.support.wait import eventually

worker = Agent("worker", "openai:gpt-5-mini")
boss = Agent("boss", "openai:gpt-5", tools=background([worker], at_once=3))


def start(message: str) -> Any:
    return call("start_agent", agent_name="worker", message=message)


def collect(handle: str, **options: Any) -> Any:
    return call("collect_agent", handle=handle, **options)


class Scene:
    """What the models say, and what is done with the run."""

    def __init__(self, replies: list[Any], act: Callable[[Scene, Script], Awaitable[Any]]) -> None:
        self.replies = replies
        self.act = act
        self.gate = Gate()

    async def works(self, request: ModelRequest) -> str:
        await self.gate()
        return f"heard {', '.join(users(request.messages))}"

    async def run(self, engine: Any) -> list[str]:
        self.gate = Gate()
        async with scripted(boss, self.replies, others={worker: self.works}, engine=engine) as script:
            said: list[str] = await self.act(self, script)
        return said


async def _collects(run: Run) -> bool:
    return "collect_agent" in [one.tool for one in (await run.status()).calls]


async def talked(scene: Scene, script: Script) -> list[str]:
    run = await script.client.start(boss, "Go.", max_history_events=15)
    await eventually(lambda: _collects(run), every=0.005)
    scene.gate.open()
    response = await run.result()
    child = await script.client.run(await find_child_id(script.client, run.id, 1)).result()
    assert_closed(response.messages)
    return [*results(response.messages), response.content, *users(child.messages)]


async def left(scene: Scene, script: Script) -> list[str]:
    run = await script.client.start(boss, "Go.")
    response = await run.result()
    found = [await script.client.run(await find_child_id(script.client, run.id, n)).status() for n in (1, 2)]
    return [*results(response.messages), *(one.state for one in found)]


async def cancelled(scene: Scene, script: Script) -> list[str]:
    run = await script.client.start(boss, "Go.")
    await eventually(lambda: _collects(run), every=0.005)
    await run.cancel()
    with pytest.raises(RunCancelledError):
        await run.result()
    child = script.client.run(await find_child_id(script.client, run.id, 1))
    return [*results(await run.transcript()), (await child.status()).state]


async def terminated(scene: Scene, script: Script) -> list[str]:
    run = await script.client.start(boss, "Go.")
    await eventually(lambda: _collects(run), every=0.005)
    await script.client.run(await find_child_id(script.client, run.id, 1)).handle.terminate()
    return results((await run.result()).messages)


async def session(scene: Scene, script: Script) -> list[str]:
    name = f"chat-{script.client.task_queue}"
    turn = await script.send("Go.", id=name)
    first = await turn.result()
    scene.gate.open()
    second = await (await script.send("And?", id=name)).result()
    await turn.run.close()
    await turn.run.handle.result()
    return [first.content, *results(second.messages)]


SCENES = {
    "talked to, and collected after continue-as-new": Scene(
        [
            [start("a"), start("b")],
            call("tell_agent", handle="b1", message="c"),
            [collect("b1"), collect("b2")],
            "Done.",
        ],
        talked,
    ),
    "talked to by the reply that starts it": Scene(
        [[start("a"), call("tell_agent", handle="b1", message="c")], collect("b1"), "Done."], talked
    ),
    "left behind": Scene([[start("a"), start("b")], collect("b1", wait=False), "Enough."], left),
    "cancelled": Scene([start("a"), collect("b1")], cancelled),
    "terminated": Scene([start("a"), collect("b1"), "Done."], terminated),
    "session": Scene([start("a"), "Started.", collect("b1"), collect("b7"), "Done."], session),
    "too many": Scene([[start(str(n)) for n in range(4)], "Done."], left),
}


@pytest.fixture
def _server(temporal_address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TEMPORAL_ADDRESS", temporal_address)
    monkeypatch.setenv("PERDURE_STORE_URL", f"sqlite:///{tmp_path / 'store.db'}")
    monkeypatch.delenv("PERDURE_TASK_QUEUE", raising=False)
    return iter(())


@pytest.mark.server
@pytest.mark.usefixtures("_server")
@pytest.mark.parametrize("name", SCENES)
async def test_both_engines_say_the_same(name: str) -> None:
    in_process = await SCENES[name].run("process")
    assert in_process == await SCENES[name].run("temporal")
    assert in_process


def test_a_unit_test_of_it() -> None:
    replies = [start("a"), collect("b1"), "Done."]
    with scripted(boss, replies, others={worker: ["Found."]}):
        assert results(boss.call_sync("Go.").messages) == ["started as b1", "Found."]


@pytest.mark.parametrize("wrong", [{"agents": []}, {"agents": "worker"}, {"agents": [worker], "at_once": 0}])
def test_what_is_wrong_is_said_when_it_is_defined(wrong: dict[str, Any]) -> None:
    with pytest.raises(DefinitionError, match=r"background\(?|at_once"):
        background(**wrong)
