"""When the loop compacts, how often, and where the messages begin that a summary leaves alone."""

from __future__ import annotations

from typing import Any

import pytest

from perdure import loop
from perdure.loop.compaction import MAX_SUMMARIES, MAX_WINDOW_HALVINGS, find_tail_start
from perdure.types.messages import Message, ToolCallPart, ToolResultPart, Usage
from perdure.types.state import RunState, read_state
from perdure.types.wire import FinalAnswer, ModelOutput


def running() -> RunState:
    return loop.create_run_state({"agent": "a", "message": "Hi."}, "c", "s")


def answer(state: RunState, **output: Any) -> None:
    step = loop.decide(state)
    assert isinstance(step, loop.CallModel)
    loop.apply_model(state, step, ModelOutput(head="h1", store_id="store", **output))


def test_a_reply_that_says_so_is_followed_by_a_compaction_and_then_by_the_call() -> None:
    state = running()
    answer(state, compact=True)
    op, carry, usage = state.op, list(state.carry), state.usage
    assert loop.decide(state) == loop.CompactConversation(0)
    assert loop.build_status(state).doing == "compacting"
    loop.apply_compaction(state, ModelOutput(head="h2", usage=Usage(input_tokens=7), cost_usd=0.5))
    assert (state.head, state.op, state.iterations) == ("h2", op + 1, 1)
    assert state.usage == usage + Usage(input_tokens=7)
    assert state.cost_usd == 0.5
    assert state.compaction is not None
    assert state.compaction.behind == "h1", "until there is a reply"
    step = loop.decide(state)
    assert isinstance(step, loop.CallModel)
    assert list(step.new) == carry, "what waits for the model waits on"
    answer(state)
    assert isinstance(loop.decide(state), loop.CallModel)


def test_an_answer_ends_the_run_and_a_session_is_compacted_when_it_goes_on() -> None:
    state = running()
    answer(state, compact=True, finish=FinalAnswer(content="Done."))
    assert loop.decide(state) == loop.EndRun("completed")
    state.mode = "session"
    assert loop.decide(state) == loop.Wait("message")
    loop.accept_message(state, "More.")
    assert loop.decide(state) == loop.CompactConversation(0)


def test_what_is_due_is_carried_over() -> None:
    state = running()
    answer(state, compact=True)
    assert loop.decide(read_state(loop.build_continuation_input(state, "run-1")["state"])) == loop.CompactConversation(
        0
    )


def test_a_refused_call_is_made_shorter_again_and_again_but_not_for_ever() -> None:
    state = running()
    steps: list[loop.NextStep] = []
    ops = {state.op}
    while loop.try_shorten_conversation(state, ["summarise", "window"]):
        assert state.op not in ops
        ops.add(state.op)
        steps.append(step := loop.decide(state))
        if isinstance(step, loop.CompactConversation):
            loop.apply_compaction(state, ModelOutput(head="h"))
        assert isinstance(loop.decide(state), loop.CallModel)
    assert steps[:MAX_SUMMARIES] == [loop.CompactConversation(times) for times in range(MAX_SUMMARIES)]
    assert len(steps) == MAX_SUMMARIES + MAX_WINDOW_HALVINGS
    assert loop.describe_shortening(state) == " (it was summed up 3 times and its window was halved 6 times)"


def test_a_reply_in_between_makes_it_start_anew_but_the_window_stays_tight() -> None:
    state = running()
    assert loop.try_shorten_conversation(state, ["window"])
    assert loop.try_shorten_conversation(state, ["summarise"])
    loop.apply_compaction(state, ModelOutput(head="h"))
    answer(state)
    assert state.compaction is not None
    assert (state.compaction.done, state.compaction.tighter, state.compaction.due) == (0, 1, False)


@pytest.mark.parametrize("ways", [[], ["hope"]])
def test_a_call_that_nothing_makes_shorter_fails(ways: list[str]) -> None:
    state = running()
    assert not loop.try_shorten_conversation(state, ways)
    assert state.compaction is None
    assert loop.describe_shortening(state) == ""


def test_a_run_that_is_cancelled_or_interrupted_is_not_compacted() -> None:
    state = running()
    answer(state, compact=True)
    loop.request_interrupt(state)
    loop.apply_interrupt(state)
    assert not isinstance(loop.decide(state), loop.CompactConversation)
    state = running()
    answer(state, compact=True)
    loop.cancel_run(state)
    assert isinstance(loop.decide(state), loop.RecordClosing)


def test_a_state_without_compaction_is_as_it_was_before() -> None:
    state = running()
    answer(state)
    assert "compaction" not in loop.build_continuation_input(state, "run-1")["state"]


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
