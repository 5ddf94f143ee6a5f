"""``BulkActionWorkflow``: resumes or cancels many runs at a bounded rate (docs/decisions/074-bulk-actions.md)."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from temporalio import workflow
from temporalio.common import RetryPolicy, VersioningBehavior
from temporalio.exceptions import is_cancelled_exception

from ..types.interface import BULK_WORKFLOW_TYPE
from .activity_options import get_heartbeat_timeout

BULK_ACTIVITY = "perdure.bulk"
BATCH_SECONDS = 300.0
"""Seconds after which one activity ends, and the next one continues."""
_ATTEMPT_SECONDS = BATCH_SECONDS + 180.0
"""For an activity, with the runs that it has begun to act on."""
_RETRY = RetryPolicy(initial_interval=timedelta(seconds=1), maximum_interval=timedelta(seconds=30))
"""For attempts whose worker was lost, or whose store or server was away."""


@workflow.defn(name=BULK_WORKFLOW_TYPE, sandboxed=False)
class BulkActionWorkflow:
    """Input: ``{"id": …}`` of a bulk action in the store, which has its runs and what became of each."""

    @workflow.run
    async def run(self, task: Any = None) -> Any:
        """Act until nothing is left; the result counts the runs by outcome."""
        try:
            while True:
                result = await self._act(task)
                if not isinstance(result, dict) or not result.get("left"):
                    return result
                if workflow.info().is_continue_as_new_suggested():
                    workflow.continue_as_new(task)
        except BaseException as error:
            if is_cancelled_exception(error):  # by Temporal's own tools: the store has to know
                await self._act({**task, "stop": True} if isinstance(task, dict) else task)
            raise

    @staticmethod
    async def _act(task: Any) -> Any:
        return await workflow.execute_activity(
            BULK_ACTIVITY,
            task,
            start_to_close_timeout=timedelta(seconds=_ATTEMPT_SECONDS),
            heartbeat_timeout=get_heartbeat_timeout(),
            retry_policy=_RETRY,
        )


@workflow.defn(name=BULK_WORKFLOW_TYPE, sandboxed=False, versioning_behavior=VersioningBehavior.AUTO_UPGRADE)
class VersionedBulkActionWorkflow(BulkActionWorkflow):
    """The same for workers that are versions of a deployment."""

    @workflow.run
    async def run(self, task: Any = None) -> Any:
        """See base class."""
        return await super().run(task)
