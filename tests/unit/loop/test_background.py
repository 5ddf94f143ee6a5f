"""Subagents in background, purely: what is started, what an end means, who is told what."""

from __future__ import annotations

from typing import Any

import pytest

from perdure.loop import background
from perdure.loop.apply import apply_closing, apply_result, finish_call
from perdure.loop.background import answer_collect_calls, apply_child_ended
from perdure.loop.children import list_awaited_background_runs, sum_reserved_budget
from perdure.loop.decide import CallModel, RecordClosing, ReportToParent, RunToolCalls, StopChildren, Wait, decide
from perdure.loop.lifecycle import (
    apply_interrupt,
    build_continuation_input,
    cancel_run,
    close_run,
    fail_run,
    request_interrupt,
)
from perdure.loop.limits import compute_remaining_budget
from perdure.loop.messages import receive_message
from perdure.loop.status import build_status
from perdure.loop.subagents import ChildOutcome, build_child_start
from perdure.types.interface import Response
from perdure.types.limits import Bounds
from perdure.types.messages import BlobRef, Usage
from perdure.types.state import RunState
from perdure.types.subagents import BackgroundRun, CollectCall, TellCall
from perdure.types.tool_calls import Call, SubagentCall
from perdure.types.wire import AgentLimits, NewResult
from tests.unit.loop.build import asks, call, carried_over, child_id, ended, model, open_as_child, opened, says

LINEAGE = {"root": "p", "agent": "above", "path": [{"agent": "a", "call_id": "c"}]}

FREE = AgentLimits()
BUDGET = AgentLimits(run=Bounds(tokens=110, cost_usd=1.1, tool_calls=111))


def starts(id: str = "c1", at_once: int = 10) -> Call:
    return call(id, SubagentCall(agent="sub", message="go", background=at_once))


def collects(handle: str, id: str = "c2", *, wait: bool = True) -> Call:
    return call(id, CollectCall(handle=handle, wait=wait))


def begin(state: RunState) -> dict[str, dict[str, Any]]:
    """Run the calls that come next, which all start an agent: what each is started with, by its handle."""
    step = decide(state)
    assert isinstance(step, RunToolCalls)
    begun = {}
    for pending in step.calls:
        found = background.prepare_background_run(state, pending)
        if found is not None:
            row, start = found
            begun[row.handle] = start
            background.mark_background_started(state, pending, row)
    return begun


def going(count: int = 1, *, limits: AgentLimits = FREE, at_once: int = 10, **start: Any) -> RunState:
    """A run that has started so many."""
    state = opened(**start)
    model(state, asks(*(starts(f"c{n}", at_once) for n in range(count)), limits=limits))
    begin(state)
    return state


def end(run: RunState, handle: str = "b1", **said: Any) -> None:
    row = row_of(run, handle)
    told = {"context_id": child_id(row.op), "scope": row.scope, "state": "completed", **said}
    apply_child_ended(run, told)


def row_of(state: RunState, handle: str) -> BackgroundRun:
    return next(row for row in state.background_runs if row.handle == handle)


def given(state: RunState) -> list[tuple[str, bool]]:
    """Text and error of the results that the next model call is given."""
    return [(str(item.text), item.is_error) for item in state.unsent if isinstance(item, NewResult)]


def test_the_call_ends_as_soon_as_it_has_begun() -> None:
    state = going(2)
    assert given(state) == [("started as b1", False), ("started as b2", False)]
    assert [row.state for row in state.background_runs] == ["running", "running"]
    assert isinstance(decide(state), CallModel)


def test_a_child_knows_that_nobody_waits_for_it() -> None:
    state = opened()
    model(state, asks(starts()))
    start = begin(state)["b1"]
    child = open_as_child(start, child_id(1), "ignored")
    assert child.parent is not None
    assert child.parent.background
    model(child, says("Found.", usage=Usage(input_tokens=3)))
    assert decide(child) == ReportToParent("completed")
    said = background.build_child_ended(child, "completed").model_dump(mode="json")
    child.reported = child.op
    assert ended(child) == "completed"
    apply_child_ended(state, said)
    assert (row_of(state, "b1").text, state.usage.total_tokens, state.refused) == ("Found.", 3, [])


