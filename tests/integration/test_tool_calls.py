"""Tool calls of a run: order, errors, timeouts, retries, threads, inline."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import pytest

from perdure import Agent, ToolContext, tool
from perdure.errors import ThreadsLostError
from perdure.ports.model import Completed
from perdure.testing import ScriptedProvider, call
from perdure.types.messages import ToolCallPart
from tests.support.checks import assert_closed, results
from tests.support.engine import Engine
from tests.support.scripts import calls_then


async def _types(run: Any) -> list[str]:
    """The activity types in the run's history, in order."""
    history = await run.handle.fetch_history()
    scheduled = [event.activity_task_scheduled_event_attributes for event in history.events]
    return [attributes.activity_type.name for attributes in scheduled if attributes.activity_type.name]


@pytest.mark.server
async def test_parallel_calls_run_at_once_and_their_results_stand_in_call_order(engine: Engine) -> None:
    together = threading.Barrier(3)
    ended: list[int] = []

    @tool
    def meet(n: int) -> str:
        """Wait for the two others, then end in reverse order."""
        together.wait(55)
        while len(ended) < 2 - n:
            time.sleep(0.005)
        ended.append(n)
        return f"met {n}"

    provider = ScriptedProvider([[call("meet", n=0), call("meet", n=1), call("meet", n=2)], "All met."])
    async with engine.served(Agent("host", provider, tools=[meet])) as client:
        run = await client.start("host", "Meet.")
        response = await run.result()
        assert await _types(run) == ["perdure.model", "tool.meet", "tool.meet", "tool.meet", "perdure.model"]
    assert ended == [2, 1, 0]
    assert results(response.messages) == ["met 0", "met 1", "met 2"]
    assert_closed(response.messages)


async def test_an_inline_tool_that_fails_is_a_result(engine: Engine) -> None:
    @tool(inline=True)
    def broken() -> None:
        """Break."""
        raise ValueError("broken")

    provider = ScriptedProvider([call("broken"), "Done."])
    async with engine.served(Agent("inline", provider, tools=[broken])) as client:
        response = await (await client.start("inline", "Go.")).result()
    assert results(response.messages) == ["ValueError: broken"]


@pytest.mark.server
async def test_inline_calls_and_those_that_cannot_run_need_no_activity(engine: Engine) -> None:
    seen: list[ToolContext] = []

    @tool(inline=True)
    async def quick(ctx: ToolContext, n: int) -> int:
        """Twice."""
        seen.append(ctx)
        return 2 * n

    @tool
    async def add(a: int, b: int) -> int:
        """Add."""
        return a + b

    calls = [
        call("quick", n=1),
        call("subtract", a=1, b=2),
        call("add", a="one"),
        ToolCallPart(id="", name="add", malformed='{"a": 1,'),
        call("add", a=1, b=2),
        call("quick", n=2),
    ]
    async with engine.served(Agent("calm", ScriptedProvider([calls, "Done."]), tools=[add, quick])) as client:
        run = await client.start("calm", "Go.")
        response = await run.result()
        assert await _types(run) == ["perdure.model", "tool.add", "perdure.model"]
    first, unknown, invalid, malformed, good, last = response.messages[2].tool_results
    assert (first.content, last.content) == ("2", "4")
    assert len({ctx.idempotency_key for ctx in seen}) == 2
    assert unknown.is_error
    assert unknown.content == "tool not found: subtract (there is: add, quick)"
    assert invalid.is_error
    assert "a" in invalid.content
    assert "b" in invalid.content
    assert malformed.is_error
    assert '{"a": 1,' in malformed.content
    assert (good.content, good.is_error) == ("3", False)


async def test_missing_and_repeated_call_ids_are_mended(engine: Engine) -> None:
    @tool
    async def echo(n: int) -> int:
        """Echo."""
        return n

    parts = (
        ToolCallPart(id="", name="echo", arguments={"n": 1}),
        ToolCallPart(id="same", name="echo", arguments={"n": 2}),
        ToolCallPart(id="same", name="echo", arguments={"n": 3}),
    )
    provider = ScriptedProvider([Completed(parts, "tool_calls"), "Done."])
    async with engine.served(Agent("sloppy", provider, tools=[echo])) as client:
        response = await (await client.start("sloppy", "Go.")).result()
    assert results(response.messages) == ["1", "2", "3"]
    assert_closed(response.messages)


@pytest.mark.fault("Models and tools", "A tool raises.", "The model is told, and the tool is not run again.")
async def test_an_exception_is_a_result_and_is_not_retried(engine: Engine) -> None:
    attempts: list[int] = []

    @tool(idempotent=True)
    async def fails(ctx: ToolContext) -> None:
        """Fail."""
        attempts.append(ctx.attempt)
        raise KeyError("no such order")

    provider = ScriptedProvider([call("fails"), "Sorry."])
    async with engine.served(Agent("failing", provider, tools=[fails])) as client:
        response = await (await client.start("failing", "Go.")).result()
    (result,) = response.messages[2].tool_results
    assert result.is_error
    assert result.content == "KeyError: 'no such order'"
    assert attempts == [1]


