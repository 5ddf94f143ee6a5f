"""Executes a run without Temporal: the workflow's own code, and the stages and activities of a worker, on one event
loop.

Temporal's services are replaced in the simplest way that the code cannot distinguish: an activity is a call of the
engine, retried at once as often as Temporal would retry it over time; conditions are checked after every event.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import itertools
import json
import logging
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from time import monotonic
from typing import Any, Literal, NoReturn, Protocol

from temporalio import workflow
from temporalio.api.common.v1 import Memo
from temporalio.converter import DataConverter
from temporalio.exceptions import ActivityError, ApplicationError, ChildWorkflowError, TerminatedError
from temporalio.exceptions import CancelledError as TemporalCancelledError

from ..calls.call import ActivityCall, ActivityOutput, ModelCall, parse_call
from ..calls.heartbeat import AttemptValues, passing_on
from ..calls.interceptor import attach_search_attributes
from ..calls.retries import decide_attempt
from ..ports.times import timestamp
from ..temporal.errors import ACCEPTED_UPDATE_ENDED
from ..types.interface import SEARCH_ATTRIBUTES, WORKFLOW_TYPE
from ..types.limits import HEARTBEAT_SECONDS
from ..types.wire import ENGINE_ACTIVITY_PREFIX, NOTHING_RECORDED, TOOL_ACTIVITY_PREFIX, ModelOutput
from ..worker import Engine
from ..workflows import AgentWorkflow
from ..workflows.child_workflows import EXTERNAL_RUN_GONE
from ..workflows.host import Host, use_host

logger = logging.getLogger("perdure.testing")

# ---
# Activities without Temporal: the engine's calls through all stages, with Temporal's retries.


_TOOL_INPUT_FIELDS = {"scope", "op", "context_id", "call_id", "name"}
"""Fields of the input of the engine's own tool activities."""
MAX_ATTEMPTS, MAX_WAITS = 25, 1000
"""How often a call with a retryable failure is tried, and one that is to be made later: Temporal would continue, but a
test must end."""


class ActivityRunner:
    """The activities of one execution."""

    def __init__(self, engine: Engine, run_id: str) -> None:
        self._engine = engine
        self._run_id = run_id
        self._numbers = itertools.count(1)

    async def run(self, name: str, argument: dict[str, Any]) -> Any:
        """Run activity ``name`` and return its result; input and result go through JSON. Raises ``ApplicationError``,
        and ``CancelledError`` of Temporal or of asyncio."""
        plain = json.loads(json.dumps(argument))
        if not name.startswith(ENGINE_ACTIVITY_PREFIX) and not plain.keys() >= _TOOL_INPUT_FIELDS:
            return await self._run_remote_tool(name.removeprefix(TOOL_ACTIVITY_PREFIX), plain)
        number, asked_at, scheduled = next(self._numbers), timestamp(datetime.now(UTC)), monotonic()
        attempt, failures, kept = 0, 0, dict[str, int | str]()
        while True:
            attempt += 1
            owner = f"{self._run_id}/{number}/{attempt}"
            call = parse_call(name, plain, scheduled=scheduled, owner=owner, attempt=attempt, asked_at=asked_at)
            try:
                with passing_on(AttemptValues(kept)):
                    try:
                        output = await self._run_attempt(call)
                        return json.loads(output.model_dump_json(exclude_none=True))
                    except Exception as error:
                        decision = decide_attempt(error)
            except asyncio.CancelledError:
                if call.nothing_recorded:
                    raise TemporalCancelledError("Cancelled", NOTHING_RECORDED) from None
                raise
            failures += decision.is_failure
            if decision.retry and failures < MAX_ATTEMPTS and attempt - failures < MAX_WAITS:
                await asyncio.sleep(0)  # at once, whatever the requested delay
                continue
            text = decision.message + (f" (given up after {attempt} attempts)" if decision.retry else "")
            details = (*decision.details, *([NOTHING_RECORDED] if call.nothing_recorded else []))
            raise ApplicationError(text, *details, type=decision.error_type, non_retryable=True) from None

    async def _run_remote_tool(self, name: str, arguments: dict[str, Any]) -> Any:
        """Run a remote tool: call the tool of the same name in ``scripted(tools=…)`` in its place."""
        stand_in = self._engine.agents.tools.get(name)
        if stand_in is None:
            text = f'this test has no worker for it; script a tool in its place: tools=[tool(name="{name}")(function)]'
            raise ApplicationError(text, type="NotFoundError", non_retryable=True)
        try:
            value = stand_in.bind(arguments)()
            value = await value if inspect.isawaitable(value) else value
        except Exception as error:
            raise ApplicationError(str(error), type=type(error).__name__, non_retryable=True) from error
        return json.loads(json.dumps(value))

    async def _run_attempt(self, call: ActivityCall) -> ActivityOutput:
        output = await self._engine.run_call(call)
        if isinstance(call, ModelCall) and isinstance(output, ModelOutput):
            return attach_search_attributes(call, output, tuple(SEARCH_ATTRIBUTES))
        return output


