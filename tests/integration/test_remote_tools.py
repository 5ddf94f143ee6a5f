"""Remote tools: activities of workers that know nothing of perdure, here of Temporal's own Python SDK."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from temporalio import activity
from temporalio.worker import Worker

from perdure import Agent, ask, remote_tool, tool
from perdure.errors import InvalidInputError, RunCancelledError
from perdure.ports.model import ModelRequest
from perdure.testing import ScriptedProvider, call, scripted
from perdure.types.messages import ToolCallPart
from perdure.types.wire import REMOTE_BYTES
from tests.support.checks import results
from tests.support.engine import Engine
from tests.support.scripts import Gate
from tests.support.wait import eventually

pytestmark = pytest.mark.server

CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}


def asks(*calls: Any) -> ScriptedProvider:
    """A model that makes the calls, then repeats the results."""

    def reply(request: ModelRequest) -> Any:
        return "|".join(results(request.messages)) or list(calls)

    return ScriptedProvider(reply)


@asynccontextmanager
async def elsewhere(engine: Engine, *functions: Callable[..., Any]) -> AsyncIterator[None]:
    """A plain Temporal worker on the queue of remote tools."""
    async with Worker(await engine.temporal(), task_queue=f"{engine.task_queue}-far", activities=functions):
        yield


async def test_plain_json_comes_and_goes(engine: Engine) -> None:
    seen: list[Any] = []

    @activity.defn(name="tool.price")
    async def price(arguments: dict[str, Any]) -> Any:
        seen.append((arguments, activity.info().activity_id))
        return {"Oslo": {"euros": 140}, "Rome": "95 €", "Paris": None}[arguments["city"]]

    far = remote_tool("price", CITY, f"{engine.task_queue}-far", description="A price.")
    model = asks(*(call("price", city=city) for city in ("Oslo", "Rome", "Paris", "Bonn")))
    async with engine.served(Agent("planner", model, tools=[far])) as client, elsewhere(engine, price):
        run = await client.start("planner", "Go.")
        assert (await run.result()).content == "{\"euros\": 140}|95 €|null|KeyError: 'Bonn'"
    spec = model.requests[0].tools[0]
    assert (spec.name, spec.description, spec.parameters) == ("price", "A price.", CITY)
    assert len({one for _, one in seen}) == 4, "each call has an id of its own"


async def test_what_is_large_travels_whole_or_is_refused_and_many_large_results_are_no_end_of_the_run(
    engine: Engine,
) -> None:
    @activity.defn(name="tool.big")
    async def big(arguments: dict[str, Any]) -> str:
        return arguments["letter"] * arguments["n"] if "n" in arguments else str(len(arguments["text"]))

    far = remote_tool("big", {}, f"{engine.task_queue}-far")
    most = (REMOTE_BYTES - 2) // 6  # as JSON that Temporal writes, six bytes a letter
    one_by_one = asks(
        call("big", letter="ж", n=most),
        call("big", letter="ж", n=most + 1),
        call("big", text="x" * 200_000),
        call("big", text="x" * 300_000),
    )
    many = asks(*[call("big", letter="x", n=REMOTE_BYTES - 2)] * 12)
    agents = [Agent("large", one_by_one, tools=[far]), Agent("many", many, tools=[far])]
    async with engine.served(*agents) as client, elsewhere(engine, big):
        whole, longer, fits, refused = results((await (await client.start("large", "Go.")).result()).messages)
        found = results((await (await client.start("many", "Go.")).result()).messages)
    assert whole == "ж" * most
    assert longer == f"ResultError: big ran, but its result has {6 * most + 8:,} bytes as JSON; it may have 262,144"
    assert fits == "200000"
    assert refused.startswith("not run: its arguments have 300,0")
    assert [len(text) == REMOTE_BYTES - 2 for text in found].count(True) == 4
    assert sum("too long together; request less" in text for text in found) == 8


async def test_a_call_without_an_answer_is_run_again_if_it_may_be(engine: Engine) -> None:
    begun: list[tuple[str, str]] = []

    @activity.defn(name="tool.safe")
    async def safe(arguments: dict[str, Any]) -> str:
        begun.append(("safe", activity.info().activity_id))
        if len([one for one in begun if one[0] == "safe"]) < 3:
            await asyncio.Event().wait()
        return "done"

    @activity.defn(name="tool.once")
    async def once(arguments: dict[str, Any]) -> str:
        begun.append(("once", activity.info().activity_id))
        await asyncio.Event().wait()
        return "never"

    queue = f"{engine.task_queue}-far"
    tools = [
        remote_tool("safe", {}, queue, timeout=0.5, idempotent=True),
        remote_tool("once", {}, queue, timeout=0.5),
    ]
    agent = Agent("a", asks(call("safe"), call("once")), tools=tools)
    async with engine.served(agent) as client, elsewhere(engine, safe, once):
        said = (await (await client.start("a", "Go.")).result()).content
    assert said == "done|OutcomeUnknown: once has not answered within 0.5 s. It may have happened or not."
    # More often where an answer was on its way for half a second.
    assert [name for name, _ in begun].count("safe") >= 3
    assert len({one for name, one in begun if name == "safe"}) == 1, "its id is a key for what must happen once"


async def test_a_run_that_is_stopped_does_not_wait_for_it(engine: Engine) -> None:
    gate = Gate()

    @activity.defn(name="tool.slow")
    async def slow(arguments: dict[str, Any]) -> str:
        await gate()
        return "late"

    far = remote_tool("slow", {}, f"{engine.task_queue}-far")
    async with engine.served(Agent("slow", asks(call("slow")), tools=[far])) as client, elsewhere(engine, slow):
        interrupted, cancelled = [await client.start("slow", "Go.") for _ in range(2)]
        await eventually(lambda: gate.entered == 2, what="both calls")
        (at,) = (await interrupted.status()).calls
        assert (at.tool, at.kind) == ("slow", "remote")
        await interrupted.interrupt("Enough.")
        assert (await interrupted.result()).content.startswith("Interrupted")
        await cancelled.cancel()
        with pytest.raises(RunCancelledError):
            await cancelled.result()
        assert results(await cancelled.transcript())[0].startswith("Cancelled")
        gate.open()


async def test_a_function_in_place_of_a_schema_and_a_stand_in_in_tests() -> None:
    def signature(city: str, nights: int = 1) -> None:
        """What a hotel costs."""

    far = remote_tool("price", signature, "prices")
    assert far.description == "What a hotel costs."

    @tool(name="price")
    async def stand_in(city: str, nights: int = 1) -> dict[str, int]:
        """In its place."""
        return {"euros": 95 * nights}

    asked = [call("price", city="Rome", nights=3), call("price", city="Rome", nights="x")]
    agent = Agent("planner", asks(), tools=[far])
    async with scripted(agent, [asked, "Done."], tools=[stand_in]) as s:
        first, second = results((await (await s.client.start("planner", "Go.")).result()).messages)
    assert first == '{"euros": 285}'
    assert second.startswith("the arguments of price are not valid:")
    async with scripted(agent, [asked[:1], "Done."]) as s:
        (unserved,) = results((await (await s.client.start("planner", "Go.")).result()).messages)
    assert unserved.startswith("NotFoundError: this test has no worker for it")


async def test_it_waits_for_approval_as_any_tool_does(engine: Engine) -> None:
    seen: list[Any] = []

    @activity.defn(name="tool.pay")
    async def pay(arguments: dict[str, Any]) -> str:
        seen.append(arguments)
        return "paid"

    far = remote_tool("pay", {}, f"{engine.task_queue}-far")
    model = asks(ToolCallPart(id="a", name="pay", arguments={"n": 1}), ToolCallPart(id="b", name="pay", arguments={}))
    agent = Agent("payer", model, tools=[far], approvals=[ask("pay")])
    async with engine.served(agent) as client, elsewhere(engine, pay):
        run = await client.start("payer", "Go.")

        async def asked() -> bool:
            return (await run.status()).doing == "approval"

        await eventually(asked, what="both calls to wait")
        with pytest.raises(InvalidInputError, match="those of a remote tool cannot be changed"):
            await run.approve("a", arguments={"n": 1000})
        await run.approve("a")
        await run.deny("b", comment="no")
        paid, denied = results((await run.result()).messages)
    assert (paid, seen) == ("paid", [{"n": 1}])
    assert denied.startswith("Denied by tests")
