"""Whatever a client sends, nothing but Temporal's own exceptions leaves a handler, and the run can go on."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, cast

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from temporalio.exceptions import ApplicationError

from perdure.loop.approvals import update_approval_waits
from perdure.loop.decide import decide
from perdure.loop.lifecycle import build_continuation_input, read_continued_state
from perdure.loop.questions import apply_question
from perdure.loop.status import build_status, build_waiting_memo, list_changed_search_attributes
from perdure.loop.turns import build_turn_status
from perdure.types.state import RunState
from perdure.types.tool_calls import Question
from perdure.workflows import AgentWorkflow, guard
from perdure.workflows.host import Host, use_host
from tests.unit.loop.build import asks, call, model, opened, says
from tests.unit.loop.test_approvals import waiting

NOW = datetime(2026, 11, 22, tzinfo=UTC)


class Still:
    """A host where nothing happens: conditions hold, and it is always the same time."""

    workflow_id, run_id, first_execution_run_id = "context-1", "run-1", "scope-12345"
    continued_run_id = cron_schedule = parent = None

    def info(self) -> Any:
        return self

    def get_current_history_length(self) -> int:
        return 3

    def now(self) -> datetime:
        return NOW

    async def wait_condition(self, condition: Callable[[], bool], **_: Any) -> None:
        assert condition(), "it would wait for ever"


@dataclass(frozen=True)
class Nested:
    """Arrays or objects in each other, as a test shows them: their own repr would be too deep."""

    levels: int
    key: str | None = None

    def value(self) -> Any:
        inner: Any = 1
        for _ in range(self.levels):
            inner = [inner] if self.key is None else {self.key: inner}
        return inner


def built(shown: Any) -> Any:
    """The value that a test shows."""
    if isinstance(shown, Nested):
        return shown.value()
    if isinstance(shown, dict):
        return {key: built(value) for key, value in shown.items()}
    return [built(value) for value in shown] if isinstance(shown, list) else shown


ODD: list[Any] = [
    None,
    True,
    "",
    "\ud800",
    "a\x00b",
    "x" * 100_000,
    "\u202e\x1b[2J",
    -1,
    10**400,
    2**63,
    1.5,
    float("nan"),
    float("inf"),
    -float("inf"),
    [],
    {},
    {"\udfff": 1},
    {"k" * 100_000: 1},
    {"a": {"b": ["\ud800"]}},
    [None],
    Nested(150),
    Nested(190),
    Nested(190, "k"),
    Nested(6_000),
    Nested(6_000, "k"),
]
LEAF = st.one_of(st.sampled_from(ODD), st.text(st.characters(categories=None), max_size=8), st.integers(), st.floats())
VALUES = st.recursive(
    LEAF,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(st.characters(categories=None), max_size=5), inner, max_size=3)
    ),
    max_leaves=6,
)

LIMITS = {"cost_usd": 1.0, "tokens": 10, "turn": {"iterations": 3}, "wall_time": "1m"}
OVERRIDE = {
    "model": "openai:gpt-5",
    "instructions": "Be brief.",
    "tools": ["look"],
    "settings": {"temperature": 0},
    "provider_options": {"openai": {"user": "u"}},
    "finish": "text",
    "max_iterations": 3,
    "on_limit": "finish",
    "limits": LIMITS,
}
BLOB = {"hash": "0" * 64, "size": 3}
FILE = {"type": "file", "media_type": "image/png", "name": "x.png", "url": "https://example.com/x.png"}
MESSAGE = {
    "content": [{"type": "text", "text": "hi"}, FILE],
    "id": "m1",
    "by": "ana",
    "task_id": "t1",
    "override": OVERRIDE,
    "store_id": "s",
    "auth_ref": "ref",
}
DECISION = {
    "call_id": "c1",
    "decision": "approve",
    "by": "ana",
    "comment": "ok",
    "arguments": {"path": "/"},
    "hash": "h",
}
ANSWER = {"call_id": "c1", "value": {"a": 1}, "by": "ana", "hash": "h"}
USED = {"usage": {"input_tokens": 1}, "cost_usd": 0.5, "tool_calls": 1}
ENDED = {"context_id": "context-1/1", "scope": "s", "state": "completed", "content": "Done.", "used": USED}
LINEAGE = {"root": "p", "agent": "a", "path": [{"agent": "b", "call_id": "c", "task_id": "t"}]}
PARENT = {
    "context_id": "p",
    "call_id": "c",
    "scope": "s",
    "depth": 1,
    "limits": {"tokens": 5, "cost_usd": 0.5, "wall_time": 9.0, "iterations": 3, "tool_calls": 2},
    "largest": {"tokens": 5, "cost_usd": 0.1},
    "background": True,
    "lineage": LINEAGE,
    "asked_by": ["ana"],
}
START = {
    "agent": "a",
    "message": MESSAGE,
    "mode": "session",
    "context": {"user": 7},
    "history": "h0",
    "resume": True,
    "idle_timeout": "1h",
    "override": OVERRIDE,
    "store_id": "s",
    "max_history_events": 50,
    "auth_ref": "ref",
    "parent": PARENT,
}


@st.composite
def near(draw: st.DrawFn, whole: Any) -> Any:
    """``whole`` with some of what it is made of replaced, left out, or beside what does not belong there."""
    if draw(st.integers(0, 3)) == 0:
        return draw(VALUES)
    if isinstance(whole, dict) and whole:
        changed = dict(whole)
        for name in draw(st.lists(st.sampled_from(sorted(whole)), max_size=2, unique=True)):
            what = draw(st.sampled_from(["null", "without", "other"]))
            if what == "without":
                del changed[name]
            else:
                changed[name] = None if what == "null" else draw(near(whole[name]))
        if draw(st.integers(0, 9)) == 0:
            changed[draw(st.text(max_size=3))] = draw(VALUES)
        return changed
    if isinstance(whole, list) and whole:
        return [draw(near(whole[0])), *whole[1:]]
    return draw(VALUES)


def idle() -> RunState:
    state = opened(mode="session")
    model(state, says("42"))
    return state


def calling() -> RunState:
    return opened(mode="session")


def approving() -> RunState:
    state = opened(mode="session")
    model(state, asks(waiting("c1"), call("c2")))
    update_approval_waits(state, NOW)
    return state


def questioned() -> RunState:
    state = opened(mode="session")
    model(state, asks(call("c1"), call("c2")))
    apply_question(state, state.calls[0].op, Question(text="Sure?", form={"type": "boolean"}), NOW)
    return state


STATES = st.sampled_from([idle, calling, approving, questioned])
SIGNALS = {
    "inject_user_message": MESSAGE,
    "interrupt": MESSAGE,
    "resume": {"limits": LIMITS, "by": "ana"},
    "child_ended": ENDED,
}
UPDATES = {
    "send_message": ("_check_message", MESSAGE),
    "decide_approval": ("_check_approval", DECISION),
    "revoke_approval": ("_check_revocation", {"tool": "look", "by": "ana"}),
    "answer_call": ("_check_answer", ANSWER),
}
quick = settings(
    max_examples=2 * settings.default.max_examples,  # they are shared among many signals and updates
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    deadline=None,
)


@pytest.fixture(autouse=True)
def no_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    """Input alone is never a fault of the engine, which would leave a mark in history."""

    def mark(name: str) -> None:
        raise AssertionError("a fault") from None

    monkeypatch.setattr(guard, "record_marker", mark)


def is_refusal(error: ApplicationError, kind: str | None = None) -> None:
    assert str(error).encode()
    assert error.type != "EngineError"
    assert kind in (None, error.type)


def lives(state: RunState) -> None:
    """What a run does next works: it is looked at, handed on, read back, and decides the same."""
    shown = build_status(state, NOW.isoformat()).model_dump(mode="json")
    json.dumps(shown).encode()
    build_turn_status(state).model_dump(mode="json")
    carried = json.dumps(build_continuation_input(state, "run-1"), allow_nan=False).encode()
    again = read_continued_state(json.loads(carried), state.context_id)
    assert again == state
    assert decide(again) == decide(state)
    with use_host(cast(Host, Still())):
        list_changed_search_attributes(state, decide(state), {})
        build_waiting_memo(state)


@quick
@given(st.data())
@example(None)
def test_no_signal_fails_a_task(data: Any) -> None:
    if data is None:
        for value in ODD:
            for name in SIGNALS:
                _signal(idle(), name, built(value))
        _signal(idle(), "resume", built({"limits": {"wall_time": [Nested(6_000)]}}))
        return
    name = data.draw(st.sampled_from(sorted(SIGNALS)))
    _signal(data.draw(STATES)(), name, built(data.draw(near(SIGNALS[name]))))


def _signal(state: RunState, name: str, value: Any) -> None:
    workflow = AgentWorkflow()
    with use_host(cast(Host, Still())):
        getattr(workflow, name)(value)  # before the input is read
        workflow._set_state(state)
        lives(state)
        getattr(workflow, name)(value)
        getattr(workflow, name)(value, value)
    lives(state)


@quick
@given(st.data())
@example(None)
def test_no_update_fails_a_task(data: Any) -> None:
    if data is None:
        for value in ODD:
            for name in UPDATES:
                _update(idle(), name, built(value))
        return
    name = data.draw(st.sampled_from(sorted(UPDATES)))
    _update(data.draw(STATES)(), name, built(data.draw(near(UPDATES[name][1]))))


def _update(state: RunState, name: str, value: Any) -> None:
    workflow, check = AgentWorkflow(), UPDATES[name][0]
    with use_host(cast(Host, Still())):
        for begun in (False, True):
            if begun:
                workflow._set_state(state)
            try:
                getattr(workflow, check)(value)
            except ApplicationError as refused:
                is_refusal(refused)
                continue
            if begun:
                try:
                    answer = asyncio.run(getattr(workflow, name)(value))
                except ApplicationError as refused:
                    is_refusal(refused)
                else:
                    json.dumps(answer, allow_nan=False).encode()
    lives(state)


@quick
@given(near(START))
@example(None)
def test_no_start_fails_a_task(start: Any) -> None:
    for value in ODD if start is None else [start]:
        workflow = AgentWorkflow()
        with use_host(cast(Host, Still())):
            try:
                state = workflow._open_run(built(value))
            except ApplicationError as refused:
                is_refusal(refused, "InvalidInputError")
            else:
                lives(state)
