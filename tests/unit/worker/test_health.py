"""The checks of a worker's health, and what a drain logs."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from temporalio.api.enums.v1 import TaskQueueType
from temporalio.api.taskqueue.v1 import PollerInfo
from temporalio.api.workflowservice.v1 import DescribeTaskQueueResponse
from temporalio.bridge.proto.workflow_activation import RemoveFromCache, WorkflowActivation, WorkflowActivationJob
from temporalio.service import RPCError, RPCStatusCode

from perdure import Agent, Worker, tool
from perdure.calls.agents import Agents
from perdure.errors import RuntimeSetupError, StoreError
from perdure.testing.store import MemoryStore
from perdure.worker import drain as drain_module
from perdure.worker import health as health_module
from perdure.worker.drain import Drain, RunningActivities, RunningActivity
from perdure.worker.health import (
    DEFAULT_HOST,
    MAX_POLL_AGE,
    HealthServer,
    WorkerHealth,
    WorkflowTasks,
    clean_reason,
    parse_health_address,
)
from perdure.worker.worker import _serve_in_block
from tests.support.wait import eventually

SERVER_TIME = datetime(2026, 1, 1, tzinfo=UTC)
"""Far from this machine's: it may not be compared with its clock."""


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("8080", (DEFAULT_HOST, 8080)),
        ("0", (DEFAULT_HOST, 0)),
        ("0.0.0.0:8080", ("0.0.0.0", 8080)),
        ("[::]:80", ("::", 80)),
        ("localhost:1", ("localhost", 1)),
        (" 8080 ", (DEFAULT_HOST, 8080)),
    ],
)
def test_a_health_address_is_a_port_and_perhaps_a_host(text: str, place: tuple[str, int]) -> None:
    assert parse_health_address(text) == place


@pytest.mark.parametrize("text", ["", ":8080", "host:", "65536", "host:port", "::1:80", "-1", "٣", "8080/healthz"])
def test_another_text_is_refused_with_the_way_out(text: str) -> None:
    with pytest.raises(RuntimeSetupError, match="HOST:") as refused:
        parse_health_address(text)
    assert "8080" in str(refused.value.hint)


def test_a_worker_refuses_a_wrong_address_when_it_is_made() -> None:
    client: Any = SimpleNamespace(store_url="sqlite:///unused.db", task_queue=None, temporal=None)
    with pytest.raises(RuntimeSetupError, match="'nonsense' is not of the form"):
        Worker(client, [], health_address="nonsense")


# --- the background checks


class FakeTemporal:
    """A client whose server lists pollers as the test says."""

    identity, namespace = "1@me", "default"
    service_client = SimpleNamespace(config=SimpleNamespace(target_host="temporal:7233"))

    def __init__(self) -> None:
        self.workflow_service = self
        self.pollers = {"1@me": SERVER_TIME, "2@other": SERVER_TIME}
        self.error: RPCError | None = None
        self.requests = 0
        self.activity_polled_at: datetime | None = None
        """When this worker polled for activities, if that is another time than for workflow tasks."""

    async def describe_task_queue(self, request: Any, **_: Any) -> DescribeTaskQueueResponse:
        self.requests += 1
        if self.error is not None:
            raise self.error
        response = DescribeTaskQueueResponse()
        for identity, at in self.pollers.items():
            poller = PollerInfo(identity=identity)
            is_own = request.task_queue_type == TaskQueueType.TASK_QUEUE_TYPE_ACTIVITY and identity == self.identity
            poller.last_access_time.FromDatetime((self.activity_polled_at if is_own else None) or at)
            response.pollers.append(poller)
        return response


class Checked:
    """The health of a worker on a fake service and store."""

    def __init__(self) -> None:
        self.temporal = FakeTemporal()
        self.store = MemoryStore()
        self.tasks = WorkflowTasks()
        self.running = RunningActivities(2, Agents())
        self.drain = Drain(self.running, 5.0)
        self.health = WorkerHealth(self.running, self.tasks, self.drain)

    async def until_checked_again(self) -> None:
        """Until Temporal has been asked twice for both kinds of pollers from now."""
        requests = self.temporal.requests
        await eventually(lambda: self.temporal.requests >= requests + 5)

    def watch(self) -> Any:
        temporal: Any = self.temporal
        return self.health.watch(temporal, "shop", self.store)

    def read(self, check: str) -> tuple[str, str]:
        """State and reason of a check."""
        _, report = self.report()
        found = report["checks"][check]
        return found["state"], found.get("reason", "")

    def report(self, path: str = "/readyz") -> tuple[bool, dict[str, Any]]:
        reported = self.health.report(path)
        assert reported is not None
        return reported

    async def until(self, check: str, state: str) -> str:
        """The reason, once the check has that state."""
        await eventually(lambda: self.read(check)[0] == state, what=f"{check} {state}")
        return self.read(check)[1]


