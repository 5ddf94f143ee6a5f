"""A turn from message to answer: replies, calls, reminders, limits, and the operation numbers of it all."""

from __future__ import annotations

import pytest

from perdure.loop.apply import apply_result
from perdure.loop.decide import Wait, decide
from perdure.loop.finish import REMINDER_ID, build_force_finish_text, build_reminder_text, build_response
from perdure.loop.messages import receive_message
from perdure.types.messages import BlobRef, Usage
from perdure.types.tool_calls import SubagentCall
from perdure.types.wire import AgentLimits, FinalAnswer, NewResult

from .build import asks, call, close, done, empty, ended, inline, model, opened, refused, result, running, said, says

BLOB = BlobRef(hash="f" * 64, size=99)


def limits(on_limit="finish", most=2, protocol="text"):
    return AgentLimits(max_iterations=most, on_limit=on_limit, protocol=protocol)


def test_text_is_the_answer():
    state = opened()
    step = model(state, says("42", usage=Usage(input_tokens=5, output_tokens=2), cost_usd=0.25))
    assert (said(step), step.limit, ended(state)) == (["hi"], None, "completed")
    response = build_response(state)
    assert (response.content, response.output, response.finish_reason) == ("42", "42", "stop")
    assert (response.iterations, response.calls, response.usage.total_tokens, response.cost_usd) == (1, 1, 7, 0.25)
    assert (response.head, response.store_id) == ("h-42", "s")
    assert (response.context_id, response.task_id) == ("context-1", "scope-12345-1")


def test_a_long_answer_is_a_reference():
    state = opened()
    model(state, says("", blob=BLOB))
    response = build_response(state)
    assert (response.content, response.blob, response.output) == ("", BLOB, None)


def test_results_come_in_the_order_of_the_calls_whatever_their_kind():
    state = opened()
    model(state, asks(call("c1"), refused("c2"), inline("c3"), call("c4")))
    assert running(state) == [("c1", 1), ("c4", 4)]
    done(state, "c4", "c1")
    step = model(state, says("42"))
    assert said(step) == ["=c1", "=c2", "=c3", "=c4"]
    assert step.new[1] == NewResult(call_id="c2", name="look", text="tool not found: look", is_error=True)
    assert step.new[2] == NewResult(call_id="c3", name="look", key="key-c3")


@pytest.mark.parametrize("calls", [(refused("c1"),), (inline("c1"),), (inline("c1"), refused("c2"))])
def test_calls_that_need_no_activity_go_straight_back(calls):
    state = opened()
    model(state, asks(*calls))
    assert said(model(state, says("42"))) == [f"={one.id}" for one in calls]


def test_a_subagent_is_a_call_to_run():
    state = opened()
    model(state, asks(call("c1", SubagentCall(agent="b", message="go"))))
    assert running(state) == [("c1", 1)]


def test_the_first_result_of_a_call_counts():
    state = opened()
    model(state, asks(call("c1"), call("c2")))
    apply_result(state, 1, result("c1", "first"))
    apply_result(state, 1, result("c1", "second"))
    apply_result(state, 99, result("c9"))
    apply_result(state, 2, result("c2"))
    apply_result(state, 2, result("c2", "late"))
    step = model(state, says("42"))
    assert [item.text for item in step.new] == ["first", "found"]


def test_operations_are_numbered_through():
    state = opened()
    assert state.op == 0
    model(state, asks(call("c1"), refused("c2"), call("c3")))
    assert (running(state), state.op) == ([("c1", 1), ("c3", 3)], 4)
    done(state, "c1", "c3")
    model(state, asks(call("c1")))
    assert (running(state), state.op) == ([("c1", 5)], 6)


@pytest.mark.parametrize("protocol", ["text", "tag"])
def test_a_reply_that_is_nothing_gets_a_reminder(protocol):
    state = opened()
    model(state, empty(limits(most=9, protocol=protocol)))
    receive_message(state, "more")
    step = model(state, empty(limits(most=9, protocol=protocol)))
    assert said(step) == [build_reminder_text(protocol), "more"]
    assert step.new[0].id == REMINDER_ID
    assert said(model(state, says("42"))) == [build_reminder_text(protocol)]
    assert ended(state) == "completed"


def test_answer_and_calls_together_first_run_the_calls():
    state = opened()
    model(state, asks(call("c1"), finish=FinalAnswer(content="42")))
    assert running(state) == [("c1", 1)]
    done(state, "c1")
    assert said(close(state)) == ["=c1"]
    assert (ended(state), build_response(state).content) == ("completed", "42")


# --- limits


def test_at_the_limit_the_answer_is_asked_for_with_the_last_results():
    state, given = opened(), limits()
    model(state, asks(call("c1"), limits=given))
    done(state, "c1")
    model(state, asks(call("c2"), limits=given))
    done(state, "c2")
    receive_message(state, "hurry")
    step = model(state, says("42", given))
    assert (step.limit is not None, step.taken_from_inbox) == (True, 1)
    assert said(step) == ["=c2", "hurry", build_force_finish_text("text", step.limit)]
    assert str(step.limit) == "the turn has used 2 of 2 iterations (max_iterations)"
    assert close(state).closing.response["finish_reason"] == "limit"
    assert (ended(state), build_response(state).content, state.turn.iteration) == ("completed", "42", 3)


