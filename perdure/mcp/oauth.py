"""How an MCP server's requests are authorized: ``MCPServer.http(url, auth=OAuth())``, or ``ClientCredentials``.

The protocol (discovery, registration, PKCE, tokens) is in :mod:`.sign_in`, which is imported when it is first needed.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from ..errors import DefinitionError, ToolError
from ..ports.grants import GrantKey
from ..tools import RunContext
from ..types.approvals import Consent
from .grants import build_grant_key, declare_client, describe_url, read_grant, refresh_grant

if TYPE_CHECKING:
    from .grants import Grant, StoredGrant


@dataclass(frozen=True, slots=True)
class OAuth:
    """A server at which a person signs in: OAuth 2.1 as MCP has it.

    A call that lacks consent waits as a question until somebody signs in: with ``perdure mcp login URL``, or in the
    console. The grant is stored, encrypted, and refreshed by the workers.
    """

    scopes: Sequence[str] = ()
    """Scopes to ask for, besides those that the server names."""
    client_id: str | None = None
    """Of a client that was registered by hand; without it perdure registers one (RFC 7591)."""
    client_secret: str | None = field(default=None, repr=False)
    client_metadata_url: str | None = None
    """https URL of a client metadata document, which is the client's id at servers that support it."""
    per_user: bool = False
    """Each run acts with the grant of its user (``ctx.user``); else all runs of a tenant share one."""

    def __post_init__(self) -> None:
        """Raise ``DefinitionError`` for values that cannot work."""
        object.__setattr__(self, "scopes", _check_scopes(self.scopes, "OAuth"))
        for name in ("client_id", "client_secret", "client_metadata_url"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, str) or not value):
                raise DefinitionError(f"OAuth: {name} is a text that is not empty", hint="Leave it out, or give it.")
        if self.client_secret is not None and self.client_id is None:
            raise DefinitionError("OAuth: a client_secret without a client_id", hint="Give the client_id, too.")
        url = self.client_metadata_url
        if url is not None and (not url.startswith("https://") or url.count("/") < 3 or url.endswith("/")):
            raise DefinitionError(
                f"OAuth: client_metadata_url is an https URL with a path, not {url!r:.200}",
                hint="For instance https://app.example/mcp-client.json.",
            )

    def declare_client(self) -> dict[str, str]:
        """Return what a sign-in must know of the client."""
        names = ("client_id", "client_secret", "client_metadata_url")
        return {name: value for name in names if (value := getattr(self, name)) is not None}


@dataclass(frozen=True, slots=True)
class ClientCredentials:
    """A server at which the deployment itself is known: OAuth's grant of client credentials, without a person.

    Each worker fetches its tokens by itself, and keeps them in memory.
    """

    client_id: str
    issuer: str
    """URL of the authorization server that knows the client: its secret is sent to no other."""
    client_secret: str | None = field(default=None, repr=False)
    private_key: str | None = field(default=None, repr=False)
    """PEM of the key that signs the client's assertion (RFC 7523), instead of a secret."""
    algorithm: str = "RS256"
    """Of the signature: RS256, ES256, …"""
    scopes: Sequence[str] = ()

    def __post_init__(self) -> None:
        """Raise ``DefinitionError`` for values that cannot work."""
        object.__setattr__(self, "scopes", _check_scopes(self.scopes, "ClientCredentials"))
        if not isinstance(self.client_id, str) or not self.client_id:
            raise DefinitionError("ClientCredentials: client_id is a text that is not empty", hint="Give the id.")
        if (self.client_secret is None) == (self.private_key is None):
            raise DefinitionError(
                "ClientCredentials: give client_secret or private_key, one of them", hint="Leave the other one out."
            )
        if not isinstance(self.issuer, str) or not self.issuer.startswith(("https://", "http://")):
            raise DefinitionError(
                f"ClientCredentials: issuer is the http(s) URL of the authorization server, not {self.issuer!r:.200}",
                hint='For instance issuer="https://auth.example.com".',
            )


def _check_scopes(scopes: Any, what: str) -> tuple[str, ...]:
    given = scopes.split() if isinstance(scopes, str) else scopes
    if not isinstance(given, Sequence) or not all(
        isinstance(scope, str) and scope and not set(scope) & set(' "\\\t\r\n') for scope in given
    ):
        raise DefinitionError(f"{what}: scopes are texts without spaces, not {scopes!r:.200}", hint='("read", "write")')
    return tuple(given)


class ConsentNeededError(ToolError):
    """A person has to sign in first. Nothing was sent to the server, or it has refused to do anything."""

    def __init__(self, message: str, consent: Consent) -> None:
        super().__init__(message)
        self.consent = consent


class NoUserError(ToolError):
    """A run without a user uses a server with ``OAuth(per_user=True)``."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """A server's answer that the token is missing, not valid, or does not have the scope."""

    status: int
    """401 or 403."""
    scope: str | None
    """The scopes that it demands, separated by spaces."""
    resource_metadata: str | None
    """Where it says that its metadata is."""
    token: str | None = field(repr=False)
    """The token that it has refused."""


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
