"""``PerdurePlugin``: adds the engine to any Temporal client and worker.

Also ``TaskBoundRunner``, the workflow runner that refuses queries which would make a history impossible to replay.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import sys
import sysconfig
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from temporalio.bridge.proto.workflow_activation import WorkflowActivation
from temporalio.bridge.proto.workflow_completion import WorkflowActivationCompletion
from temporalio.plugin import SimplePlugin
from temporalio.worker import (
    UnsandboxedWorkflowRunner,
    WorkerConfig,
    WorkflowInstance,
    WorkflowInstanceDetails,
    WorkflowRunner,
)
from temporalio.worker import Worker as TemporalWorker
from temporalio.worker.workflow_sandbox import SandboxedWorkflowRunner

from .. import _config as config
from ..agent.spec import AgentSpec
from ..context.auth import AuthFunction
from ..errors import DefinitionError, ThreadsLostError
from ..hooks import Hook, HookSet
from ..ports.store import Store
from ..store.cache import CACHE_BYTES
from ..tools import Tool
from ..types.limits import HEARTBEAT_SECONDS, RateLimit
from ..types.state import RunState
from ..workflows import (
    AgentWorkflow,
    BulkActionWorkflow,
    VersionedAgentWorkflow,
    VersionedBulkActionWorkflow,
    VersionedWebhookWorkflow,
    WebhookWorkflow,
)
from ..workflows.host import HEARTBEAT_SETTING, OBSERVE_STATE
from .bulk_actions import BulkActivity
from .engine import MAX_CACHED_RUNS, Engine, Lifespan
from .health import WorkflowTasks
from .versioning import ChooseBehavior, build_behavior_choice

# ---
# The workflow runner: runs workflow code only up to the last started workflow task, also for queries.
#
# The plugin sets it in any Temporal worker; it depends on nothing else in this package.


_PASSIVE_JOBS = ("query_workflow", "remove_from_cache")
"""Jobs of an activation that run no workflow code except a query's handler."""


class TaskBoundRunner(UnsandboxedWorkflowRunner):
    """Fails an activation for a query where it would lead to a history that cannot be replayed.

    A query of a run that is not in the worker's cache comes with the history up to its last event. The SDK (1.35)
    applies events to the workflow for which no workflow task has started yet, and keeps the result in its cache. An
    update in the next task then finds them applied; in replay, where updates come first in a task, it does not:
    TMPRL1100, and the run is stuck permanently. When this fails the activation, the query is refused, the run leaves
    the cache, and its next task loads it from history alone. docs/decisions/025-queries.md.

    With ``choose_behavior``, it also says with each completed workflow task of a run whether the run is pinned to this
    version of the worker. Workflows get the setting ``heartbeat`` from it.
    """

    def __init__(
        self,
        tasks: WorkflowTasks | None = None,
        choose_behavior: ChooseBehavior | None = None,
        heartbeat: float = HEARTBEAT_SECONDS,
    ) -> None:
        """``tasks`` is told which workflow tasks fail."""
        super().__init__()
        self._tasks = tasks or WorkflowTasks()
        self._choose_behavior = choose_behavior
        self._settings = {HEARTBEAT_SETTING: lambda: heartbeat}

    def create_instance(self, det: WorkflowInstanceDetails) -> WorkflowInstance:
        """See base class."""
        states: list[RunState] = []  # of the run, once its input is read; stays empty for workflows of the author
        extern_functions: dict[str, Callable[..., Any]] = {**det.extern_functions, **self._settings}
        if (choose := self._choose_behavior) is not None:
            extern_functions[OBSERVE_STATE] = states.append
        det = replace(det, extern_functions=extern_functions)
        instance = super().create_instance(det)
        activate = instance.activate
        last = WorkflowActivation()
        observe = self._tasks.follow_run(det.info.workflow_id)

        def activate_of_task(act: WorkflowActivation) -> WorkflowActivationCompletion:
            observe(act)
            if any(job.WhichOneof("variant") not in _PASSIVE_JOBS for job in act.jobs):
                # Same time and size as at the last started task, yet further events: no other task has started.
                # The time alone is not enough: it does not change while the server's clock is set back.
                same_task = act.timestamp == last.timestamp and act.history_size_bytes == last.history_size_bytes
                if act.history_length > last.history_length and same_task:
                    observe(None)
                    failed = WorkflowActivationCompletion()
                    failed.failed.failure.message = (
                        "the run has events that no workflow task has processed yet: retry the query"
                    )
                    return failed
                last.history_length = act.history_length
                last.history_size_bytes = act.history_size_bytes
                last.timestamp.CopyFrom(act.timestamp)
            completion = activate(act)
            if choose is not None and states and completion.HasField("successful"):
                completion.successful.versioning_behavior = choose(states[-1]).value
            return completion

        instance.activate = activate_of_task  # type: ignore[method-assign]  # the SDK's own class is private
        return instance


