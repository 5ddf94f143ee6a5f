"""``perdure worker``: serves an author's agents until it is told to stop, then finishes the calls in flight."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .._terminal import LogFormatter, print_line
from .connection import ServerOptions, StoreOptions, get_server_address, mask_password, open_client
from .options import AgentsOption, TaskQueueOption

if TYPE_CHECKING:
    from ..agent.spec import AgentSpec
    from ..client.client import Client
    from ..worker import Worker
    from ..worker.versioning import Deployment
    from .agent_loader import AgentModule


@asynccontextmanager
async def open_client_for_agent(
    server: ServerOptions, agent: str, *, file: str | None, task_queue: str | None
) -> AsyncIterator[tuple[Client, str | AgentSpec]]:
    """A client and the agent to start, for ``perdure run`` and ``chat``. Starts a server if none runs.

    With ``file`` its agents are served by this process, on the file's own queue, and the agent is the object, so that
    its input is checked at once. Raises ``InvalidInputError`` if the file has no such agent.
    """
    if file is None:
        async with open_client(server, start_server=True, task_queue=task_queue) as client:
            yield client, agent
        return
    from .. import _config as config
    from ..local_engine.engine import LOCAL_DRAIN_SECONDS, build_program_queue_name
    from ..worker import Worker
    from .agent_loader import load_agent_module

    log_to_stderr()
    loaded = load_agent_module(file)
    found = loaded.get_agent(agent)
    queue = config.named_task_queue(task_queue) or build_program_queue_name(Path(file))
    async with (
        open_client(server, start_server=True, task_queue=queue) as client,
        Worker(client, loaded.agents, drain=LOCAL_DRAIN_SECONDS, deployment=False, **loaded.worker_options),
    ):
        yield client, found


def worker(
    target: Annotated[str, typer.Argument(metavar="FILE|MODULE", help="agents.py, or shop.agents")],
    agents: AgentsOption = None,
    task_queue: TaskQueueOption = None,
    drain: Annotated[
        float | None,
        typer.Option(
            min=0, help="Seconds for running tools to end; by default the longest of their timeouts and 30 s."
        ),
    ] = None,
    deployment: Annotated[
        str | None, typer.Option(metavar="NAME", help="Worker Deployment of this worker; TEMPORAL_DEPLOYMENT_NAME.")
    ] = None,
    build_id: Annotated[
        str | None, typer.Option(help="Its version in the deployment; TEMPORAL_WORKER_BUILD_ID.")
    ] = None,
    health: Annotated[
        str | None,
        typer.Option(
            metavar="[HOST:]PORT",
            help="Answer GET /healthz and /readyz there, by default on 127.0.0.1; PERDURE_HEALTH_ADDRESS.",
        ),
    ] = None,
    heartbeat: Annotated[
        float | None,
        typer.Option(metavar="SECONDS", help="Between two heartbeats of a call; PERDURE_HEARTBEAT, else 2."),
    ] = None,
    *,
    server: StoreOptions,
) -> None:
    """Serve the agents of a Python file or module until SIGTERM or Ctrl-C; a second signal ends at once."""
    from .. import _config as config
    from .._event_loop import run_event_loop
    from .agent_loader import load_agent_module

    end_at_sigterm()
    log_to_stderr()
    # A new store, what a drain waits for, and blocks of the event loop by what has no name.
    for name in ("perdure.store", "perdure.worker.drain", "perdure.event_loop"):
        logging.getLogger(name).setLevel(logging.INFO)
    loaded = load_agent_module(target, require_agents=agents is None)
    version = read_version(deployment, build_id)

    health = health or config.get_health_address()
    exit_limit = ExitLimit()

    async def serve() -> None:
        async with open_client(server, task_queue=task_queue, warnings=True, wait=True) as client:
            options: dict[str, Any] = {"drain": drain, "health_address": health, "deployment": version}
            options["heartbeat"] = heartbeat
            await serve_agents(client, loaded, asyncio.Event(), agents=agents, exit_limit=exit_limit, **options)

    try:
        run_event_loop(serve())
    finally:
        exit_limit.cancel()


class ExitLimit:
    """Ends the process if it has not ended by itself in time: the end of an event loop waits for its threads, without a
    limit, whatever they do."""

    def __init__(self) -> None:
        self._timer: threading.Timer | None = None

    def set(self, seconds: float) -> None:
        """End the process in that many seconds, instead of at the time set before."""
        self.cancel()
        self._timer = threading.Timer(seconds, self._end_process)
        self._timer.daemon = True
        self._timer.start()

    def cancel(self) -> None:
        """Do not end it."""
        if self._timer is not None:
            self._timer.cancel()

    def _end_process(self) -> None:
        print_line("ended by force, as it did not stop in time; the runs go on with the next worker", error=True)
        os._exit(1)


def read_version(deployment: str | None, build_id: str | None) -> Deployment:
    """The version that the options or the environment name; False without one. Raises ``RuntimeSetupError``."""
    from temporalio.common import WorkerDeploymentVersion

    from .. import _config as config

    found = config.resolve_deployment(deployment, build_id)
    return WorkerDeploymentVersion(*found) if found else False


def log_to_stderr() -> None:
    """Log the engine's and the SDK's warnings to stderr, in lines that a log collector can use."""
    handler = logging.StreamHandler()
    handler.setFormatter(LogFormatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(level=logging.WARNING, handlers=[handler])
    logging.getLogger("temporalio.activity").addFilter(_shorten_activity_failure)


def _shorten_activity_failure(record: logging.LogRecord) -> bool:
    """Log a failed attempt in one line: its traceback would be the engine's, and Temporal keeps the failure."""
    from temporalio.exceptions import ApplicationError

    error = record.exc_info[1] if record.exc_info else None
    if isinstance(error, ApplicationError):
        facts = record.__dict__.get("temporal_activity", {})
        place = f"{facts.get('activity_type')} of {facts.get('workflow_id')}, attempt {facts.get('attempt')}"
        record.msg, record.args, record.exc_info = f"{place}: {' '.join(str(error).split())}", (), None
    return True


