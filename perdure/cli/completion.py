"""What the shell completes besides commands and options: ids of runs, names of agents.

Server and store answer within a second, or it says nothing: a Tab must neither hang nor print an error over somebody's
line.
"""

from __future__ import annotations

import ast
import asyncio
import contextlib
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from ..printing import printable

if TYPE_CHECKING:
    from ..runs import RunSummary

_PATIENCE = 1.0
"""Seconds for the server and the store together."""
_MOST = 200


def complete_runs(ctx: typer.Context, incomplete: str) -> list[str]:
    """Ids that begin so, the newest first."""
    return [run.id for run in _runs(ctx) if run.id.startswith(incomplete) and run.id == printable(run.id)]


def complete_agents(ctx: typer.Context, incomplete: str) -> list[str]:
    """Names of agents that begin so: those that ``--file`` defines, else those that there are runs of."""
    file = ctx.params.get("file")
    names = _defined(file) if file else [run.agent for run in _runs(ctx)]
    return sorted({name for name in names if name and name.startswith(incomplete) and name == printable(name)})


def _runs(ctx: typer.Context) -> list[RunSummary]:
    # What takes a machine a second to load is loaded before the time is counted, in which others answer.
    from ..client import Client  # noqa: F401
    from ..store.sqlite import SqliteStore  # noqa: F401
    from .connection import Server, connected

    given = {name: ctx.params.get(name) for name in ("address", "namespace", "profile", "store_url")}

    async def ask() -> list[RunSummary]:
        async with asyncio.timeout(_PATIENCE), connected(Server(**given)) as client:
            return await client.list(limit=_MOST)

    with contextlib.suppress(Exception):  # whatever it is, this is not the place to say it
        return asyncio.run(ask())
    return []


def _defined(file: str) -> list[str]:
    """The names in ``Agent("name", …)``, read without running the file."""
    with contextlib.suppress(OSError, ValueError, SyntaxError):
        calls = (node for node in ast.walk(ast.parse(Path(file).read_bytes())) if isinstance(node, ast.Call))
        return [
            call.args[0].value
            for call in calls
            if ast.unparse(call.func).rpartition(".")[2] == "Agent"
            and call.args
            and isinstance(call.args[0], ast.Constant)
            and isinstance(call.args[0].value, str)
        ]
    return []
