"""PARITY.md A15, A16, B7: agents that call agents, durably."""

from __future__ import annotations

import asyncio
import uuid
from typing import Any

import pytest
from temporalio.worker import UnsandboxedWorkflowRunner
from temporalio.worker import Worker as TemporalWorker

import perdure
from perdure import Agent, PerdurePlugin, delegate, errors, tool
from perdure.testing import ScriptedProvider, call, finish
from tests.support.checks import results, users
from tests.support.engine import Engine
from tests.support.pipeline import City, Pipeline, TypedPipeline, Visit, VisitPipeline
from tests.support.wait import eventually


def said(name: str) -> Agent:
    """Answers with its name, what it was asked, and how much it had heard before."""
    return Agent(name, ScriptedProvider(lambda r: f"{name}({users(r.messages)[-1]}, {len(users(r.messages))})"))


async def test_a15_an_agent_is_a_tool_with_a_task_and_a_fresh_history(engine: Engine) -> None:
    replies: Any = [call("call_helper", task="one"), call("call_helper", task="two"), "Done."]
    provider = ScriptedProvider(replies)
    async with engine.served(Agent("boss", provider, subagents=[said("helper")])) as client:
        response = await (await client.start("boss", "Go.")).result()
    (spec,) = provider.requests[0].tools
    assert (spec.name, list(spec.parameters["properties"])) == ("call_helper", ["task"])
    assert results(response.messages) == ["helper(one, 1)", "helper(two, 1)"]


async def test_a15_one_tool_delegates_to_any_of_several(engine: Engine) -> None:
    replies: Any = [
        call("call_agent", agent_name="b", message="x"),
        call("call_agent", agent_name="a", message="y"),
        ".",
    ]
    provider = ScriptedProvider(replies)
    async with engine.served(Agent("boss", provider, tools=[delegate([said("a"), said("b")])])) as client:
        response = await (await client.start("boss", "Go.")).result()
    (spec,) = provider.requests[0].tools
    assert (spec.name, list(spec.parameters["properties"])) == ("call_agent", ["agent_name", "message"])
    assert results(response.messages) == ["b(x, 1)", "a(y, 1)"]


async def test_a16_pipelines_and_fan_out_in_plain_asyncio(engine: Engine) -> None:
    async with engine.served(said("draft"), said("polish")) as client:

        async def ask(agent: str, message: str) -> str:
            return (await (await client.start(agent, message)).result()).content

        drafts = await asyncio.gather(*(ask("draft", str(n)) for n in range(3)))
        final = await ask("polish", " ".join(drafts))
    assert final == "polish(draft(0, 1) draft(1, 1) draft(2, 1), 1)"


@pytest.mark.server
async def test_a16_the_same_inside_ones_own_temporal_workflow(engine: Engine) -> None:
    failing = Agent("failing", ScriptedProvider(lambda _: call("nothing")), max_iterations=1, on_limit="error")
    plugin = PerdurePlugin([said("draft"), said("polish"), failing], store_url=engine.store_url)
    temporal, own = await engine.temporal(), f"pipeline-{uuid.uuid4().hex[:8]}"
    async with TemporalWorker(temporal, task_queue=engine.task_queue, workflows=[Pipeline], plugins=[plugin]):
        found = await temporal.execute_workflow(Pipeline.run, "t", id=own, task_queue=engine.task_queue)
        client = await engine.client()
        last = await client.run(f"{own}/end").result()
    assert found == ["polish(draft(t 0, 1) draft(t 1, 1), 1)", last.usage.total_tokens, "MaxIterationsError"]
    assert last.content == found[0]


@pytest.mark.server
async def test_an_agent_that_is_given_as_an_object_answers_with_its_type_in_a_workflow(engine: Engine) -> None:
    city = Agent("city", ScriptedProvider(lambda _: finish(name="Oslo")), output=City)
    plugin = PerdurePlugin([city], store_url=engine.store_url)
    temporal = await engine.temporal()
    async with TemporalWorker(temporal, task_queue=engine.task_queue, workflows=[TypedPipeline], plugins=[plugin]):
        own = f"typed-{uuid.uuid4().hex[:8]}"
        found = await temporal.execute_workflow(TypedPipeline.run, id=own, task_queue=engine.task_queue)
    assert found == [True, {"name": "Oslo"}, "ParseError"]
    assert errors is perdure.errors, "the sandbox has replaced a loaded module by its own"


@pytest.mark.slow
@pytest.mark.server
async def test_a_validator_that_the_sandbox_stops_fails_the_task_until_a_deployment_mends_it(engine: Engine) -> None:
    visit = Agent("visit", ScriptedProvider(lambda _: finish(year=2999)), output=Visit)
    plugin = PerdurePlugin([visit], store_url=engine.store_url)
    temporal = await engine.temporal()
    served: Any = {"task_queue": engine.task_queue, "workflows": [VisitPipeline], "plugins": [plugin]}
    async with TemporalWorker(temporal, **served):
        own = f"visit-{uuid.uuid4().hex[:8]}"
        run = await temporal.start_workflow(VisitPipeline.run, id=own, task_queue=engine.task_queue)

        async def find_failure() -> str | None:
            events = (await run.fetch_history()).events
            failed = [event.workflow_task_failed_event_attributes for event in events]
            return next((failure.failure.message for failure in failed if failure.failure.message), None)

        assert "datetime" in (await eventually(find_failure) or "")
    async with TemporalWorker(temporal, **served, workflow_runner=UnsandboxedWorkflowRunner()):
        assert await run.result() == 2999


async def test_b7_specialists_have_their_own_tools_models_and_limits(engine: Engine) -> None:
    @tool
    def look(where: str) -> str:
        """Look."""
        return f"nothing in {where}"

    searching = ScriptedProvider(lambda r: call("look", where="a box") if r.tools else "Stopped looking.")
    searcher = Agent("searcher", searching, tools=[look], max_iterations=2, settings={"temperature": 0.1})
    counting = ScriptedProvider(["4"])
    counter = Agent("counter", counting)
    both: Any = [[call("call_searcher", task="find"), call("call_counter", task="2+2")], "Done."]
    boss = ScriptedProvider(both)
    async with engine.served(Agent("boss", boss, subagents=[searcher, counter])) as client:
        response = await (await client.start("boss", "Go.")).result()
    assert results(response.messages) == ["Stopped looking.", "4"]
    assert [[spec.name for spec in one.requests[0].tools] for one in (boss, searching, counting)] == [
        ["call_searcher", "call_counter"],
        ["look"],
        [],
    ]
    assert searching.requests[0].settings["temperature"] == 0.1
