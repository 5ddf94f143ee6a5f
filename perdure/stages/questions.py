"""What there is to say of questions: that a call waits for an answer, and who has given one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ..ports import NewEvent, ToolCall
from ..types.events import QuestionAnswered, QuestionAsked, ToolStarted
from ..types.question import AsCallback, Question
from ..types.wire import ModelOutput


def handed(output: ModelOutput, said: dict[str, Any], owner: str) -> Iterator[NewEvent]:
    """The calls of a reply that a client is to run; not those that somebody has to approve first.

    They begin as any other call does, under the ``owner`` of the model call.
    """
    for call in output.calls:
        how = call.disposition
        if isinstance(how, AsCallback) and call.approval is None:
            begins = ToolStarted(**said, call_id=call.id, name=call.name, arguments=call.arguments)
            yield NewEvent(begins, key=f"tool/{owner}/{call.id}")
            event = QuestionAsked(
                **said,
                call_id=call.id,
                name=call.name,
                kind="callback",
                arguments=call.arguments,
                form=how.form,
                expires_in=how.expires,
            )
            yield NewEvent(event)


def asked(call: ToolCall, question: Question, said: dict[str, Any]) -> NewEvent:
    """The tool asks."""
    event = QuestionAsked(
        **said,
        call_id=call.input.call_id,
        name=call.input.name,
        question=question.text,
        form=question.form,
        expires_in=question.expires,
    )
    return NewEvent(event, key=f"asked/{call.key}")


def answered(call: ToolCall, said: dict[str, Any]) -> NewEvent:
    """The tool goes on with the last of its answers."""
    last = call.input.answers[-1]
    event = QuestionAnswered(
        **said,
        call_id=call.input.call_id,
        name=call.input.name,
        by=last.by,
        answered_at=last.at,
        value=last.value,
        error=last.error,
    )
    return NewEvent(event, key=f"answered/{call.key}")
