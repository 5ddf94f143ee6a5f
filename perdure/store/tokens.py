"""Reads and changes the tables of API tokens and logins."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from ..errors import InvalidInputError
from ..ports.tokens import LoginRow, TokenCursor, TokenRow
from .schema import TABLES, Tables
from .statements import load_statements

SQL = load_statements("tokens")

SCOPES = ("tenants", "agents", "sessions")
"""Columns with a JSON list of names, NULL for all."""


class TokenTables(Tables):
    """The methods of :class:`perdure.ports.tokens.Tokens`, for a store in a database."""

    async def create_token(self, row: TokenRow) -> None:
        """See :class:`perdure.ports.tokens.Tokens`."""
        values = asdict(row)
        values |= {name: None if values[name] is None else json.dumps(values[name]) for name in SCOPES}
        if not await self._change_rows(SQL.insert_token, **values):
            raise InvalidInputError(f"there is a token {row.id!r} already", hint="Generate another id.")

    async def get_token(self, id: str) -> TokenRow | None:
        """See :class:`perdure.ports.tokens.Tokens`."""
        rows = await self._select_rows(SQL.get_token, id=id)
        return _decode_row(rows[0]) if rows else None

    async def list_tokens(
        self, *, revoked: bool = False, after: TokenCursor | None = None, limit: int = 100
    ) -> list[TokenRow]:
        """See :class:`perdure.ports.tokens.Tokens`."""
        created_at, last_id = (None, None) if after is None else (after.created_at, after.id)
        rows = await self._select_rows(
            SQL.list_tokens, revoked=revoked, created_at=created_at, last_id=last_id, limit=limit
        )
        return [_decode_row(row) for row in rows]

    async def revoke_token(self, id: str, at: str) -> TokenRow | None:
        """See :class:`perdure.ports.tokens.Tokens`."""
        rows = await self._change_rows(SQL.revoke_token, id=id, at=at)
        return _decode_row(rows[0]) if rows else None

    async def record_token_use(self, id: str, at: str, *, unless_since: str) -> None:
        """See :class:`perdure.ports.tokens.Tokens`."""
        await self._change_rows(SQL.record_token_use, id=id, at=at, unless_since=unless_since)

    async def create_login(self, row: LoginRow) -> None:
        """See :class:`perdure.ports.tokens.Tokens`."""
        await self._change_rows(SQL.delete_expired_logins, now=row.created_at)
        if not await self._change_rows(SQL.insert_login, **asdict(row)):
            raise InvalidInputError(f"there is a login {row.id!r} already", hint="Generate another id.")

    async def get_login(self, id: str) -> LoginRow | None:
        """See :class:`perdure.ports.tokens.Tokens`."""
        rows = await self._select_rows(SQL.get_login, id=id)
        return LoginRow(*rows[0]) if rows else None

    async def delete_login(self, id: str) -> None:
        """See :class:`perdure.ports.tokens.Tokens`."""
        await self._change_rows(SQL.delete_login, id=id)


def _decode_row(row: Sequence[Any]) -> TokenRow:
    values = dict(zip(TABLES["api_tokens"], row, strict=True))
    values |= {name: None if values[name] is None else tuple(json.loads(values[name])) for name in SCOPES}
    return TokenRow(**values)
