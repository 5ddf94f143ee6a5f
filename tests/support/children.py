"""Ids of child runs, which contain a digest of their parent's execution."""

from __future__ import annotations

import json

from perdure import Client
from perdure.types.run_ids import format_child_run_id


async def find_child_id(client: Client, run_id: str, *ops: int) -> str:
    """The id of the child that operation ``ops[0]`` of the run starts, of that one's child of ``ops[1]`` and so on."""
    for op in ops:
        run_id = format_child_run_id(run_id, await _read_scope(client, run_id), op)
    return run_id


async def _read_scope(client: Client, run_id: str) -> str:
    async for event in client.run(run_id).handle.fetch_history_events():
        started = event.workflow_execution_started_event_attributes
        if started.HasField("parent_workflow_execution"):
            return str(json.loads(started.input.payloads[0].data)["parent"]["scope"])
        return str(started.first_execution_run_id)
    raise AssertionError("a history begins with an event")
