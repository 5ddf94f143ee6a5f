"""Tools in the formats of the vendors, judged by validators that were written from the vendors' rules."""

from __future__ import annotations

import copy
import json
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from perdure import Agent, tool
from perdure.ports.model import Completed, ToolSpec
from perdure.ports.toolset import ListedTool
from perdure.providers.tool_schemas import (
    ANTHROPIC,
    GOOGLE,
    OPENAI,
    PORTABLE,
    ToolRules,
    encode_name,
    get_rules,
    translate_parameters,
    translate_tool,
    translate_tools,
)
from perdure.types.messages import ToolCallPart
from tests.servers.tool_schemas import FLAWS, explain, find_anthropic_flaws, find_google_flaws, find_openai_flaws
from tests.support.tool_schemas import NUMBER, ODD, TEXT

RULES = (OPENAI, ANTHROPIC, GOOGLE, PORTABLE)
VALIDATORS = {
    "openai": (find_openai_flaws,),
    "anthropic": (find_anthropic_flaws,),
    "google": (find_google_flaws,),
    "portable": (find_openai_flaws, find_anthropic_flaws),
}
each_format = pytest.mark.parametrize("rules", RULES, ids=lambda rules: rules.name)


def judge(rules: ToolRules, schema: dict[str, Any]) -> dict[str, Any]:
    """The translated schema, which the vendors' validators take. The original stays as it is."""
    before = copy.deepcopy(schema)
    translated, _, _ = translate_parameters(rules, schema)
    assert schema == before
    flaws = [flaw for validator in VALIDATORS[rules.name] for flaw in validator(translated)]
    assert not flaws, f"{flaws}\n{explain(schema)}\n→ {explain(translated)}"
    return translated


@each_format
@pytest.mark.parametrize("name", ODD)
def test_odd_schemas_are_taken(rules: ToolRules, name: str) -> None:
    judge(rules, ODD[name])


@pytest.mark.parametrize(
    ("rules", "name", "expected"),
    [
        (
            OPENAI,
            "prefixItems",
            {
                "type": "array",
                "prefixItems": [NUMBER, TEXT],
                "minItems": 2,
                "maxItems": 2,
                "items": {"anyOf": [NUMBER, TEXT]},
            },
        ),
        (OPENAI, "a closed tuple", {"type": "array", "prefixItems": [NUMBER], "items": NUMBER, "maxItems": 1}),
        (OPENAI, "an open tuple", {"type": "array", "prefixItems": [NUMBER], "items": {}}),
        (ANTHROPIC, "a tuple of draft 7", {"type": "array", "prefixItems": [NUMBER, TEXT], "items": False}),
        (ANTHROPIC, "bounds of draft 4", {"type": "integer", "exclusiveMinimum": 1}),
        (GOOGLE, "bounds of draft 4", {"type": "integer", "minimum": 2}),
        (OPENAI, "lookaround", {"type": "string", "description": '(pattern: "^(?!x)y")'}),
        (ANTHROPIC, "lookaround", {"type": "string", "pattern": "^(?!x)y"}),
        (
            ANTHROPIC,
            "counts as text",
            {"type": "string", "maxLength": 12, "pattern": "7", "description": "(minLength: -1)"},
        ),
        (GOOGLE, "an empty text in an enum", {"type": "string", "description": '(one of ["", "x"])'}),
    ],
)
def test_nothing_of_the_meaning_is_lost(rules: ToolRules, name: str, expected: dict[str, Any]) -> None:
    assert next(iter(judge(rules, ODD[name])["properties"].values())) == expected


def test_alternatives_of_the_root_are_folded_and_told() -> None:
    made, notes, _ = translate_parameters(OPENAI, ODD["a tagged union"])
    assert made["properties"] == {"kind": {"anyOf": [{"const": "a"}, {"const": "b"}]}, "x": NUMBER, "y": TEXT}
    assert made["required"] == ["kind"]
    assert notes == [
        'exactly one of these: [{"required": ["kind", "x"], "properties": {"kind": {"const": "a"}, "x": {}}}, '
        '{"required": ["kind"], "properties": {"kind": {"const": "b"}, "y": {}}}]'
    ]
    wire = translate_tool(OPENAI, ToolSpec("act", "Act.", ODD["a tagged union"]))
    assert wire.description == f"Act.\n\nArguments: {notes[0]}"


