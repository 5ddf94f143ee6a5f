"""Grants of OAuth: what lets a deployment use MCP servers for a tenant or a user; and sign-ins that a browser is at.

Tokens, client secrets and verifiers are sealed before they reach a store (:mod:`perdure.mcp.grants`). A run whose
servers need no sign-in needs none of this.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeVar

T = TypeVar("T")


class GrantKey(NamedTuple):
    """Whose grant, for which server."""

    tenant: str
    """"" for the runs without a tenant."""
    user_id: str
    """"" for the grant that all runs of the tenant share."""
    server: str
    """Its URL, without a fragment, scheme and host in lower case."""


@dataclass(frozen=True, slots=True)
class GrantRow:
    """A grant as stored. Times are ISO 8601, UTC, microseconds."""

    tenant: str
    user_id: str
    server: str
    version: int
    """Counts the writes of ``sealed``."""
    sealed: str
    """The registration of the client, the tokens, and what a refresh needs."""
    key_id: str
    """Id of the encryption key."""
    owner: str
    """Who refreshes the grant; "" if nobody does."""
    leased_until: str
    """When another one may refresh it."""
    created_at: str
    created_by: str
    """Who signed in last."""
    updated_at: str

    @property
    def key(self) -> GrantKey:
        """Its key."""
        return GrantKey(self.tenant, self.user_id, self.server)


@dataclass(frozen=True, slots=True)
class SignInRow:
    """A sign-in whose browser has not come back yet."""

    id: str
    """SHA-256 of its ``state``."""
    sealed: str
    expires_at: str


class Grants(Protocol):
    """The grants and sign-ins. All methods raise ``StoreError`` when the store fails."""

    async def get_grant(self, key: GrantKey) -> GrantRow | None:
        """Return the grant; None if there is none."""

    async def list_grants(self, *, after: GrantKey | None = None, limit: int = 100) -> list[GrantRow]:
        """List grants in the order of their keys, from behind ``after`` on."""

    async def create_grant(self, row: GrantRow, *, replace: bool = True) -> None:
        """Write a grant of a new sign-in; it replaces one of its key, and counts its ``version`` up. Without
        ``replace``: write it only if there is none."""

    async def lease_grant(self, key: GrantKey, version: int, owner: str, now: str, until: str) -> bool:
        """Let ``owner`` refresh the grant until then, if it has this version and nobody else refreshes it."""

    async def update_grant(self, key: GrantKey, version: int, sealed: str, key_id: str, now: str) -> bool:
        """Write the next version, which nobody refreshes, if the grant still has this one."""

    async def release_grant(self, key: GrantKey, owner: str) -> None:
        """End the lease of ``owner``, if it has it."""

    async def delete_grant(self, key: GrantKey) -> bool:
        """Delete the grant; whether there was one."""

    async def create_sign_in(self, row: SignInRow, now: str) -> None:
        """Record a sign-in, and delete those that have expired."""

    async def take_sign_in(self, id: str) -> SignInRow | None:
        """Return and delete the sign-in, also an expired one: the second call of two gets None."""


class GrantAccess(Protocol):
    """The grants of a store, for code in any thread."""

    address: str
    """host:port of the Temporal server: what a machine's own key may be used for depends on it."""

    async def run(self, request: Callable[[Grants], Awaitable[T]]) -> T:
        """Return the result of ``request``, as soon as the store is available."""
        ...
