"""Branches of a step: another agent answers from the conversation, and the policy uses the answer."""

from __future__ import annotations

import asyncio

import pytest

from perdure import Agent, RunContext, Step, hook, register_provider
from perdure.providers import registry
from perdure.testing import ScriptedProvider, call, finish, replay
from perdure.types.events import BranchCompleted, BranchStarted
from tests.support.branches import Question, Score, answer, boss, echo, judge, requests, said
from tests.support.checks import assert_closed, results, users
from tests.support.children import find_child_id
from tests.support.engine import Engine


@pytest.mark.server
async def test_a_branch_sees_what_the_step_sees_and_leaves_the_run_as_it_is(engine: Engine) -> None:
    ran: list[int] = []

    @hook("on_iteration")
    async def ask(step: Step, ctx: RunContext) -> None:
        ran.append(ctx.iteration)
        judged = await step.branch("judge", "How good is it?")
        assert isinstance(judged, Score)
        step.inject(f"It scores {judged.score}.")

    critic, one = judge(7), boss(ask)
    async with engine.served(one, critic) as client:
        run = await client.start(one, "Go.")
        response = await run.result()
        child = await client.run(await find_child_id(client, run.id, 3)).result()
        children = [found.id for found in await run.children()]
        events = [event async for event in run.events(wait=False, children=False)]
        assert not (await replay(client=client, id=run.id)).failed
    assert ran == [2, 2], "the policy runs again from its start"
    (asked,) = requests(critic)
    assert asked.system == "Judge."
    assert [message.role for message in asked.messages] == ["user", "assistant", "tool", "user"]
    assert (results(asked.messages), users(asked.messages)) == (["found x"], ["Go.", "How good is it?"])
    assert users(response.messages) == ["Go.", "It scores 7."]
    assert_closed(response.messages)
    assert (response.content, response.iterations, response.calls) == ("Done.", 2, 2)
    spent = sum(message.usage.total_tokens for message in response.messages if message.usage)
    assert response.usage.total_tokens == spent + child.usage.total_tokens
    assert children == [await find_child_id(client, run.id, 3)]
    branches = [event for event in events if isinstance(event, BranchStarted | BranchCompleted)]
    assert [(event.type, event.agent, event.child_context_id, event.iteration) for event in branches] == [
        ("branch.started", "judge", await find_child_id(client, run.id, 3), 2),
        ("branch.completed", "judge", await find_child_id(client, run.id, 3), 2),
    ]
    assert [event.type for event in events].count("model.completed") == 2


async def test_the_forked_conversation_shares_its_prefix(engine: Engine) -> None:
    @hook("on_iteration")
    async def ask(step: Step) -> None:
        await asyncio.gather(step.branch("echo", "a"), step.branch("echo", "b"))

    async with engine.served(boss(ask), echo()) as client:
        run = await client.start("boss", "Go.")
        await run.result()
        store = await client.store()
        heads = []
        for child in await run.children():
            response = await child.result()
            assert response.head is not None
            heads.append([node.hash for node in await store.read_nodes(response.head)])
        row = await store.get_run(run.id)
        assert row is not None
        assert row.head is not None
        own = [node.hash for node in await store.read_nodes(row.head)]
    first, second = heads
    assert first[:2] == second[:2], "one node more, for both"
    assert own[0] == first[0]
    assert first[1] not in own


async def test_a_plain_def_asks_for_results(engine: Engine) -> None:
    @hook("on_iteration")
    def ask(step: Step) -> None:
        first, second = step.branch("echo", "a"), step.branch("echo", "b", messages="none")
        step.inject(f"{first.result()}, {second.result()}")
        step.inject(step.branch("echo", f"and {first.result()}").result())

    other = echo()
    response = await answer(engine, boss(ask), other)
    assert said(response) == ["echo: a, echo: b", "echo: and echo: a"]
    alone = next(asked for asked in requests(other) if users(asked.messages)[-1] == "b")
    assert len(alone.messages) == 1
    assert len(requests(other)) == 3, "nothing is asked twice"


