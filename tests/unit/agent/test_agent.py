"""Every wrong definition of an agent: the class of the error, what it names, and the way out."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from perdure import Agent, AgentSpec, Compaction, HookSet, Limits, Toolset, hook, load_agent, tool
from perdure.calls.agents import Agents
from perdure.contrib.hooks import auto_summarise
from perdure.errors import AgentNotFoundError, DefinitionError, SettingsError
from perdure.testing import ScriptedProvider

MODEL = "openai:gpt-5"


def search(query: str) -> str:
    """Search."""
    return query


def without_hint(query):  # type: ignore[no-untyped-def]
    return query


class Strict(ScriptedProvider):
    """A provider that knows which settings it has."""

    def check_settings(self, settings: Any, options: Any) -> None:
        if settings:
            raise SettingsError(f"Provider 'strict' has no setting {min(settings)!r}.", hint="Leave it out.")


WRONG: dict[str, tuple[dict[str, Any], list[str]]] = {
    "name empty": ({"name": ""}, ["agent name ''", "[a-zA-Z0-9_-]"]),
    "name with blanks": ({"name": "my agent"}, ["'my agent'", "short name"]),
    "name with a line end": ({"name": "a\n"}, [r"'a\n'"]),
    "name too long": ({"name": "a" * 65}, ["{1,64}"]),
    "name no text": ({"name": 7}, ["agent name 7"]),
    "model without provider": ({"model": "gpt-5"}, ["'gpt-5'", "provider:model", "Known providers"]),
    "model without name": ({"model": "openai:"}, ["'openai:'", "provider:model"]),
    "model empty": ({"model": ""}, ["provider:model"]),
    "model None": ({"model": None}, ["'a'", "model", "None", "openai:gpt-5"]),
    "provider unknown": ({"model": "opnai:gpt-5"}, ["'opnai'", "Did you mean 'openai'?"]),
    "chain empty": ({"model": []}, ["'a'", "list of models is empty", "model=['"]),
    "chain of a class": ({"model": [MODEL, ScriptedProvider]}, ["'a'", "instance", "ScriptedProvider(…)"]),
    "chain with an unknown provider": ({"model": [MODEL, "opnai:x"]}, ["'opnai'", "Did you mean 'openai'?"]),
    "chain with one twice": ({"model": [MODEL, MODEL]}, ["'a'", "openai:gpt-5 twice"]),
    "chain and a setting of one": (
        {"model": [MODEL, "anthropic:claude"], "settings": {"seed": 3}},
        ["model 'anthropic:claude'", "'seed'", "openai"],
    ),
    "chain and an object's setting": (
        {"model": [MODEL, Strict([])], "settings": {"temperature": 0}},
        ["model 'Strict:custom'", "'temperature'"],
    ),
    "limits no Limits": ({"limits": {"attempts": 3}}, ["'a'", "limits must be Limits", 'wall_time="1h"']),
    "provider class": ({"model": ScriptedProvider}, ["'a'", "instance", "ScriptedProvider(…)"]),
    "instructions with a number": ({"instructions": ["be", 7]}, ["'a'", "instructions", "text or a function", "not 7"]),
    "instructions without a parameter": (
        {"instructions": lambda: "be good"},
        ["'a'", "'<lambda>'", "called with a RunContext", "def prompt(ctx: RunContext)"],
    ),
    "instructions number": ({"instructions": 3}, ["instructions", "3"]),
    "tools a function": ({"tools": search}, ["'a'", "tools must be a list", "tools=[search"]),
    "tools None": ({"tools": None}, ["tools must be a list"]),
    "tools a text": ({"tools": "search"}, ["tools must be a list", "'search'"]),
    "tools no function": ({"tools": [3]}, ["int", "not callable", "function"]),
    "tools twice": ({"tools": [search, search]}, ["two tools are called 'search'", "test_agent.py", '@tool(name="…")']),
    "tool without hint": ({"tools": [without_hint]}, ["without_hint", "'query' has no type hint", "query: str"]),
    "subagents an agent": ({"subagents": "researcher"}, ["'a'", "subagents must be a list", "[researcher]"]),
    "subagents a tool": ({"subagents": [search]}, ["'a'", "subagent", "search", "tools=[…]"]),
    "settings a list": ({"settings": ["temperature"]}, ["'a'", "settings must be a dictionary", "0.2"]),
    "settings no names": ({"settings": {1: 2}}, ["settings must be a dictionary"]),
    "options a text": ({"provider_options": "x"}, ["provider_options must be a dictionary"]),
    "finish": ({"finish": "json"}, ["'a'", "finish is 'json'", "text, tag", "Leave it out"]),
    "finish unhashable": ({"finish": ["text"]}, ["finish is ['text']"]),
    "on_limit": ({"on_limit": "raise"}, ["'a'", "on_limit is 'raise'", "finish, return, error"]),
    "max_iterations 0": ({"max_iterations": 0}, ["'a'", "max_iterations", "at least 1", "not 0", "leave it out"]),
    "max_iterations text": ({"max_iterations": "50"}, ["max_iterations", "'50'"]),
    "max_iterations bool": ({"max_iterations": True}, ["max_iterations", "True"]),
    "max_iterations twice": (
        {"max_iterations": 3, "limits": Limits(turn=Limits(iterations=5))},
        ["'a'", "max_iterations and limits.turn.iterations are the same limit", "max_iterations=3"],
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_definition_is_refused_with_the_way_out(case: str) -> None:
    arguments, said = WRONG[case]
    with pytest.raises(DefinitionError) as caught:
        Agent(**{"name": "a", "model": MODEL, **arguments})
    for part in said:
        assert part in str(caught.value)
    assert caught.value.hint, "no way out"
    assert isinstance(caught.value, TypeError)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"temprature": 1}, ["'temprature'", "temperature", "provider_options"]),
        ({"top_k": 3}, ["'top_k'", "openai", "supported by", "provider_options"]),
        ({"temperature": "hot"}, ["'temperature'", "a number", "'hot'"]),
    ],
)
def test_a_setting_that_the_provider_lacks_is_refused(settings: dict[str, Any], said: list[str]) -> None:
    with pytest.raises(SettingsError) as caught:
        Agent("a", MODEL, settings=settings)
    for part in said:
        assert part in str(caught.value)


def test_an_option_that_the_adapter_sets_itself_is_refused() -> None:
    with pytest.raises(SettingsError, match="messages"):
        Agent("a", MODEL, provider_options={"messages": []})


def test_a_provider_object_is_asked_about_settings_too() -> None:
    with pytest.raises(SettingsError, match="temperature"):
        Agent("a", Strict([]), settings={"temperature": 1})
    assert Agent("a", ScriptedProvider([]), settings={"anything": 1}).settings == {"anything": 1}


def test_an_agent_that_is_right() -> None:
    agent = Agent("a", MODEL, tools=(tool(search),), settings={"temperature": 0}, instructions=str)
    assert agent.model == MODEL
    assert repr(agent) == "<Agent a on openai:gpt-5>"
    assert [one.name for one in agent.toolbox] == ["search"]


def test_an_agent_is_a_definition_that_can_be_called() -> None:
    """Its constructor is the definition's, so that `help(Agent)` has every argument; its copies can be called, too."""
    assert inspect.signature(Agent) == inspect.signature(AgentSpec)
    assert "output_validators" in inspect.signature(Agent).parameters
    agent = Agent("a", MODEL)
    assert {type(one) for one in (agent.overridden({"max_iterations": 3}), agent.with_tools("x", list))} == {Agent}
    assert type(load_agent({"name": "a", "model": MODEL})) is Agent
    assert not hasattr(AgentSpec("a", MODEL), "call")


