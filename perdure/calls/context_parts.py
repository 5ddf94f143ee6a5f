"""The ``auth_context`` of a call (decrypted, or resolved from the run's reference), and the memory of a call."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping
from concurrent.futures import Future
from typing import Any, Protocol, TypeVar

from ..context.auth import AuthContext, AuthFunction, RunFacts
from ..context.memory import MemoryWrites
from ..errors import AbortError, AuthContextUnavailableError, PerdureError
from ..ports.grants import Grants
from ..ports.store import SharedMemory
from ..tools import Memory
from ..types.wire import CallFacts
from .author_loop import AuthorLoop, OverdueError
from .retries import retry_store

logger = logging.getLogger("perdure.worker")

RESOLVE_AUTH_TIMEOUT = 30.0
"""Seconds that the author's ``resolve_auth`` may take."""


class TokenOpener(Protocol):
    """The keys that open tokens: see :class:`perdure._encryption.KeyRing`."""

    def open(self, token: str, abouts: Iterator[str]) -> bytes:
        """Decrypt the token."""
        ...


class AuthResolver:
    """Resolves the ``auth_context`` of each call anew; nothing is cached."""

    def __init__(
        self,
        keys: TokenOpener,
        author: AuthorLoop,
        resolve: AuthFunction | None = None,
        resources: Callable[[], Any] = lambda: None,
    ) -> None:
        """``resolve`` is the author's ``resolve_auth``; ``resources`` returns what the lifespan yielded."""
        self._keys = keys
        self._author = author
        self._resolve = resolve
        self._resources = resources

    async def __call__(self, task: CallFacts) -> AuthContext | None:
        """Return the ``auth_context`` of a call; None for a run without one.

        Raises ``AuthContextUnavailableError`` if it is not available here and now, ``AuthContextError`` if it never
        will be; and perdure's own errors from ``resolve_auth``, such as ``AbortError``. The text of its other
        exceptions is only logged.
        """
        if task.auth_context is not None:
            return AuthContext(json.loads(self._keys.open(task.auth_context, iter_bound_contexts(task))))
        return None if task.auth_ref is None else AuthContext(await self._resolve_reference(task.auth_ref, task))

    async def _resolve_reference(self, ref: str, task: CallFacts) -> Mapping[str, Any]:
        if self._resolve is None:
            raise AuthContextUnavailableError(
                "the run was started with an auth_ref, and this worker has no resolve_auth",
                hint="Give every worker of the task queue resolve_auth=…; the run waits for it.",
            )
        facts = RunFacts(
            task.context_id,
            task.task_id,
            task.agent,
            task.context,
            self._resources(),
            caller=task.caller,
            tenant=task.tenant,
            user=task.user,
        )
        try:
            resolved = await self._author.run("resolve_auth", self._resolve, ref, facts, timeout=RESOLVE_AUTH_TIMEOUT)
        except OverdueError:
            raise _build_auth_error(f"it did not return within {RESOLVE_AUTH_TIMEOUT:g} s") from None
        except AbortError as error:
            raise error.plain() from None
        except PerdureError:
            raise
        except Exception as error:
            # The text may contain a credential: history gets only the class, the worker's log the text.
            logger.exception("resolve_auth failed for run %s", task.context_id)
            raise _build_auth_error(f"it raised {type(error).__name__}, see the worker's log") from None
        if not isinstance(resolved, Mapping):
            raise _build_auth_error(f"it returned {type(resolved).__name__}, not a mapping")
        return resolved


def iter_bound_contexts(task: CallFacts) -> Iterator[str]:
    """Yield the conversations for which a token of the run may be sealed: its own, and its ancestors'.

    The id alone proves nothing, as a client chooses it: Temporal has to confirm that the run is a child.
    """
    context_id = task.context_id
    yield context_id
    if task.lineage is None or not task.is_child:
        return
    while context_id != task.lineage.root and "/" in context_id:
        context_id = context_id.rpartition("/")[0]
        yield context_id


def _build_auth_error(why: str) -> AuthContextUnavailableError:
    return AuthContextUnavailableError(
        f"resolve_auth failed: {why}",
        hint="It is retried, and the run waits; to end the run instead, let it raise AbortError.",
    )


# ---
# Memory for authors' code: the store is used on the worker's loop, and the code runs in other threads.


T = TypeVar("T")
CreateMemory = Callable[[MemoryWrites, str | None], Memory]
"""Creates the memory of one call, which writes into a list, for a run of a tenant."""


class MemoryFactory:
    """Creates the memory of each call, which reads from the store.

    ``waiting`` is called with the reason when a read has to wait for the store, and with "" when the wait is over.
    """

    def __init__(self, store: SharedMemory, waiting: Callable[[str], None] = lambda _: None) -> None:
        self._store = store
        self._report_waiting = waiting

    def __call__(self, writes: MemoryWrites, tenant: str | None) -> Memory:
        """Create the memory of one call, which writes into ``writes``. Call it on the worker's loop."""
        reader = _StoreReader(self._store, asyncio.get_running_loop(), self._report_waiting)
        return Memory(reader, writes, tenant=tenant)


class _StoreReader:
    """Reads from the store on the worker's loop, for callers in any thread."""

    def __init__(self, store: SharedMemory, loop: asyncio.AbstractEventLoop, waiting: Callable[[str], None]) -> None:
        self._store = store
        self._loop = loop
        self._report_waiting = waiting
        self.waiting_reads = 0
        """Reads that wait for the store."""

    def recall(self, namespace: str, key: str) -> Future[bytes | None]:
        """Read one value."""
        return self._submit_read(lambda: self._store.recall(namespace, key))

    def recall_all(self, namespace: str, prefix: str, limit: int) -> Future[dict[str, bytes]]:
        """Read the first ``limit`` values under ``prefix``."""
        return self._submit_read(lambda: self._store.recall_all(namespace, prefix, limit=limit))

    def _submit_read(self, read: Callable[[], Awaitable[T]]) -> Future[T]:
        answer = self._read_with_retries(read)
        try:
            return asyncio.run_coroutine_threadsafe(answer, self._loop)
        except RuntimeError:  # closed: the worker has stopped
            answer.close()
            raise

    async def _read_with_retries(self, read: Callable[[], Awaitable[T]]) -> T:
        """Read as soon as the store is available: an unavailable store is not the tool's failure. The tool's timeout
        limits the wait."""
        waited = False

        def report_waiting(reason: str) -> None:
            nonlocal waited
            self.waiting_reads += not waited
            waited = True
            self._report_waiting(reason)

        try:
            return await retry_store(read, report_waiting)
        finally:
            self.waiting_reads -= waited


# ---
# Grants of MCP servers, likewise.


class StoreGrants:
    """The grants of a store, which is used on the worker's loop; see :class:`perdure.ports.grants.GrantAccess`.

    ``waiting`` is as of :class:`MemoryFactory`.
    """

    def __init__(self, store: Grants, address: str, waiting: Callable[[str], None] = lambda _: None) -> None:
        """Call it on the loop of the store."""
        self.address = address
        self._store = store
        self._loop = asyncio.get_running_loop()
        self._report_waiting = waiting

    async def run(self, request: Callable[[Grants], Awaitable[T]]) -> T:
        """Run ``request`` on the loop of the store, as soon as the store is available: that it is away is no failure of
        the call, and no lack of consent."""
        answer = retry_store(lambda: request(self._store), self._report_waiting)
        if asyncio.get_running_loop() is self._loop:
            return await answer
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(answer, self._loop))
