"""``Agent.overridden``: a copy with changes that are checked as a definition is, and made once."""

from __future__ import annotations

from typing import Any

import pytest

from perdure import Agent, Limits, tool
from perdure.errors import DefinitionError, SettingsError
from perdure.testing import ScriptedProvider
from perdure.tools import Toolbox
from perdure.types.interface import Override
from perdure.types.limits import RunLimits, TurnLimits

MODEL = "openai:gpt-5"


@tool
def search(query: str) -> str:
    """Search."""
    return query


@tool
def refund(order_id: str) -> str:
    """Refund."""
    return order_id


def agent(**more: Any) -> Agent:
    given = {"instructions": "Help.", "tools": [search, refund], "settings": {"temperature": 0.2, "seed": 1}, **more}
    return Agent("a", MODEL, **given)


@pytest.mark.parametrize("nothing", [None, {}, Override(), {"model": None}])
def test_without_changes_it_is_the_agent_itself(nothing: Any) -> None:
    one = agent()
    assert one.overridden(nothing) is one


def test_what_is_left_out_stays() -> None:
    one = agent()
    changed = one.overridden({"instructions": "Be brief."})
    assert (changed.instruction_parts, changed.name, changed.model) == (("Be brief.",), "a", MODEL)
    assert (changed.settings, changed.toolbox, changed.max_iterations) == (one.settings, one.toolbox, 50)
    assert one.instruction_parts == ("Help.",)


def test_all_that_it_can_change() -> None:
    override = Override(
        model="openai:gpt-5-mini",
        instructions="Be brief.",
        tools=("refund",),
        settings={"temperature": 0.9, "seed": None, "max_tokens": 9},
        provider_options={"service_tier": "flex"},
        finish="tag",
        max_iterations=3,
        on_limit="error",
        limits=RunLimits(cost_usd=1, turn=TurnLimits(tokens=9)),
    )
    one = agent(provider_options={"store": True}, limits=Limits(cost_usd=5, tokens=7))
    changed = one.overridden(override)
    assert changed.limits == Limits(cost_usd=1, tokens=7, turn=Limits(tokens=9))
    assert (changed.model, changed.instruction_parts) == ("openai:gpt-5-mini", ("Be brief.",))
    assert [spec.name for spec in changed.toolbox.specs] == ["refund"]
    assert changed.settings == {"temperature": 0.9, "max_tokens": 9}
    assert changed.provider_options == {"store": True, "service_tier": "flex"}
    assert (changed.finish, changed.max_iterations, changed.on_limit) == ("tag", 3, "error")
    assert set(override.model_dump(exclude_none=True)) == set(Override.model_fields), "a field without a test"
    assert vars(one) == vars(agent(provider_options={"store": True}, limits=Limits(cost_usd=5, tokens=7))) | {
        "toolbox": one.toolbox,
        "output_type": one.output_type,
        "hooks": one.hooks,
        "_copies": one._copies,
    }


def test_tools_keep_the_agents_order_and_none_may_be_offered() -> None:
    one = agent()
    assert [tool.name for tool in one.overridden({"tools": ["refund", "search"]}).toolbox] == ["search", "refund"]
    assert len(one.overridden({"tools": []}).toolbox) == 0


def test_the_same_change_is_made_once() -> None:
    one = agent()
    first = one.overridden({"max_iterations": 3, "on_limit": "error"})
    assert one.overridden({"on_limit": "error", "max_iterations": 3}) is first
    assert one.overridden(Override(max_iterations=3)) is one.overridden(Override(max_iterations=3))
    assert one.overridden({"max_iterations": 4}) is not first
    kept = [one.overridden({"max_iterations": n}) for n in range(1, 200)]
    assert one.overridden({"max_iterations": 199}) is kept[-1]
    assert len(one._copies) < 100  # overrides come from outside: they must not fill the worker's memory


def test_a_changed_agent_makes_its_copies_anew() -> None:
    one = agent()
    assert one.overridden({"max_iterations": 3}).provider is None
    one.provider = provider = ScriptedProvider([])
    assert one.overridden({"max_iterations": 3}).provider is provider


def test_an_agent_with_a_provider_object_can_be_given_a_model() -> None:
    one = Agent("a", ScriptedProvider([]))
    assert one.overridden({"max_iterations": 3}).provider is one.provider
    changed = one.overridden({"model": "openai:gpt-5"})
    assert (changed.model, changed.provider) == ("openai:gpt-5", None)


