"""Notices that a Temporal server does not answer, and says so once; and again when it answers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import TypeVar
from weakref import WeakSet

from temporalio.api.workflowservice.v1 import GetSystemInfoRequest
from temporalio.client import Client as TemporalClient
from temporalio.service import RPCError

from ..errors import ServerUnreachableError
from .errors import Refusal, classify_rpc_error

T = TypeVar("T")

PROBE_SECONDS = 2.0
"""Seconds between two probes of a command; also the longest time that a probe waits."""
_PROBES_UNANSWERED = 2
"""Probes in a row without an answer that make an outage: one may be lost on a busy machine."""
_RETRY_SECONDS = 1.0
"""Seconds until a request without an answer is sent again, and between the first two probes without one."""
_MAX_FAILURES = 5
"""Requests in a row without an answer, from a server that answers probes, after which the error is raised."""
_reported: WeakSet[TemporalClient] = WeakSet()
"""Clients whose outages are reported: a command and the worker in its process report one only once."""


class ServerWatch:
    """What is known of a server: see :func:`watch_server`."""

    def __init__(self, temporal: TemporalClient, report: Callable[[str], None], every: float) -> None:
        self.is_away = False
        """Whether the server does not answer at present."""
        self._temporal = temporal
        self._report = report
        self._every = every

    async def retry(self, read: Callable[[], Awaitable[T]]) -> T:
        """Return the result of ``read``, called again while the server is away; it must be safe to repeat. Raises
        ``ServerUnreachableError`` if only this request is not answered."""
        failures = 0
        while True:
            try:
                return await read()
            except ServerUnreachableError:
                failures = 0 if self.is_away else failures + 1
                if failures == _MAX_FAILURES:
                    raise
            await asyncio.sleep(_RETRY_SECONDS)

    async def watch(self) -> None:
        """Probe the server until this is cancelled."""
        address, loop = self._temporal.service_client.config.target_host, asyncio.get_running_loop()
        unanswered, unanswered_since = 0, 0.0
        while True:
            probed_at = loop.time()
            if await self._is_answered():
                if self.is_away:
                    seconds = loop.time() - unanswered_since
                    self._report(f"the Temporal server at {address} answers again, after {seconds:.0f} s")
                self.is_away, unanswered = False, 0
            else:
                unanswered += 1
                if unanswered == 1:
                    unanswered_since = probed_at
                if unanswered == _PROBES_UNANSWERED:
                    self.is_away = True
                    self._report(f"the Temporal server at {address} does not answer; waiting for it")
            await asyncio.sleep(_RETRY_SECONDS if unanswered else self._every)

    async def _is_answered(self) -> bool:
        try:
            async with asyncio.timeout(PROBE_SECONDS):
                await self._temporal.workflow_service.get_system_info(
                    GetSystemInfoRequest(), timeout=timedelta(seconds=PROBE_SECONDS)
                )
        except TimeoutError:
            return False
        except RPCError as error:  # a refusal is an answer
            return classify_rpc_error(error) is not Refusal.NO_ANSWER
        return True


@asynccontextmanager
async def watch_server(
    temporal: TemporalClient, report: Callable[[str], None], *, every: float = PROBE_SECONDS
) -> AsyncGenerator[ServerWatch]:
    """Probe the server during the block, and call ``report`` with a text when it does not answer, and when it answers
    again; not if another block of this client does so."""
    is_first = temporal not in _reported
    watch = ServerWatch(temporal, report if is_first else lambda _: None, every)
    if is_first:
        _reported.add(temporal)
    task = asyncio.create_task(watch.watch())
    try:
        yield watch
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        if is_first:
            _reported.discard(temporal)
