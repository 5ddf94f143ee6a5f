"""A tool call that the model could not write to its end is never run; the model hears of one that its limit cut."""

from __future__ import annotations

import pytest

from perdure import Agent
from perdure.calls.author_loop import AuthorLoop
from perdure.ports.model import Completed
from perdure.testing import ScriptedProvider
from perdure.types.messages import FinishReason, TextPart, ToolCallPart
from perdure.types.tool_calls import RefusedCall
from tests.unit.calls.test_model import author, look, reply

__all__ = ["author"]

WHOLE = ToolCallPart(id="1", name="look", arguments={"where": "here"})
CUT = ToolCallPart(id="2", name="look", malformed='{"where": "he')


@pytest.mark.parametrize("reason", ["content_filter", "refusal"])
async def test_a_call_that_was_cut_off_is_none(author: AuthorLoop, reason: FinishReason) -> None:
    completed = Completed((TextPart(text="Let me see."), WHOLE, CUT), reason)
    answered = await reply(Agent("a", ScriptedProvider([completed]), tools=[look]), author)
    assert [one.id for one in answered.output.calls] == ["1"]
    assert answered.message is not None
    assert [part.id for part in answered.message.tool_calls] == ["1"]


async def test_a_call_that_the_output_limit_cut_is_refused_and_says_so(author: AuthorLoop) -> None:
    completed = Completed((TextPart(text="Let me see."), WHOLE, CUT), "length")
    answered = await reply(Agent("a", ScriptedProvider([completed]), tools=[look]), author)
    whole, cut = answered.output.calls
    assert not isinstance(whole.disposition, RefusedCall)
    assert isinstance(cut.disposition, RefusedCall)
    assert "the output limit cut your reply within this call of look" in cut.disposition.text
    assert "13 characters of its arguments came" in cut.disposition.text
    assert (answered.output.cut, answered.output.finish, answered.output.reminder) == (True, None, None)


@pytest.mark.parametrize("text", ["", "  ", "Half of what"])
async def test_a_cut_reply_without_an_answer_gets_a_message_that_says_so(author: AuthorLoop, text: str) -> None:
    agent = Agent("a", ScriptedProvider([Completed((TextPart(text=text),), "length")]), finish="tag")
    answered = await reply(agent, author)
    assert (answered.output.cut, answered.output.finish) == (True, None)
    assert (answered.output.reminder or "").startswith("The output limit cut your last reply before it had an answer")


async def test_a_cut_text_is_the_answer_of_an_agent_that_answers_with_text(author: AuthorLoop) -> None:
    agent = Agent("a", ScriptedProvider([Completed((TextPart(text="Half of what"),), "length")]))
    answered = await reply(agent, author)
    assert answered.output.finish is not None
    assert (answered.output.finish.content, answered.output.finish_reason) == ("Half of what", "length")
    assert not answered.output.cut


async def test_a_call_that_is_only_malformed_is_refused(author: AuthorLoop) -> None:
    answered = await reply(Agent("a", ScriptedProvider([Completed((CUT,), "tool_calls")]), tools=[look]), author)
    (asked,) = answered.output.calls
    assert isinstance(asked.disposition, RefusedCall)
