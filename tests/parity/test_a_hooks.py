"""PARITY.md, part A, rows 8 and 9: hook events, and the hooks that come ready-made."""

from __future__ import annotations

from typing import Any

from perdure import Agent, hook, tool
from perdure.contrib.hooks import TokenCollector, ToolUsage, auto_summarise, notify_every, warn_on_tokens
from perdure.hooks.hook import HookEvent
from perdure.testing import ScriptedProvider, call
from perdure.types.messages import Usage
from tests.support.checks import users
from tests.support.engine import Engine
from tests.support.scripts import Gate
from tests.support.wait import eventually

SEVEN: dict[HookEvent, tuple[str, ...]] = {
    "before_llm_call": ("messages", "model", "tools"),
    "after_llm_call": ("response", "messages"),
    "before_tool_call": ("name", "arguments"),
    "after_tool_call": ("name", "result"),
    "on_iteration": ("iteration", "messages", "response"),
    "on_finish": ("content", "raw_content", "messages", "iterations"),
    "on_user_injection": ("message", "messages"),
}
"""What each event gives."""


async def test_a8_seven_events_in_order_of_registration_sync_or_async(engine: Engine) -> None:
    seen: list[tuple[HookEvent, int]] = []
    given: dict[HookEvent, dict[str, Any]] = {}
    gate = Gate()

    def noting(event: HookEvent, n: int) -> Any:
        def plain(**facts: Any) -> None:
            seen.append((event, n))
            given[event] = facts

        async def asynchronous(**facts: Any) -> None:
            plain(**facts)

        return hook(event, name=f"{event}{n}")(asynchronous if n % 2 else plain)

    @tool
    async def look(word: str) -> str:
        """Look a word up."""
        await gate()
        return f"{word}: a word"

    agent = Agent(
        "hooked",
        ScriptedProvider([call("look", word="tea"), "Done."]),
        tools=[look],
        hooks=[noting(event, n) for n in range(3) for event in SEVEN],
    )
    async with engine.served(agent) as client:
        run = await client.start("hooked", "Go.")
        await eventually(lambda: gate.entered)
        await run.inject("Hurry.")
        gate.open()
        await run.result()
    for event, names in SEVEN.items():
        order = [n for one, n in seen if one == event]
        assert order == [0, 1, 2] * (len(order) // 3), event
        assert order, event
        assert set(names) <= set(given[event]), event
    assert given["before_tool_call"]["arguments"] == {"word": "tea"}
    assert given["after_tool_call"]["result"].content == "tea: a word"
    assert (given["on_finish"]["content"], given["on_finish"]["iterations"]) == ("Done.", 2)
    assert given["on_user_injection"]["message"].text == "Hurry."
    assert users(given["on_finish"]["messages"]) == ["Go.", "Hurry."]
    assert given["on_iteration"]["iteration"] == 1
    assert [one.name for one in agent.hooks.on("on_finish")] == ["on_finish0", "on_finish1", "on_finish2"]
    agent.hooks.clear("on_finish")
    assert (agent.hooks.on("on_finish"), len(agent.hooks)) == ((), 18)
    agent.hooks.clear()
    assert len(agent.hooks) == 0


async def test_a9_ready_made_hooks_across_worker_restarts(engine: Engine) -> None:
    told: list[tuple[str, int]] = []
    used = Usage()

    @tool
    def look(word: str) -> str:
        """Look a word up."""
        return f"{word}: a word"

    def reply(request: Any) -> Any:
        said = request.messages[-1]
        if users([said]) == ["Sum up."]:
            return "They asked for tea."
        return call("look", word="tea") if said.role == "user" else "Done."

    def agent() -> Agent:
        ready_made = [
            TokenCollector(),
            ToolUsage(),
            warn_on_tokens(20, lambda _, tokens: told.append(("tokens", tokens))),
            notify_every(2, lambda _, iteration: told.append(("iteration", iteration))),
            auto_summarise(100, keep_last=2, prompt="Sum up."),
        ]
        return Agent("ready", ScriptedProvider(reply), tools=[look], hooks=ready_made)

    for n in range(3):
        async with engine.served(agent()) as client:  # a worker for each turn
            turn = await client.send("ready", "Tea? " * 30, id=f"{engine.task_queue}-r", message_id=str(n))
            used += (await turn.result()).usage
    run = client.run(f"{engine.task_queue}-r")
    counted = await TokenCollector().of(client.memory, run.id)
    assert (counted["input_tokens"], counted["output_tokens"]) == (used.input_tokens, used.output_tokens)
    assert await ToolUsage().of(client.memory, run.id) == {"look": {"calls": 3, "errors": 0}}
    assert [what for what, _ in told].count("tokens") == 1
    assert [number for what, number in told if what == "iteration"] == [2, 2, 2]
    assert any(message.replaces is not None for message in await run.transcript())


async def test_a8_on_approval_fires_for_a_call_that_waits_for_a_person(engine: Engine) -> None:
    seen: list[Any] = []

    @hook("on_approval")
    async def first(name: str, arguments: dict[str, Any]) -> None:
        seen.append(("first", name, arguments))

    @hook("on_approval")
    def second(name: str, call_id: str) -> None:
        seen.append(("second", name, bool(call_id)))

    def pay(amount: int) -> str:
        return f"paid {amount}"

    agent = Agent(
        "paying",
        ScriptedProvider([call("pay", amount=3), "Done."]),
        tools=[tool(pay, needs_approval=True)],
        hooks=[first, second],
    )
    async with engine.served(agent) as client:
        run = await client.start("paying", "Go.")

        async def waits() -> bool:
            return (await run.status()).doing == "approval"

        await eventually(waits)
        assert seen == [("first", "pay", {"amount": 3}), ("second", "pay", True)]
        await run.approve(by="ana")
        assert (await run.result()).content == "Done."
    assert len(seen) == 2


async def test_a8_before_and_after_subagent_change_what_is_asked_and_answered(engine: Engine) -> None:
    @hook("before_subagent")
    async def polite(message: str) -> str:
        return f"Please: {message}"

    @hook("after_subagent")
    def loud(result: Any) -> str:
        return result.content.upper()

    helper = Agent("helper", ScriptedProvider(lambda request: request.messages[-1].text))
    replies: list[Any] = [
        call("call_helper", task="look"),
        lambda request: request.messages[-1].tool_results[0].content,
    ]
    boss = Agent("boss", ScriptedProvider(replies), subagents=[helper], hooks=[polite, loud])
    async with engine.served(boss) as client:
        response = await (await client.start("boss", "Go.")).result()
    assert response.content == "PLEASE: LOOK"
