"""What every store promises about API tokens."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from perdure.errors import InvalidInputError
from perdure.ports.store import Store
from perdure.ports.tokens import LoginRow, TokenCursor, TokenRow

T1, T2, T3 = (f"2026-01-01T00:00:0{n}.000000+00:00" for n in (1, 2, 3))


def token(id: str, created_at: str = T1) -> TokenRow:
    return TokenRow(id, f"hash-{id}", "ana", "viewer", created_at, "root")


async def test_a_token_from_its_making_to_its_end(store: Store) -> None:
    scopes = {"tenants": ("acme", 'a "b" ü'), "agents": ("support",), "sessions": ("s/1",)}
    row = replace(token("a"), expires_at=T3, **scopes)
    await store.create_token(row)
    assert await store.get_token("a") == row
    assert await store.get_token("b") is None
    with pytest.raises(InvalidInputError, match="there is a token 'a' already"):
        await store.create_token(replace(row, hash="other"))
    assert await store.get_token("a") == row
    assert await store.revoke_token("a", T2) == replace(row, revoked_at=T2)
    assert await store.revoke_token("a", T3) == replace(row, revoked_at=T2), "the first time stays"
    assert await store.revoke_token("b", T3) is None


async def test_the_last_use_is_written_unless_it_is_recent(store: Store) -> None:
    await store.create_token(token("a"))
    for at, since, recorded in [(T1, T1, T1), (T2, T1, T2), (T3, T1, T2), (T3, T2, T3)]:
        await store.record_token_use("a", at, unless_since=since)
        row = await store.get_token("a")
        assert row is not None
        assert row.last_used_at == recorded
    await store.record_token_use("missing", T1, unless_since=T1)


async def test_tokens_are_listed_by_pages(store: Store) -> None:
    for token_id, at in [("a", T1), ("b", T2), ("c", T2), ("d", T3)]:
        await store.create_token(token(token_id, at))
    await store.revoke_token("c", T3)
    assert [row.id for row in await store.list_tokens()] == ["d", "b", "a"]
    assert [row.id for row in await store.list_tokens(revoked=True)] == ["d", "c", "b", "a"]
    page = await store.list_tokens(revoked=True, limit=2)
    after = TokenCursor(page[-1].created_at, page[-1].id)
    assert [row.id for row in await store.list_tokens(revoked=True, after=after)] == ["b", "a"]


async def test_of_two_revocations_at_once_one_counts(store: Store) -> None:
    await store.create_token(token("a"))
    rows = await asyncio.gather(*(store.revoke_token("a", at) for at in (T1, T2, T3)))
    assert len({row.revoked_at for row in rows if row is not None}) == 1


async def test_a_login_until_it_expires_or_ends(store: Store) -> None:
    first, second = LoginRow("a", "hash-a", "token", T1, T2), LoginRow("b", "hash-b", "token", T1, T3)
    await store.create_login(first)
    await store.create_login(second)
    assert (await store.get_login("a"), await store.get_login("b")) == (first, second)
    assert await store.get_login("missing") is None
    with pytest.raises(InvalidInputError, match="there is a login 'b' already"):
        await store.create_login(replace(second, hash="other"))
    await store.create_login(LoginRow("c", "hash-c", "token", T2, T3))
    assert await store.get_login("a") is None, "a new login deletes those that have expired"
    assert await store.get_login("b") == second
    await store.delete_login("b")
    await store.delete_login("b")
    assert await store.get_login("b") is None
