"""Who sends a request, and what they may do: callers, verbs and roles, and the two hooks that decide.

An :class:`Authenticator` finds out who calls; several are tried in order by :class:`AuthenticatorChain`. An
:class:`Authorizer` says what the caller may do; :class:`RoleAuthorizer` is the one that is used by default. Both are
plain classes with one method, so a program may bring its own.
"""

from __future__ import annotations

import base64
import binascii
import json
import logging
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from time import monotonic
from typing import Any, Literal, NamedTuple, Protocol, get_args

from starlette.requests import HTTPConnection

from ..client.handles import ClientHandle
from ..errors import InvalidInputError, PerdureError, StoreError
from ..ports.times import add_seconds, format_utc_now
from ..ports.tokens import ROLES as ROLES
from ..ports.tokens import TOKEN_PREFIX, TokenRow, is_secret_of, parse_token
from ..ports.tokens import Role as Role
from ..ports.tokens import Verb as Verb
from ..types.run_ids import TENANT_MARK, build_run_id, get_tenant_prefix
from .origins import FORWARDING_HEADERS, TrustedPeers, get_peer, is_loopback, is_loopback_name, parse_host
from .problems import ForbiddenError, NotFoundError, UnauthorizedError, WebError, build_forbidden_error

logger = logging.getLogger("perdure.web")

_KNOWN_KEY = "perdure.known"
"""In the scope of a request that was authenticated: another look, as streams take, is no guess of credentials."""
_TOKEN_USE_SECONDS = 60.0
"""A token's last use is written at most this often."""
_MAX_CREDENTIAL_CHARS = 1_000
_MAX_NAME_CHARS = 200
_NAME = re.compile(r"[\x21-\x7e](?:[\x20-\x7e]*[\x21-\x7e])?")
"""Visible ASCII, with spaces inside."""


@dataclass(frozen=True, slots=True)
class Caller:
    """Who sends a request, as authenticated. ``by`` of everything that it does is ``name``."""

    name: str
    auth: str
    """How that is known, for the audit trail: ``token:<id>``, ``proxy``, ``dev``."""
    verbs: frozenset[Verb]
    tenants: tuple[str, ...] | None = None
    """The tenants whose runs it may see; None: all runs, also those without a tenant."""
    agents: tuple[str, ...] | None = None
    """The agents whose runs it may see; None: all."""
    sessions: tuple[str, ...] | None = None
    """The sessions that it may see, with their subagents; None: all."""

    @property
    def tenant(self) -> str | None:
        """The tenant of a caller of one tenant: its new runs are that tenant's, and it names them without the tenant,
        which is part of their ids (:mod:`perdure.types.run_ids`)."""
        return self.tenants[0] if self.tenants is not None and len(self.tenants) == 1 else None

    def read_id(self, shown: str) -> str:
        """Return the id of the run or schedule that the caller names, with its tenant or without it."""
        return shown if shown.startswith(TENANT_MARK) else build_run_id(shown, self.tenant)

    def show_id(self, id: str) -> str:
        """Return what the caller names the run or schedule ``id``, or what begins with such an id."""
        return id if self.tenant is None else id.removeprefix(get_tenant_prefix(self.tenant))

    def show_ids(self, value: Any) -> Any:
        """Return the JSON ``value`` with the ids of runs as :meth:`show_id` has them, in the fields :data:`ID_FIELDS`,
        but for what authors, models and users have written (:data:`_FREE_FIELDS`)."""
        if self.tenant is None:
            return value
        if isinstance(value, list | tuple):
            return [self.show_ids(item) for item in value]
        if not isinstance(value, dict):
            return value
        shown = dict(value)
        for name, item in value.items():
            if name in ID_FIELDS:
                names = item if isinstance(item, list | tuple) else [item]
                found = [self.show_id(one) if isinstance(one, str) else one for one in names]
                shown[name] = found if names is item else found[0]
            elif name not in _FREE_FIELDS:
                shown[name] = self.show_ids(item)
        return shown

    def show_error(self, error: PerdureError) -> PerdureError:
        """Return ``error`` with the ids in its text as the caller names them."""
        if self.tenant is not None:
            prefix = get_tenant_prefix(self.tenant)
            error.message = error.message.replace(prefix, "")
            error.hint = error.hint and error.hint.replace(prefix, "")
        return error


