"""What there is to say of questions: that a call waits for an answer, and who has given one."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from ..ports import NewEvent, ToolCall
from ..types.elsewhere import Before, Cleared
from ..types.events import QuestionAnswered, QuestionAsked, ToolStarted
from ..types.plain import size
from ..types.question import AsCallback, Question
from ..types.wire import INLINE_BYTES, Answered, AsActivity, AsRemote, Call, Inline, ModelInput, ModelOutput, Refused


def handed(task: ModelInput, output: ModelOutput, said: dict[str, Any], owner: str) -> Iterator[NewEvent]:
    """The calls of a reply that other workers or a client are to run, and nothing stands between.

    They are handed over with the reply, under the ``owner`` of the model call. Of the others their own activities say
    so: of those that somebody has to approve, that hooks are to see, or that a limit holds back.
    """
    for call in begin_at_once(task, output):
        begins = ToolStarted(**said, call_id=call.id, name=call.name, arguments=_shown(call.arguments))
        yield NewEvent(begins, key=f"tool/{owner}/{call.id}")
        if isinstance(how := call.disposition, AsCallback):
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


def begin_at_once(task: ModelInput, output: ModelOutput) -> Iterator[Call]:
    """The calls that are handed over as soon as the reply is recorded; limits count as the loop does (``admit``)."""
    bounds = [one.tool_calls for one in (output.limits.run, output.limits.turn) if one and one.tool_calls is not None]
    left = task.calls_left if task.calls_left is not None else min(bounds, default=math.inf)
    ways = [call.disposition for call in output.calls]
    left -= sum(isinstance(how, Inline) or (isinstance(how, AsActivity) and how.inline) for how in ways)
    for call in output.calls:
        how = call.disposition
        if isinstance(how, Inline | Refused | Answered) or (isinstance(how, AsActivity) and how.inline):
            continue
        left -= 1
        if left < 0 or call.approval is not None or not isinstance(how, AsRemote | AsCallback):
            continue
        if not how.around.before:
            yield call


def cleared(call: ToolCall, how: Cleared, said: dict[str, Any]) -> NewEvent:
    """A client is to run the call, as nothing stands before it any more."""
    task = call.input
    assert isinstance(task.side, Before), "it is looked at"
    event = QuestionAsked(
        **said,
        call_id=task.call_id,
        name=task.name,
        kind="callback",
        arguments=dict(call.arguments) if how.arguments is None else how.arguments,
        form=task.side.form,
        expires_in=task.side.expires,
    )
    return NewEvent(event, key=f"asked/{call.key}")


def _shown(arguments: dict[str, Any] | None) -> dict[str, Any] | None:
    return None if size(arguments) > INLINE_BYTES else arguments


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
