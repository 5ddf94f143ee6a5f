"""``ctx.ask`` by itself."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from datetime import date
from typing import Any, Literal

import pytest
from pydantic import BaseModel, Field

from perdure import ToolContext
from perdure.context.run_context import QuestionSuspension
from perdure.errors import QuestionDeclinedError
from perdure.types.tool_calls import ToolAnswer


class Trip(BaseModel):
    to: str = Field(alias="destination")
    on: date


async def test_answers_come_in_order_and_then_it_asks() -> None:
    ctx = ToolContext(answers=["savings", 3])
    assert await ctx.ask("Which account?") == "savings"
    assert await ctx.ask("How much?", float) == 3.0
    assert ctx.questions.open_question is None
    with pytest.raises(QuestionSuspension) as asked:
        await ctx.ask("Sure?", bool, expires="1h")
    assert not isinstance(asked.value, Exception)
    question = asked.value.question
    assert ctx.questions.open_question == question
    assert (question.text, question.form, question.expires) == ("Sure?", {"type": "boolean"}, 3600)


async def test_an_answer_is_of_the_type_that_was_asked_for() -> None:
    given = Trip(destination="Rome", on=date(2026, 1, 2))
    ctx = ToolContext(answers=[given, {"destination": "Oslo", "on": "2026-01-03"}, "b", {"any": None}])
    assert await ctx.ask("Where?", Trip) == given
    assert (await ctx.ask("Where then?", Trip)).on == date(2026, 1, 3)
    assert await ctx.ask("Which?", Literal["a", "b"]) == "b"
    assert await ctx.ask("What?", {"type": "object"}) == {"any": None}


async def test_what_does_not_fit_is_asked_again_until_it_does() -> None:
    ctx = ToolContext(answers=["x", "y"])
    with pytest.raises(QuestionSuspension, match="How many") as asked:
        await ctx.ask("How many?", int)
    assert asked.value.question.text.startswith("How many?\nThe answer before does not fit:\n- ")
    assert 'given: "y"' in asked.value.question.text
    assert await ToolContext(answers=["x", "y", 3]).ask("How many?", int) == 3


async def test_an_answer_that_is_none_raises() -> None:
    ctx = ToolContext(answers=[ToolAnswer(error="too late", by="ana"), 1])
    with pytest.raises(QuestionDeclinedError, match="ana did not answer 'Sure\\?': too late"):
        await ctx.ask("Sure?")
    assert await ctx.ask("And now?") == 1


async def test_whatever_swallows_it_the_question_stands() -> None:
    ctx = ToolContext()
    with suppress(BaseException):
        await asyncio.gather(ctx.ask("First?"), ctx.ask("Second?"))
    assert ctx.questions.open_question is not None
    assert ctx.questions.open_question.text == "First?"


def test_a_plain_function_uses_blocking() -> None:
    ctx = ToolContext(answers=[1])
    with pytest.raises(RuntimeError, match=r"write ctx.blocking.ask\(…\) there"):
        ctx.ask("How many?", int)
    assert ctx.blocking.ask("How many?", int) == 1


@pytest.mark.parametrize(
    ("text", "schema", "expires", "match"),
    [
        ("", None, None, "a question is a text"),
        (3, None, None, "a question is a text"),
        ("x" * 4001, None, None, "has 4,001 characters"),
        ("?", object(), None, "not a type that pydantic can take"),
        ("?", {"x": object()}, None, "must be plain JSON"),
        ("?", None, "soon", "not a duration"),
    ],
)
def test_what_cannot_be_asked_is_an_error_at_once(text: Any, schema: Any, expires: Any, match: str) -> None:
    ctx = ToolContext(answers=[1])
    with pytest.raises((TypeError, ValueError), match=match):
        ctx.blocking.ask(text, schema, expires=expires)
    assert ctx.questions.open_question is None
