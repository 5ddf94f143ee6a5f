"""Rows of a run, its turn and its usage, written with each call.

They are for lists, and for clients once Temporal has deleted the run.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from pydantic import ValidationError

from ..loop.finish import REMINDER_ID, build_output
from ..ports.run_lists import summarize_text
from ..ports.store import ERROR_CHARS, FIRST_MESSAGE_CHARS, RunRow, TurnRow
from ..ports.usage import UsageRow
from ..types.interface import Response
from ..types.messages import NAME_CHARS, FilePart, Message, Usage, clean_text
from ..types.wire import (
    CloseInput,
    CompactInput,
    ConversationFacts,
    FinalAnswer,
    ModelInput,
    ModelOutput,
    NewItem,
    NewMessage,
)
from .call import CloseCall, CompactCall, ModelCall


def build_run_row(
    call: ModelCall | CompactCall, head: str | None, answer: Response | None, messages: Sequence[Message] = ()
) -> RunRow:
    """Build the row of the run after a call. If the workflow still runs, the next call writes it again. ``messages``
    are the new ones, of which the first message of the run may be one."""
    task, status = call.input, "running"
    if answer is not None:
        status = "idle" if isinstance(task, ModelInput) and task.mode == "session" else "completed"
    return _build_run_row(task, head, status, _encode_answer(answer), call.asked_at, messages)


def build_closed_run_row(call: CloseCall, head: str | None, messages: Sequence[Message] = ()) -> RunRow:
    """Build the row of the run as it ends, or as its turn does. ``messages`` are as of :func:`build_run_row`."""
    task, status = call.input, "running"
    if (closing := task.closing) is not None:
        status = "idle" if closing.status == "waiting" else closing.status
        if closing.stays_paused is not None:
            status = "paused"
        elif closing.pause is not None and status == "idle" and closing.turn is None and task.task_id:
            status = "running"  # resumed in the middle of a turn
    row = _build_run_row(task, head, status, _encode_ending(task, head), call.asked_at, messages)
    if closing is None or not closing.error_type:
        return row
    error = summarize_text(closing.error or "", ERROR_CHARS)
    return replace(row, error_type=clean_text(closing.error_type)[:NAME_CHARS], error=error)


def _build_run_row(
    task: ConversationFacts,
    head: str | None,
    status: str,
    result: bytes | None,
    asked_at: str,
    messages: Sequence[Message],
) -> RunRow:
    return RunRow(
        *(task.context_id, task.agent, task.scope, head, status, task.iteration, result, asked_at),
        tenant=task.tenant,
        user=task.user,
        first_message=summarize_first_message(messages),
    )


def summarize_first_message(messages: Iterable[Message]) -> str | None:
    """Return the first user message of ``messages`` on one line, shortened; of one without text, the names of its
    files. None without a message."""
    for message in messages:
        if message.role == "user" and message.id != REMINDER_ID:
            files = (part.name or part.media_type for part in message.parts if isinstance(part, FilePart))
            text = message.text or ", ".join(files)
            if summary := summarize_text(text, FIRST_MESSAGE_CHARS):
                return summary
    return None


_MAX_TOKENS = 2**63 - 1
"""The largest number that databases take: a provider may report any."""


def build_usage_row(call: ModelCall | CompactCall, output: ModelOutput | None = None) -> UsageRow | None:
    """Build the row of what the call has used, of a model call with its output; None if no model has answered."""
    paid = call.recording.paid
    if not paid:
        return None
    task, last = call.input, paid[-1]
    usage = sum((request.usage for request in paid), Usage())
    tokens = {name: min(max(count, 0), _MAX_TOKENS) for name, count in usage}
    costs = [request.cost_usd for request in paid]
    return UsageRow(
        task.context_id,
        task.agent,
        "compact" if isinstance(task, CompactInput) else "force_finish" if task.is_forced else "call",
        last.provider,
        clean_text(last.model)[:NAME_CHARS],
        _get_usage_status(output),
        requests=len(paid),
        **tokens,
        cost_usd=None if None in costs else sum(cost for cost in costs if cost is not None),
        milliseconds=round(sum(request.seconds for request in paid) * 1000),
        task_id=task.task_id or None,
        root=task.lineage.root if task.lineage is not None and task.is_child else None,
        tenant=task.tenant,
        user=task.user,
    )


def _get_usage_status(output: ModelOutput | None) -> str:
    if output is not None and output.failed is not None:
        return "failed"
    return "rejected" if output is not None and output.rejected else "completed"


def build_turn_row(call: ModelCall, head: str | None, answer: Response | None) -> TurnRow | None:
    """Build the row of the turn if it took messages (maybe after its answer) or has its answer; else None."""
    task = call.input
    ids = _list_message_ids(task.new)
    if not task.task_id or (ids is None and answer is None):
        return None
    status = "running" if answer is None else "completed"
    return TurnRow(task.context_id, task.task_id, status, head, _encode_answer(answer), ids or (), call.asked_at)


def build_closed_turn_row(call: CloseCall, head: str | None) -> TurnRow | None:
    """Build the row of the turn if it took messages or has ended; else None."""
    task, closing = call.input, call.input.closing
    ids = _list_message_ids(task.new)
    ended = closing is not None and closing.pause is None
    if not task.task_id or (ids is None and not ended):
        return None
    status = "running"
    if ended and closing is not None:
        status = closing.turn or closing.status
        status = "running" if status in ("waiting", "paused") else status  # a message extends it
    return TurnRow(task.context_id, task.task_id, status, head, _encode_ending(task, head), ids or (), call.asked_at)


def _list_message_ids(new: Sequence[NewItem]) -> tuple[str, ...] | None:
    """List the ids of users' messages; None if there are no such messages."""
    messages = [item for item in new if isinstance(item, NewMessage) and item.id != REMINDER_ID]
    return tuple(item.id for item in messages if item.id) if messages else None


def _encode_answer(answer: Response | None) -> bytes | None:
    return None if answer is None else _encode_readable_json(answer.model_dump(mode="json", exclude_none=True))


def _encode_ending(task: CloseInput, head: str | None) -> bytes | None:
    """Encode the ``Response`` of an ending as JSON, for a failure with ``error_type`` and ``error``."""
    if (closing := task.closing) is None:
        return None
    failure = {"error_type": closing.error_type, "error": closing.error} if closing.error_type else {}
    return _encode_readable_json({**(closing.response or {}), "head": head, **failure})


def build_response(task: ModelInput, output: ModelOutput, finish: FinalAnswer) -> Response:
    """Build the response of a turn that ends with the answer ``finish`` of ``output``."""
    blob = output.answer_blob
    value = build_output(finish.content, typed=finish.typed, called=finish.called, protocol=output.limits.protocol)
    return Response(
        content=finish.content,
        blob=blob,
        output=None if blob else value,
        typed=finish.typed,
        iterations=task.iteration,
        usage=task.used + output.usage,
        calls=task.iteration - output.is_synthetic,
        cost_usd=task.cost_usd if output.cost_usd is None else output.cost_usd + (task.cost_usd or 0.0),
        finish_reason=output.finish_reason,
        finish_called=finish.called,
        context_id=task.context_id,
        task_id=task.task_id,
        head=output.head,
        store_id=output.store_id,
    )


def _encode_readable_json(result: dict[str, Any]) -> bytes:
    """Encode ``result`` as JSON that clients can read: without an output that could not be read back."""
    body = json.dumps(result).encode()
    try:
        Response.model_validate_json(body)
    except ValidationError:
        body = json.dumps({key: value for key, value in result.items() if key != "output"}).encode()
    return body
