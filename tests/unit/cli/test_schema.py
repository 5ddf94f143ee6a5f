"""The JSON Schemas that clients in other languages are given."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from typer.testing import CliRunner

from perdure import Agent
from perdure.cli import app
from perdure.cli.schema import build_agent_schema
from perdure.errors import InvalidInputError

FILE = """
from perdure import Agent
one = Agent("one", "openai:gpt-5-mini")
two = Agent("two", "openai:gpt-5-mini")
"""


def printed(*arguments: str) -> Any:
    result = CliRunner().invoke(app, ["schema", *arguments])
    assert result.exit_code == 0, result.exception
    return json.loads(result.output)


def test_each_part_of_the_interface_has_one() -> None:
    schemas = printed()
    assert list(schemas) == ["start", "message", "status", "turn", "response"]
    for name, schema in schemas.items():
        assert printed(name, "-o", "jsonl") == schema
    assert schemas["start"]["required"] == ["agent"]
    assert schemas["start"]["additionalProperties"] is False
    assert [option.get("type", "$ref") for option in schemas["message"]["anyOf"]] == ["string", "$ref"]
    assert "task_id" in schemas["turn"]["required"]


class User(BaseModel):
    name: str


def search(query: str, most: int = 3) -> str:
    """Look something up."""
    return query


def test_an_agent_has_those_of_its_tools_and_its_context() -> None:
    schema = build_agent_schema(Agent("one", "openai:gpt-5-mini", tools=[search], context=User))
    assert schema["agent"] == "one"
    assert schema["context"]["required"] == ["name"]
    assert schema["tools"]["search"]["description"] == "Look something up."
    assert schema["tools"]["search"]["parameters"]["required"] == ["query"]
    two = Agent("two", ["openai:gpt-5-mini", "openai:gpt-5"])
    models = ["openai:gpt-5-mini", "openai:gpt-5"]
    assert build_agent_schema(two) == {"agent": "two", "models": models, "context": None, "tools": {}}


def test_which_agent_of_a_file(tmp_path: Path) -> None:
    file = tmp_path / "agents_with_schemas.py"
    file.write_text(FILE)
    assert printed("--file", str(file), "--agent", "two")["agent"] == "two"
    result = CliRunner().invoke(app, ["schema", "--file", str(file)])
    assert isinstance(result.exception, InvalidInputError)
    assert "Name one with --agent: one, two" in str(result.exception)


def test_schemas_are_readable_without_the_code() -> None:
    """Fields keep their docstrings: they are all that a client's author has."""
    message = printed("message")["$defs"]["UserMessage"]
    assert "same id counts once" in message["properties"]["id"]["description"]
    assert "Without a message" in printed("start")["properties"]["message"]["description"]
