"""Branches of a step, purely: when they run, what they are given, and what stops them."""

from __future__ import annotations

from typing import Any

import pytest

from perdure.loop.children import list_branch_outcomes
from perdure.loop.decide import CallModel, RunBranches, Wait, decide
from perdure.loop.lifecycle import (
    apply_interrupt,
    cancel_run,
    end_turn_at_budget,
    fail_run,
    request_interrupt,
    resume_run,
)
from perdure.loop.messages import receive_message
from perdure.loop.status import build_status
from perdure.loop.subagents import MAX_DEPTH, ChildOutcome, apply_branch_outcome, build_branch_start, set_branch_outcome
from perdure.types.interface import Response
from perdure.types.limits import Bounds
from perdure.types.messages import BlobRef, Usage
from perdure.types.plain_json import measure_json
from perdure.types.state import PendingBranch, RunState
from perdure.types.subagents import BranchOutcome, BranchRequest
from perdure.types.wire import AgentLimits, ModelOutput, NewMessage
from tests.unit.loop.build import (
    LIMITS,
    asks,
    call,
    carried_over,
    child_id,
    close,
    done,
    ended,
    model,
    open_as_child,
    opened,
    said,
    says,
)

BLOB = BlobRef(hash="a" * 64, size=9)


def ask(number: int = 0, **more: Any) -> BranchRequest:
    given = {"message": f"question {number}", "head": "h-fork"} | more
    return BranchRequest(key=f"k{number}", label=f"'sub: {number}'", agent="sub", **given)


def branches(*asked: BranchRequest) -> ModelOutput:
    """What a step comes to whose policy waits for ``asked``."""
    return ModelOutput(head="h-calls", store_id="s", branches=asked)


def stepping(*asked: BranchRequest, limits: AgentLimits = LIMITS, used: int = 0, **start: Any) -> RunState:
    """A run whose second step waits for branches."""
    state = opened(**start)
    model(state, asks(call(), limits=limits, usage=Usage(input_tokens=used)))
    done(state, "c1")
    model(state, branches(*asked))
    return state


def waiting(state: RunState) -> tuple[PendingBranch, ...]:
    step = decide(state)
    assert isinstance(step, RunBranches), step
    return step.branches


def answered(state: RunState, text: str = "Good.", **more: Any) -> None:
    """The first branch that waits has this answer."""
    apply_branch_outcome(state, waiting(state)[0], ChildOutcome(Response(content=text, **more)), stopping=False)


def came_to(state: RunState) -> list[str]:
    return [outcome.content or f"{outcome.error_type}: {outcome.error}" for outcome in list_branch_outcomes(state)]


def started(state: RunState, place: int = 0) -> dict[str, Any]:
    start = build_branch_start(state, waiting(state)[place])
    assert isinstance(start, dict), start
    return start


def test_the_same_step_is_tried_again_when_all_have_ended() -> None:
    state = stepping(ask(0), ask(1))
    before = state.turn
    assert before is not None
    assert (before.iteration, state.head) == (1, "h-calls")
    assert [branch.op for branch in waiting(state)] == [3, 4]
    answered(state)
    assert len(waiting(state)) == 1
    answered(state, "Bad.")
    step = decide(state)
    assert isinstance(step, CallModel)
    assert said(step) == ["=c1"]
    assert came_to(state) == ["Good.", "Bad."]
    assert state.op == 5
    model(state, says("Done."))
    assert (before.iteration, list_branch_outcomes(state)) == (2, ())
    assert ended(state) == "completed"


def test_a_policy_may_ask_for_more_and_what_it_knows_is_kept() -> None:
    state = stepping(ask(0))
    answered(state)
    model(state, branches(ask(1)))
    assert [branch.op for branch in waiting(state)] == [5]
    answered(state, "Bad.")
    assert came_to(state) == ["Good.", "Bad."]


def test_a_message_that_comes_meanwhile_is_for_the_next_step() -> None:
    state = opened()
    model(state, asks(call()))
    done(state, "c1")
    receive_message(state, "early")
    model(state, branches(ask()))
    receive_message(state, "late")
    answered(state)
    assert said(model(state, asks(call("c2")))) == ["=c1", "early"]
    done(state, "c2")
    assert said(model(state, says("Done."))) == ["=c2", "late"]


def test_a_branch_is_started_behind_the_forked_conversation() -> None:
    state = stepping(
        ask(0, model=("small:tiny",)),
        ask(1, message=None),
        ask(2, head=None, typed=True, message='{"a":1}'),
        ask(3, message=None, blob=BLOB),
        context={"user_id": "7"},
    )
    first, bare, alone, long = (started(state, place) for place in range(4))
    child = open_as_child(first, child_id(3), "ignored")
    assert (child.agent, child.head, child.store_id, child.context) == ("sub", "h-fork", "s", {"user_id": "7"})
    assert child.overrides == {"model": ["small:tiny"]}
    assert child.parent is not None
    assert (child.parent.depth, child.scope) == (1, first["parent"]["scope"])
    assert said_first(first) == ["question 0"]
    assert said_first(bare) == []
    assert ("history" in alone, alone["message"]) == (False, {"content": '{"a":1}', "typed": True})
    assert long["message"] == {"content": BLOB.model_dump(mode="json"), "store_id": "s"}
    assert len({one["parent"]["scope"] for one in (first, bare, alone, long)}) == 4


def said_first(start: dict[str, Any]) -> list[str]:
    """What the model call of a run that is started so is given."""
    step = decide(open_as_child(start, "c", "s"))
    assert isinstance(step, CallModel)
    return said(step)