def test_what_is_started_in_the_foreground_says_nothing() -> None:
    state = opened()
    model(state, asks(call("c1", SubagentCall(agent="sub"))))
    start = build_child_start(state, state.calls[0])
    assert isinstance(start, dict)
    assert "background" not in start["parent"]


def test_one_that_goes_on_says_again_how_it_ended() -> None:
    child = open_as_child(
        {
            "agent": "sub",
            "message": "go",
            "parent": {
                "context_id": "p",
                "call_id": "c",
                "scope": "s",
                "depth": 1,
                "background": True,
                "lineage": LINEAGE,
            },
        },
        "p/1",
        "s",
    )
    model(child, says("First."))
    child.reported = child.op
    receive_message(child, "And?")
    model(child, says("Second."))
    assert decide(child) == ReportToParent("completed")
    cancel_run(child)
    step = decide(child)
    assert isinstance(step, RecordClosing)
    apply_closing(child, step, "h")
    assert decide(child) == ReportToParent("cancelled")
    assert background.build_child_ended(child, "cancelled").error == "RunCancelledError: the subagent was cancelled"


def test_a_later_answer_counts_until_one_is_collected() -> None:
    state = going()
    end(state, content="First.", used={"usage": {"input_tokens": 5}, "cost_usd": 0.5})
    end(state, state="cancelled", error="late")
    end(state, content="Second.", used={"usage": {"input_tokens": 7}, "cost_usd": 0.75, "tool_calls": 2})
    model(state, asks(collects("b1")))
    answer_collect_calls(state)
    end(state, content="Third.")
    assert given(state) == [("Second.", False)]
    assert row_of(state, "b1").text == "Second."
    assert (state.usage.input_tokens, state.cost_usd, state.tool_calls) == (7, 0.75, 1 + 1 + 2)


def test_a_call_waits_without_being_run() -> None:
    state = going(2)
    model(state, asks(collects("b1"), collects("b2", "c3"), collects("b1", "c4", wait=False), call("c5")))
    answer_collect_calls(state)
    assert [pending.call.id for pending in state.calls if pending.result is None] == ["c2", "c3", "c5"]
    step = decide(state)
    assert isinstance(step, RunToolCalls)
    assert [one.call.id for one in step.calls] == ["c5"]
    apply_result(state, step.calls[0].op, NewResult(call_id="c5", name="look", text="seen"))
    assert decide(state) == Wait("child")
    assert [row.handle for row in list_awaited_background_runs(state)] == ["b1", "b2"]
    status = build_status(state)
    assert (status.state, status.doing) == ("running", "tools")
    assert [one.context_id for one in status.calls] == [child_id(1), child_id(2)]
    end(state, "b2", content="two")
    assert decide(state) == Wait("child")
    end(state, "b1", state="failed", error="ParseError: no")
    assert given(state) == [
        ("ParseError: no", True),
        ("two", False),
        ("b1 (sub) is still running", False),
        ("seen", False),
    ]


@pytest.mark.parametrize("said", [None, "b1", {"state": "completed"}, {"context_id": "x", "scope": "s", "state": "no"}])
def test_what_is_no_end_is_refused(said: Any) -> None:
    state = going()
    apply_child_ended(state, said)
    assert row_of(state, "b1").is_running
    assert state.refused[-1].startswith("child_ended: ")


def test_what_a_newer_engine_says_besides_is_left_out() -> None:
    """A deploy may reach the child before its parent: an end that is refused would be an answer that is lost."""
    state = going()
    end(state, content="Found.", mood="new", used={"tool_calls": 2, "watts": 3})
    assert (row_of(state, "b1").text, state.refused) == ("Found.", [])


