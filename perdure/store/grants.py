"""Reads and changes the tables of grants and sign-ins; apart because their statements are in `grants.sql`."""

from __future__ import annotations

from dataclasses import asdict

from ..ports.grants import GrantKey, GrantRow, SignInRow
from .schema import Tables
from .statements import load_statements

SQL = load_statements("grants")


class GrantTables(Tables):
    """The methods of :class:`perdure.ports.grants.Grants`, for a store in a database."""

    async def get_grant(self, key: GrantKey) -> GrantRow | None:
        """See :class:`perdure.ports.grants.Grants`."""
        rows = await self._select_rows(SQL.get_grant, **key._asdict())
        return GrantRow(*rows[0]) if rows else None

    async def list_grants(self, *, after: GrantKey | None = None, limit: int = 100) -> list[GrantRow]:
        """See :class:`perdure.ports.grants.Grants`."""
        begin = after or GrantKey("", "", "")
        return [GrantRow(*row) for row in await self._select_rows(SQL.list_grants, **begin._asdict(), limit=limit)]

    async def create_grant(self, row: GrantRow, *, replace: bool = True) -> None:
        """See :class:`perdure.ports.grants.Grants`."""
        await self._change_rows(SQL.replace_grant if replace else SQL.insert_grant, **asdict(row))

    async def lease_grant(self, key: GrantKey, version: int, owner: str, now: str, until: str) -> bool:
        """See :class:`perdure.ports.grants.Grants`."""
        values = {**key._asdict(), "version": version, "owner": owner, "now": now, "until": until}
        return bool(await self._change_rows(SQL.lease_grant, **values))

    async def update_grant(self, key: GrantKey, version: int, sealed: str, key_id: str, now: str) -> bool:
        """See :class:`perdure.ports.grants.Grants`."""
        values = {**key._asdict(), "version": version, "sealed": sealed, "key_id": key_id, "now": now}
        return bool(await self._change_rows(SQL.update_grant, **values))

    async def release_grant(self, key: GrantKey, owner: str) -> None:
        """See :class:`perdure.ports.grants.Grants`."""
        await self._change_rows(SQL.release_grant, **key._asdict(), owner=owner)

    async def delete_grant(self, key: GrantKey) -> bool:
        """See :class:`perdure.ports.grants.Grants`."""
        return bool(await self._change_rows(SQL.delete_grant, **key._asdict()))

    async def create_sign_in(self, row: SignInRow, now: str) -> None:
        """See :class:`perdure.ports.grants.Grants`."""
        await self._change_rows(SQL.delete_expired_sign_ins, now=now)
        await self._change_rows(SQL.insert_sign_in, **asdict(row))

    async def take_sign_in(self, id: str) -> SignInRow | None:
        """See :class:`perdure.ports.grants.Grants`."""
        rows = await self._change_rows(SQL.take_sign_in, id=id)
        return SignInRow(*rows[0]) if rows else None
