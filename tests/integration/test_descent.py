"""Who a run descends from, as Temporal proves it; and what was paid stays paid when a run is opened again or reset."""

from __future__ import annotations

import base64
import uuid
from pathlib import Path
from typing import Any

import pytest
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.enums.v1 import EventType
from temporalio.api.workflowservice.v1 import ResetWorkflowExecutionRequest

from perdure import Agent, Run, ToolContext, background, tool
from perdure._encryption import KEYS_VARIABLE
from perdure.errors import AuthContextError, AuthenticationError, PerdureError
from perdure.testing import ScriptedProvider, call
from perdure.types.interface import WORKFLOW_TYPE
from tests.support.checks import results
from tests.support.engine import Engine
from tests.support.wait import eventually

pytestmark = pytest.mark.server

ANA = {"user": "ana"}


@pytest.fixture(autouse=True)
def _keys(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(KEYS_VARIABLE, f"k1:{base64.b64encode(b'k1' * 16).decode()}")
    monkeypatch.setenv("PERDURE_HOME", str(tmp_path / "home"))


@tool
async def whoami(ctx: ToolContext) -> str:
    """Who is it?"""
    return str(ctx.auth_context["user"]) if ctx.auth_context else "nobody"


def asks_who(name: str) -> Agent:
    return Agent(name, ScriptedProvider(lambda r: results_or_call(r, "whoami")), tools=[whoami])


def results_or_call(request: Any, name: str) -> Any:
    found = [part.content for message in request.messages for part in message.tool_results]
    return f"It is {found[-1]}." if found else call(name)


async def token_of(run: Run) -> str:
    event = await anext(run.handle.fetch_history_events())
    payload = event.workflow_execution_started_event_attributes.input.payloads[0]
    (start,) = await run.client.temporal.data_converter.decode([payload])
    return str(start["auth_context"])


async def test_a_token_sealed_for_a_run_does_not_open_for_one_that_names_it_as_its_parent(engine: Engine) -> None:
    """One whose id alone lies below: test_auth_context.py."""
    async with engine.served(asks_who("support"), asks_who("evil")) as client:
        victim = await client.start("support", "Go.", auth_context=ANA)
        assert (await victim.result()).content == "It is ana."
        lineage = {"root": victim.id, "agent": "support", "path": [{"agent": "evil", "call_id": "c"}]}
        scope = victim.handle.first_execution_run_id
        parent = {"context_id": victim.id, "call_id": "c", "scope": scope, "depth": 1, "lineage": lineage}
        start = {"agent": "evil", "message": "Go.", "auth_context": await token_of(victim), "parent": parent}
        evil = client.run(f"{victim.id}/{uuid.uuid4().hex}")
        await client.temporal.start_workflow(WORKFLOW_TYPE, start, id=evil.id, task_queue=engine.task_queue)
        with pytest.raises(AuthContextError, match="made for another run"):
            await evil.result()
        events = [event.context_id async for event in victim.events()]
        assert set(events) == {victim.id}, "nor do its events stand among those of the victim"


@pytest.mark.parametrize("behind", [False, True], ids=["foreground", "background"])
async def test_a_subagent_acts_for_who_its_parent_acts_for_also_after_it_continued_as_new(
    engine: Engine, behind: bool
) -> None:
    def steps(request: Any) -> Any:
        found = [part.content for message in request.messages for part in message.tool_results]
        return f"It is {found[-1]}." if len(found) == 9 else call("whoami")

    sub = Agent("sub", ScriptedProvider(steps), tools=[whoami], max_iterations=20)
    asks: list[Any] = [call("call_sub", task="Who?"), "Done."]
    if behind:
        asks = [call("start_agent", agent_name="sub", message="Who?"), call("collect_agent", handle="b1"), "Done."]
    how: dict[str, Any] = {"tools": background([sub])} if behind else {"subagents": [sub]}
    boss = Agent("boss", ScriptedProvider(asks), **how)
    async with engine.served(boss, sub) as client:
        run = await client.start("boss", "Go.", auth_context=ANA, max_history_events=20)
        response = await run.result()
    assert results(response.messages)[-1] == "It is ana."


async def test_a_subagents_run_that_is_resumed_twice_is_answered_each_time(engine: Engine) -> None:
    """The journal's keys of the first time were those of the second."""
    asked: list[int] = []

    def reply(request: Any) -> Any:
        asked.append(len(request.messages))
        if len(asked) in (1, 3):
            raise AuthenticationError("wrong key")
        return call("whoami") if len(asked) == 2 else results_or_call(request, "whoami")

    sub = Agent("sub", ScriptedProvider(reply), tools=[whoami])
    boss = Agent("boss", ScriptedProvider([call("call_sub", task="Who?"), "Done."]), subagents=[sub])
    async with engine.served(boss, sub) as client:
        run = await client.start("boss", "Go.", auth_context=ANA)
        await run.result()
        (started,) = [event async for event in run.events() if event.type == "tool.started"]
        child = client.run(str(started.child_context_id))
        await child.resume()
        with pytest.raises(AuthenticationError):
            await child.result()
        await child.resume()
        response = await child.result()
    assert response.content == "It is ana."
    assert len(asked) == 4


PAID: list[str] = []


@tool
async def pay(ctx: ToolContext) -> str:
    """Pay."""
    if not await ctx.ask("Sure?", bool):
        return "no"
    PAID.append(ctx.idempotency_key)
    return "paid"


async def test_what_was_done_after_an_answer_is_not_done_again_after_a_reset(engine: Engine) -> None:
    PAID.clear()
    provider = ScriptedProvider(lambda request: results_or_call(request, "pay"))
    async with engine.served(Agent("clerk", provider, tools=[pay])) as client:
        run = await client.start("clerk", "Go.")
        await _answer(run, by="ana")
        assert (await run.result()).content == "It is paid."
        await _reset_before_the_answer(run)
        run = client.run(run.id)
        await _answer(run, by="bea")
        assert (await run.result()).content == "It is paid."
    assert len(PAID) == 1
    assert len(provider.requests) == 2


async def _answer(run: Run, by: str) -> None:
    async def asked() -> bool:
        try:
            return bool((await run.status()).approvals)
        except PerdureError:
            return False

    await eventually(asked)
    await run.answer(value=True, by=by)


async def _reset_before_the_answer(run: Run) -> None:
    """To the workflow task before the update that brought the answer."""
    completed = 0
    async for event in run.handle.fetch_history_events():
        if event.event_type == EventType.EVENT_TYPE_WORKFLOW_EXECUTION_UPDATE_ACCEPTED:
            break
        if event.event_type == EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED:
            completed, before = event.event_id, completed
    execution = WorkflowExecution(workflow_id=run.id, run_id=(await run.describe()).run_id)
    await run.client.temporal.workflow_service.reset_workflow_execution(
        ResetWorkflowExecutionRequest(
            namespace=run.client.temporal.namespace,
            workflow_execution=execution,
            workflow_task_finish_event_id=before,
            request_id=uuid.uuid4().hex,
            reset_reapply_type=2,  # none
        )
    )
