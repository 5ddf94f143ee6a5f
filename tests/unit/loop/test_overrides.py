"""Overrides of run, turn and steps put together."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.loop.requests import merge_overrides
from perdure.loop.turns import get_effective_overrides, keep_overrides
from perdure.types.interface import LastingOverrides
from perdure.types.state import RunState, TurnState

CASES: list[tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = [
    ({}, {}, {}),
    ({"model": ["a:1"]}, {}, {"model": ["a:1"]}),
    ({"model": ["a:1"]}, {"model": ["b:2"]}, {"model": ["b:2"]}),
    ({"settings": {"seed": 1, "top_p": 1}}, {"settings": {"seed": None}}, {"settings": {"seed": None, "top_p": 1}}),
    ({"add_tools": ["a"]}, {"add_tools": ["b", "a"]}, {"add_tools": ["a", "b"]}),
    ({"add_tools": ["a", "b"]}, {"remove_tools": ["a"]}, {"add_tools": ["b"], "remove_tools": ["a"]}),
    ({"remove_tools": ["a"]}, {"add_tools": ["a"]}, {"add_tools": ["a"]}),
    ({"add_tools": ["a"]}, {"remove_tools": ["a"]}, {"remove_tools": ["a"]}),
    (
        {"limits": {"tokens": 5, "turn": {"tokens": 3}}},
        {"limits": {"cost_usd": 1.0}},
        {"limits": {"tokens": 5, "cost_usd": 1.0, "turn": {"tokens": 3}}},
    ),
]


@pytest.mark.parametrize(("first", "then", "both"), CASES)
def test_what_comes_later_counts_more(first: dict[str, Any], then: dict[str, Any], both: dict[str, Any]) -> None:
    assert merge_overrides(first, then) == both


@given(steps=st.lists(st.tuples(st.sampled_from(["add", "remove"]), st.sampled_from("abcd")), max_size=12))
def test_a_tool_is_offered_or_not_as_the_last_step_said(steps: list[tuple[str, str]]) -> None:
    whole: dict[str, Any] = {}
    for what, name in steps:
        whole = merge_overrides(whole, {f"{what}_tools": [name]})
    last = {name: what for what, name in steps}
    assert set(whole.get("add_tools", ())) == {name for name, what in last.items() if what == "add"}
    assert set(whole.get("remove_tools", ())) == {name for name, what in last.items() if what == "remove"}


def state(run: dict[str, Any] | None = None, turn: dict[str, Any] | None = None) -> RunState:
    return RunState(context_id="c", agent="a", scope="s", overrides=run, turn=TurnState(task_id="t", overrides=turn))


def test_what_a_step_keeps_for_the_turn_ends_with_it() -> None:
    one = state({"model": ["a:1"]})
    keep_overrides(one, LastingOverrides(turn={"model": ["b:2"]}))
    assert get_effective_overrides(one) == {"model": ["b:2"]}
    one.turn = TurnState(task_id="next")
    assert get_effective_overrides(one) == {"model": ["a:1"]}


def test_what_a_step_keeps_for_the_run_counts_more_than_what_the_turn_was_given() -> None:
    one = state(turn={"model": ["b:2"], "instructions": "Be brief."})
    keep_overrides(one, LastingOverrides(run={"model": ["c:3"]}))
    assert get_effective_overrides(one) == {"model": ["c:3"], "instructions": "Be brief."}
    one.turn = TurnState(task_id="next")
    assert get_effective_overrides(one) == {"model": ["c:3"]}


def test_nothing_changed_is_nothing() -> None:
    assert get_effective_overrides(state()) is None