# --- a worker's agents


def test_two_agents_of_one_name() -> None:
    with pytest.raises(DefinitionError, match="two agents are called 'a'") as caught:
        Agents([Agent("a", MODEL), Agent("b", MODEL), Agent("a", MODEL)])
    assert caught.value.hint
    agent = Agent("a", MODEL)
    assert len(Agents([agent, agent])) == 1


@pytest.mark.parametrize("wrong", [search, "a", None, Agent])
def test_what_is_no_agent_is_not_served(wrong: Any) -> None:
    with pytest.raises(DefinitionError, match="a worker serves agents") as caught:
        Agents([wrong])
    assert caught.value.hint


def test_an_agent_where_a_list_belongs() -> None:
    with pytest.raises(DefinitionError, match="must be a list") as caught:
        Agents(Agent("support", MODEL))  # type: ignore[arg-type]
    assert "agents=[support]" in str(caught.value)


def test_an_unknown_agent_names_those_that_are_here() -> None:
    with pytest.raises(AgentNotFoundError, match=r"no agent 'x' .*\(it serves: a, b\)") as caught:
        Agents([Agent("b", MODEL), Agent("a", MODEL)]).get("x")
    assert caught.value.hint
    with pytest.raises(AgentNotFoundError, match="it serves: none"):
        Agents([]).get("x")


