"""What is checked of the tools that a client declares."""

from __future__ import annotations

from typing import Any

import pytest

from perdure import ClientTool
from perdure.errors import InvalidInputError
from perdure.loop.lifecycle import create_run_state
from perdure.loop.messages import accept_message
from perdure.types.client_tools import (
    CLIENT_TOOLS_BYTES,
    INLINE_CLIENT_TOOLS_BYTES,
    MAX_CLIENT_TOOLS,
    MAX_SCHEMA_LEVELS,
    decode_client_tools,
    encode_client_tools,
    parse_client_tools,
)
from perdure.types.forms import find_form_mismatch
from perdure.types.messages import BlobRef
from perdure.types.state import RunState


def nested(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {}
    for _ in range(levels):
        schema = {"not": schema}
    return schema


@pytest.mark.parametrize(
    ("tools", "said"),
    [
        ({"name": "a"}, "a list of tools is expected, not dict"),
        ("open", "a list of tools is expected, not str"),
        ([None], r"client_tools.0: a tool is a mapping, not NoneType"),
        ([{"description": "x"}], r"client_tools.0.name: Field required"),
        ([{"name": "a", "metadata": {}}], r"client_tools.0.metadata: .*tool 'a'"),
        ([{"name": "a b"}], "tool 'a b': its name does not match"),
        ([{"name": "a" * 100_000}], "its name does not match"),
        ([{"name": "__finish__"}], "names that begin with __ are the engine's own"),
        ([{"name": "a"}, {"name": "a"}], "tool 'a' is declared twice"),
        ([{"name": "a", "parameters": {"type": "string"}}], "tool 'a': its parameters are not the schema of an object"),
        ([{"name": "a", "parameters": {"properties": []}}], "tool 'a': the properties of its parameters"),
        ([{"name": "a", "parameters": {"required": [["b"]]}}], "tool 'a': the required parameters"),
        (
            [{"name": "a", "parameters": {"x": float("nan")}}],
            r"client_tools.0.parameters: must be plain JSON.*tool 'a'",
        ),
        ([{"name": "a", "parameters": nested(MAX_SCHEMA_LEVELS + 1)}], "nested deeper than"),
        ([{"name": "a", "parameters": nested(100_000)}], "nested deeper"),
        ([{"name": f"a{n}"} for n in range(MAX_CLIENT_TOOLS + 1)], "65 tools are declared, and a turn may have 64"),
        ([{"name": "a", "description": "x" * CLIENT_TOOLS_BYTES}], "may have 65,536"),
        ([{"name": "a", "description": "\ud800"}], "tool 'a': .*surrogate"),
    ],
)
def test_what_does_not_fit_is_refused_with_a_reason(tools: Any, said: str) -> None:
    with pytest.raises(InvalidInputError, match=said) as refused:
        parse_client_tools(tools)
    assert len(str(refused.value)) < 700


def test_it_is_sent_as_declared() -> None:
    schema = {"properties": {"b": {"type": "string"}, "a": {}}, "required": ["a"]}
    (tool,) = parse_client_tools([{"name": "a", "parameters": schema}])
    assert list(tool.parameters["properties"]) == ["b", "a"]
    assert tool.parameters["type"] == "object"
    assert decode_client_tools(encode_client_tools([tool])) == (tool,)
    for body in (b"1", b'[{"name": 1}]', b'[{"name": "a b"}]', b"[" * 10_000):
        with pytest.raises(InvalidInputError, match="client_tools"):
            decode_client_tools(body)


def state() -> RunState:
    return create_run_state({"agent": "a", "message": "hi", "mode": "session"}, "run", "scope")


def test_the_last_message_that_declares_tools_counts() -> None:
    run = state()
    ref = BlobRef(hash="0" * 64, size=10)
    accept_message(run, {"content": "a", "client_tools": [{"name": "open"}]})
    accept_message(run, {"content": "b"})
    assert run.turn is not None
    assert run.turn.client_tools == (ClientTool(name="open"),)
    accept_message(run, {"content": "c", "client_tools": ref.model_dump()})
    assert RunState.model_validate(run.model_dump(mode="json")) == run
    assert run.turn.client_tools == ref
    accept_message(run, {"content": "d", "client_tools": []})
    assert run.turn.client_tools is None


@pytest.mark.parametrize(
    ("tools", "said"),
    [
        ([{"name": "a", "description": "x" * INLINE_CLIENT_TOOLS_BYTES}], "perdure's client puts more into the store"),
        ({"hash": "0" * 64, "size": CLIENT_TOOLS_BYTES + 1}, "may have 65,536"),
        ({"hash": "x"}, "client_tools"),
        ([{"name": "a b"}], "its name does not match"),
        (7, "client_tools"),
    ],
)
def test_a_plain_client_is_refused_too(tools: Any, said: str) -> None:
    with pytest.raises(InvalidInputError, match=said):
        accept_message(state(), {"content": "a", "client_tools": tools})


def test_tools_of_another_store_are_refused() -> None:
    run = state()
    run.store_id = "one"
    message = {"content": "a", "client_tools": {"hash": "0" * 64, "size": 1}, "store_id": "two"}
    with pytest.raises(InvalidInputError, match="its client tools are in store two"):
        accept_message(run, message)


def test_a_hostile_schema_does_not_break_the_check_of_arguments() -> None:
    for form in (
        {"required": [["a"]]},
        {"type": [["string"]]},
        {"properties": {"a": {"required": [{}], "type": [{}]}}},
    ):
        assert find_form_mismatch(form, {"a": {}}) is None
