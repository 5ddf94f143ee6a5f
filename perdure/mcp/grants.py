"""Grants of MCP servers: sealed for the store, read by all workers, and refreshed by one of them at a time.

A refresh token that rotates is worth nothing once it was used: two workers that use it at once lose the grant, and many
authorization servers then revoke all of its tokens. So the row is leased before a refresh; what came of it is written
under the version that was read; and whoever does not get the lease waits for the next version. A worker that is killed
between the answer of the authorization server and the write costs a new consent at most.
"""

from __future__ import annotations

import asyncio
import json
import time
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass, field, replace
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from .._encryption import KeyRing
from ..errors import AuthContextError, ToolError
from ..ports.grants import GrantAccess, GrantKey, GrantRow
from ..ports.times import add_seconds, format_utc_now

LEASE_SECONDS = 45.0
"""Seconds for which one worker may refresh a grant: longer than a request to the token endpoint takes."""
REFRESH_WAIT = 75.0
"""Seconds that a call waits for the refresh of another worker."""
EXPIRY_MARGIN = 10.0
"""Seconds before its end at which an access token is refreshed."""


@dataclass(frozen=True, slots=True, repr=False)
class Grant:
    """What a sign-in has brought. It is never printed. Dictionaries are as the SDK's models dump them."""

    client: dict[str, Any] | None = None
    """The registration of the client at the authorization server."""
    metadata: dict[str, Any] | None = None
    """Of the authorization server; None for one that has none."""
    resource: dict[str, Any] | None = None
    """Metadata of the protected resource; None for a server that has none."""
    access_token: str | None = None
    """None once the authorization server has refused to refresh it: consent is needed again."""
    refresh_token: str | None = None
    scope: str | None = None
    """The scopes that were granted, separated by spaces."""
    expires_at: float | None = None
    """Seconds since 1970; None for a token that does not expire, or does not say so."""
    protocol_version: str | None = None
    declared: dict[str, str] | None = None
    """What the agent's ``OAuth`` says of the client: a sign-in may begin where the agent's code is not."""

    @property
    def scopes(self) -> frozenset[str]:
        """The scopes that were granted."""
        return frozenset((self.scope or "").split())

    def is_current(self, now: float) -> bool:
        """Whether the access token is valid for some seconds more."""
        return self.access_token is not None and (self.expires_at is None or now < self.expires_at - EXPIRY_MARGIN)


@dataclass(frozen=True, slots=True)
class StoredGrant:
    """A grant with the row that it stands in."""

    row: GrantRow
    grant: Grant = field(repr=False)


def build_grant_key(tenant: str | None, user: str | None, url: str) -> GrantKey:
    """Build the key of a grant. The URL is canonical as RFC 8707 has it: lower-case scheme and host, no fragment."""
    parts = urlsplit(url)
    server = urlunsplit(parts._replace(scheme=parts.scheme.lower(), netloc=parts.netloc.lower(), fragment=""))
    return GrantKey(tenant or "", user or "", server)


def _get_subject(key: GrantKey) -> str:
    return f"mcp-grant/{json.dumps(list(key))}"


def seal_grant(address: str, key: GrantKey, grant: Grant) -> tuple[str, str]:
    """Return the sealed grant, and the id of the key. Raises ``AuthContextUnavailableError`` if there is no key."""
    return seal_secret(address, _get_subject(key), asdict(grant))


def seal_secret(address: str, subject: str, values: dict[str, Any]) -> tuple[str, str]:
    """Seal plain values for ``subject``, for the server at ``address``; return the text and the id of the key."""
    try:
        encryption_key = KeyRing.from_environment().get_encryption_key(address)
    except AuthContextError as error:
        problem = "a grant for an MCP server cannot be stored: PERDURE_ENCRYPTION_KEYS has no key to encrypt it"
        hint = 'export PERDURE_ENCRYPTION_KEYS="k1:$(openssl rand -base64 32)", the same for clients and workers.'
        raise ToolError(problem, hint=hint) from error
    return encryption_key.seal(json.dumps(values).encode(), subject), encryption_key.id


def open_secret(sealed: str, subject: str, what: str) -> dict[str, Any]:
    """Open what :func:`seal_secret` has sealed. Raises ``ToolError`` that names the missing key."""
    try:
        values = json.loads(KeyRing.from_environment().open(sealed, [subject], what=what))
    except AuthContextError as error:
        raise ToolError(error.message, hint="Give all workers and clients the same PERDURE_ENCRYPTION_KEYS.") from None
    return dict(values)


