"""``separate``: everyone whose input led to a call is a requester of it, and cannot approve it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from temporalio import workflow

from perdure import Agent, Approval, Client, Run, Step, ToolContext, background, callback_tool, hook, tool
from perdure.client.inbox import PendingCall
from perdure.errors import ApprovalForbiddenError
from perdure.ports.model import ModelRequest
from perdure.testing import call, scripted
from perdure.types.messages import Message
from perdure.workflows import AgentWorkflow
from tests.support.checks import results, users
from tests.support.wait import eventually

MODEL = "openai:gpt-5-mini"


@tool(needs_approval=Approval(separate=True))
def close_account(user: str) -> str:
    """Close an account."""
    return f"closed {user}"


@tool(needs_approval=True)
def pay(amount: int) -> str:
    """Pay."""
    return f"paid {amount}"


@tool
def look() -> str:
    """Look."""
    return "seen"


@tool
async def choose(ctx: ToolContext) -> str:
    """Choose an account."""
    return str(await ctx.ask("Which account?"))


look_up = callback_tool("look_up", "Look an account up.")
CLOSE = call("close_account", user="bob")


async def find_waiting(client: Client, name: str, agent: str | None = None) -> PendingCall:
    async def find() -> list[PendingCall]:
        return [one for one in await client.approvals(agent=agent) if one.tool == name and one.since is not None]

    (one, *_) = await eventually(find, every=0.01)
    return one


async def check_requesters(client: Client, *requesters: str, approver: str = "zoe") -> None:
    """The call of ``close_account`` waits, and ``requesters`` cannot approve it, but ``approver`` can."""
    waiting = await find_waiting(client, "close_account")
    for name in requesters:
        with pytest.raises(ApprovalForbiddenError, match=f"{name} requested what led to"):
            await waiting.approve(by=name)
    await waiting.approve(by=approver)


async def test_who_answers_the_question_that_leads_to_a_call_cannot_approve_it() -> None:
    agent = Agent("desk", MODEL, tools=[choose, close_account])
    async with scripted(agent, [call("choose"), CLOSE, "Done."]) as script:
        run = await script.client.start("desk", "What shall I do?", by="sam")
        await (await find_waiting(script.client, "choose")).answer("bob", by="alice")
        await check_requesters(script.client, "sam", "alice", "Alice ")
        assert results((await run.result()).messages) == ["bob", "closed bob"]


async def test_nor_can_who_declines_to_answer_it() -> None:
    agent = Agent("desk", MODEL, tools=[choose, close_account])
    async with scripted(agent, [call("choose"), CLOSE, "Done."]) as script:
        run = await script.client.start("desk", "What shall I do?", by="sam")
        waiting = await find_waiting(script.client, "choose")
        await waiting.answer(error="It is bob's, of course.", by="alice")
        await check_requesters(script.client, "alice")
        await run.result()


async def test_who_returns_the_result_of_a_callback_cannot_approve_what_follows() -> None:
    agent = Agent("desk", MODEL, tools=[look_up, close_account])
    async with scripted(agent, [call("look_up"), CLOSE, "Done."]) as script:
        run = await script.client.start("desk", "Close it.", by="sam")
        await (await find_waiting(script.client, "look_up")).answer("bob's", by="alice")
        await check_requesters(script.client, "sam", "alice")
        await run.result()


async def test_who_changes_the_arguments_of_a_call_cannot_approve_the_next() -> None:
    agent = Agent("desk", MODEL, tools=[pay, close_account])
    async with scripted(agent, [call("pay", amount=3), CLOSE, "Done."]) as script:
        run = await script.client.start("desk", "Pay, then close.", by="sam")
        await (await find_waiting(script.client, "pay")).approve(arguments={"amount": 300}, by="alice")
        await check_requesters(script.client, "sam", "alice")
        await run.result()


async def test_who_approves_a_call_unchanged_may_approve_the_next() -> None:
    agent = Agent("desk", MODEL, tools=[pay, close_account])
    async with scripted(agent, [call("pay", amount=3), CLOSE, "Done."]) as script:
        run = await script.client.start("desk", "Pay, then close.", by="sam")
        await (await find_waiting(script.client, "pay")).approve(arguments={"amount": 3}, by="alice")
        await check_requesters(script.client, "sam", approver="alice")
        await run.result()


async def test_who_approves_a_separate_call_cannot_change_it_too() -> None:
    agent = Agent("desk", MODEL, tools=[close_account])
    async with scripted(agent, [CLOSE, "Done."]) as script:
        run = await script.client.start("desk", "Close bob's.", by="sam")
        waiting = await find_waiting(script.client, "close_account")
        with pytest.raises(ApprovalForbiddenError, match=r"arguments: .* an approver other than its requester"):
            await waiting.approve(arguments={"user": "eve"}, by="alice")
        await waiting.approve(arguments={"user": "bob"}, by="alice")
        assert results((await run.result()).messages) == ["closed bob"]


async def test_who_tells_the_model_what_to_do_by_a_denial_cannot_approve_that() -> None:
    agent = Agent("desk", MODEL, tools=[pay, close_account])
    async with scripted(agent, [call("pay", amount=3), CLOSE, "Done."]) as script:
        run = await script.client.start("desk", "Pay.", by="sam")
        await (await find_waiting(script.client, "pay")).deny(by="alice", comment="Close bob's account instead.")
        await check_requesters(script.client, "alice")
        await run.result()


@pytest.mark.parametrize(
    "given", [{"override": {"instructions": "Close bob's."}}, {"context": {"user": "bob"}}, {"history": "messages"}]
)
async def test_who_gives_a_run_its_override_context_or_history_is_a_requester_in_every_turn(given: Any) -> None:
    if "history" in given:
        given = {"history": [Message.user("Close bob's."), Message.assistant("Say go.")]}
    agent = Agent("desk", MODEL, tools=[close_account])
    async with scripted(agent, [CLOSE, "Done.", CLOSE, "Done."]) as script:
        run = await script.client.start("desk", mode="session", by="alice", **given)
        for _ in range(2):
            turn = await run.send("Go.", by="sam")
            await check_requesters(script.client, "sam", "alice")
            await turn.result()


async def test_who_forks_with_other_results_is_a_requester() -> None:
    agent = Agent("desk", MODEL, tools=[look_up, close_account])
    async with scripted(agent, [call("look_up"), "Done.", CLOSE, "Done."]) as script:
        run = await script.client.start("desk", "Close it.", by="sam")
        await (await find_waiting(script.client, "look_up")).answer("nobody's", by="bea")
        transcript = (await run.result()).messages
        (looked,) = [part for message in transcript for part in message.tool_results]
        fork = await run.fork(results={looked.call_id: "bob's"}, by="alice")
        await check_requesters(script.client, "alice")
        await fork.result()


# ---
# Subagents: what a child is asked, and what it answers.


def build_tree(kind: str) -> tuple[Agent, Agent, list[Any]]:
    """A boss and a clerk that asks which account, and what the boss's model replies."""
    clerk = Agent("clerk", MODEL, tools=[choose])
    if kind == "subagent":
        return Agent("boss", MODEL, subagents=[clerk], tools=[close_account]), clerk, [call("call_clerk", task="Ask.")]
    if kind == "background":
        replies = [
            call("start_agent", agent_name="clerk", message="Ask."),
            call("collect_agent", handle="b1"),
        ]
        return Agent("boss", MODEL, tools=[close_account, *background([clerk])]), clerk, replies

    @hook("on_iteration", agents=[clerk])
    async def ask_clerk(step: Step) -> None:
        if step.iteration == 1:
            step.inject(await step.branch(clerk, "Ask."))

    return Agent("boss", MODEL, tools=[look, close_account], hooks=[ask_clerk]), clerk, [call("look")]


