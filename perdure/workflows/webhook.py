"""``WebhookWorkflow``: one delivery of one event to one webhook, with Temporal's retries (docs/decisions/041)."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from temporalio import workflow
from temporalio.common import RetryPolicy, VersioningBehavior

from ..types.interface import WEBHOOK_WORKFLOW_TYPE
from .activity_options import get_heartbeat_timeout

WEBHOOK_ACTIVITY = "perdure.webhook"
_ATTEMPT_SECONDS = 60
"""For an attempt with its reads and writes of the store."""
_LOST_WORKER_RETRY = RetryPolicy(initial_interval=timedelta(seconds=1), maximum_interval=timedelta(seconds=10))
"""For attempts that ended without saying when the next one is due: their worker was lost. Each failure of the endpoint
says it, and the activity counts these alone."""


@workflow.defn(name=WEBHOOK_WORKFLOW_TYPE, sandboxed=False)
class WebhookWorkflow:
    """Input: a ``perdure._webhook_wire.WebhookTask``, which only the activity reads."""

    @workflow.run
    async def run(self, task: Any = None) -> Any:
        """Deliver; the result says how it ended. Fails when the last attempt has failed."""
        return await workflow.execute_activity(
            WEBHOOK_ACTIVITY,
            task,
            start_to_close_timeout=timedelta(seconds=_ATTEMPT_SECONDS),
            heartbeat_timeout=get_heartbeat_timeout(),
            retry_policy=_LOST_WORKER_RETRY,
        )


@workflow.defn(name=WEBHOOK_WORKFLOW_TYPE, sandboxed=False, versioning_behavior=VersioningBehavior.AUTO_UPGRADE)
class VersionedWebhookWorkflow(WebhookWorkflow):
    """The same for workers that are versions of a deployment."""

    @workflow.run
    async def run(self, task: Any = None) -> Any:
        """See base class."""
        return await super().run(task)