ID_FIELDS = frozenset(
    {
        "context_id", "child_context_id", "detail", "id", "key", "root", "run_id", "running", "session",
        "subject",
        "threadId", "subagentRunId", "parentSubagentRunId", "messageId", "parentMessageId", "toolCallId", "approvalId",
        "interruptId", "taskId",
    }
)  # fmt: skip
"""Fields of answers, events and frames that have the id of a run, or what begins with one."""
_FREE_FIELDS = frozenset(
    {
        "arguments", "args", "editedArgs", "auth_context", "body", "content", "context", "definition", "form", "input",
        "message", "metadata", "output", "payload", "result", "value",
    }
)  # fmt: skip
"""Fields whose values are nobody's ids: plain JSON of authors, models and users."""


@dataclass(frozen=True, slots=True)
class Resource:
    """What a request is about. Without an ``id`` it is about no one thing, as a list is: each row is asked for besides.
    Of a session, ``tenant`` and ``user`` are None if it has none."""

    kind: Literal["session", "agent", "approval", "schedule", "webhook", "file", "token", "audit", "usage"]
    id: str | None = None
    """Of an approval and a file the id of their session."""
    agent: str | None = None
    tenant: str | None = None
    user: str | None = None


ContextFunction = Callable[[Caller], Any]
"""``lambda caller: {"user": caller.name}``, or an async function: the context of the runs that a caller starts. It
returns a mapping, or an instance of the agent's context type."""
_TERMS_SECONDS = 5.0


class AgentTerms:
    """What agents let callers say, by the newest definition that a worker has recorded; looked up again after 5 s."""

    class Terms(NamedTuple):
        """Of one agent. An agent that no worker has recorded lets them say nothing."""

        internal: bool = False
        overrides: tuple[str, ...] = ()
        claims: tuple[str, ...] = ()

    def __init__(self) -> None:
        self._known: dict[str, tuple[float, AgentTerms.Terms]] = {}

    async def find(self, client: ClientHandle, agent: str) -> Terms:
        """Return the terms of an agent. Raises ``StoreError``."""
        now = monotonic()
        until, terms = self._known.get(agent, (0.0, self.Terms()))
        if until > now:
            return terms
        rows = await (await client.store()).list_agents(agent) if agent else []
        if not rows:
            return self.Terms()
        definition = json.loads(rows[0].body)
        names = (tuple(definition.get(key) or ()) for key in ("caller_overrides", "caller_claims"))
        terms = self.Terms(bool(definition.get("internal")), *names)
        self._known[agent] = (now + _TERMS_SECONDS, terms)
        return terms


class Authenticator(Protocol):
    """Finds out who sends a request."""

    async def authenticate(self, connection: HTTPConnection) -> Caller | None:
        """Return the caller; None if the request says nothing that this authenticator knows. Raises
        ``UnauthorizedError`` for credentials that are wrong, expired or revoked."""


class Authorizer(Protocol):
    """Says what a caller may do and see."""

    async def is_allowed(self, caller: Caller, verb: Verb, resource: Resource) -> bool:
        """Whether ``caller`` may do ``verb`` with ``resource``. A resource that it may not ``read`` does not exist for
        it: the answer is 404."""


# ---
# Authentication.


class FailureLimit(Protocol):
    """Counts failed authentications by the address that they come from; see :class:`.limits.FailureLimiter`."""

    def check(self, connection: HTTPConnection) -> None:
        """Raise a ``WebError`` with status 429 for an address that has failed too often."""

    def record(self, connection: HTTPConnection) -> None:
        """Count a failed authentication."""


