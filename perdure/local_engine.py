"""``local()``: the whole engine on this machine: the embedded server, a worker in this process, and a client."""

from __future__ import annotations

import asyncio
import hashlib
import sys
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Iterable
from contextlib import AsyncExitStack, aclosing, asynccontextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

from . import config
from .agent.agent import Agent
from .client.client import Client
from .client.event_reader import LiveText
from .client.on_approval import ApprovalHandler, check_on_approval
from .client.run import NO_WORKER_SECONDS, Run
from .client.tasks import wait_beside
from .errors import InvalidInputError, NoWorkerError, PerdureError
from .ports.test_seams import find_fake_server
from .tools import Tool
from .types.interface import Response
from .types.messages import MessageInput
from .worker import Lifespan, Worker

T = TypeVar("T")

LOCAL_DRAIN_SECONDS = 5.0
"""Seconds that running tools have to end when the block ends; their runs continue when they are served again."""
CALL_CANCEL_SECONDS = 5.0
"""Seconds that the run of a cancelled call has to end."""


@asynccontextmanager
async def local(
    agents: Iterable[Agent],
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
    agents = agents if isinstance(agents, Agent) else list(agents)  # the worker refuses a single agent
    if (server := find_fake_server(agents)) is not None:
        async with server as client:
            yield client
        return
    queue = config.named_task_queue(task_queue) or build_program_queue_name()
    client = await Client.connect(start_server=True, task_queue=queue)
    if client.store_url is None:
        client.store_url = config.get_home_store_url()
    try:
        async with Worker(client, agents, task_queue=queue, drain=LOCAL_DRAIN_SECONDS, lifespan=lifespan, tools=tools):
            yield client
    finally:
        await client.close()


async def call_agent(
    agent: Agent, message: MessageInput, id: str | None, client: Client | None, on_approval: Any, **options: Any
) -> Response:
    """See ``Agent.call``; ``options`` are those of ``Client.start``."""
    async with _start_run(agent, message, id, client, on_approval, options) as (run, approvals):
        return await approvals.run_while_deciding(_wait_if_served(run, run.result, client))


async def stream_agent(
    agent: Agent, message: MessageInput, id: str | None, client: Client | None, on_approval: Any, **options: Any
) -> AsyncGenerator[str]:
    """See ``Agent.stream``; ``options`` are those of ``Client.start``."""
    async with (
        _start_run(agent, message, id, client, on_approval, options) as (run, approvals),
        aclosing(_stream_reply_text(run)) as pieces,
    ):
        piece = await approvals.run_while_deciding(_wait_if_served(run, lambda: _read_next_piece(pieces), client))
        while piece is not None:
            yield piece
            piece = await approvals.run_while_deciding(_read_next_piece(pieces))


@asynccontextmanager
async def _start_run(
    agent: Agent, message: Any, id: str | None, client: Client | None, on_approval: Any, options: dict[str, Any]
) -> AsyncIterator[tuple[Run, ApprovalHandler]]:
    """Start the run, on this machine without a ``client``. A run without an ``id`` is cancelled if the block is left
    before the answer: the caller does not know its id, and could not return for the answer."""
    options["context"] = agent.check_context(options["context"])
    agent.overridden(options["override"])
    if message is None:  # a run that is started without a message waits for one, and a call would wait with it
        raise InvalidInputError(
            f"agent {agent.name!r} was asked nothing: the message is None",
            hint="Give it one. For the answer of an existing run: await client.run(id).result().",
        )
    policy = check_on_approval(on_approval)
    run_id = f"{agent.name}-{uuid.uuid4().hex[:12]}" if id is None else id
    async with AsyncExitStack() as stack:
        if client is None:
            own_engine = local(agents=[agent], task_queue=build_agent_queue_name(agent.name))
            client = await stack.enter_async_context(own_engine)
        starting = asyncio.ensure_future(client.start(agent, message, id=run_id, if_exists="attach", **options))
        try:
            # Shielded: if the start were cancelled half-way, it would be unknown whether the run exists.
            run = await (starting if id is not None else asyncio.shield(starting))
            yield run, ApprovalHandler(run, agent, policy)
        except (asyncio.CancelledError, GeneratorExit):
            if id is None:
                await _cancel_abandoned_run(starting)
            raise
        except NoWorkerError as error:
            if id is not None:
                raise
            await (await starting).cancel()
            start_hint = f"Start one: perdure worker FILE --task-queue {client.task_queue}. The run was cancelled."
            raise NoWorkerError(error.message, hint=start_hint) from None


async def _read_next_piece(pieces: AsyncGenerator[str]) -> str | None:
    return await anext(pieces, None)


async def _wait_if_served(run: Run, wait: Callable[[], Coroutine[Any, Any, T]], client: Client | None) -> T:
    """Wait for a result of the run. With a ``client``, raise ``NoWorkerError`` if no worker takes the run."""
    return await (wait() if client is None else wait_beside(wait(), run.begun(NO_WORKER_SECONDS)))


async def _cancel_abandoned_run(starting: asyncio.Future[Run]) -> None:
    """Cancel the run of an abandoned call, and wait until it has ended: its worker may be about to stop."""
    with suppress(PerdureError, TimeoutError):
        async with asyncio.timeout(CALL_CANCEL_SECONDS):
            run = await starting
            await run.cancel()
            await run.result()


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
        return asyncio.run(make())
    raise RuntimeError("call_sync() was called inside a running event loop: use `await agent.call(...)` there")


async def _stream_reply_text(run: Run) -> AsyncGenerator[str]:
    """Yield pieces of text; every reply after the first begins on a new line.

    Raises the run's error, as ``run.result()`` does, after all text has been yielded.
    """
    live, between = LiveText(), ""
    async with aclosing(run.events(children=False)) as events:
        async for event in events:
            if piece := live.feed(event):
                yield between + piece
                between = ""
            if event.type == "model.completed" and event.text:
                between = "\n"
    await run.result()
