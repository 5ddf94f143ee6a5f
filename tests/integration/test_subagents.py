"""Subagents: a call of another agent is a child workflow, which lives and dies with its parent."""

from __future__ import annotations

import time
from typing import Any

import pytest
from pydantic import BaseModel
from temporalio.client import WorkflowExecutionStatus

from perdure import Agent, Client, Limits, Run, ToolContext, delegate, tool
from perdure.cli.show import format_run_details, read_run_details, serialize_run_details
from perdure.errors import RunCancelledError
from perdure.ports.model import ModelRequest
from perdure.testing import ScriptedProvider, call, finish
from perdure.types.events import ToolCompleted, ToolStarted
from tests.support.checks import assert_closed, results, users
from tests.support.children import find_child_id
from tests.support.engine import Engine
from tests.support.scripts import Gate
from tests.support.wait import eventually


def echo(name: str = "researcher", **options: Any) -> Agent:
    """Says what it was asked."""
    return Agent(name, ScriptedProvider(lambda r: f"{name}: {users(r.messages)[-1]}"), **options)


def told(request: ModelRequest) -> str:
    """What the calls came to."""
    return " | ".join(part.content for part in request.messages[-1].tool_results)


@pytest.mark.server
async def test_calls_run_in_parallel_and_come_back_in_their_order(engine: Engine) -> None:
    gate = Gate()

    async def slow(request: ModelRequest) -> str:
        await gate()
        return f"slow: {users(request.messages)[-1]}"

    agents = [Agent("slow", ScriptedProvider(slow), description="Takes its time."), echo()]
    replies: Any = [[call("call_slow", task="a"), call("call_researcher", task="b"), call("call_slow", task="c")], told]
    boss = Agent("boss", ScriptedProvider(replies), subagents=["slow", agents[1]])
    async with engine.served(boss, agents[0]) as client:
        run = await client.start(boss, "Go.", context={"user_id": "7"})
        await eventually(lambda: gate.entered == 2, what="both slow ones at once")
        status = await run.status()
        quick = await find_child_id(client, run.id, 2)
        await eventually(lambda: _has_ended(client, quick), what="the quick one is done")
        children = {one.context_id: one.kind for one in status.calls}
        gate.open()
        response = await run.result()
        assert response.content == "slow: a | researcher: b | slow: c"
        assert children.items() >= {
            (await find_child_id(client, run.id, 1), "subagent"),
            (await find_child_id(client, run.id, 3), "subagent"),
        }
        child = client.run(await find_child_id(client, run.id, 2))
        assert users((await child.result()).messages) == ["b"]
        assert (await child.handle.describe()).parent_id == run.id
        assert_closed(response.messages)
        events = [event async for event in run.events()]
    started = [event for event in events if isinstance(event, ToolStarted)]
    assert [event.child_context_id for event in started] == [
        await find_child_id(client, run.id, 1),
        await find_child_id(client, run.id, 2),
        await find_child_id(client, run.id, 3),
    ]
    assert [event.content for event in events if isinstance(event, ToolCompleted) and not event.path] == [
        "slow: a",
        "researcher: b",
        "slow: c",
    ]
    counted = [await client.run(await find_child_id(client, run.id, n)).result() for n in (1, 2, 3)]
    own = sum(message.usage.total_tokens for message in response.messages if message.usage)
    assert response.usage.total_tokens == own + sum(one.usage.total_tokens for one in counted)


async def _has_ended(client: Client, name: str) -> bool:
    return (await client.run(name).handle.describe()).status == WorkflowExecutionStatus.COMPLETED


