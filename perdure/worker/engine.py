"""Everything that a worker needs, put together: store, chain, author loop, activities, stages."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from temporalio.client import Client as TemporalClient

from .. import config
from ..activities import Agents, AuthorLoop, IterationStage, ModelActivity, StoredMemory, ToolActivity
from ..activities.agents import check_asked
from ..activities.authorising import Authorising
from ..activities.cancellation import cancellation
from ..activities.firing import ON_MESSAGES
from ..activities.toolsets import Toolsets
from ..agent import Agent
from ..encryption import Keys
from ..hooks import Hook, HookSet, checked_hooks
from ..ports import ModelCall, ModelRef, ModelReply, Provider, Stage, Store, ToolCall
from ..ports.seams import model_in_place
from ..providers.chain import ModelChain
from ..providers.cost import cost_usd
from ..providers.registry import get_provider, using_providers
from ..providers.throttle import Throttle
from ..runs import make_store
from ..stages import (
    EventsStage,
    FailuresStage,
    HookStage,
    InlineStage,
    JournalStage,
    PaidStage,
    PrepareStage,
    StageInterceptor,
    TracingStage,
    TranscriptStage,
    compose_model,
    compose_tool,
)
from ..stages.budget import BudgetStage
from ..stages.compaction import CompactionStage
from ..stages.heartbeat import note, reporter
from ..store import Chain, open_store
from ..store.journal import CachedJournal
from ..store.lru import CACHE_BYTES, ByteLRU, CacheBudget
from ..tools import Tool
from ..tools.auth import ResolveAuth
from ..types.limits import Limits, RateLimit
from ..types.wire import ToolOutput
from .indexed import Indexed
from .rates import checked_cache, checked_limits, throttles
from .resources import Lifespan, Resources


class Engine:
    """The parts of one worker process. ``async with engine.running():`` opens and closes what has to be.

    Several Temporal workers of one process may share an engine; it closes when the last of them has stopped.
    """

    def __init__(
        self,
        agents: Iterable[Agent] = (),
        *,
        store_url: str | None = None,
        store: Store | None = None,
        lifespan: Lifespan | None = None,
        stream: bool = True,
        provider_limits: Mapping[str, RateLimit] | None = None,
        hooks: Iterable[Hook | HookSet] = (),
        tools: Iterable[Tool | Callable[..., Any]] = (),
        resolve_auth: ResolveAuth | None = None,
        cache: int = CACHE_BYTES,
    ) -> None:
        self._cache = CacheBudget(checked_cache(cache))
        self._stream = stream
        self.hooks = HookSet(checked_hooks("worker", hooks))
        asked = (one for each in self.hooks for one in each.agents if isinstance(one, Agent))
        self.agents = Agents(agents if isinstance(agents, Agent) else [*agents, *asked], tools)
        self._provider_limits = checked_limits(provider_limits, self.agents)
        self._throttles: dict[str, Throttle] = {}
        self.store = store or open_store(config.store_url(store_url) or config.home_store_url())
        self.author = AuthorLoop()
        self._resources = Resources(lifespan, self.author)
        self._authorise = Authorising(Keys.given(), self.author, resolve_auth, self._shared)
        memory = StoredMemory(self.store, note)
        self.model = ModelActivity(self._provider, cost_usd)
        self.toolsets = Toolsets(self.author, Chain(self.store).resolve_blob, ByteLRU(self._cache))
        self._iteration = IterationStage(
            self.agents,
            self.author,
            resources=self._shared,
            memory=memory,
            hooks=self.hooks,
            forces=self._can_force,
            toolsets=self.toolsets,
        )
        self.tool = ToolActivity(
            self.agents, self.author, self._shared, heartbeat=reporter, memory=memory, toolsets=self.toolsets
        )
        self.interceptor = StageInterceptor(lambda: self._stages, self._is_ours, Indexed())
        self._stages: Sequence[Stage] = ()
        self._users = 0
        self._opening = asyncio.Lock()
        self._stack = AsyncExitStack()

    @asynccontextmanager
    async def running(self, temporal: TemporalClient | None = None, task_queue: str = "") -> AsyncIterator[None]:
        """Open for the length of the block, to serve ``task_queue``.

        Raises ``DefinitionError`` where a hook of the worker asks an agent that is not here, ``StoreError`` when the
        store cannot be opened, ``RuntimeSetupError`` when the lifespan fails.
        """
        async with self._opening:
            if self._users == 0:
                check_asked(self.hooks, self.agents)
                await self._open(temporal, task_queue)
            self._users += 1
        try:
            yield
        finally:
            async with self._opening:
                self._users -= 1
                if self._users == 0:
                    await self._stack.aclose()

    async def _open(self, temporal: TemporalClient | None, task_queue: str) -> None:
        async with AsyncExitStack() as stack:
            await self.store.open(create=temporal is None)
            stack.push_async_callback(self.store.close)
            if temporal is not None and not self.store.store_id:
                await make_store(self.store, temporal, task_queue)
            await stack.enter_async_context(using_providers())
            self.author.start()
            stack.callback(self.author.stop)
            stack.push_async_callback(self.toolsets.close, self.agents)
            await stack.enter_async_context(self._resources)
            self._throttles = throttles(self._provider_limits)
            self._stages = self._make_stages()
            self._stack = stack.pop_all()

    async def call_model(self, call: ModelCall) -> ModelReply:
        """A model call through all stages, without Temporal."""
        return await compose_model(self._stages, self.model.call)(call)

    async def call_tool(self, call: ToolCall) -> ToolOutput:
        """A tool call through all stages, without Temporal."""
        return await compose_tool(self._stages, self.tool.call)(call)

    def _make_stages(self) -> list[Stage]:
        """From the outside in. Inline tools run through the same stages, the inline stage itself left out."""
        chain = Chain(self.store, cache=self._cache)
        tracing = TracingStage()
        hooks = HookStage(self.author.run, self.agents.get, self.agents.tool, self.tool.context, self.hooks)
        outcomes = CachedJournal(self.store, cache=self._cache)
        journal = JournalStage(outcomes, waiting=note)
        transcript = TranscriptStage(chain, outcomes, self.store, self.store.store_id, self._iteration.render_input)
        prepare = PrepareStage(chain, self.store.store_id, self.agents.get, self._authorise)
        failures = FailuresStage(self.store)
        events = EventsStage(
            self.store, lambda: cancellation().by_run(), stream=self._stream, changed_by_hooks=self._changes_messages
        )
        outer: list[Stage] = [failures, prepare, journal, events, transcript]
        compaction = CompactionStage(ByteLRU(self._cache))
        paid = PaidStage(self.store, self.hooks)
        behind_inline = [*outer, self._iteration, compaction, hooks, paid, BudgetStage(self._limits)]
        inline = InlineStage(compose_tool([tracing, *behind_inline], self.tool.call))
        return [tracing, inline, *behind_inline]

    def _shared(self) -> Any:
        return self._resources.value

    def _provider(self, agent: Agent) -> Provider:
        def find(model: ModelRef) -> Provider:
            in_place = model_in_place(agent.name, str(model), model.own)
            return in_place or model.own or get_provider(model.provider)

        return ModelChain(agent.chain, find, throttles=self._throttles, waiting=note)

    def _can_force(self, agent: Agent) -> bool:
        """Whether every model of ``agent`` takes ``tool_choice``: a provider says ``tool_choice = False`` if not."""
        models = [(model_in_place(agent.name, str(one), one.own) or one.own, one.provider) for one in agent.chain]
        return all(getattr(own or get_provider(name), "tool_choice", True) for own, name in models)

    def _limits(self, agent: str) -> Limits:
        return self.agents.get(agent).limits

    def _changes_messages(self, agent: str) -> bool:
        """Whether hooks may change what users say to the agent; those of the worker, where nobody knows it."""
        known = self.agents.find(agent)
        sets = (self.hooks, *([known.hooks] if known is not None else []))
        return any(some.on(event) for some in sets if some for event in ON_MESSAGES)

    def _is_ours(self, fn: Callable[..., Any]) -> bool:
        return getattr(fn, "__self__", None) in (self.model, self.tool)
