"""The agent loop as a Temporal workflow. Only engine code runs in it, never author code."""

from ..types.messages import build_schemas
from .agent import AgentWorkflow, VersionedAgentWorkflow
from .webhook import VersionedWebhookWorkflow, WebhookWorkflow

__all__ = ["AgentWorkflow", "VersionedAgentWorkflow", "VersionedWebhookWorkflow", "WebhookWorkflow"]

build_schemas()  # of all models above, before the first workflow task
