"""The runs that a run has begun, as its events say."""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING

from ..types.events import BranchStarted, ToolStarted
from .follow import follow

if TYPE_CHECKING:
    from ..reading import Reading


async def begun(run: Reading) -> dict[str, bool]:
    """Ids in their order, with whether each goes on in background. Raises as :func:`perdure.following.follow`."""
    found: dict[str, bool] = {}
    async with aclosing(follow(run, wait=False, children=False)) as events:
        async for event in events:
            if isinstance(event, ToolStarted) and event.child_context_id is not None:
                found.setdefault(event.child_context_id, event.background)
            elif isinstance(event, BranchStarted):
                found.setdefault(event.child_context_id, False)
    return found
