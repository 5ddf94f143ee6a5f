"""``ctx.auth_context``: on whose behalf a run acts."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any


class AuthContext(Mapping[str, Any]):
    """Plain JSON by names, to be read: ``ctx.auth_context["token"]``. What it says of itself are the names alone, so
    that a log line or a traceback gives nothing away.
    """

    __slots__ = ("_given",)

    def __init__(self, given: Mapping[str, Any] | None = None) -> None:
        self._given = dict(given or {})

    def __getitem__(self, name: str) -> Any:
        return self._given[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._given)

    def __len__(self) -> int:
        return len(self._given)

    def __repr__(self) -> str:
        return f"<auth_context of {', '.join(map(str, self._given)) or 'nobody'}>"


@dataclass(frozen=True, slots=True)
class RunFacts:
    """Whose ``auth_ref`` is to be resolved."""

    run_id: str
    """Id of the conversation: the workflow id."""
    task_id: str
    """Id of the turn."""
    agent: str
    """Name of the agent."""
    context: Mapping[str, Any] | None = None
    """The author's own data of the run, as plain JSON."""
    resources: Any = None
    """What the worker's ``lifespan`` yields."""


ResolveAuth = Callable[[str, RunFacts], Awaitable[Mapping[str, Any]] | Mapping[str, Any]]
"""``async def resolve(ref, run): return {"token": …}``; also a plain function."""
