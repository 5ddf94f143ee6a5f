"""Tool calls in all the shapes in which servers stream them."""

from __future__ import annotations

import json
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.providers.encoding import parse_arguments
from perdure.providers.tool_call_stream import ToolCallSlots
from perdure.types.messages import ToolCallPart


def piece(index: Any = None, id: Any = None, name: Any = None, arguments: Any = None) -> dict[str, Any]:
    entry: dict[str, Any] = {"function": {}}
    for where, key, value in (
        (entry, "index", index),
        (entry, "id", id),
        (entry["function"], "name", name),
        (entry["function"], "arguments", arguments),
    ):
        if value is not None:
            where[key] = value
    return entry


def assemble(*pieces: dict[str, Any]) -> list[tuple[str, str, Any]]:
    slots = ToolCallSlots()
    for one in pieces:
        slots.begin_chunk()
        slots.add(one)
    return [(part.id, part.name, part.malformed or part.arguments) for part in slots.build_parts()]


CASES: dict[str, tuple[list[dict[str, Any]], list[tuple[str, str, Any]]]] = {
    "as OpenAI sends it": (
        [piece(0, "a", "f", ""), piece(0, arguments='{"x"'), piece(0, arguments=": 1}"), piece(1, "b", "g", "{}")],
        [("a", "f", {"x": 1}), ("b", "g", {})],
    ),
    "pieces of two calls interleaved": (
        [
            piece(0, "a", "f", ""),
            piece(1, "b", "f", ""),
            piece(0, arguments='{"x": 1}'),
            piece(1, arguments='{"x": 2}'),
        ],
        [("a", "f", {"x": 1}), ("b", "f", {"x": 2})],
    ),
    "no index, ids, whole calls": (
        [piece(None, "a", "f", '{"x": 1}'), piece(None, "b", "f", '{"x": 2}')],
        [("a", "f", {"x": 1}), ("b", "f", {"x": 2})],
    ),
    "no index, no id, whole calls": (
        [piece(None, None, "f", '{"x": 1}'), piece(None, None, "f", '{"x": 2}'), piece(None, None, "g", "{}")],
        [("", "f", {"x": 1}), ("", "f", {"x": 2}), ("", "g", {})],
    ),
    "no index, pieces follow": (
        [piece(None, "a", "f"), piece(arguments='{"x"'), piece(arguments=": 1}"), piece(None, "b", "g", "{}")],
        [("a", "f", {"x": 1}), ("b", "g", {})],
    ),
    "the id is repeated without an index": (
        [piece(None, "a", "f", '{"x"'), piece(None, "b", "g", ""), piece(None, "a", None, ": 1}")],
        # A call that is not complete is not followed by another in any format known: the name is taken as repeated.
        [("a", "f", {"x": 1})],
    ),
    "the name is repeated with every piece": (
        [piece(0, "a", "f", ""), piece(0, "a", "f", '{"x"'), piece(0, None, "f", ": 1}")],
        [("a", "f", {"x": 1})],
    ),
    "a new id with every piece": (
        [piece(0, "a", "f", '{"x"'), piece(0, "b", None, ": "), piece(0, "c", None, "1}")],
        [("a", "f", {"x": 1})],
    ),
    "every call has the index 0": (
        [piece(0, "a", "f", '{"x": 1}'), piece(0, "b", "g", '{"x": 2}')],
        [("a", "f", {"x": 1}), ("b", "g", {"x": 2})],
    ),
    "every call has the index 0, arguments come later": (
        [piece(0, "a", "f", ""), piece(0, arguments="{}"), piece(0, "b", "f", ""), piece(0, arguments='{"x": 2}')],
        [("a", "f", {}), ("b", "f", {"x": 2})],
    ),
    "the name comes in pieces": (
        [piece(0, "a", "get_"), piece(0, None, "time"), piece(0, None, None, "{}")],
        [("a", "get_time", {})],
    ),
    "arguments as an object": ([piece(0, "a", "f", {"x": {"y": [1]}})], [("a", "f", {"x": {"y": [1]}})]),
    "no arguments": ([piece(0, "a", "f")], [("a", "f", {})]),
    "flat, without function": ([{"id": "a", "name": "f", "arguments": '{"x": 1}'}], [("a", "f", {"x": 1})]),
    "indices from 1 and with gaps": (
        [piece(1, "a", "f", "{}"), piece(7, "b", "g", "{}")],
        [("a", "f", {}), ("b", "g", {})],
    ),
    "cut arguments": ([piece(0, "a", "f", '{"x": "')], [("a", "f", '{"x": "')]),
    "a list": ([piece(0, "a", "f", "[1]")], [("a", "f", "[1]")]),
    "null": ([piece(0, "a", "f", "null")], [("a", "f", {})]),
    "not a number": ([piece(0, "a", "f", '{"x": NaN}')], [("a", "f", '{"x": NaN}')]),
    "too deep": ([piece(0, "a", "f", "[" * 99999)], [("a", "f", "[" * 99999)]),
    "a lone surrogate": ([piece(0, "a", "f", r'{"x": "\ud800"}')], [("a", "f", r'{"x": "\ud800"}')]),
    "a lone surrogate, malformed": ([piece(0, "a", "f", "x\udfff")], [("a", "f", "x�")]),
    "nothing at all": ([{}], []),
}


@pytest.mark.parametrize("case", CASES)
def test_calls(case: str) -> None:
    pieces, expected = CASES[case]
    assert assemble(*pieces) == expected


def test_malformed_arguments_are_kept_raw() -> None:
    slots = ToolCallSlots()
    slots.add(piece(0, "a", "f", "x = 1"))
    assert slots.build_parts() == [ToolCallPart(id="a", name="f", arguments={}, malformed="x = 1")]


text = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=5)  # NUL becomes U+FFFD
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | text,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(text, inner, max_size=2),
    max_leaves=5,
)
arguments = st.dictionaries(text, json_values, max_size=3)


@given(
    calls=st.lists(st.tuples(st.sampled_from("fg"), arguments), min_size=1, max_size=3),
    size=st.integers(1, 20),
    ids=st.booleans(),
    repeat=st.booleans(),
    order=st.randoms(use_true_random=False),
)
def test_whatever_the_pieces_the_calls_come_out_whole(
    calls: list[tuple[str, dict[str, Any]]], size: int, ids: bool, repeat: bool, order: Random
) -> None:
    """With an index; pieces of different calls in any order, those of one call in theirs."""
    queues = []
    for index, (name, value) in enumerate(calls):
        text = json.dumps(value)
        call_id = f"c{index}" if ids else None
        parts = [text[at : at + size] for at in range(0, len(text), size)]
        queues.append([piece(index, call_id, name, "")])
        queues[-1] += [piece(index, call_id, name if repeat else None, part) for part in parts]
    turns = [index for index, queue in enumerate(queues) for _ in queue]
    order.shuffle(turns)
    slots = ToolCallSlots()
    for turn in turns:
        slots.add(queues[turn].pop(0))
    expected = sorted((name, json.dumps(value, sort_keys=True)) for name, value in calls)
    assert sorted((p.name, json.dumps(p.arguments, sort_keys=True)) for p in slots.build_parts()) == expected
    assert all(part.malformed is None for part in slots.build_parts())


@given(st.text())
def test_any_text_is_an_object_or_malformed(text: str) -> None:
    parsed = parse_arguments(text)
    assert parsed is None or isinstance(parsed, dict)
