"""API tokens of HTTP callers, the verbs and roles that they carry, and logins of the console, made with a token.

The store has the hash of a token's secret, never the secret. A run needs none of this.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol

Verb = Literal["read", "send", "decide", "operate", "admin"]
"""``read``: see runs and their contents. ``send``: start sessions, send messages, interrupt, answer questions and
callbacks, fork. ``decide``: approve and deny. ``operate``: cancel, pause, resume, close, raise limits, schedules; see
the audit trail. ``admin``: tokens, webhooks."""
Role = Literal["viewer", "sender", "approver", "operator", "admin"]

ROLES: Mapping[Role, frozenset[Verb]] = {
    "viewer": frozenset({"read"}),
    "sender": frozenset({"read", "send"}),
    "approver": frozenset({"read", "decide"}),
    "operator": frozenset({"read", "send", "decide", "operate"}),
    "admin": frozenset({"read", "send", "decide", "operate", "admin"}),
}

TOKEN_PREFIX = "pdr_"  # noqa: S105  # what tokens begin with: secret scanners find leaked ones by it
_TOKEN = re.compile(rf"{TOKEN_PREFIX}([0-9a-f]{{16}})_([0-9a-f]{{64}})")
MAX_TOKEN_CHARS = 200
"""Most characters of the name of a token, and of each tenant, agent and session that it is limited to; a session has up
to ``RUN_ID_CHARS``."""
MAX_SCOPE_NAMES = 100
"""Most tenants, agents or sessions of a token."""


@dataclass(frozen=True, slots=True)
class TokenRow:
    """A token as stored. Times are ISO 8601, UTC, microseconds."""

    id: str
    hash: str
    """See :func:`hash_token`."""
    name: str
    """Whose it is: ``by`` of all that its holder does. Several tokens may have the same name."""
    role: str
    """A :data:`Role`; one that this version does not know gives no verbs."""
    created_at: str
    created_by: str
    tenants: tuple[str, ...] | None = None
    """None: all, also runs without a tenant."""
    agents: tuple[str, ...] | None = None
    """None: all."""
    sessions: tuple[str, ...] | None = None
    """None: all."""
    expires_at: str | None = None
    revoked_at: str | None = None
    last_used_at: str | None = None
    """Exact to a minute."""


class TokenCursor(NamedTuple):
    """The place of a token in a list: the list goes on after it."""

    created_at: str
    id: str


@dataclass(frozen=True, slots=True)
class LoginRow:
    """A login of the console as stored: the browser's cookie has its id and secret. It is worth what its token is."""

    id: str
    hash: str
    """See :func:`hash_login`."""
    token_id: str
    """The token that it was made with. A revoked token ends its logins."""
    created_at: str
    expires_at: str


class Tokens(Protocol):
    """The tokens of HTTP callers, and logins. All methods raise ``StoreError`` when the store fails."""

    async def create_token(self, row: TokenRow) -> None:
        """Record a new token. Raises ``InvalidInputError`` if there is one of its id."""

    async def get_token(self, id: str) -> TokenRow | None:
        """Return the token, also one that is expired or revoked; None if there is none."""

    async def list_tokens(
        self, *, revoked: bool = False, after: TokenCursor | None = None, limit: int = 100
    ) -> list[TokenRow]:
        """List tokens, the newest first, from behind ``after`` on; with ``revoked`` also those that are revoked."""

    async def revoke_token(self, id: str, at: str) -> TokenRow | None:
        """Revoke the token, unless it is revoked already: the first time stays. Return it; None if there is none."""

    async def record_token_use(self, id: str, at: str, *, unless_since: str) -> None:
        """Record that the token was used, unless its last recorded use is later than ``unless_since``."""

    async def create_login(self, row: LoginRow) -> None:
        """Record a new login, and delete those that had expired when it was created."""

    async def get_login(self, id: str) -> LoginRow | None:
        """Return the login, also one that has expired; None if there is none."""

    async def delete_login(self, id: str) -> None:
        """Delete the login; nothing if there is none."""


class NewSecret(NamedTuple):
    """What a new token consists of."""

    id: str
    token: str
    """What the holder is given: ``pdr_<id>_<secret>``."""
    hash: str


def generate_token() -> NewSecret:
    """Return a new token: 64 random bits of id, 256 of secret, both in hexadecimal digits."""
    token_id, secret = secrets.token_hex(8), secrets.token_hex(32)
    return NewSecret(token_id, f"{TOKEN_PREFIX}{token_id}_{secret}", hash_token(token_id, secret))


def parse_token(token: str) -> tuple[str, str] | None:
    """Return id and secret of a token, None for a text of another form."""
    parts = _TOKEN.fullmatch(token)
    return None if parts is None else (parts[1], parts[2])


def hash_token(id: str, secret: str) -> str:
    """Return the SHA-256 of a secret with its id. A secret has 256 random bits, so a slow hash would add nothing."""
    return hashlib.sha256(f"{id}.{secret}".encode()).hexdigest()


def hash_login(id: str, secret: str) -> str:
    """Return the SHA-256 of a login's secret with its id. It is another one than a token's, so that a cookie is of no
    use as a token."""
    return hashlib.sha256(f"login.{id}.{secret}".encode()).hexdigest()


def is_secret_of(row: TokenRow | None, id: str, secret: str) -> bool:
    """Whether ``secret`` is that of ``row``, compared in constant time, also if there is no row."""
    expected = row.hash if row is not None else "0" * 64
    return hmac.compare_digest(hash_token(id, secret), expected) and row is not None