async def test_one_after_another_and_in_parallel_however_they_are_awaited(engine: Engine) -> None:
    rounds: list[str] = []

    @hook("on_iteration")
    async def ask(step: Step) -> None:
        rounds.append("begin")

        async def deeper(text: str) -> str:
            await asyncio.sleep(0)
            heard: str = await step.branch("echo", text)
            return heard

        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(deeper(text)) for text in "ab"]
        more = await asyncio.wait_for(step.branch("echo", tasks[0].result() + tasks[1].result()), 60)
        step.finish(more)

    other = echo()
    response = await answer(engine, boss(ask), other)
    assert response.content == "echo: echo: aecho: b"
    assert len(rounds) == 3
    assert response.iterations == 2
    assert response.calls == 1


async def test_the_same_asked_several_times_is_several_runs(engine: Engine) -> None:
    @hook("on_iteration")
    async def ask(step: Step) -> None:
        judged = await asyncio.gather(*(step.branch("judge") for _ in range(3)))
        step.finish(str(sorted(one.score for one in judged)))

    critic = judge(1, 2, 3)
    assert (await answer(engine, boss(ask), critic)).content == "[1, 2, 3]"
    assert {len(asked.messages) for asked in requests(critic)} == {3}, "without a message: the conversation as it is"


async def test_a_typed_input_another_model_and_the_agent_itself(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "_providers", {})
    small = ScriptedProvider(lambda r: f"{r.model}: {r.messages[-1].text}")
    register_provider("small", small)
    asker = Agent("asker", ScriptedProvider([]), input=Question)

    @hook("on_iteration")
    async def ask(step: Step) -> None:
        told = [
            await step.branch(asker, Question(text="why?"), model="small:tiny", messages="none"),
            await step.branch("asker", {"text": "how?"}, model=["small:tiny"], messages="none"),
            await step.branch("boss", "You?", model="small:big"),
        ]
        step.finish(" | ".join(told))

    content = (await answer(engine, boss(ask), asker)).content
    first, second, third = content.split(" | ")
    assert first.startswith("tiny: ")
    assert "<text>why?</text>" in first
    assert "<most>10</most>" in second
    assert third == "big: You?"


async def test_a_branch_sees_what_the_policy_has_edited_before(engine: Engine) -> None:
    @hook("on_iteration")
    async def ask(step: Step) -> None:
        step.results[0] = "changed"
        step.inject("Said.")
        await step.branch("echo", "a")
        if step.iteration == 2:
            step.trim(1)
            await step.branch("echo", "b")

    other = echo()
    replies = [call("search", query="x"), call("search", query="y"), "Done."]
    response = await answer(engine, boss(ask, replies=replies), other)
    shown = [(results(asked.messages), users(asked.messages)) for asked in requests(other)]
    assert shown == [
        (["changed"], ["Go.", "Said.", "a"]),
        (["changed", "changed"], ["Go.", "Said.", "Said.", "a"]),
        ([], ["Go.", "Said.", "b"]),
    ]
    assert users(response.messages) == ["Go.", "Said."]


async def test_the_order_to_finish_is_for_the_agent_of_the_run(engine: Engine) -> None:
    @hook("on_iteration")
    async def ask(step: Step) -> None:
        assert step.forced
        step.inject(await step.branch("echo", "a"))

    other = echo()
    one = boss(ask, replies=lambda r: call("search", query="x") if r.tools else "Over.", max_iterations=1)
    response = await answer(engine, one, other)
    (asked,) = requests(other)
    assert users(asked.messages) == ["Go.", "a"]
    assert (response.content, response.finish_reason, len(users(response.messages))) == ("Over.", "limit", 3)


async def test_a_reply_without_an_answer_keeps_the_reminder_behind_it(engine: Engine) -> None:
    @hook("on_iteration")
    async def ask(step: Step) -> None:
        if step.forced:
            await step.branch("echo")

    other = echo()
    replies = ["Hm.", finish(content="Done.")]
    await answer(engine, boss(ask, replies=replies, finish="tool", max_iterations=1), other)
    (asked,) = requests(other)
    assert [message.role for message in asked.messages] == ["user", "assistant", "user"], "a reply is not answered"
