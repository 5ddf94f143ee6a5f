"""``scripted``: runs an agent with scripted model replies in this process, without a server.

Also ``block_models``, which prevents calls of real models.
"""

from __future__ import annotations

import asyncio
import threading
import uuid
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Mapping
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    AsyncExitStack,
    asynccontextmanager,
    contextmanager,
)
from typing import Any, Generic, Literal, TypeVar

from temporalio.client import Client as TemporalClient

from ..agent.spec import AgentSpec
from ..client.client import Client
from ..client.turn import Turn
from ..errors import ProviderError
from ..local_engine.agent import Agent
from ..local_engine.engine import local
from ..ports.model import ModelRequest, Provider, StreamEvent
from ..ports.store import Store
from ..ports.test_seams import fake_models, fake_servers
from ..tools import Tool
from ..types.interface import OutputT, Response
from ..types.messages import Content
from ..worker import Engine, Lifespan
from .fake_service import HomeLoop, InProcessService
from .provider import Replies, ScriptedProvider, ScriptError
from .store import MemoryStore

# ---
# Prevents tests from calling a real model by mistake.


class ModelsBlockedError(ProviderError):
    """A test tried to call a real model. Not retried."""


class block_models(AbstractContextManager["block_models"]):  # noqa: N801  # used as a function, and with `with`
    """Block calls of real models by agents of this process: they fail with ``ModelsBlockedError``.

    Scripted models are not blocked: inside ``scripted``, and a ``ScriptedProvider`` as an agent's model. Neither are
    the providers named in ``allow``, for fakes of the test's own. Blocks until the end of a ``with`` block, until
    ``remove()``, or permanently: in a conftest.py a plain ``block_models()`` is enough.
    """

    def __init__(self, *, allow: Iterable[str] = ()) -> None:
        self._allow = frozenset([allow] if isinstance(allow, str) else allow)
        fake_models.insert(0, self._find_blocked_provider)  # asked last: scripted models are not blocked

    def remove(self) -> None:
        """Allow calls of real models again."""
        if self._find_blocked_provider in fake_models:
            fake_models.remove(self._find_blocked_provider)

    def __exit__(self, *_: object) -> None:
        self.remove()

    def _find_blocked_provider(self, agent: str, model: str, own: Provider | None) -> Provider | None:
        allowed = isinstance(own, ScriptedProvider) or model.partition(":")[0] in self._allow
        return None if allowed else _BlockedProvider(agent, model)


class _BlockedProvider:
    """The provider that replaces a real one."""

    def __init__(self, agent: str, model: str) -> None:
        self._agent = agent
        self._model = model

    async def stream(self, request: ModelRequest) -> AsyncIterator[StreamEvent]:
        """Raises ``ModelsBlockedError``."""
        last_message = request.messages[-1].text if request.messages else ""
        raise ModelsBlockedError(
            f"agent {self._agent!r} was about to call {self._model}, which block_models() forbids; the last message: "
            f"{last_message!r:.200}",
            hint=f"Script its replies: with scripted({self._agent}, [...]): …",
        )
        yield  # makes it a generator


T = TypeVar("T")

EngineName = Literal["process", "temporal"]


class Script(Generic[OutputT]):
    """The object that a ``with scripted(…)`` block yields."""

    def __init__(
        self, agent: AgentSpec[Any, OutputT], providers: Mapping[str, ScriptedProvider], home: HomeLoop
    ) -> None:
        self._agent = agent
        self._providers = providers
        self._home = home
        self._client: Client | None = None

    @property
    def requests(self) -> list[ModelRequest]:
        """The requests to the model, in order."""
        return self._providers[self._agent.name].requests

    def requests_of(self, agent: AgentSpec[Any, Any] | str) -> list[ModelRequest]:
        """Return the requests to the model of another scripted agent. Raises ``KeyError`` for an agent that is not
        scripted."""
        return self._providers[agent if isinstance(agent, str) else agent.name].requests

    @property
    def client(self) -> Client:
        """A client of the engine that runs the agent, for testing code that needs one."""
        assert self._client is not None, "the block is entered"
        return self._client

    async def send(self, message: Content | None, *, id: str, **options: Any) -> Turn[OutputT]:
        """Send a message to the session of that id, which is opened if needed: ``Client.send`` for this agent."""
        return await self._home.run(lambda: self.client.send(self._agent, message, id=id, **options))

    def send_sync(self, message: Content | None, *, id: str, **options: Any) -> Response[OutputT]:
        """Send a message from code without an event loop, and wait for the response."""

        async def answer() -> Response[OutputT]:
            return await (await self.client.send(self._agent, message, id=id, **options)).result()

        return asyncio.run_coroutine_threadsafe(answer(), self._home.loop).result()


