"""The health of a worker, and the HTTP endpoint that reports it: ``GET /healthz`` and ``GET /readyz``.

``/healthz`` (liveness) is 503 only where a restart helps: the worker's event loop does not run, or its poll loop has
ended. ``/readyz`` (readiness) is 503 while the worker starts or drains, while Temporal does not answer or lists no
poller of its task queue, while the store cannot be read, and where workflow tasks of several runs fail and none
succeeds.

No request causes a check: checks run in the background, and requests read their last result. The endpoint has a thread
and an event loop of its own, so that it also answers when the worker's loop is blocked.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import re
import socket
import threading
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from time import monotonic
from typing import Any, Literal

from temporalio.api.enums.v1 import TaskQueueType
from temporalio.bridge.proto.workflow_activation import RemoveFromCache, WorkflowActivation
from temporalio.client import Client as TemporalClient
from temporalio.service import RPCError

from ..calls.loop_watch import LoopWatch
from ..errors import RuntimeSetupError, StoreError
from ..ports.store import Store
from ..ports.times import format_utc_now
from ..temporal.errors import is_denied
from ..temporal.task_queues import find_pollers
from ..types.redaction import find_credentials, redact_credentials
from .drain import Drain, RunningActivities

logger = logging.getLogger("perdure.worker")

CHECK_INTERVAL = 10.0
"""Seconds between two checks of pollers, and of the store."""
FAILED_CHECK_INTERVAL = 1.0
"""The same, after a check that has failed: a worker that starts is ready within a second."""
CHECK_TIMEOUT = 5.0
"""Seconds that a check may take."""
MAX_POLL_AGE = 120.0
"""Seconds without a new poll of this worker after which its pollers count as gone: a poll lasts a minute."""
MAX_LOOP_DELAY = 30.0
"""Seconds without a turn of the worker's event loop after which it is not alive."""
FAILED_TASK_SECONDS = 900.0
"""Seconds for which a failed workflow task is reported: Temporal repeats one after 10 minutes at the latest."""
MAX_FAILING_RUNS = 3
"""Number of runs whose workflow tasks have failed, without one that has succeeded since, at which a worker is not
ready. A single run that cannot be replayed fails on every worker; more are a fault of this one."""
_MAX_RECORDED_RUNS = 100
_MAX_REASON_CHARS = 300
_BEAT_SECONDS = 1.0
_URL_PASSWORD = re.compile(r"(://[^\s/:@]*):[^\s/@]+@")

CheckState = Literal["ok", "warning", "failing", "unknown"]


@dataclass(frozen=True, slots=True)
class Check:
    """The result of a check. ``since``: when this state began (ISO 8601, UTC, by this machine's clock)."""

    state: CheckState
    since: str
    reason: str | None = None


# ---
# Workflow tasks of this worker that fail: a history that cannot be replayed, an exception of workflow code.


_FAILED_EVICTIONS = (RemoveFromCache.NONDETERMINISM, RemoveFromCache.LANG_FAIL, RemoveFromCache.FATAL)


@dataclass(frozen=True, slots=True)
class FailedTask:
    """A workflow task that has failed. ``at`` is of ``time.monotonic()``; the texts are without credentials."""

    run_id: str
    reason: str
    at: float
    time: str


