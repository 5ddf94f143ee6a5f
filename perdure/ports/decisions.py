"""Decisions that a console takes and that can be taken back: rows with a due time, sent by any replica or worker."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class DecisionRow:
    """A decision on a call that waits for approval. A call has one at a time."""

    id: str
    context_id: str
    call_id: str
    hash: str
    """That of the call that was reviewed: the decision counts for nothing else."""
    agent: str
    tool: str
    tenant: str | None
    user: str | None
    """The run's tenant and user."""
    by: str
    auth: str
    origin: str
    """Who has decided, how that is known, and from where: as in the audit trail."""
    body: bytes
    """JSON of the decision, its comment and changed arguments."""
    created_at: str = ""
    """ISO 8601, UTC, microseconds, by the clock of the store, which sets it."""
    due_at: str = ""
    """When it is sent, set by the store. Until then it can be taken back."""
    owner: str = ""
    """Who sends it; "" while no attempt to send it has begun."""
    leased_until: str = ""
    attempts: int = 0
    """How many attempts may have reached the run."""
    note: str | None = None
    """What it waits for, if it was due and could not be sent."""
    answer: bytes | None = None
    """JSON of what became of it; None until then."""


class Decisions(Protocol):
    """Decisions with a due time. All methods raise ``StoreError`` when the store fails."""

    async def defer_decision(self, row: DecisionRow, seconds: float) -> DecisionRow:
        """Record a decision that is due in ``seconds``, and return the one that stands: of two at once, or while an
        earlier one has no answer, the first."""

    async def take_back_decision(self, context_id: str, call_id: str, id: str) -> bool:
        """Delete the decision if no attempt to send it has begun. False if one has, or if it is gone: of several who
        take it back, and the one who sends it, one gets it."""

    async def take_decisions(self, owner: str, *, lease_seconds: float, limit: int = 100) -> list[DecisionRow]:
        """Take decisions that are due and that no other owner has, the longest due first; they are this owner's for
        ``lease_seconds``. One that has no answer by then may be taken again: sending it twice must count once."""

    async def postpone_decision(
        self, owner: str, row: DecisionRow, note: str, seconds: float, *, has_begun: bool
    ) -> bool:
        """Note what a taken decision waits for, and let it be taken again after ``seconds``; False if ``owner`` does
        not have it any more. If nothing of it was sent (not ``has_begun``), it can be taken back again."""

    async def settle_decision(self, owner: str, row: DecisionRow, answer: bytes) -> bool:
        """Record what became of a taken decision; False if ``owner`` does not have it any more."""

    async def list_decisions(self, context_ids: Sequence[str]) -> list[DecisionRow]:
        """List the decisions on calls of these runs, also those that have an answer."""

    async def has_open_decisions(self) -> bool:
        """Whether a decision has no answer yet."""

    async def delete_settled_decisions(self, before: str) -> int:
        """Delete decisions that have an answer and were due before that time; return how many."""