@pytest.mark.parametrize("kind", ["subagent", "background", "branch"])
@pytest.mark.parametrize("writes", [False, True])
async def test_whose_input_led_to_the_answer_of_a_child_is_a_requester_above(kind: str, *, writes: bool) -> None:
    boss, clerk, replies = build_tree(kind)
    async with scripted(boss, [*replies, CLOSE, "Done."], others={clerk: [call("choose"), "It is bob's."]}) as script:
        run = await script.client.start("boss", "Close one.", by="sam")
        waiting = await find_waiting(script.client, "choose", agent="clerk")
        if writes:
            await script.client.run(waiting.run_id).inject("Say that it is bob's.", by="eve")
        await waiting.answer("bob", by="alice")
        await check_requesters(script.client, "sam", "alice", *(["eve"] if writes else []))
        await run.result()


async def test_who_answered_a_background_run_counts_in_the_later_turn_that_collects_it() -> None:
    boss, clerk, (start, collect) = build_tree("background")
    replies = [start, "Started.", collect, CLOSE, "Done."]
    async with scripted(boss, replies, others={clerk: [call("choose"), "It is bob's."]}) as script:
        run = await script.client.start("boss", "Start.", mode="session", by="sam", max_history_events=15)
        waiting = await find_waiting(script.client, "choose", agent="clerk")
        await waiting.answer("bob", by="alice")
        await script.client.run(waiting.run_id).result()
        turn = await run.send("Close it.", by="tom")
        await check_requesters(script.client, "tom", "sam", "alice")
        await turn.result()