async def test_the_delegate_tool_asks_agents_by_name(engine: Engine) -> None:
    ask = delegate([echo("maths", description="Counts."), "prose"])
    assert "- maths: Counts." in ask.description
    replies: Any = [
        [
            call("call_agent", agent_name="prose", message="x"),
            call("call_agent", agent_name="maths", message="y"),
            call("call_agent", agent_name="root", message="z"),
        ],
        told,
    ]
    boss = Agent("boss", ScriptedProvider(replies), tools=[ask])
    async with engine.served(boss, echo("prose")) as client:
        response = await (await client.start(boss, "Go.")).result()
    assert response.content.startswith("prose: x | maths: y | ")
    assert "agent_name" in response.content
    assert "maths" in results(response.messages)[2]


class Topic(BaseModel):
    subject: str
    depth: int = 1


class Finding(BaseModel):
    text: str
    sure: bool


async def test_a_typed_subagent_takes_its_fields_and_gives_json(engine: Engine) -> None:
    model = ScriptedProvider([finish(text="42", sure=True)])
    finder = Agent("finder", model, input=Topic, output=Finding)
    replies: Any = [[call("find", subject="life", depth=2), call("find", depth="deep")], told]
    boss = Agent("boss", ScriptedProvider(replies), tools=[finder.as_tool("find", "Find something.")])
    async with engine.served(boss) as client:
        response = await (await client.start(boss, "Go.")).result()
    found, refused = results(response.messages)
    assert Finding.model_validate_json(found) == Finding(text="42", sure=True)
    assert "subject" in refused
    assert len(model.requests) == 1
    assert "<subject>life</subject>" in users(model.requests[0].messages)[0]


async def test_a_child_that_fails_is_an_error_for_the_model(engine: Engine) -> None:
    failing = Agent("failing", ScriptedProvider(lambda _: call("nothing")), max_iterations=2, on_limit="error")
    boss = Agent("boss", ScriptedProvider([call("call_failing", task="x"), told]), subagents=[failing])
    async with engine.served(boss) as client:
        response = await (await client.start(boss, "Go.")).result()
    (result,) = [part for message in response.messages for part in message.tool_results]
    assert result.is_error
    assert result.content == "MaxIterationsError: agent failing did not finish within 2 iterations"
    own = sum(message.usage.total_tokens for message in response.messages if message.usage)
    assert response.usage.total_tokens > own, "what the child had used counts"


@pytest.mark.server
async def test_long_tasks_and_long_answers_go_by_the_store(engine: Engine) -> None:
    task = "ж" * 200_000
    boss = Agent("boss", ScriptedProvider([call("call_researcher", task=task), "Done."]), subagents=[echo()])
    async with engine.served(boss) as client:
        run = await client.start(boss, "Go.")
        response = await run.result()
        history = (await run.handle.fetch_history()).to_json()
    assert results(response.messages) == [f"researcher: {task}"]
    assert len(history) < 60_000


class Deep:
    """A tool that hangs until it is stopped, in the grandchild of a run."""

    def __init__(self) -> None:
        self.gate = Gate()
        self.stopped: list[float] = []
        deep = self

        @tool
        async def hang(ctx: ToolContext) -> str:
            """Wait until cancelled."""
            try:
                await deep.gate()
            finally:
                deep.stopped.append(time.monotonic())
            return "hung"

        low = Agent("low", ScriptedProvider(self.once("hang")), tools=[hang])
        mid = Agent("mid", ScriptedProvider(self.once("call_low", task="deeper")), subagents=[low])
        top = self.once("call_mid", task="down")
        self.top = Agent("top", ScriptedProvider(top), subagents=[mid])

    @staticmethod
    def once(name: str, **arguments: Any) -> Any:
        """Calls the tool, then says what it heard last."""

        def reply(request: ModelRequest) -> Any:
            last = request.messages[-1]
            return call(name, **arguments) if users(request.messages)[1:] == [] else f"Heard {last.text}"

        return reply

    async def begun(self, client: Client, **options: Any) -> Run:
        run = await client.start(self.top, "Go.", **options)
        await eventually(lambda: self.gate.entered == 1)
        return run


