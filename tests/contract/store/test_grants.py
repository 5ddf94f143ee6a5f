"""What every store promises about grants and sign-ins."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from perdure.ports.grants import GrantKey, GrantRow, SignInRow
from perdure.ports.store import Store
from tests.contract.store.conftest import Database

NOW, LATER, MUCH_LATER = (f"2030-01-01T00:0{minute}:00.000000+00:00" for minute in (0, 1, 5))
SERVER = "https://mcp.example/mcp"


def grant(tenant: str = "", user: str = "", sealed: str = "first", at: str = NOW) -> GrantRow:
    return GrantRow(tenant, user, SERVER, 1, sealed, "k1", "", "", at, "ana", at)


async def test_a_grant_is_replaced_by_a_later_sign_in_and_belongs_to_one_owner(store: Store) -> None:
    rows = [grant(), grant("acme"), grant("acme", "weber")]
    assert await store.get_grant(rows[0].key) is None
    for row in rows:
        await store.create_grant(row)
    assert await store.list_grants() == rows
    assert await store.list_grants(after=rows[0].key, limit=1) == [rows[1]]
    again = replace(grant("acme", sealed="second", at=LATER), created_by="bea")
    await store.create_grant(again)
    assert await store.get_grant(rows[1].key) == replace(again, version=2, created_at=NOW)
    assert await store.get_grant(rows[0].key) == rows[0]
    assert await store.delete_grant(rows[1].key)
    assert not await store.delete_grant(rows[1].key)
    assert await store.list_grants() == [rows[0], rows[2]]


async def test_one_refreshes_and_a_lease_ends_by_itself(store: Store) -> None:
    row = grant()
    key = row.key
    assert not await store.lease_grant(key, 1, "a", NOW, LATER), "there is none"
    await store.create_grant(row)
    assert await store.lease_grant(key, 1, "a", NOW, LATER)
    assert not await store.lease_grant(key, 1, "b", NOW, LATER)
    await store.release_grant(key, "b")
    assert not await store.lease_grant(key, 1, "b", NOW, LATER), "it was not b's"
    assert await store.lease_grant(key, 1, "b", LATER, MUCH_LATER), "a was killed"
    assert await store.update_grant(key, 1, "refreshed", "k2", LATER)
    assert not await store.update_grant(key, 1, "late", "k1", LATER), "a lives after all"
    current = await store.get_grant(key)
    assert current == replace(row, version=2, sealed="refreshed", key_id="k2", updated_at=LATER)
    assert not await store.lease_grant(key, 1, "c", MUCH_LATER, MUCH_LATER), "of a version that is no more"
    await store.lease_grant(key, 2, "c", LATER, MUCH_LATER)
    await store.release_grant(key, "c")
    assert await store.lease_grant(key, 2, "d", LATER, MUCH_LATER)


async def test_of_many_workers_one_gets_the_lease(database: Database) -> None:
    stores = [await database.open() for _ in range(4)]
    await stores[0].create_grant(grant())
    key = GrantKey("", "", SERVER)
    taken = await asyncio.gather(
        *(store.lease_grant(key, 1, str(at), NOW, LATER) for at, store in enumerate(stores * 4))
    )
    assert taken.count(True) == 1


async def test_a_sign_in_is_taken_once_and_an_expired_one_is_removed(store: Store) -> None:
    await store.create_sign_in(SignInRow("old", "sealed", NOW), NOW)
    await store.create_sign_in(SignInRow("new", "sealed", MUCH_LATER), LATER)
    assert await store.take_sign_in("old") is None
    taken = await asyncio.gather(*(store.take_sign_in("new") for _ in range(4)))
    assert [row for row in taken if row is not None] == [SignInRow("new", "sealed", MUCH_LATER)]
