"""What the events of one call share."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from ..ports import ModelCall, ToolCall


def facts(call: ModelCall | ToolCall) -> dict[str, Any]:
    """What every event of ``call`` has."""
    task = call.input
    now = datetime.now(UTC).isoformat(timespec="microseconds")
    return {"context_id": task.context_id, "task_id": task.task_id or None, "at": now, "attempt": call.attempt}


def result_key(scope: str, head: str | None, call_id: str) -> str:
    """The same for the tool and for the model call that is given the result: a call has one, whoever says it first."""
    return f"result/{scope}/{head}/{call_id}"
