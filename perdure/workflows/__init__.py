"""The agent loop as a Temporal workflow. Only engine code runs in it, never author code."""

from pydantic import BaseModel

from .agent import AgentWorkflow, VersionedAgentWorkflow
from .bulk_action import BulkActionWorkflow, VersionedBulkActionWorkflow
from .webhook import VersionedWebhookWorkflow, WebhookWorkflow

__all__ = [
    "AgentWorkflow",
    "BulkActionWorkflow",
    "VersionedAgentWorkflow",
    "VersionedBulkActionWorkflow",
    "VersionedWebhookWorkflow",
    "WebhookWorkflow",
]


def _build_schemas() -> None:
    """Build the schemas of perdure's models, which are deferred: a workflow task must not spend its time on that."""
    models: list[type[BaseModel]] = [BaseModel]
    for model in models:  # it grows: subclasses of subclasses
        models += model.__subclasses__()
        if model.__module__.startswith("perdure."):
            model.model_rebuild(raise_errors=False)


_build_schemas()
