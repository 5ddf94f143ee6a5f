"""Replies that fail, hang and are cut; named points; models that are blocked."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from perdure import Agent, Client, local, tool
from perdure.errors import RateLimitError, StoreError
from perdure.ports.model import Completed, ModelRequest, StreamEvent, TextDelta, ToolCallDelta
from perdure.ports.test_seams import POINTS, fake_models, find_fake_model, listeners, reach_point
from perdure.providers.registry import register_provider
from perdure.testing import (
    ModelsBlockedError,
    ScriptedProvider,
    at,
    block_models,
    call,
    cut,
    fail,
    hang,
    kill_at,
    scripted,
)
from perdure.types.messages import Message, TextPart
from tests.support.wait import eventually


@tool
def add(a: int, b: int) -> int:
    """Add."""
    return a + b


def an_agent(model: Any = "openai:gpt-5-mini") -> Agent:
    return Agent("faulty", model, tools=[add])


async def streamed(reply: Any, into: list[StreamEvent]) -> None:
    async for event in ScriptedProvider([reply]).stream(ModelRequest("m", [Message.user("Hi.")])):
        into.append(event)  # noqa: PERF401  # what came before the error is there, too


# --- replies


async def test_a_cut_stream_ends_in_the_middle_of_a_character_of_the_wire() -> None:
    events: list[StreamEvent] = []
    await streamed(cut("añb", after=2), events)
    assert events == [TextDelta("a")], "the second byte is half of the ñ"
    events.clear()
    await streamed(cut(["one two", call("add", a=1, b=2)], after=10), events)
    assert events == [TextDelta("one "), TextDelta("two"), ToolCallDelta(0, "call_1", "add", '{"a')]
    assert not any(isinstance(event, Completed) for event in events)


async def test_a_stream_may_fail_on_its_way() -> None:
    events: list[StreamEvent] = []
    with pytest.raises(RateLimitError):
        await streamed(fail(RateLimitError("slow"), "one two", after=4), events)
    assert events == [TextDelta("one ")]
    with pytest.raises(ValueError, match="at once"):
        await streamed(fail(ValueError("at once")), events)


async def test_a_stream_may_hang() -> None:
    events: list[StreamEvent] = []
    task = asyncio.create_task(streamed(hang("one two", after=4), events))
    await eventually(lambda: events)
    assert not task.done()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


# --- points


def test_points_are_reached_in_order() -> None:
    reached: list[str] = []
    agent = an_agent()
    registered = [at(point, lambda point=point: reached.append(point)) for point in POINTS]
    try:
        with scripted(agent, [call("add", a=1, b=2), "Three."]):
            agent.call_sync("Hi.")
    finally:
        for one in registered:
            one.remove()
    model, tools = list(POINTS[:3]), list(POINTS[3:6])
    assert reached == [*model, *tools, *model]
    assert listeners == {}, "no listener is left, and a point costs nothing"


def test_a_listener_may_be_the_fault() -> None:
    """The reply is lost before it is recorded: the model is asked again. The outcome of a tool is not."""
    agent = an_agent()
    fails = [StoreError("gone")]

    def once() -> None:
        if fails:
            raise fails.pop()

    with scripted(agent, ["Lost.", "Hello."]), at("model.answered", once):
        assert agent.call_sync("Hi.").content == "Hello."
    fails.append(StoreError("gone"))
    with scripted(agent, [call("add", a=1, b=2), lambda r: r.messages[-1].tool_results[0].content]):
        with at("tool.acted", once):
            assert agent.call_sync("Hi.").content.startswith("OutcomeUnknown: add was started")
        assert not fails


def test_an_unknown_point() -> None:
    with pytest.raises(ValueError, match=r"unknown point 'tool.done'; the points are model.begun"):
        at("tool.done", lambda: None)  # type: ignore[arg-type]


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")  # from Python 3.12 on
def test_a_process_is_killed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second that comes to this point lives. That may as well be this process."""
    made = str(tmp_path / "killed")

    def is_killed() -> None:
        kill_at("tool.acted", count=2, once=made)
        for n in range(1, 4):
            reach_point("tool.claimed")
            reach_point("tool.acted")
            (tmp_path / str(n)).touch()

    process = multiprocessing.get_context("fork").Process(target=is_killed)
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    assert sorted(path.name for path in tmp_path.iterdir()) == ["1", "killed"]
    killed: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "kill", lambda *args: killed.append(args))
    with kill_at("tool.acted", count=2, once=made):
        for _ in range(3):
            reach_point("tool.acted")
    assert killed == []


def test_without_a_file_it_is_killed_every_time(monkeypatch: pytest.MonkeyPatch) -> None:
    killed: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "kill", lambda *args: killed.append(args))
    agent = an_agent()
    with kill_at("model.recorded"), scripted(agent, ["Hello.", "Hello."]):
        agent.call_sync("Hi.")
        agent.call_sync("Hi.")
    assert killed == [(os.getpid(), signal.SIGKILL)], "the first time, if it lived"


# --- models that are blocked


async def test_a_real_model_is_not_called() -> None:
    agent, other = an_agent(), Agent("scripted", "openai:gpt-5-mini")
    with block_models():
        async with scripted(other, ["Hello."]), local([other, agent]) as client:
            blocked = await client.start(agent, "Hi.")
            with pytest.raises(ModelsBlockedError) as caught:
                await blocked.result()
            assert (await (await client.start(other, "Hi.")).result()).content == "Hello.", "a scripted one is"
    assert "agent 'faulty' was about to call openai:gpt-5-mini" in str(caught.value)
    assert "the last message: 'Hi.'" in str(caught.value)
    assert fake_models == []


async def test_what_a_test_made_itself_is_called() -> None:
    class Fake:
        async def stream(self, request: ModelRequest) -> AsyncIterator[StreamEvent]:
            yield Completed((TextPart(text="I am a fake."),))

    register_provider("fake", Fake())
    served = [an_agent(ScriptedProvider(["I am a script."])), Agent("fake", "fake:1"), Agent("object", Fake())]
    beside = Agent("beside", "openai:gpt-5-mini")
    with block_models(allow=["fake"]):
        async with scripted(beside, []), local([beside, *served]) as client:
            said = [await _content(client, agent) for agent in served[:2]]
            with pytest.raises(ModelsBlockedError, match="Fake:custom"):
                await _content(client, served[2])
    assert said == ["I am a script.", "I am a fake."]


async def _content(client: Client, agent: Agent) -> str:
    return (await (await client.start(agent, "Hi.")).result()).content


def test_a_plain_call_blocks_until_it_is_removed() -> None:
    blocked = block_models()
    try:
        assert find_fake_model("any", "openai:gpt-5") is not None
    finally:
        blocked.remove()
    blocked.remove()
    assert find_fake_model("any", "openai:gpt-5") is None