@pytest.mark.parametrize(
    ("override", "error", "said"),
    [
        ({"model": "gpt-5"}, DefinitionError, ["'gpt-5'", "provider:model"]),
        ({"model": "opnai:x"}, DefinitionError, ["'opnai'", "openai"]),
        ({"model": 5}, DefinitionError, ["model: "]),
        ({"tools": ["search", "drop_tables"]}, DefinitionError, ["tools", "'drop_tables'", "search, refund"]),
        ({"tools": "search"}, DefinitionError, ["tools: "]),
        ({"instructions": ["be", "good"]}, DefinitionError, ["instructions: "]),
        ({"settings": {"temprature": 1}}, SettingsError, ["'temprature'", "temperature"]),
        ({"settings": {"top_k": 3}}, SettingsError, ["'top_k'", "openai"]),
        ({"settings": "hot"}, DefinitionError, ["settings: "]),
        ({"provider_options": {"messages": []}}, SettingsError, ["messages"]),
        ({"finish": "json"}, DefinitionError, ["finish: "]),
        ({"max_iterations": 0}, DefinitionError, ["max_iterations: "]),
        ({"on_limit": "raise"}, DefinitionError, ["on_limit: "]),
        ({"temperature": 1}, DefinitionError, ["temperature: ", "It can change: model, instructions, tools"]),
        ({"settings": {"stop": object()}}, DefinitionError, ["settings: ", "of type object"]),
        ("gpt-5", DefinitionError, ["it: "]),
        ({1: "gpt-5", "model": "openai:gpt-5"}, DefinitionError, ["Keys should be strings"]),
    ],
)
def test_a_wrong_change_is_refused_by_its_field(override: Any, error: type[Exception], said: list[str]) -> None:
    with pytest.raises(error) as caught:
        agent().overridden(override)
    assert "the override of agent 'a': " in str(caught.value)
    for part in said:
        assert part in str(caught.value)


def test_a_model_of_another_provider_needs_settings_that_it_has() -> None:
    with pytest.raises(SettingsError, match="temperature"):
        Agent("a", Strict([]), settings={}).overridden({"settings": {"temperature": 1}})


class Strict(ScriptedProvider):
    """A provider without settings."""

    def check_settings(self, settings: Any, options: Any) -> None:
        if settings:
            raise SettingsError(f"Provider 'strict' has no setting {min(settings)!r}.")


def test_an_override_may_be_a_chain() -> None:
    one = Agent("a", ["openai:gpt-5", "anthropic:claude"])
    assert (one.model, one.models) == ("openai:gpt-5", ("openai:gpt-5", "anthropic:claude"))
    assert repr(one) == "<Agent a on openai:gpt-5, then anthropic:claude>"
    assert one.overridden({"max_iterations": 3}).models == one.models
    assert one.overridden({"model": "openai:gpt-5-mini"}).models == ("openai:gpt-5-mini",)
    override = Override(model=("openai:gpt-5-mini", "google:gemini"))
    assert one.overridden(override).models == ("openai:gpt-5-mini", "google:gemini")
    assert one.overridden(override.model_dump(mode="json")).models == ("openai:gpt-5-mini", "google:gemini")
    with pytest.raises(DefinitionError, match="the override of agent 'a': the list of models is empty"):
        one.overridden({"model": []})
    with pytest.raises(SettingsError, match="the override of agent 'a': model 'google:gemini': "):
        one.overridden({"model": ["openai:gpt-5", "google:gemini"], "settings": {"metadata": {"a": "b"}}})


@tool
def pay() -> str:
    """Pay."""
    return ""


def test_what_a_step_adds_and_removes_of_the_agents_tools_and_the_workers() -> None:
    one, worker = agent(), Toolbox([pay])
    names = [spec.name for spec in one.overridden({"add_tools": ["pay"], "remove_tools": ["search"]}, worker).specs]
    assert names == ["refund", "pay"]
    back = one.overridden({"tools": ["refund"], "add_tools": ["search"]}, worker)
    assert [spec.name for spec in back.specs] == ["refund", "search"]


def test_a_tool_that_a_step_has_added_and_that_is_gone_since_is_left_out(caplog: pytest.LogCaptureFixture) -> None:
    gone = agent().overridden({"add_tools": ["pay", "gone"], "remove_tools": ["gone too"]}, Toolbox([pay]))
    assert [spec.name for spec in gone.specs] == ["search", "refund", "pay"]
    assert "a step added the tool 'gone', which this worker does not have" in caplog.text


def test_workers_with_other_tools_of_one_name_have_copies_of_their_own() -> None:
    one = agent()

    @tool(name="pay")
    def theirs() -> str:
        """Pay."""
        return "theirs"

    first, again = (one.overridden({"add_tools": ["pay"]}, Toolbox([pay])) for _ in range(2))
    assert first is again
    assert one.overridden({"add_tools": ["pay"]}, Toolbox([theirs])).toolbox.get("pay") is theirs
