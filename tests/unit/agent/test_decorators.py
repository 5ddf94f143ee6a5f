"""What is added to an agent by decorators, and that nothing is after its first use."""

from __future__ import annotations

import copy
import inspect
import threading
from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest

from perdure import Agent, RunContext, Tool, hook, tool
from perdure.agent.decorators import ToolOptions
from perdure.calls.agents import Agents
from perdure.errors import DefinitionError, InvalidInputError
from perdure.testing import ScriptedProvider, call, scripted
from tests.support.engine import Engine

MODEL = "openai:gpt-5"


@tool
def search(query: str) -> str:
    """Search."""
    return query


def names(agent: Agent) -> list[str]:
    return [one.name for one in agent.toolbox]


# --- tools


def test_a_tool_is_added_behind_those_of_the_list() -> None:
    agent = Agent("a", MODEL, tools=[search])

    @agent.tool
    def refund(order: str) -> str:
        """Refund an order."""
        return f"refunded {order}"

    @agent.tool(name="look_up", inline=True, timeout=5)
    async def look(word: str) -> str:
        """Look a word up."""
        return word

    assert names(agent) == ["search", "refund", "look_up"]
    assert agent.toolbox.get("refund") is refund
    assert isinstance(look, Tool)
    assert (look.inline, look.timeout) == (True, 5)
    assert refund("7") == "refunded 7", "it is still called as a function"
    assert agent.specs == Agent("a", MODEL, tools=[search, refund, look]).specs


def test_a_tool_that_was_made_before_is_added_as_it_is() -> None:
    first, second = Agent("first", MODEL), Agent("second", MODEL)
    assert first.tool(search) is second.tool(search) is search
    assert names(first) == names(second) == ["search"]
    with pytest.raises(DefinitionError, match="is a tool already"):
        first.tool(search, inline=True)  # type: ignore[call-overload]  # what an author may try


def test_the_options_are_those_of_a_tool() -> None:
    assert set(ToolOptions.__annotations__) == set(inspect.signature(Tool.__init__).parameters) - {"self", "fn"}


def test_a_tool_that_cannot_be_added_changes_nothing() -> None:
    agent = Agent("a", MODEL, tools=[search])
    with pytest.raises(DefinitionError, match="two tools are called 'search'"):
        agent.tool(tool(search.fn, inline=True))
    with pytest.raises(DefinitionError, match="has no type hint"):

        @agent.tool
        def loose(word):  # type: ignore[no-untyped-def]
            """Loose."""

    assert names(agent) == ["search"]


def test_an_agent_that_is_added_as_a_tool_is_served_too() -> None:
    boss, helper = Agent("boss", MODEL), Agent("helper", MODEL)
    boss.tool(helper.as_tool("research", "Find facts."))
    assert boss.subagents == Agent("boss", MODEL, tools=[helper.as_tool("research")]).subagents == (helper,)
    assert [agent.name for agent in Agents([boss])] == ["boss", "helper"]


