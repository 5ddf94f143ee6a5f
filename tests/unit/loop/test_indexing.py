"""What visibility is told of a run."""

from __future__ import annotations

from typing import Any

import pytest

from perdure.loop.decide import CallModel, RunToolCalls, Wait
from perdure.loop.lifecycle import build_continuation_input
from perdure.loop.status import build_status, build_waiting_key, build_waiting_memo, list_changed_search_attributes
from perdure.types.approvals import ApprovalTerms, WaitPeriod
from perdure.types.interface import (
    AGENT_ATTRIBUTE,
    PENDING_ATTRIBUTE,
    SEARCH_ATTRIBUTES,
    STATUS_ATTRIBUTE,
    WAITING_MEMO_BYTES,
    WAITING_MEMO_CALLS,
)
from perdure.types.state import RunState, ToolCallState
from perdure.types.tool_calls import ActivityCall, Call, CallbackCall, Question, ToolAnswer
from tests.unit.loop.build import carried_over

ALL = list(SEARCH_ATTRIBUTES)
STARTED = {AGENT_ATTRIBUTE: "support"}
INDEXED = {**STARTED, STATUS_ATTRIBUTE: "running", PENDING_ATTRIBUTE: 0}


def asking(count: int, **more: Any) -> RunState:
    calls = [
        ToolCallState(
            call=Call(
                id=f"call_{n}",
                name="refund",
                disposition=ActivityCall(timeout=1),
                approval=ApprovalTerms(hash="h", on_expiry="deny"),
            ),
            op=n,
        )
        for n in range(count)
    ]
    return RunState(context_id="c", agent="support", scope="s", calls=calls, **{"search_attributes": ALL, **more})


MODEL, TOOLS = CallModel((), 0), RunToolCalls(())
FOR_PERSON, FOR_MESSAGE, PAUSED = Wait("approval"), Wait("message"), Wait("resumed")


@pytest.mark.parametrize(
    ("waits", "step", "shown", "changed"),
    [
        # Nothing of a run that has not waited yet.
        (0, None, {}, {}),
        (0, MODEL, {}, {}),
        (0, TOOLS, STARTED, {}),
        # All of it at the first wait, for whatever; of a run that others have started the agent too.
        (0, FOR_MESSAGE, STARTED, {STATUS_ATTRIBUTE: "running", PENDING_ATTRIBUTE: 0}),
        (0, FOR_MESSAGE, {}, INDEXED),
        (2, FOR_PERSON, {}, {AGENT_ATTRIBUTE: "support", STATUS_ATTRIBUTE: "waiting", PENDING_ATTRIBUTE: 2}),
        (1, FOR_PERSON, STARTED, {STATUS_ATTRIBUTE: "waiting", PENDING_ATTRIBUTE: 1}),
        (0, PAUSED, STARTED, {STATUS_ATTRIBUTE: "paused", PENDING_ATTRIBUTE: 0}),
        # What waits is told while other calls run.
        (1, TOOLS, STARTED, {STATUS_ATTRIBUTE: "waiting", PENDING_ATTRIBUTE: 1}),
        (1, FOR_PERSON, {**INDEXED, STATUS_ATTRIBUTE: "waiting", PENDING_ATTRIBUTE: 2}, {PENDING_ATTRIBUTE: 1}),
        (
            0,
            TOOLS,
            {**INDEXED, STATUS_ATTRIBUTE: "waiting", PENDING_ATTRIBUTE: 1},
            {STATUS_ATTRIBUTE: "running", PENDING_ATTRIBUTE: 0},
        ),
        (0, MODEL, {**INDEXED, STATUS_ATTRIBUTE: "paused"}, {STATUS_ATTRIBUTE: "running"}),
        (1, PAUSED, {**INDEXED, STATUS_ATTRIBUTE: "waiting", PENDING_ATTRIBUTE: 1}, {STATUS_ATTRIBUTE: "paused"}),
        # Between two turns and in one it is the same.
        (0, FOR_MESSAGE, INDEXED, {}),
        (0, MODEL, INDEXED, {}),
    ],
)
def test_what_is_told(waits: int, step: Any, shown: dict[str, Any], changed: dict[str, Any]) -> None:
    assert list_changed_search_attributes(asking(waits), step, shown) == changed


@pytest.mark.parametrize("names", [None, [], [STATUS_ATTRIBUTE], [PENDING_ATTRIBUTE, AGENT_ATTRIBUTE]])
def test_nothing_but_what_the_namespace_has(names: list[str] | None) -> None:
    told = list_changed_search_attributes(asking(1, search_attributes=names), FOR_PERSON, {})
    assert set(told) == set(names or ())


