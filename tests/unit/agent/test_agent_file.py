"""Agents as data: what a file may say, and what is said of one that will not do."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

from perdure import Agent, Approval, allow, ask, deny, load_agent, tool
from perdure.agent.agent_file import build_type_from_schema
from perdure.errors import DefinitionError, MissingExtraError, SettingsError
from perdure.ports.toolset import Toolset
from perdure.testing import call, scripted
from perdure.types.compaction import Compaction
from perdure.types.limits import Limits


@tool
def refund(order_id: str) -> str:
    """Refund an order."""
    return f"refunded {order_id}"


def plain(order_id: str) -> str:
    """A function that is no tool yet."""
    return order_id


class Docs(Toolset):
    name = "docs"

    async def list(self, ctx: Any) -> list[Any]:
        return []


RESOLUTION = {
    "type": "object",
    "title": "Resolution",
    "properties": {
        "action": {"enum": ["refund", "none"], "description": "What was done"},
        "order-id": {"type": "string", "pattern": "^o-"},
        "amount": {"type": ["number", "null"], "minimum": 0},
        "notes": {"type": "array", "items": {"type": "object", "properties": {"text": {"type": "string"}}}},
    },
    "required": ["action", "order-id"],
}
SPEC: dict[str, Any] = {
    "name": "support",
    "model": ["openai:gpt-5", "openai:gpt-5-mini"],
    "description": "Answers customers.",
    "instructions": "Be brief.",
    "tools": ["refund", "plain"],
    "toolsets": ["docs"],
    "settings": {"temperature": 0.2},
    "output": RESOLUTION,
    "context": {"type": "object", "properties": {"user": {"type": "string"}}, "required": ["user"]},
    "max_iterations": 7,
    "on_limit": "error",
    "limits": {"cost_usd": 2.0, "wall_time": "1h", "turn": {"tokens": 1000}},
    "compaction": {"window": {"tokens": 100_000}},
    "approvals": [
        {"allow": "read_*"},
        {"deny": "refund", "arguments": {"order_id": "no-*"}},
        {"ask": "pay_*", "expires": "7d", "remind": "1d", "separate": True},
        {"ask": "other"},
    ],
}
GIVEN: Any = {"tools": [refund, plain], "toolsets": [Docs()]}

TOML = """
model = "openai:gpt-5"
tools = ["refund"]
instructions = '''
Be brief.
'''
[limits]
cost_usd = 2.0
"""
YAML = """
model: openai:gpt-5
tools: [refund]
instructions: |
  Be brief.
