"""``ctx.auth_context``: credentials of the user on whose behalf a run acts."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any


class AuthContext(Mapping[str, Any]):
    """Plain JSON by names, read-only: ``ctx.auth_context["token"]``. Its ``repr`` has the names alone, so that a log
    line or a traceback discloses no value.
    """

    __slots__ = ("_values",)

    def __init__(self, values: Mapping[str, Any] | None = None) -> None:
        self._values = dict(values or {})

    def __getitem__(self, name: str) -> Any:
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return f"<auth_context of {', '.join(map(str, self._values)) or 'no names'}>"


@dataclass(frozen=True, slots=True)
class RunFacts:
    """The run whose ``auth_ref`` is resolved."""

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
    caller: str | None = None
    """As ``ctx.caller``, ``ctx.tenant`` and ``ctx.user``."""
    tenant: str | None = None
    user: str | None = None


AuthFunction = Callable[[str, RunFacts], Awaitable[Mapping[str, Any]] | Mapping[str, Any]]
"""``async def resolve(ref, run): return {"token": …}``; also a plain function."""
