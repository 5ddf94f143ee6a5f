"""``perdure doctor`` opens the store that is no file, makes none, and says what refuses it."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from perdure.cli import app
from perdure.store import open_store
from tests.support.postgres import Databases


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TEMPORAL_ADDRESS", "TEMPORAL_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PERDURE_HOME", str(tmp_path / "home"))


def found(monkeypatch: pytest.MonkeyPatch, url: str) -> Any:
    monkeypatch.setenv("PERDURE_STORE_URL", url)
    said = CliRunner().invoke(app, ["doctor", "--json"]).output
    assert "secret" not in said
    (finding,) = [finding for finding in json.loads(said) if finding["check"] == "store"]
    return finding


def test_a_server_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    one = found(monkeypatch, "postgresql://ana:secret@127.0.0.1:1/perdure")
    assert one["status"] == "fail"
    assert "the store postgresql://ana@127.0.0.1:1/perdure cannot be reached" in one["detail"]
    assert "Check that the server runs" in one["hint"]


def test_a_url_of_no_store(monkeypatch: pytest.MonkeyPatch) -> None:
    one = found(monkeypatch, "mysql://ana:secret@db/perdure")
    assert (one["status"], "'mysql'" in one["detail"]) == ("fail", True)


@pytest.mark.postgres
def test_a_database_without_a_store_and_with_one(
    monkeypatch: pytest.MonkeyPatch, postgres_databases: Databases
) -> None:
    url = postgres_databases.make()
    for _ in range(2):  # it makes none
        one = found(monkeypatch, url)
        assert (one["status"], one["detail"]) == ("ok", f"{url} (made when needed)")

    async def make() -> str:
        store = open_store(url)
        await store.open()
        store_id = store.store_id
        await store.close()
        return store_id

    store_id = asyncio.run(make())
    one = found(monkeypatch, url)
    assert (one["status"], one["detail"]) == ("ok", f"{url}, store {store_id}")