def open_grant(row: GrantRow) -> Grant:
    """Open a stored grant. Raises ``ToolError`` that names the missing key."""
    return Grant(
        **open_secret(row.sealed, _get_subject(row.key), f"the grant for MCP server {describe_url(row.server)}")
    )


def describe_url(url: str) -> str:
    """Return the URL without credentials and query, to be shown."""
    parts = urlsplit(url)
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))


async def read_grant(access: GrantAccess, key: GrantKey) -> StoredGrant | None:
    """Read the grant; None if there is none. Waits for a store that is away."""
    row = await access.run(lambda grants: grants.get_grant(key))
    return None if row is None else StoredGrant(row, open_grant(row))


def build_grant_row(address: str, key: GrantKey, grant: Grant, by: str) -> GrantRow:
    """Build the row of a new sign-in, which ``by`` has made; ``address`` as of :func:`seal_grant`."""
    sealed, key_id = seal_grant(address, key, grant)
    now = format_utc_now()
    return GrantRow(*key, 1, sealed, key_id, "", "", now, by, now)


async def declare_client(
    access: GrantAccess, key: GrantKey, stored: StoredGrant | None, declared: dict[str, str]
) -> None:
    """Write what the agent says of its client, for a sign-in that begins where its code is not. A grant that somebody
    refreshes just now is left alone: the next call writes it."""
    if declared == ((stored.grant.declared if stored is not None else None) or {}):
        return
    grant = replace(Grant() if stored is None else stored.grant, declared=declared)
    row = build_grant_row(access.address, key, grant, "")
    if stored is None:
        await access.run(lambda grants: grants.create_grant(row, replace=False))
    else:
        version, owner = stored.row.version, uuid.uuid4().hex
        until = add_seconds(row.updated_at, LEASE_SECONDS)
        if await access.run(lambda grants: grants.lease_grant(key, version, owner, row.updated_at, until)):
            await access.run(lambda grants: grants.update_grant(key, version, row.sealed, row.key_id, row.updated_at))


Exchange = Callable[[Grant], Awaitable[Grant | None]]
"""Asks the authorization server for new tokens; None if it refuses for good."""


async def refresh_grant(access: GrantAccess, stored: StoredGrant, exchange: Exchange) -> StoredGrant | None:
    """Refresh the grant, or wait for the worker that does; return the current one, None without one.

    A grant that cannot be refreshed comes back without tokens.
    """
    key, version, owner = stored.row.key, stored.row.version, uuid.uuid4().hex
    deadline, delay = time.monotonic() + REFRESH_WAIT, 0.05
    while True:
        now = format_utc_now()
        until = add_seconds(now, LEASE_SECONDS)
        if await access.run(lambda grants: grants.lease_grant(key, version, owner, now, until)):  # noqa: B023  # awaited here
            break
        current = await read_grant(access, key)
        if current is None or current.row.version != version:
            return current
        if time.monotonic() > deadline:
            raise ToolError(f"the grant for MCP server {describe_url(key.server)} is being refreshed by another worker")
        await asyncio.sleep(delay)
        delay = min(delay * 2, 1.0)
    # A call that is cancelled here must not lose the token that the server has rotated.
    task = asyncio.ensure_future(_exchange_leased(access, stored, owner, exchange))
    _exchanges.add(task)
    task.add_done_callback(_exchanges.discard)
    return await asyncio.shield(task)


_exchanges: set[asyncio.Future[StoredGrant | None]] = set()
"""Exchanges under way: the event loop keeps no task alive."""


async def _exchange_leased(
    access: GrantAccess, stored: StoredGrant, owner: str, exchange: Exchange
) -> StoredGrant | None:
    key, version = stored.row.key, stored.row.version
    try:
        refreshed = await exchange(stored.grant)
    except Exception:
        await access.run(lambda grants: grants.release_grant(key, owner))
        raise
    if refreshed is None:
        refreshed = replace(stored.grant, access_token=None, refresh_token=None, expires_at=None)
    while True:
        sealed, key_id = seal_grant(access.address, key, refreshed)
        now = format_utc_now()
        if await access.run(lambda grants: grants.update_grant(key, version, sealed, key_id, now)):  # noqa: B023  # awaited here
            return await read_grant(access, key)
        current = await read_grant(access, key)
        if current is None or current.grant.refresh_token != stored.grant.refresh_token:
            return current  # somebody has signed in again, or out
        refreshed, version = replace(refreshed, declared=current.grant.declared), current.row.version