class WorkflowTasks:
    """Records failed workflow tasks. The SDK evicts a run from its cache after each, with the reason; its methods are
    called in the SDK's threads."""

    def __init__(self) -> None:
        self.failures = 0
        self.last: FailedTask | None = None
        self._failing: OrderedDict[str, FailedTask] = OrderedDict()
        self._failing_since_success: set[str] = set()
        self._lock = threading.Lock()

    def record_success(self, run_id: str) -> None:
        """Record that a workflow task of a run has succeeded."""
        if self._failing or self._failing_since_success:
            with self._lock:
                self._failing.pop(run_id, None)
                self._failing_since_success.clear()

    def follow_run(self, run_id: str) -> Callable[[WorkflowActivation | None], None]:
        """Return a function to call with each activation of a cached run, before it is processed, and with None for one
        that is refused; the run has not failed then."""
        has_task = is_refused = False

        def observe(activation: WorkflowActivation | None) -> None:
            nonlocal has_task, is_refused
            if activation is None:
                is_refused = True
                return
            for job in activation.jobs:
                if not job.HasField("remove_from_cache"):
                    continue
                eviction = job.remove_from_cache
                if eviction.reason in _FAILED_EVICTIONS:
                    if not is_refused:
                        self.record_failure(run_id, eviction.message)
                    return
            # The one before has succeeded: after a failure the SDK evicts the run. Replay shows nothing: each attempt
            # of a task that fails replays those before it.
            if has_task:
                self.record_success(run_id)
            has_task = not activation.is_replaying

        return observe

    def record_failure(self, run_id: str, reason: str) -> None:
        """Record that a workflow task of a run has failed."""
        # Cleaned here and not in each report: it takes half a millisecond.
        last = FailedTask(clean_reason(run_id), clean_reason(reason), monotonic(), format_utc_now())
        with self._lock:
            self.failures += 1
            self.last = last
            self._failing.pop(run_id, None)
            self._failing[run_id] = last
            if len(self._failing) > _MAX_RECORDED_RUNS:
                self._failing.popitem(last=False)
            if len(self._failing_since_success) < _MAX_RECORDED_RUNS:
                self._failing_since_success.add(run_id)

    def describe(self) -> tuple[CheckState, str | None, dict[str, Any]]:
        """Return state, reason and figures."""
        with self._lock:
            oldest = monotonic() - FAILED_TASK_SECONDS
            failing = [run_id for run_id, task in self._failing.items() if task.at > oldest]
            in_a_row = len(self._failing_since_success.intersection(failing))
            failures, last = self.failures, self.last
        facts: dict[str, Any] = {"failures": failures, "failing_runs": len(failing)}
        if last is not None:
            facts["last"] = {"run_id": last.run_id, "at": last.time, "reason": last.reason}
        if not failing:
            return "ok", None, facts
        reason = f"{len(failing)} {'run' if len(failing) == 1 else 'runs'} of this worker cannot go on; see `last`"
        return ("failing" if in_a_row >= MAX_FAILING_RUNS else "warning"), reason, facts


# ---
# The checks of one worker.


