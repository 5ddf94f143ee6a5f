"""Reads and changes the tables of API tokens and logins: one set of statements for both databases, as in `waits.py`."""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from ..errors import InvalidInputError
from ..ports.tokens import LoginRow, TokenCursor, TokenRow
from .schema import TABLES, build_insert

_COLUMNS = ", ".join(TABLES["api_tokens"])
SCOPES = ("tenants", "agents", "sessions")
"""Columns with a JSON list of names, NULL for all."""
INSERT_TOKEN = build_insert("api_tokens", "(id) DO NOTHING RETURNING id")
SELECT_TOKEN = f"SELECT {_COLUMNS} FROM api_tokens WHERE id = :id"  # noqa: S608  # a constant
SELECT_TOKENS = f"SELECT {_COLUMNS} FROM api_tokens WHERE {{conditions}} ORDER BY created_at DESC, id DESC LIMIT :limit"  # noqa: S608  # a constant
REVOKE_TOKEN = f"""
    UPDATE api_tokens SET revoked_at = coalesce(revoked_at, :at) WHERE id = :id RETURNING {_COLUMNS}"""  # noqa: S608  # a constant
RECORD_USE = """
    UPDATE api_tokens SET last_used_at = :at
    WHERE id = :id AND (last_used_at IS NULL OR last_used_at <= :unless_since) RETURNING id"""

_LOGIN_COLUMNS = ", ".join(TABLES["console_logins"])
INSERT_LOGIN = build_insert("console_logins", "(id) DO NOTHING RETURNING id")
SELECT_LOGIN = f"SELECT {_LOGIN_COLUMNS} FROM console_logins WHERE id = :id"  # noqa: S608  # a constant
DELETE_LOGIN = "DELETE FROM console_logins WHERE id = :id RETURNING id"
DELETE_EXPIRED_LOGINS = "DELETE FROM console_logins WHERE expires_at <= :now RETURNING id"


class TokenTables:
    """The methods of :class:`perdure.ports.tokens.Tokens`, for a store in a database."""

    @abstractmethod
    async def _select_rows(self, statement: str, **values: Any) -> list[Sequence[Any]]: ...

    @abstractmethod
    async def _change_rows(self, statement: str, **values: Any) -> list[Sequence[Any]]: ...

    async def create_token(self, row: TokenRow) -> None:
        """See :class:`perdure.ports.tokens.Tokens`."""
        values = asdict(row)
        values |= {name: None if values[name] is None else json.dumps(values[name]) for name in SCOPES}
        if not await self._change_rows(INSERT_TOKEN, **values):
            raise InvalidInputError(f"there is a token {row.id!r} already", hint="Generate another id.")

    async def get_token(self, id: str) -> TokenRow | None:
        """See :class:`perdure.ports.tokens.Tokens`."""
        rows = await self._select_rows(SELECT_TOKEN, id=id)
        return _decode_row(rows[0]) if rows else None

    async def list_tokens(
        self, *, revoked: bool = False, after: TokenCursor | None = None, limit: int = 100
    ) -> list[TokenRow]:
        """See :class:`perdure.ports.tokens.Tokens`."""
        conditions, values = ["true" if revoked else "revoked_at IS NULL"], {"limit": limit}
        cursor = {}
        if after is not None:
            conditions.append("(created_at, id) < (:created_at, :last_id)")
            cursor = {"created_at": after.created_at, "last_id": after.id}
        rows = await self._select_rows(SELECT_TOKENS.format(conditions=" AND ".join(conditions)), **values, **cursor)
        return [_decode_row(row) for row in rows]

    async def revoke_token(self, id: str, at: str) -> TokenRow | None:
        """See :class:`perdure.ports.tokens.Tokens`."""
        rows = await self._change_rows(REVOKE_TOKEN, id=id, at=at)
        return _decode_row(rows[0]) if rows else None

    async def record_token_use(self, id: str, at: str, *, unless_since: str) -> None:
        """See :class:`perdure.ports.tokens.Tokens`."""
        await self._change_rows(RECORD_USE, id=id, at=at, unless_since=unless_since)

    async def create_login(self, row: LoginRow) -> None:
        """See :class:`perdure.ports.tokens.Tokens`."""
        await self._change_rows(DELETE_EXPIRED_LOGINS, now=row.created_at)
        if not await self._change_rows(INSERT_LOGIN, **asdict(row)):
            raise InvalidInputError(f"there is a login {row.id!r} already", hint="Generate another id.")

    async def get_login(self, id: str) -> LoginRow | None:
        """See :class:`perdure.ports.tokens.Tokens`."""
        rows = await self._select_rows(SELECT_LOGIN, id=id)
        return LoginRow(*rows[0]) if rows else None

    async def delete_login(self, id: str) -> None:
        """See :class:`perdure.ports.tokens.Tokens`."""
        await self._change_rows(DELETE_LOGIN, id=id)


def _decode_row(row: Sequence[Any]) -> TokenRow:
    values = dict(zip(TABLES["api_tokens"], row, strict=True))
    values |= {name: None if values[name] is None else tuple(json.loads(values[name])) for name in SCOPES}
    return TokenRow(**values)
