"""``OAuth`` and ``ClientCredentials``: what an agent says of a server that demands OAuth; what its requests meet."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ..errors import DefinitionError, ToolError
from ..types.approvals import Consent


@dataclass(frozen=True, slots=True)
class OAuth:
    """A server at which a person signs in: OAuth 2.1 as MCP has it.

    A call that lacks consent waits as a question until a person signs in: with ``perdure mcp login URL``, or in the
    console. The grant is stored, encrypted, and refreshed by the workers.
    """

    scopes: Sequence[str] = ()
    """Scopes to ask for, besides those that the server names."""
    client_id: str | None = None
    """Of a client that was registered by hand; without it perdure registers one (RFC 7591)."""
    client_secret: str | None = field(default=None, repr=False)
    issuer: str | None = None
    """URL of the authorization server that knows this client: its secret is sent to no other, whatever the MCP server
    says."""
    client_metadata_url: str | None = None
    """https URL of a client metadata document, which is the client's id at servers that support it."""
    per_user: bool = False
    """Each run acts with the grant of its user (``ctx.user``); else all runs of a tenant share one."""

    def __post_init__(self) -> None:
        """Raise ``DefinitionError`` for values that cannot work."""
        object.__setattr__(self, "scopes", _check_scopes(self.scopes, "OAuth"))
        for name in ("client_id", "client_secret", "issuer", "client_metadata_url"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, str) or not value):
                raise DefinitionError(f"OAuth: {name} is a text that is not empty", hint="Leave it out, or give it.")
        if self.client_secret is not None and self.client_id is None:
            raise DefinitionError("OAuth: a client_secret without a client_id", hint="Give the client_id, too.")
        if self.client_secret is not None and self.issuer is None:
            raise DefinitionError("OAuth: a client_secret without the issuer that knows it", hint=_ISSUER_HINT)
        if self.issuer is not None:
            _check_issuer(self.issuer, "OAuth")
        url = self.client_metadata_url
        if url is not None and (not url.startswith("https://") or url.count("/") < 3 or url.endswith("/")):
            raise DefinitionError(
                f"OAuth: client_metadata_url is an https URL with a path, not {url!r:.200}",
                hint="For instance https://app.example/mcp-client.json.",
            )

    def declare_client(self) -> dict[str, str]:
        """Return what a sign-in must know of the client."""
        names = ("client_id", "client_secret", "issuer", "client_metadata_url")
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
        _check_issuer(self.issuer, "ClientCredentials")


_ISSUER_HINT = 'For instance issuer="https://auth.example.com".'


def _check_issuer(issuer: object, what: str) -> None:
    if not isinstance(issuer, str) or not issuer.startswith(("https://", "http://")):
        raise DefinitionError(
            f"{what}: issuer is the http(s) URL of the authorization server, not {issuer!r:.200}", hint=_ISSUER_HINT
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
