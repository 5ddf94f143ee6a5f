"""Every kind of run there is so far, each as a function that makes one on a real server and returns it ended.

Used by ``record.py``. A new kind of run (a new command, signal or ending in the workflow) gets a scenario here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any
from unittest import mock

from perdure import Agent, Run, tool
from perdure.errors import AuthenticationError, PerdureError, RateLimitError
from perdure.loop.apply import apply_model
from perdure.ports.model import Completed, ModelRequest
from perdure.testing import ScriptedProvider, call
from perdure.types.messages import ToolCallPart
from perdure.workflows import steps as workflow_steps
from tests.support import faults
from tests.support.checks import users
from tests.support.engine import Engine
from tests.support.scripts import Gate, replied
from tests.support.wait import eventually

Scenario = Callable[[Engine], Awaitable[Run]]
SCENARIOS: dict[str, Scenario] = {}


def scenario(make: Scenario) -> Scenario:
    """Record what ``make`` returns under its name."""
    SCENARIOS[make.__name__] = make
    return make


@tool
async def add(a: int, b: int) -> int:
    """Add."""
    return a + b


@tool(inline=True)
async def double(n: int) -> int:
    """Twice."""
    return 2 * n


@tool(idempotent=True, timeout=0.1)
async def slow() -> str:
    """Take too long."""
    await asyncio.Event().wait()
    return "never"


@tool
async def fail() -> None:
    """Fail."""
    raise ValueError("broken")


TOOLS = [add, double, slow, fail]


def steps(count: int) -> Callable[[ModelRequest], Any]:
    """``count`` calls of ``add``, then an answer."""
    return lambda r: "Done." if replied(r) >= count else call("add", a=replied(r), b=1)


async def ended(engine: Engine, replies: Any, message: str | None = "Go.", *inject: str, **options: Any) -> Run:
    """Run an agent with these replies to its end, whatever that is."""
    start = {key: options.pop(key) for key in ("context", "max_history_events") if key in options}
    agent = Agent("recorded", ScriptedProvider(replies), **{"tools": TOOLS, **options})
    async with engine.served(agent) as client:
        run = await client.start("recorded", message, **start)
        for n, text in enumerate(inject):
            await run.inject(text, id=str(n))
        await _end(run)
    return run


async def _end(run: Run) -> None:
    try:
        await run.result()
    except PerdureError as error:
        print(f"  ends with {type(error).__name__}")


async def _held(engine: Engine, gate: Gate, agent: Agent, during: Callable[[Run], Awaitable[None]]) -> Run:
    """A run to which something happens while ``gate`` holds it."""
    async with engine.served(agent) as client:
        run = await client.start("recorded", "Go.")
        await eventually(lambda: gate.entered)
        await during(run)
        await _end(run)
    return run


# --- answers


@scenario
async def text(engine: Engine) -> Run:
    return await ended(engine, ["Hello."], context={"user": "ana"})


@scenario
async def tag(engine: Engine) -> Run:
    return await ended(engine, ["Thinking.", "<finish>42</finish>"], finish="tag")


@scenario
async def empty_reply(engine: Engine) -> Run:
    return await ended(engine, [" ", "Hello."])


@scenario
async def cut_replies(engine: Engine) -> Run:
    """Cut within a call, cut before anything was said, and whole; then cut until the turn fails."""
    part = ToolCallPart(id="c1", name="add", malformed='{"a": 1, "b')
    cut, thought = Completed((part,), "length"), Completed((), "length")
    return await ended(engine, [cut, thought, call("add", a=1, b=2), cut, cut, thought])


@scenario
async def large_reply(engine: Engine) -> Run:
    return await ended(engine, [["t" * 100_000, call("add", a=1, b=2)], "u" * 100_000])


# --- tools


@scenario
async def one_tool(engine: Engine) -> Run:
    return await ended(engine, steps(1))


@scenario
async def parallel_tools(engine: Engine) -> Run:
    return await ended(engine, [[call("add", a=n, b=1) for n in range(4)], "Done."])


@scenario
async def inline_tools(engine: Engine) -> Run:
    return await ended(engine, [[call("double", n=1), call("add", a=1, b=1), call("double", n=2)], "Done."])


@scenario
async def calls_that_cannot_run(engine: Engine) -> Run:
    malformed = ToolCallPart(id="", name="add", malformed="{")
    replies = [[call("nothing"), call("add", a="x"), malformed, call("add", a=1, b=1)], call("nothing"), "Done."]
    return await ended(engine, replies)


@scenario
async def tools_that_fail(engine: Engine) -> Run:
    return await ended(engine, [[call("fail"), call("slow")], "Done."])


# --- messages


@scenario
async def first_message_later(engine: Engine) -> Run:
    agent = Agent("recorded", ScriptedProvider(["Hello."]))
    async with engine.served(agent) as client:
        run = await client.start("recorded")
        await eventually(lambda: _state(run, "idle"))
        await run.inject("hi")
        await _end(run)
    return run


@scenario
async def messages_before_the_first_task(engine: Engine) -> Run:
    client = await engine.client()
    run = await client.start("recorded", "0")
    for text in ("1", "1", "2"):
        await run.inject(text, id=text)
    async with engine.served(Agent("recorded", ScriptedProvider(["Hello."]))):
        await _end(run)
    return run


@scenario
async def messages_during_a_model_call(engine: Engine) -> Run:
    gate = Gate()

    async def reply(request: ModelRequest) -> str:
        await gate()
        return "Hello."

    async def during(run: Run) -> None:
        await run.inject("one")
        await run.handle.signal("inject_user_message", {"no": "message"})
        await run.inject("two", id="2")
        gate.open()

    return await _held(engine, gate, Agent("recorded", ScriptedProvider(reply)), during)


@scenario
async def messages_during_a_tool_call(engine: Engine) -> Run:
    gate = Gate()

    async def during(run: Run) -> None:
        await run.inject("one")
        gate.open()

    return await _held(engine, gate, _holder(gate), during)


def _holder(gate: Gate) -> Agent:
    @tool
    async def hold() -> str:
        """Hold."""
        await gate()
        return "held"

    provider = ScriptedProvider([[call("add", a=1, b=1), call("hold"), call("hold")], "Done."])
    return Agent("recorded", provider, tools=[add, hold])


async def _state(run: Run, state: str) -> bool:
    return (await run.status()).state == state


# --- limits and failures


@scenario
async def limit_finish(engine: Engine) -> Run:
    return await ended(engine, lambda r: call("add", a=1, b=1) if r.tools else "All I know.", max_iterations=2)


@scenario
async def limit_return(engine: Engine) -> Run:
    replies = [["Looking.", call("add", a=1, b=1)]] * 2
    return await ended(engine, replies, max_iterations=2, on_limit="return")


@scenario
async def limit_error(engine: Engine) -> Run:
    return await ended(engine, steps(9), max_iterations=2, on_limit="error")


@scenario
async def failed(engine: Engine) -> Run:
    return await ended(engine, [call("add", a=1, b=1), AuthenticationError("wrong key")])


@scenario
async def failed_at_once(engine: Engine) -> Run:
    return await ended(engine, [AuthenticationError("wrong key")], "Go.", "One more.")


@scenario
async def retried(engine: Engine) -> Run:
    return await ended(engine, [RateLimitError("slow down", retry_after=0.05), "Hello."])


@scenario
async def badly_shaped(engine: Engine) -> Run:
    temporal = await engine.temporal()
    async with engine.served(Agent("recorded", ScriptedProvider([]))) as client:
        run = client.run(f"bad-{engine.task_queue}")
        await temporal.start_workflow("AgentWorkflow", "hello", id=run.id, task_queue=engine.task_queue)
        await _end(run)
    return run


# --- cancelled


@scenario
async def cancelled_in_a_model_call(engine: Engine) -> Run:
    gate = Gate()

    async def reply(request: ModelRequest) -> str:
        await gate()
        return "Never."

    async def during(run: Run) -> None:
        await run.inject("And this.")
        await run.cancel()

    return await _held(engine, gate, Agent("recorded", ScriptedProvider(reply)), during)


@scenario
async def cancelled_in_tools(engine: Engine) -> Run:
    gate = Gate()

    async def during(run: Run) -> None:
        await eventually(lambda: gate.entered == 2)
        await run.cancel()

    return await _held(engine, gate, _holder(gate), during)


@scenario
async def cancelled_while_waiting(engine: Engine) -> Run:
    async with engine.served(Agent("recorded", ScriptedProvider([]))) as client:
        run = await client.start("recorded")
        await eventually(lambda: _state(run, "idle"))
        await run.cancel()
        await _end(run)
    return run


@scenario
async def cancelled_before_the_first_task(engine: Engine) -> Run:
    client = await engine.client()
    run = await client.start("recorded", "hi")
    await run.cancel()
    async with engine.served(Agent("recorded", ScriptedProvider(["Hi."]))):
        await _end(run)
    return run


# --- long and interrupted runs


@scenario
async def continued_as_new(engine: Engine) -> Run:
    messages = [f"message {n}" for n in range(5)]
    return await ended(engine, steps(12), "Go.", *messages, max_history_events=20)


@scenario
async def continued_as_new_and_cancelled(engine: Engine) -> Run:
    gate = Gate()

    async def reply(request: ModelRequest) -> Any:
        if replied(request) == 6:
            await gate()
        return call("add", a=1, b=1)

    async with engine.served(Agent("recorded", ScriptedProvider(reply), tools=TOOLS)) as client:
        run = await client.start("recorded", "Go.", max_history_events=20)
        await eventually(lambda: gate.entered)
        await run.cancel()
        await _end(run)
    return run


@scenario
async def paused_and_resumed(engine: Engine) -> Run:
    gate = Gate()
    client = await engine.client()
    async with engine.served(_holder(gate)):
        run = await client.start("recorded", "Go.")
        await eventually(lambda: gate.entered == 2)
        # Recorded, but nothing of it is in the memory of the next worker.
        gate.open()
        await run.inject("Still there?")
        response = await run.result()
    assert users(response.messages) == ["Go.", "Still there?"]
    # A second run goes on from the first one's transcript, which was damaged meanwhile.
    (body,) = faults.sql(engine.store_path, "SELECT body FROM nodes WHERE hash = ?", response.head)[0]
    faults.sql(engine.store_path, "UPDATE nodes SET body = ? WHERE hash = ?", body[:-1] + b" ", response.head)
    async with engine.served(Agent("recorded", ScriptedProvider(["Hello."]))):
        start = {"agent": "recorded", "message": "On we go.", "history": response.head, "store_id": response.store_id}
        second = client.run(f"paused-{engine.task_queue}")
        await client.temporal.start_workflow("AgentWorkflow", start, id=second.id, task_queue=engine.task_queue)
        await eventually(lambda: _state(second, "paused"))
        await second.resume()
        await eventually(lambda: _state(second, "paused"))
        faults.sql(engine.store_path, "UPDATE nodes SET body = ? WHERE hash = ?", body, response.head)
        await second.inject("Mended.")
        await second.resume()
        await _end(second)
    return second


@scenario
async def engine_fault(engine: Engine) -> Run:
    """A change of the state fails, twice; the run is resumed when its workers have an engine without the fault."""
    failures = 0

    def broken(*arguments: Any) -> None:
        nonlocal failures
        failures += 1
        apply_model(*arguments)
        raise TypeError("a fault")

    agent = Agent("recorded", ScriptedProvider(lambda _: "Hello."))
    with mock.patch.object(workflow_steps, "apply_model", broken):  # as an engine with that fault has it
        async with engine.served(agent) as client:
            run = await client.start("recorded", "Go.")
            await eventually(lambda: _state(run, "paused"))
            await run.resume()
            await eventually(lambda: failures == 2)
            await eventually(lambda: _state(run, "paused"))
    async with engine.served(agent) as client:
        again = client.run(run.id)
        await again.resume()
        await _end(again)
    return again


@scenario
async def worker_lost(engine: Engine) -> Run:
    """The history goes on at another worker, which replays what the first one did."""
    gate = Gate()
    client = await engine.client()
    async with engine.served(Agent("recorded", ScriptedProvider(steps(3)), tools=TOOLS)):
        run = await client.start("recorded")
        await eventually(lambda: _state(run, "idle"))
    await run.inject("Go.")
    async with engine.served(_holder(gate)):
        await eventually(lambda: gate.entered == 2)
        gate.open()
        await _end(run)
    return run