def test_all_of_the_root_is_merged() -> None:
    made, notes, _ = translate_parameters(ANTHROPIC, ODD["all of"])
    assert (made["properties"], made["required"], notes) == ({"a": TEXT, "b": NUMBER}, ["a"], [])
    made, notes, _ = translate_parameters(ANTHROPIC, ODD["a root reference"])
    assert (made["properties"], made["additionalProperties"], notes) == ({"a": TEXT}, False, [])


def test_a_cycle_of_required_properties_is_told_to_gemini_in_words() -> None:
    made = judge(GOOGLE, ODD["a required cycle"])
    assert made["$defs"]["Node"] == {
        "type": "object",
        "properties": {"next": {"$ref": "#/$defs/Node"}},
        "required": [],
        "description": "(required: next)",
    }


@tool
def plain(a: int, b: str = "x", c: list[str] | None = None) -> str:
    """Plain."""
    return f"{a} {b} {c}"


@tool
def price(amount: Decimal) -> str:
    """Price."""
    return f"{amount}"


def test_what_needs_no_rewriting_is_the_same_byte_for_byte() -> None:
    for rules in (OPENAI, ANTHROPIC, PORTABLE):
        (wire,) = translate_tools(rules, [plain.spec]).offered
        assert (wire.name, wire.description) == ("plain", "Plain.")
        assert json.dumps(wire.parameters) == json.dumps(plain.parameters)


@each_format
def test_a_decimal_whose_pattern_looks_around_is_taken(rules: ToolRules) -> None:
    judge(rules, price.parameters)


@each_format
def test_a_typed_answer_is_taken(rules: ToolRules) -> None:
    judge(rules, Agent("a", "openai:gpt-5", output=tuple[int, str]).output_type.schema)