logger = logging.getLogger("perdure.worker")

HEARTBEAT_THROTTLE = timedelta(milliseconds=500)
"""Shortest time between two heartbeats of an activity: a cancellation arrives with the answer to one, also to one that
a nudge has asked for."""
MIN_CACHED_RUNS = 50
"""Runs whose transcripts the worker keeps, also with fewer cached workflows: calls of so many may be under way."""
STICKY_QUEUE_TIMEOUT = timedelta(seconds=2)
"""How long a workflow task waits for the worker that has the run cached, before another may take it."""
DRAIN_MARGIN = timedelta(seconds=30)
"""How long a worker waits for its activities beyond the longest tool timeout, before it cancels them."""


_VERSIONED: dict[type, type] = {
    AgentWorkflow: VersionedAgentWorkflow,
    WebhookWorkflow: VersionedWebhookWorkflow,
    BulkActionWorkflow: VersionedBulkActionWorkflow,
}
"""The workflows of workers that are versions of a deployment."""


class PerdurePlugin(SimplePlugin):
    """``Worker(client, task_queue=…, plugins=[PerdurePlugin(agents=[support])])``.

    Adds ``AgentWorkflow``, the activities of runs and their tools, and the stages around them. Unless the
    worker sets them, sets the timeouts by which a lost worker is detected within seconds. ``lifespan``, ``stream``,
    ``provider_limits``, ``hooks``, ``tools``, ``resolve_auth``, ``cache``, ``webhooks`` and ``heartbeat``: see
    ``Worker``. Its ``calls_per_second`` is here ``max_task_queue_activities_per_second``, its ``deployment`` the
    worker's ``deployment_config``.
    """

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
        heartbeat: float | None = None,
    ) -> None:
        self.heartbeat = config.resolve_heartbeat(heartbeat)
        """Seconds between two heartbeats."""
        self.engine = Engine(
            agents,
            store_url=store_url,
            store=store,
            lifespan=lifespan,
            stream=stream,
            provider_limits=provider_limits,
            hooks=hooks,
            tools=tools,
            resolve_auth=resolve_auth,
            cache=cache,
            webhooks=webhooks,
        )
        self.workflow_tasks = WorkflowTasks()
        """The workflow tasks that fail."""
        super().__init__(
            "perdure.PerdurePlugin",
            workflows=[AgentWorkflow, WebhookWorkflow, BulkActionWorkflow],
            activities=[*self.engine.activities, self.engine.webhook.deliver, BulkActivity(self.engine.store).act],
            interceptors=[self.engine.interceptor],
            workflow_runner=_pass_perdure_through,
        )

    def configure_worker(self, config: WorkerConfig) -> WorkerConfig:
        """See base class. Raises ``DefinitionError`` for a worker that has a dynamic activity of its own."""
        _check_no_dynamic_activity(config.get("activities") or ())
        config = super().configure_worker(config)
        for name, sdk_default, ours in (
            ("max_heartbeat_throttle_interval", timedelta(seconds=60), HEARTBEAT_THROTTLE),
            ("default_heartbeat_throttle_interval", timedelta(seconds=30), HEARTBEAT_THROTTLE),
            ("sticky_queue_schedule_to_start_timeout", timedelta(seconds=10), STICKY_QUEUE_TIMEOUT),
            ("graceful_shutdown_timeout", timedelta(), self.drain_time()),
        ):
            # The SDK fills its defaults in before plugins see them, so a default cannot be told from a choice of it.
            if config.get(name) in (None, sdk_default):
                config[name] = ours  # type: ignore[literal-required]  # the names above are keys of the TypedDict
        self.engine.max_cached_runs = max(config.get("max_cached_workflows", MAX_CACHED_RUNS), MIN_CACHED_RUNS)
        if not config.get("use_worker_versioning") and config.get("deployment_config") is None:
            # The SDK's default hashes the bytecode of all loaded modules, which takes 0.2 s of CPU, and a second
            # where Python keeps no bytecode.
            config["build_id"] = config.get("build_id") or get_build_id()
        deployment = config.get("deployment_config")
        is_versioned = deployment is not None and deployment.use_worker_versioning
        if is_versioned:
            workflows = config.get("workflows") or ()
            config["workflows"] = [_VERSIONED.get(one, one) for one in workflows]
        if type(config.get("unsandboxed_workflow_runner")) in (type(None), UnsandboxedWorkflowRunner):
            choose = build_behavior_choice(self.engine.agents) if is_versioned else None
            config["unsandboxed_workflow_runner"] = TaskBoundRunner(self.workflow_tasks, choose, self.heartbeat)
        return config

    async def run_worker(self, worker: TemporalWorker, next: Callable[[TemporalWorker], Awaitable[None]]) -> None:
        """See base class. Raises ``ThreadsLostError`` if the worker had to stop because its threads are lost, after
        draining."""

        async def serve() -> None:
            loop, lost = asyncio.get_running_loop(), self.engine.author.fatal_reason
            stopping: list[asyncio.Task[None]] = []

            def stop() -> None:
                logger.critical(
                    "the worker stops, because it has lost threads: %s. Restart its process.", lost.result()
                )
                stopping.append(asyncio.ensure_future(worker.shutdown()))

            lost.add_done_callback(lambda _: loop.call_soon_threadsafe(stop))
            await next(worker)
            if stopping:
                raise ThreadsLostError(
                    f"the worker has stopped, because it had lost threads: {lost.result()}",
                    hint="Restart its process: only its end frees them. Give blocking calls in tools a timeout.",
                )

        async with self.engine.serve(worker.client, worker.task_queue):
            await serve()

    def drain_time(self) -> timedelta:
        """Return the longest timeout of a tool, plus ``DRAIN_MARGIN``."""
        boxes = [self.engine.agents.tools, *(agent.toolbox for agent in self.engine.agents)]
        longest = max((tool.timeout for tools in boxes for tool in tools), default=0.0)
        return timedelta(seconds=longest) + DRAIN_MARGIN


