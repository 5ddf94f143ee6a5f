"""Reads and changes the tables of grants and sign-ins: one set of statements for both databases, as in `waits.py`."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from ..ports.grants import GrantKey, GrantRow, SignInRow
from .schema import TABLES, build_insert

_COLUMNS = ", ".join(TABLES["grants"])
_BY_KEY = "tenant = :tenant AND user_id = :user_id AND server = :server"
SELECT_GRANT = f"SELECT {_COLUMNS} FROM grants WHERE {_BY_KEY}"  # noqa: S608  # constants
SELECT_GRANTS = f"""
    SELECT {_COLUMNS} FROM grants WHERE (tenant, user_id, server) > (:tenant, :user_id, :server)
    ORDER BY tenant, user_id, server LIMIT :limit"""  # noqa: S608  # constants
UPSERT_GRANT = build_insert(
    "grants",
    """(tenant, user_id, server) DO UPDATE SET version = grants.version + 1, sealed = excluded.sealed,
    key_id = excluded.key_id, owner = '', leased_until = '', created_by = excluded.created_by,
    updated_at = excluded.updated_at RETURNING version""",
)
INSERT_GRANT = build_insert("grants", "(tenant, user_id, server) DO NOTHING RETURNING version")
LEASE_GRANT = f"""
    UPDATE grants SET owner = :owner, leased_until = :until
    WHERE {_BY_KEY} AND version = :version AND (owner = '' OR leased_until <= :now) RETURNING version"""  # noqa: S608  # constants
UPDATE_GRANT = f"""
    UPDATE grants SET version = version + 1, sealed = :sealed, key_id = :key_id, owner = '', leased_until = '',
    updated_at = :now WHERE {_BY_KEY} AND version = :version RETURNING version"""  # noqa: S608  # constants
RELEASE_GRANT = f"UPDATE grants SET owner = '', leased_until = '' WHERE {_BY_KEY} AND owner = :owner RETURNING version"  # noqa: S608  # constants
DELETE_GRANT = f"DELETE FROM grants WHERE {_BY_KEY} RETURNING version"  # noqa: S608  # constants
INSERT_SIGN_IN = build_insert("sign_ins", "(id) DO NOTHING RETURNING id")
TAKE_SIGN_IN = "DELETE FROM sign_ins WHERE id = :id RETURNING id, sealed, expires_at"
DELETE_EXPIRED_SIGN_INS = "DELETE FROM sign_ins WHERE expires_at <= :now RETURNING id"


class GrantTables:
    """The methods of :class:`perdure.ports.grants.Grants`, for a store in a database."""

    @abstractmethod
    async def _select_rows(self, statement: str, **values: Any) -> list[Sequence[Any]]: ...

    @abstractmethod
    async def _change_rows(self, statement: str, **values: Any) -> list[Sequence[Any]]: ...

    async def get_grant(self, key: GrantKey) -> GrantRow | None:
        """See :class:`perdure.ports.grants.Grants`."""
        rows = await self._select_rows(SELECT_GRANT, **key._asdict())
        return GrantRow(*rows[0]) if rows else None

    async def list_grants(self, *, after: GrantKey | None = None, limit: int = 100) -> list[GrantRow]:
        """See :class:`perdure.ports.grants.Grants`."""
        begin = after or GrantKey("", "", "")
        return [GrantRow(*row) for row in await self._select_rows(SELECT_GRANTS, **begin._asdict(), limit=limit)]

    async def create_grant(self, row: GrantRow, *, replace: bool = True) -> None:
        """See :class:`perdure.ports.grants.Grants`."""
        await self._change_rows(UPSERT_GRANT if replace else INSERT_GRANT, **asdict(row))

    async def lease_grant(self, key: GrantKey, version: int, owner: str, now: str, until: str) -> bool:
        """See :class:`perdure.ports.grants.Grants`."""
        values = {**key._asdict(), "version": version, "owner": owner, "now": now, "until": until}
        return bool(await self._change_rows(LEASE_GRANT, **values))

    async def update_grant(self, key: GrantKey, version: int, sealed: str, key_id: str, now: str) -> bool:
        """See :class:`perdure.ports.grants.Grants`."""
        values = {**key._asdict(), "version": version, "sealed": sealed, "key_id": key_id, "now": now}
        return bool(await self._change_rows(UPDATE_GRANT, **values))

    async def release_grant(self, key: GrantKey, owner: str) -> None:
        """See :class:`perdure.ports.grants.Grants`."""
        await self._change_rows(RELEASE_GRANT, **key._asdict(), owner=owner)

    async def delete_grant(self, key: GrantKey) -> bool:
        """See :class:`perdure.ports.grants.Grants`."""
        return bool(await self._change_rows(DELETE_GRANT, **key._asdict()))

    async def create_sign_in(self, row: SignInRow, now: str) -> None:
        """See :class:`perdure.ports.grants.Grants`."""
        await self._change_rows(DELETE_EXPIRED_SIGN_INS, now=now)
        await self._change_rows(INSERT_SIGN_IN, **asdict(row))

    async def take_sign_in(self, id: str) -> SignInRow | None:
        """See :class:`perdure.ports.grants.Grants`."""
        rows = await self._change_rows(TAKE_SIGN_IN, id=id)
        return SignInRow(*rows[0]) if rows else None
