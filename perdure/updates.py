"""Updates of a run: sent so that Temporal knows them when they come twice, and what becomes of those that fail."""

from __future__ import annotations

import asyncio
import hashlib
import json
import uuid
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from temporalio.client import WorkflowUpdateFailedError
from temporalio.client import WorkflowUpdateRPCTimeoutOrCancelledError as NoAnswer
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError

from .errors import NotWaitingYetError, from_type
from .told import again, delays
from .translate import closed_error, unreachable

if TYPE_CHECKING:
    from .run import Run

_ENDED = "AcceptedUpdateCompletedWorkflow"


async def updated(run: Run, name: str, payload: Mapping[str, Any], *, unheard: str, since: str | None = None) -> Any:
    """What update ``name`` of ``run`` returns. ``since`` is when the wait began that it is about, where that is known.

    Who is told of a call by an event may be quicker than the run, which hears of it from the activity that told: then
    it is sent again, for a while. Raises what the run refuses it with, ``RunClosedError``, ``RunNotFoundError``;
    ``ServerUnreachableError``, which says ``unheard``, where no answer came.
    """
    left = delays()
    while True:
        try:
            return await _sent(run, name, payload, unheard, since)
        except NotWaitingYetError:
            if not await again(left):
                raise


async def _sent(run: Run, name: str, payload: Mapping[str, Any], unheard: str, since: str | None) -> Any:
    try:
        return await run.handle.execute_update(name, payload, id=_id(payload, since))
    except WorkflowUpdateFailedError as error:
        cause = error.cause
        kind = cause.type if isinstance(cause, ApplicationError) else None
        if kind == _ENDED:
            raise closed_error(run.id) from None
        raise from_type(kind, getattr(cause, "message", str(cause))) from None
    except NoAnswer as error:
        if (task := asyncio.current_task()) is not None and task.cancelling():  # which the SDK takes for no answer
            raise asyncio.CancelledError from error
        raise unreachable(run.client.temporal, unheard) from error
    except RPCError as error:
        raise run.translated(error) from None


def _id(payload: Mapping[str, Any], since: str | None) -> str:
    """The same for whoever sends the same on the same wait again: Temporal then knows the update.

    Where it is not known since when the call waits, each is another update, and the run itself tells that a decision is
    repeated, as it does behind continue-as-new.
    """
    if since is None:
        return uuid.uuid4().hex
    return hashlib.sha256(json.dumps([payload, since], sort_keys=True).encode()).hexdigest()[:32]