@pytest.fixture
def checked(monkeypatch: pytest.MonkeyPatch) -> Checked:
    for name in ("CHECK_INTERVAL", "FAILED_CHECK_INTERVAL"):
        monkeypatch.setattr(health_module, name, 0.005)
    return Checked()


async def test_a_worker_is_ready_once_it_is_checked(checked: Checked) -> None:
    is_ready, report = checked.report()
    assert (is_ready, report["status"]) == (False, "not ready")
    assert checked.read("store") == ("failing", "not checked yet")
    assert checked.report("/healthz")[0], "a worker that starts is alive"
    async with checked.watch():
        await checked.until("temporal", "ok")
        await checked.until("store", "ok")
        is_ready, report = checked.report()
    assert (is_ready, report["status"]) == (True, "ready")
    assert report["worker"] == {
        "identity": "1@me",
        "task_queue": "shop",
        "namespace": "default",
        "address": "temporal:7233",
    }
    assert report["checks"]["slots"]["max"] == 2
    assert checked.health.report("/other") is None


async def test_a_server_that_does_not_list_the_worker(checked: Checked, monkeypatch: pytest.MonkeyPatch) -> None:
    checked.temporal.pollers.clear()
    async with checked.watch():
        reason = await eventually(lambda: "list" in checked.read("temporal")[1] and checked.read("temporal")[1])
        assert reason == "Temporal does not list this worker as a poller of workflow tasks"
        checked.temporal.pollers["1@me"] = SERVER_TIME
        await checked.until("temporal", "ok")
        # The same poll for longer than one may take: an entry of the past, which the server keeps for minutes.
        now = health_module.monotonic()
        monkeypatch.setattr(health_module, "monotonic", lambda: now + MAX_POLL_AGE + 60)
        assert "no poll of this worker for workflow tasks for" in await checked.until("temporal", "failing")
        checked.temporal.pollers["1@me"] += timedelta(minutes=1)
        await checked.until("temporal", "ok")


async def test_a_server_that_lists_other_workers_alone(checked: Checked, monkeypatch: pytest.MonkeyPatch) -> None:
    """It lists those of one partition of the queue: of many workers most are on another one for minutes."""
    checked.temporal.pollers = {"2@other": SERVER_TIME}
    async with checked.watch():
        assert "does not list this worker" in await checked.until("temporal", "unknown")
        await checked.until("store", "ok")
        assert checked.report()[0]
        checked.temporal.pollers["1@me"] = SERVER_TIME
        await checked.until("temporal", "ok")
        now = health_module.monotonic()
        monkeypatch.setattr(health_module, "monotonic", lambda: now + MAX_POLL_AGE + 60)
        assert "no poll of this worker for" in await checked.until("temporal", "unknown")
        del checked.temporal.pollers["2@other"]
        await checked.until("temporal", "failing")


