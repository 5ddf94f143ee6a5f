"""``local()``: the whole engine on this machine: the embedded server, a worker in this process, and a client."""

from __future__ import annotations

import asyncio
import contextvars
import hashlib
import sys
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Iterable
from contextlib import AsyncExitStack, aclosing, asynccontextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from .. import _config as config
from .._event_loop import run_event_loop
from ..agent.spec import AgentSpec
from ..client.client import Client
from ..client.run import NO_WORKER_SECONDS, Run
from ..client.tasks import background_task, wait_beside
from ..client.visibility import quote_literal
from ..errors import ApprovalPendingError, InvalidInputError, NoWorkerError, PerdureError, RunClosedError
from ..ports.test_seams import find_fake_server
from ..tools import Tool
from ..types.interface import OutputT, Response
from ..types.messages import MessageInput
from ..worker import Lifespan, Worker
from .on_approval import ApprovalHandler, Approving, check_on_approval

T = TypeVar("T")

LOCAL_DRAIN_SECONDS = 5.0
"""Seconds that running tools have to end when the block ends; their runs continue when they are served again."""
CALL_CANCEL_SECONDS = 5.0
"""Seconds that the run of a cancelled call has to end, before it is terminated."""


_TERMINATE_SECONDS = 2.0


@asynccontextmanager
async def local(
    agents: Iterable[AgentSpec],
    *,
    task_queue: str | None = None,
    lifespan: Lifespan | None = None,
    tools: Iterable[Tool | Callable[..., Any]] = (),
) -> AsyncIterator[Client]:
    """Serve ``agents`` for the length of the block; yields a client. ``lifespan`` and ``tools``: see ``Worker``.

    Uses the server that ``TEMPORAL_*`` names, else the embedded one, which it starts if none runs. The task queue is
    ``PERDURE_TASK_QUEUE``, else this program's own, so that two programs on one machine do not take each other's runs.
    All workers of one queue must have the same agents: open one block for all agents, or give each block a queue.
    """
    agents = agents if isinstance(agents, AgentSpec) else list(agents)  # the worker refuses a single agent
    if (server := find_fake_server(agents)) is not None:
        async with server as client:
            yield client
        return
    queue = config.named_task_queue(task_queue) or build_program_queue_name()
    client = await Client.connect(start_server=True, task_queue=queue)
    if client.store_url is None:
        client.store_url = config.get_home_store_url()
    try:
        # Without a version, also in a process that has one: nothing would route work to this queue.
        async with Worker(
            client,
            agents,
            task_queue=queue,
            drain=LOCAL_DRAIN_SECONDS,
            lifespan=lifespan,
            tools=tools,
            deployment=False,
        ):
            try:
                yield client
            finally:
                if closing := _closing_runs.pop(client, None):  # they need the worker
                    await asyncio.wait(closing, timeout=CALL_CANCEL_SECONDS)
    finally:
        await client.close()


# ---
# The engine of the calls without a client: one for all calls of an agent in an event loop, and one for those with ids.