class AuthenticatorChain:
    """Tries authenticators in order: the first that knows the request's credentials decides.

    Raises ``UnauthorizedError`` with a challenge for wrong credentials and for none.
    """

    def __init__(self, authenticators: Sequence[Authenticator], *, failures: FailureLimit | None = None) -> None:
        self._authenticators = tuple(authenticators)
        self._failures = failures

    async def authenticate(self, connection: HTTPConnection) -> Caller:
        """Return the caller."""
        failures = None if _KNOWN_KEY in connection.scope else self._failures
        if failures is not None:
            failures.check(connection)
        try:
            for authenticator in self._authenticators:
                if (caller := await authenticator.authenticate(connection)) is not None:
                    connection.scope[_KNOWN_KEY] = True
                    return caller
        except UnauthorizedError as error:
            if failures is not None:
                failures.record(connection)
            challenge = _build_challenge(connection, error="invalid_token")
            raise UnauthorizedError(
                error.message, name=error.name, hint=error.hint, headers={**challenge, **error.headers}
            ) from None
        raise UnauthorizedError(
            "the request has no credentials",
            hint=f"Send `Authorization: Bearer {TOKEN_PREFIX}…`; `perdure token create` makes a token.",
            headers=_build_challenge(connection),
        )


def _build_challenge(connection: HTTPConnection, error: str | None = None) -> dict[str, str]:
    """Build the headers of a 401. Basic, which makes a browser ask for a password, for pages alone."""
    if "text/html" in connection.headers.get("accept", ""):
        return {"WWW-Authenticate": 'Basic realm="perdure", charset="UTF-8"'}
    return {"WWW-Authenticate": 'Bearer realm="perdure"' + (f', error="{error}"' if error else "")}


class BearerTokens:
    """Authenticates by API tokens: ``Authorization: Bearer pdr_<id>_<secret>``, or Basic with the token as password,
    for browsers. The user name of Basic is ignored.

    Every request reads the token's row, so a revocation counts from the next request on, on every replica.
    """

    def __init__(self, client: ClientHandle, *, now: Callable[[], str] = format_utc_now) -> None:
        self._client = client
        self._now = now

    async def authenticate(self, connection: HTTPConnection) -> Caller | None:
        """Return the token's caller; None without a token."""
        token = _read_token(connection)
        if token is None:
            return None
        return await self.check_token(token, is_used=_KNOWN_KEY not in connection.scope)

    async def check_token(self, token: str, *, is_used: bool = True) -> Caller:
        """Return the caller of ``token``, and record its use: the look of an open stream is none. Raises
        ``UnauthorizedError``."""
        parts = parse_token(token)
        if parts is None:
            raise UnauthorizedError("the token is malformed", hint=f"A token is {TOKEN_PREFIX}<id>_<secret>.")
        store = await self._client.store()
        row = await store.get_token(parts[0])
        if not is_secret_of(row, *parts):
            raise UnauthorizedError("the token is unknown or its secret is wrong")
        assert row is not None, "is_secret_of says so"
        now = self._now()
        check_token_validity(row, now)
        since = add_seconds(now, -_TOKEN_USE_SECONDS)
        if is_used and (row.last_used_at is None or row.last_used_at <= since):
            try:
                await store.record_token_use(row.id, now, unless_since=since)
            except StoreError as error:  # a store that is full can be read
                logger.warning("the use of token %s is not recorded: %s", row.id, error)
        return build_token_caller(row)


def check_token_validity(row: TokenRow, now: str) -> None:
    """Raise ``UnauthorizedError`` for a token that is revoked, or has expired by ``now``."""
    if row.revoked_at is not None:
        raise UnauthorizedError("the token is revoked")
    if row.expires_at is not None and row.expires_at <= now:
        raise UnauthorizedError("the token has expired", hint="Create another one with `perdure token create`.")


def build_token_caller(row: TokenRow) -> Caller:
    """Build the caller of a token. A role that this version does not know has no verbs."""
    verbs = next((verbs for role, verbs in ROLES.items() if role == row.role), frozenset[Verb]())
    return Caller(row.name, f"token:{row.id}", verbs, row.tenants, row.agents, row.sessions)