async def serve_agents(
    client: Client,
    loaded: AgentModule,
    stop: asyncio.Event,
    *,
    agents: Path | None = None,
    on_serving: Callable[[], None] | None = None,
    exit_limit: ExitLimit | None = None,
    **options: Any,
) -> None:
    """Serve ``loaded`` until a signal comes or ``stop`` is set, then drain.

    ``agents`` is a folder of agent files, whose present versions are served. With ``on_serving`` that is called instead
    of printing what happens. ``exit_limit`` ends a process that does not stop. ``options`` are the worker's own, before
    those of the file.
    """
    from ..worker import Worker
    from ..worker.drain import CANCEL_SECONDS, CLOSE_SECONDS
    from ..worker.worker import ended_by

    loaded.warn_of_missing_extras()
    worker = Worker(
        client, loaded.agents, **{"deployment": False, "wait_for_store": True, **loaded.worker_options, **options}
    )
    has_started = False

    async def limit_exit() -> None:
        await stop.wait()
        if exit_limit is not None:
            drain = worker.drain.total_seconds() if has_started else 0.0
            exit_limit.set(drain + CANCEL_SECONDS + CLOSE_SECONDS)

    install_signal_handlers(stop, quiet=on_serving is not None)
    async with AsyncExitStack() as stack:
        stack.callback(asyncio.create_task(limit_exit()).cancel)
        folder = agents and worker.folder(agents, toolsets=loaded.toolsets, say=print_line)
        async with ended_by(stop):
            await stack.enter_async_context(worker)
            has_started = True
        if not has_started:
            return
        if on_serving is not None:
            on_serving()
        else:
            print_line(_format_serving_line(client, worker))
            reporting = asyncio.create_task(_print_start_report(worker))
            stack.callback(reporting.cancel)
        if folder:
            await stack.enter_async_context(folder)
        await stop.wait()
    if exit_limit is not None:
        exit_limit.set(CLOSE_SECONDS)


async def _print_start_report(worker: Worker) -> None:
    """Print what the worker serves, a line each; what is missing to stderr."""
    if worker.health_address is not None:
        print_line(f"health: http://{worker.health_address}/healthz and /readyz")
    for finding in await worker.report_start():
        if finding.status == "ok":
            print_line(f"{finding.check}: {finding.detail}")
        else:
            hint = f" → {finding.hint}" if finding.hint else ""
            print_line(f"warning: {finding.check}: {finding.detail}{hint}", error=True)


def _format_serving_line(client: Client, worker: Worker) -> str:
    from .. import _config as config

    names = ", ".join(sorted(agent.name for agent in worker.agents)) or "no agents yet"
    store = mask_password(client.store_url or config.get_home_store_url())
    namespace = client.temporal.namespace
    place = get_server_address(client) + ("" if namespace == "default" else f", namespace {namespace}")
    version = worker.deployment_version
    version_text = "" if version is None else f", as version {version.to_canonical_string()}"
    return f"serving {names} on queue {worker.task_queue} of {place}, store {store}{version_text}"


def end_at_sigterm() -> None:
    """Until the worker handles SIGTERM, end the process at once with it. Process 1, as in a container, would ignore it,
    and serve until it is killed. Only a main thread may set a handler; a command in another leaves SIGTERM as it is."""

    def end(number: int, _: object) -> None:
        os._exit(128 + number)

    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, end)


def install_signal_handlers(stop: asyncio.Event, *, quiet: bool) -> None:
    """The first signal drains; the second ends the process at once, and its runs go on with the next worker."""

    def handle_signal(number: signal.Signals) -> None:
        again = stop.is_set()
        if not quiet:
            first_text = f"{number.name}: finishing what runs; once more ends at once"
            print_line("ended at once; the runs go on with the next worker" if again else first_text, error=True)
        if again:
            os._exit(128 + number)
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, handle_signal, number)
