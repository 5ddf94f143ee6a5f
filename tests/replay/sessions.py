"""Kinds of conversations whose histories are stored: turns, interrupts, waiting, going on after an end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any
from unittest import mock

from perdure import Agent, Client, Run
from perdure.errors import PerdureError
from perdure.ports.model import ModelRequest
from perdure.testing import ScriptedProvider, call
from perdure.workflows import handlers
from tests.replay.scenarios import TOOLS, _end, _holder, _state, scenario
from tests.support.checks import users
from tests.support.engine import Engine
from tests.support.scripts import Gate, replied
from tests.support.wait import eventually


def echo(request: ModelRequest) -> str:
    return f"You said {users(request.messages)[-1]}."


def talker(replies: Any = echo, **options: Any) -> Agent:
    return Agent("recorded", ScriptedProvider(replies), **{"tools": TOOLS, **options})


async def said(client: Client, id: str, *messages: str | None, **options: Any) -> Run:
    """A conversation in which every message was answered."""
    for n, message in enumerate(messages):
        turn = await client.send("recorded", message, id=id, message_id=f"{id}-{n}", **options)
        with suppress(PerdureError):
            await turn.result()
    return client.run(id)


async def closed(run: Run) -> Run:
    await run.close()
    await _end(run)
    return run


async def _held(engine: Engine, agent: Agent, gate: Gate, during: Callable[[Run], Any], calls: int = 1) -> Run:
    """A session to which something happens while ``gate`` holds its calls; it is closed in the end."""
    async with engine.served(agent) as client:
        run = await client.start("recorded", "Go.", mode="session")
        await eventually(lambda: gate.entered == calls)
        await during(run)
        with suppress(PerdureError):
            await run.turn().result()
        return await closed(run)


@scenario
async def session(engine: Engine) -> Run:
    replies = ["One.", [call("add", a=1, b=1), call("double", n=1)], "Two.", "Three."]
    async with engine.served(talker(replies)) as client:
        return await closed(await said(client, engine.task_queue, "1", "2", "3"))


@scenario
async def session_without_a_message(engine: Engine) -> Run:
    async with engine.served(talker()) as client:
        return await closed(await said(client, engine.task_queue, "1", None))


@scenario
async def session_idle(engine: Engine) -> Run:
    """Two timers: the first is cancelled by a message, the second fires."""
    async with engine.served(talker()) as client:
        run = await said(client, engine.task_queue, "1", "2", idle_timeout=0.3)
        await _end(run)
    return run


@scenario
async def session_cancelled_while_idle(engine: Engine) -> Run:
    async with engine.served(talker()) as client:
        run = await said(client, engine.task_queue, "1", idle_timeout="1h")
        await run.cancel()
        await _end(run)
    return run


@scenario
async def session_at_its_limit(engine: Engine) -> Run:
    replies = lambda r: call("add", a=1, b=1) if r.messages[-1].role != "tool" else "Never."  # noqa: E731
    async with engine.served(talker(replies, max_iterations=1, on_limit="return")) as client:
        return await closed(await said(client, engine.task_queue, "1", "2"))


@scenario
async def session_closed_in_a_turn(engine: Engine) -> Run:
    gate = Gate()

    async def during(run: Run) -> None:
        await run.close()
        gate.open()

    async with engine.served(_holder(gate)) as client:
        run = await client.start("recorded", "Go.", mode="session")
        await eventually(lambda: gate.entered == 2)
        await during(run)
        await _end(run)
    return run


@scenario
async def session_continued_as_new(engine: Engine) -> Run:
    async with engine.served(talker()) as client:
        await client.start("recorded", "0", id=engine.task_queue, mode="session", max_history_events=25)
        return await closed(await said(client, engine.task_queue, *map(str, range(1, 8))))


@scenario
async def session_of_many_senders(engine: Engine) -> Run:
    async with engine.served(talker()) as client:
        await asyncio.gather(*(client.send("recorded", str(n), id=engine.task_queue) for n in range(12)))
        run = client.run(engine.task_queue)
        await run.turn().result()
        return await closed(run)


@scenario
async def session_before_the_first_worker(engine: Engine) -> Run:
    """Update, signals and interrupt are there before the input is read."""
    client = await engine.client()
    sending = asyncio.create_task(client.send("recorded", "1", id=engine.task_queue))
    run = client.run(engine.task_queue)

    async def there() -> bool:
        with suppress(PerdureError):
            await run.inject("2")
            await run.interrupt("3")
            return True
        return False

    await eventually(there)
    async with engine.served(talker()):
        await (await sending).result()
        return await closed(run)


@scenario
async def refused_messages(engine: Engine) -> Run:
    async with engine.served(talker()) as client:
        run = await said(client, engine.task_queue, "1")
        for bad in (7, {"text": "x"}):
            with suppress(Exception):
                await run.handle.execute_update("send_message", bad)
        await run.handle.signal("interrupt", {"content": 7})
        return await closed(run)


@scenario
async def interrupted_in_a_model_call(engine: Engine) -> Run:
    gate = Gate()

    async def reply(request: ModelRequest) -> str:
        if len(users(request.messages)) == 1:
            await gate()
        return echo(request)

    return await _held(engine, talker(reply), gate, lambda run: run.interrupt("Stop."))


@scenario
async def stopped_in_a_model_call(engine: Engine) -> Run:
    gate = Gate()

    async def reply(request: ModelRequest) -> str:
        await gate()
        return "Never."

    return await _held(engine, talker(reply), gate, lambda run: run.interrupt())


@scenario
async def interrupted_in_tools(engine: Engine) -> Run:
    gate = Gate()
    return await _held(engine, _holder(gate), gate, lambda run: run.interrupt("Stop."), calls=2)


@scenario
async def stopped_in_tools(engine: Engine) -> Run:
    gate = Gate()

    async def during(run: Run) -> None:
        await run.inject("One thing more.")
        await run.interrupt()
        await run.interrupt()

    return await _held(engine, _holder(gate), gate, during, calls=2)


@scenario
async def stopped_run(engine: Engine) -> Run:
    gate = Gate()
    async with engine.served(_holder(gate)) as client:
        run = await client.start("recorded", "Go.")
        await eventually(lambda: gate.entered == 2)
        await run.interrupt()
        await _end(run)
    return run


@scenario
async def interrupted_and_cancelled(engine: Engine) -> Run:
    gate = Gate()
    async with engine.served(_holder(gate)) as client:
        run = await client.start("recorded", "Go.", mode="session")
        await eventually(lambda: gate.entered == 2)
        await run.interrupt("Stop.")
        await run.cancel()
        await _end(run)
    return run


@scenario
async def failed_session_resumed(engine: Engine) -> Run:
    from perdure.errors import AuthenticationError

    replies = [call("add", a=1, b=1), AuthenticationError("wrong key"), "Done.", "Two."]
    async with engine.served(talker(replies)) as client:
        run = await said(client, engine.task_queue, "1")
        await run.resume()
        await run.turn().result()
        await (await run.send("2")).result()
        return await closed(run)


@scenario
async def overridden(engine: Engine) -> Run:
    async with engine.served(talker()) as client:
        run = await client.start("recorded", "1", mode="session", override={"max_iterations": 3})
        await run.turn().result()
        await (await run.send("2", override={"tools": ["add"], "instructions": "Be good."})).result()
        return await closed(run)


@scenario
async def worker_lost_in_a_session(engine: Engine) -> Run:
    """Another worker goes on, and replays what the first one did."""
    client = await engine.client()
    async with engine.served(talker()):
        run = await said(client, engine.task_queue, "1", idle_timeout="1h")
        await eventually(lambda: _state(run, "idle"))
    async with engine.served(talker()):
        return await closed(await said(client, engine.task_queue, "1", "2"))


@scenario
async def paused_by_a_client(engine: Engine) -> Run:
    """In its tools, while it is idle, and before it begins; resumed, interrupted, and once resumed before it paused."""
    gate = Gate()
    async with engine.served(_holder(gate)) as client:
        run = await client.start("recorded", "Go.", mode="session")
        await eventually(lambda: gate.entered == 2)
        await run.pause(by="ana", reason="lunch")
        await run.resume(by="bob")
        await run.pause(by="ana", reason="tea")
        gate.open()
        await eventually(lambda: _state(run, "paused"))
        await run.inject("And this.")
        await run.resume(by="bob")
        await run.turn().result()
        await run.pause(by="ana")
        await eventually(lambda: _state(run, "paused"))
        turn = await run.send("Not this.")
        await run.interrupt()
        await turn.result()
        await run.resume()
        return await closed(run)


@scenario
async def paused_over_executions_and_workers(engine: Engine) -> Run:
    client = await engine.client()
    async with engine.served(talker()):
        run = await client.start("recorded", "1", id=engine.task_queue, mode="session", max_history_events=20)
        await run.turn().result()
        await run.pause(by="ana", reason="a deploy")
        await eventually(lambda: _state(run, "paused"))
        first = (await run.describe()).run_id
        for n in range(10):
            await run.inject(f"Message {n}")

        async def continued() -> bool:
            return (await run.describe()).run_id != first and await _state(run, "paused")

        await eventually(continued)
    async with engine.served(talker()):
        await run.resume(by="bob")
        await run.turn().result()
        return await closed(run)


@scenario
async def session_waited_for(engine: Engine) -> Run:
    """Clients wait for a turn by update: one until its time is over, three until the run continues as new, one until
    the turn has ended."""
    gates = [Gate(), Gate()]

    async def reply(request: ModelRequest) -> Any:
        if len(users(request.messages)) > 1:
            return echo(request)
        await gates[replied(request)]()
        return echo(request) if replied(request) else call("add", a=1, b=1)

    async with engine.served(talker(reply)) as client:
        run = await client.start("recorded", "1", mode="session", max_history_events=30)
        with mock.patch.object(handlers, "WAIT_SECONDS", 0.1):
            assert (await _wait_for_turn(run))["state"] == "running"
        waits = [asyncio.create_task(_wait_for_turn(run)) for _ in range(3)]
        await eventually(lambda: _accepted_updates(run, 4), what="the waits")
        gates[0].open()
        assert {answer["state"] for answer in await asyncio.gather(*waits)} == {"running"}
        await eventually(lambda: gates[1].entered)
        waits = [asyncio.create_task(_wait_for_turn(run))]
        await eventually(lambda: _accepted_updates(run, 1), what="the wait")
        gates[1].open()
        assert {answer["state"] for answer in await asyncio.gather(*waits)} == {"completed"}
        await (await run.send("2")).result()
        return await closed(run)


async def _wait_for_turn(run: Run) -> Any:
    return await run.handle.execute_update("wait_for_turn")


async def _accepted_updates(run: Run, count: int) -> bool:
    events = (await run.handle.fetch_history()).events
    return sum(event.HasField("workflow_execution_update_accepted_event_attributes") for event in events) >= count