def test_a_forced_reply_is_the_answer_whatever_it_is():
    state, given = opened(), limits(most=1)
    model(state, empty(given))
    model(state, asks(call("c2"), limits=given, text="so far"))
    step = close(state)
    assert (said(step), step.new[0].is_error) == (["=c2"], True)
    assert (ended(state), build_response(state).content) == ("completed", "so far")


def test_return_gives_the_last_text_after_the_last_calls():
    state, given = opened(), limits("return", most=1)
    model(state, asks(call("c1"), refused("c2"), limits=given, text="so far", blob=BLOB))
    assert running(state) == [("c1", 1)]
    done(state, "c1")
    step = close(state, "h-end")
    assert said(step) == ["=c1", "=c2"]
    assert (step.closing.status, step.closing.response["content"]) == ("completed", "so far")
    response = build_response(state)
    assert (ended(state), response.finish_reason, response.blob, response.head) == ("completed", "limit", BLOB, "h-end")


@pytest.mark.parametrize("reply", [empty, lambda given: asks(refused(), limits=given)])
def test_return_is_recorded_also_when_there_is_nothing_left_to_run(reply):
    state = opened()
    model(state, reply(limits("return", most=1)))
    assert close(state).closing.status == "completed"
    assert ended(state) == "completed"


def test_a_reminder_that_nobody_will_read_is_not_recorded():
    for how in ("return", "error"):
        state = opened()
        model(state, empty(limits(how, most=1)))
        assert said(close(state)) == []
    state = opened(mode="session")
    model(state, empty(limits("return", most=1)))
    receive_message(state, "next")
    assert said(model(state, says("42"))) == ["next"]


def test_error_fails_after_the_last_calls():
    state, given = opened(), limits("error", most=2)
    model(state, asks(call("c1"), limits=given))
    done(state, "c1")
    model(state, asks(call("c2"), limits=given))
    assert running(state) == [("c2", 3)]
    done(state, "c2")
    step = close(state)
    assert (said(step), step.closing.error_type) == (["=c2"], "MaxIterationsError")
    assert step.closing.error == "agent a did not finish within 2 iterations"
    assert ended(state) == "failed"


@pytest.mark.parametrize("how", ["finish", "return", "error"])
def test_an_answer_in_the_last_iteration_is_in_time(how):
    state, given = opened(), limits(how, most=1)
    model(state, says("42", given))
    assert (ended(state), build_response(state).finish_reason) == ("completed", "stop")


@pytest.mark.parametrize("how", ["finish", "return", "error"])
def test_a_message_after_the_last_iteration_gets_an_answer_and_no_tools(how):
    state, given = opened(), limits(how, most=1)
    model(state, says("42", given))
    receive_message(state, "sure?")
    step = model(state, says("43", given))
    assert (step.limit is not None, said(step)[0], build_response(state).content) == (True, "sure?", "43")


def test_a_message_during_the_last_calls_still_gets_an_answer_under_return():
    state, given = opened(), limits("return", most=1)
    model(state, asks(call("c1"), limits=given))
    receive_message(state, "wait")
    done(state, "c1")
    step = model(state, says("43", given))
    assert (step.limit is not None, said(step)[:2]) == (True, ["=c1", "wait"])


def test_every_turn_of_a_session_has_its_own_iterations():
    state, given = opened(mode="session"), limits(most=1)
    for n in range(3):
        assert model(state, says(str(n), given)).limit is None
        receive_message(state, "next")
    assert (state.turns, state.iterations) == (4, 3)


def test_the_results_of_a_turn_that_ended_at_the_limit_are_recorded_before_the_next_one():
    state, given = opened(mode="session"), limits("return", most=1)
    model(state, asks(call("c1"), limits=given))
    done(state, "c1")
    step = close(state)
    assert (said(step), step.closing.status) == (["=c1"], "waiting")
    assert decide(state) == Wait("message")
    receive_message(state, "next")
    assert said(model(state, says("42"))) == ["next"]


def test_a_message_that_comes_first_takes_such_results_along():
    state, given = opened(mode="session"), limits("return", most=1)
    model(state, asks(call("c1"), limits=given))
    done(state, "c1")
    receive_message(state, "next")
    assert said(model(state, says("42"))) == ["=c1", "next"]


def test_the_results_of_a_turn_that_ended_at_the_limit_are_recorded_when_the_session_closes():
    state, given = opened(mode="session"), limits("return", most=1)
    model(state, asks(call("c1"), limits=given))
    done(state, "c1")
    state.closed = True
    assert said(close(state)) == ["=c1"]
    assert ended(state) == "completed"
