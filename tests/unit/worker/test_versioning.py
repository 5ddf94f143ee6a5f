"""Which version of a deployment a worker is, and when a run is pinned to it."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from temporalio.common import VersioningBehavior, WorkerDeploymentVersion
from temporalio.worker import WorkerConfig, WorkerDeploymentConfig
from temporalio.workflow import _Definition

from perdure import Agent, PerdurePlugin, load_agent
from perdure.agent.definition import describe_agent
from perdure.calls.agents import Agents
from perdure.cli.worker import read_version
from perdure.errors import DefinitionError, RuntimeSetupError
from perdure.loop.lifecycle import create_run_state, pause_run, request_pause
from perdure.types.state import RunState
from perdure.worker.versioning import build_behavior_choice, resolve_version
from tests.unit.worker.test_plugin import PLAIN

NAME, OTHER_NAME, BUILD_ID = "TEMPORAL_DEPLOYMENT_NAME", "TEMPORAL_WORKER_DEPLOYMENT_NAME", "TEMPORAL_WORKER_BUILD_ID"
SHOP = WorkerDeploymentVersion("shop", "v1.2")
AUTO_UPGRADE, PINNED = VersioningBehavior.AUTO_UPGRADE, VersioningBehavior.PINNED


@pytest.fixture(autouse=True)
def _no_deployment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (NAME, OTHER_NAME, BUILD_ID):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    ("given", "environment", "version"),
    [
        (None, {}, None),
        (None, {NAME: "shop", BUILD_ID: "v1.2"}, SHOP),
        (None, {OTHER_NAME: "shop", BUILD_ID: "v1.2"}, SHOP),
        (None, {NAME: "shop", OTHER_NAME: "shop", BUILD_ID: "v1.2"}, SHOP),
        (None, {NAME: "", BUILD_ID: ""}, None),
        (False, {NAME: "shop", BUILD_ID: "v1.2"}, None),
        (False, {NAME: "shop"}, None),
        ("shop.v1.2", {NAME: "other", BUILD_ID: "v9"}, SHOP),
        (SHOP, {}, SHOP),
    ],
)
def test_the_version_of_a_worker(
    given: Any, environment: dict[str, str], version: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert resolve_version(given) == version


@pytest.mark.parametrize(
    ("given", "environment", "problem"),
    [
        (None, {NAME: "shop"}, r"a deployment \(shop\) and no build id"),
        (None, {OTHER_NAME: "shop"}, r"a deployment \(shop\) and no build id"),
        (None, {BUILD_ID: "v1"}, r"a build id \(v1\) and no deployment"),
        (None, {NAME: "shop", OTHER_NAME: "store", BUILD_ID: "v1"}, f"{NAME} is 'shop' and {OTHER_NAME} is 'store'"),
        (None, {NAME: "shop.eu", BUILD_ID: "v1"}, r"'shop\.eu' has a '\.'"),
        (None, {NAME: "__shop", BUILD_ID: "v1"}, "Temporal reserves"),
        (None, {NAME: "shop:eu", BUILD_ID: "v1"}, "'shop:eu' has a ':'"),
        ("shop:v1.2", {}, "'shop:v1' has a ':'"),
        ("shop.__v1", {}, "the build id '__v1' begins with '__', which Temporal reserves"),
        ("shop", {}, "NAME.BUILD_ID"),
        ("shop.", {}, "NAME.BUILD_ID"),
        (WorkerDeploymentVersion("a.b", "c"), {}, r"'a\.b' has a '\.'"),
        (WorkerDeploymentVersion("a", ""), {}, "the name of a deployment and a build id"),
        (3, {}, "must be a WorkerDeploymentVersion or a text, not 3"),
        (True, {}, "must be a WorkerDeploymentVersion or a text, not True"),
    ],
)
def test_a_version_that_is_none(
    given: Any, environment: dict[str, str], problem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(RuntimeSetupError, match=problem) as refused:
        resolve_version(given)
    assert refused.value.hint


def test_the_options_of_the_command_come_before_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    assert read_version(None, None) is False
    assert read_version("shop", "v1.2") == SHOP
    with pytest.raises(RuntimeSetupError, match=r"a deployment \(shop\) and no build id"):
        read_version("shop", None)
    monkeypatch.setenv(BUILD_ID, "v1.2")
    assert read_version("shop", None) == SHOP
    monkeypatch.setenv(NAME, "other")
    monkeypatch.setenv(OTHER_NAME, "another")
    assert read_version("shop", None) == SHOP


def an_agent(name: str = "careful", **options: Any) -> Agent:
    return Agent(name, "openai:gpt-5", **options)


def test_an_agent_is_pinned_by_its_definition_or_its_file() -> None:
    assert an_agent().versioning == "auto_upgrade"
    pinned = an_agent(versioning="pinned")
    assert pinned.overridden({"max_iterations": 3}).versioning == "pinned"
    assert describe_agent(pinned)["versioning"] == "pinned"
    assert "versioning" not in describe_agent(an_agent())
    assert load_agent({"name": "a", "model": "openai:gpt-5", "versioning": "pinned"}).versioning == "pinned"
    with pytest.raises(DefinitionError, match="versioning is 'upgrade', it can be auto_upgrade, pinned"):
        an_agent(versioning="upgrade")


def a_state(**start: Any) -> RunState:
    return create_run_state({"agent": "careful", "mode": "session", **start}, "run-1", "scope-1", "parent-1")


def a_subagent(agent: str, *above: str, background: bool = False, parent_id: str = "parent-1") -> dict[str, Any]:
    steps = [{"agent": name, "call_id": "c"} for name in (*above[1:], agent)]
    return {
        "agent": agent,
        "message": "Go.",
        "parent": {
            "context_id": parent_id,
            "call_id": "c",
            "scope": "s",
            "depth": len(above),
            "background": background,
            "lineage": {"root": "r", "agent": above[0], "path": steps},
        },
    }


def a_fault() -> RunState:
    state = a_state(message="Go.")
    pause_run(state, "the outcome of a model call failed", "2026-11-23T19:00:00+00:00", fault=True)
    return state


def paused_with_a_message(*, replied: bool = False) -> RunState:
    """A session that an operator has paused; the message has come since, or its turn has had a reply."""
    state = a_state(message="Go.")
    request_pause(state, None, datetime.now(UTC))
    assert state.requested_pause is not None
    assert state.turn is not None
    state.requested_pause.recorded = True
    state.turn.iteration = int(replied)
    return state


@pytest.mark.parametrize(
    ("state", "behavior"),
    [
        (a_state(message="Go."), PINNED),
        (a_state(), AUTO_UPGRADE),
        (a_state(agent="plain", message="Go."), AUTO_UPGRADE),
        (a_state(agent="unknown", message="Go."), AUTO_UPGRADE),
        (a_state(**a_subagent("plain", "careful")), PINNED),
        (a_state(**a_subagent("plain", "careful", "plain")), PINNED),
        (a_state(**a_subagent("plain", "plain")), AUTO_UPGRADE),
        (a_state(**a_subagent("plain", "careful", background=True)), AUTO_UPGRADE),
        (a_state(**a_subagent("careful", "plain", background=True)), PINNED),
        (a_state(**a_subagent("plain", "careful", parent_id="not-its-parent")), AUTO_UPGRADE),
        (a_fault(), AUTO_UPGRADE),
        (paused_with_a_message(), AUTO_UPGRADE),
        (paused_with_a_message(replied=True), PINNED),
    ],
)
def test_when_a_run_is_pinned(state: RunState, behavior: VersioningBehavior) -> None:
    choose = build_behavior_choice(Agents([an_agent(versioning="pinned"), an_agent("plain")]))
    assert choose(state) == behavior


@pytest.mark.parametrize("default", [VersioningBehavior.UNSPECIFIED, PINNED, AUTO_UPGRADE])
def test_the_workflow_has_a_behavior_only_where_a_worker_has_a_version(
    default: VersioningBehavior, tmp_path: Path
) -> None:
    plugin = PerdurePlugin([an_agent()], store_url=f"sqlite:///{tmp_path}/store.db")

    def behaviors(**options: Any) -> list[Any]:
        config = plugin.configure_worker(WorkerConfig(client=PLAIN, task_queue="q", **options))
        return [_Definition.must_from_class(one).versioning_behavior for one in config.get("workflows", ())]

    versioned = WorkerDeploymentConfig(SHOP, use_worker_versioning=True, default_versioning_behavior=default)
    assert behaviors(deployment_config=versioned) == [AUTO_UPGRADE] * 3
    # Temporal refuses the tasks of a worker that says a behaviour without a version.
    assert behaviors() == behaviors(deployment_config=WorkerDeploymentConfig(SHOP, use_worker_versioning=False))
    assert not any(behaviors())
