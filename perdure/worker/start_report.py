"""What a worker says at its start: what it serves, with which versions, and what is missing for the runs of its queue.

All of it is bounded: the store is asked for the newest open runs and the oldest waits, Temporal for a few runs by id.
"""

from __future__ import annotations

import asyncio
import platform
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable
from importlib import metadata
from itertools import chain

from temporalio.api.deployment.v1 import RoutingConfig
from temporalio.api.workflowservice.v1 import DescribeWorkerDeploymentRequest, GetSystemInfoRequest
from temporalio.client import Client as TemporalClient
from temporalio.client import WorkflowExecutionStatus
from temporalio.common import WorkerDeploymentVersion
from temporalio.service import RPCError, RPCStatusCode

from ..agent.spec import AgentSpec
from ..calls.agents import Agents
from ..embedded.diagnosis import Finding, check_search_attributes
from ..errors import PerdureError
from ..ports.store import RunRow, Store
from ..ports.test_seams import find_fake_model
from ..ports.waits import WaitRow
from ..providers.registry import get_provider
from ..store.status import read_store_status
from ..tools import format_error
from .engine import Engine

REPORT_TIMEOUT = 10.0
"""Seconds that each check may take; a worker serves meanwhile."""
_USED_STATES = ("current", "to be contracted", "newer")
"""States of a store in which this version has nothing to do; the last two are those of a rolling deploy."""
_MAX_ROWS = 500
"""Newest open runs of each status, and oldest waits, that are read."""
_OPEN_STATUSES = ("running", "idle", "paused")
_MAX_RUNS_ASKED = 5
"""Runs of an agent, or of a tool, for which Temporal is asked whether they are open, and on which queue."""
_MAX_FINDINGS = 10
_MAX_NAMES = 50


async def report_start(
    temporal: TemporalClient,
    task_queue: str,
    engine: Engine,
    store_url: str,
    *,
    version: WorkerDeploymentVersion | None = None,
) -> list[Finding]:
    """Return what the worker, of that version of a deployment, serves, and a warning for each thing that is missing.
    Raises no error of Temporal or the store: what cannot be checked is a warning."""
    agents = engine.agents
    checks: list[tuple[str, Callable[[], Awaitable[list[Finding]]]]] = [
        ("versions", lambda: _report_versions(temporal, store_url)),
        ("deployment", lambda: _report_deployment(temporal, version)),
        ("search attrs", lambda: _report_search_attributes(temporal, engine)),
        ("open runs", lambda: _report_open_runs(temporal, task_queue, agents, engine.store)),
        ("models", lambda: _report_models(agents)),
    ]
    reported = await asyncio.gather(*(_run_check(name, check) for name, check in checks))
    return [_report_agents(agents), *chain(*reported)]


async def _run_check(name: str, check: Callable[[], Awaitable[list[Finding]]]) -> list[Finding]:
    try:
        async with asyncio.timeout(REPORT_TIMEOUT):
            return await check()
    except TimeoutError:
        return [Finding(name, "warn", f"not checked: no answer within {REPORT_TIMEOUT:g} s")]
    except PerdureError as error:
        return [Finding(name, "warn", f"not checked: {error.message}", error.hint)]
    except RPCError as error:
        return [Finding(name, "warn", f"not checked: {error.message}")]
    except Exception as error:  # of a provider of the author's, for instance; the other checks are reported
        return [Finding(name, "warn", f"not checked: {format_error(error)}")]


def _report_agents(agents: Agents) -> Finding:
    described = [_describe_agent(agent) for agent in sorted(agents, key=lambda agent: agent.name)]
    others = f", and {len(described) - _MAX_NAMES} more" if len(described) > _MAX_NAMES else ""
    return Finding("agents", "ok", ", ".join(described[:_MAX_NAMES]) + others or "none yet")


def _describe_agent(agent: AgentSpec) -> str:
    counts = [(len(list(agent.toolbox)), "tool"), (len(agent.toolsets), "toolset")]
    parts = [f"{count} {noun}{'' if count == 1 else 's'}" for count, noun in counts if count]
    return f"{agent.name} ({', '.join(parts) or 'no tools'})"


async def _report_versions(temporal: TemporalClient, store_url: str) -> list[Finding]:
    try:
        perdure = metadata.version("perdure")
    except metadata.PackageNotFoundError:  # run from its source
        perdure = "from source"
    info = await temporal.workflow_service.get_system_info(GetSystemInfoRequest())
    temporal_version = f"Temporal server {info.server_version or 'of unknown version'}"
    versions = f"perdure {perdure}, Python {platform.python_version()}, {temporal_version}"
    status = await read_store_status(store_url, counts=False)
    findings = [Finding("versions", "ok", f"{versions}, store schema {status.schema} ({status.server})")]
    if status.state not in _USED_STATES:
        hint = "`perdure store status` says more; `perdure store migrate` brings it up to date."
        findings.append(Finding("store schema", "warn", f"version {status.schema}: {status.state}", hint))
    return findings


