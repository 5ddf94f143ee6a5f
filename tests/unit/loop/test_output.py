"""Answers that are given by the finish tool: what the loop makes of those that will do, and of those that will not."""

from __future__ import annotations

from typing import Any

import pytest

from perdure.loop.finish import (
    REMINDER_ID,
    build_force_finish_text,
    build_output,
    build_reminder_text,
    build_response,
    extract_answer,
)
from perdure.loop.lifecycle import request_interrupt
from perdure.loop.messages import receive_message
from perdure.types.interface import FINISH_TOOL
from perdure.types.limits import LimitUse
from perdure.types.messages import BlobRef, Message
from perdure.types.state import RunState
from perdure.types.tool_calls import AnsweredCall, Call, RefusedCall
from perdure.types.wire import AgentLimits, FinalAnswer, ModelOutput, NewMessage, TurnFailure
from tests.unit.loop.build import carried_over

from .build import ACTIVITY, call, close, ended, model, opened, running, said, says

LIMITS = AgentLimits(max_iterations=2, protocol="tool")
TYPED = FinalAnswer(content='{"n": 1}', called=True, typed=True)


def asked(id: str, disposition: Any) -> Call:
    return Call(id=id, name=FINISH_TOOL, arguments={}, disposition=disposition)


def output(*calls: Call, **more: Any) -> ModelOutput:
    return ModelOutput(head="h", store_id="s", calls=calls, **{"limits": LIMITS, **more})


ACCEPTED = asked("f", AnsweredCall(text="Accepted."))
WRONG = asked("f", RefusedCall(text="n: missing"))


def forced() -> RunState:
    """A run whose model has to finish now."""
    state = opened()
    for _ in range(2):
        model(state, output(rejected=True, reminder="No."))
    return state


def test_an_answer_of_a_type_ends_the_turn_and_its_calls_are_closed() -> None:
    state = opened()
    model(state, output(ACCEPTED, call("c1", AnsweredCall(text="not run", is_error=True)), finish=TYPED))
    assert (state.calls, state.unsent, state.op) == ([], [], 3)
    assert ended(state) == "completed"
    response = build_response(state)
    assert (response.content, response.output, response.typed, response.finish_called) == (
        '{"n": 1}',
        {"n": 1},
        True,
        True,
    )


def test_a_large_one_is_in_the_store() -> None:
    state = opened()
    blob = BlobRef(hash="a" * 64, size=9)
    model(state, output(ACCEPTED, text="So.", finish=TYPED.model_copy(update={"content": "", "blob": blob})))
    response = build_response(state)
    assert (response.content, response.blob, response.output, response.typed) == ("", blob, None, True)


def test_a_wrong_one_is_told_and_other_calls_beside_it_run() -> None:
    state = opened()
    model(state, output(WRONG, call("c1", ACTIVITY), rejected=True))
    assert running(state) == [("c1", 2)]
    assert state.turn is not None
    assert state.turn.rejected == 1


def test_how_many_will_not_do_is_counted_until_one_does() -> None:
    state = opened()
    model(state, output(WRONG, rejected=True))
    step = model(state, output(ACCEPTED, finish=TYPED))
    assert said(step) == ["=f"]
    assert state.turn is not None
    assert state.turn.rejected == 0


@pytest.mark.parametrize("reply", ["words", "calls", "others"])
def test_a_forced_answer_that_will_not_do_is_asked_for_again(reply: str) -> None:
    state = forced()
    calls = {"words": (), "calls": (WRONG,), "others": (call("c1", ACTIVITY),)}[reply]
    step = model(state, output(*calls, rejected=True, reminder=None if calls else "In no words."))
    assert step.limit is not None
    again = model(state, output(ACCEPTED, finish=TYPED))
    assert again.limit is not None
    assert said(again)[0] == {"words": "In no words.", "calls": "=f", "others": "=c1"}[reply]
    assert isinstance(again.new[-1], NewMessage)
    assert again.new[-1].id == REMINDER_ID
    assert build_response(state).finish_reason == "limit"
    assert build_response(state).output == {"n": 1}


@pytest.mark.parametrize("begin", [opened, forced])
def test_a_reply_that_fails_the_run_is_recorded_and_closed(begin: Any) -> None:
    state = begin()
    failed = TurnFailure(type="ParseError", message="no output")
    model(state, output(asked("f", AnsweredCall(text="wrong", is_error=True)), rejected=True, failed=failed))
    step = close(state)
    assert (step.new, step.closing.error_type, step.closing.error) == ((), "ParseError", "no output")
    assert ended(state) == "failed"


def test_at_other_limits_there_is_no_output() -> None:
    state = opened()
    limits = LIMITS.model_copy(update={"max_iterations": 1, "on_limit": "return"})
    model(state, output(text="Thinking.", limits=limits))
    response = build_response(state)
    assert (response.content, response.output, response.finish_reason) == ("Thinking.", None, "limit")


@pytest.mark.parametrize(
    ("content", "typed", "called", "protocol", "found"),
    [
        ("[1]", True, True, "tool", [1]),
        ("null", True, True, "tool", None),
        ("not JSON any more", True, True, "tool", "not JSON any more"),
        ("so", False, True, "tool", "so"),
        ("so", False, False, "tool", None),
        ("so", False, False, "text", "so"),
        ("[1]", False, True, "tag", "[1]"),
    ],
)
def test_what_the_output_is(content: str, typed: bool, called: bool, protocol: Any, found: Any) -> None:
    assert build_output(content, typed=typed, called=called, protocol=protocol) == found
    if called:
        assert FinalAnswer(content=content, called=called, typed=typed).output == found


def test_no_text_is_the_answer_but_a_refusal() -> None:
    assert extract_answer("tool", Message.assistant("42"), "stop") is None
    assert extract_answer("tool", Message.assistant("No."), "refusal") == FinalAnswer(content="No.")


def test_the_model_is_told_which_tool_it_is() -> None:
    limit = LimitUse(name="max_iterations", scope="turn", used=3, allowed=3)
    assert f"by calling {FINISH_TOOL}" in build_force_finish_text("tool", limit)
    assert "cannot call other tools" in build_force_finish_text("tool", limit)
    assert FINISH_TOOL in build_reminder_text("tool")


def test_an_input_is_carried_as_its_json() -> None:
    state = opened(None)
    assert receive_message(state, {"input": {"text": "ж"}, "id": "1"})
    (item,) = state.inbox
    assert isinstance(item, NewMessage)
    assert (item.content, item.typed) == ('{"text": "ж"}', True)
    assert carried_over(state).inbox == [item]


@pytest.mark.parametrize("raw", [{"input": {"a": 1}, "content": "x"}, {"input": [1]}, {"input": None}, {}])
def test_what_is_no_input(raw: Any) -> None:
    state = opened(None)
    assert not receive_message(state, raw)
    assert len(state.refused) == 1


def test_an_input_interrupts() -> None:
    state = opened()
    request_interrupt(state, {"input": {"a": 1}})
    assert state.interrupt == "go on"


@pytest.mark.parametrize("text", ["[" * 20_000, "[" * 300 + "]" * 300, "NaN", "{"])
def test_what_no_history_can_carry_as_a_value_is_a_text(text: str) -> None:
    """A hook may put any text into the place of a typed answer. The workflow reads it: it may not fail there."""
    state = opened()
    model(state, says(text).model_copy(update={"finish": FinalAnswer(content=text, typed=True)}))
    found = build_response(state)
    assert found.output == text
    assert found.model_dump(mode="json")["output"] == text
