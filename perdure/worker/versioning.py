"""Worker Deployment Versioning: the version of a worker, and whether a run stays on it.

A run is asked after each of its workflow tasks, so it may be pinned in a turn and upgrade between two. The server
routes by what the last completed task said; it is not a command, and history replays without it.
docs/decisions/040-worker-versioning.md.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Literal

from temporalio.common import VersioningBehavior, WorkerDeploymentVersion
from temporalio.worker import WorkerDeploymentConfig

from .. import _config as config
from ..calls.agents import Agents
from ..errors import RuntimeSetupError
from ..loop.decide import is_turn_in_progress
from ..types.state import RunState

Deployment = WorkerDeploymentVersion | str | Literal[False]
"""``WorkerDeploymentVersion(deployment_name, build_id)`` or ``"NAME.BUILD_ID"``; False for no version."""

logger = logging.getLogger("perdure.worker")


def resolve_version(deployment: Deployment | None) -> WorkerDeploymentVersion | None:
    """Return the version that ``deployment`` names, by default the environment; None for a worker without one.

    Raises ``RuntimeSetupError``.
    """
    if deployment is False:
        return None
    if deployment is None:
        found = config.resolve_deployment()
        if found is None:
            return None
        version = WorkerDeploymentVersion(*found)
    elif isinstance(deployment, str):
        name, dot, build_id = deployment.partition(".")
        if not (name and dot and build_id):
            raise RuntimeSetupError(
                f"deployment must be of the form NAME.BUILD_ID, not {deployment[:80]!r}",
                hint='For instance Worker(…, deployment="shop.2026-11-23-1").',
            )
        version = WorkerDeploymentVersion(name, build_id)
    elif isinstance(deployment, WorkerDeploymentVersion):
        version = deployment
    else:
        raise RuntimeSetupError(
            f"deployment must be a WorkerDeploymentVersion or a text, not {deployment!r:.80}",
            hint='For instance Worker(…, deployment="shop.2026-11-23-1"); leave it out for that of the environment.',
        )
    return _check_version(version)


def _check_version(version: WorkerDeploymentVersion) -> WorkerDeploymentVersion:
    name, build_id = version.deployment_name, version.build_id
    problem = None
    if not (name and build_id and isinstance(name, str) and isinstance(build_id, str)):
        problem = f"a version has the name of a deployment and a build id, not {name!r:.80} and {build_id!r:.80}"
    elif separator := next((one for one in ".:" if one in name), None):
        problem = f"the deployment's name {name[:80]!r} has a {separator!r}, which separates it from the build id"
    elif name.startswith("__"):
        problem = f"the deployment's name {name[:80]!r} begins with '__', which Temporal reserves"
    elif build_id.startswith("__"):
        problem = f"the build id {build_id[:80]!r} begins with '__', which Temporal reserves"
    if problem is not None:
        raise RuntimeSetupError(problem, hint="For instance deployment 'shop', build id '2026-11-23-1'.")
    return version


def build_deployment_config(version: WorkerDeploymentVersion | None) -> WorkerDeploymentConfig | None:
    """Build the setting of Temporal's worker. Workflows that say nothing of versions upgrade at their next task."""
    return (
        None
        if version is None
        else WorkerDeploymentConfig(
            version=version,
            use_worker_versioning=True,
            default_versioning_behavior=VersioningBehavior.AUTO_UPGRADE,
        )
    )


ChooseBehavior = Callable[[RunState], VersioningBehavior]


def build_behavior_choice(agents: Agents) -> ChooseBehavior:
    """Build the function that says, after a workflow task, whether the run with that state is pinned to the version
    that has completed the task."""

    def choose(state: RunState) -> VersioningBehavior:
        try:
            is_pinned = _has_pinned_agent(agents, state) and is_turn_in_progress(state)
        except Exception:  # the decision on the next step fails: the run pauses for an engine that has another version
            logger.exception("whether run %s is pinned cannot be decided", state.context_id)
            is_pinned = False
        return VersioningBehavior.PINNED if is_pinned else VersioningBehavior.AUTO_UPGRADE

    return choose


def _has_pinned_agent(agents: Agents, state: RunState) -> bool:
    """Whether the run's agent is pinned; or one above a subagent, whose turn waits for it."""
    names = [state.agent]
    if state.is_child and state.parent is not None and not state.parent.background:
        names += state.parent.lineage.ancestors
    return any(agent is not None and agent.versioning == "pinned" for agent in map(agents.find, names))
