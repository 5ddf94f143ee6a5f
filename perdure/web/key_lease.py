"""The lease of an ``Idempotency-Key``, apart because operations are long: held while its request is answered.

A replica that is killed leaves its keys behind. So a lease is of seconds, and the replica that acts renews it; a repeat
of the request waits for no more than the rest of it. A replica that could not renew its lease in time (its store is
away, or its process stood still) stops acting, since another may have begun. What it did by then counts once: the ids
of a request's effects are made from its key.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Literal

from ..client.tasks import background_task
from ..errors import StoreError
from ..ports.store import Store
from .problems import WebError

IDEMPOTENCY_HOURS = 24
LEASE_SECONDS = 4.0
"""Seconds after which another replica takes the key of a lost one."""
RENEW_SECONDS = 1.0


class KeyLease:
    """A key, and the request that wants it."""

    def __init__(self, store: Store, key: str, request_hash: str, owner: str) -> None:
        self._store = store
        self._key = key
        self._hash = request_hash
        self.owner = owner
        self._held_until = 0.0
        self.answer: bytes | None = None
        """The recorded answer, after ``claim`` has returned ``done``."""

    async def claim(self) -> Literal["new", "running", "done", "mismatch"]:
        """Claim the key, or renew the lease: see :class:`perdure.ports.idempotency.IdempotencyClaim`."""
        asked_at, keep = asyncio.get_running_loop().time(), IDEMPOTENCY_HOURS * 3600.0
        claim = await self._store.claim_idempotency(
            self._key, self._hash, self.owner, lease_seconds=LEASE_SECONDS, keep_seconds=keep
        )
        if claim.state == "new":
            self._held_until = asked_at + LEASE_SECONDS
        self.answer = claim.answer
        return claim.state

    @asynccontextmanager
    async def hold(self) -> AsyncIterator[None]:
        """Renew the lease in the block. Raises ``WebError`` in the block if another replica may act."""
        loop = asyncio.get_running_loop()
        is_lost = False

        async def renew(scope: asyncio.Timeout) -> None:
            nonlocal is_lost
            while loop.time() < self._held_until:
                await asyncio.sleep(RENEW_SECONDS)
                with suppress(StoreError, TimeoutError):  # tried again for as long as the lease holds
                    async with asyncio.timeout_at(self._held_until):
                        if await self.claim() != "new":
                            break
            is_lost = True
            scope.reschedule(loop.time())

        try:
            async with asyncio.timeout(None) as scope, background_task(renew(scope)):
                yield
        except TimeoutError:
            if not is_lost:
                raise
            raise WebError(
                "the store does not keep the key of this request, which may still take effect", status=503,
                name="IdempotencyKeyLost", hint="Send it again with the same key.", headers={"Retry-After": "1"},
            ) from None  # fmt: skip
