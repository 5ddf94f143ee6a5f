"""What a scripted engine without Temporal says is what the real one says: every scenario is run on both."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from perdure import Agent, Message, Response, ToolContext, tool
from perdure.errors import AuthenticationError, PerdureError, RateLimitError
from perdure.ports.model import ModelRequest
from perdure.testing import Script, call, cut, fail, hang, scripted
from perdure.types.messages import ToolCallPart
from tests.support.checks import assert_closed
from tests.support.wait import eventually

pytestmark = pytest.mark.server

Act = Callable[[Agent, Script], Awaitable[Any]]
IDS = {"context_id", "task_id", "store_id"}
"""What two runs of the same differ in. The head is not among them: it covers every byte of the transcript."""


class User(BaseModel):
    """Context of an agent."""

    name: str


@dataclass
class Scenario:
    """An agent, its script, and what is done with it. ``agent`` is made anew for each engine."""

    replies: Any
    options: dict[str, Any] = field(default_factory=dict)
    act: Act | None = None
    lifespan: Any = None

    async def run(self, engine: Any) -> Any:
        """What came of it, as it can be compared; an error by its class and text."""
        agent = Agent("scripted", "openai:gpt-5-mini", **{"tools": TOOLS, **self.options})
        replies = self.replies if callable(self.replies) else list(self.replies)
        script: Script | None = None
        try:
            async with scripted(agent, replies, engine=engine, lifespan=self.lifespan) as script:
                said = await (self.act or _call)(agent, script)
        except PerdureError as error:
            if script is None:
                raise  # the engine did not start
            said = error
        return [_plain(said), [_asked(request) for request in script.requests]]


def _plain(said: Any) -> Any:
    if isinstance(said, PerdureError):
        return (type(said).__name__, str(said))
    if isinstance(said, Response):
        assert_closed(said.messages)
        return said.model_dump(exclude=IDS)
    if isinstance(said, list | tuple):
        return [_plain(one) for one in said]
    return said


def _asked(request: ModelRequest) -> Any:
    return (request.model, request.system, request.settings, [spec.name for spec in request.tools], request.messages)


async def _call(agent: Agent, script: Script) -> Any:
    return await agent.call("Go.")


# --- tools


@tool
def add(a: int, b: int) -> int:
    """Add."""
    return a + b


@tool(inline=True)
async def double(n: int) -> int:
    """Twice."""
    return 2 * n


@tool
async def broken() -> None:
    """Fail."""
    raise ValueError("broken")


@tool(timeout=0.05)
async def slow() -> str:
    """Take too long."""
    await asyncio.Event().wait()
    return "never"


@tool
async def facts(ctx: ToolContext) -> dict[str, Any]:
    """What a tool is told, but for ids."""
    return {"context": ctx.context, "iteration": ctx.iteration, "resources": ctx.resources, "attempt": ctx.attempt}


@tool
async def remember(ctx: ToolContext, value: str) -> Any:
    """Remember something, and say what it was before."""
    before = await ctx.memory.get("scripted", "value")
    await ctx.memory.put("scripted", "value", value)
    return before


TOOLS = [add, double, broken, slow, facts, remember]


@asynccontextmanager
async def resources() -> AsyncIterator[str]:
    """A lifespan."""
    yield "a pool"


# --- what is done


async def call_twice(agent: Agent, script: Script) -> Any:
    return [await agent.call("Go.", id=f"twice-{id(script)}") for _ in range(2)]


async def with_context(agent: Agent, script: Script) -> Any:
    return await agent.call("Go.", context={"name": "Ana"})


async def with_override(agent: Agent, script: Script) -> Any:
    override = {"instructions": "Be brief.", "tools": ["add"], "settings": {"temperature": 0}, "model": "openai:gpt-5"}
    return await agent.call("Go.", override=override)


async def with_history(agent: Agent, script: Script) -> Any:
    first = await agent.call("One.", history=[Message.user("Zero."), Message(role="assistant", parts=())])
    return [first, await agent.call("Two.", history=first)]


async def memories(agent: Agent, script: Script) -> Any:
    return [await agent.call("Go.") for _ in range(2)]


async def session(agent: Agent, script: Script) -> Any:
    id_ = f"session-{id(script)}"
    said = []
    for text in ("One.", "Two."):
        turn = await script.send(text, id=id_, message_id=text)
        said.append(await turn.result())
    again = await script.send("Two.", id=id_, message_id="Two.")
    said.append(await again.result())
    await turn.run.close()
    await turn.run.result()
    reopened = await script.send("Three.", id=id_, message_id="Three.")
    return [*said, await reopened.result(), (await reopened.status()).state]


async def failed_session(agent: Agent, script: Script) -> Any:
    id_ = f"failed-{id(script)}"
    turn = await script.send("One.", id=id_, message_id="1")
    said: list[Any] = []
    try:
        await turn.result()
    except PerdureError as error:
        said.append(error)
    return [*said, await (await script.send("Two.", id=id_, message_id="2")).result()]


async def resumed(agent: Agent, script: Script) -> Any:
    run = await script.client.start(agent, "Go.")
    said: list[Any] = []
    try:
        await run.result()
    except PerdureError as error:
        said.append(error)
    await run.resume()
    return [*said, await run.result()]


async def interrupted(agent: Agent, script: Script) -> Any:
    turn = await script.send("Go.", id=f"interrupted-{id(script)}", message_id="1")
    await _asked_times(script, 1)
    await turn.interrupt()
    first = await turn.result()
    return [first, await (await turn.run.send("Go on.", message_id="2")).result()]


async def interrupted_with_message(agent: Agent, script: Script) -> Any:
    run = await script.client.start(agent, "Go.")
    await _asked_times(script, 1)
    await run.interrupt("Stop that.")
    return await run.result()


async def injected(agent: Agent, script: Script) -> Any:
    run = await script.client.start(agent)
    await run.inject("One.", id="1")
    await run.inject("One.", id="1")
    return await run.result()


async def cancelled(agent: Agent, script: Script) -> Any:
    run = await script.client.start(agent, "Go.")
    await _asked_times(script, 1)
    await run.cancel()
    try:
        await run.result()
    except PerdureError as error:
        messages = await run.transcript()
        assert_closed(messages)
        return [type(error).__name__, messages, (await run.status()).state]


async def exists(agent: Agent, script: Script) -> Any:
    run = await script.client.start(agent, "Go.", id=f"exists-{id(script)}")
    try:
        await script.client.start(agent, "Go.", id=run.id)
    except PerdureError as error:
        return [type(error).__name__, await run.result(), len(await script.client.list(limit=5)) > 0]


async def long(agent: Agent, script: Script) -> Any:
    """It continues as new on the way."""
    run = await script.client.start(agent, "Go.", max_history_events=20)
    return await run.result()


async def _asked_times(script: Script, times: int) -> None:
    await eventually(lambda: len(script.requests) >= times, every=0.005)


def replied(request: ModelRequest) -> int:
    return sum(message.role == "assistant" for message in request.messages)


malformed = ToolCallPart(id="", name="add", malformed="{")
mixed = [call("nothing"), call("add", a="x"), malformed, call("broken"), call("slow"), call("double", n=2)]

SCENARIOS: dict[str, Scenario] = {
    "tools": Scenario([[call("add", a=1, b=2), call("double", n=3), "And:"], call("add", a=3, b=3), "Done."]),
    "calls that fail": Scenario([mixed, "Done."]),
    "tag": Scenario(["Thinking.", "<finish>42</finish>"], {"finish": "tag"}),
    "large": Scenario([["t" * 100_000, call("add", a=1, b=2)], "u" * 100_000]),
    "limit": Scenario([call("add", a=1, b=1), "All I know."], {"max_iterations": 1}),
    "limit, error": Scenario([call("add", a=1, b=1)], {"max_iterations": 1, "on_limit": "error"}),
    "wrong key": Scenario([call("add", a=1, b=1), AuthenticationError("wrong key", hint="Set it.")]),
    "retried": Scenario([fail(RateLimitError("slow", retry_after=0.01), "He", after=1), "Hello."]),
    "cut": Scenario([cut([call("add", a=1, b=2), "Hello there."], after=8), "Hello."]),
    "instructions, context and resources": Scenario(
        [call("facts"), "Hola."],
        {"instructions": lambda ctx: f"You help {ctx.context.name}.", "context": User},
        with_context,
        resources,
    ),
    "override": Scenario(["Done."], {"instructions": "Be long.", "settings": {"max_tokens": 5}}, with_override),
    "history": Scenario(["Done.", "Done."], {}, with_history),
    "memory": Scenario(
        lambda r: call("remember", value="x") if replied(r) == 0 else r.messages[-1].tool_results[0].content,
        {},
        memories,
    ),
    "id": Scenario(["Done."], {}, call_twice),
    "session": Scenario(["1", call("add", a=1, b=1), "2", "3"], {}, session),
    "failed session": Scenario([AuthenticationError("wrong key"), "2"], {}, failed_session),
    "resumed": Scenario([call("add", a=1, b=1), AuthenticationError("wrong key"), "Done."], {}, resumed),
    "interrupted": Scenario([hang("Wait", after=2), "2"], {}, interrupted),
    "interrupted with a message": Scenario([hang(), "I have stopped."], {}, interrupted_with_message),
    "injected": Scenario(["Hello."], {}, injected),
    "cancelled": Scenario([hang()], {}, cancelled),
    "exists": Scenario(["Hello."], {}, exists),
    "too few replies": Scenario([call("add", a=1, b=1)]),
    "continued as new": Scenario(lambda r: "Done." if replied(r) >= 9 else call("add", a=replied(r), b=1), {}, long),
}


@pytest.fixture
def _server(temporal_address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TEMPORAL_ADDRESS", temporal_address)
    monkeypatch.setenv("PERDURE_STORE_URL", f"sqlite:///{tmp_path / 'store.db'}")
    monkeypatch.delenv("PERDURE_TASK_QUEUE", raising=False)
    return iter(())


@pytest.mark.usefixtures("_server")
@pytest.mark.parametrize("name", SCENARIOS)
async def test_both_engines_say_the_same(name: str) -> None:
    in_process = await SCENARIOS[name].run("process")
    on_temporal = await SCENARIOS[name].run("temporal")
    assert in_process == on_temporal