@pytest.mark.parametrize("kind", ["async", "sync"])
async def test_a_tool_that_takes_too_long_is_told_to_the_model(engine: Engine, kind: str) -> None:
    release = threading.Event()

    @tool(name="wait", timeout=0.2)
    async def wait() -> None:
        """Wait."""
        await asyncio.Event().wait()

    @tool(name="wait", timeout=0.2)
    def block() -> None:
        """Block."""
        release.wait(30)

    provider = ScriptedProvider([call("wait"), "Done."])
    async with engine.served(Agent("slow", provider, tools=[wait if kind == "async" else block])) as client:
        response = await (await client.start("slow", "Go.")).result()
        release.set()
    (said,) = results(response.messages)
    assert said.startswith("TimeoutError: wait did not finish within 0.2 s")


async def test_sync_tools_run_in_threads_of_their_own(engine: Engine) -> None:
    threads: set[int] = set()

    @tool
    def where(ctx: ToolContext) -> str:
        """Say where it runs."""
        threads.add(threading.get_ident())
        ctx.heartbeat("here")
        assert not ctx.cancelled
        return ctx.agent

    provider = ScriptedProvider(calls_then(2, "where"))
    async with engine.served(Agent("threads", provider, tools=[where])) as client:
        response = await (await client.start("threads", "Go.")).result()
    assert threading.get_ident() not in threads
    assert results(response.messages) == ["threads", "threads"]


@pytest.mark.slow
@pytest.mark.server
async def test_of_96_payments_at_once_none_is_told_to_have_timed_out_and_is_made_all_the_same(engine: Engine) -> None:
    together = threading.Barrier(96)

    @tool(timeout=60)
    def pay(n: int) -> str:
        """Pay, while all others do."""
        together.wait(55)
        return f"paid {n}"

    provider = ScriptedProvider([[call("pay", n=n) for n in range(96)], "All paid."])
    async with engine.served(Agent("host", provider, tools=[pay])) as client:
        response = await (await client.start("host", "Pay.")).result()
    assert results(response.messages) == [f"paid {n}" for n in range(96)]


@pytest.mark.server
async def test_a_worker_that_has_lost_its_threads_stops_and_another_goes_on(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("perdure.calls.author_loop.MAX_LOST_THREADS", 3)
    monkeypatch.setattr("perdure.calls.author_loop.LOST_THREADS_GRACE", 0.5)
    go = threading.Event()

    @tool(timeout=0.1)
    def hang() -> str:
        """Wait for an API that does not answer."""
        go.wait(60)
        return "late"

    agent = Agent("host", ScriptedProvider([[call("hang")] * 3, "It does not answer."]), tools=[hang])
    client = await engine.client()
    run = await client.start("host", "Ask it.")
    with pytest.raises(ThreadsLostError, match=r"3 abandoned functions still run .* tool hang of agent host"):
        async with engine.served(agent):
            await asyncio.Event().wait()
    assert "the worker stops, because it has lost threads" in caplog.text
    async with engine.served(agent):
        response = await run.result()
    go.set()
    assert response.content == "It does not answer."
    assert all("TimeoutError: hang did not finish within 0.1 s" in text for text in results(response.messages))


async def test_what_a_tool_returns_is_text_for_the_model(engine: Engine) -> None:
    @tool
    async def odd(kind: str) -> Any:
        """Return odd things."""
        return {"none": None, "bytes": b"\xff", "surrogate": "a\ud800b", "object": object()}[kind]

    kinds = ["none", "bytes", "surrogate", "object"]
    provider = ScriptedProvider([[call("odd", kind=kind) for kind in kinds], "Done."])
    async with engine.served(Agent("odd", provider, tools=[odd])) as client:
        response = await (await client.start("odd", "Go.")).result()
    found = dict(zip(kinds, response.messages[2].tool_results, strict=True))
    assert [part.is_error for part in found.values()] == [False, False, False, True]
    assert "not serialisable" in found["object"].content
    assert "\ud800" not in found["surrogate"].content


async def test_facts_of_the_run_reach_the_tool(engine: Engine) -> None:
    seen: list[ToolContext] = []

    @tool
    async def look(ctx: ToolContext) -> str:
        """Look."""
        seen.append(ctx)
        return "ok"

    async with engine.served(Agent("facts", ScriptedProvider(calls_then(2, "look")), tools=[look])) as client:
        run = await client.start("facts", "Go.", context={"user": "ana"})
        response = await run.result()
    assert [ctx.iteration for ctx in seen] == [1, 2]
    assert [ctx.call_id for ctx in seen] == ["call_0", "call_1"]
    assert {ctx.run_id for ctx in seen} == {run.id}
    assert {ctx.task_id for ctx in seen} == {response.task_id}
    assert seen[0].context == {"user": "ana"}
    assert seen[0].idempotency_key != seen[1].idempotency_key