class scripted(Generic[OutputT]):  # noqa: N801  # used as `with scripted(…)`
    """Run ``agent`` with a model that answers with ``replies``, for the length of a block::

        with scripted(support, [call("refund", order_id="7", amount=3), "Done."]) as script:
            response = support.call_sync("Order 7 is broken.")

    Inside, ``call``, ``call_sync`` and ``local`` of the agent run in this process: the workflow's own code, all stages
    and the real tools, over a ``MemoryStore``; no server, no network, milliseconds. Retryable errors are retried at
    once. ``engine="temporal"`` runs the same on a real server and worker, as outside of a test, and scripts only the
    model. Agents of the same name are one agent, in all servers of this process.

    ``others`` scripts agents that this one calls: ``scripted(boss, […], others={researcher: […]})``.

    Also ``async with``: then replies that are functions run on the test's own event loop, else on a thread's. Other
    agents, given to ``local(agents=[…])`` with it, are served too, with their own models.

    Raises ``ScriptError`` at the end of the block when replies are left over, or were missing.
    """

    def __init__(
        self,
        agent: AgentSpec[Any, OutputT],
        replies: Replies,
        *,
        others: Mapping[Agent[Any, Any], Replies] | Mapping[AgentSpec[Any, Any], Replies] | None = None,
        engine: EngineName = "process",
        lifespan: Lifespan | None = None,
        store: Store | None = None,
        tools: Iterable[Tool | Callable[..., Any]] = (),
    ) -> None:
        """``lifespan`` gives ``ctx.resources``. ``store`` is kept by several blocks that are to share what is in it
        (``engine="process"``). ``tools`` are the worker's, which steps may add."""
        if engine not in ("process", "temporal"):
            raise ValueError(f'engine is "process" or "temporal", not {engine!r}')
        self._agent = agent
        self._agents = [agent, *(others or {})]
        self._providers = {agent.name: ScriptedProvider(replies)}
        self._providers |= {other.name: ScriptedProvider(script) for other, script in (others or {}).items()}
        self._serve = self._serve_in_process if engine == "process" else self._serve_on_temporal
        self._lifespan = lifespan
        self._store = store
        self._tools = tuple(tools)
        self._stack = AsyncExitStack()
        self._thread: _LoopThread | None = None

    async def __aenter__(self) -> Script[OutputT]:
        script = Script(self._agent, self._providers, HomeLoop())
        async with AsyncExitStack() as stack:
            fake_models.append(self._find_scripted_provider)
            stack.callback(fake_models.remove, self._find_scripted_provider)
            for agent in self._agents:
                agent.freeze("scripted")
            await stack.enter_async_context(self._serve(script))
            self._stack = stack.pop_all()
        return script

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        await self._stack.aclose()
        for name, provider in self._providers.items() if error is None else ():
            if (mismatch := provider.describe_mismatch()) is not None:
                raise ScriptError(mismatch if name == self._agent.name else f"{name}: {mismatch}")

    def __enter__(self) -> Script[OutputT]:
        self._thread = _LoopThread()
        try:
            return self._thread.run(self.__aenter__())
        except BaseException:
            self._thread.stop()
            raise

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        assert self._thread is not None, "entered before"
        try:
            self._thread.run(self.__aexit__(kind, error, trace))
        finally:
            self._thread.stop()

    def _find_scripted_provider(self, agent: str, model: str, own: Provider | None) -> Provider | None:
        return self._providers.get(agent)

    @asynccontextmanager
    async def _serve_in_process(self, script: Script[Any]) -> AsyncIterator[None]:
        engine = Engine(self._agents, store=self._store or MemoryStore(), lifespan=self._lifespan, tools=self._tools)
        async with engine.serve():
            service = InProcessService(engine)

            def client() -> Client:
                return _InProcessClient(TemporalClient(service), engine.store)

            script._client = client()
            try:
                with _serve_locally(self._agent, lambda agents: _serve_with_client(engine, agents, client())):
                    yield
            finally:
                await service.close()

    @asynccontextmanager
    async def _serve_on_temporal(self, script: Script[Any]) -> AsyncIterator[None]:
        queue = f"scripted-{uuid.uuid4().hex[:12]}"
        async with local(self._agents, task_queue=queue, lifespan=self._lifespan, tools=self._tools) as client:
            script._client = client
            with _serve_locally(self._agent, lambda _: _open_loop_client(client)):
                yield


class _InProcessClient(Client):
    """A client that uses the engine's store."""

    def __init__(self, temporal: TemporalClient, store: Store) -> None:
        super().__init__(temporal, store_url="memory:", task_queue="scripted")
        self._shared = store

    async def store(self, *, create: bool = False) -> Store:
        """See base class."""
        return self._shared


@contextmanager
def _serve_locally(
    agent: AgentSpec[Any, Any], open_client: Callable[[list[AgentSpec]], AbstractAsyncContextManager[Client]]
) -> Iterator[None]:
    """Serve ``local()`` and calls of ``agent`` by ``open_client``, for the length of a block."""

    def find_server(agents: Any) -> AbstractAsyncContextManager[Client] | None:
        is_ours = isinstance(agents, list) and agent.name in (getattr(served, "name", None) for served in agents)
        return open_client(agents) if is_ours else None

    fake_servers.append(find_server)
    try:
        yield
    finally:
        fake_servers.remove(find_server)


@asynccontextmanager
async def _serve_with_client(engine: Engine, agents: list[AgentSpec], client: Client) -> AsyncIterator[Client]:
    for agent in agents:
        if agent.name not in {served.name for served in engine.agents}:
            engine.agents.add(agent)
    yield client


@asynccontextmanager
async def _open_loop_client(client: Client) -> AsyncIterator[Client]:
    """Yield a client of the calling event loop."""
    own = Client(client.temporal, store_url=client.store_url, task_queue=client.task_queue)
    try:
        yield own
    finally:
        await own.close()


class _LoopThread:
    """An event loop in a thread."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run_loop, name="perdure-scripted", daemon=True)
        self._thread.start()

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Await the coroutine on the thread's loop and return its result."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    def stop(self) -> None:
        """End the thread."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def _run_loop(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:  # ends the loop's tasks at the end
            runner.get_loop().run_forever()
