"""Whether an answer fits its form."""

from __future__ import annotations

import json
import math
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.types.forms import find_form_mismatch, normalize_form
from perdure.types.tool_calls import FORM_BYTES

PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string", "minLength": 2}, "age": {"type": "integer", "minimum": 0}},
    "required": ["name"],
    "additionalProperties": False,
}
TREE = {
    "$defs": {
        "Node": {"type": "object", "properties": {"next": {"anyOf": [{"$ref": "#/$defs/Node"}, {"type": "null"}]}}}
    },
    "$ref": "#/$defs/Node",
}


@pytest.mark.parametrize(
    ("form", "value", "why"),
    [
        (True, 1, None),
        ({}, {"a": [None]}, None),
        (False, 1, "nothing is expected"),
        ({"type": "string"}, "x", None),
        ({"type": "string"}, 1, "1 is no string"),
        ({"type": ["string", "null"]}, None, None),
        ({"type": ["string", "null"]}, 1, "no string or null"),
        ({"type": "integer"}, 3.0, None),
        ({"type": "integer"}, 3.5, "no integer"),
        ({"type": "integer"}, True, "no integer"),
        ({"type": "number"}, True, "no number"),
        ({"type": "boolean"}, 0, "no boolean"),
        ({"type": "strange"}, 0, None),
        ({"const": 1}, True, "is not 1"),
        ({"enum": ["a", "b"]}, "c", 'none of "a", "b"'),
        ({"enum": [1]}, 1.0, None),
        ({"minimum": 2, "exclusiveMaximum": 4}, 1, "is less than 2"),
        ({"minimum": 2, "exclusiveMaximum": 4}, 4, "is not less than 4"),
        ({"maxLength": 2}, "abc", "more than 2 characters"),
        ({"minItems": 1}, [], "fewer than 1 items"),
        ({"items": {"type": "integer"}}, [1, "x"], '[1]: "x" is no integer'),
        ({"prefixItems": [{"type": "string"}], "items": False}, ["a", 1], "[1]: nothing is expected"),
        (PERSON, {"name": "ana", "age": 3}, None),
        (PERSON, {"age": 3}, "name: it is missing"),
        (PERSON, {"name": "a"}, 'name: "a" has fewer than 2 characters'),
        (PERSON, {"name": "ana", "size": 3}, "size: there is no such field; there is: name, age"),
        ({"additionalProperties": {"type": "integer"}}, {"a": "x"}, 'a: "x" is no integer'),
        ({"anyOf": [{"type": "string"}, {"type": "integer"}]}, 1, None),
        ({"oneOf": [{"type": "string"}, {"type": "integer"}]}, [], "none of the 2 ways"),
        ({"allOf": [{"type": "string"}, {"minLength": 2}]}, "x", "fewer than 2"),
        (TREE, {"next": {"next": None}}, None),
        (TREE, {"next": {"next": 1}}, "fits none of the 2 ways"),
        ({"$ref": "#/nowhere"}, 1, None),
        ({"$ref": "https://example.com/schema"}, 1, None),
    ],
)
def test_what_fits_and_what_does_not(form: Any, value: Any, why: str | None) -> None:
    found = find_form_mismatch(form, value)
    assert (found is None) == (why is None), found
    if why is not None:
        assert why in str(found)


def test_a_form_that_is_made_to_take_long_does_not() -> None:
    endless = {"$ref": "#"}
    assert find_form_mismatch(endless, 1) is None
    wide = {"anyOf": [{"$ref": "#"}, {"$ref": "#"}, {"$ref": "#"}], "items": {"$ref": "#"}}
    assert find_form_mismatch(wide, [[1, 2], [3]]) is None


@pytest.mark.parametrize(
    ("form", "value"),
    [
        ({"items": {"enum": [[i] for i in range(2000)]}}, [[1999]] * 9000),
        ({"items": {"anyOf": [{"enum": list(range(3000))}, {"type": "string"}]}}, ["x"] * 4000),
    ],
)
def test_options_are_written_once_for_all_values(form: Any, value: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The workflow asks this: a minute of it would be the end of the run."""
    written = 0

    def counted(*args: Any, **more: Any) -> str:
        nonlocal written
        written += 1
        return json.dumps(*args, **more)

    monkeypatch.setattr("perdure.types.forms.json", SimpleNamespace(dumps=counted))
    assert find_form_mismatch(form, value) is None
    assert written <= 10_000


@pytest.mark.parametrize("value", [math.inf, math.nan])
def test_what_is_no_number_of_json_is_no_integer(value: float) -> None:
    assert "is no integer" in str(find_form_mismatch({"type": "integer"}, value))


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=4),
        max_leaves=10,
    ),
    st.sampled_from([PERSON, TREE, {"enum": [[], {}]}, {"type": "integer", "minimum": 0}]),
)
def test_any_value_can_be_asked_about(value: Any, form: Any) -> None:
    assert find_form_mismatch(form, value) == find_form_mismatch(form, value)


@pytest.mark.parametrize(
    ("schema", "why"),
    [
        ({"x": object()}, "plain JSON"),
        ({"x": math.nan}, "JSON compliant"),
        ({"x": "y" * FORM_BYTES}, "may have 16,384"),
    ],
)
def test_a_form_is_plain_json_of_some_size(schema: Any, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        normalize_form(schema)