class WorkerHealth:
    """The checks of one worker. Its loop writes them, and the endpoint's thread reads them."""

    def __init__(self, activities: RunningActivities, tasks: WorkflowTasks, drain: Drain) -> None:
        self.serving: asyncio.Task[None] | None = None
        """The worker's poll loop, once it runs."""
        self.loop_watch: LoopWatch | None = None
        """Counts blocks of the event loop."""
        self.facts: dict[str, str] = {}
        """What identifies the worker: its identity, task queue and so on."""
        self._activities = activities
        self._tasks = tasks
        self._drain = drain
        now = format_utc_now()
        self._checks = {name: Check("failing", now, "not checked yet") for name in ("temporal", "store")}
        self._computed: dict[str, Check] = {}
        self._last_beat = monotonic()
        self._last_polls: dict[str, tuple[Any, float]] = {}

    def note_waiting(self, reason: str) -> None:
        """Report that the worker, which starts, waits for its store."""
        self._checks["store"] = Check("failing", self._checks["store"].since, clean_reason(f"waiting for the {reason}"))

    @asynccontextmanager
    async def watch(self, temporal: TemporalClient, task_queue: str, store: Store) -> AsyncIterator[None]:
        """Check for the length of the block, on the worker's event loop."""
        self.facts |= {
            "identity": temporal.identity,
            "task_queue": task_queue,
            "namespace": temporal.namespace,
            "address": temporal.service_client.config.target_host,
        }
        tasks = [
            asyncio.create_task(self._beat()),
            asyncio.create_task(self._repeat("temporal", lambda: self._check_pollers(temporal, task_queue))),
            asyncio.create_task(self._repeat("store", lambda: _check_store(store))),
        ]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)

    async def _beat(self) -> None:
        while True:
            self._last_beat = monotonic()
            self.report("/readyz")  # so that `since` is right also of a state that no probe has seen
            await asyncio.sleep(_BEAT_SECONDS)

    async def _repeat(self, name: str, check: Callable[[], Awaitable[tuple[CheckState, str | None]]]) -> None:
        """Repeat a check. One that does not end is reported, and waited for: there is never a second one beside it."""
        while True:
            checking = asyncio.ensure_future(check())
            try:
                if not (await asyncio.wait([checking], timeout=CHECK_TIMEOUT))[0]:
                    self._set(name, "failing", f"no answer within {CHECK_TIMEOUT:g} s")
                    await asyncio.wait([checking])
            finally:
                checking.cancel()
            try:
                state, reason = checking.result()
            except Exception as error:  # a check that fails for a reason of its own must not end the others
                state, reason = "failing", f"{type(error).__name__}: {error}"
            self._set(name, state, reason)
            await asyncio.sleep(FAILED_CHECK_INTERVAL if state == "failing" else CHECK_INTERVAL)

    def _set(self, name: str, state: CheckState, reason: str | None) -> None:
        before = self._checks[name]
        since = before.since if before.state == state else format_utc_now()
        self._checks[name] = Check(state, since, None if reason is None else clean_reason(reason))

    async def _check_pollers(self, temporal: TemporalClient, task_queue: str) -> tuple[CheckState, str | None]:
        """Check that Temporal lists this worker, and that it has begun a poll lately.

        The server's times are only compared with each other: its clock and this machine's may differ. Where it lists
        other workers alone, nothing follows for this one.
        """
        unknown: str | None = None
        for kind in (TaskQueueType.TASK_QUEUE_TYPE_WORKFLOW, TaskQueueType.TASK_QUEUE_TYPE_ACTIVITY):
            name = TaskQueueType.Name(kind).removeprefix("TASK_QUEUE_TYPE_").lower()
            try:
                polls = await find_pollers(temporal, task_queue, kind, timeout=CHECK_TIMEOUT)
            except RPCError as error:
                if is_denied(error):
                    return "unknown", f"Temporal does not list pollers for this client: {error.message}"
                return "failing", f"Temporal does not answer: {error.message}"
            now, polled_at = monotonic(), polls.pop(temporal.identity, None)
            is_new = polled_at is not None and polled_at != self._last_polls.get(name, (None, 0.0))[0]
            # While all slots are in use the SDK does not poll for activities: it goes on when a call ends.
            if is_new or (name == "activity" and len(self._activities) >= self._activities.slots):
                self._last_polls[name] = polled_at, now
            if name not in self._last_polls:
                reason = f"Temporal does not list this worker as a poller of {name} tasks"
            elif (age := now - self._last_polls[name][1]) > MAX_POLL_AGE:
                reason = f"Temporal has seen no poll of this worker for {name} tasks for {age:.0f} s"
            else:
                continue
            if not polls:
                return "failing", reason
            # A queue has four partitions unless its operator says otherwise, and the server lists the pollers of the
            # first; the others pass on a poll at a time. Of 100 new workers it lists 28 at once, all after a minute.
            unknown = f"{reason}; of many workers it does not list all"
        return ("ok", None) if unknown is None else ("unknown", unknown)

    # --- reports, from the endpoint's thread

    def report(self, path: str) -> tuple[bool, dict[str, Any]] | None:
        """Return whether the check of that path is passed, and its report; None for another path."""
        if path == "/healthz":
            checks = {"event_loop": self._compute_loop(), "poll_loop": self._compute_poll_loop()}
            is_good = all(check.state != "failing" for check in checks.values())
            return is_good, {"status": "alive" if is_good else "not alive", "checks": _encode_checks(checks)}
        if path != "/readyz":
            return None
        checks = {
            "event_loop": self._compute_loop(),
            "poll_loop": self._compute_poll_loop(),
            "draining": self._compute_draining(),
            **self._checks,
        }
        encoded = _encode_checks(checks)
        if self.loop_watch is not None:
            encoded["event_loop"] |= self.loop_watch.describe()
        running, slots = len(self._activities), self._activities.slots
        full = self._compute("slots", "warning" if running >= slots else "ok", "all slots are in use")
        encoded["slots"] = {**_encode_check(full), "running": running, "max": slots}
        state, reason, figures = self._tasks.describe()
        encoded["workflow_tasks"] = {**_encode_check(self._compute("workflow_tasks", state, reason)), **figures}
        is_good = all(check["state"] != "failing" for check in encoded.values())
        return is_good, {"status": "ready" if is_good else "not ready", "worker": self.facts, "checks": encoded}

    def _compute(self, name: str, state: CheckState, reason: str | None) -> Check:
        before = self._computed.get(name)
        since = before.since if before is not None and before.state == state else format_utc_now()
        self._computed[name] = Check(state, since, None if state == "ok" else reason)
        return self._computed[name]

    def _compute_loop(self) -> Check:
        age = monotonic() - self._last_beat
        state: CheckState = "failing" if age > MAX_LOOP_DELAY and self.serving is not None else "ok"
        return self._compute("event_loop", state, f"the worker's event loop has not run for {age:.0f} s")

    def _compute_poll_loop(self) -> Check:
        serving = self.serving
        if serving is None:
            return self._compute("poll_loop", "unknown", "the worker starts")
        has_ended = serving.done() and not self._drain.has_begun
        return self._compute("poll_loop", "failing" if has_ended else "ok", "the worker's poll loop has ended")

    def _compute_draining(self) -> Check:
        running = len(self._activities)
        reason = f"the worker drains, {running} {'call' if running == 1 else 'calls'} in progress"
        return self._compute("draining", "failing" if self._drain.has_begun else "ok", reason)


