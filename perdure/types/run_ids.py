"""Ids of runs, which are their workflow ids: who may choose one, and how it names its tenant.

A run of a tenant has the id ``@<tenant>/<name>``, with the tenant percent-encoded (RFC 3986: all but letters, digits
and ``-._~``); a run without a tenant has its name as its id. Two tenants may both have a run ``order-7``. Nobody who
chooses a name can write what the engine adds: a name has no slash, and none of :data:`RESERVED_PREFIXES`.

| | id |
|---|---|
| a run | ``order-7`` |
| a run of tenant ``acme`` | ``@acme/order-7`` |
| a subagent, a branch | ``@acme/order-7/<digest>-<op>``; the digest is of the execution that started it |
| a run of schedule ``nightly`` | ``@acme/schedule:nightly-2026-11-21T07:00:00Z`` |
"""

from __future__ import annotations

import hashlib
from urllib.parse import quote, unquote

from ..errors import InvalidInputError, RunIdError
from .messages import clean_text

RUN_ID_BYTES = 1000
"""Bytes of a run id: Temporal's limit for a workflow id."""
CHILD_ID_BYTES = 100
"""Bytes of that limit which are left to the ids of a run's subagents."""
TENANT_MARK = "@"
"""First character of the id of a run with a tenant."""
SCHEDULE_PREFIX = "schedule:"
"""Begins the names of a schedule's runs."""
RESERVED_PREFIXES = (TENANT_MARK, SCHEDULE_PREFIX, "temporal-", "perdure-")
"""No name that is chosen begins so: ids of the engine and of Temporal do."""
_DIGEST_CHARS = 12

NAME_RULE = (
    "An id is new, and has printable characters, no slash, is neither . nor .., and does not begin with "
    + ", ".join(RESERVED_PREFIXES[:-1])
    + f" or {RESERVED_PREFIXES[-1]}; with its tenant it has up to {RUN_ID_BYTES - CHILD_ID_BYTES} bytes."
)
"""What a name must be, for the hint of an error."""


def build_run_id(name: str, tenant: str | None) -> str:
    """Build the id of a tenant's run; of a run without a tenant it is ``name``. A name that is such an id already stays
    as it is. Checks nothing."""
    if tenant is None or name.startswith(get_tenant_prefix(tenant)):
        return name
    return get_tenant_prefix(tenant) + name


def get_tenant_prefix(tenant: str) -> str:
    """Return what the ids of a tenant's runs begin with."""
    return f"{TENANT_MARK}{quote(tenant, safe='', errors='surrogatepass')}/"


def split_run_id(id: str) -> tuple[str | None, str]:
    """Return the tenant of a run's id and the rest of it; None and the id where it names no tenant."""
    prefix, slash, rest = id.partition("/")
    if not slash or not prefix.startswith(TENANT_MARK):
        return None, id
    tenant = unquote(prefix[1:], errors="replace")
    return (tenant, rest) if get_tenant_prefix(tenant) == prefix + slash else (None, id)


def get_root_id(id: str) -> str:
    """Return the id of the run that the run ``id`` works for: its own, if it is no subagent's."""
    tenant, rest = split_run_id(id)
    return build_run_id(rest.partition("/")[0], tenant)


def get_parent_id(id: str) -> str | None:
    """Return the id of the run that has started the run ``id``, as a subagent; None if it is no subagent's."""
    tenant, rest = split_run_id(id)
    parent = rest.rpartition("/")[0]
    return build_run_id(parent, tenant) if parent else None


def check_run_name(name: object, tenant: str | None = None) -> str:
    """Return the id of a new run that gets the ``name``, for its tenant, whose own prefix it may have already.

    Raises ``InvalidInputError`` for what is not text; ``RunIdError`` for a name that nobody may choose, the same error
    as for an id that is taken by another's run, so that it tells nothing.
    """
    if not isinstance(name, str):
        raise InvalidInputError(f"the id of a run must be text, not {type(name).__name__}")
    if tenant is not None:
        name = name.removeprefix(get_tenant_prefix(tenant))
    if name in ("", ".", "..") or name != clean_text(name) or not name.isprintable():
        raise build_run_id_error()
    if "/" in name or name.lower().startswith(RESERVED_PREFIXES):
        raise build_run_id_error()
    run_id = build_run_id(name, tenant)
    if len(run_id.encode()) > RUN_ID_BYTES - CHILD_ID_BYTES:
        raise build_run_id_error()
    return run_id


def build_run_id_error() -> RunIdError:
    """Build the error for an id that cannot be used, whatever the reason."""
    return RunIdError("this id cannot be used", hint=NAME_RULE)


def read_tenant(id: str, tenant: str | None) -> str | None:
    """Return the tenant of a run that any client of Temporal has started: its id names it, and ``tenant``, that of the
    input, may be left out. Raises ``InvalidInputError`` if they differ."""
    named = split_run_id(id)[0]
    if named is None and id.startswith(TENANT_MARK):
        raise InvalidInputError(f"the id {id!r:.200} begins with {TENANT_MARK}, and names no tenant", hint=_PREFIX_HINT)
    if tenant is not None and tenant != named:
        raise InvalidInputError(
            f"the id of a run of tenant {tenant!r} begins with {get_tenant_prefix(tenant)!r}, and this is {id!r:.200}",
            hint=_PREFIX_HINT,
        )
    return named


_PREFIX_HINT = "A plain client of Temporal writes it: @, the tenant percent-encoded (RFC 3986), a slash, the name."


def format_child_run_id(context_id: str, scope: str, op: int) -> str:
    """Format the id of a child run: ``<context_id>/<digest>-<op>``.

    The digest is of the parent's execution (``scope``), whose id nobody can know before it begins, and of ``op``: who
    knows one child's id does not know the next one's."""
    digest = hashlib.sha256(f"{scope}\0{op}".encode()).hexdigest()[:_DIGEST_CHARS]
    return f"{context_id}/{digest}-{op}"