def test_threads_that_add_at_once_lose_none() -> None:
    agent, ready = Agent("a", MODEL), threading.Barrier(8)

    def add(number: int) -> None:
        ready.wait()
        for n in range(20):

            def look(word: str) -> str:
                """Look."""
                return word

            agent.tool(name=f"look_{number}_{n}")(look)

    threads = [threading.Thread(target=add, args=[number]) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(agent.toolbox) == 160


# --- instructions


async def test_instructions_follow_each_other_whether_listed_or_decorated(engine: Engine) -> None:
    async def who(ctx: RunContext) -> str:
        return f"You help {ctx.context['name']}."

    def nothing(ctx: RunContext) -> None:
        return None

    listed = Agent("listed", ScriptedProvider(["."]), instructions=["Be brief.", who, nothing, "", "Be kind."])
    decorated = Agent("decorated", ScriptedProvider(["."]), instructions="Be brief.")
    assert decorated.instructions(who) is who
    decorated.instructions(nothing)
    decorated.instructions(lambda _: "Be kind.")
    single = Agent("single", ScriptedProvider(["."]))
    single.instructions(who)
    async with engine.served(listed, decorated, single) as client:
        for agent in (listed, decorated, single):
            await (await client.start(agent, "Go.", context={"name": "Ana"})).result()
    systems = [agent.provider.requests[0].system for agent in (listed, decorated, single)]  # type: ignore[union-attr]
    assert systems == ["Be brief.\n\nYou help Ana.\n\nBe kind."] * 2 + ["You help Ana."]


async def test_the_part_that_failed_is_named(engine: Engine) -> None:
    agent = Agent("a", ScriptedProvider(["never"]), instructions="Be brief.")

    @agent.instructions
    def weather(ctx: RunContext) -> Any:
        return 7

    async with engine.served(agent) as client:
        run = await client.start(agent, "Go.")
        with pytest.raises(DefinitionError, match=r"the instructions of agent a \(weather\) returned int"):
            await run.result()


def test_an_override_replaces_all_parts() -> None:
    agent = Agent("a", MODEL, instructions=["Be brief.", lambda _: "Be kind."])
    assert agent.overridden({"instructions": "Hurry."}).instruction_parts == ("Hurry.",)
    assert len(agent.instruction_parts) == 2


@pytest.mark.parametrize("wrong", ["Be brief.", None, 7, lambda: "Be brief.", lambda _ctx, _more: "Be brief."])
def test_instructions_that_are_no_function_of_a_context_are_refused(wrong: Any) -> None:
    agent = Agent("a", MODEL)
    with pytest.raises(DefinitionError, match=r"agent 'a': "):
        agent.instructions(wrong)
    assert agent.instruction_parts == ()


# --- the first use


def change_all_ways(agent: Agent) -> list[str]:
    """Try each change; what was refused, in the errors' words."""

    def extra(ctx: RunContext, word: str = "") -> str:
        """Extra."""
        return word

    refused = []
    for change in (
        lambda: agent.tool(extra),
        lambda: agent.instructions(extra),
        lambda: agent.output_validator(lambda output: output),
        lambda: setattr(agent, "description", "Another."),
        lambda: setattr(agent, "max_iterations", 7),
    ):
        try:
            change()
        except DefinitionError as error:
            refused.append(error.message if "copy.copy(agent)" in str(error.hint) else str(error.hint))
    return refused


def all_refused(name: str, use: str) -> list[str]:
    return [
        f"agent {name!r} was {use} before: {what}"
        for what in (
            "the tool 'extra' cannot be added",
            "the instructions 'extra' cannot be added",
            "the output validator '<lambda>' cannot be added",
            "its description cannot be changed",
            "its max_iterations cannot be changed",
        )
    ]


def test_an_agent_that_is_defined_can_be_changed() -> None:
    agent = Agent("a", MODEL)
    agent.overridden({"instructions": "Hurry."})
    agent.as_tool()
    assert agent.specs == ()
    assert change_all_ways(agent) == []


async def test_an_agent_and_its_subagents_are_frozen_when_they_are_served(engine: Engine) -> None:
    helper = Agent("helper", ScriptedProvider([]))
    boss = Agent("boss", ScriptedProvider([]), subagents=[helper])
    async with engine.served(boss):
        assert change_all_ways(boss) == all_refused("boss", "served by a worker")
    assert change_all_ways(helper) == all_refused("helper", "served by a worker"), "also behind the worker's end"


@pytest.mark.parametrize("how", ["call", "stream", "stream_output"])
async def test_an_agent_is_frozen_when_it_is_called(engine: Engine, how: str) -> None:
    served, called = Agent("a", ScriptedProvider(["Fine."])), Agent("a", MODEL)
    async with engine.served(served) as client:
        with pytest.raises(InvalidInputError):
            await called.call(None, client=client)  # type: ignore[arg-type]  # what an author may try
        assert called.tool(search) is search, "a call that is refused uses nothing"
        if how == "call":
            await called.call("Go.", client=client)
        else:
            assert [piece async for piece in getattr(called, how)("Go.", client=client)] == ["Fine."]
    assert change_all_ways(called) == all_refused("a", "called")


def test_an_agent_is_frozen_when_it_is_scripted() -> None:
    agent = Agent("a", MODEL, tools=[search])
    with scripted(agent, [call("search", query="x"), "Fine."]):
        assert change_all_ways(agent) == all_refused("a", "scripted")
        agent.call_sync("Go.")
    assert change_all_ways(agent) == all_refused("a", "scripted")


def test_an_agent_that_a_worker_refuses_is_not_frozen() -> None:
    agent, agents = Agent("a", MODEL), Agents([Agent("a", MODEL)])
    with pytest.raises(DefinitionError, match="two agents are called 'a'"):
        agents.add(agent)
    assert change_all_ways(agent) == []


def test_a_copy_can_be_changed_and_leaves_the_agent_as_it_is() -> None:
    agent = Agent("a", MODEL, tools=[search])
    agents = Agents([agent])
    before = agent.overridden({"max_iterations": 3})
    other = copy.copy(agent)
    assert change_all_ways(other) == []
    assert (names(other), names(agent)) == (["search", "extra"], ["search"])
    assert other.overridden({"max_iterations": 3}).description == "Another."
    assert agent.overridden({"max_iterations": 3}) is before, "a copy has overridden copies of its own"
    assert change_all_ways(copy.deepcopy(agent)) == []
    assert change_all_ways(agent.overridden({"max_iterations": 4})) == []
    assert agents.get("a") is agent
    assert len(change_all_ways(agent)) == 5


def used(agent: Agent | None = None) -> Agent:
    agent = agent or Agent("a", MODEL, description="A", settings={"temperature": 0})
    Agents([agent])
    return agent


def test_what_is_replaced_for_a_test_is_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    agent, fake = Agent("a", MODEL), ScriptedProvider([])
    monkeypatch.setattr(agent, "provider", fake)
    used(agent)
    assert agent.overridden({"max_iterations": 3}).provider is fake
    monkeypatch.undo()
    assert agent.provider is agent.overridden({"max_iterations": 3}).provider is None
    for name in ("call", "stream"):
        monkeypatch.setattr(agent, name, lambda *_: "faked")
        assert getattr(agent, name)("Go.") == "faked"
        monkeypatch.undo()
        with mock.patch.object(agent, name):
            assert isinstance(getattr(agent, name), mock.Mock)
        assert getattr(agent, name).__self__ is agent


def test_the_own_attributes_of_a_subclass_stay_its_own() -> None:
    class Counting(Agent):
        calls = 0

        def count(self) -> None:
            self.calls += 1

    agent = used(Counting("a", MODEL))
    assert isinstance(agent, Counting)
    agent.count()
    del agent.calls
    assert agent.calls == 0


def test_all_that_defines_an_agent_is_frozen_and_the_same_value_is_no_change() -> None:
    agent = used()
    names = [name for name in vars(agent) if not name.startswith("_")]
    assert len(names) > 20
    for name in names:
        value = getattr(agent, name)
        setattr(agent, name, value)
        with pytest.raises(DefinitionError, match=f"its {name} cannot be changed"):
            setattr(agent, name, object())
        with pytest.raises(DefinitionError, match=f"its {name} cannot be changed"):
            delattr(agent, name)
        assert getattr(agent, name) is value
    agent.description = "".join(["A"])


def test_the_settings_of_a_used_agent_cannot_be_changed_in_place() -> None:
    agent = Agent("a", MODEL, settings={"temperature": 0}, provider_options={"user": "ana"})
    agent.settings["seed"] = 7  # type: ignore[index]  # that it may be changed until then is not promised
    used(agent)
    with pytest.raises(TypeError, match="does not support item assignment"):
        agent.settings["temperature"] = 1  # type: ignore[index]
    with pytest.raises(TypeError, match="does not support item assignment"):
        agent.provider_options["user"] = "bea"  # type: ignore[index]
    assert agent.settings == {"temperature": 0, "seed": 7}
    assert agent.overridden({"settings": {"temperature": 1}}).settings == {"temperature": 1, "seed": 7}


@pytest.mark.parametrize("make", [copy.copy, copy.deepcopy])
@pytest.mark.parametrize("is_used", [False, True])
def test_a_copy_shares_nothing_that_can_be_changed(make: Callable[[Agent], Agent], is_used: bool) -> None:
    agent = Agent("a", MODEL, settings={"temperature": 0}, provider_options={"user": "ana"})
    if is_used:
        used(agent)
    other = make(agent)
    other.hooks.add(hook("before_llm_call")(lambda: None))
    other.settings["temperature"] = 1  # type: ignore[index]
    other.provider_options["user"] = "bea"  # type: ignore[index]
    assert (len(agent.hooks), agent.settings, agent.provider_options) == (0, {"temperature": 0}, {"user": "ana"})
    assert (len(other.hooks), other.settings["temperature"]) == (1, 1)