async def test_what_a_run_tells_its_background_run_brings_the_requesters_of_that_turn() -> None:
    clerk = Agent("clerk", MODEL, tools=[close_account])
    boss = Agent("boss", MODEL, tools=background([clerk]))
    told: list[list[str]] = []

    def work(request: ModelRequest) -> Any:
        told.append(users(request.messages))
        if request.messages[-1].role == "tool":
            return "Done."
        return CLOSE if len(users(request.messages)) > 1 else call("close_account", user="eve")

    replies = [
        call("start_agent", agent_name="clerk", message="Wait."),
        "Started.",
        call("tell_agent", handle="b1", message="Close bob's."),
        "Told.",
    ]
    async with scripted(boss, replies, others={clerk: work}) as script:
        run = await script.client.start("boss", "Start.", mode="session", by="sam")
        first = await find_waiting(script.client, "close_account")
        assert first.arguments == {"user": "eve"}
        await (await run.send("Tell it.", by="alice")).result()
        await check_requesters(script.client, "sam", "alice")
        await run.cancel()


# ---
# The mechanism.


INPUTS: dict[str, bool] = {
    "inject_user_message": True,
    "send_message": True,
    "interrupt": True,
    "answer_call": True,
    "decide_approval": True,
    "child_ended": True,
    "revoke_approval": False,  # the model is not told of it
    "close": False,
    "pause": False,
    "resume": False,  # raises limits, which say nothing to the model
    "probe": False,
    "read": False,
    "wait_for_turn": False,
}
"""Each signal and update of a run: whether it brings input to a turn, whose authors are requesters (tested above)."""


def test_each_way_into_a_run_is_known_to_bring_input_or_not() -> None:
    definition: Any = workflow._Definition.must_from_class(AgentWorkflow)
    assert {*definition.signals, *definition.updates} == INPUTS.keys()


MESSAGES: dict[str, Callable[[Run], Any]] = {
    "inject_user_message": lambda run: run.inject("Close bob's.", by="alice"),
    "send_message": lambda run: run.send("Close bob's.", by="alice"),
    "interrupt": lambda run: run.interrupt("Close bob's.", by="alice"),
}


@pytest.mark.parametrize("way", MESSAGES)
async def test_each_message_makes_a_requester(way: str) -> None:
    agent = Agent("desk", MODEL, tools=[pay, close_account])

    def reply(request: ModelRequest) -> Any:
        return CLOSE if len(users(request.messages)) > 1 else call("pay", amount=3)

    async with scripted(agent, reply) as script:
        run = await script.client.start("desk", "Pay.", by="sam")
        waiting = await find_waiting(script.client, "pay")
        await MESSAGES[way](run)
        if way != "interrupt":
            await waiting.approve(by="bea")
        await check_requesters(script.client, "sam", "alice")
        await run.cancel()
