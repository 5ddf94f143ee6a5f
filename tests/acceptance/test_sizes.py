"""History grows with what is said, not with its square; long runs and large messages pass."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import WorkflowExecutionStatus

from perdure import Agent, Client, Run, tool
from perdure.embedded import server
from perdure.embedded.home import Home
from perdure.embedded.server import ensure_server, stop_server
from perdure.errors import InvalidInputError, RunNotFoundError
from perdure.ports.model import Completed, ModelRequest
from perdure.testing import ScriptedProvider, call
from perdure.types.messages import TextPart, ToolCallPart, encode_canonical
from tests.support.checks import assert_closed, results
from tests.support.engine import Engine
from tests.support.scripts import replied

pytestmark = pytest.mark.server

KB, MB = 1024, 1024 * 1024


@tool
async def read(n: str) -> str:
    """Read 4 KB."""
    return f"{n}:" + "x" * (4 * KB - len(n) - 1)


def reader(iterations: int) -> Agent:
    def reply(
        request: ModelRequest,
    ) -> Completed:  # whole, because counting the words of it all costs more than the run
        n = replied(request)
        if n == iterations:
            return Completed((TextPart(text="Done."),))
        return Completed((ToolCallPart(id=f"call_{n}", name="read", arguments={"n": str(n)}),), "tool_calls")

    return Agent("reader", ScriptedProvider(reply), tools=[read], max_iterations=iterations + 1)


async def _history_bytes(run: Run) -> int:
    """Of all executions of the run."""
    total = 0
    async for seen in run.client.temporal.list_workflows(f"WorkflowId = '{run.id}'"):
        total += seen.raw_info.history_size_bytes
    described = await run.handle.describe()
    return max(total, described.raw_description.workflow_execution_info.history_size_bytes)


@pytest.mark.parametrize("fewer", [20, pytest.param(100, marks=pytest.mark.slow)])
async def test_history_grows_linearly(engine: Engine, fewer: int) -> None:
    sizes: dict[int, int] = {}
    messages: dict[int, int] = {}
    for iterations in (fewer, 2 * fewer):
        engine.task_queue += f"-{iterations}"
        async with engine.served(reader(iterations)) as client:
            run = await client.start("reader", "Read everything.")
            response = await run.result()
            sizes[iterations] = await _history_bytes(run)
        assert len(results(response.messages)) == iterations
        messages[iterations] = len(encode_canonical(response.messages))
    for iterations, size in sizes.items():
        bound = 1.3 * messages[iterations] + 3 * KB * iterations
        print(
            f"{iterations} iterations: history {size / MB:.2f} MB, messages {messages[iterations] / MB:.2f} MB, "
            f"{(size - messages[iterations]) / iterations:.0f} bytes over an iteration"
        )
        assert size <= bound
    print(f"ratio {sizes[2 * fewer] / sizes[fewer]:.3f}")
    assert sizes[2 * fewer] <= 2.1 * sizes[fewer]


@pytest.mark.slow
async def test_a_run_continues_as_new_where_the_server_suggests_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the run's own threshold: test_continue_as_new.py."""
    home, suggested = Home(tmp_path / "home"), "limit.historyCount.suggestContinueAsNew=50"
    monkeypatch.setattr(server, "DYNAMIC_CONFIG", (*server.DYNAMIC_CONFIG, suggested))
    engine = Engine((await ensure_server(home)).address, tmp_path)
    try:
        assert 2 <= await _executions_of_reading(engine, 20) <= 8
    finally:
        await engine.close()
        await stop_server(home)


@pytest.mark.fault(
    "Sizes",
    "A run takes 2,000 iterations.",
    "It continues as new on the way, and its history stays within Temporal's bounds.",
)
@pytest.mark.slow
@pytest.mark.timeout(600)  # 45 s on two idle cores
async def test_two_thousand_iterations_continue_as_new_on_the_way(engine: Engine) -> None:
    begun = time.monotonic()
    executions = await _executions_of_reading(engine, 2000)
    seconds, load = time.monotonic() - begun, os.getloadavg()[0]
    print(f"2,000 iterations: {seconds:.1f} s, {seconds / 2:.1f} ms each, {executions} executions, load {load:.1f}")
    assert executions > 1


async def _executions_of_reading(engine: Engine, iterations: int) -> int:
    """How many executions a run of so many iterations went through. Of its results none is missing or double."""
    async with engine.served(reader(iterations)) as client:
        run = await client.start("reader", "Read everything.")
        response = await run.result()
        executions = await _executions(client, run)
    assert response.iterations == iterations + 1
    assert_closed(response.messages)
    assert [text.partition(":")[0] for text in results(response.messages)] == [str(n) for n in range(iterations)]
    return executions


