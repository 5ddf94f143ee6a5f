"""A payload codec of a user's own."""

from __future__ import annotations

from collections.abc import Sequence

from temporalio.api.common.v1 import Payload
from temporalio.converter import PayloadCodec


class Backwards(PayloadCodec):
    """Bytes that cannot be read without it."""

    async def encode(self, payloads: Sequence[Payload]) -> list[Payload]:
        return [
            Payload(metadata={"encoding": b"test/backwards"}, data=one.SerializeToString()[::-1]) for one in payloads
        ]

    async def decode(self, payloads: Sequence[Payload]) -> list[Payload]:
        ours = b"test/backwards"
        return [Payload.FromString(p.data[::-1]) if p.metadata.get("encoding") == ours else p for p in payloads]
