"""PARITY.md C6, C8 and C9, and A8's ``on_iteration``: what happens between two model calls, durably."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from pydantic import BaseModel

from perdure import Agent, Message, RunContext, Step, hook, register_provider, tool
from perdure.errors import AbortError
from perdure.ports.model import ModelRequest
from perdure.providers import registry
from perdure.testing import ScriptedProvider, call, finish
from perdure.types.messages import ToolCallPart
from tests.support.checks import assert_closed, results, users
from tests.support.engine import Engine


@tool
async def search(query: str) -> str:
    """Search."""
    return f"found {query}"


@tool
async def refund(order: str) -> str:
    """Refund."""
    return f"refunded {order}"


async def test_a8_on_iteration_fires_between_the_tools_and_the_next_call(engine: Engine) -> None:
    seen: list[Any] = []

    @hook("on_iteration")
    def first(iteration: int, messages: list[Message], response: Message) -> None:
        seen.append(("first", iteration, messages[-1].role, response.text))

    @hook("on_iteration")
    async def second(iteration: int, ctx: RunContext) -> None:
        seen.append(("second", iteration, ctx.agent))

    replies = [["One.", call("search", query="a")], ["Two.", call("search", query="b")], "Done."]
    agent = Agent("worker", ScriptedProvider(replies), tools=[search], hooks=[first, second])
    async with engine.served(agent) as client:
        await (await client.start(agent, "Go.")).result()
    assert seen == [
        ("first", 1, "tool", "One."),
        ("second", 1, "worker"),
        ("first", 2, "tool", "Two."),
        ("second", 2, "worker"),
    ]


async def test_c6_a_step_sees_what_happened(engine: Engine) -> None:
    seen: list[Any] = []

    @hook("on_iteration")
    def look(step: Step) -> None:
        assert step.reply is not None
        calls = [(one.name, one.arguments) for one in step.calls]
        said = [(one.content, one.is_error) for one in step.results]
        seen.append((step.iteration, step.model, step.settings, step.tools, step.reply.text, calls, said))

    provider = ScriptedProvider([["Looking.", call("search", query="a"), call("nothing")], "Done."])
    agent = Agent("worker", provider, tools=[search], hooks=[look], settings={"temperature": 0.5, "max_tokens": 9})
    async with engine.served(agent) as client:
        await (await client.start(agent, "Go.")).result()
    (step,) = seen
    assert step[:5] == (1, agent.model, {"temperature": 0.5, "max_tokens": 9}, ("search",), "Looking.")
    assert step[5] == [("search", {"query": "a"}), ("nothing", {})]
    assert step[6] == [("found a", False), ("tool not found: nothing (there is: search)", True)]


async def test_c6_a_step_changes_the_next_one(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_providers", {})
    small = ScriptedProvider([ToolCallPart(id="refund_7", name="refund", arguments={"order": "7"})])
    register_provider("small", small)

    @hook("on_iteration")
    def change(step: Step) -> None:
        if step.iteration == 1:
            step.model = "small:tiny"
            step.settings.update(temperature=0.1, max_tokens=5)
            step.add_tool("refund")
            step.remove_tool("search")
            step.results[0] = "nothing"

    provider = ScriptedProvider([call("search", query="a"), "Done."])
    agent = Agent("worker", provider, tools=[search], hooks=[change], settings={"temperature": 0.5})
    async with engine.served(agent, tools=[refund]) as client:
        response = await (await client.start(agent, "Go.")).result()
    first, last = provider.requests
    (second,) = small.requests
    assert second.model == "tiny"
    assert [(dict(one.settings), [spec.name for spec in one.tools]) for one in (first, second, last)] == [
        ({"temperature": 0.5}, ["search"]),
        ({"temperature": 0.1, "max_tokens": 5}, ["refund"]),
        ({"temperature": 0.5}, ["search"]),
    ]
    assert results(response.messages) == ["nothing", "refunded 7"]
    assert_closed(response.messages)


async def test_c6_a_step_edits_the_whole_history(engine: Engine) -> None:
    @hook("on_iteration")
    def edit(step: Step) -> None:
        if step.iteration == 2:
            step.instructions = "Be brief."
            step.messages.append(Message.user("Hurry."))
            del step.messages[1:3]

    provider = ScriptedProvider([call("search", query="a"), call("search", query="b"), "Done."])
    agent = Agent("worker", provider, tools=[search], hooks=[edit], instructions="Be thorough.")
    async with engine.served(agent) as client:
        response = await (await client.start(agent, "Go.")).result()
    assert provider.requests[-1].system == "Be brief."
    assert list(provider.requests[-1].messages) == [one.model_copy() for one in response.messages[1:-1]]
    assert (users(response.messages), results(response.messages)) == (["Go.", "Hurry."], ["found b"])
    assert response.messages[0].replaces is not None, "the old history is named, and stays"


@pytest.mark.parametrize("how", ["finish", "abort"])
async def test_c6_a_step_ends_the_loop(engine: Engine, how: str) -> None:
    @hook("on_iteration")
    def end(step: Step) -> None:
        if how == "finish":
            step.finish(step.results[0].content)
        else:
            step.abort("enough")

    provider = ScriptedProvider([call("search", query="a")])
    agent = Agent("worker", provider, tools=[search], hooks=[end])
    async with engine.served(agent) as client:
        run = await client.start(agent, "Go.")
        if how == "abort":
            with pytest.raises(AbortError, match="enough"):
                await run.result()
        else:
            assert (await run.result()).content == "found a"
    assert len(provider.requests) == 1


class Verdict(BaseModel):
    good: bool
    why: str


async def test_c9_a_step_branches_and_uses_the_typed_result(engine: Engine) -> None:
    """Another agent answers from the current history; the run itself goes on as if none had."""

    @hook("on_iteration")
    async def review(step: Step) -> None:
        verdict = await step.branch(critic, "Is it enough?")
        assert isinstance(verdict, Verdict)
        if verdict.good:
            step.finish(f"{step.results[0].content}: {verdict.why}")
        else:
            step.inject(verdict.why)

    judging = ScriptedProvider([finish(good=False, why="Look further."), finish(good=True, why="it is all there")])
    critic = Agent("critic", judging, output=Verdict, instructions="You judge.")
    provider = ScriptedProvider([call("search", query="a"), call("search", query="b")])
    agent = Agent("worker", provider, tools=[search], hooks=[review])
    async with engine.served(agent, critic) as client:
        run = await client.start(agent, "Go.")
        response = await run.result()
        children = [child.id for child in await run.children()]
    assert response.content == "found b: it is all there"
    assert users(response.messages) == ["Go.", "Look further."]
    assert_closed(response.messages)
    shown = [(asked.system, results(asked.messages), users(asked.messages)) for asked in judging.requests]
    assert shown == [
        ("You judge.", ["found a"], ["Go.", "Is it enough?"]),
        ("You judge.", ["found a", "found b"], ["Go.", "Look further.", "Is it enough?"]),
    ]
    assert (response.iterations, response.calls, len(provider.requests)) == (3, 2, 2)
    assert len(children) == 2


async def test_c9_several_branches_run_in_parallel(engine: Engine) -> None:
    together = asyncio.Barrier(3)

    async def judged(request: ModelRequest) -> str:
        await together.wait()
        return f"As for {users(request.messages)[-1]}: fine."

    @hook("on_iteration")
    async def review(step: Step) -> None:
        step.finish(" ".join(await asyncio.gather(*(step.branch("judge", what) for what in ("a", "b", "c")))))

    agent = Agent("worker", ScriptedProvider([call("search", query="a")]), tools=[search], hooks=[review])
    async with engine.served(agent, Agent("judge", ScriptedProvider(judged))) as client:
        response = await (await client.start(agent, "Go.")).result()
    assert response.content == "As for a: fine. As for b: fine. As for c: fine."


async def test_c8_text_streams_first_then_tools_run_then_the_step(engine: Engine) -> None:
    order: list[str] = []

    @tool
    async def note(what: str) -> str:
        """Note."""
        order.append("tool")
        return what

    @hook("on_iteration")
    def step(step: Step) -> None:
        assert step.reply is not None
        order.append(f"step after {step.reply.text!r}")
        step.inject("Mind.")

    provider = ScriptedProvider([["I note it.", call("note", what="a")], "Done."])
    agent = Agent("worker", provider, tools=[note], hooks=[step])
    async with engine.served(agent) as client:
        run = await client.start(agent, "Go.")
        async with asyncio.timeout(30):
            types = [event.type async for event in run.events()]
    assert order == ["tool", "step after 'I note it.'"]
    first = [types.index(one) for one in ("model.completed", "tool.started", "tool.completed", "step")]
    assert first == sorted(first)
    assert types.index("step") < len(types) - 1 - types[::-1].index("model.completed"), "with the call that it is for"
