"""The tables of grants in memory, for :class:`.store.MemoryStore`; apart because it mirrors ``store.grants``."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import replace as change

from ..ports.grants import GrantKey, GrantRow, SignInRow


class MemoryGrants:
    """The methods of :class:`perdure.ports.grants.Grants`. A test may access everything."""

    def __init__(self) -> None:
        super().__init__()
        self.grants: dict[GrantKey, GrantRow] = {}
        self.sign_ins: dict[str, SignInRow] = {}

    @abstractmethod
    def _raise_failure(self) -> None: ...

    async def get_grant(self, key: GrantKey) -> GrantRow | None:
        """Return the grant."""
        self._raise_failure()
        return self.grants.get(key)

    async def list_grants(self, *, after: GrantKey | None = None, limit: int = 100) -> list[GrantRow]:
        """List grants in the order of their keys."""
        self._raise_failure()
        return [row for key, row in sorted(self.grants.items()) if after is None or key > after][:limit]

    async def create_grant(self, row: GrantRow, *, replace: bool = True) -> None:
        """Write a grant of a new sign-in."""
        self._raise_failure()
        known = self.grants.get(row.key)
        if known is not None and not replace:
            return
        if known is not None:
            row = change(row, version=known.version + 1, created_at=known.created_at, owner="", leased_until="")
        self.grants[row.key] = row

    async def lease_grant(self, key: GrantKey, version: int, owner: str, now: str, until: str) -> bool:
        """Let ``owner`` refresh the grant."""
        self._raise_failure()
        row = self.grants.get(key)
        if row is None or row.version != version or (row.owner and row.leased_until > now):
            return False
        self.grants[key] = change(row, owner=owner, leased_until=until)
        return True

    async def update_grant(self, key: GrantKey, version: int, sealed: str, key_id: str, now: str) -> bool:
        """Write the next version."""
        self._raise_failure()
        row = self.grants.get(key)
        if row is None or row.version != version:
            return False
        row = change(row, version=version + 1, sealed=sealed, key_id=key_id, updated_at=now)
        self.grants[key] = change(row, owner="", leased_until="")
        return True

    async def release_grant(self, key: GrantKey, owner: str) -> None:
        """End the lease of ``owner``."""
        self._raise_failure()
        row = self.grants.get(key)
        if row is not None and row.owner == owner:
            self.grants[key] = change(row, owner="", leased_until="")

    async def delete_grant(self, key: GrantKey) -> bool:
        """Delete the grant."""
        self._raise_failure()
        return self.grants.pop(key, None) is not None

    async def create_sign_in(self, row: SignInRow, now: str) -> None:
        """Record a sign-in, and delete expired ones."""
        self._raise_failure()
        self.sign_ins = {key: known for key, known in self.sign_ins.items() if known.expires_at > now}
        self.sign_ins.setdefault(row.id, row)

    async def take_sign_in(self, id: str) -> SignInRow | None:
        """Return and delete the sign-in."""
        self._raise_failure()
        return self.sign_ins.pop(id, None)
