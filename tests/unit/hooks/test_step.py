"""``Step`` as a policy meets it, without a run around it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from perdure import Message, Step
from perdure.errors import AbortError, DefinitionError
from perdure.hooks.step import StepFacts
from perdure.types.messages import ToolCallPart, ToolResultPart, Usage


def result(before: ToolResultPart, value: Any) -> ToolResultPart:
    return before.model_copy(update={"content": str(value)})


CALLS = (ToolCallPart(id="a", name="search"), ToolCallPart(id="b", name="pay"))
FACTS = StepFacts(
    iteration=2,
    forced=False,
    usage=Usage(input_tokens=5),
    cost_usd=0.5,
    messages=(
        Message.user("Go."),
        Message.assistant("", ToolCallPart(id="0", name="search")),
        Message(role="tool", parts=(ToolResultPart(call_id="0", name="search", content="old"),)),
        Message.assistant("Both.", *CALLS),
        Message(role="tool", parts=tuple(ToolResultPart(call_id=c.id, name=c.name, content=c.id) for c in CALLS)),
    ),
    models=("openai:gpt-5", "anthropic:claude"),
    settings={"temperature": 0.5, "seed": 1, "metadata": {"team": "a"}},
    instructions="Help.",
    tools=("search", "pay"),
    known_tools=frozenset(["search", "pay", "refund"]),
    build_result=result,
)


def test_what_happened() -> None:
    step = Step(FACTS)
    assert (step.iteration, step.cost_usd, step.usage.total_tokens, step.model) == (2, 0.5, 5, "openai:gpt-5")
    assert step.reply is not None
    assert step.reply.text == "Both."
    assert step.calls == CALLS
    assert [one.content for one in step.results] == ["a", "b"]
    assert (len(step.results), step.results[-1].content, [one.call_id for one in step.results[:1]]) == (2, "b", ["a"])
    assert step.build_changes() == {}


def test_what_changes_for_the_next_call() -> None:
    step = Step(FACTS)
    step.model = "openai:gpt-5-mini"
    step.settings.update(temperature=0.1, max_tokens=9)
    del step.settings["seed"]
    step.instructions = None
    step.add_tool("refund")
    step.remove_tool("pay")
    assert step.build_changes() == {
        "model": ["openai:gpt-5-mini"],
        "settings": {"temperature": 0.1, "max_tokens": 9, "seed": None},
        "instructions": "",
        "add_tools": ["refund"],
        "remove_tools": ["pay"],
    }
    assert step.tools == ("search", "refund")
    assert step.kept_changes == {}


def test_what_is_put_back_has_not_changed() -> None:
    step = Step(FACTS)
    step.add_tool("search")
    step.remove_tool("pay")
    step.add_tool("pay")
    step.model = ["openai:gpt-5", "anthropic:claude"]
    step.settings["temperature"] = 0.5
    assert step.build_changes() == {}


def test_a_setting_that_is_changed_inside_is_changed_for_this_call_alone() -> None:
    step = Step(FACTS)
    step.settings["metadata"]["team"] = "b"
    assert step.build_changes() == {"settings": {"metadata": {"team": "b"}}}
    assert Step(FACTS).settings["metadata"] == {"team": "a"}


def test_keep_is_for_what_has_changed_so_far() -> None:
    step = Step(FACTS)
    step.model = "openai:gpt-5-mini"
    step.keep()
    step.settings["temperature"] = 0
    step.remove_tool("pay")
    assert step.kept_changes == {"turn": {"model": ["openai:gpt-5-mini"]}}
    step.keep("run")
    assert step.kept_changes["run"] == step.build_changes()
    assert step.kept_changes["turn"] == {"model": ["openai:gpt-5-mini"]}


def test_results_are_changed_where_they_stand() -> None:
    step = Step(FACTS)
    step.results[0] = "shorter"
    step.set_result("b", 7)
    assert [one.content for one in step.messages[-1].tool_results] == ["shorter", "7"]
    assert step.messages[:4] == list(FACTS.messages[:4])
    assert [one.content for one in FACTS.messages[-1].tool_results] == ["a", "b"]


def test_a_loop_over_the_results_visits_those_it_began_with() -> None:
    step = Step(FACTS)
    seen = []
    for result in step.results:
        seen.append(result.content)
        step.trim(0)
    assert seen == ["a", "b"]


def test_a_copy_is_changed_without_the_first() -> None:
    step = Step(FACTS)
    other = step.copy()
    other.settings["seed"] = 5
    other.settings["metadata"]["team"] = "b"
    other.inject("Hurry.")
    other.remove_tool("pay")
    other.keep()
    other.finish("Done.")
    assert (step.build_changes(), step.kept_changes, step.injected_messages, step.finished) == ({}, {}, [], None)
    assert step.messages == list(FACTS.messages)


def test_an_injected_message_that_is_taken_out_again_was_not_said() -> None:
    step = Step(FACTS)
    step.inject("Hurry.")
    step.inject("Slowly.")
    assert [one.by for one in step.injected_messages] == ["step", "step"]
    del step.messages[-1]
    assert [one.text for one in step.injected_messages] == ["Hurry."]


def test_trim_keeps_the_beginning_and_the_end() -> None:
    step = Step(FACTS)
    step.trim(1)
    assert step.messages == [FACTS.messages[0], *FACTS.messages[-2:]]


def test_abort_ends_the_policy() -> None:
    with pytest.raises(AbortError, match="enough"):
        Step(FACTS).abort("enough")


def wrong_model(step: Step) -> None:
    step.model = []


def longer_results(step: Step) -> None:
    step.results.append("more")  # type: ignore[arg-type]  # what an author may try


def fewer_results(step: Step) -> None:
    del step.results[0]


def no_settings(step: Step) -> None:
    step.settings = None  # type: ignore[assignment]  # what an author may try
    step.build_changes()


@pytest.mark.parametrize(
    ("do", "says"),
    [
        (lambda step: step.add_tool("nope"), "there is no tool 'nope'"),
        (lambda step: step.remove_tool("nope"), "The tools are: pay, refund, search"),
        (lambda step: step.set_result("x", ""), "the last reply has no call 'x'"),
        (lambda step: step.keep("ever"), "the 'turn' or the 'run', not 'ever'"),
        (lambda step: step.finish(), "needs the answer, or its fields"),
        (lambda step: step.finish("a", b=1), "and not both"),
        (wrong_model, "step.model is the name of a model"),
        (lambda step: setattr(step, "model", 5), "step.model is the name of a model"),
        (lambda step: setattr(step, "temperature", 0), "a step has no 'temperature'"),
        (lambda step: setattr(step, "max_tokens", 9), "A setting is step.settings['max_tokens'] = …"),
        (no_settings, "step.settings is a dictionary, not None"),
        (lambda step: step.trim(-1), "keep is a whole number of messages, not -1"),
        (lambda step: step.trim("4"), "keep is a whole number of messages, not '4'"),
        (longer_results, "every call has one result"),
        (fewer_results, "every call has one result"),
    ],
)
def test_what_cannot_be_done_is_refused_at_once(do: Any, says: str) -> None:
    with pytest.raises(DefinitionError) as refused:
        do(Step(FACTS))
    assert says in str(refused.value)


def test_without_a_reply_there_is_nothing_to_change() -> None:
    step = Step(replace(FACTS, messages=(Message.user("Go."),)))
    assert (step.reply, step.calls, list(step.results)) == (None, (), [])
