"""What there is to say of a tool call: that it begins, and what it came to."""

from __future__ import annotations

from ..ports import NewEvent, ToolCall
from ..types.elsewhere import After, Before
from ..types.events import ToolCompleted, ToolStarted
from ..types.plain import size
from ..types.wire import INLINE_BYTES, ToolOutput
from . import questions
from .asked import decided
from .occasion import facts, result_key


def tool_begins(call: ToolCall) -> list[NewEvent]:
    """The tool begins, or begins again after a lost worker; and who had approved it."""
    task = call.input
    if task.answers:  # it began before it asked
        return [questions.answered(call, facts(call))]
    if isinstance(task.side, After):  # it has begun elsewhere
        return []
    if task.approval is None:
        return [_tool_started(call)]
    key = result_key(task.scope, task.head, task.call_id)
    return [decided(task.approval, task.call_id, task.name, key, facts(call)), _tool_started(call)]


def _tool_started(call: ToolCall) -> NewEvent:
    task = call.input
    arguments = None if size(dict(call.arguments)) > INLINE_BYTES else dict(call.arguments)
    event = ToolStarted(**facts(call), call_id=task.call_id, name=task.name, arguments=arguments)
    # A call that is run elsewhere begins once, however often the worker looks at it before.
    began = f"began/{result_key(task.scope, task.head, task.call_id)}"
    return NewEvent(event, key=f"tool/{call.owner}" if task.side is None else began)


def tool_ended(call: ToolCall, output: ToolOutput) -> list[NewEvent]:
    """What the call came to: a result, or a question; or it is handed over to whoever runs it."""
    task = call.input
    if output.question is not None:
        return [questions.asked(call, output.question, facts(call))]
    if output.cleared is not None:
        asked = isinstance(task.side, Before) and task.side.client
        return [questions.cleared(call, output.cleared, facts(call))] if asked else []
    event = ToolCompleted(
        **facts(call),
        call_id=task.call_id,
        name=task.name,
        content=output.content or "",
        blob=output.blob,
        files=output.files,
        is_error=output.is_error,
        answered_by=(task.side.answered_by or None) if isinstance(task.side, After) else None,
    )
    return [NewEvent(event, key=result_key(task.scope, task.head, task.call_id))]