def test_what_may_not_begin_has_an_error() -> None:
    lineage = {"root": "p", "agent": "above", "path": [{"agent": "a", "call_id": "c"}]}
    deep = {"context_id": "p", "call_id": "c", "scope": "s", "depth": MAX_DEPTH, "lineage": lineage}
    state = stepping(ask(), parent=deep)
    refused = build_branch_start(state, waiting(state)[0])
    assert isinstance(refused, BranchOutcome)
    assert (refused.error_type, refused.error) == ("BranchError", "not run: subagents are nested 5 deep at most")
    set_branch_outcome(waiting(state)[0], refused)
    assert isinstance(decide(state), CallModel)


@pytest.mark.parametrize(
    ("how", "outcome"),
    [
        (ChildOutcome(Response(content="Good.")), {"content": "Good."}),
        (ChildOutcome(Response(content='{"a":1}', typed=True)), {"content": '{"a":1}', "typed": True}),
        (ChildOutcome(Response(blob=BLOB)), {"blob": BLOB}),
        (ChildOutcome(error="ParseError: a: b"), {"error_type": "ParseError", "error": "a: b"}),
        (
            ChildOutcome(Response(finish_reason="interrupted", content="half")),
            {"error_type": "RunCancelledError", "error": "it was interrupted before it had an answer"},
        ),
    ],
)
def test_what_it_came_to(how: ChildOutcome, outcome: dict[str, Any]) -> None:
    state = stepping(ask())
    apply_branch_outcome(state, waiting(state)[0], how, stopping=False)
    assert list_branch_outcomes(state) == (BranchOutcome(key="k0", label="'sub: 0'", agent="sub", op=3, **outcome),)


def test_what_branches_use_counts_and_they_share_what_is_left() -> None:
    limits = AgentLimits(run=Bounds(tokens=100), max_iterations=5)
    state = stepping(ask(0), ask(1), limits=limits, used=40)
    assert [started(state, place)["parent"]["limits"]["tokens"] for place in (0, 1)] == [30, 30]
    answered(state, usage=Usage(input_tokens=30), cost_usd=0.5, tool_calls=3)
    assert (state.usage.total_tokens, state.cost_usd, state.tool_calls) == (70, 0.5, 1 + 3)
    answered(state, usage=Usage(input_tokens=30))
    end_turn_at_budget(state)
    step = decide(state)
    assert isinstance(step, CallModel)
    assert step.limit is not None


def test_answers_that_no_activity_could_be_given_are_errors() -> None:
    state = stepping(*map(ask, range(10)))
    state.inbox = [NewMessage(content="m" * 1_400_000)]
    assert state.branching is not None
    state.branching.taken = 1
    for _ in range(10):
        answered(state, "ж" * 16_000)
    said = came_to(state)
    assert said[0] == "ж" * 16_000
    assert said[-1].startswith("BranchError: its answer has 96,002 bytes as JSON, and ")
    assert measure_json([one.model_dump() for one in list_branch_outcomes(state)]) + 1_400_000 < 2_000_000


@pytest.mark.parametrize("how", ["return", "error"])
def test_a_budget_that_branches_use_up_ends_the_turn(how: Any) -> None:
    state = stepping(ask(), limits=AgentLimits(run=Bounds(tokens=50), on_limit=how), used=40)
    end_turn_at_budget(state)
    answered(state, usage=Usage(input_tokens=30))
    end_turn_at_budget(state)
    assert said(close(state)) == ["=c1"]
    assert ended(state) == ("failed" if how == "error" else "completed")
    assert state.branching is None


def test_a_run_that_pauses_at_a_limit_goes_on_with_what_it_knows() -> None:
    state = stepping(ask(), limits=AgentLimits(run=Bounds(tokens=50), on_limit="pause"), used=40)
    answered(state, usage=Usage(input_tokens=30))
    assert said(close(state)) == ["=c1"]
    assert decide(state) == Wait("resumed")
    resume_run(state, {"limits": {"tokens": 500}})
    step = decide(state)
    assert isinstance(step, CallModel)
    assert came_to(state) == ["Good."]


@pytest.mark.parametrize("stop", ["cancel", "fail", "interrupt", "go on"])
def test_whatever_stops_the_step_drops_its_branches(stop: str) -> None:
    state = stepping(ask(0), ask(1))
    answered(state)
    open_branch = waiting(state)[0]
    if stop == "cancel":
        cancel_run(state)
    elif stop == "fail":
        fail_run(state, "ProviderError", "no")
    else:
        request_interrupt(state, "Otherwise." if stop == "go on" else None)
        stopped = ChildOutcome(Response(finish_reason="interrupted", usage=Usage(input_tokens=7)))
        apply_branch_outcome(state, open_branch, stopped, stopping=True)
        apply_interrupt(state)
        assert state.usage.total_tokens == 7
    assert state.branching is None
    if stop == "go on":
        assert said(model(state, says("Done."))) == ["=c1", "Otherwise."]
    else:
        assert said(close(state)) == ["=c1"]


def test_what_is_open_is_shown_and_survives_another_execution() -> None:
    state = stepping(ask(0), ask(1))
    answered(state)
    assert carried_over(state) == state
    status = build_status(state)
    assert (status.state, status.doing) == ("running", "branches")
    (one,) = status.calls
    assert (one.kind, one.tool, one.call_id, one.context_id) == ("branch", "sub", "branch-4", child_id(4))
