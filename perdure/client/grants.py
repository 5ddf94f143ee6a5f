"""``client.grants``: sign-ins at MCP servers, and what came of them.

A sign-in has two halves, with a browser between them: :meth:`McpGrants.begin` gives the URL that a person opens, and
:meth:`McpGrants.finish` takes what the browser comes back with, in any process of the deployment.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlsplit

from ..errors import InvalidInputError, PerdureError, StoreError, ToolError
from ..mcp.grants import Grant, build_grant_key, build_grant_row, describe_url, open_grant, open_secret, seal_secret
from ..mcp.oauth import OAuth
from ..ports.grants import GrantKey, GrantRow, SignInRow
from ..ports.store import Store
from ..ports.times import add_seconds, format_utc_now
from ..types.messages import clean_text
from ..types.redaction import find_address_secrets
from .audit import audit_steering
from .decisions import WaitRef, answer_pending_call
from .handles import ClientHandle
from .pages import MAX_PAGE, InboxEntry, gather_bounded, list_wait_page
from .progress import refuse_without_worker

logger = logging.getLogger("perdure.client")

SIGN_IN_SECONDS = 600.0
"""Seconds for which a browser may be away."""
SETTLE_SECONDS = 1.0
"""Seconds after which calls that wait for a new grant are looked for once more."""
MAX_PARAMETERS, MAX_PARAMETER_CHARS = 20, 8000
"""Most parameters of a browser's return, and characters of each."""
_PAGE_ROWS = 500


@dataclass(frozen=True, slots=True)
class McpGrant:
    """A grant as lists show it. Times are ISO 8601, UTC."""

    server: str
    tenant: str
    """"" for the runs without a tenant."""
    user: str
    """"" for the grant that all runs of the tenant share."""
    scopes: tuple[str, ...]
    state: str
    """``valid``; ``refreshes`` (its access token is over, and is refreshed when it is needed); ``needs sign-in``; or
    ``sealed`` with a key that this process does not have."""
    key_id: str
    """Of the encryption key."""
    expires_at: str | None
    """Of its access token."""
    signed_in_by: str
    created_at: str
    updated_at: str

    @property
    def id(self) -> str:
        """The server."""
        return self.server


@dataclass(frozen=True, slots=True)
class SignIn:
    """A sign-in that has begun."""

    url: str
    """What the person opens in a browser."""
    state: str = field(repr=False)
    """Comes back with the browser."""


@dataclass(frozen=True, slots=True)
class SignedIn:
    """A sign-in that is complete."""

    grant: McpGrant
    answered: tuple[str, ...]
    """Ids of the runs whose calls had waited for it, and continue."""
    unanswered: tuple[str, ...]
    """Ids of the runs that wait for it and did not answer, as no worker serves them: they may be told once one does, or
    are answered by hand."""
    note: str = ""
    """What the caller of :meth:`McpGrants.begin` has noted."""


