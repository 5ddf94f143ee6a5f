"""What visibility is told of a run."""

from __future__ import annotations

from typing import Any

import pytest

from perdure import loop
from perdure.loop import CallModel, RunCalls, Wait
from perdure.types.approvals import Asks, Waiting
from perdure.types.interface import AGENT, ATTRIBUTES, PENDING, STATUS, WAITING_BYTES, WAITING_CALLS
from perdure.types.state import PendingCall, RunState
from perdure.types.tool_calls import Answer, AsActivity, AsCallback, Call, Question
from tests.unit.loop.build import carried_over

ALL = list(ATTRIBUTES)
STARTED = {AGENT: "support"}
INDEXED = {**STARTED, STATUS: "running", PENDING: 0}


def asking(count: int, **more: Any) -> RunState:
    calls = [
        PendingCall(
            call=Call(
                id=f"call_{n}",
                name="refund",
                disposition=AsActivity(timeout=1),
                approval=Asks(hash="h", on_expiry="deny"),
            ),
            op=n,
        )
        for n in range(count)
    ]
    return RunState(context_id="c", agent="support", scope="s", calls=calls, **{"indexed": ALL, **more})


MODEL, TOOLS = CallModel((), 0), RunCalls(())
FOR_PERSON, FOR_MESSAGE, PAUSED = Wait("approval"), Wait("message"), Wait("resumed")


@pytest.mark.parametrize(
    ("waits", "step", "shown", "changed"),
    [
        # Nothing of a run that has not waited yet.
        (0, None, {}, {}),
        (0, MODEL, {}, {}),
        (0, TOOLS, STARTED, {}),
        # All of it at the first wait, for whatever; of a run that others have started the agent too.
        (0, FOR_MESSAGE, STARTED, {STATUS: "running", PENDING: 0}),
        (0, FOR_MESSAGE, {}, INDEXED),
        (2, FOR_PERSON, {}, {AGENT: "support", STATUS: "waiting", PENDING: 2}),
        (1, FOR_PERSON, STARTED, {STATUS: "waiting", PENDING: 1}),
        (0, PAUSED, STARTED, {STATUS: "paused", PENDING: 0}),
        # What waits is told while other calls run.
        (1, TOOLS, STARTED, {STATUS: "waiting", PENDING: 1}),
        (1, FOR_PERSON, {**INDEXED, STATUS: "waiting", PENDING: 2}, {PENDING: 1}),
        (0, TOOLS, {**INDEXED, STATUS: "waiting", PENDING: 1}, {STATUS: "running", PENDING: 0}),
        (0, MODEL, {**INDEXED, STATUS: "paused"}, {STATUS: "running"}),
        (1, PAUSED, {**INDEXED, STATUS: "waiting", PENDING: 1}, {STATUS: "paused"}),
        # Between two turns and in one it is the same.
        (0, FOR_MESSAGE, INDEXED, {}),
        (0, MODEL, INDEXED, {}),
    ],
)
def test_what_is_told(waits: int, step: Any, shown: dict[str, Any], changed: dict[str, Any]) -> None:
    assert loop.to_index(asking(waits), step, shown) == changed


@pytest.mark.parametrize("names", [None, [], [STATUS], [PENDING, AGENT]])
def test_nothing_but_what_the_namespace_has(names: list[str] | None) -> None:
    told = loop.to_index(asking(1, indexed=names), FOR_PERSON, {})
    assert set(told) == set(names or ())


def test_what_a_worker_has_said_survives_continue_as_new() -> None:
    state = asking(1)
    again = carried_over(state)
    assert again.indexed == ALL
    assert "indexed" not in loop.carry_over(asking(0, indexed=None), "run-1")["state"]


# --- what waits, in the memo

SINCE = Waiting(since="2026-11-21T20:00:00+00:00", until=1_800_000_000.0, next=1_790_000_000.0)


def pending(op: int = 1, **more: Any) -> PendingCall:
    call = {"id": f"call_{op}", "name": "refund", "arguments": {"order": None}, "disposition": AsActivity(timeout=1)}
    return PendingCall(op=op, call=Call(**{**call, **more.pop("call", {})}), **more)


def asks(op: int = 1, **more: Any) -> PendingCall:
    call = {"approval": Asks(hash="h"), **more.pop("call", {})}
    return pending(op, call=call, **{"waiting": SINCE, **more})


def holding(*calls: PendingCall) -> RunState:
    return RunState(context_id="c", agent="support", scope="s", calls=list(calls))


def test_what_waits_is_noted_as_status_shows_it() -> None:
    question = pending(2, question=Question(text="Who?", form={"type": "string"}), expects=SINCE)
    callback = pending(3, call={"disposition": AsCallback(), "arguments": None}, expects=Waiting(since=SINCE.since))
    reminded = asks(waiting=SINCE.model_copy(update={"reminded": 3}))
    state = holding(reminded, question, callback, pending(4))
    noted = loop.to_note(state)
    assert noted is not None
    shown = [
        one.model_dump(mode="json", exclude={"reminded"}, exclude_none=True) for one in loop.status(state).approvals
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
        ([asks(n) for n in range(WAITING_CALLS)], True),
        ([asks(n) for n in range(WAITING_CALLS + 1)], False),
        ([asks(call=long(WAITING_BYTES - 1000))], True),
        ([asks(call=long(WAITING_BYTES))], False),
        ([asks(call={"arguments": {"order": "ж" * (WAITING_BYTES // 6)}})], False),
    ],
)
def test_it_is_noted_whole_or_not_at_all(calls: list[PendingCall], fits: bool) -> None:
    noted = loop.to_note(holding(*calls))
    assert (noted is not None) == fits
    assert noted is None or len(noted) == len(calls)


FIRST = Question(text="First?")


@pytest.mark.parametrize(
    ("before", "after", "same"),
    [
        ([asks()], [asks(waiting=SINCE.model_copy(update={"reminded": 1, "next": 1.0}))], True),
        ([asks()], [asks(), pending(2)], True),
        ([asks()], [asks(), asks(2)], False),
        ([asks(), asks(2)], [asks(2)], False),
        (
            [asks(call={"disposition": AsCallback()})],
            [pending(call={"disposition": AsCallback()}, expects=SINCE)],
            False,
        ),
        (
            [pending(question=FIRST, expects=SINCE)],
            [pending(question=FIRST, expects=SINCE, answers=[Answer(value=1)])],
            False,
        ),
    ],
)
def test_whether_something_else_waits(before: list[PendingCall], after: list[PendingCall], same: bool) -> None:
    assert (loop.waiting_now(holding(*before)) == loop.waiting_now(holding(*after))) == same


def test_a_wait_that_has_no_beginning_yet_is_not_told() -> None:
    assert loop.waiting_now(holding()) == ()
    assert loop.waiting_now(holding(asks(), asks(2, waiting=None))) is None
    assert loop.waiting_now(holding(pending(question=FIRST))) is None


def test_whether_it_is_noted_survives_continue_as_new() -> None:
    state = asking(1, noted=True)
    assert carried_over(state).noted
    assert "noted" not in loop.carry_over(asking(1), "run-1")["state"]
