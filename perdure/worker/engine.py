"""``Engine``: the parts of one worker process (store, chain, author loop, activities, stages) and how they are
connected.

Also the worker's limits and settings, its check of search attributes, and the author's lifespan.
"""

from __future__ import annotations

import asyncio
import difflib
import inspect
import logging
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from functools import partial
from typing import Any

from temporalio import activity
from temporalio.client import Client as TemporalClient

from .. import _config as config
from .._encryption import IN_PROCESS_ADDRESS, KeyRing
from ..agent.definition import build_agent_row
from ..agent.spec import AgentSpec
from ..calls.agent_setup import AgentSetup
from ..calls.agents import Agents, check_hook_agents
from ..calls.author_loop import AuthorLoop
from ..calls.call import (
    ActivityCall,
    ActivityOutput,
    CloseCall,
    CollectCall,
    CompactCall,
    ModelCall,
    RemindCall,
    ToolCall,
)
from ..calls.collect import CollectActivity
from ..calls.context_parts import AuthResolver, MemoryFactory, StoreGrants
from ..calls.heartbeat import build_heartbeat_reporter, report_waiting
from ..calls.interceptor import StageInterceptor
from ..calls.iteration_hooks import HookActivity, HookRunner
from ..calls.loop_watch import BlockRecorder, LoopWatch, build_own_recorder, record_block
from ..calls.model import ModelActivity
from ..calls.pipeline import Parts, Pipelines, build_pipelines
from ..calls.tool import ToolActivity, get_cancellation
from ..calls.toolsets import Toolsets
from ..client.visibility import create_store
from ..context.auth import AuthFunction
from ..errors import DefinitionError, RuntimeSetupError, StoreError
from ..hooks import Hook, HookSet, validate_hooks
from ..hooks.hook import evaluate_signature
from ..ports.model import ModelRef, Provider
from ..ports.store import AgentRow, Store
from ..ports.test_seams import find_fake_model
from ..providers.fallback import ModelChain, Throttle
from ..providers.pricing import calculate_cost_usd
from ..providers.registry import PROVIDER_ALIASES, get_provider, keep_providers_open, list_providers
from ..store import Chain, open_store
from ..store.cache import CACHE_BYTES, ByteLRU, CacheBudget, CachedJournal
from ..store.objects import check_blob_location
from ..temporal.attributes import get_search_attributes
from ..tools import Tool, format_error
from ..types.limits import RateLimit
from .webhook_delivery import WebhookActivity, dispatch_webhooks

# ---
# The search attributes of a worker's namespace, with a warning for missing ones.


logger = logging.getLogger("perdure.worker")

MAX_CACHED_RUNS = 1000
"""Workflows that a worker keeps by default, as Temporal's SDK has it."""


class SearchAttributeCheck:
    """Finds the namespace's search attributes, at every reply that reports them (``calls/interceptor.py``). Registering
    them later needs no restart of workers."""

    def __init__(self) -> None:
        self._said: dict[str, str] = {}

    def mark_reported(self, namespace: str, missing: str) -> None:
        """Do not log that these attributes are missing in a namespace: an operator has been told."""
        self._said[namespace] = missing

    async def __call__(self) -> tuple[str, ...] | None:
        """Return the attributes of the current activity's namespace; None if they cannot be read. Never raises."""
        try:
            client = activity.client()
        except RuntimeError:  # a test's environment
            return None
        attributes = await get_search_attributes(client)
        if attributes is None:
            return None
        if (missing := str(attributes)) and self._said.get(client.namespace) != missing:
            logger.warning(
                "search attributes of namespace %s: %s. Runs are served all the same; lists and pending approvals are "
                "found without them, by reading every run. `perdure server setup` registers them.",
                client.namespace,
                missing,
            )
        self._said[client.namespace] = missing
        return attributes.names


_RECORD_AGAIN_SECONDS = 2.0
"""Before the first repeat of a record that the store did not take; doubled up to a minute."""


async def record_agents(store: Store, agents: Iterable[AgentSpec]) -> bool:
    """Record the definitions of the agents, for programs that show them without their code, and for HTTP, which refuses
    an agent that is not recorded. Returns whether the store took them.

    Raises no error of the store: a worker starts whose store cannot be written just now, as work then waits for it.
    """
    rows: list[AgentRow] = []
    for agent in agents:
        try:
            rows.append(build_agent_row(agent, os.environ))
        except Exception as error:  # of the schema of an author's type
            logger.warning("the definition of agent %s is not recorded: %s", agent.name, format_error(error))
    try:
        if rows:
            await store.record_agents(rows)
    except StoreError as error:
        logger.warning("the definitions of the agents are not recorded in the store yet: %s", error.message)
        return False
    return True


