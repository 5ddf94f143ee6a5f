"""Tools of toolsets: what a run pins of them, and what they are to the engine."""

from __future__ import annotations

from typing import Any

import pytest

from perdure import Toolset, callback_tool, hook, tool
from perdure.errors import DefinitionError
from perdure.ports.model import ToolSpec
from perdure.ports.toolset import ListedTool
from perdure.tools.tool import ToolsetTool, pin_tool, sanitise_tool_name
from perdure.types.tool_calls import PinnedTool, decode_pinned_tools, encode_pinned_tools

SCHEMA = {"type": "object", "properties": {"b": {}, "a": {}}}


class Some(Toolset):
    name = "some"
    prefix = "s_"
    timeout = 30.0


@tool(idempotent=True, inline=True, retries=2, timeout=5)
def look(what: str) -> str:
    """Look."""
    return what


@hook("before_tool_call")
def watch() -> None: ...


@pytest.mark.parametrize(
    ("listed", "expected"),
    [
        (ToolSpec("read", "Read.", SCHEMA), {"idempotent": False, "inline": False, "timeout": 30.0}),
        (ListedTool("read", "Read.", SCHEMA, idempotent=True, timeout=3.0), {"idempotent": True, "timeout": 3.0}),
        (look, {"idempotent": True, "inline": True, "retries": 2, "timeout": 5.0}),
    ],
)
def test_what_is_pinned(listed: Any, expected: dict[str, Any]) -> None:
    found = pin_tool(Some(), listed)
    assert (found.toolset, found.tool, found.name) == ("some", listed.name, f"s_{listed.name}")
    assert {name: getattr(found, name) for name in expected} == expected
    assert decode_pinned_tools(encode_pinned_tools([found])) == (found,)


def test_a_list_keeps_the_order_of_schemas_and_is_the_same_bytes_for_the_same_tools() -> None:
    one = pin_tool(Some(), ToolSpec("read", "Read.", SCHEMA))
    (again,) = decode_pinned_tools(encode_pinned_tools([one]))
    assert list(again.parameters["properties"]) == ["b", "a"]
    assert encode_pinned_tools([again]) == encode_pinned_tools([one])
    assert b"null" not in encode_pinned_tools([one]), "what is not used takes no room"


@pytest.mark.parametrize(
    ("change", "same"),
    [
        ({"timeout": 1.0}, True),
        ({"parameters": {"properties": {"a": {}, "b": {}}, "type": "object"}}, True),
        ({"description": "Write."}, False),
        ({"parameters": {"type": "object", "properties": {"a": {}}}}, False),
        ({"idempotent": True}, False),
        ({"toolset": "other"}, False),
    ],
)
def test_a_definition_is_what_the_model_sees_and_how_a_call_acts(change: dict[str, Any], same: bool) -> None:
    one = pin_tool(Some(), ToolSpec("read", "Read.", SCHEMA))
    assert (one.model_copy(update=change).definition == one.definition) is same


@pytest.mark.parametrize(
    ("listed", "says"),
    [
        ("read", "lists 'read'"),
        (ToolSpec("", "Nothing.", {}), "lists a tool without a name"),
        (tool(look.fn, hooks=[watch]), "which has hooks"),
        (callback_tool("show", "Show."), "which no worker can run.*\n.*Agent\\(tools="),
        (tool(look.fn, needs_approval=True), "which has needs_approval.*\n.*ask\\('s_look'\\)"),
    ],
)
def test_what_a_toolset_may_not_list(listed: Any, says: str) -> None:
    with pytest.raises(DefinitionError, match=says):
        pin_tool(Some(), listed)


def test_names_that_models_cannot_call_are_changed() -> None:
    assert sanitise_tool_name("git.hub/issues list") == "git_hub_issues_list"
    assert len(sanitise_tool_name("x" * 200)) == 64


async def test_a_call_goes_to_the_toolset_under_its_own_name() -> None:
    asked: list[tuple[Any, ...]] = []

    async def call(*given: Any) -> str:
        asked.append(given)
        return "done"

    found = ToolsetTool(pin_tool(Some(), ToolSpec("read", "Read.", SCHEMA)), call)
    assert await found.bind({"a": 1})() == "done"
    assert asked == [("read", {"a": 1}, None)]
    assert (found.spec.name, found.toolset, found.hooks) == ("s_read", "some", found.hooks)
    with pytest.raises(TypeError, match="run by its toolset"):
        found()
    assert isinstance(found.pinned, PinnedTool)
