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
from tests.support import faults
from tests.support.postgres import Databases, execute


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


def _make_store(url: str) -> None:
    async def make() -> None:
        store = open_store(url)
        await store.open()
        await store.close()

    asyncio.run(make())


def _report(monkeypatch: pytest.MonkeyPatch, url: str) -> dict[str, Any]:
    monkeypatch.setenv("PERDURE_STORE_URL", url)
    findings = json.loads(CliRunner().invoke(app, ["doctor", "--json"]).output)
    return {finding["check"]: finding for finding in findings}


def test_a_full_disk_of_the_store_that_is_not_that_of_the_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with faults.small_disk(tmp_path / "disk", kilobytes=1200) as disk:
        url = f"sqlite:///{disk / 'store.db'}"
        _make_store(url)
        faults.fill(disk)
        found = _report(monkeypatch, url)
        assert found["store disk"]["status"] == "fail"
        assert f"0.0 GiB free at {disk}" in found["store disk"]["detail"]
        assert found["store write"]["status"] == "fail"
        assert "full" in found["store write"]["detail"]
        assert found["disk"]["detail"] != found["store disk"]["detail"]


def test_a_store_that_can_be_written_is_left_as_it_was(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    _make_store(f"sqlite:///{path}")
    found = _report(monkeypatch, f"sqlite:///{path}")
    assert found["store write"]["status"] == "ok"
    assert faults.sql(path, "SELECT count(*) FROM idempotency") == [(0,)]
    assert "store disk" not in found
    missing = _report(monkeypatch, f"sqlite:///{tmp_path / 'none.db'}")
    assert "store write" not in missing
    assert not (tmp_path / "none.db").exists()


@pytest.mark.postgres
def test_a_database_that_can_only_be_read(monkeypatch: pytest.MonkeyPatch, postgres_databases: Databases) -> None:
    url = postgres_databases.make()
    _make_store(url)
    name = url.rpartition("/")[2].partition("?")[0]
    asyncio.run(execute(url, f'ALTER DATABASE "{name}" SET default_transaction_read_only = on'))
    one = found(monkeypatch, url)
    assert (one["status"], "can only be read" in one["detail"]) == ("fail", True)