def test_what_a_worker_has_said_survives_continue_as_new() -> None:
    state = asking(1)
    again = carried_over(state)
    assert again.search_attributes == ALL
    assert "search_attributes" not in build_continuation_input(asking(0, search_attributes=None), "run-1")["state"]


# --- what waits, in the memo

SINCE = WaitPeriod(since="2026-11-21T20:00:00+00:00", until=1_800_000_000.0, next=1_790_000_000.0)


def pending(op: int = 1, **more: Any) -> ToolCallState:
    call = {"id": f"call_{op}", "name": "refund", "arguments": {"order": None}, "disposition": ActivityCall(timeout=1)}
    return ToolCallState(op=op, call=Call(**{**call, **more.pop("call", {})}), **more)


def asks(op: int = 1, **more: Any) -> ToolCallState:
    call = {"approval": ApprovalTerms(hash="h"), **more.pop("call", {})}
    return pending(op, call=call, **{"approval_wait": SINCE, **more})


def holding(*calls: ToolCallState) -> RunState:
    return RunState(context_id="c", agent="support", scope="s", calls=list(calls))


def test_what_waits_is_noted_as_status_shows_it() -> None:
    question = pending(2, question=Question(text="Who?", form={"type": "string"}), answer_wait=SINCE)
    callback = pending(
        3, call={"disposition": CallbackCall(), "arguments": None}, answer_wait=WaitPeriod(since=SINCE.since)
    )
    reminded = asks(approval_wait=SINCE.model_copy(update={"reminded": 3}))
    state = holding(reminded, question, callback, pending(4))
    noted = build_waiting_memo(state)
    assert noted is not None
    shown = [
        one.model_dump(mode="json", exclude={"reminded"}, exclude_none=True) for one in build_status(state).approvals
    ]
    assert noted == shown
    assert [(one["kind"], one["call_id"]) for one in noted] == [
        ("approval", "call_1"),
        ("question", "call_2"),
        ("callback", "call_3"),
    ]
    assert noted[0]["arguments"] == {"order": None}, "nothing of them is left out"
    assert "arguments" not in noted[2]


def long(size: int) -> dict[str, Any]:
    return {"arguments": {"order": "x" * size}}


@pytest.mark.parametrize(
    ("calls", "fits"),
    [
        ([], False),
        ([pending()], False),
        ([asks()], True),
        ([asks(n) for n in range(WAITING_MEMO_CALLS)], True),
        ([asks(n) for n in range(WAITING_MEMO_CALLS + 1)], False),
        ([asks(call=long(WAITING_MEMO_BYTES - 1000))], True),
        ([asks(call=long(WAITING_MEMO_BYTES))], False),
        ([asks(call={"arguments": {"order": "ж" * (WAITING_MEMO_BYTES // 6)}})], False),
    ],
)
def test_it_is_noted_whole_or_not_at_all(calls: list[ToolCallState], fits: bool) -> None:
    noted = build_waiting_memo(holding(*calls))
    assert (noted is not None) == fits
    assert noted is None or len(noted) == len(calls)


FIRST = Question(text="First?")


@pytest.mark.parametrize(
    ("before", "after", "same"),
    [
        ([asks()], [asks(approval_wait=SINCE.model_copy(update={"reminded": 1, "next": 1.0}))], True),
        ([asks()], [asks(), pending(2)], True),
        ([asks()], [asks(), asks(2)], False),
        ([asks(), asks(2)], [asks(2)], False),
        (
            [asks(call={"disposition": CallbackCall()})],
            [pending(call={"disposition": CallbackCall()}, answer_wait=SINCE)],
            False,
        ),
        (
            [pending(question=FIRST, answer_wait=SINCE)],
            [pending(question=FIRST, answer_wait=SINCE, answers=[ToolAnswer(value=1)])],
            False,
        ),
    ],
)
def test_whether_something_else_waits(before: list[ToolCallState], after: list[ToolCallState], same: bool) -> None:
    assert (build_waiting_key(holding(*before)) == build_waiting_key(holding(*after))) == same


def test_a_wait_that_has_no_beginning_yet_is_not_told() -> None:
    assert build_waiting_key(holding()) == ()
    assert build_waiting_key(holding(asks(), asks(2, approval_wait=None))) is None
    assert build_waiting_key(holding(pending(question=FIRST))) is None


def test_whether_it_is_noted_survives_continue_as_new() -> None:
    state = asking(1, memo_is_written=True)
    assert carried_over(state).memo_is_written
    assert "memo_is_written" not in build_continuation_input(asking(1), "run-1")["state"]