async def test_cancelling_stops_a_tool_in_a_grandchild(engine: Engine) -> None:
    deep = Deep()
    async with engine.served(deep.top) as client:
        run = await deep.begun(client)
        asked = time.monotonic()
        await run.cancel()
        with pytest.raises(RunCancelledError):
            await run.result()
        print(f"stopped after {deep.stopped[0] - asked:.2f} s")
        for name in (run.id, await find_child_id(client, run.id, 1), await find_child_id(client, run.id, 1, 1)):
            assert_closed(await client.run(name).transcript())
            assert (await client.run(name).handle.describe()).status == WorkflowExecutionStatus.CANCELED
    assert len(deep.stopped) == 1


async def test_an_interrupt_goes_down_and_what_was_used_counts(engine: Engine) -> None:
    deep = Deep()
    async with engine.served(deep.top) as client:
        run = await deep.begun(client, mode="session")
        await run.interrupt("Enough.")
        response = await run.turn().result()
        assert response.content == "Heard Enough."
        assert len(deep.stopped) == 1
        for name in (await find_child_id(client, run.id, 1), await find_child_id(client, run.id, 1, 1)):
            child = await client.run(name).result()
            assert child.finish_reason == "interrupted"
            assert_closed(child.messages)
        assert_closed(response.messages)
        used = 0
        for name in (run.id, await find_child_id(client, run.id, 1), await find_child_id(client, run.id, 1, 1)):
            said = await client.run(name).transcript()
            used += sum(message.usage.total_tokens for message in said if message.usage)
        assert response.usage.total_tokens == used
        await run.close()


@pytest.mark.server
async def test_a_terminated_parent_takes_its_children_with_it(engine: Engine) -> None:
    deep = Deep()
    async with engine.served(deep.top) as client:
        run = await deep.begun(client)
        await run.handle.terminate()

        async def ended() -> bool:
            found = [
                (await client.run(name).handle.describe()).status
                for name in (await find_child_id(client, run.id, 1), await find_child_id(client, run.id, 1, 1))
            ]
            return found == [WorkflowExecutionStatus.CANCELED] * 2

        await eventually(ended)
        assert_closed(await client.run(await find_child_id(client, run.id, 1, 1)).transcript())


async def test_agents_that_call_each_other_end_at_a_depth(engine: Engine) -> None:
    def deeper(request: ModelRequest) -> Any:
        if request.messages[-1].role == "tool":
            return told(request)
        return call("call_agent", agent_name="loop", message="again")

    agent = Agent("loop", ScriptedProvider(deeper), tools=[delegate(["loop"])])
    async with engine.served(agent) as client:
        run = await client.start(agent, "Go.")
        response = await run.result()
    assert response.content == "not run: subagents are nested 5 deep at most"
    assert response.iterations == 2


async def test_a_tree_keeps_to_the_budget_of_its_root(engine: Engine) -> None:
    """Each child would go on for ever; each gets its part of what is left."""
    word = "word " * 50

    @tool
    async def more() -> str:
        """More."""
        return word

    endless = Agent(
        "endless", ScriptedProvider(lambda r: call("more") if r.tools else "Stopped."), tools=[more], max_iterations=500
    )
    calls = [call("call_endless", task=str(n)) for n in range(3)]
    boss = Agent(
        "boss",
        ScriptedProvider(lambda r: calls if r.tools else "Over."),
        subagents=[endless],
        limits=Limits(tokens=20_000),
    )
    async with engine.served(boss) as client:
        run = await client.start(boss, "Go.")
        response = await run.result()
        children = [await client.run(await find_child_id(client, run.id, n)).result() for n in (1, 2, 3)]
    largest = max(message.usage.total_tokens for one in children for message in one.messages if message.usage)
    assert all(child.finish_reason == "limit" for child in children)
    assert all(20_000 / 3 - 3 * largest <= child.usage.total_tokens <= 20_000 / 3 for child in children)
    assert response.usage.total_tokens <= 20_000 + largest


