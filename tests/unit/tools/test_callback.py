"""Callback tools: what is wrong with one is said where it is defined."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import BaseModel

from perdure import callback_tool
from perdure.errors import DefinitionError, ToolError
from perdure.tools import ArgumentsError
from perdure.types.tool_calls import CallbackCall


class Place(BaseModel):
    """Where."""

    path: str
    line: int = 1


def test_parameters_are_a_type_or_a_schema_or_none() -> None:
    typed = callback_tool("show", "Show.", Place, output=str)
    loose = callback_tool("show", "Show.", {"properties": {"path": {"type": "string"}}, "required": ["path"]})
    assert set(typed.parameters["properties"]) == {"path", "line"}
    assert (loose.parameters["type"], callback_tool("read", "Read.").parameters["properties"]) == ("object", {})
    assert (typed.form, loose.form) == ({"type": "string"}, None)
    assert typed.build_disposition({"path": "/"}) == CallbackCall(form={"type": "string"})
    for one in (typed, loose):
        with pytest.raises(ArgumentsError, match="the arguments of show are not valid"):
            one.build_disposition({"path": 1})


def test_terms_are_part_of_the_call_and_not_of_the_definition() -> None:
    one = callback_tool("read", "Read.", expires="1h", on_expiry="Nobody reads.")
    assert one.build_disposition({}) == CallbackCall(expires=3600, on_expiry="Nobody reads.")
    assert one.definition == callback_tool("read", "Read.").definition
    assert one.definition != callback_tool("read", "Read.", output=int).definition


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ({"name": "a b"}, "the name 'a b' does not match"),
        ({"name": 3}, "the name 3 does not match"),
        ({"name": None}, "needs a name"),
        ({"parameters": 3}, "not a type that pydantic can take"),
        ({"parameters": str}, "are not an object"),
        ({"parameters": {"type": "string"}}, "are not an object"),
        ({"parameters": {"properties": {"x": object()}}}, "have no JSON Schema"),
        ({"output": object()}, "not a type that pydantic can take"),
        ({"output": {"x": "y" * 20_000}}, "may have 16,384"),
        ({"expires": "soon"}, "expires: 'soon' is not a duration"),
        ({"on_expiry": "x" * 2001}, "on_expiry is a text of at most 2,000"),
        ({"needs_approval": 3}, "needs_approval=3"),
    ],
)
def test_what_is_wrong_is_said_where_it_is_defined(arguments: dict[str, Any], match: str) -> None:
    with pytest.raises(DefinitionError, match=match):
        callback_tool(**{"name": "read", "description": "Read.", **arguments})


def test_nothing_here_runs_it() -> None:
    one = callback_tool("read", "Read.")
    with pytest.raises(TypeError, match="is run by a client"):
        one()
    with pytest.raises(ToolError, match="now run by a client"):
        one.bind({})
