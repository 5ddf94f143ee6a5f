"""Agents: their definition, validation, files and typed output."""

from .agent import Agent as Agent