async def test_a_worker_whose_slots_are_in_use_polls_later(checked: Checked, monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls may take longer than a poll: the SDK polls for activities only with a free slot."""
    later, real = MAX_POLL_AGE + 60, health_module.monotonic
    del checked.temporal.pollers["2@other"]
    async with checked.watch():
        await checked.until("temporal", "ok")
        checked.temporal.activity_polled_at = SERVER_TIME
        checked.running._running |= {n: RunningActivity("refund", "order-1", real(), "refund") for n in range(2)}
        checked.temporal.pollers["1@me"] += timedelta(minutes=1)
        monkeypatch.setattr(health_module, "monotonic", lambda: real() + later)
        await checked.until_checked_again()
        assert checked.read("temporal") == ("ok", "")
        assert checked.read("slots")[0] == "warning"
        checked.running._running.clear()
        await checked.until_checked_again()
        assert checked.read("temporal") == ("ok", ""), "from the end of a call it has the time of a poll"
        checked.temporal.pollers["1@me"] += timedelta(minutes=1)
        monkeypatch.setattr(health_module, "monotonic", lambda: real() + 2 * later)
        assert "no poll of this worker for activity tasks for" in await checked.until("temporal", "failing")


async def test_a_server_that_does_not_answer(checked: Checked) -> None:
    async with checked.watch():
        await checked.until("temporal", "ok")
        checked.temporal.error = RPCError("gone away", RPCStatusCode.UNAVAILABLE, b"")
        assert await checked.until("temporal", "failing") == "Temporal does not answer: gone away"
        assert checked.report("/healthz")[0], "a restart would not help"
        checked.temporal.error = None
        await checked.until("temporal", "ok")


async def test_a_server_that_does_not_tell_this_client(checked: Checked) -> None:
    checked.temporal.error = RPCError("no", RPCStatusCode.PERMISSION_DENIED, b"")
    async with checked.watch():
        await checked.until("temporal", "unknown")
        await checked.until("store", "ok")
        assert checked.report()[0], "what cannot be known does not count"


async def test_a_store_that_fails_and_comes_back(checked: Checked, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOP_TOKEN", "hunter2-hunter2")

    async def fail(*_: object) -> None:
        raise StoreError("postgresql://me:secret@db/x fails:\n <b>hunter2-hunter2</b>" + "x" * 10_000)

    async with checked.watch():
        await checked.until("store", "ok")
        with monkeypatch.context() as patch:
            patch.setattr(checked.store, "recall", fail)
            reason = await checked.until("store", "failing")
            assert reason.startswith("postgresql://me:***@db/x fails: <b>[redacted]</b>xxx")
            assert len(reason) <= 300
            assert checked.report("/healthz")[0]
        await checked.until("store", "ok")


async def test_a_store_that_hangs_is_read_once(checked: Checked, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health_module, "CHECK_TIMEOUT", 0.01)
    reads, go_on = [], asyncio.Event()

    async def hang(*_: object) -> None:
        reads.append(1)
        await go_on.wait()

    monkeypatch.setattr(checked.store, "recall", hang)
    async with checked.watch():
        assert "no answer within" in await eventually(
            lambda: "no answer" in checked.read("store")[1] and checked.read("store")[1]
        )
        assert len(reads) == 1
        go_on.set()
        await checked.until("store", "ok")


async def test_a_blocked_loop_is_not_alive(checked: Checked, monkeypatch: pytest.MonkeyPatch) -> None:
    checked.health.serving = asyncio.ensure_future(asyncio.Event().wait())  # type: ignore[assignment]  # any task
    async with checked.watch():
        await checked.until("store", "ok")
        assert checked.report("/healthz")[0]
        now = health_module.monotonic()
        monkeypatch.setattr(health_module, "monotonic", lambda: now + 60)
        is_alive, report = checked.report("/healthz")
    assert not is_alive
    assert "event loop has not run for 60 s" in report["checks"]["event_loop"]["reason"]
    checked.health.serving.cancel()


async def test_a_poll_loop_that_has_ended_is_not_alive_but_in_a_drain(checked: Checked) -> None:
    async def end() -> None:
        pass

    checked.health.serving = asyncio.create_task(end())
    await checked.health.serving
    assert not checked.report("/healthz")[0]
    checked.drain.begin()
    assert checked.report("/healthz")[0], "a liveness probe must not cut a drain short"
    is_ready, report = checked.report()
    assert not is_ready
    assert report["checks"]["draining"]["reason"] == "the worker drains, 0 calls in progress"
    checked.drain.end()


# --- workflow tasks


def evict(reason: RemoveFromCache.EvictionReason.ValueType, message: str = "") -> WorkflowActivation:
    job = WorkflowActivationJob(remove_from_cache=RemoveFromCache(reason=reason, message=message))
    return WorkflowActivation(jobs=[job])


def fail_task(tasks: WorkflowTasks, run_id: str, message: str = "[TMPRL1100] no") -> None:
    observe = tasks.follow_run(run_id)
    observe(WorkflowActivation())
    observe(evict(RemoveFromCache.NONDETERMINISM, message))


def test_a_run_that_cannot_be_replayed_is_a_warning(checked: Checked) -> None:
    fail_task(checked.tasks, "order-1")
    fail_task(checked.tasks, "order-1", "[TMPRL1100] again")
    state, reason, facts = checked.tasks.describe()
    assert (state, reason) == ("warning", "1 run of this worker cannot go on; see `last`")
    assert (facts["failures"], facts["failing_runs"]) == (2, 1)
    assert (facts["last"]["run_id"], facts["last"]["reason"]) == ("order-1", "[TMPRL1100] again")


def test_a_report_costs_no_search_for_credentials(checked: Checked, monkeypatch: pytest.MonkeyPatch) -> None:
    """Any client of the network may ask, any number of times."""
    monkeypatch.setenv("SHOP_TOKEN", "hunter2-hunter2")
    fail_task(checked.tasks, "order-1", "no hunter2-hunter2")
    monkeypatch.delattr(health_module, "clean_reason")
    last = checked.report()[1]["checks"]["workflow_tasks"]["last"]
    assert (last["run_id"], last["reason"]) == ("order-1", "no [redacted]")


def test_a_worker_on_which_every_run_fails_is_not_ready(checked: Checked) -> None:
    for n in range(3):
        assert checked.tasks.describe()[0] != "failing"
        fail_task(checked.tasks, f"order-{n}")
    assert checked.tasks.describe()[0] == "failing"
    good = checked.tasks.follow_run("order-9")
    good(WorkflowActivation())
    assert checked.tasks.describe()[0] == "failing", "a task counts when it is known that it has not failed"
    good(WorkflowActivation())
    assert checked.tasks.describe()[0] == "warning"


def test_a_run_that_goes_on_is_no_longer_reported(checked: Checked) -> None:
    fail_task(checked.tasks, "order-1")
    observe = checked.tasks.follow_run("order-1")
    observe(WorkflowActivation())
    observe(evict(RemoveFromCache.CACHE_FULL))
    assert checked.tasks.describe()[0] == "ok"


def test_replay_before_another_failure_is_no_success(checked: Checked) -> None:
    """Each attempt of a task replays those before it."""
    for n in range(3):
        fail_task(checked.tasks, f"order-{n}")
    observe = checked.tasks.follow_run("order-0")
    observe(WorkflowActivation(is_replaying=True))
    observe(WorkflowActivation(is_replaying=True))
    observe(WorkflowActivation())
    assert checked.tasks.describe()[0] == "failing"


def test_a_refused_query_is_no_failure(checked: Checked) -> None:
    observe = checked.tasks.follow_run("order-1")
    observe(WorkflowActivation())
    observe(None)
    observe(evict(RemoveFromCache.LANG_FAIL, "retry the query"))
    assert checked.tasks.describe() == ("ok", None, {"failures": 0, "failing_runs": 0})


def test_failures_of_long_ago_do_not_count_with_one_of_today(checked: Checked, monkeypatch: pytest.MonkeyPatch) -> None:
    for n in range(2):
        fail_task(checked.tasks, f"order-{n}")
    now = health_module.monotonic()
    monkeypatch.setattr(health_module, "monotonic", lambda: now + 3600)
    fail_task(checked.tasks, "order-2")
    assert checked.tasks.describe()[0] == "warning"


def test_failures_of_long_ago_are_forgotten(checked: Checked, monkeypatch: pytest.MonkeyPatch) -> None:
    for n in range(1000):
        fail_task(checked.tasks, f"order-{n}")
    assert checked.tasks.describe()[2]["failing_runs"] == 100
    now = health_module.monotonic()
    monkeypatch.setattr(health_module, "monotonic", lambda: now + 3600)
    assert checked.tasks.describe()[0] == "ok"
    assert checked.tasks.describe()[2]["failures"] == 1000


# --- drains


@tool(timeout=100)
def refund() -> str:
    """Refund."""
    return "done"


class FakeWorker:
    """Stands for the SDK's worker: ``run`` ends ``ends`` seconds after its shutdown, or never."""

    def __init__(self, ends: float | None = None) -> None:
        self.ends = ends
        self.stopping = asyncio.Event()

    async def run(self) -> None:
        await self.stopping.wait()
        await (asyncio.Event().wait() if self.ends is None else asyncio.sleep(self.ends))

    async def shutdown(self) -> None:
        self.stopping.set()
        await asyncio.Event().wait()


async def test_a_drain_ends_whatever_the_sdk_waits_for(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("perdure.worker.worker.CANCEL_SECONDS", 0.02)
    caplog.set_level("INFO", "perdure.worker.drain")
    running = RunningActivities(10, Agents([Agent("support", "openai:gpt-5", tools=[refund])]))
    running._running |= {
        n: RunningActivity("refund", f"order-{n}", drain_module.monotonic() - 40, "refund") for n in range(25)
    }
    drain = Drain(running, 0.02)
    worker: Any = FakeWorker()
    async with _serve_in_block(worker, drain, WorkerHealth(running, WorkflowTasks(), drain)):
        assert not drain.has_begun
    begun, cancelled, left = (record.getMessage() for record in caplog.records)
    assert begun.startswith("draining: 25 calls may end within 0.02 s: refund of run order-0 (at most 60 s more), ")
    assert begun.endswith(", 5 more of refund")
    assert "the drain's 0.02 s are over, and 25 calls are cancelled: refund of run order-0" in cancelled
    assert left.startswith("stopped, and 25 calls did not end: refund of run order-0")


async def test_a_drain_of_an_idle_worker_logs_nothing(caplog: pytest.LogCaptureFixture) -> None:
    running = RunningActivities(10, Agents())
    drain = Drain(running, 0.0)
    worker: Any = FakeWorker(ends=0.0)
    async with _serve_in_block(worker, drain, WorkerHealth(running, WorkflowTasks(), drain)):
        pass
    assert not caplog.records


def test_reasons_are_one_short_line(monkeypatch: pytest.MonkeyPatch) -> None:
    assert clean_reason("a\n\tb \x1b[31m") == "a b \x1b[31m", "JSON escapes the rest"
    assert clean_reason("x" * 1000) == "x" * 299 + "…"
    assert clean_reason("at http://u:p@h/ and sk-abcdefghijk") == "at http://u:***@h/ and [redacted]"


def test_an_endpoint_has_no_address_before_it_listens() -> None:
    assert HealthServer("0", lambda _: None).address == ""
