"""Claims idempotency keys and keeps answers to requests; apart because its statements are in `idempotency.sql`."""

from __future__ import annotations

from ..ports.idempotency import (
    IdempotencyClaim,
    build_idempotency_claim,
    check_idempotency_answer,
    check_idempotency_key,
)
from ..ports.times import add_seconds
from .schema import Tables, as_bytes
from .statements import load_statements

SQL = load_statements("idempotency")


class IdempotencyTables(Tables):
    """The methods of :class:`perdure.ports.idempotency.Idempotency`, for a store in a database."""

    async def claim_idempotency(
        self, key: str, request_hash: str, owner: str, *, lease_seconds: float, keep_seconds: float
    ) -> IdempotencyClaim:
        """See :class:`perdure.ports.idempotency.Idempotency`."""
        check_idempotency_key(key)
        now = await self._read_clock()
        times = {"leased_until": add_seconds(now, lease_seconds), "expires_at": add_seconds(now, keep_seconds)}
        claim = {"key": key, "request_hash": request_hash, "owner": owner, "answer": None, "created_at": now}
        while True:
            if await self._change_rows(SQL.claim_key, **claim, **times):
                return IdempotencyClaim("new")
            if rows := await self._select_rows(SQL.get_key, key=key):  # else it was freed meanwhile
                recorded_hash, answer = rows[0]
                return build_idempotency_claim(
                    request_hash, recorded_hash, None if answer is None else as_bytes(answer)
                )

    async def list_idempotency_answers(self, prefix: str, limit: int) -> list[bytes]:
        """See :class:`perdure.ports.idempotency.Idempotency`."""
        now, end = await self._read_clock(), f"{prefix}\U0010ffff"
        rows = await self._select_rows(SQL.list_answers, prefix=prefix, end=end, now=now, limit=limit)
        return [as_bytes(answer) for (answer,) in rows]

    async def complete_idempotency(self, key: str, owner: str, answer: bytes | None) -> bool:
        """See :class:`perdure.ports.idempotency.Idempotency`."""
        if answer is None:
            return bool(await self._change_rows(SQL.free_key, key=key, owner=owner))
        check_idempotency_answer(answer)
        return bool(await self._change_rows(SQL.record_answer, key=key, owner=owner, answer=answer))

    async def delete_expired_idempotency(self, limit: int = 1000) -> int:
        """See :class:`perdure.ports.idempotency.Idempotency`."""
        return len(await self._change_rows(SQL.delete_expired_keys, now=await self._read_clock(), limit=limit))
