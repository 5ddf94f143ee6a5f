"""What waits in a run, as Temporal itself has it: no worker is asked."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from pydantic import TypeAdapter

from .types.approval import PendingApproval
from .types.indexing import PENDING, WAITING

if TYPE_CHECKING:
    from temporalio.client import WorkflowExecution

logger = logging.getLogger("perdure.client")

_WAITING = TypeAdapter(tuple[PendingApproval, ...])


async def noted(seen: WorkflowExecution) -> tuple[PendingApproval, ...] | None:
    """What waits in the run that was ``seen``; None where only the run can say.

    That is a run that has not said how much waits in it, or whose memo does not have it: it is too long for that, or
    the run has just continued as new. Number and list are written at once.
    """
    pending = next((pair.value for pair in seen.typed_search_attributes if pair.key.name == PENDING), None)
    if not isinstance(pending, int):
        return None
    if pending == 0:
        return ()
    try:
        found = _WAITING.validate_python((await seen.memo()).get(WAITING) or ())
    except Exception as error:  # a codec that is away, or not this client's; or anybody has written it
        logger.warning("what waits in run %s cannot be read from its memo: %s", seen.id, error)
        return None
    return found if len(found) == pending else None
