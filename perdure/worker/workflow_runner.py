"""Runs workflow code only as far as a workflow task has taken it, whoever queries the run.

Own module: the plugin puts it into any Temporal worker, and it knows of nothing else here.
"""

from __future__ import annotations

from temporalio.bridge.proto.workflow_activation import WorkflowActivation
from temporalio.bridge.proto.workflow_completion import WorkflowActivationCompletion
from temporalio.worker import UnsandboxedWorkflowRunner, WorkflowInstance, WorkflowInstanceDetails

_PASSIVE = ("query_workflow", "remove_from_cache")
"""Jobs of an activation that run no workflow code but a query's handler."""


class TaskBoundRunner(UnsandboxedWorkflowRunner):
    """Fails what the SDK does to answer a query where it would lead to a history that cannot be replayed.

    A query of a run that is not in the worker's cache comes with the history to its last event. The SDK (1.35) applies
    events to the workflow for which no workflow task has started yet, and keeps the result in its cache. An update in
    the task that starts then finds them applied, and in replay, where updates come first in a task, not: TMPRL1100, and
    the run is stuck for good. Failed here, the query is refused, the run leaves the cache, and its next task loads it
    from history alone. docs/decisions/025-queries.md.
    """

    def create_instance(self, det: WorkflowInstanceDetails) -> WorkflowInstance:
        """See base class."""
        instance = super().create_instance(det)
        activate = instance.activate
        last = WorkflowActivation()

        def activate_of_task(act: WorkflowActivation) -> WorkflowActivationCompletion:
            if any(job.WhichOneof("variant") not in _PASSIVE for job in act.jobs):
                # Time and size are those of the task that has started: no other has, and yet there are further events.
                # The time alone would not tell: it stands still where the server's clock is set back.
                same_task = act.timestamp == last.timestamp and act.history_size_bytes == last.history_size_bytes
                if act.history_length > last.history_length and same_task:
                    failed = WorkflowActivationCompletion()
                    failed.failed.failure.message = "the run has news that no workflow task has brought: query it again"
                    return failed
                last.history_length = act.history_length
                last.history_size_bytes = act.history_size_bytes
                last.timestamp.CopyFrom(act.timestamp)
            return activate(act)

        instance.activate = activate_of_task  # type: ignore[method-assign]  # the SDK's own class is private
        return instance
