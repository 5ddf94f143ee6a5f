"""A store in memory for each test."""

from __future__ import annotations

import pytest

from perdure.testing.store import MemoryStore


@pytest.fixture
async def store() -> MemoryStore:
    store = MemoryStore()
    await store.open()
    return store
