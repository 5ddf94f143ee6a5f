"""Branches of a step on a real server: another agent answers from the conversation, and the policy uses the answer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from pydantic import BaseModel

from perdure import Agent, Client, Compaction, Limits, Message, Run, RunContext, Step, hook, register_provider, tool
from perdure.cli.show import activity
from perdure.errors import BranchError, ContextLengthError, HookError, ParseError, RunCancelledError
from perdure.hooks import Hook
from perdure.ports import ModelRequest
from perdure.providers import registry
from perdure.testing import ScriptedProvider, call, finish, replay
from perdure.types.branch_events import BranchCompleted, BranchStarted
from perdure.types.interface import Response
from tests.support.checks import assert_closed, results, users
from tests.support.engine import Engine
from tests.support.scripts import Gate
from tests.support.wait import eventually

pytestmark = pytest.mark.server


class Score(BaseModel):
    score: int


class Question(BaseModel):
    text: str
    most: int = 10


@tool
async def search(query: str) -> str:
    """Search."""
    return f"found {query}"


def judge(*scores: int, **options: Any) -> Agent:
    provider = ScriptedProvider([finish(score=one) for one in scores])
    return Agent("judge", provider, **{"output": Score, "instructions": "Judge.", **options})


def echo(name: str = "echo", **options: Any) -> Agent:
    """Says what it was asked last."""
    return Agent(name, ScriptedProvider(lambda r: f"{name}: {users(r.messages)[-1]}"), **options)


def boss(*hooks: Hook, replies: Any = None, **options: Any) -> Agent:
    provider = ScriptedProvider(replies or [call("search", query="x"), "Done."])
    return Agent("boss", provider, **{"tools": [search], "hooks": hooks, "instructions": "Work.", **options})


async def answer(engine: Engine, *agents: Agent, **options: Any) -> Response:
    async with engine.served(*agents) as client:
        return await (await client.start(agents[0], "Go.", **options)).result()


def said(response: Response) -> list[str]:
    """What the policy has said to the model."""
    return [message.text for message in response.messages if message.by == "step"]


def requests(agent: Agent) -> list[ModelRequest]:
    (model,) = agent.chain
    assert isinstance(model.own, ScriptedProvider)
    return model.own.requests


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
        child = await client.run(f"{run.id}/3").result()
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
    assert children == [f"{run.id}/3"]
    branches = [event for event in events if isinstance(event, BranchStarted | BranchCompleted)]
    assert [(event.type, event.agent, event.child_context_id, event.iteration) for event in branches] == [
        ("branch.started", "judge", f"{run.id}/3", 2),
        ("branch.completed", "judge", f"{run.id}/3", 2),
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
            heads.append([node.hash for node in await store.nodes(response.head)])
        row = await store.run(run.id)
        assert row is not None
        assert row.head is not None
        own = [node.hash for node in await store.nodes(row.head)]
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


# --- what goes wrong


async def test_a_branch_that_fails_is_an_error_that_the_policy_may_catch(engine: Engine) -> None:
    caught: list[BaseException] = []

    @hook("on_iteration")
    async def ask(step: Step) -> None:
        judged = await asyncio.gather(step.branch("judge"), step.branch("echo", "a"), return_exceptions=True)
        assert not any(isinstance(one, asyncio.CancelledError) for one in judged)
        caught.append(judged[0])
        step.inject(judged[1])

    critic = Agent("judge", ScriptedProvider(lambda _: finish(score="none")), output=Score, parse_retries=0)
    response = await answer(engine, boss(ask), critic, echo())
    assert said(response) == ["echo: a"]
    (error,) = caught
    assert isinstance(error, BranchError)
    assert isinstance(error.__cause__, ParseError)
    assert "'judge'" in str(error)
    assert response.usage.total_tokens > 0


async def test_a_branch_that_fails_fails_the_run_where_nobody_catches_it(engine: Engine) -> None:
    @hook("on_iteration")
    async def ask(step: Step) -> None:
        await step.branch("judge", "Well?")

    critic = judge(max_iterations=1, on_limit="error", output=str)
    (model,) = critic.chain
    model.own.replies = lambda _: call("search", query="x")  # type: ignore[union-attr]  # it is a ScriptedProvider
    with pytest.raises(HookError, match=r"hook ask \(on_iteration\) failed: BranchError: .*judge: Well\?"):
        await answer(engine, boss(ask), critic)


async def _swallow(step: Step) -> None:
    try:
        await step.branch("echo", "a")
    except BaseException:
        step.abort("It failed!")


def _swallow_plain(step: Step) -> None:
    try:
        step.branch("echo", "a").result()
    except BaseException as error:
        raise ValueError("It failed!") from error


def _returned(step: Step) -> Any:
    return step.branch("echo", "a")


async def _stay(step: Step) -> None:
    try:
        await step.branch("echo", "a")
    except asyncio.CancelledError:
        await step.branch("echo", "b")


@pytest.mark.parametrize("policy", [_swallow, _swallow_plain, _stay, _returned])
async def test_a_policy_that_catches_everything_is_left(engine: Engine, policy: Callable[..., Any]) -> None:
    assert (await answer(engine, boss(hook("on_iteration")(policy)), echo())).content == "Done."


async def _unknown(step: Step) -> None:
    await step.branch("nobody")


async def _many(step: Step) -> None:
    await asyncio.gather(*(step.branch("echo", str(n)) for n in range(11)))


async def _forgotten(step: Step) -> None:
    step.branch("echo", "a")


async def _nothing(step: Step) -> None:
    await step.branch("echo", messages="none")


async def _odd(step: Step) -> None:
    await step.branch("echo", ["a"])


async def _empty(step: Step) -> None:
    await step.branch("echo", "")


async def _some(step: Step) -> None:
    await step.branch("echo", "a", messages="some")  # type: ignore[arg-type]  # a mistake


async def _model(step: Step) -> None:
    await step.branch("echo", "a", model="nobody:tiny")


async def _number(step: Step) -> None:
    await step.branch("echo", "a", model=5)  # type: ignore[arg-type]  # a mistake


async def _long(step: Step) -> None:
    await step.branch("echo", "a", model=f"openai:{'x' * 5_000}")


async def _nobody(step: Step) -> None:
    await step.branch(5, "a")


async def _edited(step: Step) -> None:
    del step.messages[-1]
    await step.branch("echo")


asked_for: list[str] = []


async def _other(step: Step) -> None:
    asked_for.append("x")
    await step.branch("echo", f"number {len(asked_for)}")


def _other_plain(step: Step) -> None:
    asked_for.append("x")
    step.branch("echo", f"number {len(asked_for)}").result()


@pytest.mark.parametrize(
    ("policy", "why"),
    [
        (_nobody, "DefinitionError: step.branch asks an Agent, or the name of one, not 5"),
        (_unknown, r"AgentNotFoundError: no agent 'nobody' on this worker \(it serves: boss, echo\)"),
        (_many, "DefinitionError: a step may have 10 branches"),
        (_forgotten, "DefinitionError: the policy began the branch 'echo: a' and did not wait"),
        (_nothing, "DefinitionError: a branch to agent 'echo' without the conversation has nothing to answer"),
        (_odd, r"DefinitionError: a branch to agent 'echo' is given text, not \['a'\]"),
        (_empty, "DefinitionError: a branch to agent 'echo' is given text, not ''"),
        (_some, 'is "all" or "none", not \'some\''),
        (_model, "nobody"),
        (_number, r"DefinitionError: the override of agent 'echo': model: [\s\S]*the name of a model"),
        (_long, r"DefinitionError: step.branch\(model=…\) has 5,\d+ bytes as JSON and may have 4,096"),
        (_edited, "cannot be sent to another agent"),
        (_other, "asks for the branch 'echo: number 2', where it asked for 'echo: number 1' when it ran before"),
        (_other_plain, "asks for the branch 'echo: number 2', where it asked for 'echo: number 1' when it ran before"),
    ],
)
async def test_what_cannot_be_asked_fails_the_run_and_names_the_hook(
    engine: Engine, policy: Callable[..., Any], why: str
) -> None:
    asked_for.clear()
    with pytest.raises(HookError, match=rf"hook {policy.__name__} \(on_iteration\) failed: [\s\S]*{why}"):
        await answer(engine, boss(hook("on_iteration")(policy)), echo())


async def test_a_policy_that_is_only_logged_goes_on_without_its_branch(engine: Engine) -> None:
    @hook("on_iteration", on_error="log")
    async def first(step: Step) -> None:
        step.inject("Not said.")
        step.branch("echo", "never awaited")
        await step.branch("nobody")

    @hook("on_iteration", on_error="log")
    async def second(step: Step) -> None:
        step.inject(await step.branch("echo", "a"))

    other = echo()
    response = await answer(engine, boss(first, second), other)
    assert said(response) == ["echo: a"]
    assert len(requests(other)) == 1


async def test_branches_that_ask_for_branches_end_at_a_depth(engine: Engine) -> None:
    @hook("on_iteration")
    async def ask(step: Step) -> None:
        try:
            step.finish(await step.branch("boss", "Deeper."))
        except BranchError as error:
            step.finish(str(error))

    one = boss(ask, replies=lambda r: call("search", query=str(len(r.messages))))
    response = await answer(engine, one)
    assert "subagents are nested 5 deep at most" in response.content


# --- what happens meanwhile


class Held:
    """An agent that answers when the gate is open, asked by a policy."""

    def __init__(self, **options: Any) -> None:
        self.gate = Gate()
        self.rounds = 0

        async def held(request: ModelRequest) -> str:
            await self.gate()
            return f"Heard {users(request.messages)[-1]}"

        @hook("on_iteration")
        async def ask(step: Step) -> None:
            self.rounds += 1
            step.inject(await step.branch("held", f"{len(step.messages)}?"))

        self.agents = (boss(ask, **options), Agent("held", ScriptedProvider(held)))

    async def begun(self, client: Client, **options: Any) -> Run:
        run = await client.start("boss", "Go.", **options)
        await eventually(lambda: self.gate.entered == 1)
        return run


async def test_status_names_the_branches_that_run(engine: Engine) -> None:
    held = Held()
    async with engine.served(*held.agents) as client:
        run = await held.begun(client)
        status = await run.status()
        assert (status.state, status.doing, status.iteration) == ("running", "branches", 1)
        (branch,) = status.calls
        assert (branch.kind, branch.name, branch.context_id) == ("branch", "held", f"{run.id}/3")
        assert activity(status) == "iteration 1 · branches: held"
        held.gate.open()
        await run.result()


async def test_a_message_that_comes_meanwhile_joins_the_next_step(engine: Engine) -> None:
    held = Held(replies=[call("search", query="x"), "Done.", "Done again."])
    async with engine.served(*held.agents) as client:
        run = await held.begun(client)
        await run.inject("Wait!")
        held.gate.open()
        response = await run.result()
    assert users(response.messages) == ["Go.", "Heard 3?", "Wait!", "Heard 6?"], "the policy saw the same again"
    assert held.rounds == 4


async def test_cancelling_the_run_cancels_its_branches(engine: Engine) -> None:
    held = Held()
    async with engine.served(*held.agents) as client:
        run = await held.begun(client)
        await run.cancel()
        with pytest.raises(RunCancelledError):
            await run.result()
        with pytest.raises(RunCancelledError):
            await client.run(f"{run.id}/3").result()
        transcript = await run.transcript()
    assert_closed(transcript)
    assert results(transcript) == ["found x"]


@pytest.mark.parametrize("says", ["Otherwise.", None])
async def test_an_interrupt_stops_the_branches_and_they_are_asked_for_anew(engine: Engine, says: str | None) -> None:
    held = Held()
    async with engine.served(*held.agents) as client:
        run = await held.begun(client)
        await run.interrupt(says)
        await eventually(lambda: held.gate.left == 1, what="the branch is stopped")
        held.gate.open()
        response = await run.result()
        stopped = await client.run(f"{run.id}/3").result()
    assert stopped.finish_reason == "interrupted"
    assert_closed(response.messages)
    if says is None:
        assert response.finish_reason == "interrupted"
        assert users(response.messages) == ["Go."]
    else:
        assert users(response.messages) == ["Go.", "Otherwise.", "Heard 4?"]


async def test_branches_share_what_is_left_and_what_they_use_counts(engine: Engine) -> None:
    caught: list[str] = []

    @hook("on_iteration")
    async def ask(step: Step) -> None:
        judged = await asyncio.gather(*(step.branch("talker", str(n)) for n in range(2)), return_exceptions=True)
        caught.extend(map(str, judged))
        try:
            await step.branch("talker", "more")
        except BranchError as error:
            caught.append(str(error))

    talker = Agent("talker", ScriptedProvider(lambda _: "word " * 400))
    one = boss(ask, limits=Limits(tokens=500), replies=lambda r: call("search", query="x") if r.tools else "Over.")
    response = await answer(engine, one, talker)
    assert "nothing is left" in caught[-1]
    assert response.usage.total_tokens > 800
    assert response.finish_reason == "limit"


async def test_what_was_asked_is_not_asked_again_when_the_conversation_is_too_long(engine: Engine) -> None:
    asked: list[int] = []

    def replies(request: ModelRequest) -> Any:
        asked.append(len(request.messages))
        if len(asked) == 2:
            raise ContextLengthError("too long")
        return call("search", query="x") if len(asked) == 1 else "Done."

    @hook("on_iteration")
    async def ask(step: Step) -> None:
        step.inject(await step.branch("echo", "a"))

    other = echo()
    history = [Message.user("1"), Message.assistant("2"), Message.user("3"), Message.assistant("4")]
    one = boss(ask, replies=replies, compaction=Compaction.window(messages=8))
    response = await answer(engine, one, other, history=history)
    assert (response.content, response.iterations) == ("Done.", 2)
    assert asked[2] < asked[1]
    assert len(requests(other)) == 1


async def test_a_run_with_branches_continues_as_new(engine: Engine) -> None:
    @hook("on_iteration")
    async def ask(step: Step) -> None:
        step.inject(await step.branch("echo", f"{step.iteration}?"))

    replies = [*(call("search", query=str(n)) for n in range(5)), "Done."]
    async with engine.served(boss(ask, replies=replies), echo()) as client:
        run = await client.start("boss", "Go.", max_history_events=20)
        response = await run.result()
        assert not (await replay(client=client, id=run.id)).failed
    assert users(response.messages) == ["Go.", *(f"echo: {n}?" for n in range(1, 6))]
    assert response.iterations == 6


async def test_long_questions_and_long_answers_go_by_the_store(engine: Engine) -> None:
    text = "ж" * 60_000

    @hook("on_iteration")
    async def ask(step: Step) -> None:
        heard = await step.branch("echo", text)
        step.finish(str(len(heard)))

    async with engine.served(boss(ask), echo()) as client:
        run = await client.start("boss", "Go.")
        assert (await run.result()).content == str(60_000 + len("echo: "))
        description = await run.handle.describe()
    assert description.raw_description.workflow_execution_info.history_size_bytes < 30_000


async def test_what_a_policy_remembers_counts_once(engine: Engine) -> None:
    @hook("on_iteration")
    async def ask(step: Step, ctx: RunContext) -> None:
        seen = await ctx.memory.get("counts", "rounds", 0)
        await ctx.memory.put("counts", "rounds", seen + 1)
        await step.branch("echo", "a")
        step.inject(f"{seen + 1}")

    assert said(await answer(engine, boss(ask), echo())) == ["1"]


async def test_a_branch_killed_with_its_worker_goes_on(engine: Engine) -> None:
    lost = await engine.process("branching")
    client = await engine.client()
    run = await client.start("boss", "Go.")
    await eventually(lambda: engine.ledger.entries("weigh") != [], what="the tool of the branch runs")
    await lost.kill()
    await engine.process("branching")
    response = await run.result()
    assert users(response.messages) == ["Go.", "The judge said: 3"]
    assert len(engine.ledger.entries("weigh")) == 2
    assert len(engine.ledger.entries("judge")) == 2, "no model call is paid twice"
    assert len(engine.ledger.entries("boss")) == 2
    assert len(engine.ledger.entries("policy")) == 2


@pytest.mark.parametrize("point", ["model.answered", "model.recorded"])
async def test_a_worker_killed_while_it_asks_for_the_branch(engine: Engine, point: str) -> None:
    """``model.answered``: before the branch is recorded, the policy runs once more; behind it, it does not."""
    lost = await engine.process("branching", TEST_BRANCH_KILL=point)
    client = await engine.client()
    run = await client.start("boss", "Go.")
    await lost.gone()
    await engine.process("branching", TEST_WEIGH="quick")
    response = await run.result()
    assert users(response.messages) == ["Go.", "The judge said: 3"]
    assert len(engine.ledger.entries("policy")) == (3 if point == "model.answered" else 2)
    assert len(engine.ledger.entries("judge")) == 2
    assert [one.id for one in await run.children()] == [f"{run.id}/3"]
