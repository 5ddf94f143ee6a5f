"""When the loop compacts, how often, and where the messages begin that a summary leaves alone."""

from __future__ import annotations

from typing import Any

import pytest

from perdure.loop.apply import apply_model
from perdure.loop.compaction import (
    MAX_SUMMARIES,
    MAX_WINDOW_HALVINGS,
    CompactConversation,
    apply_compaction,
    describe_shortening,
    find_turn_task,
    try_shorten_conversation,
)
from perdure.loop.decide import CallModel, EndRun, NextStep, RecordClosing, Wait, decide
from perdure.loop.finish import REMINDER_ID
from perdure.loop.lifecycle import (
    apply_interrupt,
    build_continuation_input,
    cancel_run,
    create_run_state,
    request_interrupt,
)
from perdure.loop.messages import accept_message
from perdure.loop.status import build_status
from perdure.loop.transcript import SUMMARY_ID, find_tail_start
from perdure.types.interface import FINISH_TOOL
from perdure.types.messages import Message, ToolCallPart, ToolResultPart, Usage
from perdure.types.state import RunState, read_state
from perdure.types.wire import CompactOutput, FinalAnswer, ModelOutput


def running() -> RunState:
    return create_run_state({"agent": "a", "message": "Hi."}, "c", "s")


def answer(state: RunState, **output: Any) -> None:
    step = decide(state)
    assert isinstance(step, CallModel)
    apply_model(state, step, ModelOutput(head="h1", store_id="store", **output))


def test_a_reply_that_says_so_is_followed_by_a_compaction_and_then_by_the_call() -> None:
    state = running()
    answer(state, compact=True)
    op, carry, usage = state.op, list(state.unsent), state.usage
    assert decide(state) == CompactConversation(0)
    assert build_status(state).doing == "compacting"
    apply_compaction(state, CompactOutput(head="h2", usage=Usage(input_tokens=7), cost_usd=0.5))
    assert (state.head, state.op, state.iterations) == ("h2", op + 1, 1)
    assert state.usage == usage + Usage(input_tokens=7)
    assert state.cost_usd == 0.5
    assert state.compaction is not None
    assert state.compaction.refused_head == "h1", "until there is a reply"
    step = decide(state)
    assert isinstance(step, CallModel)
    assert list(step.new) == carry, "what waits for the model waits on"
    answer(state)
    assert isinstance(decide(state), CallModel)


def test_an_answer_ends_the_run_and_a_session_is_compacted_when_it_goes_on() -> None:
    state = running()
    answer(state, compact=True, finish=FinalAnswer(content="Done."))
    assert decide(state) == EndRun("completed")
    state.mode = "session"
    assert decide(state) == Wait("message")
    accept_message(state, "More.")
    assert decide(state) == CompactConversation(0)


def test_what_is_due_is_carried_over() -> None:
    state = running()
    answer(state, compact=True)
    assert decide(read_state(build_continuation_input(state, "run-1")["state"])) == CompactConversation(0)


def test_a_refused_call_is_made_shorter_again_and_again_but_not_for_ever() -> None:
    state = running()
    steps: list[NextStep] = []
    ops = {state.op}
    while try_shorten_conversation(state, ["summarise", "window"]):
        assert state.op not in ops
        ops.add(state.op)
        steps.append(step := decide(state))
        if isinstance(step, CompactConversation):
            apply_compaction(state, CompactOutput(head="h"))
        assert isinstance(decide(state), CallModel)
    assert steps[:MAX_SUMMARIES] == [CompactConversation(times) for times in range(MAX_SUMMARIES)]
    assert len(steps) == MAX_SUMMARIES + MAX_WINDOW_HALVINGS
    assert describe_shortening(state) == " (it was summed up 3 times and its window was halved 6 times)"


def test_a_reply_in_between_makes_it_start_anew_but_the_window_stays_tight() -> None:
    state = running()
    assert try_shorten_conversation(state, ["window"])
    assert try_shorten_conversation(state, ["summarise"])
    apply_compaction(state, CompactOutput(head="h"))
    answer(state)
    assert state.compaction is not None
    assert (state.compaction.summaries, state.compaction.window_halvings, state.compaction.is_due) == (0, 1, False)


