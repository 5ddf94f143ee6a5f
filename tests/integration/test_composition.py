"""perdure beside other people's code: their client, worker, activities, interceptors, tracing."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from temporalio import activity, workflow
from temporalio.client import Client as TemporalClient
from temporalio.client import WorkflowFailureError
from temporalio.common import RawValue, RetryPolicy
from temporalio.exceptions import ActivityError, ApplicationError
from temporalio.worker import ActivityInboundInterceptor, ExecuteActivityInput, Interceptor
from temporalio.worker import Worker as TemporalWorker

from perdure import Agent, Client, PerdurePlugin, tool
from perdure.testing import ScriptedProvider, call
from tests.support.engine import Engine


@tool
async def add(a: int, b: int) -> int:
    """Add."""
    return a + b


@tool(inline=True)
async def double(n: int) -> int:
    """Twice."""
    return 2 * n


def adder() -> Agent:
    return Agent("adder", ScriptedProvider([[call("add", a=1, b=2), call("double", n=4)], "3"]), tools=[add, double])


@activity.defn
async def greet(name: str) -> str:
    return f"Hello {name}."


@workflow.defn(sandboxed=False)
class Greeting:
    @workflow.run
    async def run(self, name: str) -> str:
        return await workflow.execute_activity(greet, name, start_to_close_timeout=timedelta(seconds=10))


class Recorder(Interceptor):
    """What an activity is given and gives back, as a user's interceptor sees it."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, Any, Any]] = []

    def intercept_activity(self, next: ActivityInboundInterceptor) -> ActivityInboundInterceptor:
        recorder = self

        class Inbound(ActivityInboundInterceptor):
            async def execute_activity(self, input: ExecuteActivityInput) -> Any:
                given = input.args[0]
                if isinstance(given, list | tuple) and given and isinstance(given[0], RawValue):
                    given = activity.payload_converter().from_payload(given[0].payload)
                result = await self.next.execute_activity(input)
                recorder.seen.append((activity.info().activity_type, given, result))
                return result

        return Inbound(next)


@pytest.mark.server
async def test_the_plugin_on_a_worker_with_activities_and_interceptors_of_its_own(engine: Engine) -> None:
    temporal, recorder = await engine.temporal(), Recorder()
    worker = TemporalWorker(
        temporal,
        task_queue=engine.task_queue,
        workflows=[Greeting],
        activities=[greet],
        interceptors=[recorder],
        plugins=[PerdurePlugin([adder()], store_url=engine.store_url)],
    )
    async with worker:
        client = await engine.client()
        response = await (await client.start("adder", "1 + 2?")).result()
        said = await temporal.execute_workflow(
            Greeting.run, "Ana", id=f"greeting-{uuid.uuid4().hex}", task_queue=engine.task_queue
        )
    assert response.content == "3"
    assert said == "Hello Ana."
    assert [kind for kind, _, _ in recorder.seen] == ["perdure.model", "tool.add", "perdure.model", "greet"]
    for kind, given, result in recorder.seen:
        json.dumps([given, result])  # plain data, as it stands in history
        if kind != "greet":
            assert given["context_id"] == response.context_id
            assert isinstance(result, dict)


@pytest.mark.server
async def test_the_plugin_on_a_client_reaches_its_workers(engine: Engine) -> None:
    plugin = PerdurePlugin([adder()], store_url=engine.store_url)
    temporal = await TemporalClient.connect(engine.address, plugins=[plugin])
    async with TemporalWorker(temporal, task_queue=engine.task_queue, workflows=[Greeting], activities=[greet]):
        client = Client(temporal, store_url=engine.store_url, task_queue=engine.task_queue)
        response = await (await client.start("adder", "1 + 2?")).result()
        await client.close()
    assert response.content == "3"
    assert len(response.messages) == 4


@pytest.fixture
def spans() -> Iterator[Any]:
    """Finished spans, in memory. OpenTelemetry's global provider can be set once in a process."""
    from opentelemetry import trace
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    exporter = InMemorySpanExporter()
    provider = trace.get_tracer_provider()
    if not isinstance(provider, TracerProvider):
        provider = TracerProvider()
        trace.set_tracer_provider(provider)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    yield exporter
    exporter.shutdown()


async def test_every_call_is_a_span(engine: Engine, spans: Any) -> None:
    async with engine.served(adder()) as client:
        response = await (await client.start("adder", "1 + 2?")).result()
    found = {
        span.name + "/" + str(span.attributes.get("gen_ai.tool.name")): span for span in spans.get_finished_spans()
    }
    assert set(found) == {"perdure.chat/None", "perdure.execute_tool/add", "perdure.execute_tool/double"}
    names = [span.name for span in spans.get_finished_spans()]
    assert names.count("perdure.chat") == 2
    for span in spans.get_finished_spans():
        assert span.attributes["gen_ai.agent.name"] == "adder"
        assert span.attributes["gen_ai.conversation.id"] == response.context_id
    chat = found["perdure.chat/None"]
    assert chat.attributes["gen_ai.usage.output_tokens"] == 1
    assert found["perdure.execute_tool/double"].parent is not None  # inside the model call that it belongs to


@workflow.defn(sandboxed=False)
class OfANewerEngine:
    @workflow.run
    async def run(self) -> None:
        once = RetryPolicy(maximum_attempts=1)
        await workflow.execute_activity(
            "perdure.novelty", {"a": 1}, start_to_close_timeout=timedelta(seconds=10), retry_policy=once
        )


@pytest.mark.server
async def test_an_activity_of_a_newer_engine_is_left_to_its_workers(engine: Engine) -> None:
    """The dynamic activity of tools takes every type that no other has."""
    temporal = await engine.temporal()
    worker = TemporalWorker(
        temporal,
        task_queue=engine.task_queue,
        workflows=[OfANewerEngine],
        plugins=[PerdurePlugin([adder()], store_url=engine.store_url)],
    )
    async with worker:
        with pytest.raises(WorkflowFailureError) as failed:
            await temporal.execute_workflow(
                OfANewerEngine.run, id=f"newer-{uuid.uuid4().hex}", task_queue=engine.task_queue
            )
    refused = failed.value.cause
    assert isinstance(refused, ActivityError)
    assert isinstance(refused.cause, ApplicationError)
    assert refused.cause.type == "NewerStateError"
    assert not refused.cause.non_retryable
    assert "perdure.novelty" in refused.cause.message