def test_one_that_could_not_begin_runs_no_more() -> None:
    """A wait for its beginning looks at the row."""
    state = opened()
    model(state, asks(starts("c1")))
    (pending,) = state.calls
    found = background.prepare_background_run(state, pending)
    assert found is not None
    assert found[0].is_running
    background.fail_background_start(state, pending, found[0], "no")
    assert (found[0].is_running, state.background_runs) == (False, [])


def test_an_interrupt_ends_the_wait() -> None:
    state = going(mode="session")
    model(state, asks(collects("b1")))
    answer_collect_calls(state)
    request_interrupt(state, "Leave it.")
    apply_interrupt(state)
    (closed,) = given(state)
    assert closed[0].startswith("Interrupted")
    assert row_of(state, "b1").is_running
    end(state, content="late")
    assert given(state) == [closed], "its call has its one result"


def test_unknown_and_forgotten_handles() -> None:
    state = opened()
    model(state, asks(collects("b1"), collects("b1", "c3", wait=False)))
    answer_collect_calls(state)
    there_is_none = "no agent 'b1' (this run has not started an agent in background)"
    assert given(state) == [(there_is_none, True)] * 2


def test_so_many_at_once() -> None:
    state = going(3, at_once=2)
    assert given(state)[2] == (
        "not started: 2 agents run in background, which is the limit: collect one (b1, b2)",
        True,
    )
    end(state)
    model(state, asks(starts("c9", 2)))
    assert list(begin(state)) == ["b3"]


def test_answers_that_nobody_collects_are_bounded() -> None:
    state = going(20, at_once=20)
    for row in list(state.background_runs):
        end(state, row.handle, content="ж" * 3000)
    model(state, asks(starts("c99", 20), limits=FREE))
    begin(state)
    assert given(state)[0][0].startswith("not started: too many answers wait to be collected: collect them first (b1, ")
    model(state, asks(*(collects(row.handle, f"d{row.handle}") for row in state.background_runs), limits=FREE))
    answer_collect_calls(state)
    assert not any(is_error for _, is_error in given(state))
    kept = [row for row in state.background_runs if row.text is not None]
    assert kept == state.background_runs[-len(kept) :]
    assert 0 < sum(len(str(row.text)) for row in kept) * 6 <= background.COLLECTED_BYTES
    model(state, asks(collects("b1"), limits=FREE))
    answer_collect_calls(state)
    assert given(state) == [("the answer of b1 (sub) was collected before and is no longer kept: see above", False)]


def test_answers_that_one_reply_collects_are_bounded() -> None:
    """They travel together, and Temporal takes so much at once: whatever a model asks for."""
    state = going()
    end(state, content="ж" * 30_000)
    model(state, asks(*(collects("b1", f"d{n}") for n in range(50)), limits=FREE))
    answer_collect_calls(state)
    given_out = [text for text, is_error in given(state) if not is_error]
    assert 0 < len(given_out) < 50
    assert sum(map(len, given_out)) * 6 <= 1024 * 1024
    assert given(state)[-1][0].startswith("not collected: with the answer of b1 ")


def test_the_table_forgets_what_was_collected_long_ago(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background, "MAX_BACKGROUND_ROWS", 2)
    state = opened()
    for number in range(1, 5):
        model(state, asks(starts(f"s{number}"), limits=AgentLimits()))
        begin(state)
        end(state, f"b{number}", content="x")
        model(state, asks(collects(f"b{number}"), limits=AgentLimits()))
        answer_collect_calls(state)
    assert [row.handle for row in state.background_runs] == ["b3", "b4"]


def test_a_budget_is_shared_with_all_that_may_run_and_the_parent() -> None:
    state = opened()
    model(state, asks(starts("c1"), starts("c2"), limits=BUDGET))
    begun = begin(state)
    parts = [Bounds.model_validate(start["parent"]["limits"]) for start in begun.values()]
    assert [(one.tokens, one.tool_calls) for one in parts] == [(10, 9), (10, 10)]
    assert [one.cost_usd for one in parts] == pytest.approx([0.1, 0.1])
    assert sum_reserved_budget(state, "tokens") == 20
    assert next(use.used for use in build_status(state).limits if use.name == "tokens") == 20
    end(state, used={"usage": {"input_tokens": 4}})
    assert sum_reserved_budget(state, "tokens") == 10
    left = compute_remaining_budget(state)
    assert left is not None
    assert left.tokens == 110 - 10 - 4


