"""The runs that a run's calls of other agents have begun, and theirs: how each stands, and what it took."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..errors import RunNotFoundError

if TYPE_CHECKING:
    from ..run import Run
    from ..types.interface import Status

_AT_ONCE = 20
"""Runs that are asked at once: each may have to wait for a worker that does not answer."""


@dataclass(frozen=True, slots=True)
class Below:
    """A run below the one that is shown."""

    depth: int
    """From 1."""
    status: Status
    background: bool
    """Its parent goes on while it runs."""


async def tree(run: Run) -> list[Below]:
    """The runs below ``run``, each behind its parent. One that was not let begin is left out.

    Raises ``TranscriptUnavailableError`` without a store, ``StoreError``.
    """
    return await _below(run, 1, asyncio.Semaphore(_AT_ONCE))


async def _below(run: Run, depth: int, turn: asyncio.Semaphore) -> list[Below]:
    from ..following import begun

    children = [(run.client.run(name), background) for name, background in (await begun(run)).items()]
    branches = await asyncio.gather(*(_branch(child, depth, background, turn) for child, background in children))
    return [one for branch in branches for one in branch]


async def _branch(run: Run, depth: int, background: bool, turn: asyncio.Semaphore) -> list[Below]:
    try:
        async with turn:
            status = await status_of(run)
    except RunNotFoundError:
        return []
    return [Below(depth, status, background), *await _below(run, depth + 1, turn)]


async def status_of(run: Run) -> Status:
    """Its status, of one that Temporal has forgotten as far as the store knows it. Raises ``RunNotFoundError``."""
    from ..types.interface import Response, Status

    try:
        return await run.status()
    except RunNotFoundError:
        row = await (await run.store()).run(run.id)
        if row is None:
            hint = "`perdure list` shows the runs there are."
            raise RunNotFoundError(f"there is no run {run.id!r}", hint=hint) from None
    took = Response.model_validate_json(row.result or b"{}")
    facts: dict[str, Any] = {"state": row.status, "agent": row.agent, "context_id": run.id}
    facts |= {"head": row.head, "iteration": row.iterations, "usage": took.usage, "cost_usd": took.cost_usd}
    facts["unanswered"] = took.unanswered
    return Status.model_validate(facts)


def as_plain(below: Sequence[Below]) -> list[dict[str, Any]]:
    """For ``-o json``."""
    return [
        {
            "id": one.status.context_id,
            "depth": one.depth,
            "agent": one.status.agent,
            "background": one.background,
            "state": one.status.state,
            "iterations": one.status.iteration,
            "tokens": one.status.usage.total_tokens,
            "cost_usd": one.status.cost_usd,
            "activity": _activity(one.status),
        }
        for one in below
    ]


def lines(below: Sequence[Below]) -> Iterator[str]:
    """For people: what a run took is said with what all below it took."""
    for run in below:
        one, indent = run.status, "  " * run.depth
        took = [f"{one.iteration} iteration{'' if one.iteration == 1 else 's'}"] if one.iteration else []
        if one.usage.total_tokens:
            took.append(f"{one.usage.total_tokens:,} tokens")
        if one.cost_usd is not None:
            took.append(f"${one.cost_usd:.4f}")
        who = f"agent {one.agent}{' in background' if run.background else ''}"
        said = " · ".join([who, *took])
        yield f"{indent}{one.context_id}  {one.state}  {said}"
        if doing := _activity(one):
            yield f"{indent}  {doing}"


def _activity(status: Status) -> str | None:
    """What one that goes on is at, and why one that failed did."""
    from .show import activity

    return activity(status) or (status.reason if status.state == "failed" else None)
