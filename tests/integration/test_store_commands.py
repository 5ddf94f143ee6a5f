"""``perdure store``: what its commands print, and what becomes of one that is killed."""

from __future__ import annotations

import os
import signal
import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path
from urllib.parse import quote

import pytest

from perdure.errors import StoreLocationError
from perdure.ports.store import Blob, Commit
from perdure.store import open_store
from tests.support.cli import Cli
from tests.support.postgres import Databases


@pytest.fixture
async def cli(tmp_path: Path) -> AsyncIterator[Cli]:
    cli = Cli(tmp_path, {"PERDURE_HOME": str(tmp_path / "home"), "PERDURE_STORE_URL": f"sqlite:///{tmp_path}/store.db"})
    yield cli
    await cli.close()


async def test_a_store_is_made_migrated_and_shown(cli: Cli, tmp_path: Path) -> None:
    missing = await cli("store", "status")
    assert (missing.code, f"there is no store at {tmp_path}/store.db" in missing.err) == (1, True)
    assert "perdure store migrate" in missing.err
    made = (await cli("store", "migrate", "--json")).json
    assert [version[:4] for version in made["applied"]] == ["0001", "0002"]
    again = await cli("store", "migrate")
    assert again.out == f"{tmp_path}/store.db: nothing to apply\n"
    shown = (await cli("store", "status", "--json")).json
    assert (shown["kind"], shown["state"], shown["schema"], shown["usable_from"]) == (
        "sqlite",
        "current",
        "0002",
        "0001",
    )
    assert shown["tables"]["meta"] == {"rows": 1, "is_estimate": False, "bytes": None}
    with closing(sqlite3.connect(tmp_path / "store.db")) as store, store:
        for number, size in enumerate((1, 1, 70_000_000)):
            store.execute("INSERT INTO blobs (hash, body, used_on) VALUES (?, zeroblob(?), '')", (str(number), size))
        store.execute("DELETE FROM blobs WHERE hash < '2'")
    shown = (await cli("store", "status", "--json")).json
    assert shown["tables"]["blobs"] == {"rows": 1, "is_estimate": False, "bytes": None}, "also of a large file"
    assert shown["keys"] == {}, "no body is encrypted"
    with closing(sqlite3.connect(tmp_path / "store.db")) as store, store:
        store.execute("UPDATE blobs SET key_id = '2026'")
        store.execute("INSERT INTO memory VALUES ('n', 'k', '1', '', '2025'), ('n', 'l', '1', '', '2026')")
    shown = (await cli("store", "status", "--json")).json
    assert shown["keys"] == {"2025": {"memory": 1}, "2026": {"blobs": 1, "memory": 1}}
    text = (await cli("store", "status")).out
    assert shown["store_id"] in text
    assert "runs      none" in text
    assert "key 2026  1 of blobs, 1 of memory" in text


async def test_the_location_of_objects_is_compared_with_the_setting(cli: Cli, tmp_path: Path) -> None:
    store = open_store(cli.env["PERDURE_STORE_URL"], blob_url=f"file://{tmp_path}/objects", blob_bytes=10)
    await store.open()
    await store.commit(Commit(blobs=[Blob.from_content(b"x" * 100)]))
    unset = (await cli("store", "status", "--json")).json["objects"]
    assert unset["recorded_url"] == f"file://{tmp_path}/objects"
    assert f"set it to file://{tmp_path}/objects" in unset["flaw"]
    cli.env["PERDURE_BLOB_URL"] = f"file://{tmp_path}/objects"
    right = (await cli("store", "status", "--json")).json["objects"]
    assert (right["owner"], right["flaw"]) == (store.store_id, None)
    cli.env["PERDURE_BLOB_URL"] = f"file://{tmp_path}/elsewhere"
    assert "does not have the objects of this store" in (await cli("store", "status", "--json")).json["objects"]["flaw"]

    target = f"sqlite:///{tmp_path}/copy.db"
    assert (await cli("store", "copy", cli.env["PERDURE_STORE_URL"], target, "--json")).json["objects"] == 1
    await store.close()


async def test_a_copy_that_is_killed_goes_on(cli: Cli, tmp_path: Path) -> None:
    source, target = cli.env["PERDURE_STORE_URL"], f"sqlite:///{tmp_path}/copy.db"
    store = open_store(source)
    await store.open()
    for _ in range(12):
        await store.commit(Commit(blobs=[Blob.from_content(os.urandom(10_000_000))]))
    command = await cli.spawn("store", "copy", source, target)
    await command.until("blobs: ")  # the first of many pages
    command.send(signal.SIGKILL)
    await command.ended()
    with pytest.raises(StoreLocationError, match="is a copy that is not complete"):
        await open_store(target).open()
    assert (await cli("store", "status", "--store-url", target, "--json")).json["state"] == "unfinished copy"
    done = (await cli("store", "copy", source, target, "--json")).json
    assert (done["store_id"], done["tables"]["blobs"]["rows"]) == (store.store_id, 12)
    await store.close()


@pytest.mark.postgres
async def test_a_postgres_store_is_shown_without_its_password(cli: Cli, postgres_databases: Databases) -> None:
    url = postgres_databases.make()
    cli.env["PERDURE_STORE_URL"] = url.replace("postgres@", f"postgres:{quote('p@ss')}@")
    assert (await cli("store", "status")).code == 1
    assert (await cli("store", "migrate")).code == 0
    shown = await cli("store", "status", "--json")
    assert "p%40ss" not in shown.out
    assert (shown.json["kind"], shown.json["state"]) == ("postgresql", "current")
    assert shown.json["server"].startswith("PostgreSQL ")
    assert shown.json["tables"]["journal"]["rows"] == 0
    assert shown.json["tables"]["journal"]["bytes"] > 0