# ---
# Child runs of a run without Temporal.


class InProcessChild(asyncio.Task[Any]):
    """The handle that ``start_child_workflow`` returns: it ends with the child; when cancelled, it cancels the child
    and waits."""

    def __init__(self, execution: Execution) -> None:
        super().__init__(_wait_for_child_result(execution), loop=asyncio.get_running_loop())
        self._execution = execution

    async def signal(self, signal: str) -> None:
        """Send the child a signal, as ``Host.signal_child`` does."""
        if self._execution.ended is not None:
            raise ApplicationError("the child has ended", type=EXTERNAL_RUN_GONE)
        self._execution.signal(signal, [])


def encode_memo(memo: dict[str, Any]) -> Memo:
    """Encode a memo as a client sends it."""
    convert = DataConverter.default.payload_converter.to_payloads
    return Memo(fields={name: convert([value])[0] for name, value in memo.items()})


async def _wait_for_child_result(execution: Execution) -> Any:
    while execution.ended is None:
        try:
            await execution.wait_closed()
        except asyncio.CancelledError:
            execution.cancel()
    if execution.ended == "completed":
        return execution.result
    cause = execution.failure or (
        TemporalCancelledError("Cancelled") if execution.ended == "cancelled" else TerminatedError("Terminated")
    )
    raise ChildWorkflowError(
        "Child Workflow execution failed",
        namespace="default",
        workflow_id=execution.workflow_id,
        run_id=execution.run_id,
        workflow_type=WORKFLOW_TYPE,
        initiated_event_id=0,
        started_event_id=0,
        retry_state=None,
    ) from cause


# ---
# The start of an execution, and the execution itself.


@dataclass(frozen=True)
class ExecutionStart:
    """The start arguments of an execution."""

    workflow_id: str
    input: list[Any]
    memo: Any = None
    task_queue: str = ""
    parent: Execution | None = None
    """The run that started it as its child."""
    attributes: Mapping[str, Any] = field(default_factory=dict)
    """Search attributes."""
    at: datetime = field(default_factory=lambda: datetime.now(UTC))


_CLOSING_SECONDS = 2.0
"""Seconds that a run may take to end by itself."""
_EVENTS_PER_ACTIVITY = 6
"""Number of events that a call adds to a history."""
_SETTLING_LOOP_TURNS = 20
"""Turns of the event loop after which all consequences of an event have happened; it takes about five."""

_HANDLERS = workflow._Definition.must_from_class(AgentWorkflow)
"""The handlers of the workflow as its decorators have registered them. The SDK has no public way to them."""

ExecutionEndState = Literal["completed", "failed", "cancelled", "terminated"]


@dataclass(slots=True)
class StepRecord:
    """An activity of the engine's, for the history."""

    activity: str
    at: datetime
    input: dict[str, Any]
    output: Any = None
    """None while it has not completed."""


class ExecutionRegistry(Protocol):
    """The other executions."""

    def start_child(self, started: ExecutionStart) -> Execution:
        """Start a child. Raises ``WorkflowAlreadyStartedError``."""
        ...

    def find_latest(self, id: str) -> Execution | None:
        """Return the latest execution of that id, or None."""
        ...


