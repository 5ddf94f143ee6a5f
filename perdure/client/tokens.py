"""``client.tokens``: the API tokens of the HTTP service."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta

from ..errors import InvalidInputError, StoreError
from ..ports.store import Store
from ..ports.times import add_seconds, format_utc_now
from ..ports.tokens import MAX_SCOPE_NAMES, MAX_TOKEN_CHARS, ROLES, TokenCursor, TokenRow, generate_token
from ..types.limits import parse_seconds
from ..types.messages import RUN_ID_CHARS, clean_text
from .audit import audit_steering
from .handles import ClientHandle

_PAGE_ROWS = 500


@dataclass(frozen=True, slots=True)
class ApiToken:
    """A token as lists show it. Times are ISO 8601, UTC."""

    id: str
    name: str
    """Whose it is: ``by`` of all that its holder does."""
    role: str
    tenants: tuple[str, ...] | None
    """None: all, also runs without a tenant; the same of ``agents`` and ``sessions``."""
    agents: tuple[str, ...] | None
    sessions: tuple[str, ...] | None
    created_at: str
    created_by: str
    expires_at: str | None
    revoked_at: str | None
    last_used_at: str | None
    """Exact to a minute."""


@dataclass(frozen=True, slots=True)
class NewToken:
    """A token that was just made: the only time at which its secret is known."""

    info: ApiToken
    token: str = field(repr=False)


class ApiTokens:
    """Creates, lists and revokes API tokens. Needs the store, which has a hash of each secret."""

    def __init__(self, client: ClientHandle) -> None:
        self._client = client

    async def create(
        self,
        name: str,
        *,
        role: str,
        tenants: Sequence[str] | None = None,
        agents: Sequence[str] | None = None,
        sessions: Sequence[str] | None = None,
        expires: float | str | timedelta | None = None,
        by: str | None = None,
    ) -> NewToken:
        """Create a token. ``name``: whose it is. ``tenants``, ``agents``, ``sessions``: it is limited to these; None
        for all. ``expires``: after this time (seconds, or ``"30d"``); by default never.

        Raises ``InvalidInputError``, ``StoreError``.
        """
        _check_name("name", name)
        if role not in ROLES:
            raise InvalidInputError(f"there is no role {role!r:.100}", hint=f"The roles are {', '.join(ROLES)}.")
        given = {"tenant": tenants, "agent": agents, "session": sessions}
        scopes = {noun: _check_scope(noun, names) for noun, names in given.items()}
        now = format_utc_now()
        try:
            expires_at = None if expires is None else add_seconds(now, parse_seconds(expires))
        except ValueError as error:
            raise InvalidInputError(f"the time until a token expires: {error}", hint="For instance: 30d") from None
        new = generate_token()
        row = TokenRow(
            new.id,
            new.hash,
            name,
            role,
            now,
            by or self._client.actor,
            scopes["tenant"],
            scopes["agent"],
            scopes["session"],
            expires_at,
        )
        limits = "".join(f", {noun} {', '.join(names)}" for noun, names in scopes.items() if names is not None)
        async with audit_steering(
            self._client, "token.create", f"token:{new.id}", by=by, detail=f"{name}, {role}{limits}"
        ):
            await (await self._client.store(create=True)).create_token(row)
        return NewToken(_build_token(row), new.token)

    async def list(self, *, revoked: bool = False, limit: int = 1000) -> list[ApiToken]:
        """List tokens, the newest first; with ``revoked`` also those. Expired ones are listed until they are revoked.
        Raises ``StoreError``."""
        store = await self._open_existing_store()
        rows: list[TokenRow] = []
        after = None
        while len(rows) < limit:
            page = await store.list_tokens(revoked=revoked, after=after, limit=min(_PAGE_ROWS, limit - len(rows)))
            if not page:
                break
            rows += page
            after = TokenCursor(page[-1].created_at, page[-1].id)
        return [_build_token(row) for row in rows]

    async def revoke(self, id: str, *, by: str | None = None) -> ApiToken:
        """Revoke a token: its next request is refused. Again is no error. Raises ``InvalidInputError`` for a token that
        does not exist, ``StoreError``."""
        async with audit_steering(self._client, "token.revoke", f"token:{clean_text(id)}", by=by):
            row = await (await self._open_existing_store()).revoke_token(clean_text(id), format_utc_now())
            if row is None:
                raise InvalidInputError(f"there is no token {id!r:.100}", hint="`perdure token list` has all.")
        return _build_token(row)

    async def _open_existing_store(self) -> Store:
        store = await self._client.store()
        if not store.store_id:
            raise StoreError(f"there is no store at {store.place} yet", hint="Create a token, or start a worker.")
        return store


def _build_token(row: TokenRow) -> ApiToken:
    return ApiToken(
        row.id,
        row.name,
        row.role,
        row.tenants,
        row.agents,
        row.sessions,
        row.created_at,
        row.created_by,
        row.expires_at,
        row.revoked_at,
        row.last_used_at,
    )


def _check_name(what: str, name: object, max_chars: int = MAX_TOKEN_CHARS) -> str:
    if (
        not isinstance(name, str)
        or not 0 < len(name) <= max_chars
        or name != clean_text(name)
        or not name.isprintable()
    ):
        raise InvalidInputError(
            f"the {what} of a token must be 1 to {max_chars:,} printable characters, not {name!r:.100}",
            hint="For instance: ana, or ci-deploys.",
        )
    return name


def _check_scope(noun: str, names: Sequence[str] | None) -> tuple[str, ...] | None:
    """Check what a token is limited to. An empty list is refused: it could be meant as all, or as none."""
    if names is None:
        return None
    if isinstance(names, str) or not 0 < len(names) <= MAX_SCOPE_NAMES:
        raise InvalidInputError(f"a token is limited to 1 to {MAX_SCOPE_NAMES} {noun}s", hint="Leave it out for all.")
    max_chars = RUN_ID_CHARS if noun == "session" else MAX_TOKEN_CHARS
    return tuple(dict.fromkeys(_check_name(noun, name, max_chars) for name in names))
