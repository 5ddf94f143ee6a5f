"""The table of decisions that can be taken back, in memory, for :class:`.store.MemoryStore`."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import replace

from ..ports.decisions import DecisionRow
from ..ports.times import add_seconds


class MemoryDecisions:
    """The methods of :class:`perdure.ports.decisions.Decisions`. A test may access everything."""

    _now: Callable[[], str]

    def __init__(self) -> None:
        super().__init__()
        self.decisions: dict[tuple[str, str], DecisionRow] = {}
        """By conversation and call."""

    @abstractmethod
    def _raise_failure(self) -> None: ...

    async def defer_decision(self, row: DecisionRow, seconds: float) -> DecisionRow:
        """Record a decision, unless an earlier one has no answer."""
        self._raise_failure()
        now, name = self._now(), (row.context_id, row.call_id)
        if name not in self.decisions or self.decisions[name].answer is not None:
            self.decisions[name] = replace(row, created_at=now, due_at=add_seconds(now, seconds))
        return self.decisions[name]

    async def take_back_decision(self, context_id: str, call_id: str, id: str) -> bool:
        """Delete a decision that nobody has begun to send."""
        self._raise_failure()
        row = self.decisions.get((context_id, call_id))
        if row is None or row.id != id or row.owner or row.answer is not None:
            return False
        del self.decisions[context_id, call_id]
        return True

    async def take_decisions(self, owner: str, *, lease_seconds: float, limit: int = 100) -> list[DecisionRow]:
        """Take decisions that are due, the longest due first."""
        self._raise_failure()
        now = self._now()
        due = [
            row for row in self.decisions.values() if row.answer is None and max(row.due_at, row.leased_until) <= now
        ]
        ordered = sorted(due, key=lambda row: (row.due_at, row.context_id, row.call_id))[:limit]
        until = add_seconds(now, lease_seconds)
        taken = [replace(row, owner=owner, leased_until=until, attempts=row.attempts + 1) for row in ordered]
        self.decisions |= {(row.context_id, row.call_id): row for row in taken}
        return taken

    async def postpone_decision(
        self, owner: str, row: DecisionRow, note: str, seconds: float, *, has_begun: bool
    ) -> bool:
        """Note what a taken decision waits for."""
        self._raise_failure()
        until = add_seconds(self._now(), seconds)
        left = {"owner": owner, "attempts": row.attempts} if has_begun else {"owner": "", "attempts": 0}
        return self._change(owner, row, note=note, leased_until=until, **left)

    async def settle_decision(self, owner: str, row: DecisionRow, answer: bytes) -> bool:
        """Record what became of a taken decision."""
        self._raise_failure()
        return self._change(owner, row, note=None, answer=answer)

    def _change(self, by: str, row: DecisionRow, /, **changes: object) -> bool:
        name = row.context_id, row.call_id
        known = self.decisions.get(name)
        if known is None or (known.id, known.owner) != (row.id, by) or known.answer is not None:
            return False
        self.decisions[name] = replace(known, **changes)  # type: ignore[arg-type]  # names of its fields
        return True

    async def list_decisions(self, context_ids: Sequence[str]) -> list[DecisionRow]:
        """List the decisions on calls of these runs."""
        self._raise_failure()
        return [row for name, row in sorted(self.decisions.items()) if name[0] in context_ids]

    async def has_open_decisions(self) -> bool:
        """Whether a decision has no answer yet."""
        self._raise_failure()
        return any(row.answer is None for row in self.decisions.values())

    async def delete_settled_decisions(self, before: str) -> int:
        """Delete old decisions that have an answer."""
        self._raise_failure()
        old = [name for name, row in self.decisions.items() if row.answer is not None and row.due_at < before]
        for name in old:
            del self.decisions[name]
        return len(old)