# ---
# Settings of a worker: limits per provider, rate of its task queue, and size of its caches.


def check_provider_limits(limits: Any, agents: Iterable[AgentSpec]) -> dict[str, RateLimit]:
    """Check ``provider_limits``, by the names of providers, or of the classes of agents' own. Raises
    ``DefinitionError``."""
    if limits is None:
        return {}
    if not isinstance(limits, Mapping):
        raise DefinitionError(
            f"provider_limits must be a dictionary keyed by provider name, not {limits!r:.100}",
            hint='For instance provider_limits={"anthropic": RateLimit(concurrent=8, per_minute=50)}.',
        )
    own = {model.provider for agent in agents for model in agent.chain if model.own is not None}
    known = sorted({*list_providers(), *own})
    for name, limit in limits.items():
        if name not in known:
            close = difflib.get_close_matches(str(name), known, 1)
            raise DefinitionError(
                f"provider_limits names the unknown provider {name!r}. Known providers: {', '.join(known)}.",
                hint=f"Did you mean {close[0]!r}?" if close else "register_provider(name, provider) makes one known.",
            )
        if not isinstance(limit, RateLimit):
            raise DefinitionError(
                f"provider_limits[{name!r}] must be a RateLimit, not {limit!r:.100}",
                hint="For instance RateLimit(concurrent=8, per_minute=50).",
            )
    return dict(limits)


def build_throttles(limits: Mapping[str, RateLimit]) -> dict[str, Throttle]:
    """Build one throttle for each limit, found by each name of its provider."""
    throttles = {name: Throttle(name, limit) for name, limit in limits.items()}
    for alias, name in PROVIDER_ALIASES.items():
        if (throttle := throttles.get(name) or throttles.get(alias)) is not None:
            throttles[name] = throttles[alias] = throttle
    return throttles


def check_call_rate(rate: Any) -> float | None:
    """Check ``calls_per_second``: a number above zero. Raises ``DefinitionError``."""
    if rate is None or (isinstance(rate, int | float) and not isinstance(rate, bool) and rate > 0):
        return rate
    raise DefinitionError(
        f"calls_per_second must be a number above zero, not {rate!r:.100}",
        hint="For instance calls_per_second=20; leave it out for no limit.",
    )


def check_cache_size(cache: Any) -> int:
    """Check ``cache``: a number of bytes. Raises ``DefinitionError``."""
    if isinstance(cache, int) and not isinstance(cache, bool) and cache >= 0:
        return cache
    raise DefinitionError(
        f"cache must be a number of bytes, not {cache!r:.100}", hint="For instance cache=64 * 1024 * 1024."
    )


# ---
# The author's ``lifespan``, which yields shared resources (pools, clients). It runs on the author's event loop.


Lifespan = Callable[[], AbstractAsyncContextManager[Any]]
"""``@asynccontextmanager async def resources(): yield …``"""

LIFESPAN_EXIT_SECONDS = 10.0
"""Seconds that the exit of a lifespan may take before the worker stops without it."""
LIFESPAN_WARN_SECONDS = 10.0
"""Seconds after which a worker logs that its lifespan is not entered yet."""
_LIFESPAN_CANCEL_SECONDS = 2.0


