"""What happens while branches of a step run, on a real server: messages, cancels, limits, long texts, kills."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

import pytest

from perdure import Agent, Client, Compaction, Limits, Message, Run, RunContext, Step, hook
from perdure.cli.show import format_activity
from perdure.errors import BranchError, ContextLengthError, RunCancelledError
from perdure.ports.model import ModelRequest
from perdure.testing import ScriptedProvider, call, replay
from tests.support.branches import answer, boss, echo, requests, said
from tests.support.checks import assert_closed, results, users
from tests.support.children import find_child_id
from tests.support.engine import Engine, side_by_side
from tests.support.scripts import Gate
from tests.support.wait import eventually


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
        assert (branch.kind, branch.tool, branch.context_id) == (
            "branch",
            "held",
            await find_child_id(client, run.id, 3),
        )
        assert format_activity(status) == "iteration 1 · branches: held"
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
            await client.run(await find_child_id(client, run.id, 3)).result()
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
        stopped = await client.run(await find_child_id(client, run.id, 3)).result()
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


@pytest.mark.server
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


@pytest.mark.server  # reads the whole history
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


@pytest.mark.slow
@pytest.mark.server
async def test_a_worker_is_killed_while_it_asks_for_a_branch_or_while_the_branch_runs(engine: Engine) -> None:
    points = ("model.answered", "model.recorded")
    scenarios = {point: partial(_killed_as_it_asks, point=point) for point in points}
    await side_by_side(engine, {"the branch runs": _killed_with_the_branch, **scenarios})


async def _killed_with_the_branch(engine: Engine) -> None:
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


async def _killed_as_it_asks(engine: Engine, *, point: str) -> None:
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
    assert [one.id for one in await run.children()] == [await find_child_id(client, run.id, 3)]
