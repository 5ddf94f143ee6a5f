"""The table of API tokens in memory, for :class:`.store.MemoryStore`; apart because it mirrors ``store.tokens``."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import replace

from ..errors import InvalidInputError
from ..ports.tokens import LoginRow, TokenCursor, TokenRow


class MemoryTokens:
    """The methods of :class:`perdure.ports.tokens.Tokens`. A test may access everything."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens: dict[str, TokenRow] = {}
        self.logins: dict[str, LoginRow] = {}

    @abstractmethod
    def _raise_failure(self) -> None: ...

    async def create_token(self, row: TokenRow) -> None:
        """Record a new token."""
        self._raise_failure()
        if row.id in self.tokens:
            raise InvalidInputError(f"there is a token {row.id!r} already", hint="Generate another id.")
        self.tokens[row.id] = row

    async def get_token(self, id: str) -> TokenRow | None:
        """Return the token."""
        self._raise_failure()
        return self.tokens.get(id)

    async def list_tokens(
        self, *, revoked: bool = False, after: TokenCursor | None = None, limit: int = 100
    ) -> list[TokenRow]:
        """List tokens, the newest first."""
        self._raise_failure()
        rows = [row for row in self.tokens.values() if revoked or row.revoked_at is None]
        newest = sorted(rows, key=lambda row: (row.created_at, row.id), reverse=True)
        return [row for row in newest if after is None or (row.created_at, row.id) < after][:limit]

    async def revoke_token(self, id: str, at: str) -> TokenRow | None:
        """Revoke the token; the first time stays."""
        self._raise_failure()
        if (row := self.tokens.get(id)) is not None:
            self.tokens[id] = replace(row, revoked_at=row.revoked_at or at)
        return self.tokens.get(id)

    async def record_token_use(self, id: str, at: str, *, unless_since: str) -> None:
        """Record that the token was used."""
        self._raise_failure()
        row = self.tokens.get(id)
        if row is not None and (row.last_used_at is None or row.last_used_at <= unless_since):
            self.tokens[id] = replace(row, last_used_at=at)

    async def create_login(self, row: LoginRow) -> None:
        """Record a new login, and delete expired ones."""
        self._raise_failure()
        self.logins = {key: login for key, login in self.logins.items() if login.expires_at > row.created_at}
        if row.id in self.logins:
            raise InvalidInputError(f"there is a login {row.id!r} already", hint="Generate another id.")
        self.logins[row.id] = row

    async def get_login(self, id: str) -> LoginRow | None:
        """Return the login."""
        self._raise_failure()
        return self.logins.get(id)

    async def delete_login(self, id: str) -> None:
        """Delete the login."""
        self._raise_failure()
        self.logins.pop(id, None)