def test_with_nothing_left_none_is_started() -> None:
    state = opened()
    model(state, asks(starts(), limits=BUDGET, usage=Usage(input_tokens=105)))
    assert begin(state) == {}
    assert given(state) == [
        ("not run: nothing is left for a subagent, the run has used 105 of 110 tokens (tokens)", True)
    ]


@pytest.mark.parametrize("how", ["answer", "fail", "cancel", "close"])
def test_they_are_stopped_before_the_ending_is_recorded(how: str) -> None:
    state = going(2, mode="session" if how == "close" else "run")
    match how:
        case "answer" | "close":
            model(state, says("Done."))
            if how == "close":
                assert decide(state) == Wait("message")
                close_run(state)
        case "fail":
            fail_run(state, "ProviderError", "no")
        case "cancel":
            cancel_run(state)
    assert decide(state) == StopChildren()
    for row in state.background_runs:
        row.stopped = True
    end(state, "b1", state="cancelled", error="RunCancelledError", used={"usage": {"input_tokens": 9}})
    assert decide(state) == StopChildren()
    background.abandon_background_runs(state)
    step = decide(state)
    assert isinstance(step, RecordClosing)
    assert step.closing.response is not None
    assert step.closing.response["usage"]["input_tokens"] == 9
    apply_closing(state, step, "h")
    assert ended(state) == {"fail": "failed", "cancel": "cancelled"}.get(how, "completed")


def test_a_run_whose_answers_are_collected_ends_as_any_other() -> None:
    state = going()
    end(state, content="x")
    model(state, asks(collects("b1")))
    answer_collect_calls(state)
    model(state, says("Done."))
    assert ended(state) == "completed"


def test_who_is_closed_without_a_word_is_lost() -> None:
    state = going(3)
    rows = state.background_runs
    background.apply_background_outcome(state, rows[0], ChildOutcome(error="TerminatedError: Terminated", lost=True))
    background.apply_background_outcome(
        state, rows[1], ChildOutcome(error="InvalidInputError: no", used=Response(tool_calls=2))
    )
    background.apply_background_outcome(state, rows[2], ChildOutcome(Response(blob=BlobRef(hash="a" * 64, size=9))))
    end(state, "b1", content="It had ended before.")
    background.apply_background_outcome(state, rows[0], ChildOutcome(error="x", lost=True))
    model(state, asks(*(collects(f"b{n}", f"c{n}") for n in (1, 2, 3))))
    answer_collect_calls(state)
    assert given(state) == [("It had ended before.", False), ("InvalidInputError: no", True), ("None", False)]
    assert state.tool_calls == 3 + 3 + 2


@pytest.mark.parametrize("ends", [False, True])
def test_only_one_that_runs_is_told_something(ends: bool) -> None:
    state = going()
    if ends:
        end(state, content="x")
    model(
        state,
        asks(call("c2", TellCall(handle="b1", message="more")), call("c3", TellCall(handle="b7", message="more"))),
    )
    step = decide(state)
    assert isinstance(step, RunToolCalls)
    found = [
        background.find_tell_target(state, one, how.handle)
        for one in step.calls
        if isinstance(how := one.call.disposition, TellCall)
    ]
    assert found == [None if ends else state.background_runs[0], None]
    if not ends:
        finish_call(state, step.calls[0], "delivered")
    first, second = given(state)
    assert first == (("not delivered: b1 (sub) has ended: collect its answer", True) if ends else ("delivered", False))
    assert second == ("no agent 'b7' (there is: b1)", True)


def test_a_state_carries_its_table() -> None:
    state = going(2)
    end(state, content="x")
    assert carried_over(state) == state
    plain = build_continuation_input(opened(), "run-1")["state"]
    assert not {"background_runs", "background_count", "reported", "parent_seen_at"} & set(plain)
