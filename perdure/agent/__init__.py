"""Agents: their definition, validation, files and typed output."""