@pytest.mark.slow
@pytest.mark.server
async def test_a_child_killed_with_its_worker_goes_on(engine: Engine) -> None:
    lost = await engine.process("judging")
    client = await engine.client()
    run = await client.start("boss", "Go.")
    await eventually(lambda: engine.ledger.entries("weigh") != [], what="the tool of the child runs")
    await lost.kill()
    await engine.process("judging")
    response = await run.result()
    assert response.content == "The judge said: a stone weighs 3"
    assert len(engine.ledger.entries("weigh")) == 2
    assert len(engine.ledger.entries("judge")) == 2, "no model call is paid twice"
    assert len(engine.ledger.entries("boss")) == 2


async def test_a_child_acts_for_whom_its_parent_acts(engine: Engine) -> None:
    @tool
    async def whoami(ctx: ToolContext) -> str:
        """Who is it?"""
        assert ctx.auth_context is not None
        return f"{ctx.auth_context['user']} in {ctx.context['shop']}"

    helper = Agent("helper", ScriptedProvider([call("whoami"), told]), tools=[whoami])
    boss = Agent("boss", ScriptedProvider([call("call_helper", task="Who?"), told]), subagents=[helper])

    async with engine.served(boss, resolve_auth=lambda ref, _: {"user": ref}) as client:
        run = await client.start(boss, "Go.", auth_ref="ana", context={"shop": "7"})
        assert (await run.result()).content == "ana in 7"


async def test_the_tree_is_shown(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    low = echo("low")
    mid = Agent("mid", ScriptedProvider([call("call_low", task="x"), told]), subagents=[low])
    failing = Agent("failing", ScriptedProvider(lambda _: call("nothing")), max_iterations=1, on_limit="error")
    both = [call("call_mid", task="a"), call("call_failing", task="b")]
    top = Agent("top", ScriptedProvider([both, "Done."]), subagents=[mid, failing])
    async with engine.served(top) as client:
        run = await client.start(top, "Go.")
        await run.result()
        assert [child.id for child in await run.children()] == [
            await find_child_id(client, run.id, 1),
            await find_child_id(client, run.id, 2),
        ]
        reads: list[tuple[str, int, bool]] = []
        store: Any = await client.store()
        read_events = store.read_events

        async def count(context_id: str, **page: Any) -> Any:
            reads.append((context_id, page["after"], page["children"]))
            return await read_events(context_id, **page)

        monkeypatch.setattr(store, "read_events", count)
        briefly = await read_run_details(run, tree=False)
        assert (reads, briefly.messages) == ([], list((await run.result()).messages))
        shown = await read_run_details(run)
        assert reads.count((run.id, 0, True)) == 1
        assert {context_id for context_id, _, _ in reads} == {run.id}, "with those of the runs below, once"
    assert [(one.depth, one.status.context_id, one.status.agent, one.status.state) for one in shown.children] == [
        (1, await find_child_id(client, run.id, 1), "mid", "completed"),
        (2, await find_child_id(client, run.id, 1, 1), "low", "completed"),
        (1, await find_child_id(client, run.id, 2), "failing", "failed"),
    ]
    of = {one.status.agent: one.status for one in shown.children}
    low_one, mid_one = of["low"], of["mid"]
    tokens = low_one.usage.total_tokens
    low_id = await find_child_id(client, run.id, 1, 1)
    low_line = f"    {low_id}  completed  agent low · 1 iteration · {tokens} tokens · call call_1"
    assert low_line in format_run_details(shown)
    assert any(line.startswith("    MaxIterationsError: agent failing") for line in format_run_details(shown))
    assert serialize_run_details(shown)["children"][1] == {
        "id": await find_child_id(client, run.id, 1, 1),
        "depth": 2,
        "agent": "low",
        "background": False,
        "call_id": "call_1",
        "state": "completed",
        "iterations": 1,
        "tokens": tokens,
        "cost_usd": None,
        "activity": None,
    }
    assert mid_one.usage.total_tokens > tokens > 0, "what a run took is said with what all below it took"
