"""Lists the pending calls of all runs, and approves, denies and answers them."""

from __future__ import annotations

import asyncio
import logging
import random
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, cast

from ..errors import NoWorkerError, PerdureError, RunClosedError, RunNotFoundError, RunNotReadyError, RunStuckError
from ..temporal.workflow_tasks import find_failing_task
from ..types.approvals import Consent, DecidedApproval, PendingKind, WaitingCall
from ..types.interface import WORKFLOW_TYPE, Status
from .decisions import WaitRef, answer_pending_call, decide_pending_call
from .handles import ClientHandle
from .progress import is_queue_polled
from .run import UNTAKEN_HISTORY_LENGTH, Run
from .visibility import (
    MAY_WAIT_FILTER,
    build_agent_filter,
    build_closed_status,
    find_agent_name,
    list_executions,
    read_pending_memo,
)

if TYPE_CHECKING:
    from temporalio.client import WorkflowExecution, WorkflowExecutionDescription


logger = logging.getLogger("perdure.client")

_MAX_CONCURRENT_STATUS_READS = 5
"""Runs that are asked for their status concurrently. More are not faster where the worker has to load them."""
_MAX_CONCURRENT_DESCRIBES = 20
"""Runs that Temporal is asked for concurrently: no worker has to load them."""


@dataclass(frozen=True, slots=True)
class PendingCall:
    """A call that waits for an approval or an answer, with the methods to give it."""

    run: Run
    agent: str
    call_id: str
    tool: str
    arguments: dict[str, Any] | None
    """None where they are too large for history; ``run.transcript()`` has them."""
    since: datetime | None
    expires: datetime | None
    """When the wait expires, and the call is denied or, if its tool says so, approved."""
    hash: str
    """Identifies the call with these arguments, or its question: a decision or an answer with this hash applies to no
    other."""
    summary: str = ""
    """The call or its question in one line, for people: by the template of its tool (``@tool(summary=…)``), or its name
    and first arguments."""
    kind: PendingKind = "approval"
    """``question``: its tool asks a question. ``callback``: a client runs the call, and answers with the result."""
    question: str | None = None
    """The question of its tool."""
    form: dict[str, Any] | None = None
    """JSON Schema of the answer; None takes anything."""
    consent: Consent | None = None
    """Its question is answered by a sign-in at an MCP server: ``client.grants``, ``perdure mcp login``, the console."""

    @property
    def run_id(self) -> str:
        """Id of the conversation."""
        return self.run.id

    async def approve(
        self,
        *,
        by: str | None = None,
        comment: str | None = None,
        arguments: Mapping[str, Any] | None = None,
        always: bool = False,
    ) -> DecidedApproval:
        """See ``Run.approve``."""
        return await decide_pending_call(
            self.run, self._wait, "approve", by=by, comment=comment, arguments=arguments, always=always
        )

    async def deny(self, *, by: str | None = None, comment: str | None = None) -> DecidedApproval:
        """See ``Run.deny``."""
        return await decide_pending_call(self.run, self._wait, "deny", by=by, comment=comment)

    async def answer(self, value: Any = None, *, error: str | None = None, by: str | None = None) -> DecidedApproval:
        """See ``Run.answer``."""
        return await answer_pending_call(self.run, self._wait, value, error=error, by=by)

    @property
    def _wait(self) -> WaitRef:
        return WaitRef(self.call_id, self.hash, self.since.isoformat() if self.since else None)


async def list_pending_calls(client: ClientHandle, *, agent: str | None = None) -> list[PendingCall]:
    """See ``Client.approvals``."""
    slots, queues = asyncio.Semaphore(_MAX_CONCURRENT_DESCRIBES), _QueueChecks(client)

    async def read_calls(execution: WorkflowExecution) -> list[PendingCall] | None:
        async with slots:
            return await _read_pending_calls(client, execution, agent, queues)

    open_runs = f"WorkflowType = '{WORKFLOW_TYPE}' AND ExecutionStatus = 'Running'"
    filters = (MAY_WAIT_FILTER, *(() if agent is None else (build_agent_filter(agent),)))
    runs = [execution async for execution in list_executions(client, open_runs, *filters)]
    random.shuffle(runs)  # so that concurrent clients do not ask the same run at the same moment
    results = await asyncio.gather(*map(read_calls, runs))
    unanswered = [execution for execution, calls in zip(runs, results, strict=True) if calls is None]
    if unanswered and len(unanswered) < len(runs):  # there is a worker
        queues.silent -= queues.answering
        retried = await asyncio.gather(*map(read_calls, unanswered))
        results += retried
        unanswered = [execution for execution, calls in zip(unanswered, retried, strict=True) if calls is None]
    for queue, count in Counter(execution.task_queue for execution in unanswered).items():
        missing = "no worker of task queue %r has answered: pending calls of %d runs may be missing, for instance of %s"
        logger.warning(missing, queue, count, next(run.id for run in unanswered if run.task_queue == queue))
    pending_calls = [call for calls in results for call in calls or ()]
    return sorted(
        pending_calls, key=lambda call: (call.since.timestamp() if call.since else 0.0, call.run_id, call.call_id)
    )


