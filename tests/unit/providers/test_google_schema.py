"""Tools' schemas in Gemini's dialect, judged by the strict server's rules."""

from __future__ import annotations

from enum import Enum
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field

from perdure.ports.model import ToolSpec
from perdure.providers.google_request import encode_tool
from perdure.providers.tool_schemas import GOOGLE, translate_tool
from tests.servers.google import check_schema


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Leaf(BaseModel):
    kind: Literal["leaf"] = "leaf"
    size: Annotated[int, Field(gt=0, lt=10)] = 1


class Tree(BaseModel):
    kind: Literal["tree"]
    branches: list[Tree | Leaf] = []


class Everything(BaseModel):
    title: str = Field(pattern="^a", max_length=9)
    colour: Colour = Field(description="Which.", default=Colour.RED)
    maybe: int | None = None
    pair: tuple[int, str]
    table: dict[str, float]
    yes: Literal[True]
    mixed: Literal["a", 1]
    one: Literal[3]
    site: str = Field(json_schema_extra={"format": "uri"})
    top: Annotated[Tree | Leaf, Field(discriminator="kind")]
    anything: Any


def translate_schema(schema: dict[str, Any]) -> dict[str, Any] | None:
    declaration = encode_tool(translate_tool(GOOGLE, ToolSpec("it", "It.", schema)))
    translated: dict[str, Any] | None = declaration.get("parametersJsonSchema")
    return translated


def judged(schema: dict[str, Any]) -> dict[str, Any]:
    translated = translate_schema(schema)
    assert translated is not None
    check_schema(translated, "it", translated.get("$defs", {}))
    return translated


def test_whatever_pydantic_says_is_taken() -> None:
    made = judged(Everything.model_json_schema())
    properties = made["properties"]
    assert properties["title"] == {"description": '(maxLength: 9; pattern: "^a")', "type": "string"}
    assert properties["colour"] == {"anyOf": [{"$ref": "#/$defs/Colour"}], "description": "Which."}
    assert properties["yes"]["type"] == "boolean"
    assert properties["mixed"]["description"] == '(one of ["a", 1])'
    assert properties["one"]["enum"] == [3]
    assert properties["site"]["description"] == "(format: uri)"
    assert properties["anything"] == {}
    assert made["$defs"]["Leaf"]["properties"]["size"] == {
        "type": "integer",
        "minimum": 1,
        "maximum": 9,
        "description": "(default: 1)",
    }
    assert made["required"] == Everything.model_json_schema()["required"]


@pytest.mark.parametrize(
    ("inner", "expected"),
    [
        ({"allOf": [{"$ref": "#/definitions/X"}], "title": "x"}, {"$ref": "#/$defs/X"}),
        (
            {"allOf": [{"type": "string"}, {"minLength": 1}]},
            {"description": '(allOf: [{"type": "string"}, {"minLength": 1}])'},
        ),
        ({"type": ["string", "null"]}, {"type": ["string", "null"]}),
        ({"type": "array", "items": True}, {"type": "array", "items": {}}),
        ({"const": None}, {"description": "(one of [null])"}),
        ({"type": "number", "exclusiveMinimum": 0}, {"type": "number", "description": "(exclusiveMinimum: 0)"}),
    ],
)
def test_keywords(inner: dict[str, Any], expected: dict[str, Any]) -> None:
    made = judged({"type": "object", "properties": {"x": inner}, "definitions": {"X": {"type": "string"}}})
    assert made["properties"]["x"] == expected
    assert made["$defs"] == {"X": {"type": "string"}}


def test_no_arguments_need_no_schema() -> None:
    assert translate_schema({"type": "object", "properties": {}, "additionalProperties": False}) is None
    assert translate_schema({"type": "object", "additionalProperties": True}) is not None
