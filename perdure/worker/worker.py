"""``Worker``: serves agents until it is stopped, and then finishes the calls in progress."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from typing import Any

from temporalio.worker import Worker as TemporalWorker

from .. import _config as config
from ..agent.spec import AgentSpec
from ..client.client import Client
from ..client.tasks import StartWait
from ..context.auth import AuthFunction
from ..embedded.diagnosis import Finding
from ..errors import RuntimeSetupError, StoreError
from ..hooks import Hook, HookSet
from ..ports.toolset import Toolset
from ..store.cache import CACHE_BYTES
from ..temporal.namespaces import check_namespace
from ..temporal.outages import watch_server
from ..tools import Tool
from ..types.limits import RateLimit
from .agent_folder import AgentFolder
from .drain import CANCEL_SECONDS, Drain, RunningActivities
from .engine import Lifespan, check_call_rate
from .health import HealthServer, WorkerHealth
from .plugin import PerdurePlugin
from .start_report import report_start
from .versioning import Deployment, build_deployment_config, resolve_version

logger = logging.getLogger("perdure.worker")

_PROBE_SECONDS = 5.0
"""Seconds between two probes of Temporal, which a worker logs to be away."""
_recordings: set[asyncio.Task[None]] = set()
"""Of agents that were added: a task that nothing refers to may be lost."""


class Worker:
    """Runs agents' activities and workflows from one task queue.

    ``await worker.run()`` serves until SIGTERM or SIGINT, then drains: the worker takes no new tasks, and running tools
    may finish. ``async with worker:`` serves for the length of a block.

    Args:
        client: Connects the worker to Temporal; its task queue and its store are the worker's by default.
        agents: The agents to serve.
        task_queue: The task queue that the worker polls.
        store_url: Where the store is: ``sqlite:///…`` or ``postgresql://…``.
        drain: Seconds for which a drain waits for running tools; by default the longest of their timeouts. A short
            drain loses nothing: another worker continues the runs.
        max_concurrent_activities: Calls of models and tools at once.
        lifespan: A function without parameters that returns an async context manager, whose value is ``ctx.resources``
            from the worker's start to its end. It runs on the event loop of the tools. A failure at the start raises
            ``RuntimeSetupError``; the exit may take 10 s.
        stream: False writes replies to the store only when they are complete. Followers still get every other event,
            and each long model call costs a few writes less a second.
        provider_limits: Limits of this worker by the names of providers: ``{"anthropic": RateLimit(concurrent=8,
            per_minute=50)}``. A call over the limit waits in its activity, first come, first served, and the run's
            status shows it.
        calls_per_second: Limit of all workers of the task queue together, enforced by the Temporal server. It counts
            every activity of the queue, also tool calls and retries, and delays them before they start. All workers of
            a queue should set the same value.
        hooks: Hooks around the calls of every agent, before the agent's own.
        tools: Tools of no agent, until a step adds one by its name (``step.add_tool("refund")``). Every worker of the
            queue needs them.
        resolve_auth: A sync or async function of a run's ``auth_ref`` and a ``RunFacts`` that returns the
            ``auth_context`` as plain data, once for each attempt of a call. If it raises, it is retried; an
            ``AbortError`` ends the run.
        cache: Bytes for data that the worker can read or compute again: transcripts, files, outcomes of calls,
            compacted views, tools of toolsets; 256 MiB by default. The least recently used entry is evicted first; 0
            keeps nothing. Calls in progress and workflows that Temporal's SDK caches are not included.
        webhooks: False starts no deliveries of events to ``client.webhooks``. The worker still runs deliveries that
            other workers of the queue have started.
        deployment: The version of a Worker Deployment that the worker is: a ``WorkerDeploymentVersion``, or
            ``"NAME.BUILD_ID"``. None is that of the environment (``TEMPORAL_DEPLOYMENT_NAME`` and
            ``TEMPORAL_WORKER_BUILD_ID``), False none. A version gets work once it is the deployment's current or
            ramping one.
        health_address: ``[HOST:]PORT`` of ``GET /healthz`` (liveness) and ``GET /readyz`` (readiness), by default on
            127.0.0.1. After the start ``health_address`` has host and port, also for port 0. None answers neither.
        wait_for_store: Wait at the start for a store that does not answer, as ``run()`` does, in place of raising
            ``StoreError``. The log and ``/readyz`` say so. A wrong URL, login or schema is raised.
        heartbeat: Seconds between two heartbeats of a call, 2 by default (``PERDURE_HEARTBEAT``). Each is a billed
            action of Temporal Cloud; a worker is lost after three without one.

    """

    def __init__(
        self,
        client: Client,
        agents: Iterable[AgentSpec],
        *,
        task_queue: str | None = None,
        store_url: str | None = None,
        drain: float | None = None,
        max_concurrent_activities: int = 100,
        lifespan: Lifespan | None = None,
        stream: bool = True,
        provider_limits: Mapping[str, RateLimit] | None = None,
        calls_per_second: float | None = None,
        hooks: Iterable[Hook | HookSet] = (),
        tools: Iterable[Tool | Callable[..., Any]] = (),
        resolve_auth: AuthFunction | None = None,
        cache: int = CACHE_BYTES,
        webhooks: bool = True,
        deployment: Deployment | None = None,
        health_address: str | None = None,
        heartbeat: float | None = None,
        wait_for_store: bool = False,
    ) -> None:
        rate = check_call_rate(calls_per_second)
        self.deployment_version = resolve_version(deployment)
        """The version that it is; None without Worker Versioning."""
        plugin = PerdurePlugin(
            agents,
            store_url=store_url or client.store_url,
            lifespan=lifespan,
            stream=stream,
            provider_limits=provider_limits,
            hooks=hooks,
            tools=tools,
            resolve_auth=resolve_auth,
            cache=cache,
            webhooks=webhooks,
            heartbeat=heartbeat,
        )
        self.task_queue = config.resolve_task_queue(task_queue or client.task_queue)
        self.drain = plugin.drain_time() if drain is None else timedelta(seconds=drain)
        self._running = RunningActivities(max_concurrent_activities, plugin.engine.agents)
        self._drain_log = Drain(self._running, self.drain.total_seconds())
        self._health = WorkerHealth(self._running, plugin.workflow_tasks, self._drain_log)
        self._health.loop_watch = plugin.engine.loop_watch
        self._endpoint = None if health_address is None else HealthServer(health_address, self._health.report)
        # Made at the start: a worker that is made and never run keeps its slot on the queue, and no other one of this
        # client could take it.
        self._make: Callable[[], TemporalWorker] = lambda: TemporalWorker(
            client.temporal,
            task_queue=self.task_queue,
            plugins=[plugin],
            interceptors=[self._running],
            max_concurrent_activities=max_concurrent_activities,
            max_task_queue_activities_per_second=rate,
            deployment_config=build_deployment_config(self.deployment_version),
            graceful_shutdown_timeout=max(self.drain, timedelta(milliseconds=1)),  # zero would count as unset
        )
        self._temporal, self._store_url = client.temporal, store_url or client.store_url
        self._engine, self._waits_for_store, self._open = plugin.engine, wait_for_store, AsyncExitStack()

    @property
    def agents(self) -> tuple[AgentSpec, ...]:
        """The agents that are served."""
        return tuple(self._engine.agents)

    @property
    def health_address(self) -> str | None:
        """host:port of the health endpoint, once the worker has started; None without one."""
        return None if self._endpoint is None else self._endpoint.address or None

    def add(self, agent: AgentSpec, *, replace: bool = False) -> None:
        """Serve ``agent`` too, also while the worker runs; with ``replace`` instead of the one of the same name.

        Call it on the worker's event loop, and on every worker of the queue: a run whose next call reaches a worker
        without its agent retries for a minute. Raises ``DefinitionError``.
        """
        self._engine.agents.replace_agents([agent.name] if replace else (), [agent])
        if self._engine.is_open:
            recording = asyncio.create_task(self._engine.record_agents([agent]))
            _recordings.add(recording)
            recording.add_done_callback(_recordings.discard)

    def remove(self, name: str) -> None:
        """Stop serving the agent of that name. Raises ``AgentNotFoundError``."""
        self._engine.agents.replace_agents([self._engine.agents.get(name).name])

    def folder(
        self, path: Path, *, toolsets: Iterable[Toolset] = (), say: Callable[[str], object] = logger.warning
    ) -> AgentFolder:
        """Serve the agent files of a folder too, and follow their changes for the length of ``async with`` on the
        returned object. They may name the worker's ``tools``, and ``toolsets``; ``say`` is called for each file that is
        loaded or broken. Raises ``InvalidInputError`` if the folder does not exist."""
        return AgentFolder(path, self._engine.agents, toolsets=toolsets, say=say, record=self._engine.record_agents)

    async def report_start(self) -> list[Finding]:
        """Return what the worker serves, and what is missing for the runs of its task queue; while it runs."""
        url = config.resolve_store_url(self._store_url) or config.get_home_store_url()
        return await report_start(self._temporal, self.task_queue, self._engine, url, version=self.deployment_version)

    async def run(self) -> None:
        """Serve until SIGTERM or SIGINT, or until this is cancelled; then drain. Waits for a store that is away."""
        self._waits_for_store = True
        loop = asyncio.get_running_loop()
        stop = asyncio.Event()
        caught = [name for name in (signal.SIGTERM, signal.SIGINT) if _add_stop_signal(loop, name, stop)]
        try:
            async with AsyncExitStack() as stack:
                async with ended_by(stop):
                    await stack.enter_async_context(self)
                await stop.wait()
        finally:
            for name in caught:
                loop.remove_signal_handler(name)

    async def __aenter__(self) -> Worker:
        async with AsyncExitStack() as stack:
            if self._endpoint is not None:
                await stack.enter_async_context(self._endpoint)
            await check_namespace(self._temporal)  # else the first sign of it would be the end of the block
            # Opened here too, so that a store that cannot be opened raises now instead of cancelling the block.
            await self._open_engine(stack)
            loop = asyncio.get_running_loop()
            self._engine.author.fatal_reason.add_done_callback(
                lambda _: loop.call_soon_threadsafe(self._drain_log.begin)  # the plugin stops the worker then
            )
            if self._endpoint is not None:
                watch = self._health.watch(self._temporal, self.task_queue, self._engine.store)
                await stack.enter_async_context(watch)
            await stack.enter_async_context(
                _serve_in_block(self._create_temporal_worker(), self._drain_log, self._health)
            )
            await stack.enter_async_context(watch_server(self._temporal, logger.warning, every=_PROBE_SECONDS))
            self._open = stack.pop_all()
        return self

    async def _open_engine(self, stack: AsyncExitStack) -> None:
        """Open the engine, where the worker waits for its store when that answers."""
        wait = StartWait("store")
        while True:
            try:
                await stack.enter_async_context(self._engine.serve(self._temporal, self.task_queue))
            except StoreError as error:
                if not (error.away and self._waits_for_store):
                    raise
                self._health.note_waiting(f"store: {error.message}")
                await wait.wait(error.message)
            else:
                wait.end()
                return

    def _create_temporal_worker(self) -> TemporalWorker:
        try:
            return self._make()
        except RuntimeError as error:
            if "multiple workers" not in str(error):
                raise
            raise RuntimeSetupError(
                f"this client has a worker on task queue {self.task_queue!r} already",
                hint="Give one worker all the agents, or each worker a task queue or a client of its own.",
            ) from None

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._open.__aexit__(kind, error, trace)


_CANCELLED_STOP_SECONDS = 1.0
"""Seconds for a worker to stop whose own tasks were cancelled."""
_MAX_REASON_CHARS = 300


@asynccontextmanager
async def _serve_in_block(worker: TemporalWorker, drain: Drain, health: WorkerHealth) -> AsyncIterator[None]:
    """Run ``worker`` for the length of the block, as ``async with worker`` does; but leaving the block always ends.

    The SDK's own block waits without a limit for activities that do not end although they were cancelled. So it does
    for a worker whose tasks were cancelled, as ``asyncio.run`` does at its end: it does not complete its shutdown.
    """
    drain.has_begun = False
    block = asyncio.current_task()
    assert block is not None, "entered in a task"
    serving = health.serving = asyncio.create_task(worker.run())
    is_leaving = is_cancelled_here = False

    def cancel_block(_: asyncio.Task[None]) -> None:
        nonlocal is_cancelled_here
        if not is_leaving:
            is_cancelled_here = block.cancel()

    serving.add_done_callback(cancel_block)
    try:
        yield
    except asyncio.CancelledError:
        if serving.done() and not serving.cancelled() and (error := serving.exception()) is not None:
            if is_cancelled_here:  # the error replaces the cancellation: a later TaskGroup would see it as the caller's
                block.uncancel()
            if str(error).startswith("Worker validation failed"):  # the namespace, or the server, went after the check
                raise RuntimeSetupError(f"Temporal refuses this worker: {str(error)[:_MAX_REASON_CHARS]}") from error
            raise error from None
        raise
    finally:
        is_leaving = True
        drain.begin()
        stopping = asyncio.ensure_future(worker.shutdown())
        limit = _CANCELLED_STOP_SECONDS if serving.cancelling() else drain.seconds + CANCEL_SECONDS
        try:
            await asyncio.wait([serving], timeout=limit)
        finally:
            drain.end()
            for task in (stopping, serving):
                task.cancel()
                task.add_done_callback(lambda task: task.cancelled() or task.exception())  # marks it as retrieved


@asynccontextmanager
async def ended_by(stop: asyncio.Event) -> AsyncIterator[None]:
    """Cancel the block, and leave it without an error, when ``stop`` is set: the start of a worker may wait for its
    lifespan, or for the store, without a limit."""
    block = asyncio.current_task()
    assert block is not None, "entered in a task"
    is_inside, is_cancelled_here = True, False

    def cancel_block(_: asyncio.Task[Any]) -> None:
        nonlocal is_cancelled_here
        if is_inside:
            is_cancelled_here = block.cancel()

    waiting = asyncio.create_task(stop.wait())
    waiting.add_done_callback(cancel_block)
    try:
        yield
    except asyncio.CancelledError:
        if not is_cancelled_here or block.uncancel():
            raise
    finally:
        is_inside = False
        waiting.cancel()


def _add_stop_signal(loop: asyncio.AbstractEventLoop, name: signal.Signals, stop: asyncio.Event) -> bool:
    """Make the signal set ``stop``; false if that is not possible: only the main thread may catch signals."""
    try:
        loop.add_signal_handler(name, stop.set)
    except (ValueError, RuntimeError, NotImplementedError):
        return False
    return True
