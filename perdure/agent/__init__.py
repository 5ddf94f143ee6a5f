"""Agents: their definition, validation, files and typed output."""

from .spec import AgentSpec as AgentSpec