def test_a_tool_is_translated_once_for_its_definition(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def count(rules: ToolRules, spec: ToolSpec) -> Any:
        asked.append(f"{rules.name} {spec.name}")
        return translate_tool(rules, spec)

    monkeypatch.setattr("perdure.providers.tool_schemas.translate_tool", count)
    agent = Agent("a", "openai:gpt-5", tools=[plain], output=tuple[int, str])
    for _ in range(3):
        translate_tools(OPENAI, agent.specs)
        translate_tools(GOOGLE, agent.specs)
    assert sorted(asked) == ["google __finish__", "google plain", "openai __finish__", "openai plain"]


@pytest.mark.parametrize(
    ("parameters", "reason"),
    [
        ({"type": "string"}, "its arguments are of type 'string', not an object"),
        ({"type": ["array", "null"]}, "its arguments are of type ['array', 'null'], not an object"),
        ({"properties": {"a": {"default": float("nan")}}}, "its schema has a value that JSON does not have"),
        ({"properties": {"a": {"default": object()}}}, "its schema has a value that JSON does not have"),
        ([], "its schema is list, not an object"),
    ],
)
@each_format
def test_what_cannot_be_sent_is_left_out_alone(rules: ToolRules, parameters: Any, reason: str) -> None:
    tools = translate_tools(rules, [ToolSpec("bad", "Bad.", parameters), ToolSpec("good", "Good.", {})])
    assert [tool.name for tool in tools.offered] == ["good"]
    assert tools.left_out == {"bad": reason}


def nest(levels: int, keyword: str) -> dict[str, Any]:
    schema: dict[str, Any] = {}
    for _ in range(levels):
        schema = {keyword: [schema] if keyword == "anyOf" else {"x": schema} if keyword == "properties" else schema}
    return schema


@pytest.mark.parametrize("keyword", ["anyOf", "items", "properties", "not", "additionalProperties"])
@each_format
def test_any_depth_is_cut_or_left_out(rules: ToolRules, keyword: str) -> None:
    for levels in (20, 70, 145):
        tools = translate_tools(rules, [ToolSpec("deep", "Deep.", {"properties": {"a": nest(levels, keyword)}})])
        for wire in tools.offered:
            assert not [flaw for validator in VALIDATORS[rules.name] for flaw in validator(wire.parameters)]
    tools = translate_tools(rules, [ToolSpec("deep", "Deep.", nest(5_000, keyword))])
    assert tools.left_out == {"deep": "its schema is nested deeper than 150 levels"}


def test_a_schema_that_would_explode_is_not_unrolled() -> None:
    """Twenty levels of which each names the next one ten times."""
    bomb = {f"L{n}": {"allOf": [{"$ref": f"#/$defs/L{n + 1}"}] * 10} for n in range(20)} | {
        "L20": {"properties": {"a": TEXT}}
    }
    for rules in RULES:
        judge(rules, {"$ref": "#/$defs/L0", "$defs": bomb})


# ---
# Names.


def test_names_for_gemini_begin_with_a_letter_and_come_back() -> None:
    specs = [ToolSpec("3d_view", "View.", {"properties": {"a b": TEXT}}), ToolSpec("_3d_view", "Other.", {})]
    tools = translate_tools(GOOGLE, specs)
    assert not tools.left_out
    names = [wire.name for wire in tools.offered]
    assert names == [encode_name(GOOGLE, "3d_view"), "_3d_view"]
    assert names[0].startswith("_3d_view_")
    assert all(GOOGLE.tool_name.fullmatch(name) for name in names)
    (argument,) = tools.offered[0].own_names
    assert tools.offered[0].restore_arguments({argument: 1, "more": 2}) == {"a b": 1, "more": 2}


def test_two_tools_of_one_name_on_the_wire_are_one() -> None:
    taken = encode_name(GOOGLE, "3d")
    tools = translate_tools(GOOGLE, [ToolSpec("3d", "A.", {}), ToolSpec(taken, "B.", {})])
    assert [wire.spec.name for wire in tools.offered] == ["3d"]
    assert list(tools.left_out) == [taken]


def test_the_rules_follow_the_model_behind_a_gateway() -> None:
    assert get_rules("openai", "gpt-5") is OPENAI
    assert get_rules("openai", "anthropic/claude-sonnet-4.5") is PORTABLE
    assert get_rules("pydantic-ai", "any") is PORTABLE
    assert set(FLAWS) == {"openai", "openai-responses", "anthropic", "google"}


def test_a_listed_tool_keeps_its_translations_too() -> None:
    listed = ListedTool("a", "A.", {}, idempotent=True)
    assert translate_tools(OPENAI, [listed]).offered[0] is translate_tools(OPENAI, [listed]).offered[0]


# ---
# Generated schemas.


KEYS = st.sampled_from(["a", "b", "a b", "filter[id]", "$top", "größe", "9", "type", "properties", "x" * 70, "a.b-c"])
TYPES = st.sampled_from(["string", "integer", "number", "boolean", "object", "array", "null"])
REFERENCES = st.sampled_from(
    ["#", "#/$defs/A", "#/$defs/B", "#/definitions/A", "#/properties/a", "#/nowhere", "x.json", "#c"]
)
LEAVES = (
    st.none() | st.booleans() | st.integers(-3, 9) | st.floats(-2, 9) | st.sampled_from(["", "x", "object", "(?=y)z"])
)
VALUES = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3), max_leaves=6
)