def _read_token(connection: HTTPConnection) -> str | None:
    """Return the token of the request; None for credentials of another kind, which another authenticator may know."""
    values = connection.headers.getlist("authorization")
    if not values:
        return None
    if len(values) > 1:
        raise UnauthorizedError("the request has several Authorization headers", hint="Send one.")
    scheme, _, credentials = values[0].strip().partition(" ")
    if scheme.lower() not in ("bearer", "basic"):
        return None
    if len(credentials) > _MAX_CREDENTIAL_CHARS:
        raise UnauthorizedError("the credentials are too long")
    credentials = credentials.strip()
    if scheme.lower() == "basic":
        try:
            decoded = base64.b64decode(credentials, validate=True).decode()
        except (binascii.Error, ValueError):
            raise UnauthorizedError("the Basic credentials are not base64 of UTF-8") from None
        credentials = decoded.partition(":")[2]
    return credentials if credentials.startswith(TOKEN_PREFIX) else None


class ProxyHeaders:
    """Authenticates by headers of a reverse proxy that has authenticated the user. They count from trusted peers only;
    from others they are ignored.

    ``trusted``: addresses and networks of the proxy (``10.0.0.0/8``), or ``"unix"`` for peers of a Unix socket.
    ``user``: the header with the user's name. ``tenants``, ``roles``: headers with a tenant and a role; without
    ``tenants`` the user may see every tenant's runs, without ``roles`` each has ``role``. ``role_names``: the role of
    each value of the roles header (a group); by default the roles' own names. ``lists``: the tenants and roles headers
    may be comma lists, as headers with groups are; values that are no role then count for nothing.

    A header that is there twice, empty, a list, or not printable ASCII is refused: a proxy that adds its header to the
    one of the client must not let the client choose.
    """

    def __init__(
        self,
        trusted: Sequence[str],
        *,
        user: str = "x-forwarded-user",
        tenants: str | None = None,
        roles: str | None = None,
        role: Role = "viewer",
        role_names: Mapping[str, Role] | None = None,
        lists: bool = False,
    ) -> None:
        names = {name: name for name in get_args(Role)} if role_names is None else dict(role_names)
        for name in (role, *names.values()):
            if name not in ROLES:
                raise InvalidInputError(f"there is no role {name!r}", hint=f"The roles are {', '.join(ROLES)}.")
        self._trusted = TrustedPeers(trusted)
        self._user, self._tenants, self._roles = user, tenants, roles
        self._role: Role = role
        self._role_names: dict[str, Role] = names
        self._lists = lists

    async def authenticate(self, connection: HTTPConnection) -> Caller | None:
        """Return the user that the proxy names; None without one, and for a peer that is not trusted."""
        if get_peer(connection.scope) not in self._trusted or self._user not in connection.headers:
            return None
        (name,) = self._read(connection, self._user, lists=False)
        tenants = None if self._tenants is None else self._read(connection, self._tenants, lists=self._lists)
        verbs = frozenset(ROLES[self._role])
        if self._roles is not None:
            values = self._read(connection, self._roles, lists=self._lists)
            granted = [self._role_names[value] for value in values if value in self._role_names]
            if not granted:
                raise UnauthorizedError(f"the proxy's header {self._roles} names no role of this service")
            verbs = frozenset(verb for role in granted for verb in ROLES[role])
        return Caller(name, "proxy", verbs, tenants)

    def _read(self, connection: HTTPConnection, header: str, *, lists: bool) -> tuple[str, ...]:
        """Return the values of a header, at least one."""
        instances = connection.headers.getlist(header)
        if len(instances) != 1:
            there = "several" if instances else "no"
            raise UnauthorizedError(f"there are {there} {header} headers", hint="The proxy must set it, once.")
        values = tuple(value.strip() for value in instances[0].split(",")) if lists else (instances[0].strip(),)
        for value in values:
            if not _NAME.fullmatch(value) or len(value) > _MAX_NAME_CHARS or "," in value:
                raise UnauthorizedError(
                    f"the header {header} is not one name of 1 to {_MAX_NAME_CHARS} printable ASCII characters",
                    hint="The proxy must replace the client's header, not add to it.",
                )
        return values


