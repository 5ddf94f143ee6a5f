"""Fixture ``loopback``: see tests/docs/loopback.py."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.docs.loopback import Loopback
from tests.servers.model_server import OpenAIServer


@pytest.fixture
async def loopback(temporal_address: str, tmp_path: Path) -> AsyncIterator[Loopback]:
    """Programs of this test: a store, a task queue and a model of its own."""
    async with OpenAIServer() as model:
        programs = Loopback(temporal_address, tmp_path, model)
        yield programs
        await programs.close()
