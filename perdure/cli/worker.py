"""``perdure worker``: serve an author's agents until told to stop, then finish what was begun."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..terminal import LogFormatter, print_line
from .connection import ConnectionOptions, get_server_address, mask_password, open_client
from .options import AgentsOption, StoreOptions, TaskQueueOption

if TYPE_CHECKING:
    from ..agent.agent import Agent
    from ..client.client import Client
    from ..worker import Worker
    from .agent_loader import AgentModule


# ---
# A client, and with ``--file`` a worker in this process: what ``run`` and ``chat`` stand on.


@asynccontextmanager
async def open_client_for_agent(
    server: ConnectionOptions,
    agent: str,
    *,
    file: str | None = None,
    task_queue: str | None = None,
    actor: str | None = None,
) -> AsyncIterator[tuple[Client, str | Agent]]:
    """A client and the agent to start; a server is started if none runs.

    With ``file`` its agents are served from here, on the file's own queue, and the agent is the object, so that what
    it is given is checked at once. Raises ``InvalidInputError`` when the file has no such agent.
    """
    if file is None:
        async with open_client(server, start_server=True, task_queue=task_queue, actor=actor) as client:
            yield client, agent
        return
    from .. import config
    from ..local_engine import LOCAL_DRAIN_SECONDS, build_program_queue_name
    from ..worker import Worker
    from .agent_loader import load_agent_module

    log_to_stderr()
    loaded = load_agent_module(file)
    found = loaded.get_agent(agent)
    queue = config.named_task_queue(task_queue) or build_program_queue_name(Path(file))
    async with (
        open_client(server, start_server=True, task_queue=queue, actor=actor) as client,
        Worker(
            client,
            loaded.agents,
            drain=LOCAL_DRAIN_SECONDS,
            lifespan=loaded.lifespan,
            tools=loaded.tools,
            resolve_auth=loaded.resolve_auth,
        ),
    ):
        yield client, found


TargetArgument = Annotated[str, typer.Argument(metavar="FILE|MODULE", help="agents.py, or shop.agents")]


def worker(
    target: TargetArgument,
    agents: AgentsOption = None,
    task_queue: TaskQueueOption = None,
    drain: Annotated[
        float | None,
        typer.Option(
            min=0, help="Seconds that running tools are given at the end; else the longest of their timeouts and 30 s."
        ),
    ] = None,
    *,
    server: StoreOptions,
) -> None:
    """Serve the agents of a Python file or module until SIGTERM or Ctrl-C; a second signal ends at once."""
    from .agent_loader import load_agent_module

    log_to_stderr()
    logging.getLogger("perdure.store").setLevel(logging.INFO)  # a new store is worth a line in a worker's log
    loaded = load_agent_module(target, alone=agents is None)
    asyncio.run(_serve_until_stopped(loaded, server, task_queue, drain, agents))


def log_to_stderr() -> None:
    """What the engine and the SDK have to say, in lines that a log collector can use."""
    handler = logging.StreamHandler()
    handler.setFormatter(LogFormatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(level=logging.WARNING, handlers=[handler])
    logging.getLogger("temporalio.activity").addFilter(_shorten_activity_failure)


def _shorten_activity_failure(record: logging.LogRecord) -> bool:
    """A failed attempt is told in a line: its traceback would be the engine's, and Temporal keeps the failure."""
    from temporalio.exceptions import ApplicationError

    error = record.exc_info[1] if record.exc_info else None
    if isinstance(error, ApplicationError):
        facts = record.__dict__.get("temporal_activity", {})
        place = f"{facts.get('activity_type')} of {facts.get('workflow_id')}, attempt {facts.get('attempt')}"
        record.msg, record.args, record.exc_info = f"{place}: {' '.join(str(error).split())}", (), None
    return True


async def _serve_until_stopped(
    loaded: AgentModule, server: ConnectionOptions, task_queue: str | None, drain: float | None, agents: Path | None
) -> None:
    def ready(worker: Worker) -> None:
        print_line(format_serving_line(client, worker))

    async with open_client(server, task_queue=task_queue, warnings=True) as client:
        await serve_agents(client, loaded, drain=drain, ready=ready, agents=agents)


async def serve_agents(
    client: Client,
    loaded: AgentModule,
    *,
    drain: float | None = None,
    ready: Callable[[Worker], None],
    stop: asyncio.Event | None = None,
    agents: Path | None = None,
) -> None:
    """Serve ``loaded`` until a signal comes or ``stop`` is set, then drain. ``ready`` is called once it serves.

    ``agents`` is a folder of agent files, which are served as they are at present.
    With ``stop`` it is part of another command, which says what happens.
    """
    from ..worker import Worker

    talks = stop is None
    stop = stop or asyncio.Event()
    install_signal_handlers(stop, talks=talks)
    worker = Worker(
        client,
        loaded.agents,
        drain=drain,
        lifespan=loaded.lifespan,
        tools=loaded.tools,
        resolve_auth=loaded.resolve_auth,
    )
    async with AsyncExitStack() as stack:
        folder = agents and worker.folder(agents, toolsets=loaded.toolsets, say=print_folder_message)
        await stack.enter_async_context(worker)
        ready(worker)
        if folder:
            await stack.enter_async_context(folder)
        await stop.wait()


def format_serving_line(client: Client, worker: Worker) -> str:
    """What is served, where: one line."""
    from .. import config

    names = ", ".join(sorted(agent.name for agent in worker.agents)) or "no agents yet"
    store = mask_password(client.store_url or config.get_home_store_url())
    namespace = client.temporal.namespace
    place = (
        get_server_address(client) if namespace == "default" else f"{get_server_address(client)}, namespace {namespace}"
    )
    return f"serving {names} on queue {worker.task_queue} of {place}, store {store}"


def print_folder_message(text: str) -> None:
    """A line of what happens to agent files."""
    print_line(text)


def install_signal_handlers(stop: asyncio.Event, *, talks: bool) -> None:
    """The first signal drains; the second ends the process at once, its runs go on elsewhere."""
    loop = asyncio.get_running_loop()

    def say(text: str) -> None:
        if talks:
            print_line(text, error=True)

    def heard(number: signal.Signals) -> None:
        if stop.is_set():
            say("ended at once; the runs go on with the next worker")
            os._exit(128 + number)
        say(f"{number.name}: finishing what runs; once more ends at once")
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, heard, number)
