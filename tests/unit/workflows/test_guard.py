"""A change of a run's state is made whole or not at all."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any, cast, get_args, get_origin

import pytest
from hypothesis.stateful import invariant
from pydantic import BaseModel

from perdure.errors import EngineError, InvalidInputError, NewerStateError
from perdure.loop.apply import apply_result
from perdure.loop.decide import RecordClosing, Wait, decide
from perdure.loop.finish import build_response
from perdure.loop.lifecycle import cancel_run, fail_run, resume_run
from perdure.types.state import RunState
from perdure.workflows.guard import MUTABLE_TYPES, Guard, Savepoint, _list_mutable_fields
from perdure.workflows.host import Host, use_host
from tests.unit.loop.build import asks, call, model, opened
from tests.unit.loop.test_approvals import asked, waiting
from tests.unit.loop.test_simulation import Loop


class Still:
    """A host where it is always the same time."""

    def now(self) -> datetime:
        return datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture(autouse=True)
def _hosted() -> Iterator[None]:
    with use_host(cast(Host, Still())):
        yield


def models_of(kind: Any, found: set[type[BaseModel]]) -> set[type[BaseModel]]:
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        if kind not in found:
            found.add(kind)
            for field in kind.model_fields.values():
                models_of(field.annotation, found)
    else:
        for part in get_args(kind):
            models_of(part, found)
    return found


def test_all_of_a_state_that_changes_in_place_is_kept() -> None:
    changing = {kind for kind in models_of(RunState, set()) if not kind.model_config.get("frozen")}
    assert len(changing) > 8
    assert all(issubclass(kind, MUTABLE_TYPES) for kind in changing), changing


def kinds_in(annotation: Any) -> Iterator[Any]:
    yield get_origin(annotation) or annotation
    for part in get_args(annotation):
        yield from kinds_in(part)


def test_every_field_that_may_change_in_place_is_copied() -> None:
    changing = (list, dict, *MUTABLE_TYPES)
    for kind in models_of(RunState, set()):
        if not issubclass(kind, MUTABLE_TYPES):
            continue
        may_change = {
            name
            for name, field in kind.model_fields.items()
            for held in kinds_in(field.annotation)
            # also a base class, whose value may be one that changes
            if isinstance(held, type) and any(issubclass(held, one) or issubclass(one, held) for one in changing)
        }
        assert may_change <= set(_list_mutable_fields(kind)), kind


def test_a_savepoint_undoes_everything_and_keeps_the_parts_themselves() -> None:
    state = asked(waiting("c1"), call("c2"))
    before, pending = copy.deepcopy(state), state.calls[1]
    saved = Savepoint(state)
    state.calls[0].approval_wait = None
    apply_result(state, pending.op, cast(Any, build_response(state)))
    state.turn_by_message_id["m9"] = "t9"
    state.refused.append("x")
    assert state.turn is not None
    state.turn.said_by.append("x")
    cancel_run(state)
    assert state != before
    saved.restore()
    assert state == before
    assert state.calls[1] is pending


class Undone(Loop):
    """Whatever may happen to a run, a savepoint of before undoes it: a field whose value changes in place is copied."""

    saved: tuple[RunState, RunState, Savepoint] | None = None
    """The state, a copy of it and its savepoint, as they were before the last rule."""

    @invariant()
    def undoes_the_last_rule(self) -> None:
        state = self.run.state
        if self.saved is not None and self.saved[0] is state:  # another execution has its own
            _, before, savepoint = self.saved
            after, now = copy.deepcopy(state), Savepoint(state)
            savepoint.restore()
            assert state == before
            now.restore()
            assert state == after
        self.saved = state, copy.deepcopy(state), Savepoint(state)


TestUndone = Undone.TestCase


def test_a_change_that_fails_is_undone_and_the_run_pauses() -> None:
    state = opened()
    model(state, asks(call("c1")))
    before = copy.deepcopy(state)

    def fails(_: RunState) -> None:
        state.calls.clear()
        state.op += 5
        raise KeyError("c9")

    assert Guard().change_or_pause(state, "the outcome of a tool call", fails) is None
    assert state.pause is not None
    assert state.pause.reason.startswith("the outcome of a tool call failed: KeyError: 'c9'. Resume the run")
    assert decide(state) == Wait("resumed")
    state.pause = None
    assert state == before


def test_a_refusal_is_passed_on_and_changes_nothing() -> None:
    state = opened()
    before = copy.deepcopy(state)

    def refuses() -> None:
        state.op += 5
        raise InvalidInputError("no")

    with pytest.raises(InvalidInputError):
        Guard().change_or_raise(state, "it", refuses, InvalidInputError)
    with pytest.raises(EngineError, match="it failed: InvalidInputError: no"):
        Guard().change_or_raise(state, "it", refuses)
    assert state == before


def test_a_state_of_a_newer_engine_fails_the_task() -> None:
    def newer(_: RunState) -> None:
        raise NewerStateError("newer")

    with pytest.raises(NewerStateError):
        Guard().change_or_pause(opened(), "it", newer)


def test_a_condition_is_evaluated_once_for_each_change_and_one_that_raises_does_not_hold() -> None:
    state, guard, looked = opened(), Guard(), 0

    def is_closed() -> bool:
        nonlocal looked
        looked += 1
        if state.refused:
            raise ValueError("a fault")
        return state.closed

    is_met = guard.once_per_change(is_closed)
    assert (is_met(), is_met(), looked) == (False, False, 1)
    guard.change_or_pause(state, "it", lambda state: state.refused.append("x"))
    assert (is_met(), is_met(), looked) == (False, False, 2), "the fault is logged once"
    state.refused.clear()
    state.closed = True
    guard.note_change()
    assert (is_met(), looked) == (True, 3)
    assert guard.once_per_change(is_closed)(), "a new wait looks at the state as it is"


@pytest.mark.parametrize("ending", [cancel_run, lambda state: fail_run(state, "X", "y")], ids=["cancelled", "failed"])
def test_an_ending_that_fails_waits_too_and_is_not_tried_again_and_again(ending: Any) -> None:
    state = opened()
    ending(state)
    assert isinstance(decide(state), RecordClosing)

    def fails(_: RunState) -> None:
        raise TypeError("a fault")

    assert Guard().change_or_pause(state, "the input of an ending", fails) is None
    assert decide(state) == Wait("resumed")
    resume_run(state)
    assert isinstance(decide(state), RecordClosing)