@pytest.mark.parametrize("ways", [[], ["hope"]])
def test_a_call_that_nothing_makes_shorter_fails(ways: list[str]) -> None:
    state = running()
    assert not try_shorten_conversation(state, ways)
    assert state.compaction is None
    assert describe_shortening(state) == ""


def test_a_run_that_is_cancelled_or_interrupted_is_not_compacted() -> None:
    state = running()
    answer(state, compact=True)
    request_interrupt(state)
    apply_interrupt(state)
    assert not isinstance(decide(state), CompactConversation)
    state = running()
    answer(state, compact=True)
    cancel_run(state)
    assert isinstance(decide(state), RecordClosing)


def test_a_state_without_compaction_is_as_it_was_before() -> None:
    state = running()
    answer(state)
    assert "compaction" not in build_continuation_input(state, "run-1")["state"]


# --- where the last messages begin

CALL = Message.assistant("", ToolCallPart(id="1", name="f"), ToolCallPart(id="2", name="f"))
RESULT = Message(role="tool", parts=(ToolResultPart(call_id="1", name="f"), ToolResultPart(call_id="2", name="f")))
USER = Message.user("Hi.")
REPLY = Message.assistant("Hello.")


@pytest.mark.parametrize(
    ("messages", "keep", "begin"),
    [
        ([], 0, 0),
        ([], 3, 0),
        ([USER], 0, 1),
        ([USER, REPLY], 0, 2),
        ([USER, REPLY], 1, 1),
        ([USER, REPLY], 9, 0),
        ([USER, CALL], 0, 1),
        ([USER, CALL, RESULT], 0, 3),
        ([USER, CALL, RESULT], 1, 1),
        ([USER, CALL, RESULT, USER, REPLY], 3, 1),
        ([USER, CALL, RESULT, CALL], 1, 3),
        ([USER, CALL, RESULT, CALL], 2, 1),
    ],
)
def test_a_call_stays_with_its_results(messages: list[Message], keep: int, begin: int) -> None:
    assert find_tail_start(messages, keep) == begin


def _chat(text: str) -> list[Message]:
    """One message for each letter: of the user, a reply, a reply with a call, its result, a summary, a reminder;
    the result of an accepted (``f``) and of a refused (``x``) answer by ``FINISH_TOOL``."""
    made = {
        "u": Message.user("Do it."),
        "a": Message.assistant("Done."),
        "c": Message(role="assistant", parts=(ToolCallPart(id="1", name="look", arguments={}),)),
        "t": Message(role="tool", parts=(ToolResultPart(call_id="1", name="look", content="42"),)),
        "f": Message(role="tool", parts=(ToolResultPart(call_id="1", name=FINISH_TOOL, content="Accepted."),)),
        "x": Message(role="tool", parts=(ToolResultPart(call_id="1", name=FINISH_TOOL, content="No.", is_error=True),)),
        "S": Message.user("So far: …", id=SUMMARY_ID),
        "R": Message.user("Go on.", id=REMINDER_ID),
    }
    return [made[letter] for letter in text]


@pytest.mark.parametrize(
    ("chat", "iteration", "task"),
    [
        ("", 0, []),
        ("uctct", 2, [0]),
        ("uaucatu", 0, [6]),  # a turn without a message, behind one that was stopped
        ("uua", 0, []),  # the turn's messages are not recorded yet
        ("uuct", 1, [0, 1]),
        ("uuctcf", 0, []),  # nor of this one
        ("uucx", 0, [0, 1]),  # stopped without an answer
        ("uucf", 1, [0, 1]),  # it goes on behind its answer
        ("uauctct", 2, [2]),
        ("uauctuctuct", 3, [2]),  # what is injected later is no task
        ("uauRctct", 2, [2]),
        ("uaRct", 1, [0]),  # a turn that began without a message goes on with the last one before
        ("Suctct", 9, [1]),  # the replies before the summary are not there
        ("Suuctct", 9, [1, 2]),
        ("Sctctauct", 1, [6]),
        ("Sctct", 5, []),
        ("uctctat", 7, [0]),
    ],
)
def test_the_messages_that_began_the_turn(chat: str, iteration: int, task: list[int]) -> None:
    assert list(find_turn_task(_chat(chat), iteration)) == task
