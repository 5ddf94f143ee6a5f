"""How an MCP server's requests are authorized: by a person's grant in the store, or by the client's own credentials.

The protocol (discovery, registration, PKCE, tokens) is in :mod:`.sign_in`, which is imported when it is first needed.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from ..errors import ToolError
from ..ports.grants import GrantKey
from ..tools import RunContext
from ..types.approvals import Consent
from .grants import build_grant_key, declare_client, describe_url, read_grant, refresh_grant
from .oauth import ClientCredentials, ConsentNeededError, NoUserError, OAuth, Refusal

if TYPE_CHECKING:
    from .grants import Grant, StoredGrant


class Authorization(Protocol):
    """What authorizes the requests of one server for one owner of a grant."""

    async def get_token(self) -> str | None:
        """Return an access token that is valid; None to begin without one. Raises ``ConsentNeededError``."""
        ...

    async def handle_refusal(self, refusal: Refusal) -> None:
        """Get another token, after which the request is sent again. Raises ``ConsentNeededError``, ``ToolError``."""
        ...


# ---
# A person's grant.


class PersonAuthorization:
    """Authorizes by the grant in the store."""

    def __init__(self, name: str, url: str, auth: OAuth, ctx: RunContext[Any]) -> None:
        self._name, self._url, self._auth, self._access = name, url, auth, ctx.grant_access
        self._key = find_grant_owner(url, auth, ctx)

    async def get_token(self) -> str | None:
        """See :class:`Authorization`."""
        grant = await self._read_current()
        assert grant.access_token is not None, "else consent is needed"
        return grant.access_token

    async def handle_refusal(self, refusal: Refusal) -> None:
        """See :class:`Authorization`."""
        wanted = frozenset((refusal.scope or "").split())
        stored = await self._read()
        if stored is None:
            raise await self._build_consent_error(None, wanted)
        if stored.grant.access_token is None:
            raise await self._build_consent_error(stored, wanted | stored.grant.scopes)
        if stored.grant.access_token != refusal.token:
            return  # refreshed, or signed in again, since this request was sent
        if refusal.status == 403:  # of HTTP
            if wanted <= stored.grant.scopes:
                scopes = refusal.scope or "of which it does not say the name"
                raise ToolError(
                    f"MCP server {self._name!r} demands a scope that its grant has ({scopes}): signing in again does "
                    "not help"
                )
            raise await self._build_consent_error(stored, wanted | stored.grant.scopes)
        await self._read_current(is_refused=True)

    async def _read(self) -> StoredGrant | None:
        if self._access is None or self._key is None:  # a context that a test has made
            return None
        return await read_grant(self._access, self._key)

    async def _read_current(self, *, is_refused: bool = False) -> Grant:
        """Return the grant with a valid access token; ``is_refused``: the stored one is not."""
        if self._key is None:
            raise NoUserError(
                f"MCP server {self._name!r} is used with the grant of the run's user, and this run has no user",
                hint="Start the run with user=…, or let all runs share a grant: OAuth(per_user=False).",
            )
        stored = await self._read()
        if stored is None or stored.grant.access_token is None:
            raise await self._build_consent_error(stored, frozenset() if stored is None else stored.grant.scopes)
        if not is_refused and stored.grant.is_current(time.time()):
            return stored.grant
        if stored.grant.refresh_token is None:
            if not is_refused:
                return stored.grant  # its time may be over; the server decides
            raise await self._build_consent_error(stored, stored.grant.scopes)
        from .sign_in import refresh_tokens

        assert self._access is not None, "the grant is of its store"
        refreshed = await refresh_grant(self._access, stored, lambda grant: refresh_tokens(self._url, grant))
        if refreshed is None or refreshed.grant.access_token is None:
            raise await self._build_consent_error(stored, stored.grant.scopes)
        return refreshed.grant

    async def _build_consent_error(self, stored: StoredGrant | None, scopes: frozenset[str]) -> ConsentNeededError:
        assert self._key is not None, "else there is nobody to ask"
        if self._access is not None:
            await declare_client(self._access, self._key, stored, self._auth.declare_client())
        wanted = tuple(sorted(scopes | set(self._auth.scopes)))
        shown = describe_url(self._key.server)
        whose = f" as {self._key.user_id}" if self._key.user_id else ""
        text = f"Sign in to {shown}{whose}" + (f" (scopes: {' '.join(wanted)})" if wanted else "")
        consent = Consent(server=self._key.server, scopes=wanted, tenant=self._key.tenant, user=self._key.user_id)
        return ConsentNeededError(text, consent)


def find_grant_owner(url: str, auth: OAuth, ctx: RunContext[Any]) -> GrantKey | None:
    """Return the key of the grant that a run uses; None for a run without a user where one is needed."""
    if auth.per_user and not ctx.user:
        return None
    return build_grant_key(ctx.tenant, ctx.user if auth.per_user else None, url)


# ---
# The deployment's own identity.


class MachineAuthorization:
    """Authorizes by client credentials. One for all requests of a server from one event loop."""

    def __init__(self, name: str, url: str, auth: ClientCredentials, clock: Callable[[], float] = time.time) -> None:
        self._name, self._url, self._auth, self._clock = name, url, auth, clock
        self._grant: Grant | None = None
        self._fetching = asyncio.Lock()

    async def get_token(self) -> str | None:
        """See :class:`Authorization`. The first request goes without one: its refusal says where tokens are had."""
        grant = self._grant
        return grant.access_token if grant is not None and grant.is_current(self._clock()) else None

    async def handle_refusal(self, refusal: Refusal) -> None:
        """See :class:`Authorization`."""
        async with self._fetching:
            if self._grant is not None and self._grant.access_token != refusal.token:
                return
            if self._grant is not None and refusal.status == 403:  # of HTTP
                wanted = frozenset((refusal.scope or "").split())
                if wanted <= self._grant.scopes:
                    raise ToolError(f"MCP server {self._name!r} refuses its client: {refusal.scope or 'no scope'}")
            from .sign_in import fetch_machine_tokens

            self._grant = await fetch_machine_tokens(self._url, self._auth, refusal)
