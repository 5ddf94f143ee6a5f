"""A worker makes its store with its first start, also where another one starts at the same time."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from perdure.client import visibility
from perdure.errors import StoreError
from perdure.store.sqlite import SqliteStore


@pytest.mark.parametrize("made", [True, False])
async def test_two_workers_start_at_once_and_the_run_of_the_first_is_no_reason_to_refuse(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, made: bool
) -> None:
    url = f"sqlite:///{tmp_path / 'store.db'}"
    first, second = SqliteStore(url), SqliteStore(url)
    await second.open(create=False)

    async def list_workflows(*_: Any, **__: Any) -> AsyncIterator[Any]:
        if made:
            await first.open()
        yield SimpleNamespace(id="run-1")

    async def kept(*_: Any) -> str:
        return first.store_id or "another"

    monkeypatch.setattr(visibility, "_find_store_id", kept)
    try:
        if made:
            await visibility.create_store(second, SimpleNamespace(list_workflows=list_workflows), "q")  # type: ignore[arg-type]
            assert second.store_id == first.store_id != ""
        else:
            with pytest.raises(StoreError, match="'run-1' of task queue 'q' is kept in store another"):
                await visibility.create_store(second, SimpleNamespace(list_workflows=list_workflows), "q")  # type: ignore[arg-type]
    finally:
        await first.close()
        await second.close()
