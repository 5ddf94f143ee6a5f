"""A cache of the outcomes that this process recorded, in front of the journal.

A recorded outcome never changes, so a copy is as good as the entry: a model call right after its tools reads nothing.
What is read is not cached: its bytes may have been altered, which only the caller who parses them notices, and an
entry that is restored then must be read anew.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..ports import Batch, Claim, Commit, Journal
from .lru import ByteLRU, CacheBudget


class CachedJournal:
    """A ``Journal`` over another one. Used from one event loop."""

    def __init__(self, journal: Journal, *, cache: CacheBudget | None = None) -> None:
        self._journal = journal
        self._outcomes: ByteLRU[bytes] = ByteLRU(cache or CacheBudget())

    async def find(self, keys: Sequence[str]) -> dict[str, bytes]:
        """The recorded outcomes among ``keys``."""
        found = {key: body for key in keys if (body := self._outcomes.get(key)) is not None}
        unknown = [key for key in keys if key not in found]
        if unknown:
            found |= await self._journal.find(unknown)
        return found

    async def claim(self, key: str, owner: str, *, again: bool = False, events: Batch | None = None) -> Claim:
        """Record the intent of ``owner`` to act."""
        body = self._outcomes.get(key)
        if body is not None:
            return Claim("done", body)
        return await self._journal.claim(key, owner, again=again, events=events)

    async def commit(self, commit: Commit) -> bytes | None:
        """Write everything in one transaction; the recorded outcome."""
        recorded = await self._journal.commit(commit)
        outcome = commit.outcome
        if outcome is not None and recorded == outcome.body:
            self._outcomes.put(outcome.key, outcome.body, len(outcome.body))
        return recorded