async def _check_store(store: Store) -> tuple[CheckState, str | None]:
    try:
        await store.recall("", "health")
    except StoreError as error:
        return "failing", error.message
    return "ok", None


def clean_reason(text: str) -> str:
    """Return a text in one short line, without passwords in URLs and the credentials in this process's environment."""
    text = redact_credentials(text[: 4 * _MAX_REASON_CHARS], find_credentials(os.environ))
    text = " ".join(_URL_PASSWORD.sub(r"\1:***@", text).split())
    return text if len(text) <= _MAX_REASON_CHARS else text[: _MAX_REASON_CHARS - 1] + "…"


def _encode_checks(checks: Mapping[str, Check]) -> dict[str, dict[str, Any]]:
    return {name: _encode_check(check) for name, check in checks.items()}


def _encode_check(check: Check) -> dict[str, Any]:
    return {"state": check.state, "since": check.since, **({"reason": check.reason} if check.reason else {})}


# ---
# The HTTP endpoint. Its loop serves slow clients side by side; the oldest connection makes room for a new one.


DEFAULT_HOST = "127.0.0.1"
"""Where only a port is given. Reports name runs and errors, so they do not leave the machine unless another host is
named: in a container, where the probes come from outside, ``0.0.0.0:8080``."""
MAX_CONNECTIONS = 64
MAX_REQUEST_BYTES = 8192
REQUEST_SECONDS = 5.0
"""Seconds that a connection may take, from its first byte to its last."""
_REASONS = {
    200: "OK",
    400: "Bad Request",
    404: "Not Found",
    405: "Method Not Allowed",
    431: "Request Header Fields Too Large",
    503: "Service Unavailable",
}


def parse_health_address(text: str) -> tuple[str, int]:
    """Parse ``[HOST:]PORT``; a host of IPv6 stands in brackets. Raises ``RuntimeSetupError``."""
    host, _, port = text.strip().rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host or text.strip().startswith(":"):
        host, port = "", ""
    if not (port.isascii() and port.isdigit() and int(port) < 65536):
        raise RuntimeSetupError(
            f"the health address {text[:80]!r} is not of the form [HOST:]PORT",
            hint="For instance 8080 for this machine alone, or 0.0.0.0:8080 in a container.",
        )
    return host or DEFAULT_HOST, int(port)