async def _report_deployment(temporal: TemporalClient, version: WorkerDeploymentVersion | None) -> list[Finding]:
    """Whether Temporal routes runs to the version of this worker."""
    if version is None:
        return []
    name, build_id = version.deployment_name, version.build_id
    request = DescribeWorkerDeploymentRequest(namespace=temporal.namespace, deployment_name=name)
    routing = RoutingConfig()
    try:
        described = await temporal.workflow_service.describe_worker_deployment(request)
        routing = described.worker_deployment_info.routing_config
    except RPCError as error:
        if error.status != RPCStatusCode.NOT_FOUND:  # so it is before its first worker has polled
            raise
    if routing.current_deployment_version.build_id == build_id:
        return [Finding("deployment", "ok", f"{build_id} is the current version of {name}")]
    if routing.ramping_deployment_version.build_id == build_id and routing.ramping_version_percentage > 0:
        share = f"{routing.ramping_version_percentage:g} %"
        return [
            Finding("deployment", "ok", f"{build_id} is the ramping version of {name}: {share} of what is not pinned")
        ]
    command = f"`temporal worker deployment set-current-version --deployment-name {name} --build-id {build_id}`"
    detail = f"{build_id} is neither the current nor the ramping version of {name}: only runs pinned to it reach it"
    return [Finding("deployment", "warn", detail, f"{command}, or set-ramping-version, sends it runs.")]


async def _report_search_attributes(temporal: TemporalClient, engine: Engine) -> list[Finding]:
    finding = await check_search_attributes(temporal)
    engine.search_attributes.mark_reported(temporal.namespace, finding.detail)
    return [] if finding.status == "ok" else [finding]


# ---
# Models whose provider cannot be called: no key, no SDK.


async def _report_models(agents: Iterable[AgentSpec]) -> list[Finding]:
    problems: dict[tuple[str, str | None], list[str]] = defaultdict(list)
    for agent in agents:
        for model in agent.chain:
            try:
                provider = find_fake_model(agent.name, str(model), model.own) or model.own
                check_key = getattr(provider or get_provider(model.provider), "check_key", None)
                if check_key is not None:
                    check_key()
            except PerdureError as error:
                problems[f"{model}: {error.message}", error.hint].append(agent.name)
    return [
        Finding("models", "warn", f"{problem} (agents: {', '.join(sorted(set(names))[:_MAX_NAMES])})", hint)
        for (problem, hint), names in list(problems.items())[:_MAX_FINDINGS]
    ]


# ---
# Open runs of the task queue whose agent is not served here, or whose agent no longer has a tool that waits.


async def _report_open_runs(temporal: TemporalClient, task_queue: str, agents: Agents, store: Store) -> list[Finding]:
    pages = [await store.list_runs(status=status, limit=_MAX_ROWS) for status in _OPEN_STATUSES]
    waits = await store.list_waits(limit=_MAX_ROWS)
    findings = []
    for agent, ids in _group_unserved(agents, chain(*pages), waits).items():
        if (run_id := await _find_open_run(temporal, task_queue, ids)) is not None:
            findings.append(
                Finding(
                    "open runs",
                    "warn",
                    f"run {run_id} of queue {task_queue} is open, and its agent {agent} is not served here",
                    "Serve it by a worker of this queue: a run whose agent no worker has fails after a minute.",
                )
            )
    for (agent, tool), ids in _group_missing_tools(agents, waits).items():
        if (run_id := await _find_open_run(temporal, task_queue, ids)) is not None:
            findings.append(
                Finding(
                    "open runs",
                    "warn",
                    f"run {run_id} waits in a call of tool {tool}, which agent {agent} no longer has",
                    "Keep the tool until no run waits for it: afterwards the model is told that it does not exist.",
                )
            )
    return findings


def _group_unserved(agents: Agents, runs: Iterable[RunRow], waits: Iterable[WaitRow]) -> dict[str, list[str]]:
    """Return ids of runs by the names of agents that are not served here."""
    pairs = chain(((row.agent, row.context_id) for row in waits), ((row.agent, row.context_id) for row in runs))
    ids: dict[str, list[str]] = defaultdict(list)
    for agent, context_id in pairs:
        if agents.find(agent) is None:
            ids[agent].append(context_id)
    return dict(list(ids.items())[:_MAX_FINDINGS])


def _group_missing_tools(agents: Agents, waits: Iterable[WaitRow]) -> dict[tuple[str, str], list[str]]:
    """Return ids of runs by agent and tool of a call that waits. An agent with toolsets finds its tools later, and
    one with client tools gets some from clients."""
    ids: dict[tuple[str, str], list[str]] = defaultdict(list)
    for row in waits:
        agent = agents.find(row.agent)
        if agent is None or agent.toolsets or agent.client_tools:
            continue
        if agents.find_tool(row.agent, row.tool) is None:
            ids[row.agent, row.tool].append(row.context_id)
    return dict(list(ids.items())[:_MAX_FINDINGS])


async def _find_open_run(temporal: TemporalClient, task_queue: str, ids: Iterable[str]) -> str | None:
    """Return the first of a few runs that Temporal has open on the task queue: the store does not know of queues, nor
    of a run that was terminated without a worker."""
    for run_id in list(dict.fromkeys(ids))[:_MAX_RUNS_ASKED]:
        try:
            described = await temporal.get_workflow_handle(run_id).describe()
        except RPCError:  # of another namespace, or deleted
            continue
        if described.status is WorkflowExecutionStatus.RUNNING and described.task_queue == task_queue:
            return run_id
    return None
