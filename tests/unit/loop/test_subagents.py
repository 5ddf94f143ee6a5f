"""Subagents, purely: what a child may use, what its end counts for."""

from __future__ import annotations

from typing import Any

import pytest

from perdure.loop.apply import apply_result
from perdure.loop.decide import CallModel, RunToolCalls, decide
from perdure.loop.finish import build_response
from perdure.loop.lifecycle import create_run_state, end_turn_at_budget
from perdure.loop.status import build_status
from perdure.loop.subagents import (
    MAX_DEPTH,
    ChildOutcome,
    apply_child_outcome,
    build_child_run_id,
    build_child_start,
    build_usage_details,
    parse_usage_details,
)
from perdure.types.interface import Response
from perdure.types.limits import Bounds
from perdure.types.messages import BlobRef, Usage
from perdure.types.run_ids import CHILD_ID_BYTES, RUN_ID_BYTES, check_run_name, format_child_run_id
from perdure.types.state import RunState
from perdure.types.tool_calls import Call, SubagentCall
from perdure.types.wire import AgentLimits, NewResult
from tests.unit.loop.build import asks, call, child_id, model, open_as_child, opened, says

BUDGET = AgentLimits(run=Bounds(tokens=100, cost_usd=1.0, tool_calls=10, wall_time=60))


def ask(number: int) -> Call:
    return call(f"c{number}", SubagentCall(agent="sub", message=f"task {number}"))


def asking(count: int = 1, *, used: int = 0, limits: AgentLimits = BUDGET, **start: Any) -> RunState:
    """A run whose model has called subagents."""
    state = opened(**start)
    model(state, asks(*map(ask, range(count)), limits=limits, usage=Usage(input_tokens=used)))
    return state


def started(state: RunState, place: int = 0) -> dict[str, Any]:
    start = build_child_start(state, state.calls[place])
    assert isinstance(start, dict), start
    return start


def test_a_child_is_started_as_any_client_would() -> None:
    state = asking(context={"user_id": "7"}, auth_ref="ana")
    start = started(state)
    child = open_as_child(start, build_child_run_id(state, state.calls[0]), "ignored")
    assert child.agent == "sub"
    assert child.context == {"user_id": "7"}
    assert child.auth_ref == "ana"
    assert child.context_id == child_id(1)
    assert child.scope == start["parent"]["scope"] != "ignored"
    assert child.parent is not None
    assert child.parent.depth == 1


def test_the_scope_is_of_the_call_and_of_what_is_asked() -> None:
    first, again, other = asking(2), asking(2), asking(2)
    other.calls[0].call = call("c0", SubagentCall(agent="sub", message="another task"))
    scopes = [started(state)["parent"]["scope"] for state in (first, again, other)]
    assert scopes[0] == scopes[1] != scopes[2]
    assert started(first, 1)["parent"]["scope"] not in scopes


@pytest.mark.parametrize(("count", "tokens", "cost", "calls"), [(1, 60, 1.0, 9), (3, 20, 1 / 3, 2)])
def test_children_share_what_is_left(count: int, tokens: int, cost: float, calls: int) -> None:
    state = asking(count, used=40)
    limits = Bounds.model_validate(started(state)["parent"]["limits"])
    assert limits == Bounds(tokens=tokens, cost_usd=cost, tool_calls=calls, wall_time=60)


def test_without_limits_a_child_has_none() -> None:
    assert "limits" not in started(asking(limits=AgentLimits()))["parent"]


def test_nothing_is_started_when_nothing_is_left() -> None:
    state = asking(used=100)
    refused = build_child_start(state, state.calls[0])
    assert refused == "not run: nothing is left for a subagent, the run has used 100 of 100 tokens (tokens)"


def test_subagents_are_nested_to_a_depth() -> None:
    state = asking()
    for depth in range(1, MAX_DEPTH + 1):
        start = started(state)
        assert start["parent"]["depth"] == depth
        state = asking(parent=start["parent"])
    assert isinstance(build_child_start(state, state.calls[0]), str)


def test_a_child_has_an_id_that_temporal_takes() -> None:
    state = asking()
    state.context_id = "x" * (RUN_ID_BYTES - len("/0123456789ab-1"))
    assert isinstance(build_child_start(state, state.calls[0]), dict)
    state.context_id += "x"
    refused = build_child_start(state, state.calls[0])
    assert refused == "not run: the id of this run is too long for it to have subagents"
    state.context_id = "ж" * 500
    assert isinstance(build_child_start(state, state.calls[0]), str)


