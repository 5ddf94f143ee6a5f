"""Gives new runs their ids: every start of a client passes :func:`claim_run_id`."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any

from ..errors import RunIdError
from ..types.messages import clean_text
from ..types.run_ids import RUN_ID_BYTES, build_run_id, build_run_id_error, check_run_name
from .handles import ClientHandle


async def claim_run_id(client: ClientHandle, name: str | None, start: Mapping[str, Any]) -> str:
    """Return the id of the run that is to be started with the input ``start``, and with the ``name`` that its caller
    has chosen; without one it is generated. Every start passes here: of a conversation, by a message, of a fork, of a
    schedule.

    Raises ``RunIdError`` for a name that nobody may choose, for a deleted run's id, and for that of a run of another
    user in the store, which Temporal may have forgotten. The worker refuses such a run, too: two may start at once.
    """
    tenant, user = start.get("tenant"), start.get("user")
    if name is None:
        return check_run_name(f"{start['agent']}-{uuid.uuid4().hex[:12]}", tenant)
    run_id = check_run_name(name, tenant)
    if client.store_url is not None:
        store = await client.store()
        row = await store.get_run(run_id)
        if row is None and await store.find_deleted([run_id]):
            raise build_run_id_error()
        if row is not None and (row.tenant != tenant or (user is not None and row.user != user)):
            raise build_run_id_error()
    return run_id


async def find_message_target(
    client: ClientHandle, name: str, start: dict[str, Any]
) -> tuple[str, dict[str, Any] | None]:
    """Return the id of the conversation that a message goes to, and the input that opens it: ``start``, or None for an
    id that no new run may have, such as a subagent's or a scheduled run's. One that is there takes a message."""
    try:
        return await claim_run_id(client, name, {**start, "user": None}), start
    except RunIdError:
        run_id = build_run_id(name, start.get("tenant"))
        if not name or run_id != clean_text(run_id) or len(run_id.encode()) > RUN_ID_BYTES:
            raise
        return run_id, None
