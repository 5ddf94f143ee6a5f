"""The order of all hook events in one conversation, in process: a refactoring of the stages must not change it."""

from __future__ import annotations

from typing import Any, get_args

from perdure import Agent, hook, tool
from perdure.client.inbox import list_pending_calls_of_run
from perdure.errors import ProviderTimeoutError
from perdure.hooks.hook import HookEvent
from perdure.testing import call, fail, scripted
from tests.support.checks import results
from tests.support.scripts import Gate
from tests.support.wait import eventually

MODEL_CALL = ["on_iteration", "before_llm_call", "after_llm_call"]


async def test_all_events_of_a_conversation_in_their_order() -> None:
    """A tool during which a message is injected, an approval, a failing tool, a subagent, a failing model, an end."""
    order: list[str] = []
    gate = Gate()

    def noting(event: HookEvent) -> Any:
        def note(**facts: Any) -> None:
            order.append(f"{event} {facts['name']}" if facts.get("name") else event)

        return hook(event)(note)

    @tool
    async def look() -> str:
        """Look."""
        order.append("look")
        await gate()
        return "seen"

    @tool(needs_approval=True)
    def refund() -> str:
        """Refund."""
        order.append("refund")
        return "refunded"

    @tool(inline=True)
    def crash() -> str:
        """Crash."""
        order.append("crash")
        raise ValueError("no")

    clerk = Agent("clerk", "openai:gpt-5-mini")
    boss = Agent(
        "boss",
        "openai:gpt-5-mini",
        tools=[look, refund, crash],
        subagents=[clerk],
        hooks=[noting(event) for event in get_args(HookEvent)],
    )
    replies: list[Any] = [
        call("look"), call("refund"), call("crash"), call("call_clerk", task="Count."),
        fail(ProviderTimeoutError("silent")), "Done.",
    ]  # fmt: skip
    async with scripted(boss, replies, others={clerk: ["Three."]}) as script:
        run = await script.client.start(boss, "Go.")
        await eventually(lambda: gate.entered, what="the call of look")
        await run.inject("Hurry.")
        gate.open()
        (pending,) = await eventually(lambda: list_pending_calls_of_run(run), what="the approval")
        await run.approve(pending.call_id, by="ana")
        response = await run.result()

    assert results(response.messages)[0::3] == ["seen", "Three."]
    assert order == [
        "on_user_message", *MODEL_CALL[1:],
        "before_tool_call look", "look", "after_tool_call look",
        "on_user_message", "on_user_injection", *MODEL_CALL, "on_approval refund",
        "before_tool_call refund", "refund", "after_tool_call refund",
        *MODEL_CALL,
        "before_tool_call crash", "crash", "on_error crash", "after_tool_call crash",
        *MODEL_CALL, "before_subagent call_clerk",
        "after_subagent call_clerk", "on_iteration", "before_llm_call", "on_error perdure.model",
        "after_subagent call_clerk", *MODEL_CALL, "on_finish",
    ]  # fmt: skip
    assert {line.split(" ")[0] for line in order} - {"look", "refund", "crash"} == set(get_args(HookEvent))