def _pass_perdure_through(runner: WorkflowRunner | None) -> WorkflowRunner:
    """Let a sandbox use the loaded perdure: one that it imports anew replaces modules of the loaded one by its own."""
    runner = runner or SandboxedWorkflowRunner()
    if isinstance(runner, SandboxedWorkflowRunner):
        return replace(runner, restrictions=runner.restrictions.with_passthrough_modules("perdure"))
    return runner


@cache
def get_build_id() -> str:
    """Return the build id of workers that are not versioned: it changes with the loaded code.

    Temporal records it in the histories of their runs, and can reset runs to the point before a build. Of installed
    packages it has the sizes of the modules, of other code (the program's) the text.
    """
    installed = tuple(sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib"))
    digest = hashlib.sha256()
    for name, module in sorted(sys.modules.items()):
        with suppress(Exception):  # in an archive, gone since it was loaded, or not a module at all
            file = vars(module)["__file__"]
            if file.startswith(installed):
                size = os.stat(file).st_size  # noqa: PTH116  # of thousands of modules: a Path for each doubles the time
                digest.update(name.encode() + str(size).encode())
            else:
                digest.update(name.encode() + Path(file).read_bytes())
    return f"perdure-{_get_version()}-{digest.hexdigest()[:12]}"


def _get_version() -> str:
    try:
        return version("perdure")
    except PackageNotFoundError:  # not installed: run from its source
        return "source"


def _check_no_dynamic_activity(activities: Iterable[Callable[..., Any]]) -> None:
    """Raise ``DefinitionError`` for a dynamic activity: a worker can have one, and agents' tools need it, each an
    activity named after its tool."""
    for fn in activities:
        definition = getattr(fn, "__temporal_activity_definition", None)
        if definition is not None and definition.name is None:
            name = getattr(fn, "__qualname__", repr(fn))
            raise DefinitionError(
                f"this worker has a dynamic activity of its own, {name}; PerdurePlugin adds one for agents' tools",
                hint="Temporal allows one. Give your activities static names, or the agents a worker of their own.",
            )