limits: {cost_usd: 2.0}
"""


def test_all_that_a_file_may_say() -> None:
    agent = load_agent(SPEC, **GIVEN)
    assert (agent.name, agent.models) == ("support", ("openai:gpt-5", "openai:gpt-5-mini"))
    assert (agent.description, agent.instruction_parts, agent.settings) == (
        "Answers customers.",
        ("Be brief.",),
        {"temperature": 0.2},
    )
    assert [one.name for one in agent.toolbox] == ["refund", "plain"]
    assert agent.toolbox.get("refund") is refund
    assert [one.name for one in agent.toolsets] == ["docs"]
    assert (agent.finish, agent.max_iterations, agent.on_limit) == ("tool", 7, "error")
    assert agent.limits == Limits(cost_usd=2.0, wall_time="1h", turn=Limits(tokens=1000))
    assert agent.compaction == Agent("x", "openai:m", compaction=Compaction.window(tokens=100_000)).compaction
    assert agent.read_context({"user": "ana"}) == {"user": "ana"}
    assert agent.approvals == (
        allow("read_*"),
        deny("refund", order_id="no-*"),
        ask("pay_*", Approval(expires="7d", remind="1d", separate=True)),
        ask("other"),
    )


@pytest.mark.parametrize(
    ("rule", "match"),
    [
        ({}, "approvals.0: {} is not a rule"),
        ({"ask": "a", "deny": "b"}, "is not a rule"),
        ({"ask": "a", "after": 1}, "a rule has no 'after'"),
        ({"ask": ""}, "a rule names tools by text"),
        ({"deny": 5}, "a rule names tools by text"),
        ({"ask": "a", "arguments": ["x"]}, "an object of names and patterns"),
        ({"deny": "a", "remind": "1d"}, "deny takes no 'remind': only ask has terms"),
        ({"ask": "a", "expires": "1d", "remind": "2d"}, "is not shorter than expires"),
    ],
)
def test_a_rule_that_will_not_do_is_named(rule: dict[str, Any], match: str) -> None:
    with pytest.raises(DefinitionError, match=match):
        load_agent(SPEC | {"approvals": [rule]}, **GIVEN)


@pytest.mark.parametrize(("name", "text"), [("support.toml", TOML), ("support.yaml", YAML), ("support.YML", YAML)])
def test_formats(name: str, text: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(text)
    agent = load_agent(tmp_path / name, tools=[refund])
    assert (agent.name, agent.instruction_parts, agent.limits.cost_usd) == ("support", ("Be brief.\n",), 2.0)


def test_json(tmp_path: Path) -> None:
    file = tmp_path / "other.json"
    file.write_text(json.dumps(SPEC))
    assert load_agent(str(file), **GIVEN).name == "support"


def test_an_agent_of_a_file_runs() -> None:
    agent = load_agent(SPEC | {"toolsets": []}, tools=[refund, plain])
    answer = {"action": "refund", "order-id": "o-7", "notes": [{"text": "late"}, {}]}
    replies = [
        [call("refund", order_id="o-7")],
        [call("__finish__", action="gone")],
        [call("__finish__", **answer)],
    ]
    with scripted(agent, replies) as script:
        response = agent.call_sync("Order 7 is broken.", context={"user": "ana"})
    assert response.output == answer
    refused = script.requests[2].messages[-1].tool_results[0].content
    assert "action: Input should be 'refund' or 'none'" in refused
    assert "order-id: missing" in refused


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"modell": "x"}, r"modell: Extra inputs are not permitted.\nAn agent has: name, model, "),
        ({"model": 7}, "model"),
        ({"model": "gpt-5"}, "gpt-5"),
        ({"name": "a b"}, "a b"),
        ({"tools": ["refund", "pay"]}, r"tools: there is no 'pay' \(there is: plain, refund\)\.\n.*tools=\[…\]"),
        ({"toolsets": ["web"]}, r"toolsets: there is no 'web' \(there is: docs\)"),
        ({"tools": "refund"}, "tools: Input should be a list"),
        ({"limits": 3}, "limits: Input should be an object"),
        ({"settings": {"temprature": 1}}, "temprature"),
        ({"limits": {"costs": 1}}, "Limits: costs: Extra inputs are not permitted.\nLimits takes attempts, "),
        ({"limits": {"turn": {"costs": 1}}}, r"Limits: costs: Extra inputs"),
        ({"limits": {"cost_usd": -1}}, "cost_usd must be greater than 0"),
        ({"compaction": {"shrink": {}}}, "compaction: there is no 'shrink'.\nThere are: truncate, "),
        ({"compaction": {"window": {"token": 1}}}, r"Compaction\.window: token: Extra"),
        ({"compaction": {"window": {"tokens": 0}}}, "tokens"),
        ({"output": {"type": "object"}}, "output: an object has properties"),
        ({"output": {"type": "string", "format": "date"}}, "output: 'format' of string is not supported"),
        ({"output": {"type": "string", "pattern": "("}}, r"output: error: unclosed group.\nBounds"),
        ({"output": {"type": "array", "items": {"type": "integer", "minimum": "x"}}}, r"output\.items: .*'ge'"),
        (
            {"output": {"type": "array", "items": {"type": "string"}, "minItems": "x"}},
            "output: TypeError: 'str' object",
        ),
        ({"output": {"$ref": "#/$defs/a"}}, r"output: '\$ref' is not supported"),
        ({"output": {"anyOf": [{"type": "string"}]}}, "output: 'anyOf' is not supported"),
        (
            {"input": {"type": "object", "properties": {"a": {"type": "text"}}}},
            r"input\.properties\.a\.type: 'text' is",
        ),
        ({"context": {"type": "object", "properties": {"a": {"type": "string", "pattern": "("}}}}, "context"),
        ({"finish": "text"}, "finish"),
        ({"max_iterations": 0}, "max_iterations must be a whole number of at least 1"),
    ],
)
def test_what_is_wrong_is_named_with_its_file(change: dict[str, Any], why: str, tmp_path: Path) -> None:
    file = tmp_path / "agent.json"
    file.write_text(json.dumps(SPEC | change))
    with pytest.raises(DefinitionError, match=why) as caught:
        load_agent(file, **GIVEN)
    assert caught.value.message.startswith(f"{file}: ")


def test_it_stays_the_kind_of_error_that_it_is() -> None:
    with pytest.raises(SettingsError, match=r"the agent: .*temperature"):
        load_agent({"name": "a", "model": "openai:gpt-5", "settings": {"temperature": "hot"}})


@pytest.mark.parametrize(
    ("name", "body", "why"),
    [
        ("a.json", b"{", "cannot be read: Expecting property name"),
        ("a.json", b"[1]", "has one object"),
        ("a.json", b"\xff", "cannot be read: 'utf-8'"),
        ("a.json", b'{"limits": {"cost": 1, "cost": 9}}', "'cost' occurs twice"),
        ("a.yaml", b"limits: {cost: 1, cost: 9}", "'cost' occurs twice"),
        ("a.toml", b"model =", "cannot be read: Invalid value"),
        ("a.yaml", b"model: [", "cannot be read: while parsing"),
        ("a.yaml", b"!!python/object/apply:os.getcwd []", "could not determine a constructor"),
        ("a.yaml", b"1: 2", "has one object"),
        ("a.txt", b"model: x", r"an agent file ends in \.json, \.toml, \.yaml, \.yml"),
        ("a.json", b" " * (1024 * 1024 + 1), "at most 1,048,576 bytes"),
    ],
)
def test_a_file_that_cannot_be_read(name: str, body: bytes, why: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(body)
    with pytest.raises(DefinitionError, match=why) as caught:
        load_agent(tmp_path / name)
    assert str(tmp_path / name) in caught.value.message
    with pytest.raises(DefinitionError, match="cannot be read: No such file"):
        load_agent(tmp_path / "none.json")


def test_without_a_reader_of_yaml(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.yaml").write_text(YAML)
    monkeypatch.setitem(sys.modules, "yaml", None)
    with pytest.raises(MissingExtraError, match=r"the extra 'yaml'[\s\S]*\[yaml\]'; or write it as JSON or TOML"):
        load_agent(tmp_path / "a.yaml", tools=[refund])


FITS: list[tuple[Mapping[str, Any], Any, Any]] = [
    ({"type": "string", "minLength": 2}, "ab", "a"),
    ({"type": "integer", "maximum": 3}, 3, 4),
    ({"type": "number", "exclusiveMinimum": 0}, 0.5, 0),
    ({"type": "boolean"}, True, "maybe"),
    ({"const": 7}, 7, 8),
    ({"enum": ["a", None]}, None, "b"),
    ({"type": "array", "items": {"type": "integer"}, "maxItems": 2}, [1, 2], [1, 2, 3]),
    ({"type": ["string", "integer"], "maximum": 5}, "long", 6),
    (RESOLUTION, {"action": "none", "order-id": "o-1", "amount": None}, {"action": "none", "order-id": "1"}),
    (RESOLUTION, {"action": "none", "order-id": "o-1"}, {"action": "none", "order-id": "o-1", "more": 1}),
]


@pytest.mark.parametrize(("schema", "fits", "does_not"), FITS)
def test_a_type_holds_values_to_its_schema(schema: Mapping[str, Any], fits: Any, does_not: Any) -> None:
    made: TypeAdapter[Any] = TypeAdapter(build_type_from_schema(schema, "output"))
    assert made.validate_python(fits) == fits
    with pytest.raises(ValidationError):
        made.validate_python(does_not)


def test_what_the_model_sees_is_the_schema_again() -> None:
    seen = TypeAdapter(build_type_from_schema(RESOLUTION, "output")).json_schema()
    assert seen["properties"]["action"] == {
        "description": "What was done",
        "enum": ["refund", "none"],
        "title": "Action",
        "type": "string",
    }
    assert seen["required"] == ["action", "order-id"]
    assert seen["additionalProperties"] is False


def test_a_schema_that_goes_too_deep() -> None:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(30):
        schema = {"type": "array", "items": schema}
    with pytest.raises(DefinitionError, match="more than 20 levels deep"):
        build_type_from_schema(schema, "output")


def test_what_is_no_regular_file_is_not_waited_for(tmp_path: Path) -> None:
    """A pipe, for instance: reading it waits for a writer."""
    os.mkfifo(tmp_path / "a.json")
    (tmp_path / "b.json").symlink_to("/dev/zero")
    for name in ("a.json", "b.json"):
        with pytest.raises(DefinitionError, match=f"{name} is not a regular file"):
            load_agent(tmp_path / name)


BILLION = [f"  {name}: &{name} [{', '.join([f'*{before}'] * 9)}]" for before, name in pairwise("abcdefghi")]


@pytest.mark.parametrize("lines", [["  a: &a [1, 2]", *BILLION], ["  end: *self"]], ids=["a billion", "itself"])
def test_a_few_lines_of_yaml_that_stand_for_more_than_fits_in_memory(lines: list[str], tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("\n".join(["model: openai:gpt-5", "settings: &self", *lines]))
    with pytest.raises(DefinitionError, match="an agent file has at most 100,000 values"):
        load_agent(tmp_path / "a.yaml")