class Execution(Host):
    """One execution, and the workflow's :class:`~perdure.workflows.host.Host`. Use it on its event loop."""

    def __init__(self, engine: Engine, started: ExecutionStart, others: ExecutionRegistry) -> None:
        self.started = started
        self._others = others
        self.workflow_id = started.workflow_id
        self.run_id = self.first_execution_run_id = str(uuid.uuid4())
        self.parent = started.parent
        self.cron_schedule: str | None = None
        self.continued_run_id: str | None = None
        self.ended: ExecutionEndState | None = None
        self.ended_at: datetime | None = None
        self.result: Any = None
        self.failure: ApplicationError | None = None
        self._activities = ActivityRunner(engine, self.run_id)
        self._loop = asyncio.get_running_loop()
        self._workflow = AgentWorkflow()
        self._conditions: list[tuple[Callable[[], bool], asyncio.Future[None]]] = []
        self._handling = 0
        self.attributes: dict[str, Any] = {**started.attributes}
        self.memo: dict[str, Any] = {}
        """Changes of the memo that it was started with; None removes a field."""
        self.steps: list[StepRecord] = []
        self._events = 0
        self._updates: dict[str, asyncio.Task[Any]] = {}
        self._closed = asyncio.Event()
        self._outside = contextvars.copy_context()
        with use_host(self):
            self._inside = contextvars.copy_context()
            self._task = self._loop.create_task(self._run_workflow())

    # --- requests of clients

    async def wait_closed(self) -> None:
        """Wait until it has ended."""
        await self._closed.wait()

    def cancel(self) -> None:
        """Request the cancellation of the run."""
        self._task.cancel()
        self._schedule_check()

    async def stop(self, ended: ExecutionEndState | None = None) -> None:
        """End the execution at once, without the workflow."""
        if self.ended is None and ended is not None:
            self._record_end(ended)
        seconds = _CLOSING_SECONDS  # first it closes its transcript, as a cancelled run does
        while not self._task.done():
            self._task.cancel()
            await asyncio.wait([self._task], timeout=seconds)
            seconds = 0.01

    def signal(self, name: str, arguments: Sequence[Any]) -> None:
        """Call a signal's handler; an unknown signal is dropped."""
        if name not in _HANDLERS.signals:
            logger.warning("the run has no signal %r", name)
            return
        with use_host(self):
            getattr(self._workflow, name)(*arguments)
        self._schedule_check()

    def query(self, name: str, arguments: Sequence[Any]) -> Any:
        """Call a query's handler. Raises its exception, or ``LookupError`` for an unknown query."""
        if name not in _HANDLERS.queries:
            raise LookupError(f"the run has no query {name!r}")
        with use_host(self):
            return getattr(self._workflow, name)(*arguments)

    async def update(self, id: str, name: str, arguments: Sequence[Any]) -> Any:
        """Call an update's validator and handler, once for each ``id``. Raises ``ApplicationError``."""
        if id not in self._updates:
            if (handler := _HANDLERS.updates.get(name)) is None:
                raise ApplicationError(f"the run has no update {name!r}", non_retryable=True)
            with use_host(self):
                self._updates[id] = self._loop.create_task(self._run_update_handler(id, handler, arguments))
        update, closing = self._updates[id], self._loop.create_task(self.wait_closed())
        await asyncio.wait([update, closing], return_when=asyncio.FIRST_COMPLETED)
        closing.cancel()
        if not update.done():
            message = "the run ended before the update did"
            raise ApplicationError(message, type=ACCEPTED_UPDATE_ENDED, non_retryable=True)
        return update.result()

    async def _run_update_handler(self, id: str, handler: Any, arguments: Sequence[Any]) -> Any:
        try:  # in one step with the begin of the handler, as on a server: what one accepts, the next one sees
            handler.bind_validator(self._workflow)(*arguments)
        except BaseException:
            del self._updates[id]  # a refused update leaves nothing
            raise
        self._handling += 1
        try:
            return await handler.bind_fn(self._workflow)(*arguments)
        finally:
            self._handling -= 1
            self._schedule_check()

    # --- the host

    def is_continue_as_new_suggested(self) -> bool:
        """False: there is no history that could become too long."""
        return False

    def get_current_history_length(self) -> int:
        """Return an estimate of the history's length."""
        return self._events

    def patched(self, name: str) -> bool:
        """See base class."""
        return True

    def info(self) -> Any:
        """See ``Host``. The execution itself has the fields of ``workflow.Info`` that are used."""
        return self

    def now(self) -> datetime:
        """See ``Host``."""
        return datetime.now(UTC)

    def heartbeat_seconds(self) -> float:
        """See ``Host``. Calls in this process do not heartbeat."""
        return HEARTBEAT_SECONDS

    def all_handlers_finished(self) -> bool:
        """See ``Host``."""
        return self._handling == 0

    def search_attributes(self) -> Mapping[str, Any]:
        """See ``Host``."""
        return self.attributes

    def upsert_search_attributes(self, values: Mapping[str, Any]) -> None:
        """See ``Host``."""
        self.attributes |= values

    def upsert_memo(self, values: Mapping[str, Any]) -> None:
        """See ``Host``."""
        self.memo |= json.loads(json.dumps(values))

    def continue_as_new(self, carried: dict[str, Any]) -> NoReturn:
        """See ``Host``."""
        raise _ContinuedAsNew(carried)

    async def wait(self, tasks: Sequence[asyncio.Task[Any]]) -> None:
        """See ``Host``."""
        await asyncio.wait(tasks)

    async def wait_condition(self, condition: Callable[[], bool], *, timeout: Any = None, **_: Any) -> None:
        """See ``Host``."""
        if condition():  # it must hold when everything that has arrived is applied
            for _turn in range(_SETTLING_LOOP_TURNS):
                await asyncio.sleep(0)
            return
        met: asyncio.Future[None] = self._loop.create_future()
        self._conditions.append((condition, met))
        try:
            async with asyncio.timeout(timeout.total_seconds() if hasattr(timeout, "total_seconds") else timeout):
                await met
        finally:
            self._conditions.remove((condition, met))

    def _schedule_check(self) -> None:
        """Check the conditions now and in the next turns of the loop, in which consequences of the event happen."""
        self._loop.call_soon(self._check_conditions, _SETTLING_LOOP_TURNS, context=self._inside)

    def _check_conditions(self, turns: int) -> None:
        for condition, met in self._conditions:
            if not met.done() and condition():
                met.set_result(None)
        if turns and self._conditions:
            self._loop.call_soon(self._check_conditions, turns - 1)

    async def execute_activity(self, name: str, argument: dict[str, Any], **_: Any) -> Any:
        """See ``Host``. When cancelled, it waits for the call to end, and returns its result."""
        if self.ended is not None:
            raise asyncio.CancelledError("the run was terminated")
        record = StepRecord(name, datetime.now(UTC), argument)
        if name.startswith(ENGINE_ACTIVITY_PREFIX):
            self.steps.append(record)
        activity = self._loop.create_task(self._activities.run(name, argument), context=self._outside.copy())
        try:
            await asyncio.wait([activity])
        except asyncio.CancelledError:
            activity.cancel()
            await asyncio.wait([activity])
        finally:
            self._events += _EVENTS_PER_ACTIVITY
            self._schedule_check()
        cause = TemporalCancelledError("Cancelled") if activity.cancelled() else activity.exception()
        if cause is None:
            record.output = activity.result()
            return activity.result()
        raise ActivityError(
            "Activity task failed",
            scheduled_event_id=1,
            started_event_id=0,
            identity="",
            activity_type=name,
            activity_id="",
            retry_state=None,
        ) from cause

    async def start_child_workflow(self, name: str, argument: dict[str, Any], **options: Any) -> InProcessChild:
        """See ``Host``."""
        if self.ended is not None:
            raise asyncio.CancelledError("the run was terminated")
        started = ExecutionStart(
            options["id"],
            [json.loads(json.dumps(argument))],
            encode_memo(options["memo"]),
            self.started.task_queue,
            attributes={pair.key.name: pair.value for pair in options.get("search_attributes") or ()},
            parent=self,
        )
        child = InProcessChild(self._outside.copy().run(self._others.start_child, started))
        child.add_done_callback(lambda _: self._schedule_check())
        return child

    async def signal_external(self, id: str, signal: str, arguments: Sequence[Any]) -> None:
        """See ``Host``."""
        self._find_open_execution(id).signal(signal, json.loads(json.dumps(arguments)))

    async def cancel_external(self, id: str) -> None:
        """See ``Host``."""
        self._find_open_execution(id).cancel()

    def _find_open_execution(self, id: str) -> Execution:
        execution = self._others.find_latest(id)
        if execution is None or execution.ended is not None:
            raise ApplicationError(f"no run {id} is open", type=EXTERNAL_RUN_GONE)
        return execution

    # --- execution

    async def _run_workflow(self) -> None:
        arguments = self.started.input
        while True:
            try:
                self.result = await self._workflow.run(*arguments)
                self._record_end("completed")
            except _ContinuedAsNew as continued:
                self._workflow, self._events, arguments = AgentWorkflow(), 0, [continued.carried]
                self.continued_run_id = self.run_id
                self.memo.clear()
                continue
            except asyncio.CancelledError:
                self._record_end("cancelled")
            except ApplicationError as error:
                self.failure = error
                self._record_end("failed")
            except Exception as error:
                logger.exception("the workflow failed; Temporal would retry its task until a worker succeeds")
                self.failure = ApplicationError(str(error), type=type(error).__name__)
                self._record_end("failed")
            return

    def _record_end(self, ended: ExecutionEndState) -> None:
        if self.ended is None:
            self.ended, self.ended_at = ended, datetime.now(UTC)
            self._closed.set()


class _ContinuedAsNew(BaseException):
    """Continued as new. Not an ``Exception``, like Temporal's own, so that ``except Exception`` does not catch it."""

    def __init__(self, carried: dict[str, Any]) -> None:
        super().__init__()
        self.carried = carried
