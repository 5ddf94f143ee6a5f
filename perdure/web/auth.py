"""Who sends a request, and what they may do: callers, verbs and roles, and the two hooks that decide."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, Protocol

from starlette.requests import HTTPConnection

Verb = Literal["read", "send", "decide", "operate", "admin"]
"""``read``: see runs and their contents. ``send``: start sessions, send messages, interrupt, answer questions and
callbacks, fork. ``decide``: approve and deny. ``operate``: cancel, pause, resume, close, raise limits, schedules.
``admin``: tokens, webhooks."""
Role = Literal["viewer", "sender", "approver", "operator", "admin"]

ROLES: Mapping[Role, frozenset[Verb]] = {
    "viewer": frozenset({"read"}),
    "sender": frozenset({"read", "send"}),
    "approver": frozenset({"read", "decide"}),
    "operator": frozenset({"read", "send", "decide", "operate"}),
    "admin": frozenset({"read", "send", "decide", "operate", "admin"}),
}


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


@dataclass(frozen=True, slots=True)
class Resource:
    """What a request is about. Without an ``id`` it is about no one thing, as a list is: each row is asked for besides.
    Of a session, ``tenant`` and ``user`` are None if it has none."""

    kind: Literal["session", "agent", "approval", "schedule", "webhook", "file"]
    id: str | None = None
    agent: str | None = None
    tenant: str | None = None
    user: str | None = None


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
