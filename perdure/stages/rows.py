"""What the store is told of a run and its turn with each call: for lists, and for whoever asks when Temporal forgot."""

from __future__ import annotations

import json
from typing import Any

from pydantic import ValidationError

from ..loop.answer import output_of
from ..loop.finish import REMINDER_ID
from ..ports import ModelCall, RunRow, TurnRow
from ..types.interface import Response
from ..types.wire import ModelInput, ModelOutput, NewMessage


def run_row(call: ModelCall, output: ModelOutput) -> RunRow:
    """The run as it stands after this call; the workflow may still go on, and the next call says so."""
    task = call.input
    status = "running"
    if task.closing is not None:
        status = task.closing.status
    elif output.finish is not None:
        status = "waiting" if task.mode == "session" else "completed"
    result = _result(task, output)
    return RunRow(task.context_id, task.agent, task.scope, output.head, status, task.iteration, result, call.asked_at)


def turn_row(call: ModelCall, output: ModelOutput) -> TurnRow | None:
    """The turn, where there is something to say of it: it took messages (maybe after its answer), or has ended."""
    task = call.input
    heard = [item for item in task.new if isinstance(item, NewMessage) and item.id != REMINDER_ID]
    ids = tuple(item.id for item in heard if item.id)
    ended = task.closing is not None or output.finish is not None
    if not task.task_id or not (heard or ended):
        return None
    status = "running"
    if ended:
        status = (task.closing.turn or task.closing.status) if task.closing else "completed"
        status = "running" if status in ("waiting", "paused") else status  # a message extends it
    return TurnRow(task.context_id, task.task_id, status, output.head, _result(task, output), ids, call.asked_at)


def _result(task: ModelInput, output: ModelOutput) -> bytes | None:
    """JSON of the ``Response``, as far as this call knows it; of a failure with ``error_type`` and ``error``."""
    closing = task.closing
    if closing is not None:
        why = {"error_type": closing.error_type, "error": closing.error} if closing.error_type else {}
        return _readable({**(closing.response or {}), "head": output.head, **why})
    finish, blob = output.finish, output.answer_blob
    if finish is None:
        return None
    said = output_of(finish.content, typed=finish.typed, called=finish.called, protocol=output.limits.protocol)
    answer = Response(
        content=finish.content,
        blob=blob,
        output=None if blob else said,
        typed=finish.typed,
        iterations=task.iteration,
        usage=task.used + output.usage,
        calls=task.iteration - output.unasked,
        cost_usd=task.cost_usd if output.cost_usd is None else output.cost_usd + (task.cost_usd or 0.0),
        finish_reason=output.finish_reason,
        finish_called=finish.called,
        context_id=task.context_id,
        task_id=task.task_id,
        head=output.head,
        store_id=output.store_id,
    )
    return _readable(answer.model_dump(mode="json", exclude_none=True))


def _readable(result: dict[str, Any]) -> bytes:
    """JSON of ``result`` that readers take: without an output that could not be read back."""
    body = json.dumps(result).encode()
    try:
        Response.model_validate_json(body)
    except ValidationError:
        body = json.dumps({key: value for key, value in result.items() if key != "output"}).encode()
    return body