class LifespanResources:
    """Holds a lifespan open: ``async with``. ``value`` is what it yields, None without one.

    One task of the author's loop enters and exits it, as task groups and cancel scopes inside require.
    """

    def __init__(self, lifespan: Lifespan | None, author: AuthorLoop) -> None:
        """Raises ``DefinitionError`` for an invalid lifespan."""
        self._lifespan = lifespan
        self._author = author
        self._name = _check_worker_lifespan(lifespan)
        self.value: Any = None

    async def __aenter__(self) -> LifespanResources:
        if self._lifespan is not None:
            await self._enter_lifespan()
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._lifespan is not None:
            await self._leave_lifespan()

    async def _enter_lifespan(self) -> None:
        """Enter the lifespan. Raises ``RuntimeSetupError`` if that fails."""
        entered: Future[Any] = Future()
        self._leaving: Future[None] = Future()
        self._task = asyncio.create_task(self._author.run(self._name, self._hold_lifespan, entered, self._leaving))
        ready = asyncio.wrap_future(entered)
        try:
            while not (
                await asyncio.wait(
                    [self._task, ready], timeout=LIFESPAN_WARN_SECONDS, return_when=asyncio.FIRST_COMPLETED
                )
            )[0]:
                logger.warning("%s has not started yet; the worker waits for it", self._name)
        except asyncio.CancelledError:
            await self._abandon_task()
            raise
        if ready.done():
            self.value = ready.result()
            self._task.add_done_callback(self._log_early_end)
            return
        ready.cancel()
        error = self._task.exception()
        raise RuntimeSetupError(
            f"{self._name} failed at its start: {format_error(error) if error else 'it yielded nothing'}",
            hint="The worker serves nothing without it: repair it, or what it connects to.",
        ) from error

    async def _hold_lifespan(self, entered: Future[Any], leaving: Future[None]) -> None:
        """Enter the lifespan on the author's loop, set ``entered``, and exit when ``leaving`` is set."""
        assert self._lifespan is not None, "only called with one"
        manager = self._lifespan()
        if not hasattr(manager, "__aenter__"):
            if inspect.iscoroutine(manager):
                manager.close()
            raise TypeError(
                f"it returned a {type(manager).__name__}, not an async context manager: put "
                "@asynccontextmanager above an async function that yields"
            )
        async with manager as value:
            entered.set_result(value)
            await asyncio.wrap_future(leaving)

    async def _leave_lifespan(self) -> None:
        """Exit the lifespan. Never raises and never hangs: the worker has to stop."""
        self._task.remove_done_callback(self._log_early_end)
        if not self._leaving.done():
            self._leaving.set_result(None)
        self.value = None
        try:
            await asyncio.wait([self._task], timeout=LIFESPAN_EXIT_SECONDS)
        finally:
            if not self._task.done():
                logger.warning(
                    "%s did not exit within %g s; the worker stops without it", self._name, LIFESPAN_EXIT_SECONDS
                )
                await self._abandon_task()
        if self._task.done() and not self._task.cancelled() and (error := self._task.exception()) is not None:
            logger.error("%s failed at its exit", self._name, exc_info=error)

    async def _abandon_task(self) -> None:
        self._task.add_done_callback(
            lambda task: task.cancelled() or task.exception()
        )  # marks its exception as retrieved
        self._task.cancel()
        await asyncio.wait([self._task], timeout=_LIFESPAN_CANCEL_SECONDS)

    def _log_early_end(self, task: asyncio.Task[Any]) -> None:
        """Log that the lifespan ended while the worker serves: a task group in it failed, for instance."""
        error = None if task.cancelled() else task.exception()
        logger.error("%s ended while the worker serves; its resources are gone", self._name, exc_info=error)


def _check_worker_lifespan(lifespan: Any) -> str:
    """Check the lifespan and return its name for messages. Raises ``DefinitionError``."""
    if lifespan is None:
        return ""
    name = f"the lifespan {getattr(lifespan, '__name__', type(lifespan).__name__)}"
    if not callable(lifespan) or hasattr(lifespan, "__aenter__"):  # what @asynccontextmanager gives is callable too
        raise DefinitionError(
            f"the lifespan must be a function that returns an async context manager, not {lifespan!r:.100}",
            hint="Pass the function itself, without calling it: lifespan=resources.",
        )
    if inspect.isasyncgenfunction(lifespan):
        raise DefinitionError(
            f"{name} is an async generator, not a context manager", hint="Put @asynccontextmanager above it."
        )
    signature = evaluate_signature(name, lifespan)
    try:
        if signature is not None:
            signature.bind()
    except TypeError as error:
        raise DefinitionError(f"{name} is called without arguments: {error}", hint="Remove its parameters.") from None
    return name