class _CallEngine:
    """Serves the calls of one agent in one event loop, from the first of them until none needs it any more.

    They share a task queue: with a worker each, the first that stopped would take runs of the others with it. For the
    same reason the runs of calls without an ``id`` have a queue that only their engine polls: no other agent object of
    that name, event loop or process takes them. A run with an ``id`` outlives its call, so another process can take
    it up: all objects of that name that call with ids at the same time must be the same agent.
    """

    def __init__(self, agent: AgentSpec, queue: str, forget: Callable[[], object]) -> None:
        """``forget`` is called when no call waits for its answer any more: the next call gets another engine."""
        self.client: asyncio.Future[Client] = asyncio.get_running_loop().create_future()
        self._forget = forget
        self._calls: set[object] = set()
        """All calls, with those that only wait for the end of their run."""
        self._waiting: set[object] = set()
        """The calls that wait for their answer."""
        self._is_unused = asyncio.Event()
        # In an empty context: it serves all calls, so tools must not get the context variables of the first caller.
        loop, context = asyncio.get_running_loop(), contextvars.Context()
        self.serving: asyncio.Task[None] = loop.create_task(self._serve(agent, queue), context=context)
        self.serving.add_done_callback(self._end_waits_for_client)

    async def _serve(self, agent: AgentSpec, queue: str) -> None:
        async with local([agent], task_queue=queue) as client:
            self.client.set_result(client)
            await self._is_unused.wait()

    def _end_waits_for_client(self, serving: asyncio.Task[None]) -> None:
        """The next call gets another engine. Calls that have their client wait for ``serving`` beside their answer."""
        self._forget()
        error = None if serving.cancelled() else serving.exception()
        if not self.client.done():
            self.client.cancel() if error is None else self.client.set_exception(error)
            self.client.cancelled() or self.client.exception()  # marks it as retrieved

    def begin_call(self) -> object:
        """Add a call."""
        call = object()
        self._calls.add(call)
        self._waiting.add(call)
        return call

    def abandon_call(self, call: object) -> None:
        """Record that the call waits for no answer, but for the end of its run."""
        self._waiting.discard(call)
        if not self._waiting:
            self._forget()

    async def end_call(self, call: object) -> None:
        """Remove the call. When none waits for its answer, returns after the engine has stopped: with one of them a
        program's main function may end, and ``asyncio.run`` then cancels what closes the runs of the others."""
        self.abandon_call(call)
        self._calls.discard(call)
        if not self._calls:
            self._is_unused.set()
            if not self.client.done():
                self.serving.cancel()
        task = asyncio.current_task()
        if not self._waiting and not (task is not None and task.cancelling() > 1):  # a second Ctrl-C ends at once
            await asyncio.wait([self.serving], timeout=_ENGINE_STOP_SECONDS)


_ENGINE_STOP_SECONDS = LOCAL_DRAIN_SECONDS + CALL_CANCEL_SECONDS + 5.0
"""Seconds that calls wait for the end of their engine; it then goes on to stop without them."""
_call_engines: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[tuple[int, str | None], _CallEngine]] = (
    WeakKeyDictionary()
)
"""By the agent, and the task queue; None for the calls without an ``id``."""
_closing_runs: WeakKeyDictionary[Client, set[asyncio.Future[None]]] = WeakKeyDictionary()
"""What waits for the ends of the runs of cancelled calls, by client."""


@asynccontextmanager
async def _serve_call(
    agent: AgentSpec, queue: str | None
) -> AsyncIterator[tuple[Client, Callable[[], object], asyncio.Future[None] | None]]:
    """Serve a call of ``agent`` on task queue ``queue``, None for one that only its engine polls. Yields a client; a
    function to call when the call is abandoned; and the task that serves, None for a test's server."""
    if find_fake_server([agent]) is not None:
        async with local([agent]) as client:
            yield client, lambda: None, None
        return
    engines = _call_engines.setdefault(asyncio.get_running_loop(), {})
    key = (id(agent), queue)

    def forget() -> None:
        if engines.get(key) is engine:  # else another engine has replaced it already
            del engines[key]

    engine = engines.get(key)
    if engine is None:
        own_queue = queue or config.make_private_task_queue(build_agent_queue_name(agent.name))
        engine = engines[key] = _CallEngine(agent, own_queue, forget)
    call = engine.begin_call()
    try:
        yield await asyncio.shield(engine.client), lambda: engine.abandon_call(call), engine.serving
    finally:
        await engine.end_call(call)


async def call_agent(
    agent: AgentSpec[Any, OutputT],
    message: MessageInput,
    id: str | None,
    client: Client | None,
    approving: Approving,
    **options: Any,
) -> Response[OutputT]:
    """See ``Agent.call``; ``options`` are those of ``Client.start``."""
    async with _start_run(agent, message, id, client, approving, options) as (run, guards):
        return await wait_beside(run.result(), *guards)


def stream_agent(
    agent: AgentSpec, message: MessageInput, id: str | None, client: Client | None, approving: Approving, **options: Any
) -> AsyncGenerator[str]:
    """See ``Agent.stream``; ``options`` are those of ``Client.start``."""
    return _stream_run(Run.stream, agent, message, id, client, approving, options)


