"""Arguments as the model sends them: how they are read, and what it is told of wrong ones."""

from __future__ import annotations

import functools
import json
from datetime import date, datetime
from enum import Enum
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, TypeAdapter, field_validator

from perdure.errors import ToolError
from perdure.tools import ArgumentsError, Tool, as_tool, tool


class Kind(Enum):
    A = "a"


class StrictItem(BaseModel):
    model_config = ConfigDict(strict=True)
    when: datetime
    kind: Kind
    pair: tuple[int, int]


class Picky(BaseModel):
    x: int

    @field_validator("x")
    @classmethod
    def _check(cls, x: int) -> int:
        return {1: 1}[x]  # a bug of the author's


@tool
def order(
    number: int,
    items: list[StrictItem] | None = None,
    mode: Literal["fast", "slow"] = "fast",
    picky: Picky | None = None,
    note: str = "",
) -> None: ...


GOOD = {"when": "2024-01-01T00:00:00Z", "kind": "a", "pair": [1, 2]}


def test_arguments_are_read_as_json() -> None:
    values = order.validate({"number": "7", "items": [GOOD], "note": "lone \ud800"})
    assert values["number"] == 7
    assert values["items"][0].kind is Kind.A
    assert values["items"][0].pair == (1, 2)
    assert values["note"] == "lone �"
    assert order.validate({"number": 1}) == {
        "number": 1,
        "items": None,
        "mode": "fast",
        "picky": None,
        "note": "",
    }


@pytest.mark.parametrize(
    ("arguments", "lines"),
    [
        ({}, ["- number: missing, and it has no default"]),
        (
            {"number": "three"},
            ['- number: Input should be a valid integer, unable to parse string as an integer; given: "three"'],
        ),
        (
            {"number": 1, "numbre": 2},
            ["- numbre: there is no such argument; the arguments are: number, items, mode, picky, note"],
        ),
        ({"number": 1, "mode": "warp"}, ["- mode: Input should be 'fast' or 'slow'; given: \"warp\""]),
        (
            {"number": 1, "items": [GOOD, GOOD | {"kind": "b", "pair": [1]}]},
            [
                "- items[1].kind: Input should be 'a'; given: \"b\"",
                "- items[1].pair[1]: missing, and it has no default",
            ],
        ),
        ([1], ["- arguments: Input should be an object; given: [1]"]),
    ],
)
def test_wrong_arguments(arguments: Any, lines: list[str]) -> None:
    with pytest.raises(ArgumentsError) as caught:
        order.validate(arguments)
    assert str(caught.value).split("\n") == ["the arguments of order are not valid:", *lines]
    assert isinstance(caught.value, ToolError)


def test_wrong_arguments_stay_short() -> None:
    with pytest.raises(ArgumentsError) as caught:
        order.validate({"number": "x" * 100_000, "items": [{}] * 100})
    text = str(caught.value)
    assert len(text) < 2_000
    assert text.endswith("- and 291 more")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"number": 1, "picky": {"x": 2}}, "KeyError: 2"),
        ({"number": object()}, "not JSON serializable"),
        (
            {"number": functools.reduce(lambda inner, _: [inner], range(100_000), [])},
            "could not be read|valid",
        ),
    ],
    ids=["validator fails", "no JSON", "too deep"],
)
def test_arguments_that_cannot_be_read(arguments: Any, message: str) -> None:
    with pytest.raises(ArgumentsError, match=message):
        order.validate(arguments)


VALUES: dict[Any, st.SearchStrategy[Any]] = {
    bool: st.booleans(),
    int: st.integers(),
    float: st.floats(allow_nan=False, allow_infinity=False),
    str: st.text(),
    date: st.dates(),
    list[int]: st.lists(st.integers()),
    dict[str, float]: st.dictionaries(st.text(), st.floats(allow_nan=False, allow_infinity=False)),
    int | None: st.none() | st.integers(),
}


def _returning(hint: Any) -> Tool:
    def probe(value):  # type: ignore[no-untyped-def]
        return value

    probe.__annotations__["value"] = hint
    return as_tool(probe)


PROBES = {hint: _returning(hint) for hint in VALUES}


@given(st.sampled_from(list(VALUES)).flatmap(lambda hint: st.tuples(st.just(hint), VALUES[hint])))
def test_what_a_model_sends_arrives(case: tuple[Any, Any]) -> None:
    hint, value = case
    sent = json.loads(json.dumps({"value": TypeAdapter(hint).dump_python(value, mode="json")}))
    assert PROBES[hint].bind(sent)() == value
