"""Branches of a step that fail, cannot be asked, or are caught."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from perdure import Agent, Step, hook
from perdure.errors import BranchError, HookError, ParseError
from perdure.ports.model import ModelRequest
from perdure.testing import ScriptedProvider, call, finish
from tests.support.branches import Score, answer, boss, echo, judge, requests, said
from tests.support.checks import assert_closed, results, users
from tests.support.engine import Engine
from tests.support.scripts import Gate
from tests.support.wait import eventually


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
        (_nothing, "DefinitionError: a branch to agent 'echo' without the conversation needs a message"),
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


async def test_a_deploy_that_changes_the_question_fails_the_run_which_then_goes_on(engine: Engine) -> None:
    gate, question = Gate(), "before"

    @hook("on_iteration")
    async def ask(step: Step) -> None:
        step.inject(await step.branch("echo", question))

    async def slow(request: ModelRequest) -> str:
        await gate()
        return f"echo: {users(request.messages)[-1]}"

    replies = [call("search", query="x"), call("search", query="y"), "Done."]
    other = Agent("echo", ScriptedProvider(slow))
    async with engine.served(boss(ask, replies=replies), other) as client:
        run = await client.start("boss", "Go.")
        await eventually(lambda: gate.entered)
        question = "after"
        gate.open()
        with pytest.raises(HookError, match="'echo: after', where it asked for 'echo: before'") as failed:
            await run.result()
        assert "If a deploy has changed the requests, resume the run" in str(failed.value)
        await run.resume()
        response = await run.result()
        assert_closed(response.messages)
    assert (response.content, said(response)) == ("Done.", ["echo: after"])
    assert results(response.messages) == ["found x", "found y"], "what was done before counts"
    assert len(requests(other)) == 2


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
