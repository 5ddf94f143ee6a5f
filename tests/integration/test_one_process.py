"""Several workers and calls in one process: they share what they can and take nothing from each other."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Sequence
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import pytest
from temporalio import activity
from temporalio.common import RawValue
from temporalio.worker import Worker as TemporalWorker

from perdure import Agent, Client, PerdurePlugin, tool
from perdure._config import get_shared_task_queue
from perdure.calls.agents import Agents
from perdure.errors import ApprovalPendingError, DefinitionError
from perdure.local_engine.engine import build_agent_queue_name
from perdure.providers import OpenAIChat, register_provider, registry
from perdure.testing import ScriptedProvider, call
from perdure.worker.drain import Drain, RunningActivities
from perdure.worker.health import WorkerHealth, WorkflowTasks
from perdure.worker.worker import _serve_in_block
from tests.servers.model_server import OpenAIServer
from tests.support.engine import Engine
from tests.support.scripts import Gate
from tests.support.wait import eventually

pytestmark = pytest.mark.server


async def test_the_end_of_one_worker_cuts_no_reply_of_another(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "_providers", {})
    gate = Gate()

    async def rule(asked: dict[str, Any]) -> str:
        if "slow" in str(asked["messages"]):
            await gate()
        return "hi"

    (tmp_path / "other").mkdir()
    other = Engine(engine.address, tmp_path / "other")
    async with OpenAIServer(rule) as server:
        register_provider("shared", OpenAIChat(base_url=server.base_url, api_key="k"))
        async with engine.served(Agent("a", "shared:m")) as client:
            slow = await client.start("a", "slow")
            await eventually(lambda: gate.entered)
            async with other.served(Agent("b", "shared:m")) as beside:
                assert (await (await beside.start("b", "fast")).result()).content == "hi"
            gate.open()
            assert (await slow.result()).content == "hi"
        assert (server.stats.requests, server.stats.aborted) == (2, 0)
    await other.close()


async def test_a_worker_with_a_dynamic_activity_is_refused_by_its_name(engine: Engine) -> None:
    @activity.defn(dynamic=True)
    async def anything(args: Sequence[RawValue]) -> str:
        return ""

    plugin = PerdurePlugin([Agent("a", ScriptedProvider([]))], store_url=engine.store_url)
    with pytest.raises(DefinitionError, match=r"(?s)anything.*static names"):
        TemporalWorker(await engine.temporal(), task_queue=engine.task_queue, activities=[anything], plugins=[plugin])


@pytest.fixture
def here(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> Engine:
    """``Agent.call`` goes to the tests' server and store, from a program of its own."""
    monkeypatch.setenv("TEMPORAL_ADDRESS", engine.address)
    monkeypatch.setenv("PERDURE_STORE_URL", str(engine.store_url))
    monkeypatch.delenv("PERDURE_TASK_QUEUE", raising=False)
    monkeypatch.setattr("sys.argv", [f"/somewhere/program-{uuid.uuid4().hex[:8]}.py"])
    return engine


async def test_calls_of_several_agents_at_once_do_not_wait_for_each_other(here: Engine) -> None:
    agents = [Agent(f"agent-{n}", ScriptedProvider([f"I am {n}."] * 2)) for n in range(3)]
    responses = await asyncio.gather(*(agent.call("Who?") for agent in [*agents, agents[0]]))
    assert [response.content for response in responses] == ["I am 0.", "I am 1.", "I am 2.", "I am 0."]
    client = await here.client(store=False)
    for response in responses:
        history = await client.run(response.context_id).handle.fetch_history()
        kind = "activity_task_started_event_attributes"
        tried = [getattr(event, kind) for event in history.events if event.HasField(kind)]
        failed = [one.last_failure.application_failure_info.type for one in tried]
        assert failed != []
        assert "AgentNotFoundError" not in failed, "another's worker took it, and the run waited for its next attempt"


async def test_the_error_of_a_worker_replaces_the_cancellation_of_its_block() -> None:
    class Failing:
        async def run(self) -> None:
            raise ValueError("the worker failed")

        async def shutdown(self) -> None:
            pass

    running = RunningActivities(1, Agents())
    drain = Drain(running, 0.0)
    failing: Any = Failing()
    with pytest.raises(ValueError, match="the worker failed"):
        async with _serve_in_block(failing, drain, WorkerHealth(running, WorkflowTasks(), drain)):
            await asyncio.Event().wait()
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0


