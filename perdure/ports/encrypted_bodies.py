"""The port of the keys that stored bodies are encrypted with; apart because it is of no single table."""

from __future__ import annotations

from typing import Protocol


class EncryptedBodies(Protocol):
    """The keys that stored bodies are encrypted with."""

    async def count_keys(self) -> dict[str, dict[str, int]]:
        """Count the rows under each key: by key id, then by table. Rows in plain are not counted."""
