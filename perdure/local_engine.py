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
from .client.event_reader import stream_reply_text
from .client.on_approval import ApprovalHandler, check_on_approval
from .client.run import NO_WORKER_SECONDS, Run
from .errors import ApprovalPendingError, InvalidInputError, NoWorkerError, PerdureError
from .ports.test_seams import find_fake_server
from .tools import Tool
from .types.files import MessageInput
from .types.interface import Response
from .worker import Lifespan, Worker

T = TypeVar("T")

LOCAL_DRAIN_SECONDS = 5.0
"""Seconds that running tools are given at the end of the block; runs go on when they are served again."""
CALL_CANCEL_SECONDS = 5.0
"""Seconds that the run of a cancelled call is given to end."""


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
    All that serve a queue at once must have the same agents: open one block for them all, or give each a queue.
    """
    agents = agents if isinstance(agents, Agent) else list(agents)  # one alone is refused by the worker
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
    agent: Agent,
    message: MessageInput,
    *,
    id: str | None,
    client: Client | None,
    on_approval: Any,
    **options: Any,
) -> Response:
    """See ``Agent.call``; ``options`` are those of ``Client.start``."""
    _check_call_message(agent, message)
    how = check_on_approval(on_approval)
    run_id = f"{agent.name}-{uuid.uuid4().hex[:12]}" if id is None else id

    async def answer(client: Client, wait: Callable[[Run], Coroutine[Any, Any, Response]]) -> Response:
        starting = asyncio.ensure_future(client.start(agent, message, id=run_id, if_exists="attach", **options))
        if id is not None:
            return await _deciding(await starting, wait)
        # Nobody knows the id, so nobody could come back for the answer: what is given up is cancelled.
        try:
            # Shielded: cancelled in the middle of it, nobody could say whether there is a run now.
            return await _deciding(await asyncio.shield(starting), wait)
        except asyncio.CancelledError:
            await _cancel_abandoned_run(starting)
            raise
        except NoWorkerError as error:
            await (await starting).cancel()
            queue = client.task_queue
            raise NoWorkerError(
                error.message, hint=f"Start one: perdure worker FILE --task-queue {queue}. The run was cancelled."
            ) from None

    async def _deciding(run: Run, wait: Callable[[Run], Coroutine[Any, Any, Response]]) -> Response:
        return await ApprovalHandler(run, agent, how).run_while_deciding(wait(run))

    if client is not None:
        return await answer(client, _wait_for_served_result)
    async with local(agents=[agent], task_queue=build_agent_queue_name(agent.name)) as own:
        return await answer(own, lambda run: run.result())


async def stream_agent(
    agent: Agent,
    message: MessageInput,
    *,
    id: str | None,
    client: Client | None,
    on_approval: Any,
    **options: Any,
) -> AsyncGenerator[str, None]:
    """See ``Agent.stream``; ``options`` are those of ``Client.start``."""
    _check_call_message(agent, message)
    how = check_on_approval(on_approval)
    run_id = f"{agent.name}-{uuid.uuid4().hex[:12]}" if id is None else id
    async with AsyncExitStack() as stack:
        serving = client
        if serving is None:
            serving = await stack.enter_async_context(
                local(agents=[agent], task_queue=build_agent_queue_name(agent.name))
            )
        starting = asyncio.ensure_future(serving.start(agent, message, id=run_id, if_exists="attach", **options))
        over = False
        try:
            # Shielded: cancelled in the middle of it, nobody could say whether there is a run now.
            run = await (starting if id is not None else asyncio.shield(starting))
            deciding = ApprovalHandler(run, agent, how)
            async with aclosing(stream_reply_text(run)) as pieces:
                piece = await deciding.run_while_deciding(
                    _read_first_piece(run, pieces) if client is not None else _read_next_piece(pieces)
                )
                while piece is not None:
                    yield piece
                    piece = await deciding.run_while_deciding(_read_next_piece(pieces))
            over = True
        except ApprovalPendingError:  # the run stays open
            over = True
            raise
        finally:
            if id is None and not over:  # as of a call: nobody could come back for the rest
                await _cancel_abandoned_run(starting)


def _check_call_message(agent: Agent, message: Any) -> None:
    """A run that is started without a message waits for one, and a call would wait with it."""
    if message is None:
        raise InvalidInputError(
            f"agent {agent.name!r} was asked nothing: the message is None",
            hint="Give it one. The answer of a run that there is already: await client.run(id).result().",
        )


async def _read_next_piece(pieces: AsyncGenerator[str]) -> str | None:
    return await anext(pieces, None)


async def _read_first_piece(run: Run, pieces: AsyncGenerator[str]) -> str | None:
    """The first piece of a run that others serve. Raises ``NoWorkerError`` when nobody takes it."""
    begun, first = asyncio.ensure_future(run.begun(NO_WORKER_SECONDS)), asyncio.ensure_future(anext(pieces, None))
    try:
        await asyncio.wait([begun, first], return_when=asyncio.FIRST_COMPLETED)
        if not first.done():
            await begun
        return await first
    finally:
        begun.cancel()
        first.cancel()
        await asyncio.gather(begun, first, return_exceptions=True)


async def _wait_for_served_result(run: Run) -> Response:
    """The answer of a run that others serve. Raises ``NoWorkerError`` when nobody takes it."""
    begun, answered = asyncio.ensure_future(run.begun(NO_WORKER_SECONDS)), asyncio.ensure_future(run.result())
    try:
        await asyncio.wait([begun, answered], return_when=asyncio.FIRST_COMPLETED)
        if not answered.done():
            await begun
        return await answered
    finally:
        begun.cancel()
        answered.cancel()
        await asyncio.gather(begun, answered, return_exceptions=True)


async def _cancel_abandoned_run(starting: asyncio.Future[Run]) -> None:
    """Cancel the run of a call that nobody waits for any more, and see it end: its worker may be about to stop."""
    with suppress(PerdureError, TimeoutError):
        async with asyncio.timeout(CALL_CANCEL_SECONDS):
            run = await starting
            await run.cancel()
            await run.result()


def build_agent_queue_name(name: str, file: Path | None = None) -> str:
    """The task queue on which a program calls agent ``name``: calls of several do not take each other's runs.

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
