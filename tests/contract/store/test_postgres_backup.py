"""Backups of a store in PostgreSQL, as docs/how-to/backup.md makes them: pg_dump, and a base backup with its WAL."""

from __future__ import annotations

import signal

import pytest

from perdure.ports.store import Commit, Outcome
from perdure.store.postgres import PostgresStore
from tests.support.postgres import PostgresServer, build_url, execute, make_folder, run_server

pytestmark = pytest.mark.postgres

RECOVERY = {"recovery_target_name": "before_the_accident", "recovery_target_action": "promote"}


async def record(url: str, *keys: str) -> str:
    """Record outcomes; the id of the store."""
    store = PostgresStore(url)
    await store.open()
    for key in keys:
        await store.commit(Commit(outcome=Outcome(key, "model", key.encode())))
    await store.close()
    return store.store_id


async def read(url: str, *keys: str) -> tuple[str, set[str]]:
    """The id of the store, and which of the outcomes it has."""
    store = PostgresStore(url)
    await store.open(create=False)
    recorded = await store.find_outcomes(list(keys))
    await store.close()
    return store.store_id, set(recorded)


async def test_a_dump_is_the_same_store() -> None:
    with run_server() as server:
        await execute(server.url, "CREATE DATABASE agents", "CREATE DATABASE restored")
        url, restored = (build_url(server.url, name) for name in ("agents", "restored"))
        store_id = await record(url, "before")
        dump = str(server.folder / "agents.dump")
        server.run("pg_dump", "--format=custom", "--file", dump, url)
        await record(url, "after")
        server.run("pg_restore", "--no-owner", "--exit-on-error", "--dbname", restored, dump)
        assert await read(restored, "before", "after") == (store_id, {"before"})
        await record(restored, "goes on")


async def test_a_point_in_time() -> None:
    with make_folder() as archive, make_folder() as folder:
        settings = {"archive_mode": "on", "archive_command": f"cp %p {archive}/%f"}
        with run_server(settings) as server:
            store_id = await record(server.url, "in the base backup")
            recovered = PostgresServer(folder, {"restore_command": f"cp {archive}/%f %p", **RECOVERY})
            recovered.run("pg_basebackup", "-X", "none", "-c", "fast", "-D", str(recovered.data), "-d", server.url)
            await record(server.url, "before the point")
            await execute(server.url, "SELECT pg_create_restore_point('before_the_accident')")
            await record(server.url, "after the point")
            await execute(server.url, "SELECT pg_switch_wal()")
            server.stop(signal.SIGINT)  # it archives what is left
        (recovered.data / "recovery.signal").touch()
        recovered.start()
        try:
            keys = ("in the base backup", "before the point", "after the point")
            assert await read(recovered.url, *keys) == (store_id, set(keys[:2]))
            await record(recovered.url, "goes on")
        finally:
            recovered.stop(signal.SIGQUIT)
