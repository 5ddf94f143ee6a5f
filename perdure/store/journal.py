"""Outcomes that this process recorded or read lately, kept in front of the journal.

A recorded outcome never changes, so a copy is as good as the entry: a model call right after its tools reads nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..ports import Batch, Claim, Commit, Journal
from .lru import ByteLRU

CACHE_BYTES = 64 * 1024 * 1024
"""Default budget."""


class CachedJournal:
    """A ``Journal`` over another one. Used from one event loop."""

    def __init__(self, journal: Journal, *, cache_bytes: int = CACHE_BYTES) -> None:
        self._journal = journal
        self._outcomes: ByteLRU[bytes] = ByteLRU(cache_bytes)

    async def find(self, keys: Sequence[str]) -> dict[str, bytes]:
        """The recorded outcomes among ``keys``."""
        found = {key: body for key in keys if (body := self._outcomes.get(key)) is not None}
        unknown = [key for key in keys if key not in found]
        if unknown:
            read = await self._journal.find(unknown)
            for key, body in read.items():
                self._keep(key, body)
            found |= read
        return found

    async def claim(self, key: str, owner: str, *, again: bool = False, events: Batch | None = None) -> Claim:
        """Record the intent of ``owner`` to act."""
        body = self._outcomes.get(key)
        if body is not None:
            return Claim("done", body)
        claim = await self._journal.claim(key, owner, again=again, events=events)
        if claim.outcome is not None:
            self._keep(key, claim.outcome)
        return claim

    async def commit(self, commit: Commit) -> bytes | None:
        """Write everything in one transaction; the recorded outcome."""
        recorded = await self._journal.commit(commit)
        if commit.outcome is not None and recorded is not None:
            self._keep(commit.outcome.key, recorded)
        return recorded

    def _keep(self, key: str, body: bytes) -> None:
        self._outcomes.put(key, body, len(body) + len(key))