def _keywords(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    schemas, maps = st.lists(inner, min_size=1, max_size=3), st.dictionaries(KEYS, inner, max_size=3)
    bounds = st.integers(-5, 5) | st.booleans()
    shapes: dict[str, st.SearchStrategy[Any]] = {
        "type": TYPES | st.lists(TYPES, min_size=1, max_size=2),
        **dict.fromkeys(("anyOf", "oneOf", "allOf", "prefixItems"), schemas),
        **dict.fromkeys(("items", "not", "if", "then", "else", "contains"), inner),
        **dict.fromkeys(("additionalProperties", "propertyNames"), inner),
        **dict.fromkeys(("properties", "patternProperties", "dependentSchemas"), maps),
        **dict.fromkeys(("$defs", "definitions"), st.dictionaries(st.sampled_from("AB"), inner, max_size=2)),
        "required": st.lists(KEYS, max_size=3),
        "dependentRequired": st.dictionaries(KEYS, st.lists(KEYS, max_size=2), max_size=2),
        "enum": st.lists(VALUES, max_size=3),
        "const": VALUES,
        "$ref": REFERENCES,
        "$anchor": st.just("c"),
        "format": st.sampled_from(["uri", "date", "int32"]),
        "pattern": st.sampled_from(["^a", "^(?!b)"]),
        **dict.fromkeys(("minimum", "exclusiveMinimum", "exclusiveMaximum", "maximum"), bounds),
        **dict.fromkeys(("minItems", "maxItems", "maxLength"), st.integers(0, 5)),
        "description": st.sampled_from(["What.", ""]),
        "default": VALUES,
    }
    return st.lists(
        st.sampled_from(sorted(shapes)).flatmap(
            # Now and then something that is not what the keyword takes.
            lambda key: st.tuples(st.just(key), st.integers(0, 9).flatmap(lambda n: VALUES if n == 0 else shapes[key]))
        ),
        max_size=5,
    ).map(dict)


SCHEMAS = st.recursive(st.booleans() | st.just({}) | TYPES.map(lambda kind: {"type": kind}), _keywords, max_leaves=12)


@each_format
@given(schema=_keywords(SCHEMAS))
def test_any_schema_becomes_one_that_the_vendor_takes(rules: ToolRules, schema: dict[str, Any]) -> None:
    if translate_tool(rules, ToolSpec("it", "It.", schema)).flaw is None:
        judge(rules, schema)


@each_format
@given(schema=_keywords(SCHEMAS))
def test_a_translation_is_the_same_each_time_and_needs_no_other(rules: ToolRules, schema: dict[str, Any]) -> None:
    if translate_tool(rules, ToolSpec("it", "It.", schema)).flaw is not None:
        return
    made = translate_parameters(rules, schema)
    assert made == translate_parameters(rules, copy.deepcopy(schema))
    assert translate_parameters(rules, made[0])[2] == {}, "no name is changed again"


@st.composite
def fitting(draw: st.DrawFn, levels: int = 3) -> tuple[dict[str, Any], Any]:
    """A schema, and a value that fits it."""
    kinds = ["string", "integer", "enum", "const", "null", "any"]
    if levels:
        kinds += ["object", "object", "array", "tuple", "map", "anyOf", "allOf"]
    match draw(st.sampled_from(kinds)):
        case "string":
            return {"type": "string", "pattern": draw(st.sampled_from(["^", "^(?!b)"]))}, draw(
                st.sampled_from(["", "aé"])
            )
        case "integer":
            return {"type": "integer", "exclusiveMinimum": 0, "maximum": 9}, draw(st.integers(1, 9))
        case "enum":
            values = draw(st.lists(LEAVES, min_size=1, max_size=3))
            return {"enum": values}, draw(st.sampled_from(values))
        case "const":
            value = draw(LEAVES)
            return {"const": value}, value
        case "null":
            return {"type": ["null", "string"], "format": "uri"}, None
        case "any":
            return {}, draw(VALUES)
        case "array":
            schema, value = draw(fitting(levels - 1))
            return {"type": "array", "items": schema}, [value] * draw(st.integers(0, 2))
        case "tuple":
            places = draw(st.lists(fitting(levels - 1), min_size=1, max_size=3))
            schema = {"type": "array", "prefixItems": [place for place, _ in places]}
            closed = draw(st.sampled_from([{}, {"items": False}, {"minItems": len(places), "maxItems": len(places)}]))
            return schema | closed, [value for _, value in places]
        case "map":
            schema, value = draw(fitting(levels - 1))
            return {"type": "object", "additionalProperties": schema}, {"any key": value}
        case "anyOf":
            schema, value = draw(fitting(levels - 1))
            return {draw(st.sampled_from(["anyOf", "oneOf"])): [schema, {"type": "object", "minProperties": 99}]}, value
        case "allOf":
            schema, value = draw(fitting(levels - 1))
            return {"allOf": [schema]}, value
        case _:
            return draw(fitting_object(levels - 1))


@st.composite
def fitting_object(draw: st.DrawFn, levels: int = 3) -> tuple[dict[str, Any], dict[str, Any]]:
    """An object's schema, also with combinators, and a value that fits it."""
    fields = draw(st.dictionaries(KEYS, fitting(levels), max_size=4))
    given_names = [name for name in fields if draw(st.booleans())]
    schema: dict[str, Any] = {"type": "object", "properties": {name: inner for name, (inner, _) in fields.items()}}
    value = {name: fields[name][1] for name in given_names}
    match draw(st.sampled_from(["closed", "required", "anyOf", "oneOf", "allOf", "not"])):
        case "closed":
            schema["additionalProperties"] = False
        case "required":
            schema["required"] = given_names
        case "anyOf":
            schema["anyOf"] = [{"required": given_names}, {"required": ["zz"]}]
        case "oneOf":
            schema = {"oneOf": [schema, {"type": "object", "required": ["zz"], "properties": {"zz": TEXT}}]}
        case "allOf":
            schema = {"allOf": [schema, {"required": given_names}]}
        case _:
            schema["not"] = {"required": ["zz"]}
    return schema, value


@each_format
@given(pair=fitting_object())
def test_arguments_that_fit_survive_the_round_trip(
    rules: ToolRules, pair: tuple[dict[str, Any], dict[str, Any]]
) -> None:
    schema, arguments = pair
    assert Draft202012Validator(schema).is_valid(arguments)
    wire = translate_tool(rules, ToolSpec("it", "It.", schema))
    assert wire.flaw is None
    judge(rules, schema)
    wire_names = {own: name for name, own in wire.own_names.items()}
    sent = {wire_names.get(name, name): value for name, value in arguments.items()}
    parameters = wire.parameters
    if rules is GOOGLE:  # "interpreted the same as anyOf"
        parameters = json.loads(json.dumps(parameters).replace('"oneOf":', '"anyOf":'))
    problems = [error.message for error in Draft202012Validator(parameters).iter_errors(sent)]
    assert not problems, f"{problems}\n{explain(schema)}\n→ {explain(wire.parameters)}"
    assert wire.restore_arguments(sent) == arguments


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        *(("pay", "pay"), ("functions.pay", "pay"), ("functions.pay:0", "pay"), ("default_api.pay", "pay")),
        *(("pay<|channel|>commentary", "pay"), (" tools:pay ", "pay"), ("functions.x", "functions.x")),
        *(("functions.a_b", "a.b"), ("functions.functions_pay", "functions.pay"), ("a_b", "a.b")),
    ],
)
def test_a_name_in_the_wrapping_of_a_model_s_own_format(name: str, meant: str) -> None:
    specs = [ToolSpec(own, "", {"type": "object", "properties": {}}) for own in ("pay", "a.b", "functions.pay")]
    tools = translate_tools(OPENAI, specs)
    wire = {tool.spec.name: tool.name for tool in tools.offered}
    name = name.replace("a_b", wire["a.b"]).replace("functions_pay", wire["functions.pay"])
    restored = tools.restore(Completed((ToolCallPart(id="c", name=name, arguments={}),)))
    assert isinstance(restored, Completed)
    assert [part.name for part in restored.parts if isinstance(part, ToolCallPart)] == [meant]
