"""Records the definitions of agents."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter

from ..ports.store import AgentRow
from .schema import Database, as_bytes
from .statements import load_statements

SQL = load_statements("agents")


def write_agents(database: Database, agents: Sequence[AgentRow], now: str) -> None:
    """Record the definitions, or that they were seen."""
    for agent in sorted(agents, key=attrgetter("hash")):
        row = {"hash": agent.hash, "name": agent.name, "body": agent.body}
        database.run(SQL.write_agent, **row, created_at=now, seen_at=now)


def read_agent_names(database: Database) -> list[str]:
    """Return the names of all agents."""
    return [name for (name,) in database.run(SQL.list_agent_names)]


def read_agents(database: Database, name: str | None) -> list[AgentRow]:
    """Return all definitions, or those of ``name``, by name, those of one name the latest seen first."""
    return [
        AgentRow(definition_hash, agent, as_bytes(body), created_at, seen_at)
        for definition_hash, agent, body, created_at, seen_at in database.run(SQL.list_agents, name=name)
    ]
