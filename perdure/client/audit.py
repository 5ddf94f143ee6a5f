"""Records who steers a run or a schedule in the store's audit trail, before the request is sent; after one that stops
calls, nudges their workers.

A client without a store, and one whose store cannot be written, steers all the same: a run must be stoppable when its
store is down. The missing row is logged.
"""

from __future__ import annotations

import asyncio
import getpass
import hashlib
import logging
import os
import socket
import time
import uuid
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Mapping
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from ..errors import PerdureError
from ..types.run_ids import split_run_id
from .handles import ClientHandle

if TYPE_CHECKING:
    from ..ports.store import Store

logger = logging.getLogger("perdure.client")

_STORE_SECONDS = 5.0
"""Longest time that a request waits for its audit row."""
_NUDGE_SECONDS = 1.0
"""Longest time that a request waits for its nudge."""
STOPPING_VERBS = ("interrupt", "cancel", "terminate")
"""Requests that cancel calls in progress."""
_SILENCE_SECONDS = 30.0
"""Time for which a store that has not answered is not asked again: many runs may be steered one after the other."""
_silent_until: WeakKeyDictionary[ClientHandle, float] = WeakKeyDictionary()
"""Clients whose store has not answered, until when (``time.monotonic``)."""


@dataclass(frozen=True, slots=True)
class _Caller:
    auth: str
    origin: str
    request: str | None = None


_current_caller: ContextVar[_Caller | None] = ContextVar("perdure_audit_caller", default=None)


@contextmanager
def audit_caller(auth: str, origin: str, *, request: str | None = None) -> Generator[None]:
    """Within the block, audit rows have ``auth``, how the caller has proved who it is (``token:<id>``), and its address
    ``origin``: for a service that acts for others. Starts and messages say that they are a caller's.

    ``request`` identifies what is repeated if this process is lost: a verb and a subject have one row for it.
    """
    reset = _current_caller.set(_Caller(auth, origin, request))
    try:
        yield
    finally:
        _current_caller.reset(reset)


def acts_for_caller() -> bool:
    """Whether this is the request of a caller for whom a service acts: what it sends is not the service's own."""
    return _current_caller.get() is not None


def find_actor(client: ClientHandle, by: str | None) -> tuple[str, str, str]:
    """Return who acts, how that is known, and from where, as in an audit row."""
    by = by or client.actor
    caller = _current_caller.get() or _Caller("os-user" if by == _find_os_user() else "given", _find_origin())
    return by, caller.auth, caller.origin


def _build_audit_id(verb: str, subject: str) -> str:
    caller = _current_caller.get()
    if caller is None or caller.request is None:
        return uuid.uuid4().hex
    return hashlib.sha256(f"{caller.request}\0{verb}\0{subject}".encode()).hexdigest()[:32]


class SteeringAudit:
    """The audit row of one request. It is written once, by :meth:`record` or with the refusal."""

    def __init__(
        self,
        client: ClientHandle,
        verb: str,
        subject: str,
        by: str | None,
        detail: str | None,
        labels: Mapping[str, str | None] | None = None,
    ) -> None:
        """``labels``: agent, tenant and user of the subject, as far as they are known; the store knows those of runs,
        and the id of a run or a schedule has its tenant."""
        from ..ports.audit import AuditRow
        from ..ports.times import format_utc_now

        self._client = client
        self._is_recorded = False
        own: dict[str, Any] = {name: text for name, text in (labels or {}).items() if text}
        own.setdefault("tenant", split_run_id(subject)[0])
        self._row = AuditRow(
            *(_build_audit_id(verb, subject), format_utc_now(), *find_actor(client, by), subject, verb),
            detail=detail, **own,
        )  # fmt: skip

    async def record(self, call_id: str | None = None) -> None:
        """Record that the request is about to be sent; nothing if that is recorded."""
        if not self._is_recorded:
            self._is_recorded = True
            self._row = replace(self._row, call_id=call_id)
            await self._write()

    async def record_refusal(self, error: PerdureError) -> None:
        """Record that the request was refused."""
        self._is_recorded = True
        self._row = replace(self._row, refused=f"{type(error).__name__}: {error.message}")
        await self._write(is_refused=True)

    async def _write(self, *, is_refused: bool = False) -> None:
        def write(store: Store) -> Awaitable[None]:
            return store.record_refused_audit(self._row) if is_refused else store.record_audit(self._row)

        await write_despite_failure(self._client, write, f"{self._row.verb} of {self._row.subject}")


@asynccontextmanager
async def audit_steering(
    client: ClientHandle,
    verb: str,
    subject: str,
    *,
    by: str | None = None,
    call_id: str | None = None,
    detail: str | None = None,
    at_once: bool = True,
    labels: Mapping[str, str | None] | None = None,
) -> AsyncGenerator[SteeringAudit]:
    """Record the request that the block sends, before it begins, and the error that refuses it. ``labels`` are as of
    :class:`SteeringAudit`.

    ``at_once=False``: the block calls ``record`` itself, when it knows the call.
    """
    audit = SteeringAudit(client, verb, subject, by, detail, labels)
    if at_once:
        await audit.record(call_id)
    try:
        yield audit
    except PerdureError as error:
        await audit.record_refusal(error)
        raise
    if verb in STOPPING_VERBS:
        await _nudge_workers(client, subject)


async def _nudge_workers(client: ClientHandle, run_id: str) -> None:
    """Have the workers of the run see at once that calls were cancelled. Without a store that answers they see it with
    their next heartbeat."""
    if client.store_url is None or time.monotonic() < _silent_until.get(client, 0.0):
        return
    try:
        async with asyncio.timeout(_NUDGE_SECONDS):
            store = await client.store()
            if store.store_id:
                await store.nudge(run_id)
    except (PerdureError, TimeoutError) as error:
        logger.debug("the workers of run %s are not nudged: %s: %s", run_id, type(error).__name__, error)


async def write_despite_failure(client: ClientHandle, write: Callable[[Store], Awaitable[None]], what: str) -> None:
    """Write into the client's store, if it has one; a failure is logged."""
    if client.store_url is None:
        return
    if time.monotonic() < _silent_until.get(client, 0.0):
        logger.warning("%s is not in the store's tables: the store did not answer", what)
        return
    try:
        async with asyncio.timeout(_STORE_SECONDS):
            store = await client.store()
            if store.store_id:
                await write(store)
    except (PerdureError, TimeoutError) as error:
        if isinstance(error, TimeoutError):
            _silent_until[client] = time.monotonic() + _SILENCE_SECONDS
        logger.warning("%s is not in the store's tables: %s: %s", what, type(error).__name__, error)


@cache
def _find_origin() -> str:
    return f"{socket.gethostname()}/{os.getpid()}"


@cache
def _find_os_user() -> str | None:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return None