class DevAccess:
    """Lets every request of this machine in, as the caller ``dev`` with all verbs: for ``perdure serve --dev``.

    Refuses requests that a proxy or a tunnel forwards (it is on this machine, too), those of other machines, and those
    whose Host is not this machine's: a web page of another origin can make a browser send such a request, if the
    page's name resolves to 127.0.0.1.
    """

    async def authenticate(self, connection: HTTPConnection) -> Caller | None:
        """Return the caller. Raises ``ForbiddenError``."""
        peer = get_peer(connection.scope)
        if peer is None or not is_loopback(peer):
            raise _build_dev_error("the request comes from another machine")
        for name in connection.headers:
            if name.startswith(FORWARDING_HEADERS):
                raise _build_dev_error(f"the request was forwarded: it has the header {name[:50]}")
        hosts = connection.headers.getlist("host")
        host = parse_host(hosts[0]) if len(hosts) == 1 else None
        if host is None or not is_loopback_name(host.name):
            raise _build_dev_error("the Host of the request is not this machine")
        return Caller("dev", "dev", ROLES["admin"])


def _build_dev_error(reason: str) -> WebError:
    return ForbiddenError(
        f"{reason}, and --dev lets requests of this machine in alone",
        hint="Serve without --dev, and create a token with `perdure token create`.",
    )


# ---
# Authorization.


class RoleAuthorizer:
    """Allows what the caller's verbs, tenants, agents and sessions allow.

    A caller that is limited to tenants sees no run without a tenant. One that is limited to sessions has their
    subagents' too, and no schedules and webhooks. Of a resource without an ``id`` the verb decides, with the tenant and
    the agent if they are given: what is then listed or created is to be asked for with its id; :func:`get_list_scope`
    says what a list may show.
    """

    async def is_allowed(self, caller: Caller, verb: Verb, resource: Resource) -> bool:
        """See :class:`Authorizer`."""
        if verb not in caller.verbs:
            return False
        scope = get_list_scope(caller)
        if resource.kind == "agent":  # agents have no tenant, and their definitions are no session's
            name = resource.agent or resource.id
            return name is None or scope.has_agent(name)
        if resource.id is None:  # about no one thing: what is known of it decides
            return (resource.tenant is None or scope.has_tenant(resource.tenant)) and (
                resource.agent is None or scope.has_agent(resource.agent)
            )
        session = None if resource.kind in ("schedule", "webhook") else resource.id
        return scope.has_tenant(resource.tenant) and scope.has_agent(resource.agent) and scope.has_session(session)


@dataclass(frozen=True, slots=True)
class ListScope:
    """What a list may show a caller: of the tenants, agents and sessions that are given, None for all."""

    tenants: tuple[str, ...] | None = None
    agents: tuple[str, ...] | None = None
    sessions: tuple[str, ...] | None = None

    def has_tenant(self, tenant: str | None) -> bool:
        """Whether it has the runs of ``tenant``; None stands for runs without one."""
        return self.tenants is None or (tenant is not None and tenant in self.tenants)

    def has_agent(self, agent: str | None) -> bool:
        """Whether it has the runs of ``agent``."""
        return self.agents is None or (agent is not None and agent in self.agents)

    def has_session(self, id: str | None) -> bool:
        """Whether it has the session, or the subagent of a session."""
        if self.sessions is None:
            return True
        return id is not None and any(id == session or id.startswith(f"{session}/") for session in self.sessions)

    def shows(self, *, id: str | None, agent: str | None, tenant: str | None) -> bool:
        """Whether a list may show the run."""
        return self.has_tenant(tenant) and self.has_agent(agent) and self.has_session(id)


def get_list_scope(caller: Caller) -> ListScope:
    """Return what lists may show the caller, for filters in the query. With another :class:`Authorizer` than
    :class:`RoleAuthorizer`, ask it for each row beside."""
    sessions = None if caller.sessions is None else tuple(map(caller.read_id, caller.sessions))
    return ListScope(caller.tenants, caller.agents, sessions)


async def check_allowed(authorizer: Authorizer, caller: Caller, verb: Verb, resource: Resource) -> None:
    """Raise ``NotFoundError`` for what the caller may not read, ``ForbiddenError`` for what it may read but not do."""
    if await authorizer.is_allowed(caller, verb, resource):
        return
    if resource.id is not None and not await authorizer.is_allowed(caller, "read", resource):
        raise NotFoundError(f"there is no such {resource.kind}")
    raise build_forbidden_error(caller.name, verb)
