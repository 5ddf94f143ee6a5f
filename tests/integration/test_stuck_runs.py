"""A run whose workflow task fails again and again is named, with the way out, and goes on after the reset."""

from __future__ import annotations

import re

import pytest
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.workflowservice.v1 import ResetWorkflowExecutionRequest

from perdure import Agent, Run, tool
from perdure.errors import RunStuckError
from perdure.testing import ScriptedProvider, call
from tests.support.cli import Cli
from tests.support.engine import Engine
from tests.support.wait import eventually

pytestmark = pytest.mark.server


@tool(needs_approval=True)
async def pay(to: str) -> str:
    """Pay a person."""
    return f"paid {to}"


async def _reason(run: Run, part: str) -> str | None:
    reason = (await run.status()).reason or ""
    return reason if part in reason else None


async def test_a_run_that_cannot_be_replayed_is_named_and_goes_on_after_a_reset(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def agent() -> Agent:
        return Agent("payer", ScriptedProvider(lambda r: _reply(r.messages[-1].role)), tools=[pay])

    def _reply(role: str) -> object:
        return "Done." if role == "tool" else call("pay", to="bob")

    cli = Cli(engine.folder, {"TEMPORAL_ADDRESS": engine.address, "PERDURE_STORE_URL": str(engine.store_url)})
    with monkeypatch.context() as other_code:
        other_code.setattr("perdure.workflows.host.Host.upsert_memo", lambda *_: None)
        async with engine.served(agent()) as client:
            run = await client.start("payer", "Go.")
            await eventually(lambda: _asks(run))
    async with engine.served(agent()) as client:
        run = client.run(run.id)
        await run.handle.signal("probe")
        reason = await eventually(lambda: _reason(run, "its workflow task fails, attempt"), what="a reason")
        assert "TMPRL1100" in reason
        with caplog.at_level("WARNING", "perdure.client"):
            listed = await client.approvals()  # other tests' open runs are in the same namespace
        assert run.id not in {call.run.id for call in listed}
        assert f"the pending calls of run {run.id} cannot be read: its workflow task fails" in caplog.text
        assert f"no worker of task queue {engine.task_queue!r}" not in caplog.text
        with pytest.raises(RunStuckError, match="is not paused: its workflow task fails") as caught:
            await run.resume()
        named = re.search(rf"temporal workflow reset --workflow-id {run.id} --event-id (\d+)", caught.value.hint or "")
        assert named is not None
        refused = await cli("resume", run.id)
        assert refused.code != 0
        assert named[0] in refused.err
        doctor = await cli("doctor")
        assert doctor.code == 1
        assert f"{run.id}: its workflow task fails" in doctor.out
        await client.temporal.workflow_service.reset_workflow_execution(
            ResetWorkflowExecutionRequest(
                namespace=client.temporal.namespace,
                workflow_execution=WorkflowExecution(workflow_id=run.id),
                workflow_task_finish_event_id=int(named[1]),
                request_id="reset",
                reason="stuck",
            )
        )
        await eventually(lambda: _asks(run))
        assert f"{run.id}: its workflow task fails" not in (await cli("doctor")).out
        await run.approve()
        assert (await run.result()).content == "Done."


async def _asks(run: Run) -> bool:
    return bool((await run.status()).approvals)
