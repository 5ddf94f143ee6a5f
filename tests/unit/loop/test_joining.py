"""Calls that begin beside others of their reply, as soon as they are decided."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from perdure.loop import payload_limits
from perdure.loop.apply import apply_abort
from perdure.loop.decide import select_joining_calls
from perdure.loop.lifecycle import cancel_run, pause_run, request_interrupt
from perdure.types.state import RunState
from perdure.types.tool_calls import SubagentCall
from tests.unit.loop.build import call
from tests.unit.loop.test_approvals import NOW, asked, decide, waiting

STOPS: list[Callable[[RunState], object]] = [
    request_interrupt,
    cancel_run,
    lambda state: pause_run(state, "StoreError: gone", NOW.isoformat()),
    lambda state: apply_abort(state, "AbortError: enough"),
]


def joining(state: RunState, *flying: str) -> list[str]:
    ops = {one.op for one in state.calls if one.call.id in flying}
    return [one.call.id for one in select_joining_calls(state, ops)]


def test_only_what_was_decided_begins_and_only_once() -> None:
    state = asked(call("c1"), waiting("c2"), waiting("c3"))
    assert joining(state, "c1") == []
    decide(state, "c3", by="ana")
    assert joining(state, "c1") == ["c3"]
    assert joining(state, "c1", "c3") == []
    decide(state, "c2", "deny")
    assert joining(state, "c1", "c3") == []


def test_a_call_that_did_not_fit_beside_the_others_waits_for_them() -> None:
    state = asked(call("c1"), call("c2"), waiting("c3"))
    assert joining(state, "c1") == []


@pytest.mark.parametrize("stop", STOPS)
def test_nothing_begins_in_a_run_that_is_to_stop(stop: Callable[[RunState], object]) -> None:
    state = asked(call("c1"), waiting("c2"))
    decide(state, "c2", by="ana")
    assert joining(state, "c1") == ["c2"]
    stop(state)
    assert joining(state, "c1") == []


def test_no_more_are_under_way_than_may_begin_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(payload_limits, "CALLS_AT_ONCE", 2)
    state = asked(call("c1"), waiting("c2"), waiting("c3"))
    decide(state, "c2")
    decide(state, "c3")
    assert joining(state, "c1") == ["c2"]
    assert joining(state, "c1", "c2") == []
    assert joining(state, "c2") == ["c3"]


def test_nor_more_subagents(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(payload_limits, "SUBAGENTS_AT_ONCE", 1)
    how = SubagentCall(agent="b", message="go")
    state = asked(call("c1", how), waiting("c2").model_copy(update={"disposition": how}), waiting("c3"))
    decide(state, "c2")
    assert joining(state, "c1") == []
    assert joining(state) == ["c2"]
    decide(state, "c3")
    assert joining(state, "c3") == ["c2"]