class McpGrants:
    """Begins and finishes sign-ins, and lists and deletes grants. Needs the store, and the extra ``mcp``.

    Methods raise ``InvalidInputError``, ``StoreError``, and ``ToolError`` for what a server answers. Each change leaves
    a row in the audit trail; ``by`` is who asks for it, by default the client's ``actor``.
    """

    def __init__(self, client: ClientHandle) -> None:
        self._client = client

    async def begin(
        self,
        url: str,
        *,
        redirect_uri: str,
        auth: OAuth | None = None,
        tenant: str | None = None,
        user: str | None = None,
        scopes: tuple[str, ...] = (),
        by: str | None = None,
        note: str = "",
    ) -> SignIn:
        """Begin a sign-in at the MCP server ``url``, for all runs of ``tenant``, or those of its ``user``.

        ``redirect_uri``: where the browser comes back to. ``auth``: the client; by default as the agent has declared
        it. ``scopes`` are asked for besides those of ``auth`` and of the server. ``note``: see :class:`SignedIn`.
        """
        from ..mcp.sign_in import begin_sign_in

        key = self._build_key(url, tenant, user)
        store = await self._open_store(create=True)
        row = await store.get_grant(key)
        previous = None if row is None else open_grant(row)
        if auth is None:
            declared: dict[str, Any] = dict((previous.declared if previous is not None else None) or {})
            auth = OAuth(**declared)
        async with self._audit("mcp.sign_in", key, by):
            page, pending = await begin_sign_in(key.server, auth, redirect_uri, scopes=scopes, previous=previous)
            now, name = format_utc_now(), _hash_state(pending.state)
            about = {"key": list(key), "by": by or self._client.actor, "note": note, "pending": asdict(pending)}
            sealed, _ = seal_secret(self._address, f"mcp-sign-in/{name}", about)
            await store.create_sign_in(SignInRow(name, sealed, add_seconds(now, SIGN_IN_SECONDS)), now)
        return SignIn(page, pending.state)

    async def finish(
        self, answer: Mapping[str, str], *, by: str | None = None, tenants: Sequence[str] | None = None
    ) -> SignedIn:
        """Finish a sign-in with the parameters of the URL that the browser came back to, once. ``by``: only if this
        person has begun it; ``tenants``: only for one of these, which may have people of the same name. Calls that wait
        for it are answered, and continue."""
        from ..mcp.sign_in import PendingSignIn, finish_sign_in

        if len(answer) > MAX_PARAMETERS or any(len(text) > MAX_PARAMETER_CHARS for text in answer.values()):
            raise InvalidInputError("the answer of the browser is too large", hint="Begin the sign-in again.")
        name = _hash_state(answer.get("state", ""))
        store = await self._open_store()
        row = await store.take_sign_in(name)
        gone = "this sign-in is not known here: it was used, or it has expired"
        if row is None or row.expires_at <= format_utc_now():
            raise InvalidInputError(gone, hint="Begin the sign-in again.")
        about = open_secret(row.sealed, f"mcp-sign-in/{name}", "the sign-in")
        key, actor = GrantKey(*about["key"]), str(about["by"])
        if by not in (None, actor) or (tenants is not None and key.tenant not in tenants):
            raise InvalidInputError("another person has begun this sign-in", hint="Begin one of your own.")
        grant = await finish_sign_in(PendingSignIn(**about["pending"]), dict(answer))
        known = await store.get_grant(key)
        if known is not None:
            grant = replace(grant, declared=open_grant(known).declared)
        async with self._audit("mcp.grant", key, actor):
            await store.create_grant(build_grant_row(self._address, key, grant, actor))
        written = await store.get_grant(key)
        assert written is not None, "just written"
        answered, unanswered = await self._answer_waiting_calls(key, actor)
        return SignedIn(_build_grant(written), tuple(answered), tuple(unanswered), str(about["note"]))

    async def _answer_waiting_calls(self, key: GrantKey, by: str) -> tuple[list[str], list[str]]:
        """Answer the questions that wait for this grant; return the ids of the runs that go on, and of the others.

        It looks twice: a call that found no grant a moment ago may not be in the table yet.
        """
        answered: dict[tuple[str, str], bool] = {}

        async def answer(wait: InboxEntry) -> None:
            run, question = self._client.run(wait.run_id), WaitRef(wait.call_id, wait.hash)
            try:
                await refuse_without_worker(run, answer_pending_call(run, question, True, by=by))
            except PerdureError as error:
                logger.warning("run %s waits for a sign-in that is done: %s", wait.run_id, error.message)
                answered[wait.run_id, wait.hash] = False
            else:
                answered[wait.run_id, wait.hash] = True

        for delay in (0.0, SETTLE_SECONDS):
            await asyncio.sleep(delay)
            waits = [wait for wait in await self._list_waits_for(key) if (wait.run_id, wait.hash) not in answered]
            await gather_bounded(answer, waits)
        done = [run_id for (run_id, _), is_told in answered.items() if is_told]
        return done, [run_id for (run_id, _), is_told in answered.items() if not is_told]

    async def _list_waits_for(self, key: GrantKey) -> list[InboxEntry]:
        found: list[InboxEntry] = []
        cursor: str | None = None
        while True:
            page = await list_wait_page(self._client, kind="question", limit=MAX_PAGE, cursor=cursor)
            found += [wait for wait in page.waits if _is_of_grant(wait.consent, key)]
            if page.cursor is None:
                return found
            cursor = page.cursor

    async def list(self, *, tenant: str | None = None, limit: int = 1000) -> list[McpGrant]:
        """List the grants, by tenant, user and server; ``tenant``: only those of this one."""
        store = await self._open_store()
        found: list[McpGrant] = []
        after: GrantKey | None = None
        while len(found) < limit:
            page = await store.list_grants(after=after, limit=_PAGE_ROWS)
            found += [_build_grant(row) for row in page if tenant in (None, row.tenant)]
            if len(page) < _PAGE_ROWS:
                break
            after = page[-1].key
        return found[:limit]

    async def delete(
        self,
        url: str,
        *,
        tenant: str | None = None,
        user: str | None = None,
        revoke: bool = True,
        by: str | None = None,
    ) -> bool:
        """Delete the grant, and revoke its tokens where the authorization server can; whether it did. The next call
        asks for consent again."""
        from ..mcp.sign_in import revoke_tokens

        key = self._build_key(url, tenant, user)
        store = await self._open_store()
        row = await store.get_grant(key)
        if row is None:
            raise InvalidInputError(
                f"there is no grant for {describe_url(key.server)}{_describe_owner(key)}",
                hint="`perdure mcp list` has all.",
            )
        async with self._audit("mcp.sign_out", key, by):
            try:
                revoked = await revoke_tokens(key.server, open_grant(row)) if revoke else False
            except ToolError as error:
                hint = "revoke=False (--keep-tokens) deletes the grant without that."
                raise InvalidInputError(f"the tokens are not revoked: {error.message}", hint=hint) from error
            await store.delete_grant(key)
        return revoked

    def _build_key(self, url: str, tenant: str | None, user: str | None) -> GrantKey:
        if not isinstance(url, str) or not url.startswith(("https://", "http://")):
            raise InvalidInputError(f"the URL of an MCP server is http(s), not {url!r:.200}", hint="https://x.dev/mcp")
        try:
            has_host = bool(urlsplit(url).hostname) and urlsplit(url).port != 0
        except ValueError:
            has_host = False
        if not has_host:
            raise InvalidInputError(
                "the URL of the MCP server has no host, or a port that is none", hint="https://x.dev/mcp"
            )
        if list(find_address_secrets(url)):
            raise InvalidInputError("the URL of the MCP server has credentials", hint="Give it without them.")
        owner = [None if name is None else clean_text(name) for name in (tenant, user)]
        return build_grant_key(owner[0], owner[1], url)

    def _audit(self, verb: str, key: GrantKey, by: str | None) -> AbstractAsyncContextManager[Any]:
        labels = {"tenant": key.tenant, "user": key.user_id}
        subject = f"mcp:{describe_url(key.server)}"
        return audit_steering(
            self._client, verb, subject, by=by, detail=_describe_owner(key).strip() or None, labels=labels
        )

    @property
    def _address(self) -> str:
        return str(self._client.temporal.service_client.config.target_host)

    async def _open_store(self, *, create: bool = False) -> Store:
        store = await self._client.store(create=create)
        if not store.store_id:
            raise StoreError(f"there is no store at {store.place} yet", hint="Start a worker, or sign in.")
        return store


