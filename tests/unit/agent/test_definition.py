"""What an agent may declare of its types, and what is refused when it is defined."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from pydantic import BaseModel, Field

from perdure import Agent, hook, tool
from perdure.agent.output import OutputError
from perdure.errors import DefinitionError, InvalidInputError, ParseError
from perdure.types.interface import FINISH_TOOL, Override
from perdure.worker.engine import Engine


class Node(BaseModel):
    """A tree."""

    name: str = Field(description="Of the node")
    below: list[Node] = []


class Other(BaseModel):
    size: int


def _of_three(output: Any, context: Any, more: Any) -> None:
    """One too many."""


def _of_a_key(output: Any, *, key: Any) -> None:
    """Another one."""


def agent(**more: Any) -> Agent:
    return Agent("a", "openai:gpt-5", **more)


def test_text_is_what_it_is_without() -> None:
    one = agent()
    assert (one.finish, one.specs, one.output, one.input, one.parse_retries) == ("text", (), str, str, 2)


def test_the_tool_is_the_last_and_has_the_schema_at_its_top() -> None:
    @tool
    def look(path: str) -> str:
        """Look."""
        return path

    one = agent(output=Node, tools=[look])
    assert [spec.name for spec in one.specs] == ["look", FINISH_TOOL]
    schema = one.specs[-1].parameters
    assert (schema["type"], schema["required"], schema["description"]) == ("object", ["name"], "A tree.")
    assert schema["properties"]["name"] == {"type": "string", "description": "Of the node"}
    assert "title" not in str(schema)
    assert one.specs == agent(output=Node, tools=[look]).specs


@pytest.mark.parametrize(
    ("output", "inside", "schema"),
    [
        (str, "content", {"type": "string"}),
        (int, "value", {"type": "integer"}),
        (list[int], "value", {"type": "array", "items": {"type": "integer"}}),
        (dict[str, int], "value", {"type": "object", "additionalProperties": {"type": "integer"}}),
        (int | None, "value", {"anyOf": [{"type": "integer"}, {"type": "null"}]}),
    ],
)
def test_what_is_no_object_is_wrapped_into_one(output: Any, inside: str, schema: dict[str, Any]) -> None:
    kind = agent(output=output, finish="tool").output_type
    assert kind.inside == inside
    assert kind.schema["properties"] == {inside: {"description": "The answer", **schema}}
    assert (kind.schema["type"], kind.schema["required"]) == ("object", [inside])


def test_a_union_of_models_keeps_their_definitions() -> None:
    kind = agent(output=Node | Other).output_type
    assert set(kind.schema["$defs"]) == {"Node", "Other"}
    assert kind.read_arguments({"value": {"size": 3}}) == Other(size=3)


def test_wrong_arguments_are_said_field_by_field() -> None:
    with pytest.raises(OutputError) as wrong:
        agent(output=Node).output_type.read_arguments({"below": [{"name": 7}]})
    assert str(wrong.value).splitlines() == [
        "the arguments of __finish__ are not valid:",
        "- name: missing, and it has no default",
        "- below[0].name: Input should be a valid string; given: 7",
    ]
    with pytest.raises(OutputError, match=r"- value: missing"):
        agent(output=int).output_type.read_arguments({})
    with pytest.raises(OutputError, match=r"there is no such argument; the arguments are: value"):
        agent(output=int).output_type.read_arguments({"value": 1, "more": 2})


def test_what_json_cannot_carry_is_no_answer() -> None:
    kind = agent(output=float).output_type
    with pytest.raises(OutputError, match="must be plain JSON"):
        kind.build_finish(float("inf"))


def test_an_output_is_read_back() -> None:
    one = agent(output=Node)
    assert one.read_output({"name": "x", "below": [{"name": "y"}]}) == Node(name="x", below=[Node(name="y")])
    assert one.read_output(None) is None
    assert agent().read_output("so") == "so"
    with pytest.raises(ParseError, match=r"does not fit the type Node of agent 'a'"):
        one.read_output({"size": 3})


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"output": Node(name="x")}, "is a value"),
        ({"output": None}, "is a value"),
        ({"output": "Node"}, "is a value"),
        ({"output": {"a": int}}, "is a value"),
        ({"output": tool}, "is a value"),
        ({"output": type("Foreign", (), {})}, "has no JSON Schema"),
        ({"output": Node, "finish": "text"}, "finish='text' gives text"),
        ({"output": Node, "finish": "tag"}, "finish='tag' gives text"),
        ({"finish": "json"}, "finish is 'json', it can be text, tag, tool"),
        ({"parse_retries": -1}, "parse_retries"),
        ({"parse_retries": True}, "parse_retries"),
        ({"input": int}, "input=int cannot be a JSON object"),
        ({"input": Node(name="x")}, "input=Node is a value|is a value"),
        ({"output_validators": lambda output: output}, "output_validators must be a list"),
        ({"output_validators": ["check"]}, "is not an output validator"),
        ({"output_validators": [lambda: None]}, "cannot be called as an output validator"),
        ({"output_validators": [max]}, "does not tell the parameters of the output validator 'max'"),
        ({"output_validators": [partial(max, 1)]}, "does not tell the parameters of the output validator 'partial'"),
        ({"output_validators": [_of_three]}, "'_of_three' cannot be called as an output validator"),
        ({"output_validators": [_of_a_key]}, "'_of_a_key' cannot be called as an output validator"),
    ],
)
def test_what_cannot_be_is_refused_at_once(options: dict[str, Any], said: str) -> None:
    with pytest.raises(DefinitionError, match=f"agent 'a'(.|\n)*({said})"):
        agent(**options)


class _EvaluatedLate:
    """As Python 3.14 has each function: its annotations are evaluated when they are first read."""

    __name__ = "check"

    @property
    def __signature__(self) -> inspect.Signature:
        raise NameError("name 'Missing' is not defined")

    def __call__(self, first: Any, second: Any = None) -> Any:
        raise AssertionError


@pytest.mark.parametrize(
    ("define", "owner"),
    [
        (lambda fn: agent(output_validators=[fn]), "agent 'a': the output validator 'check'"),
        (lambda fn: agent().output_validator(fn), "agent 'a': the output validator 'check'"),
        (lambda fn: agent(instructions=fn), "agent 'a': the instructions 'check'"),
        (lambda fn: hook("on_finish")(fn), "hook 'check'"),
        (lambda fn: Engine(lifespan=fn), "the lifespan check"),
        (lambda fn: tool(needs_approval=fn)(_of_three), "needs_approval=<.*_EvaluatedLate object"),
    ],
)
def test_an_annotation_that_cannot_be_resolved_is_named_with_its_function(
    define: Callable[[Any], object], owner: str
) -> None:
    with pytest.raises(DefinitionError, match=rf"{owner}.*an annotation cannot be resolved.*'Missing' is not defined"):
        define(_EvaluatedLate())


def test_a_tool_cannot_take_the_name() -> None:
    with pytest.raises(DefinitionError, match="__finish__ is the engine's own tool"):
        tool(lambda: None, name=FINISH_TOOL)


def test_an_override_cannot_ask_for_what_the_output_cannot_be() -> None:
    with pytest.raises(DefinitionError, match="the override of agent 'a': finish='tag' gives text"):
        agent(output=Node).overridden({"finish": "tag"})
    with pytest.raises(DefinitionError, match=r"the override of agent 'a': output"):
        agent(output=Node).overridden({"output": "str"})
    assert agent().overridden(Override(finish="tool")).specs[-1].name == FINISH_TOOL


def test_a_validator_that_is_added_counts_for_overridden_agents_too() -> None:
    one = agent()
    before = one.overridden({"finish": "tag"})
    one.output_validator(lambda output: output)
    assert len(before.output_validators) == 0
    assert len(one.overridden({"finish": "tag"}).output_validators) == 1


def test_an_input_is_checked_and_shown() -> None:
    one = agent(input=Node)
    assert one.check_input({"name": "x"}) == {"name": "x"}
    assert one.check_input(Node(name="x")) == {"name": "x", "below": []}
    assert one.render_input({"name": "x"}) == "<input>\n  <name>x</name>\n  <below></below>\n</input>"
    with pytest.raises(InvalidInputError, match="the input does not fit agent 'a': name"):
        one.check_input({"name": 3})
    with pytest.raises(InvalidInputError, match="takes text and files"):
        agent().check_input({"name": "x"})


def test_an_output_comes_back_that_models_give_under_another_name() -> None:
    class Renamed(BaseModel):
        size: int = Field(validation_alias="how_large")

    kind = agent(output=Renamed).output_type
    value = kind.read_arguments({"how_large": 3})
    assert kind.load_value(kind.build_finish(value).output) == value
