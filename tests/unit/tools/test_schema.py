"""The JSON Schema that a model sees, from type hints; the hash of what it sees."""

from __future__ import annotations

import dataclasses
import enum
import math
from datetime import date, datetime
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field
from typing_extensions import TypedDict

from perdure.tools import as_tool, tool


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Item(BaseModel):
    title: str
    parts: list[Item] = []


@dataclasses.dataclass
class Point:
    x: int
    y: int = 0


class Opening(TypedDict):
    day: str
    hours: list[int]


CASES: list[tuple[Any, Any]] = [
    (str, {"type": "string"}),
    (int, {"type": "integer"}),
    (float, {"type": "number"}),
    (bool, {"type": "boolean"}),
    (list, {"type": "array", "items": {}}),
    (list[int], {"type": "array", "items": {"type": "integer"}}),
    (dict, {"type": "object", "additionalProperties": True}),
    (dict[str, int], {"type": "object", "additionalProperties": {"type": "integer"}}),
    (Any, {}),
    (int | None, {"anyOf": [{"type": "integer"}, {"type": "null"}]}),
    (int | str, {"anyOf": [{"type": "integer"}, {"type": "string"}]}),
    (Literal["a", "b"], {"type": "string", "enum": ["a", "b"]}),
    (datetime, {"type": "string", "format": "date-time"}),
    (date, {"type": "string", "format": "date"}),
    (
        Annotated[int, Field(description="Years.", ge=0)],
        {"type": "integer", "description": "Years.", "minimum": 0},
    ),
    (Colour, {"$ref": "#/$defs/Colour"}),
    (Point, {"$ref": "#/$defs/Point"}),
    (Opening, {"$ref": "#/$defs/Opening"}),
    (list[Item], {"type": "array", "items": {"$ref": "#/$defs/Item"}}),
]


@pytest.mark.parametrize(("hint", "expected"), CASES, ids=[str(hint) for hint, _ in CASES])
def test_hint(hint: Any, expected: Any) -> None:
    def probe(value):  # type: ignore[no-untyped-def]
        """Probe."""

    probe.__annotations__["value"] = hint
    schema = as_tool(probe).parameters
    assert schema["properties"] == {"value": expected}
    assert schema["required"] == ["value"]
    assert schema["type"] == "object"
    assert schema["additionalProperties"] is False


def test_definitions_are_kept_and_titles_dropped() -> None:
    @tool
    def place(item: Item, at: Point, colour: Colour, title: str = "none") -> None: ...

    assert place.parameters["$defs"]["Item"] == {
        "type": "object",
        "properties": {
            "title": {"type": "string"},
            "parts": {"type": "array", "items": {"$ref": "#/$defs/Item"}, "default": []},
        },
        "required": ["title"],
    }
    assert place.parameters["$defs"]["Colour"] == {"enum": ["red", "blue"], "type": "string"}
    assert place.parameters["properties"]["title"] == {"type": "string", "default": "none"}
    assert "title" not in place.parameters


def test_defaults() -> None:
    @tool
    def find(
        query: str,
        limit: int = 10,
        tags: frozenset[str] = frozenset({"b", "a"}),
        since: date | None = None,
        depth: float = math.inf,
        page: int = Field(1, ge=1, description="From 1."),
        size: Annotated[int, Field(default=5)] = 5,
        names: list[str] = Field(default_factory=lambda: ["x"]),  # noqa: B008 - pydantic's way, users write it
    ) -> None: ...

    properties = find.parameters["properties"]
    assert find.parameters["required"] == ["query"]
    assert properties["limit"] == {"type": "integer", "default": 10}
    assert properties["tags"]["default"] == ["a", "b"]
    assert properties["since"]["default"] is None
    assert properties["depth"] == {"type": "number"}  # infinity is no JSON
    assert properties["page"] == {"type": "integer", "default": 1, "minimum": 1, "description": "From 1."}
    assert properties["size"] == {"type": "integer", "default": 5}
    values = find.validate({"query": "q"})
    assert (values["limit"], values["page"], values["size"], values["depth"]) == (10, 1, 5, math.inf)
    assert values["names"] == ["x"]
    assert values["names"] is not find.validate({"query": "q"})["names"]


def test_a_tool_without_parameters() -> None:
    @tool
    def now() -> str:
        return "12:00"

    assert now.parameters == {"type": "object", "properties": {}, "additionalProperties": False}
    assert now.description == ""
    assert now.bind({})() == "12:00"


def test_names_that_a_model_class_could_not_have() -> None:
    @tool
    def odd(schema: str, copy: int, _private: str, model_config: str, json: int = 0) -> tuple[object, ...]:
        return schema, copy, _private, model_config, json

    arguments = {"schema": "s", "copy": 1, "_private": "p", "model_config": "m", "json": 2}
    assert list(odd.parameters["properties"]) == list(arguments)
    assert odd.bind(arguments)() == ("s", 1, "p", "m", 2)


def test_the_definition_changes_with_what_matters() -> None:
    def probe(x: int) -> None:
        """Probe."""

    def other(x: str) -> None:
        """Probe."""

    same = {tool(probe).definition, tool(probe, timeout=5).definition, tool(probe, task_queue="q").definition}
    changed = [
        tool(probe, name="else"),
        tool(probe, description="Else."),
        tool(probe, idempotent=True),
        tool(probe, inline=True),
        tool(other, name="probe"),
    ]
    assert len(same) == 1
    assert len(same | {one.definition for one in changed}) == 6


def test_the_definition_is_the_same_in_every_order_of_a_set() -> None:
    """That of texts is another one in each process."""
    one, other = {0, 8}, {8, 0}
    assert (list(one) == list(other), one == other) == (False, True)

    def probe(tags: set[int]) -> None:
        """Probe."""

    definitions = set()
    for tags in (one, other):
        probe.__defaults__ = (tags,)
        definitions.add(tool(probe).definition)
    assert len(definitions) == 1
