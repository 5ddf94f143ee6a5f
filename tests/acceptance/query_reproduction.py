"""A query of a run that is not in the worker's cache leads to a history that cannot be replayed. Plain temporalio.

    temporal server start-dev &
    python tests/acceptance/query_reproduction.py localhost:7233 query    # some of 24 histories cannot be replayed
    python tests/acceptance/query_reproduction.py localhost:7233 update   # all can, as without any look at the run

A run waits for an activity. While it is in no worker's cache it is looked at, by a query; at the same moment the
activity completes, and an update comes that is accepted once the activity has completed.

1. The query is dispatched on its own, not with a workflow task: when it came, nothing was pending. A worker takes it
   together with the history to its last event, in which there are by now ActivityTaskCompleted and
   WorkflowTaskScheduled, but no WorkflowTaskStarted.
2. The SDK applies these events: an activation with the activity's result, with the time of the task before. The
   workflow goes on, upserts its memo, and stays in the cache with that.
3. The workflow task starts, with the update. Its validator sees the result: accepted. The commands are sent in the
   order of their making: UpsertMemo, then the update's acceptance.
4. In replay both are in one activation, the update first: TMPRL1100, "Update machine does not handle this event:
   HistoryEvent(id: 11, WorkflowPropertiesModified)". As soon as the run leaves the cache, it is stuck for good.

Seen with temporalio 1.35.0 and Temporal server 1.29.1, 22 November 2026: 0 to 8 of 24 with a query. An update that is
always refused, with the answer in its error's details, looks at the run as well, adds nothing to its history, and
comes with a workflow task: 0 of 24, and of 100 with four looks each.
"""

from __future__ import annotations

import asyncio
import os
import random
import sys
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from temporalio import activity, workflow
from temporalio.client import Client, WorkflowHandle, WorkflowQueryFailedError, WorkflowUpdateFailedError
from temporalio.exceptions import ApplicationError
from temporalio.worker import Replayer, UnsandboxedWorkflowRunner, Worker, WorkflowRunner

RUNS = 24
_tokens: dict[str, bytes] = {}
"""Of the activities that are under way, by workflow id."""


@activity.defn
async def work() -> None:
    """Completed from outside."""
    info = activity.info()
    _tokens[str(info.workflow_id)] = info.task_token
    activity.raise_complete_async()


@workflow.defn(sandboxed=False)
class Waiting:
    """Waits for an activity, then for an update."""

    def __init__(self) -> None:
        self.waits_since: datetime | None = None
        self.decided = False

    @workflow.run
    async def run(self) -> None:
        self.began = workflow.now()
        queue = f"{workflow.info().task_queue}-work"
        await workflow.execute_activity(work, start_to_close_timeout=timedelta(minutes=5), task_queue=queue)
        self.waits_since = workflow.now()
        workflow.upsert_memo({"waits": True})
        await workflow.wait_condition(lambda: self.decided)

    @workflow.query
    def ahead(self) -> bool:
        """Whether the activity's result was applied without a workflow task that had started after it."""
        return self.waits_since == self.began

    @workflow.update
    async def look(self) -> None:
        """Always refused."""

    @look.validator
    def _look(self) -> None:
        raise ApplicationError("the answer is in the details", self.ahead(), type="Answer")

    @workflow.update
    async def decide(self) -> None:
        """Accepted while it waits."""
        self.decided = True

    @decide.validator
    def _check(self) -> None:
        if self.waits_since is None:
            raise ApplicationError("nothing waits yet", type="Early")


@dataclass
class Found:
    """What came of the runs."""

    ahead: int = 0
    """Looks that have seen what no workflow task had brought yet."""
    unreplayable: int = 0
    events: int = 0
    error: str | None = None


async def reproduce(
    client: Client, look: str, runner: Callable[[], WorkflowRunner] = UnsandboxedWorkflowRunner, runs: int = RUNS
) -> Found:
    """``look`` is "query" or "update"."""
    queue, found = f"looking-{uuid.uuid4().hex[:8]}", Found()
    served: dict[str, Any] = {
        "task_queue": queue,
        "workflows": [Waiting],
        "max_cached_workflows": 3,
        "max_concurrent_workflow_task_polls": 8,
    }
    async with Worker(client, task_queue=f"{queue}-work", activities=[work]):
        async with Worker(client, unsandboxed_workflow_runner=runner(), **served):
            ids = [f"{queue}-{number}" for number in range(runs)]
            handles = [await client.start_workflow("Waiting", id=name, task_queue=queue) for name in ids]
            while not _tokens.keys() >= set(ids):  # noqa: ASYNC110  # a script that stands alone
                await asyncio.sleep(0.05)
        async with Worker(client, unsandboxed_workflow_runner=runner(), **served):
            looked = await asyncio.gather(*(_at_once(client, handle, look) for handle in handles))
            await asyncio.gather(*(handle.result() for handle in handles))
    found.ahead = sum(looked)
    replayer = Replayer(workflows=[Waiting])
    for handle in handles:
        history = await handle.fetch_history()
        found.events += len(history.events)
        result = await replayer.replay_workflow(history, raise_on_replay_failure=False)
        if result.replay_failure is not None:
            found.unreplayable += 1
            found.error = str(result.replay_failure)
    return found


async def _at_once(client: Client, handle: WorkflowHandle[Any, Any], look: str) -> bool:
    """Look at a run, let its activity complete and decide, at the same moment. Whether it was seen ahead."""
    looking = asyncio.create_task(_looked(handle, look))
    await asyncio.sleep(random.uniform(0, 0.02))
    completing = client.get_async_activity_handle(task_token=_tokens[handle.id]).complete()
    await asyncio.gather(completing, _decided(handle))
    return await looking


async def _looked(handle: WorkflowHandle[Any, Any], look: str) -> bool:
    while True:
        try:
            if look == "query":
                return bool(await handle.query("ahead", rpc_timeout=timedelta(seconds=10)))
            await handle.execute_update("look")
        except WorkflowUpdateFailedError as refused:
            return isinstance(refused.cause, ApplicationError) and bool(refused.cause.details[0])
        except WorkflowQueryFailedError:
            await asyncio.sleep(0.05)


async def _decided(handle: WorkflowHandle[Any, Any]) -> None:
    while True:
        try:
            return await handle.execute_update("decide")
        except WorkflowUpdateFailedError as refused:
            if not isinstance(refused.cause, ApplicationError) or refused.cause.type != "Early":
                raise
            await asyncio.sleep(0.05)


async def _main(address: str, look: str) -> None:
    found = await reproduce(await Client.connect(address), look)
    print(f"{look}: {found.unreplayable} of {RUNS} histories cannot be replayed, {found.ahead} looks were ahead")
    print(found.error or "", flush=True)
    os._exit(0)  # temporalio 1.35 now and then aborts when the interpreter ends with a client


if __name__ == "__main__":
    asyncio.run(_main(*sys.argv[1:]))