async def test_agents_of_one_name_do_not_take_each_others_calls(here: Engine) -> None:
    gate = Gate()
    user_count = 4

    async def call_as(user: str) -> str:
        async def reply(request: Any) -> str:
            await gate()
            return user

        return (await Agent("helper", ScriptedProvider(reply)).call("Who am I?")).content

    users = [f"user {n}" for n in range(user_count)]
    calls = [asyncio.create_task(call_as(user)) for user in users]
    await eventually(lambda: gate.entered == user_count)
    gate.open()
    assert await asyncio.gather(*calls) == users


async def test_a_thread_whose_call_ends_takes_nothing_from_the_call_of_another(here: Engine) -> None:
    gate = Gate()

    async def reply(request: Any) -> str:
        if "slow" in request.messages[-1].text:
            await gate()
        return "Done."

    agent = Agent("helper", ScriptedProvider(reply))
    slow = asyncio.create_task(agent.call("slow"))
    await eventually(lambda: gate.entered)
    quick = await asyncio.to_thread(agent.call_sync, "quick")
    gate.open()
    assert ((await slow).content, quick.content) == ("Done.", "Done.")
    queues = [
        (await (await here.client()).run(run_id).describe()).task_queue
        for run_id in [(await slow).context_id, quick.context_id]
    ]
    assert len(set(queues)) == 2
    assert gate.entered == 1


async def test_tools_do_not_get_the_context_variables_of_the_first_caller(here: Engine) -> None:
    tenant = ContextVar("tenant", default="none")
    seen: list[str] = []

    @tool
    async def look() -> str:
        seen.append(tenant.get())
        return "Looked."

    agent = Agent("helper", ScriptedProvider([call("look"), "Done."]), tools=[look])
    tenant.set("Ana")
    assert (await agent.call("Go.")).content == "Done."
    assert seen == ["none"]


async def test_a_run_that_a_call_without_an_id_left_open_is_served_by_its_id(here: Engine) -> None:
    @tool(needs_approval=True)
    def pay() -> str:
        return "Paid."

    agent = Agent("payer", ScriptedProvider([call("pay"), "Done."]), tools=[pay])
    with pytest.raises(ApprovalPendingError, match="The same call with id=") as raised:
        await agent.call("Pay.", on_approval="raise")
    run_id = str(raised.value).rpartition("id='")[2].partition("'")[0]
    assert (await agent.call("Pay.", id=run_id, on_approval="approve")).content == "Done."
    client = await here.client()
    assert is_private((await client.run(run_id).describe()).task_queue)
    fork = await client.run(run_id).fork("And now?")
    assert not is_private((await fork.describe()).task_queue), "no worker polls the call's own queue any more"
    await fork.terminate()


def is_private(queue: str) -> bool:
    return get_shared_task_queue(queue) != queue


@pytest.mark.fault(
    "Workers", "The program that made a `call(id=…)` ends.", "The same call, made again, continues the run."
)
async def test_a_call_that_was_killed_is_attached_to_again(here: Engine) -> None:
    run_id = f"killed-{uuid.uuid4().hex[:8]}"
    gate = Gate()

    async def reply(request: Any) -> str:
        await gate()
        return "first" if gate.entered == 1 else "again"

    agent = Agent("helper", ScriptedProvider(reply))
    first = asyncio.create_task(agent.call("Go.", id=run_id))
    await eventually(lambda: gate.entered)
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    gate.open()
    assert (await agent.call("Go.", id=run_id)).content == "again"


async def test_the_task_queue_of_the_environment_is_the_calls_too(
    here: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert build_agent_queue_name("a") != build_agent_queue_name("b")
    monkeypatch.setenv("PERDURE_TASK_QUEUE", here.task_queue)
    assert build_agent_queue_name("a") == here.task_queue
    await Agent("a", ScriptedProvider(["hi"])).call("Hi.", id=f"{here.task_queue}-1")
    client = Client(await here.temporal(), store_url=here.store_url)
    described = await client.run(f"{here.task_queue}-1").handle.describe()
    assert described.task_queue == here.task_queue
