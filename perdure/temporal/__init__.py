"""Calls to the Temporal frontend: search attributes, errors, starts of workflows, namespaces, failing tasks."""