def stream_agent_output(
    agent: AgentSpec, message: MessageInput, id: str | None, client: Client | None, approving: Approving, **options: Any
) -> AsyncGenerator[Any]:
    """See ``Agent.stream_output``; ``options`` are those of ``Client.start``."""
    return _stream_run(Run.stream_output, agent, message, id, client, approving, options)


_STREAM_END: Any = object()
_LAST_ITEM_SECONDS = 0.5
"""Seconds that an item of a stream which was written before an error may take to be read, and then comes before it."""


async def _stream_run(
    read: Callable[[Run], AsyncGenerator[T]],
    agent: AgentSpec,
    message: MessageInput,
    id: str | None,
    client: Client | None,
    approving: Approving,
    options: dict[str, Any],
) -> AsyncGenerator[T]:
    async with (
        _start_run(agent, message, id, client, approving, options) as (run, guards),
        aclosing(read(run)) as stream,
    ):
        while (
            item := await wait_beside(_read_next_item(stream), *guards, grace=_LAST_ITEM_SECONDS)
        ) is not _STREAM_END:
            yield item
        for guard in guards:
            if guard.done() and not guard.cancelled():
                guard.result()  # an error that the last items have overtaken


@asynccontextmanager
async def _start_run(
    agent: AgentSpec[Any, OutputT],
    message: Any,
    id: str | None,
    client: Client | None,
    approving: Approving,
    options: dict[str, Any],
) -> AsyncIterator[tuple[Run[OutputT], list[asyncio.Future[None]]]]:
    """Start the run, on this machine without a ``client``. Yields it, and the tasks whose errors are those of the call:
    wait for them beside the answer.

    A run without an ``id`` is cancelled if the block is left before the answer, or one of the tasks fails, but for
    ``ApprovalPendingError``, which names the run: the caller does not know its id, and could not return for the answer.
    """
    options["context"] = agent.check_context(options["context"])
    agent.overridden(options["override"])
    if message is None:  # a run that is started without a message waits for one, and a call would wait with it
        raise InvalidInputError(
            f"agent {agent.name!r} was asked nothing: the message is None",
            hint="Give it one. For the answer of an existing run: await client.run(id).result().",
        )
    approving = check_on_approval(approving[0]), approving[1]
    agent.freeze("called")
    run_id = f"{agent.name}-{uuid.uuid4().hex[:12]}" if id is None else id
    abandon, serving = None, None
    engines, guards = list[asyncio.Future[None]](), list[asyncio.Future[None]]()
    is_served_elsewhere = client is not None
    async with AsyncExitStack() as stack:
        if client is None:
            queue = None if id is None else build_agent_queue_name(agent.name)
            own_client, abandon, serving = await stack.enter_async_context(_serve_call(agent, queue))
            client = own_client
        starting = asyncio.ensure_future(client.start(agent, message, id=run_id, if_exists="attach", **options))
        try:
            # Shielded: if the start were cancelled half-way, it would be unknown whether the run exists.
            run = await (starting if id is not None else asyncio.shield(starting))
            if id is not None and serving is not None:
                existing_queue = (await run.describe()).task_queue
                if config.get_shared_task_queue(existing_queue) != existing_queue:  # a call without an id has left it
                    _, _, also_serving = await stack.enter_async_context(_serve_call(agent, existing_queue))
                    engines += [] if also_serving is None else [also_serving]
            engines += [] if serving is None else [serving]
            async with _guard_call(run, ApprovalHandler(run, agent, *approving), is_served_elsewhere) as guards:
                yield run, engines + guards
        except ApprovalPendingError as error:
            if id is None and serving is not None:
                error.hint = f"{error.hint} The same call with id={run_id!r} serves the run again."
            raise
        except NoWorkerError as error:
            if id is not None:
                raise
            await (await starting).cancel()
            start_hint = f"Start one: perdure worker FILE --task-queue {client.task_queue}. The run was cancelled."
            raise NoWorkerError(error.message, hint=start_hint) from None
        except BaseException as error:
            if (is_abandoned := _is_call_abandoned(error, guards)) and abandon is not None:
                abandon()
            if id is None and (is_abandoned or (serving is not None and serving.done())):
                await _close_abandoned_run(client.run(run_id), starting, serving)
            raise