async def list_pending_calls_of_run(run: Run) -> list[PendingCall]:
    """List the pending calls of ``run`` and of its subagents."""
    status = await run.status(decided=False)
    pending_calls = [_build_inbox_call(run, status.agent, pending) for pending in status.approvals]
    children = [call.context_id for call in status.calls if call.context_id is not None]
    children += [child.context_id for child in status.background if child.state == "running"]
    for child_id in dict.fromkeys(children):
        with suppress(RunNotFoundError):  # the child run has not started yet
            pending_calls += await list_pending_calls_of_run(run.client.run(child_id))
    return pending_calls


class _QueueChecks:
    """Which task queues have a worker, for one listing: a run that no worker serves is not asked, which takes 5 s."""

    def __init__(self, client: ClientHandle) -> None:
        self._client = client
        self._polled: dict[str, asyncio.Future[bool]] = {}
        self.status_reads = asyncio.Semaphore(_MAX_CONCURRENT_STATUS_READS)
        self.answering: set[str] = set()
        """Task queues of runs that have answered."""
        self.silent: set[str] = set()
        """Task queues of runs that have not answered, although a worker has polled the queue lately."""

    async def is_polled(self, queue: str) -> bool:
        """Whether a worker polls the task queue; read once. Raises ``RPCError``."""
        if queue not in self._polled:
            self._polled[queue] = asyncio.ensure_future(is_queue_polled(self._client, queue))
        return await self._polled[queue]

    async def ask_status(self, run: Run, description: WorkflowExecutionDescription) -> Status:
        """Ask the run for its status. Raises ``RunStuckError`` for a run whose own workflow task fails, and
        ``NoWorkerError``, then also for the queue's other runs at once."""
        queue = description.task_queue
        with run.temporal_errors():
            if is_polled := await self.is_polled(queue):
                await self._raise_if_stuck(description)
            if not is_polled or queue in self.silent:
                raise NoWorkerError(f"no worker of task queue {queue!r} answers")
        try:
            status = Status.model_validate(await run.ask_workflow("status"))
        except NoWorkerError as error:
            with run.temporal_errors():
                await self._raise_if_stuck(await run.describe())
            if queue not in self.answering and not isinstance(error, RunNotReadyError):  # that says nothing of others
                self.silent.add(queue)
            raise
        self.answering.add(queue)
        return status

    async def _raise_if_stuck(self, description: WorkflowExecutionDescription) -> None:
        if (failing := await find_failing_task(self._client.temporal, description)) is not None:
            raise RunStuckError(str(failing), hint=failing.way_out)


async def _read_pending_calls(
    client: ClientHandle, execution: WorkflowExecution, agent: str | None, queues: _QueueChecks
) -> list[PendingCall] | None:
    """Read the pending calls of a run, none if it is not of ``agent``; None if no worker has answered."""
    name = await find_agent_name(client, execution)
    if agent is not None and name not in ("", agent):
        return []
    run = cast(Run, client.run(execution.id))
    try:
        with run.temporal_errors():
            if not await queues.is_polled(execution.task_queue) and not (seen := await read_pending_memo(execution)):
                return None if seen is None else []  # without a worker, the listing is all there is
        description = await run.describe()  # the listing may be a moment old
        if build_closed_status(description) is not None:
            return []
        first_run_id = description.raw_description.workflow_execution_info.first_run_id
        if description.history_length <= UNTAKEN_HISTORY_LENGTH and first_run_id in ("", description.run_id):
            return []  # no worker has begun it; one that has continued as new may have pending calls
        name = name or await find_agent_name(client, description)
        pending = await read_pending_memo(description) if name else None
        if pending is None:
            async with queues.status_reads:
                status = await queues.ask_status(run, description)
            name, pending = status.agent, status.approvals
    except NoWorkerError:
        return None
    except RunClosedError:
        return []
    except PerdureError as error:
        logger.warning("the pending calls of run %s cannot be read: %s", execution.id, error)
        return []
    return [_build_inbox_call(run, name, call) for call in pending if agent in (None, name)]


def _build_inbox_call(run: Run, agent: str, pending: WaitingCall) -> PendingCall:
    return PendingCall(
        run=run,
        agent=agent,
        tool=pending.tool,
        since=_parse_optional_time(pending.since),
        expires=_parse_optional_time(pending.expires),
        consent=pending.consent,
        **pending.model_dump(include={"call_id", "arguments", "summary", "hash", "kind", "question", "form"}),
    )


def _parse_optional_time(text: str | None) -> datetime | None:
    return None if text is None else datetime.fromisoformat(text)