async def _executions(client: Client, run: Run) -> int:
    """How many executions the run went through, told from its chain."""
    count, execution = 1, None
    while True:
        handle = client.temporal.get_workflow_handle(run.id, run_id=execution)
        first = (await handle.fetch_history()).events[0].workflow_execution_started_event_attributes
        if not first.continued_execution_run_id:
            return count
        count, execution = count + 1, first.continued_execution_run_id


@pytest.mark.fault("Sizes", "A tool returns 20 MB.", "The store has them, and history a reference.")
async def test_a_tool_result_of_20_mb_passes(engine: Engine) -> None:
    @tool
    async def big() -> str:
        """Return 20 MB."""
        return "é" * (10 * MB)

    provider = ScriptedProvider([call("big"), lambda r: f"{len(results(r.messages)[-1])} characters"])
    async with engine.served(Agent("big", provider, tools=[big])) as client:
        run = await client.start("big", "Go.")
        response = await run.result()
        assert await _history_bytes(run) < 20 * KB
    assert response.content == f"{10 * MB} characters"
    assert len(results(response.messages)[0].encode()) == 20 * MB


async def test_an_inline_result_of_20_mb_passes(engine: Engine) -> None:
    @tool(inline=True)
    async def big() -> str:
        """Return 20 MB."""
        return "x" * (20 * MB)

    provider = ScriptedProvider([call("big"), lambda r: f"{len(results(r.messages)[-1])} characters"])
    async with engine.served(Agent("big", provider, tools=[big])) as client:
        response = await (await client.start("big", "Go.")).result()
    assert response.content == f"{20 * MB} characters"


async def test_messages_of_3_mb_pass_by_the_store(engine: Engine) -> None:
    provider = ScriptedProvider(lambda r: " ".join(str(len(m.text)) for m in r.messages if m.role == "user"))
    async with engine.served(Agent("long", provider)) as client:
        run = await client.start("long", "y" * (3 * MB))
        response = await run.result()
        waiting = await client.start("long")
        await waiting.inject("z" * (3 * MB), id="1")
        injected = await waiting.result()
    assert response.content == str(3 * MB)
    assert len(response.messages[0].text) == 3 * MB
    assert injected.content == str(3 * MB)


async def test_a_message_of_3_mb_without_a_store_is_refused_before_anything_is_started(engine: Engine) -> None:
    client = await engine.client(store=False)
    with pytest.raises(InvalidInputError, match=r"3,145,728 bytes.*\n.*store_url"):
        await client.start("long", "y" * (3 * MB), id=f"long-{engine.task_queue}")
    with pytest.raises(RunNotFoundError):
        await client.run(f"long-{engine.task_queue}").status()


async def test_a_reply_of_3_mb_and_arguments_of_1_mb_pass(engine: Engine) -> None:
    @tool
    async def count(text: str) -> int:
        """Count."""
        return len(text)

    @tool(inline=True)
    async def measure(text: str) -> int:
        """Measure."""
        return len(text)

    def reply(request: ModelRequest) -> Any:
        if replied(request) == 0:
            return ["t" * (3 * MB), call("count", text="a" * MB), call("measure", text="b" * MB)]
        return "u" * (3 * MB)

    async with engine.served(Agent("wordy", ScriptedProvider(reply), tools=[count, measure])) as client:
        run = await client.start("wordy", "Go.")
        response = await run.result()
        assert await _history_bytes(run) < 40 * KB
        described = await run.handle.describe()
        assert described.status == WorkflowExecutionStatus.COMPLETED
        plain = await (await engine.client(store=False)).run(run.id).result()
    assert results(response.messages) == [str(MB), str(MB)]
    assert response.content == response.output == "u" * (3 * MB)
    assert response.messages[1].text == "t" * (3 * MB)
    assert plain.content == ""
    assert plain.blob is not None
    assert plain.blob.size == 3 * MB


async def test_many_large_messages_at_once_pass(engine: Engine) -> None:
    """Each of them is below what goes to the store; together they are above what Temporal takes."""
    client = await engine.client()
    run = await client.start("long", "0" * (100 * KB))
    for n in range(1, 40):
        await run.inject(str(n % 10) * (100 * KB), id=str(n))
    provider = ScriptedProvider(lambda r: str(sum(len(m.text) for m in r.messages if m.role == "user")))
    async with engine.served(Agent("long", provider)):
        response = await run.result()
    assert response.content == str(40 * 100 * KB)
