"""The agent loop as a Temporal workflow. Only engine code runs in it, never author code."""

from .agent import AgentWorkflow, VersionedAgentWorkflow

__all__ = ["AgentWorkflow", "VersionedAgentWorkflow"]