class Engine:
    """The parts of one worker process. ``async with engine.serve():`` opens and closes them.

    Several Temporal workers of one process may share an engine; it closes when the last of them has stopped.
    """

    _recordings: tuple[asyncio.Task[None], ...] = ()
    """Of agents that the store did not take."""

    def __init__(
        self,
        agents: Iterable[AgentSpec] = (),
        *,
        store_url: str | None = None,
        store: Store | None = None,
        lifespan: Lifespan | None = None,
        stream: bool = True,
        provider_limits: Mapping[str, RateLimit] | None = None,
        hooks: Iterable[Hook | HookSet] = (),
        tools: Iterable[Tool | Callable[..., Any]] = (),
        resolve_auth: AuthFunction | None = None,
        cache: int = CACHE_BYTES,
        webhooks: bool = True,
    ) -> None:
        self._dispatches_webhooks = webhooks
        self._cache = CacheBudget(check_cache_size(cache))
        self.max_cached_runs = MAX_CACHED_RUNS  # whose transcripts and outcomes are kept
        self._stream = stream
        self.hooks = HookSet(validate_hooks("worker", hooks))
        hook_agents = (agent for hook in self.hooks for agent in hook.agents if isinstance(agent, AgentSpec))
        self.agents = Agents(agents if isinstance(agents, AgentSpec) else [*agents, *hook_agents], tools)
        self._provider_limits = check_provider_limits(provider_limits, self.agents)
        self._throttles: dict[str, Throttle] = {}
        self.store = store or open_store(
            config.resolve_store_url(store_url) or config.get_home_store_url(),
            blob_url=config.get_blob_url(),
            blob_bytes=config.get_blob_bytes(),
            outbox=config.get_outbox(),
        )
        self.loop_watch = LoopWatch(self._build_block_recorder(store, store_url))
        self.author = AuthorLoop()
        self._resources = LifespanResources(lifespan, self.author)
        self._authorise = AuthResolver(KeyRing.from_environment(), self.author, resolve_auth, self._get_resources)
        memory = MemoryFactory(self.store, report_waiting)
        self.model = ModelActivity(self._build_model_chain, calculate_cost_usd)
        self.toolsets = Toolsets(self.author, Chain(self.store).resolve_blob, ByteLRU(self._cache))
        self._hook_runner = HookRunner(self.author, self.hooks)
        self._setup = AgentSetup(
            self.agents,
            self.author,
            self._hook_runner,
            resources=self._get_resources,
            memory=memory,
            toolsets=self.toolsets,
        )
        self.hook_activity = HookActivity(self.agents, self._hook_runner, self._setup.build_run_context)
        self.tool = ToolActivity(
            self.agents,
            self.author,
            self._get_resources,
            heartbeat=build_heartbeat_reporter,
            memory=memory,
            toolsets=self.toolsets,
        )
        self.collect, self.webhook = CollectActivity(self.store), WebhookActivity(self.store)
        attributes = self.search_attributes = SearchAttributeCheck()
        self.interceptor = StageInterceptor(lambda: self._pipelines, self._is_engine_activity, attributes, self.store)
        self._pipelines: Pipelines
        self._users, self._opening, self._stack = 0, asyncio.Lock(), AsyncExitStack()

    @property
    def is_open(self) -> bool:
        """Whether something is served."""
        return self._users > 0

    async def record_agents(self, agents: Iterable[AgentSpec]) -> None:
        """Record the definitions of agents that are served from now on, see :func:`record_agents`. If the store cannot
        be written, it is tried again for as long as the engine is open."""
        recorded = [*agents]
        if await record_agents(self.store, recorded):
            return

        async def record_later() -> None:
            seconds = _RECORD_AGAIN_SECONDS
            while True:
                await asyncio.sleep(seconds)
                if await record_agents(self.store, recorded):
                    return
                seconds = min(seconds * 2, 60.0)

        self._recordings = (*self._recordings, asyncio.create_task(record_later()))

    @asynccontextmanager
    async def serve(self, temporal: TemporalClient | None = None, task_queue: str = "") -> AsyncIterator[None]:
        """Open the engine for the length of the block, to serve ``task_queue``.

        Raises ``DefinitionError`` if a hook of the worker names an agent that is not served here, ``StoreError`` if the
        store cannot be opened, ``RuntimeSetupError`` if the lifespan fails.
        """
        async with self._opening:
            if self._users == 0:
                check_hook_agents(self.hooks, self.agents)
                await self._open_parts(temporal, task_queue)
            self._users += 1
        try:
            yield
        finally:
            async with self._opening:
                self._users -= 1
                if self._users == 0:
                    await self._stack.aclose()

    async def _open_parts(self, temporal: TemporalClient | None, task_queue: str) -> None:
        async with AsyncExitStack() as stack:
            await self.store.open(create=temporal is None)
            stack.push_async_callback(self.store.close)
            if temporal is not None and not self.store.store_id:
                await create_store(self.store, temporal, task_queue)
            await check_blob_location(self.store)
            stack.push_async_callback(self._stop_recordings)
            await self.record_agents(self.agents)
            await stack.enter_async_context(keep_providers_open())
            self.author.start()
            stack.callback(self.author.stop)
            if temporal is not None:
                stack.enter_context(self.loop_watch.watching())
            stack.push_async_callback(self.toolsets.close, self.agents)
            await stack.enter_async_context(self._resources)
            self._throttles = build_throttles(self._provider_limits)
            address = IN_PROCESS_ADDRESS if temporal is None else temporal.service_client.config.target_host
            self.toolsets.grants = StoreGrants(self.store, address, report_waiting)
            self._pipelines = self._build_pipelines()
            if temporal is not None and self._dispatches_webhooks:
                await stack.enter_async_context(dispatch_webhooks(self.store, temporal, task_queue))
            self._stack = stack.pop_all()

    async def _stop_recordings(self) -> None:
        tasks, self._recordings = self._recordings, ()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def run_call(self, call: ActivityCall) -> ActivityOutput:
        """Run a call through all its stages, without Temporal."""
        bare: dict[type[Any], Callable[[Any], Awaitable[Any]]] = {
            ModelCall: self.model.call,
            CompactCall: self.model.call,
            CloseCall: self.hook_activity.call_close,
            RemindCall: self.hook_activity.call_remind,
            CollectCall: self.collect.call,
            ToolCall: self.tool.call,
        }
        return await self._pipelines.run(call, bare[type(call)])

    @property
    def activities(self) -> list[Callable[..., Any]]:
        """The functions of the activities that a worker registers; that of tools is a dynamic one."""
        return [
            self.model.model,
            self.model.compact,
            self.hook_activity.close,
            self.hook_activity.remind,
            self.collect.collect,
            self.tool.tool,
        ]

    def _build_pipelines(self) -> Pipelines:
        # Beyond the runs that the worker keeps, what it keeps of them does not grow: a run that comes back is replayed,
        # beside which the read of its transcript is small. Subagents and parallel calls have their share.
        runs = self.max_cached_runs
        return build_pipelines(
            Parts(
                store=self.store,
                chain=Chain(self.store, cache=self._cache, max_heads=2 * runs),
                journal=CachedJournal(self.store, cache=self._cache, max_outcomes=16 * runs),
                views=ByteLRU(self._cache),
                agents=self.agents,
                author=self.author,
                hooks=self.hooks,
                hook_runner=self._hook_runner,
                setup=self._setup,
                authorise=self._authorise,
                can_force_tool=self._can_force,
                tool_contexts=self.tool.context,
                call_tool=self.tool.call,
                is_stopped_by_run=lambda: get_cancellation().is_from_run(),
                stream=self._stream,
                report_waiting=report_waiting,
            )
        )

    def _build_block_recorder(self, store: Store | None, store_url: str | None) -> BlockRecorder:
        """Blocks are written by a connection of their own; to a store that was given as an object, by that."""
        if store is not None:
            return partial(record_block, store)
        url = config.resolve_store_url(store_url) or config.get_home_store_url()

        def open_journal() -> Store:
            own = open_store(url)
            own.write_options = self.store.write_options
            return own

        return build_own_recorder(open_journal)

    def _get_resources(self) -> Any:
        return self._resources.value

    def _build_model_chain(self, agent: AgentSpec) -> Provider:
        def find(model: ModelRef) -> Provider:
            in_place = find_fake_model(agent.name, str(model), model.own)
            return in_place or model.own or get_provider(model.provider)

        return ModelChain(agent.chain, find, throttles=self._throttles, report_wait=report_waiting)

    def _can_force(self, agent: AgentSpec) -> bool:
        """Whether every model of ``agent`` takes ``tool_choice``: a provider declares ``tool_choice = False`` if
        not."""
        models = [
            (find_fake_model(agent.name, str(model), model.own) or model.own, model.provider) for model in agent.chain
        ]
        return all(getattr(own or get_provider(name), "tool_choice", True) for own, name in models)

    def _is_engine_activity(self, fn: Callable[..., Any]) -> bool:
        return getattr(fn, "__self__", None) in (self.model, self.hook_activity, self.tool, self.collect)
