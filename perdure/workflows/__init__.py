"""The agent loop as a Temporal workflow. Only engine code runs in here, never an author's."""

from .agent import AgentWorkflow

__all__ = ["AgentWorkflow"]