def _is_call_abandoned(error: BaseException, guards: Iterable[asyncio.Future[None]]) -> bool:
    """Whether ``error`` is not the run's own: the caller has left, or a task beside the run has failed with it."""
    if isinstance(error, asyncio.CancelledError | GeneratorExit):
        return True
    return any(guard.done() and not guard.cancelled() and guard.exception() is error for guard in guards)


@asynccontextmanager
async def _guard_call(
    run: Run, approvals: ApprovalHandler, is_served_elsewhere: bool
) -> AsyncIterator[list[asyncio.Future[None]]]:
    """Decide the run's pending calls during the block, and see that a worker takes it. Yields the tasks."""
    async with AsyncExitStack() as tasks:
        guards = list[asyncio.Future[None]]()
        if is_served_elsewhere:
            guards.append(await tasks.enter_async_context(background_task(run.begun(NO_WORKER_SECONDS))))
        if approvals.is_needed:
            guards.append(await tasks.enter_async_context(background_task(approvals.decide_calls())))
        yield guards


async def _read_next_item(stream: AsyncGenerator[T]) -> T:
    return await anext(stream, _STREAM_END)


async def _close_abandoned_run(run: Run, starting: asyncio.Future[Run], serving: asyncio.Future[None] | None) -> None:
    """Cancel the run of an abandoned call, and wait until it has closed.

    ``serving`` is the only worker of a call without a client, and about to stop: a run that it does not close is
    terminated.
    """
    closing = asyncio.ensure_future(_cancel_started_run(starting))
    _closing_runs.setdefault(run.client, set()).add(closing)
    closing.add_done_callback(lambda _: _closing_runs.get(run.client, set()).discard(closing))
    try:
        ends = [closing] if serving is None else [closing, serving]
        await asyncio.wait(ends, timeout=CALL_CANCEL_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        if serving is not None and not (closing.done() and closing.exception() is None):
            with suppress(PerdureError, TimeoutError):
                async with asyncio.timeout(_TERMINATE_SECONDS):
                    await _terminate_tree(run, "its call was abandoned, and the worker of the call has stopped")
    finally:
        closing.cancel()
        await asyncio.gather(closing, return_exceptions=True)


async def _terminate_tree(run: Run, reason: str) -> None:
    """Terminate the run and those of its subagents: Temporal requests their cancellation, which needs a worker."""
    await run.terminate(reason)
    query = f"WorkflowId STARTS_WITH {quote_literal(f'{run.id}/')} AND ExecutionStatus = 'Running'"
    with run.temporal_errors():
        async for execution in run.client.temporal.list_workflows(query):
            with suppress(RunClosedError):
                await run.client.run(execution.id).terminate(reason)


async def _cancel_started_run(starting: asyncio.Future[Run]) -> None:
    """Cancel a run that is being started, and wait until it has closed."""
    run = await starting
    with suppress(RunClosedError):
        await run.cancel()
        await run.wait_for_close()


def build_agent_queue_name(name: str, file: Path | None = None) -> str:
    """The task queue on which a program calls agent ``name``; calls of two agents do not take each other's runs.

    ``file`` is the program's, by default the one that this process was started with.
    """
    return config.named_task_queue() or f"{build_program_queue_name(file)}-{name}"


def build_program_queue_name(file: Path | None = None) -> str:
    """The task queue of ``file``, by default the one that this process was started with."""
    started = sys.argv[0] if sys.argv and sys.argv[0] not in ("", "-c", "-m") else Path.cwd()
    entry = Path(file or started).absolute()
    return f"{config.DEFAULT_TASK_QUEUE}-{entry.stem or 'python'}-{hashlib.sha256(str(entry).encode()).hexdigest()[:8]}"


def run_sync(make: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run a coroutine to its end from code without an event loop. Raises ``RuntimeError`` inside a running one."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return run_event_loop(make())
    raise RuntimeError("call_sync() was called inside a running event loop: use `await agent.call(...)` there")
