"""Who resumes, cancels or raises a limit because of an event: the run, or Temporal, may not have heard of it yet."""

from __future__ import annotations

import asyncio

import pytest
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.workflowservice.v1 import ResetWorkflowExecutionRequest

from perdure import Client, Limits, Run
from perdure.errors import BadRequestError, RunCancelledError, TranscriptCorruptedError
from perdure.ports.model import ModelRequest
from perdure.testing import call, fail
from perdure.types.interface import Status
from tests.integration.test_early import Held, looks, served, told
from tests.integration.test_questions import asked
from tests.support.checks import users
from tests.support.engine import Engine
from tests.support.wait import eventually

__all__ = ["looks"]

pytestmark = pytest.mark.server


async def test_a_run_is_resumed_before_temporal_has_heard_that_it_failed(engine: Engine) -> None:
    broken = True

    def reply(_: ModelRequest) -> str:
        if broken:
            raise BadRequestError("no")
        return "Done."

    held = Held("perdure.close")
    async with served(engine, held, reply) as client:
        run = await client.start("clerk", "Go.")
        await told(run, "run", "failed")
        broken = False
        resuming = asyncio.create_task(run.resume(by="ana"))
        await eventually(lambda: held.gate.entered, what="the ending")
        await asyncio.wait([resuming], timeout=0.1)  # time to be too early
        held.gate.open()
        await resuming
        assert (await run.result()).content == "Done."


async def test_a_run_is_resumed_before_it_has_heard_that_it_pauses(engine: Engine, looks: list[Status]) -> None:
    held = Held("perdure.model")
    async with served(engine, held, [fail(TranscriptCorruptedError("a node is missing")), "Done."]) as client:
        run = await client.start("clerk", "Go.")
        await told(run, "run", "paused")
        resuming = asyncio.create_task(run.resume(by="ana"))
        await eventually(lambda: resuming.done() or len(looks) > 1, what="another look")
        assert not resuming.done()
        held.gate.open()
        await resuming
        assert (await run.result()).content == "Done."


async def test_a_failure_that_temporal_does_not_hear_of_is_not_waited_for_for_ever(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("perdure.client.messages.CATCH_UP_SECONDS", 0.1)
    held = Held("perdure.close")
    async with served(engine, held, [fail(BadRequestError("no"))]) as client:
        run = await client.start("clerk", "Go.")
        await told(run, "run", "failed")
        await run.resume(by="ana")
        held.gate.open()
        with pytest.raises(BadRequestError):
            await run.result()


async def test_a_failure_before_a_reset_is_none_of_the_run_that_goes_on(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with served(engine, Held("none"), lambda _: "Yes.") as client:
        run = await client.start("clerk", "One?", mode="session")
        await run.turn().result()
        await run.cancel()
        with pytest.raises(RunCancelledError):
            await run.result()
        await reset(run)
        waited: list[Run] = []

        async def warn(run: Run) -> None:  # as long as something is waited for
            waited.append(run)

        monkeypatch.setattr(Run, "warn_without_worker", warn)
        monkeypatch.setattr("perdure.client.messages.CATCH_UP_SECONDS", 0.1)
        again = client.run(run.id)
        await again.resume()
        assert not waited
        monkeypatch.undo()
        assert (await (await again.send("Two?")).result()).content == "Yes."


async def reset(run: Run) -> None:
    """To its first workflow task, as an operator does it."""
    execution = WorkflowExecution(workflow_id=run.id, run_id=(await run.describe()).run_id)
    temporal = run.client.temporal
    request = ResetWorkflowExecutionRequest(
        namespace=temporal.namespace, workflow_execution=execution, workflow_task_finish_event_id=4, request_id="once"
    )
    await temporal.workflow_service.reset_workflow_execution(request)


async def test_a_paused_run_is_resumed_by_a_client_whose_store_is_down(engine: Engine) -> None:
    async with served(engine, Held("none"), [fail(TranscriptCorruptedError("a node is missing")), "Done."]) as client:
        run = await client.start("clerk", "Go.")
        await eventually(lambda: _is_paused(run), what="the pause")
        other = Client(client.temporal, store_url="sqlite:////nowhere/store.db", task_queue=engine.task_queue)
        await other.run(run.id).resume(by="ana")
        await other.close()
        assert (await run.result()).content == "Done."


async def test_a_paused_run_is_resumed_while_it_has_no_worker(engine: Engine) -> None:
    replies = [fail(TranscriptCorruptedError("a node is missing")), "Done."]
    async with served(engine, Held("none"), replies) as client:
        run = await client.start("clerk", "Go.")
        await eventually(lambda: _is_paused(run), what="the pause")
    await run.resume(by="ana")
    async with served(engine, Held("none"), replies[1:]):
        assert (await run.result()).content == "Done."


async def _is_paused(run: Run) -> bool:
    return (await run.status()).state == "paused"


async def test_a_limit_is_raised_before_the_run_has_heard_that_it_pauses_there(
    engine: Engine, looks: list[Status]
) -> None:
    held = Held("perdure.close")
    options = {"limits": Limits(tokens=1), "on_limit": "pause"}
    async with served(engine, held, [call("free"), "Done."], **options) as client:
        run = await client.start("clerk", "Go.")
        await told(run, "run", "paused")
        resuming = asyncio.create_task(run.resume(limits={"tokens": 1000}, by="ana"))
        await eventually(lambda: resuming.done() or len(looks) > 1, what="another look")
        assert not resuming.done()
        held.gate.open()
        await resuming
        assert (await run.result()).content == "Done."


async def test_a_run_that_somebody_else_has_opened_again_is_cancelled_by_who_had_started_it(engine: Engine) -> None:
    held = Held("none")
    async with served(engine, held, [fail(BadRequestError("no")), call("refund"), "Done."]) as client:
        run = await client.start("clerk", "Go.")
        with pytest.raises(BadRequestError):
            await run.result()
        again = client.run(run.id)
        await again.resume()
        await asked(again)
        await run.cancel()
        with pytest.raises(RunCancelledError):
            await again.result()
        assert (await run.status()).state == "cancelled"
        await again.send("And now?")
        await again.result()
        assert ((status := await run.status()).state, status.reason) == ("completed", None)


async def test_a_first_message_that_only_a_lost_ending_has_recorded_is_said_once(engine: Engine) -> None:
    """No model was called before the cancellation, and Temporal never hears of the ending that is in the store."""
    held, client = Held("perdure.close"), await engine.client()
    run = await client.start("clerk", "Go.")
    await run.cancel()
    async with served(engine, held, ["Done."]):
        await told(run, "run", "cancelled")
        await run.handle.terminate()
        held.gate.open()
        await run.resume()
        assert (await run.result()).content == "Done."
    assert users(await run.transcript()) == ["Go."]