# --- subagents: who they are; that they run is in tests/integration/test_subagents.py


def named(name: str, *subagents: Agent | str) -> Agent:
    return Agent(name, MODEL, subagents=subagents)


@pytest.mark.parametrize(
    ("agents", "cycle"),
    [
        ([named("a", "a")], "a → a"),
        ([named("a", "b"), named("b", "a")], "a → b → a"),
        ([named("a", named("b", "a"))], "a → b → a"),
        ([named("a", named("b", named("c", "b")))], "b → c → b"),
        ([named("x"), named("a", "x", "b"), named("b", "c"), named("c", "x", "a")], "a → b → c → a"),
    ],
)
def test_a_cycle_of_subagents_is_printed(agents: list[Agent], cycle: str) -> None:
    with pytest.raises(DefinitionError, match=f"a cycle of subagents: {cycle}") as caught:
        Agents(agents)
    first, second = cycle.split(" → ")[:2]
    assert f"remove {second!r} from the subagents of {first!r}" in str(caught.value)


def test_an_unknown_subagent() -> None:
    with pytest.raises(DefinitionError, match="'a' has a subagent 'z', which this worker does not serve") as caught:
        Agents([named("a", "z"), named("b")])
    assert "it serves: a, b" in str(caught.value)


def test_a_subagent_of_a_name_that_another_agent_has() -> None:
    with pytest.raises(DefinitionError, match="two agents are called 'b'"):
        Agents([named("a", named("b")), named("b")])


def test_subagents_are_served_with_the_agent_that_calls_them() -> None:
    shared = named("c")
    agents = Agents([named("a", named("b", shared), shared), named("d", "c")])
    assert [agent.name for agent in agents] == ["a", "b", "c", "d"]
    assert [tool.name for tool in agents.get("a").toolbox] == ["call_b", "call_c"]


def test_an_agent_that_is_added_later_is_checked_too() -> None:
    agents = Agents([named("a")])
    agents.add(named("b"))
    assert [agent.name for agent in agents] == ["a", "b"]
    with pytest.raises(DefinitionError, match="c → c"):
        agents.add(named("c", "c"))


def test_a_toolset_that_cannot_say_which_tools_there_are_is_refused() -> None:
    class Crm(Toolset):
        name = "crm"

    with pytest.raises(DefinitionError, match="agent 'a': toolset Crm has no method `list`"):
        Agent("a", "openai:gpt-5", toolsets=[Crm()])


@pytest.mark.parametrize("wrong", [hook("on_finish")(lambda: None), None, "audit", 7])
def test_hooks_that_are_no_list_are_refused(wrong: Any) -> None:
    with pytest.raises(DefinitionError) as refused:
        Agent("a", MODEL, hooks=wrong)
    assert str(refused.value) == f"agent 'a': hooks must be a list, not {wrong!r}.\nWrite hooks=[audit]."


def test_a_set_of_hooks_alone_and_an_iterator_are_as_good_as_a_list() -> None:
    first = hook("on_finish")(lambda: None)
    assert list(Agent("a", MODEL, hooks=iter([first])).hooks) == [first]
    assert list(Agent("a", MODEL, hooks=HookSet([first])).hooks) == [first]
    assert (
        Agent("a", MODEL, hooks=auto_summarise(80_000)).compaction
        == Agent("a", MODEL, compaction=Compaction.summarise(at=80_000)).compaction
    )


@pytest.mark.parametrize("arguments", [{}, {"model": "openai:gpt-5", "instruction": "Be brief."}])
def test_a_wrong_argument_is_one_of_agent(arguments: Any) -> None:
    with pytest.raises(TypeError, match=r"^Agent\.__init__\(\) "):
        Agent("desk", **arguments)
