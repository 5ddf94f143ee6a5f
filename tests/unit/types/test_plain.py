"""What passes the gate can be written and read by everything that a value goes through, and nothing else passes."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError
from temporalio.converter import DataConverter

from perdure.loop.lifecycle import build_continuation_input, read_continued_state
from perdure.providers.encoding import encode_json, parse_arguments
from perdure.types.interface import Response, parse_output
from perdure.types.messages import Message, ToolCallPart, encode_canonical, parse_messages
from perdure.types.plain_json import MAX_LEVELS, Json, find_json_flaw, parse_json, to_plain_json
from perdure.types.state import RunState, ToolCallState
from perdure.types.tool_calls import ActivityCall, Call
from perdure.types.wire import ModelInput, ModelOutput


def nested(levels: int, leaf: Any = 1) -> Any:
    for level in range(levels):
        leaf = [leaf] if level % 2 else {"ж": leaf}
    return leaf


def shared(levels: int) -> Any:
    value: Any = []
    for _ in range(levels):
        value = [value, value]
    return value


NOT_PLAIN: dict[str, tuple[Any, str]] = {
    "infinity": ({"a": [float("inf")]}, "not finite: inf"),
    "nan": (float("nan"), "not finite: nan"),
    "large-integer": ([10**400], "beyond the range of a double"),
    "larger-integer": ([-(10**5000)], "beyond the range of a double"),
    "surrogate": ({"a": {"b": "x\ud800"}}, "lone surrogate"),
    "surrogate-key": ([{"\udc00": 1}], "lone surrogate"),
    "deep": (nested(MAX_LEVELS + 1), "nested deeper than 150 levels"),
    "deep-6000": (nested(6_000), "nested deeper"),
    "deep-100000": (nested(100_000), "nested deeper"),
    "large": ({"a": "x" * 5_000_000}, "larger than"),
    "number-key": ({1: 2}, "a key in it is not text but int"),
    "set": ({"a": ({1, 2},)}, "type set"),
    "bytes": (b"x", "type bytes"),
}


@pytest.mark.parametrize(("value", "why"), NOT_PLAIN.values(), ids=NOT_PLAIN)
def test_what_is_not_plain_json_is_named(value: Any, why: str) -> None:
    assert why in (find_json_flaw(value) or "")
    with pytest.raises(ValidationError) as refused:
        TypeAdapter(Json).validate_python(value)
    assert refused.value.errors(include_input=False)[0]["type"] == "plain_json"


def test_a_value_that_holds_itself_again_and_again_is_walked_through_to_a_bound() -> None:
    assert "larger than" in (find_json_flaw(shared(MAX_LEVELS - 1), largest=64 * 1024) or "")
    assert find_json_flaw(shared(8)) is None


@pytest.mark.parametrize(
    "text",
    [
        "1e999",
        "-1e999",
        "NaN",
        "[Infinity]",
        '"\\ud800"',
        '{"\\udfff": 1}',
        "[" * 151 + "]" * 151,
        "9" * 400,
        "9" * 5000,
    ],
)
def test_a_text_that_is_not_plain_json_is_no_value_and_no_arguments(text: str) -> None:
    with pytest.raises(ValueError, match=r"nested|finite|surrogate|double|not JSON|4300 digits"):
        parse_json(text)
    assert parse_output(text) == text
    assert parse_arguments(f'{{"a": [{text}]}}') is None


def test_values_of_python_become_plain_or_say_why_not() -> None:
    assert to_plain_json({"a": (1, 2)}) == {"a": [1, 2]}
    for value in (nested(6_000), {"a": "\ud800"}, {"a": float("nan")}, object()):
        with pytest.raises(ValueError, match=r"nested|surrogate|finite|serialize"):
            to_plain_json(value)


texts = st.text(st.characters(codec=None, exclude_characters="\0"), max_size=8)  # NUL is replaced, not refused
leaves = (
    st.none() | st.booleans() | st.integers() | st.floats() | texts | st.integers(1000, 1100).map(lambda n: -(2**n))
)
values = st.recursive(leaves, lambda below: st.lists(below, max_size=4) | st.dictionaries(texts, below, max_size=4))
anything = st.builds(
    lambda value, levels: nested(levels, value), values, st.sampled_from([0, 0, 0, 140, 148, 149, 150, 190, 250])
)


@given(anything)
def test_what_passes_comes_back_unchanged_from_every_reader(value: Any) -> None:
    if find_json_flaw(value) is not None:
        return
    given = {"a": value} if find_json_flaw({"a": value}) is None else {"a": 1}
    (payload,) = DataConverter.default.payload_converter.to_payloads([given])
    assert DataConverter.default.payload_converter.from_payloads([payload]) == [given]
    assert parse_json(json.dumps(value)) == value
    assert parse_output(json.dumps(value, ensure_ascii=False)) == value
    assert parse_arguments(encode_json(given).decode()) == given

    part = ToolCallPart(id="c1", name="pay", arguments=given, provider="openai", opaque=given)
    body = encode_canonical([Message.assistant("Hi", part)])
    assert parse_messages(body)[0].tool_calls == (part,)
    assert encode_canonical(parse_messages(body)) == body

    call = Call(id="c1", name="pay", arguments=given, disposition=ActivityCall(timeout=1))
    output = ModelOutput(calls=(call,))
    assert ModelOutput.model_validate_json(output.model_dump_json(exclude_none=True)) == output
    response = Response(output=value)
    assert Response.model_validate_json(response.model_dump_json()) == response

    state = RunState(context_id="c", agent="a", scope="s", context=given, calls=[ToolCallState(call=call, op=1)])
    (payload,) = DataConverter.default.payload_converter.to_payloads([build_continuation_input(state, "run-1")])
    (carried,) = DataConverter.default.payload_converter.from_payloads([payload])
    assert read_continued_state(carried, "c") == state
    facts = {"agent": "a", "context_id": "c", "task_id": "t", "scope": "s", "op": 1, "iteration": 0}
    task = ModelInput(**facts, context=given, overrides={"settings": given})
    assert ModelInput.model_validate_json(task.model_dump_json()) == task