def test_the_longest_name_has_room_for_subagents_down_to_the_deepest_level() -> None:
    name = check_run_name("ж" * ((RUN_ID_BYTES - CHILD_ID_BYTES) // 2))
    for _ in range(MAX_DEPTH):
        name = format_child_run_id(name, "scope", 99_999)
    assert len(name.encode()) <= RUN_ID_BYTES


def test_the_id_of_a_child_is_of_its_parents_execution() -> None:
    """The same call of another execution of the same id starts another run; of the same one it is the same."""
    ids = [format_child_run_id("order-7", scope, op) for scope in ("execution-1", "execution-2") for op in (1, 2)]
    assert len({name.rpartition("-")[0] for name in ids}) == 4, "one child's id does not tell the next one's"


def test_a_child_keeps_to_the_smaller_of_both_limits() -> None:
    start = started(asking(used=40))
    child = open_as_child(start, "c", "s")
    model(child, asks(call(), limits=AgentLimits(run=Bounds(tokens=30, cost_usd=5.0)), usage=Usage(input_tokens=1)))
    assert {use.name: use.allowed for use in build_status(child).limits} == {
        "tokens": 30,
        "cost_usd": 1.0,
        "wall_time": 60,
        "tool_calls": 9,
        "max_iterations": 50,
    }


@pytest.mark.parametrize("on_limit", ["finish", "return", "error"])
def test_a_child_that_reaches_its_limit_has_not_exceeded_it(on_limit: Any) -> None:
    """Its siblings reach theirs at the same time: together they would exceed the tree's by a call each."""
    state = opened()
    model(state, asks(*map(ask, range(3)), limits=AgentLimits(run=Bounds(tokens=340)), usage=Usage(input_tokens=40)))
    child = open_as_child(started(state), "c", "s")
    took = 0
    while isinstance(step := decide(child), CallModel):
        took += 15
        asked = asks(call(), limits=AgentLimits(on_limit=on_limit), usage=Usage(input_tokens=15))
        model(child, says("Done.", usage=Usage(input_tokens=15)) if step.limit is not None else asked)
        for pending in list(child.calls):
            apply_result(child, pending.op, NewResult(call_id=pending.call.id, name="look", text="x"))
        end_turn_at_budget(child)
    assert 100 - 2 * 15 < took <= 100
    assert child.usage.total_tokens == took


def test_a_child_that_has_no_room_for_a_call_asks_no_model() -> None:
    state = opened()
    model(state, asks(*map(ask, range(3)), limits=AgentLimits(run=Bounds(tokens=150)), usage=Usage(input_tokens=40)))
    child = open_as_child(started(state), "c", "s")
    end_turn_at_budget(child)
    assert not isinstance(decide(child), CallModel)
    apply_child_outcome(state, state.calls[0], ChildOutcome(build_response(child)), stopping=False)
    result = state.calls[0].result
    assert isinstance(result, NewResult)
    assert result.is_error
    assert result.text == "BudgetExceededError: the subagent ended at its limit, before it had an answer"


def test_what_a_parent_of_a_newer_engine_says_besides_is_let_pass() -> None:
    """In a rolling deploy an older worker may take the child."""
    start = started(asking())
    start["parent"]["of a later version"] = 7
    child = open_as_child(start, "c", "s")
    assert child.parent == open_as_child(started(asking()), "c", "s").parent


def test_what_a_child_used_counts() -> None:
    state = asking(2)
    used = Response(content="Found.", usage=Usage(input_tokens=7, output_tokens=3), cost_usd=0.25, tool_calls=4)
    apply_child_outcome(state, state.calls[0], ChildOutcome(used), stopping=False)
    assert (state.usage.total_tokens, state.cost_usd, state.tool_calls) == (10, 0.25, 2 + 4)
    assert state.calls[0].result == NewResult(call_id="c0", name="look", text="Found.")


def test_a_long_answer_stays_in_the_store() -> None:
    state, blob = asking(2), BlobRef(hash="a" * 64, size=9)
    apply_child_outcome(state, state.calls[0], ChildOutcome(Response(blob=blob)), stopping=False)
    assert state.calls[0].result == NewResult(call_id="c0", name="look", blob=blob)


def test_a_child_that_fails_is_an_error_and_counts() -> None:
    failed, state = asking(), asking(2)
    failed.usage = Usage(input_tokens=9)
    used = parse_usage_details([build_usage_details(failed)])
    apply_child_outcome(state, state.calls[1], ChildOutcome(error="ParseError: no", used=used), stopping=False)
    assert state.calls[1].result == NewResult(call_id="c1", name="look", text="ParseError: no", is_error=True)
    assert state.usage.total_tokens == 9
    assert state.tool_calls == 2 + 1


def test_a_stopped_child_counts_and_its_call_is_for_the_loop_to_close() -> None:
    state = asking()
    ended = ChildOutcome(Response(finish_reason="interrupted", usage=Usage(input_tokens=5)))
    apply_child_outcome(state, state.calls[0], ended, stopping=True)
    assert state.calls[0].result is None
    assert state.usage.total_tokens == 5


def test_answers_of_one_reply_are_bounded() -> None:
    state = asking(50, limits=AgentLimits())
    pendings = list(state.calls)
    for pending in pendings:
        apply_child_outcome(state, pending, ChildOutcome(Response(content="ж" * 16_000)), stopping=False)
    texts = [(str(item.text), item.is_error) for item in state.unsent if isinstance(item, NewResult)]
    assert 0 < sum(len(text) * 6 for text, is_error in texts if not is_error) <= 1024 * 1024
    too_long = f"too long: with the answer of {child_id(50)} those of this reply are: ask fewer at once"
    assert texts[-1] == (too_long, True)


def test_so_many_begin_at_once() -> None:
    step = decide(asking(50, limits=AgentLimits()))
    assert isinstance(step, RunToolCalls)
    assert len(step.calls) == 20


def test_a_run_whose_descent_is_not_proved_is_the_root_of_those_below_it():
    """What a client says of the runs above counts for rules alone: a token of theirs would open for its children."""
    lineage = {"root": "victim", "agent": "above", "path": [{"agent": "a", "call_id": "c"}]}
    parent = {"context_id": "victim", "call_id": "c", "scope": "s", "depth": 1, "lineage": lineage}
    for parent_id, root in (("victim", "victim"), (None, "victim/evil"), ("other", "victim/evil")):
        state = create_run_state({"agent": "a", "message": "hi", "parent": parent}, "victim/evil", "own", parent_id)
        model(state, asks(call("c1", SubagentCall(agent="b", message="go"))))
        below = started(state)["parent"]["lineage"]
        assert below["root"] == root
        assert [step["agent"] for step in below["path"]] == ["a", "b"]
        assert below["agent"] == "above"