def _is_of_grant(consent: Mapping[str, Any] | None, key: GrantKey) -> bool:
    return consent is not None and tuple(consent.get(name, "") for name in ("tenant", "user", "server")) == key


def _hash_state(state: str) -> str:
    return hashlib.sha256(state.encode(errors="replace")).hexdigest()


def _describe_owner(key: GrantKey) -> str:
    tenant = f" of tenant {key.tenant}" if key.tenant else ""
    return f"{tenant} for user {key.user_id}" if key.user_id else tenant


def _build_grant(row: GrantRow) -> McpGrant:
    now = datetime.now(UTC).timestamp()
    try:
        grant, state = open_grant(row), ""
    except PerdureError:
        grant, state = Grant(), "sealed"
    if not state:
        can_refresh = grant.refresh_token is not None
        state = "valid" if grant.is_current(now) else "refreshes" if can_refresh else "needs sign-in"
    until = None if grant.expires_at is None else datetime.fromtimestamp(grant.expires_at, UTC).isoformat()
    facts: dict[str, Any] = {"server": row.server, "tenant": row.tenant, "user": row.user_id, "key_id": row.key_id}
    return McpGrant(
        **facts,
        scopes=tuple(sorted(grant.scopes)),
        state=state,
        expires_at=until,
        signed_in_by=row.created_by,
        created_at=row.created_at,
        updated_at=row.updated_at,
    )
