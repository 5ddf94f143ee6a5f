"""Claims idempotency keys and keeps the answers to their requests."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

from ..ports.surfaces import (
    IdempotencyClaim,
    add_seconds,
    build_idempotency_claim,
    check_idempotency_answer,
    check_idempotency_key,
)
from .schema import as_bytes, build_insert

# A key is free when its time is over, or its request counts as lost; it is the owner's own if an answer was lost.
CLAIM_IDEMPOTENCY = build_insert(
    "idempotency",
    """(key) DO UPDATE SET request_hash = excluded.request_hash, owner = excluded.owner,
        leased_until = excluded.leased_until, answer = NULL, created_at = excluded.created_at,
        expires_at = excluded.expires_at
    WHERE idempotency.expires_at <= excluded.created_at OR (
        idempotency.answer IS NULL AND idempotency.request_hash = excluded.request_hash
        AND (idempotency.leased_until <= excluded.created_at OR idempotency.owner = excluded.owner)
    ) RETURNING key""",
)
SELECT_IDEMPOTENCY = "SELECT request_hash, answer FROM idempotency WHERE key = :key"
# The same answer again is one whose confirmation was lost.
RECORD_ANSWER = """
    UPDATE idempotency SET answer = :answer
    WHERE key = :key AND owner = :owner AND (answer IS NULL OR answer = :answer) RETURNING key"""
FREE_KEY = "DELETE FROM idempotency WHERE key = :key AND owner = :owner AND answer IS NULL RETURNING key"
SELECT_ANSWERS = """
    SELECT answer FROM idempotency
    WHERE key >= :prefix AND key < :end AND expires_at > :now AND answer IS NOT NULL ORDER BY key LIMIT :limit"""
# The time once more: on PostgreSQL only that is looked at again, of a row that was claimed meanwhile.
DELETE_EXPIRED_KEYS = """
    DELETE FROM idempotency WHERE key IN (SELECT key FROM idempotency WHERE expires_at <= :now LIMIT :limit)
        AND expires_at <= :now
    RETURNING key"""


class IdempotencyTables:
    """The methods of :class:`perdure.ports.surfaces.Idempotency`, for a store in a database."""

    @abstractmethod
    async def _select_rows(self, statement: str, **values: Any) -> list[Sequence[Any]]: ...

    @abstractmethod
    async def _change_rows(self, statement: str, **values: Any) -> list[Sequence[Any]]: ...

    @abstractmethod
    async def _read_clock(self) -> str: ...

    async def claim_idempotency(
        self, key: str, request_hash: str, owner: str, *, lease_seconds: float, keep_seconds: float
    ) -> IdempotencyClaim:
        """See :class:`perdure.ports.surfaces.Idempotency`."""
        check_idempotency_key(key)
        now = await self._read_clock()
        times = {"leased_until": add_seconds(now, lease_seconds), "expires_at": add_seconds(now, keep_seconds)}
        claim = {"key": key, "request_hash": request_hash, "owner": owner, "answer": None, "created_at": now}
        while True:
            if await self._change_rows(CLAIM_IDEMPOTENCY, **claim, **times):
                return IdempotencyClaim("new")
            if rows := await self._select_rows(SELECT_IDEMPOTENCY, key=key):  # else it was freed meanwhile
                recorded_hash, answer = rows[0]
                return build_idempotency_claim(
                    request_hash, recorded_hash, None if answer is None else as_bytes(answer)
                )

    async def list_idempotency_answers(self, prefix: str, limit: int) -> list[bytes]:
        """See :class:`perdure.ports.surfaces.Idempotency`."""
        now, end = await self._read_clock(), f"{prefix}\U0010ffff"
        rows = await self._select_rows(SELECT_ANSWERS, prefix=prefix, end=end, now=now, limit=limit)
        return [as_bytes(answer) for (answer,) in rows]

    async def complete_idempotency(self, key: str, owner: str, answer: bytes | None) -> bool:
        """See :class:`perdure.ports.surfaces.Idempotency`."""
        if answer is None:
            return bool(await self._change_rows(FREE_KEY, key=key, owner=owner))
        check_idempotency_answer(answer)
        return bool(await self._change_rows(RECORD_ANSWER, key=key, owner=owner, answer=answer))

    async def delete_expired_idempotency(self, limit: int = 1000) -> int:
        """See :class:`perdure.ports.surfaces.Idempotency`."""
        return len(await self._change_rows(DELETE_EXPIRED_KEYS, now=await self._read_clock(), limit=limit))
