"""A tool call that the model could not write to its end is never run, nor kept."""

from __future__ import annotations

import pytest

from perdure import Agent
from perdure.activities import AuthorLoop
from perdure.ports import Completed
from perdure.testing import ScriptedProvider
from perdure.types.messages import FinishReason, TextPart, ToolCallPart
from perdure.types.tool_calls import RefusedCall
from tests.unit.activities.test_model import author, look, reply

__all__ = ["author"]

WHOLE = ToolCallPart(id="1", name="look", arguments={"where": "here"})
CUT = ToolCallPart(id="2", name="look", malformed='{"where": "he')


@pytest.mark.parametrize("reason", ["length", "content_filter", "refusal"])
async def test_a_call_that_was_cut_off_is_none(author: AuthorLoop, reason: FinishReason) -> None:
    completed = Completed((TextPart(text="Let me see."), WHOLE, CUT), reason)
    answered = await reply(Agent("a", ScriptedProvider([completed]), tools=[look]), author)
    assert [one.id for one in answered.output.calls] == ["1"]
    assert answered.message is not None
    assert [part.id for part in answered.message.tool_calls] == ["1"]


async def test_a_call_that_is_only_malformed_is_refused(author: AuthorLoop) -> None:
    answered = await reply(Agent("a", ScriptedProvider([Completed((CUT,), "tool_calls")]), tools=[look]), author)
    (asked,) = answered.output.calls
    assert isinstance(asked.disposition, RefusedCall)