class HealthServer:
    """The endpoint: ``async with HealthServer(address, report):`` listens for the length of the block.

    ``report`` is called with each path, in the endpoint's thread.
    """

    def __init__(self, address: str, report: Callable[[str], tuple[bool, dict[str, Any]] | None]) -> None:
        """Raises ``RuntimeSetupError`` for an invalid address."""
        self._host, self._port = parse_health_address(address)
        self._report = report
        self._connections: OrderedDict[asyncio.StreamWriter, asyncio.Task[Any] | None] = OrderedDict()
        self.address = ""
        """host:port on which it listens, once it does."""

    async def __aenter__(self) -> HealthServer:
        """Listen. Raises ``RuntimeSetupError`` if the address cannot be used."""
        listening = self._listen()
        host, port = listening.getsockname()[:2]
        self.address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        self._loop = asyncio.new_event_loop()
        self._stopping = asyncio.Event()
        self._thread = threading.Thread(target=self._run, args=(listening,), name="perdure-health", daemon=True)
        self._thread.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        with suppress(RuntimeError):  # its loop has ended
            self._loop.call_soon_threadsafe(self._stopping.set)
        await asyncio.to_thread(self._thread.join, 1.0)

    def _listen(self) -> socket.socket:
        try:
            family, _, _, _, place = socket.getaddrinfo(
                self._host, self._port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )[0]
            is_any = place[0] == "::" and socket.has_dualstack_ipv6()
            return socket.create_server(place[:2], family=family, backlog=MAX_CONNECTIONS, dualstack_ipv6=is_any)
        except OSError as error:
            raise RuntimeSetupError(
                f"the health endpoint cannot listen on {self._host}:{self._port}: {error.strerror or error}",
                hint="Name another host or port (--health, PERDURE_HEALTH_ADDRESS), or port 0 for any that is free.",
            ) from error

    def _run(self, listening: socket.socket) -> None:
        try:
            self._loop.run_until_complete(self._serve(listening))
        except Exception:
            logger.exception("the health endpoint has ended")
        finally:
            listening.close()
            self._loop.close()

    async def _serve(self, listening: socket.socket) -> None:
        server = await asyncio.start_server(self._handle_connection, sock=listening, limit=MAX_REQUEST_BYTES)
        await self._stopping.wait()
        server.close()
        for writer in list(self._connections):
            writer.transport.abort()
        if handling := [task for task in self._connections.values() if task is not None]:
            await asyncio.wait(handling, timeout=1.0)

    async def _handle_connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._connections[writer] = asyncio.current_task()
        if len(self._connections) > MAX_CONNECTIONS:
            self._connections.popitem(last=False)[0].transport.abort()
        try:
            async with asyncio.timeout(REQUEST_SECONDS):
                writer.write(self._answer(await _read_request(reader)))
                await writer.drain()
                writer.write_eof()
                # Data that was sent and not read would reset the connection, and the answer with it.
                await reader.read(MAX_REQUEST_BYTES)
        except (TimeoutError, OSError, asyncio.IncompleteReadError):
            pass
        finally:
            self._connections.pop(writer, None)
            writer.close()

    def _answer(self, request: tuple[str, str] | int) -> bytes:
        """Build the answer to the method and path of a request, or for the status of an invalid one."""
        if isinstance(request, int):
            return _build_answer(request, {"error": _REASONS[request]})
        method, path = request
        if (result := self._report(path)) is None:
            return _build_answer(404, {"error": "GET /healthz or /readyz"}, with_body=method != "HEAD")
        if method not in ("GET", "HEAD"):
            return _build_answer(405, {"error": "GET or HEAD"}, extra="Allow: GET, HEAD\r\n")
        is_good, body = result
        return _build_answer(200 if is_good else 503, body, with_body=method != "HEAD")


async def _read_request(reader: asyncio.StreamReader) -> tuple[str, str] | int:
    """Read the header of a request; return its method and path, or the status of an answer that refuses it."""
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.LimitOverrunError:
        return 431
    words = head.partition(b"\r\n")[0].decode("latin-1").split(" ")
    if len(words) != 3 or not words[2].startswith("HTTP/1."):
        return 400
    return words[0], words[1].partition("?")[0]


def _build_answer(status: int, body: Mapping[str, Any], *, with_body: bool = True, extra: str = "") -> bytes:
    text = json.dumps(body, indent=1)  # ASCII alone: every other character is escaped
    for letter in "<>&":  # for a reader that takes it for HTML all the same
        text = text.replace(letter, f"\\u{ord(letter):04x}")
    encoded = f"{text}\n".encode()
    head = (
        f"HTTP/1.1 {status} {_REASONS[status]}\r\nContent-Type: application/json\r\nContent-Length: {len(encoded)}\r\n"
        f"Cache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\n{extra}Connection: close\r\n\r\n"
    )
    return head.encode() + (encoded if with_body else b"")
